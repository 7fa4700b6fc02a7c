//! `rpma-perf`: measures the operations of librpma between two hosts.

use librpma_tools::cli;
use librpma_tools::perf::arguments::{Action, Cli};
use librpma_tools::perf::{Failure, Stop, client, compare, server};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli: Cli = match cli::parse() {
        Ok(cli) => cli,
        Err(status) => return status,
    };
    let stop = match Stop::on_signals() {
        Ok(stop) => stop,
        Err(error) => return cli::fail::<Cli>(&error.to_string(), 1),
    };
    let outcome = match &cli.action {
        Action::Compare(arguments) => {
            return match compare::run(arguments) {
                Ok(text) => cli::print::<Cli>(&text),
                Err(why) => cli::fail::<Cli>(&why, 1),
            };
        }
        Action::Server(arguments) => server::run(arguments, &stop),
        Action::Client(arguments) => {
            if let Err(why) = arguments.validate() {
                return cli::refuse::<Cli>(&why);
            }
            client::run(arguments, &stop)
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let status = if matches!(failure, Failure::Interrupted) {
                stop.status()
            } else {
                1
            };
            cli::fail::<Cli>(&failure.to_string(), status)
        }
    }
}
