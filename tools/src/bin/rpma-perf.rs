//! `rpma-perf`: measures the operations of librpma between two hosts.

use clap::Parser;
use librpma_tools::cli;
use librpma_tools::rpma::{Device, Peer};
use std::process::ExitCode;

/// Measure latency and bandwidth of the operations of librpma.
#[derive(Parser)]
#[command(name = "rpma-perf", version)]
struct Cli {
    /// An address of this host.
    address: String,
}

fn main() -> ExitCode {
    let cli: Cli = match cli::parse() {
        Ok(cli) => cli,
        Err(status) => return status,
    };
    match Device::local(&cli.address).and_then(|device| Peer::new(device).map(|_| device)) {
        Ok(device) => cli::print::<Cli>(&format!("{}\n", device.name())),
        Err(error) => cli::fail::<Cli>(&error.to_string(), 1),
    }
}
