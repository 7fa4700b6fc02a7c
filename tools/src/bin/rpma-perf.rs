//! `rpma-perf`: measures the operations of librpma between two hosts.

use librpma_tools::cli;
use librpma_tools::perf::arguments::{Action, Cli};
use librpma_tools::perf::{Failure, Stop, client, compare, server};
use std::process::ExitCode;

/// What shells say of a program that SIGINT has ended.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let cli: Cli = match cli::parse() {
        Ok(cli) => cli,
        Err(status) => return status,
    };
    let outcome = match &cli.action {
        Action::Compare(arguments) => {
            return match compare::run(arguments) {
                Ok(text) => cli::print::<Cli>(&text),
                Err(why) => cli::fail::<Cli>(&why, 1),
            };
        }
        Action::Server(arguments) => Stop::on_signals()
            .map_err(Failure::from)
            .and_then(|stop| server::run(arguments, &stop)),
        Action::Client(arguments) => {
            if let Some(depth) = arguments
                .depths
                .0
                .iter()
                .find(|depth| **depth < arguments.signal_every)
            {
                let every = arguments.signal_every;
                let why = format!(
                    "with --signal-every {every} at depth {depth} nothing would ever complete"
                );
                return cli::refuse::<Cli>(&why);
            }
            Stop::on_signals()
                .map_err(Failure::from)
                .and_then(|stop| client::run(arguments, &stop))
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let status = if matches!(failure, Failure::Interrupted) {
                INTERRUPTED
            } else {
                1
            };
            cli::fail::<Cli>(&failure.to_string(), status)
        }
    }
}
