//! Tests that may find out, while they run, that this machine lacks what they need. Such a test ends as
//! `ignored`, with the reason, and is counted so; cargo's own harness has no word for it.

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use std::any::Any;
use std::env;
use std::process::ExitCode;
use std::thread;

/// Why a test did not test anything.
#[derive(Debug)]
pub struct Ignored(pub String);

pub type Outcome = Result<(), Ignored>;

/// What a test returns: nothing, if it can run everywhere.
pub trait Ending: Send + 'static {
    fn outcome(self) -> Outcome;
}

impl Ending for () {
    fn outcome(self) -> Outcome {
        Ok(())
    }
}

impl Ending for Outcome {
    fn outcome(self) -> Outcome {
        self
    }
}

/// A test under its path. It runs in a thread of that name, as in cargo's own harness.
pub fn trial<T: Ending>(path: &str, test: fn() -> T) -> Trial {
    let name = path.replace(' ', "");
    let thread = thread::Builder::new().name(name.clone());
    Trial::ignorable_test(name, move || match thread.spawn(test)?.join() {
        Ok(ending) => Ok(match ending.outcome() {
            Ok(()) => Completion::Completed,
            Err(Ignored(why)) => Completion::ignored_with(why),
        }),
        Err(panic) => Err(message(&*panic)),
    })
}

fn message(panic: &(dyn Any + Send)) -> Failed {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.map_or_else(Failed::without_message, Failed::from)
}

/// Lists tests. One that is left out is dead code, of which the compiler warns.
macro_rules! trials {
    ($($test:path),* $(,)?) => {
        vec![$($crate::trials::trial(stringify!($test), $test)),*]
    };
}
pub(crate) use trials;

/// Runs those that the command line asks for.
pub fn run(mut trials: Vec<Trial>) -> ExitCode {
    let (options, filters) = arguments(env::args());
    let arguments = Arguments::from_iter(options);
    trials.retain(|trial| {
        let fits = |filter: &String| match arguments.exact {
            true => trial.name() == filter,
            false => trial.name().contains(filter),
        };
        filters.is_empty() || filters.iter().any(fits)
    });
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Options, and the words to filter by: cargo's own harness takes several, libtest-mimic one.
fn arguments(mut all: impl Iterator<Item = String>) -> (Vec<String>, Vec<String>) {
    const WITH_VALUE: [&str; 5] = [
        "--skip",
        "--test-threads",
        "--format",
        "--color",
        "--logfile",
    ];
    let mut options: Vec<String> = all.next().into_iter().collect();
    let mut filters = vec![];
    while let Some(argument) = all.next() {
        if WITH_VALUE.contains(&argument.as_str()) {
            options.push(argument);
            options.extend(all.next());
        } else if argument.starts_with('-') {
            options.push(argument);
        } else {
            filters.push(argument);
        }
    }
    (options, filters)
}
