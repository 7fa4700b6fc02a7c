//! `rpma-info`: see the library's module of that name.

use clap::Parser;
use clap::builder::NonEmptyStringValueParser;
use librpma_tools::cli;
use librpma_tools::info::Report;
use std::process::ExitCode;

/// Show what librpma has to run on, what will go wrong, and how to mend it.
///
/// Looks at the RDMA devices of this host, or at those that serve or lead to the
/// addresses given, through the librpma and the libibverbs that a program run in
/// the same way would load. It changes nothing and needs no privileges.
#[derive(Parser)]
#[command(name = "rpma-info", version, verbatim_doc_comment, after_help = MORE)]
struct Cli {
    /// Addresses or host names, of this host or others; none: all of this host.
    #[arg(value_name = "ADDRESS", value_parser = NonEmptyStringValueParser::new())]
    addresses: Vec<String>,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

const MORE: &str = "\
Exit status:
  0            A device is usable; where addresses are given, each has one that is
  1            Something will fail: there is a finding of level error
  2            The arguments are not understood

Examples:
  rpma-info
  rpma-info 192.168.0.1 storage.example.org
  softverbs run -- rpma-info --json 127.0.0.1";

fn main() -> ExitCode {
    let cli = match cli::parse::<Cli>() {
        Ok(cli) => cli,
        Err(status) => return status,
    };
    let report = Report::make(&cli.addresses);
    let text = if cli.json {
        report.json()
    } else {
        report.text()
    };
    match cli::print::<Cli>(&text) {
        ExitCode::SUCCESS if !report.usable => ExitCode::FAILURE,
        status => status,
    }
}
