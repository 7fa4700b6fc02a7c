//! Each `Ordering::Relaxed` of the sources has a comment, `Relaxed: ...`, that says why it may be: on
//! its line or shortly above. Processors of the x86 family order more than the language promises, so
//! no test that runs on one can find a `Relaxed` that should be an `Acquire` or a `Release`.
//!
//!     cargo test --test orderings

mod support;

use std::fs;
use std::path::Path;
use support::root;

const SOURCES: [&str; 4] = ["src", "softverbs/src", "tools/src", "verbs-ext/src"];
/// So many lines above a comment may begin: it has one to three lines, and a call goes over some.
const ABOVE: usize = 5;

#[test]
fn each_relaxed_says_why() {
    let mut seen = 0;
    let mut found = vec![];
    for sources in SOURCES {
        each_file(&root().join(sources), &mut |file| {
            let text = fs::read_to_string(file).unwrap();
            seen += text.matches("Ordering::Relaxed").count();
            let shown = file.strip_prefix(root()).unwrap().display();
            found.extend(unexplained(&text).map(|line| format!("{shown}:{line}")));
        });
    }
    assert!(seen > 10, "only {seen} in {SOURCES:?}");
    assert!(
        found.is_empty(),
        "no comment \"Relaxed: ...\" says why these may be:\n{}",
        found.join("\n")
    );
}

fn each_file(dir: &Path, f: &mut impl FnMut(&Path)) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            each_file(&path, f);
        } else if path.extension().is_some_and(|end| end == "rs") {
            f(&path);
        }
    }
}

/// The numbers of the lines that use the ordering and have no comment. Importing it counts as well,
/// under whatever name: then its uses can't be told from other words.
fn unexplained(text: &str) -> impl Iterator<Item = usize> {
    let lines: Vec<_> = text.lines().collect();
    let explains = |line: &str| {
        line.split_once("//")
            .is_some_and(|(_, comment)| comment.trim_start().starts_with("Relaxed: "))
    };
    let uses = |line: &str| {
        let code = line.split("//").next().unwrap_or_default();
        let mut words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
        words.any(|word| word == "Relaxed")
    };
    let found = (0..lines.len()).filter(|&n| {
        let near = &lines[n.saturating_sub(ABOVE)..=n];
        uses(lines[n]) && !near.iter().any(|line| explains(line))
    });
    found.map(|n| n + 1).collect::<Vec<_>>().into_iter()
}

#[test]
fn what_has_no_reason_is_found() {
    let found = |text: &str| unexplained(text).collect::<Vec<_>>();
    assert_eq!(found("a.load(Ordering::Relaxed);"), [1]);
    assert_eq!(found("// It is a count.\na.load(Ordering::Relaxed);"), [2]);
    assert_eq!(found("use std::sync::atomic::Ordering::Relaxed;"), [1]);
    assert_eq!(found("use O::{Acquire, Relaxed as R};"), [1]);
    let far = "// Relaxed: a count.\n\n\n\n\n\na.load(Ordering::Relaxed);";
    assert_eq!(found(far), [7]);
    for good in [
        "// Relaxed: a count.\na.load(Ordering::Relaxed);",
        "a.load(Ordering::Relaxed); // Relaxed: a count.",
        "// Relaxed: a count, of which\n// more is to be said.\nlet n = a\n    .load(Ordering::Relaxed);",
        "a.load(Ordering::Acquire); // not Relaxed",
    ] {
        assert_eq!(found(good), [0; 0], "{good}");
    }
}
