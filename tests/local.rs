//! The C programs that need no device (c-tests/local), over the original library and ours: argument
//! checks, constants, strings, descriptors, configurations, the log, threads, lack of memory.
//!
//!     cargo test --test local                 all of them
//!     cargo test --test local -- args         one program
//!
//! Each program is built with the original's header and library and with ours, and both builds run
//! over both libraries.

mod support;
#[path = "support/transcript.rs"]
mod transcript;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use support::{cc, original, release, root, run, scratch};
use transcript::{Library, ORIGINAL, OURS, Place};

fn build(dir: &Path, name: &str, with: &str) -> PathBuf {
    let program = dir.join(format!("{name}-{with}"));
    let mut command = cc();
    if with == OURS {
        command.arg("-I").arg(root().join("include"));
    }
    command
        .args(["-g", "-rdynamic", "-pthread", "-o"])
        .arg(&program)
        .arg(root().join(format!("c-tests/local/{name}.c")))
        .arg(if with == OURS {
            release().join("librpma.so")
        } else {
            original()
        });
    run(&mut command);
    program
}

/// Every case of a program: the build with the original over the original is what the other three
/// have to agree with.
fn compare(name: &str) {
    let dir = scratch(&format!("local-{name}"));
    symlink(release().join("librpma.so"), dir.join("librpma.so.0")).unwrap();
    let original_library = Library::new(ORIGINAL, original().parent().unwrap());
    let libraries = [original_library.clone(), Library::new(OURS, &dir)];
    let builds = [ORIGINAL, OURS].map(|with| (with, build(&dir, name, with)));
    let cases = transcript::cases(&builds[0].1, &original_library);
    assert!(!cases.is_empty(), "{name} has no cases");

    let known = transcript::known();
    let mut failures = vec![];
    for (case, _) in cases {
        let id = format!("{name}/{case}");
        let reference = transcript::run_solo(&builds[0].1, &[&case], &original_library).unwrap();
        let mut seen = vec![];
        let mut problems = vec![];
        for (with, program) in &builds {
            for library in &libraries {
                if let Err(problem) =
                    transcript::run_solo(program, &[&case], library).and_then(|transcript| {
                        transcript::compare(
                            &id,
                            Place::Any,
                            &known,
                            &reference,
                            &transcript,
                            &mut seen,
                        )
                    })
                {
                    problems.push(format!(
                        "built with {with}, run over {}: {problem}",
                        library.name
                    ));
                }
            }
        }
        if problems.is_empty() {
            problems = transcript::unseen(&id, Place::Any, &known, &seen);
        }
        let lines = reference.lines.len();
        let verdict = if problems.is_empty() {
            "same"
        } else {
            "DIFFERENT"
        };
        println!("{id}: {lines} lines, {verdict}");
        failures.extend(
            problems
                .into_iter()
                .map(|problem| format!("{id}: {problem}")),
        );
    }
    assert!(
        failures.is_empty(),
        "\n{}\nto run it again: cargo test --test local -- {name}\n",
        failures.join("\n")
    );
}

#[test]
fn args() {
    compare("args");
}

#[test]
fn values() {
    compare("values");
}

#[test]
fn log() {
    compare("log");
}

#[test]
fn threads() {
    compare("threads");
}

#[test]
fn memory() {
    compare("memory");
}
