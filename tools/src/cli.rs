//! What is the same for every tool on the command line.

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use std::io::{self, Write as _};
use std::process::ExitCode;

/// The status of a tool that was asked wrongly.
pub const MISUSED: u8 = 2;

/// Reads the command line. Where that was a cry for help or wrong, the status to exit with.
pub fn parse<C: Parser>() -> Result<C, ExitCode> {
    C::try_parse().map_err(|error| {
        if error.use_stderr() {
            refuse::<C>(&what_is_wrong::<C>(&error))
        } else {
            print::<C>(&error.to_string())
        }
    })
}

/// What is wrong with the arguments, without the advice that follows it.
fn what_is_wrong<C: CommandFactory>(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let command = C::command();
        let names: Vec<_> = command
            .get_subcommands()
            .map(clap::Command::get_name)
            .collect();
        return format!("nothing to do: say one of {}", names.join(", "));
    }
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let lines = text.lines().take_while(|line| !line.is_empty());
    lines.map(str::trim).collect::<Vec<_>>().join(" ")
}

/// The name of a tool.
fn name<C: CommandFactory>() -> String {
    C::command().get_name().to_owned()
}

/// Says in one line that the tool was asked wrongly.
pub fn refuse<C: CommandFactory>(why: &str) -> ExitCode {
    fail::<C>(&format!("{why}; see '{} --help'", name::<C>()), MISUSED)
}

/// Says why the tool ends with this status.
pub fn fail<C: CommandFactory>(why: &str, status: u8) -> ExitCode {
    // Whoever closed stderr sees the status.
    let _ = writeln!(io::stderr(), "{}: {why}", name::<C>());
    ExitCode::from(status)
}

/// Prints. Whoever does not read to the end has seen enough.
pub fn print<C: CommandFactory>(text: &str) -> ExitCode {
    match io::stdout()
        .write_all(text.as_bytes())
        .and_then(|()| io::stdout().flush())
    {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            fail::<C>(&format!("stdout: {error}"), 1)
        }
        _ => ExitCode::SUCCESS,
    }
}
