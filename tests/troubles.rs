//! `docs/troubleshooting.md`: that what it shows is what the library prints. The troubles are made to
//! happen by c-tests/troubles, over softverbs and, those that take a kernel's device, in the virtual
//! machine.
//!
//!     cargo test --test troubles -- over_softverbs        the first alone

mod support;

use pulldown_cmark::{Event, Parser, Tag, TagEnd};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use support::{cc, release, root, run, scratch, softverbs, vm};

const PAGE: &str = "docs/troubleshooting.md";

const OVER_SOFTVERBS: [&str; 27] = [
    "wildcard",
    "other-host",
    "no-host",
    "in-use",
    "unmapped",
    "read-only",
    "not-persistent",
    PAGED,
    "long-cq",
    "long-sq",
    "long-srq",
    "sq-full",
    "cq-full",
    "rq-full",
    "descriptors",
    "port-taken",
    "rejected",
    "forked",
    "long-data",
    "nothing-yet",
    "access-error",
    "beyond",
    "protection-error",
    "short-receive",
    "after-an-error",
    "not-told",
    "no-usage",
];

/// The one that takes a device with on-demand paging; the others are to be as on one without.
const PAGED: &str = "advice-beyond";

/// Cases on the kernel's device, and what has to be so.
const IN_THE_MACHINE: &str = r#"
export LD_LIBRARY_PATH=/share
trouble() { # CASE [COMMAND...]: the command runs it
    echo "case $1"
    case=$1; shift
    timeout 600 "$@" ./troubles "$case" "$RPMA_VM_IP" || echo "cannot go on: exit status $?"
}
as_nobody() { trouble "$1" setpriv --reuid 65534 --regid 65534 --clear-groups; }

for case in loopback wildcard other-host no-way no-host in-use unmapped read-only not-persistent advice \
    long-cq long-sq long-srq rq-full descriptors port-taken rejected long-data nothing-yet \
    access-error beyond protection-error short-receive after-an-error not-told no-usage \
    flush-refused; do
    trouble $case
done
for case in memlock memlock-none port-low; do as_nobody $case; done

modprobe ext4
ndctl create-namespace -f -e namespace0.0 -m fsdax -M mem >/dev/null 2>&1
mkfs.ext4 -q -F -b 4096 /dev/pmem0
mkdir -p /mnt
export RPMA_TROUBLES_FILE=/mnt/file
for dax in always never; do
    mount -o dax=$dax /dev/pmem0 /mnt || echo "cannot go on: no filesystem with dax=$dax"
    dd if=/dev/zero of=/mnt/file bs=1M count=2 2>/dev/null
    trouble file
    umount /mnt
done

chmod 600 /dev/infiniband/uverbs0; as_nobody device
chmod 600 /dev/infiniband/rdma_cm; as_nobody device
mv /dev/infiniband/rdma_cm /run/rdma_cm; trouble device
mv /dev/infiniband/uverbs0 /run/uverbs0; trouble device
mv /run/rdma_cm /dev/infiniband/rdma_cm; trouble device
"#;

/// The program, and the library beside it.
fn built() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = scratch("troubles");
        fs::copy(release().join("librpma.so"), dir.join("librpma.so.0")).unwrap();
        run(cc()
            .args(["-g", "-I"])
            .arg(root().join("include"))
            .arg("-o")
            .arg(dir.join("troubles"))
            .arg(root().join("c-tests/troubles/troubles.c"))
            .arg(release().join("librpma.so"))
            .arg("-libverbs"));
        dir
    })
}

/// A line that was printed, with the case that it is of.
struct Line {
    case: String,
    text: String,
}

fn over_softverbs_here() -> &'static [Line] {
    static LINES: OnceLock<Vec<Line>> = OnceLock::new();
    LINES.get_or_init(|| {
        let dir = built();
        let device = softverbs();
        let of = |case: &&str| {
            let output = Command::new("timeout")
                .arg("600")
                .arg(dir.join("troubles"))
                .args([case, "127.0.0.1"])
                .env("LD_LIBRARY_PATH", dir)
                .env("LD_PRELOAD", &device)
                .env("SOFTVERBS_ODP", if *case == PAGED { "on" } else { "off" })
                .output()
                .unwrap();
            let printed = String::from_utf8_lossy(&output.stdout);
            assert!(
                output.status.success(),
                "{case} over softverbs ended with {}\n{printed}{}",
                output.status,
                String::from_utf8_lossy(&output.stderr)
            );
            lines(&format!("case {case}\n{printed}"))
        };
        OVER_SOFTVERBS.iter().flat_map(of).collect()
    })
}

fn in_the_machine() -> &'static [Line] {
    static LINES: OnceLock<Vec<Line>> = OnceLock::new();
    LINES.get_or_init(|| {
        let dir = scratch("troubles-vm");
        for name in ["troubles", "librpma.so.0"] {
            fs::copy(built().join(name), dir.join(name)).unwrap();
        }
        let (printed, _) = run(&mut vm(&dir, &[], IN_THE_MACHINE));
        lines(&printed)
    })
}

fn lines(printed: &str) -> Vec<Line> {
    assert!(!printed.contains("cannot go on: "), "\n{printed}");
    let mut case = "";
    let mut lines = vec![];
    for line in printed.lines() {
        match line.strip_prefix("case ") {
            Some(name) => case = name,
            None => lines.push(Line {
                case: case.to_string(),
                text: line.to_string(),
            }),
        }
    }
    lines.retain(|line| is_shown(&line.text));
    lines
}

const LOGGED: [&str; 2] = ["*ERROR* ", "*WARN*  "];

/// Not what other libraries say on their own.
fn is_shown(line: &str) -> bool {
    let kinds = ["completion: ", "event: "];
    LOGGED
        .iter()
        .chain(&kinds)
        .any(|kind| line.starts_with(kind))
}

/// What the page has: lines of the log, and words in backquotes.
struct Shown {
    logged: Vec<String>,
    words: BTreeSet<String>,
}

fn shown() -> Shown {
    let text = fs::read_to_string(root().join(PAGE)).unwrap();
    let (mut logged, mut words) = (vec![], BTreeSet::new());
    let mut block = None;
    for event in Parser::new(&text) {
        match event {
            Event::Start(Tag::CodeBlock(_)) => block = Some(String::new()),
            Event::Text(text) => {
                if let Some(block) = &mut block {
                    block.push_str(&text);
                }
            }
            Event::End(TagEnd::CodeBlock) => {
                let block = block.take().unwrap();
                // What is folded goes on behind spaces.
                let block = block.replace("\n    ", " ");
                let lines = block.lines().filter(|line| is_shown(line));
                logged.extend(lines.map(str::to_string));
            }
            Event::Code(code) => {
                words.insert(code.to_string());
            }
            _ => {}
        }
    }
    Shown { logged, words }
}

/// Without what differs from one run, or one device, to the next: the device's address and limits,
/// ports, and numbers that are written in hexadecimal.
fn plain(line: &str) -> String {
    let line = line.replace("127.0.0.1", "ADDRESS");
    let line = line.replace("10.77.0.1", "ADDRESS");
    let mut plain = String::new();
    let mut rest = line.as_str();
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        plain.push_str(&rest[..at]);
        rest = &rest[at..];
        let end = |digits: fn(char) -> bool, text: &str| {
            text.find(|c: char| !digits(c)).unwrap_or(text.len())
        };
        let number;
        (number, rest) = match rest.strip_prefix("0x") {
            Some(hex) => ("0x", &hex[end(|c| c.is_ascii_hexdigit(), hex)..]),
            None => rest.split_at(end(|c| c.is_ascii_digit(), rest)),
        };
        let varies = [" is ", "ADDRESS:"]
            .iter()
            .any(|before| plain.ends_with(before));
        plain.push_str(if varies { "N" } else { number });
    }
    plain.push_str(rest);
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Each line that was printed is on the page.
fn compare(printed: &[Line]) {
    let shown = shown();
    let logged: BTreeSet<_> = shown.logged.iter().map(|line| plain(line)).collect();
    let missing: Vec<_> = printed
        .iter()
        .filter(|Line { text, .. }| match text.split_once(": ") {
            Some(("completion" | "event", words)) => !shown.words.contains(words),
            _ => !logged.contains(&plain(text)),
        })
        .map(|Line { case, text }| format!("{case}: {text}"))
        .collect();
    assert!(
        missing.is_empty(),
        "the library prints what {PAGE} does not show:\n\n{}\n",
        missing.join("\n")
    );
}

#[test]
fn over_softverbs() {
    compare(over_softverbs_here());
}

/// The rest, and that nothing else is shown.
#[test]
fn in_the_virtual_machine() {
    compare(in_the_machine());

    let printed = over_softverbs_here().iter().chain(in_the_machine());
    let printed: BTreeSet<_> = printed.map(|line| plain(&line.text)).collect();
    let shown = shown();
    assert!(shown.logged.len() > 20, "{} lines", shown.logged.len());
    let other: Vec<_> = shown
        .logged
        .iter()
        .filter(|line| !printed.contains(&plain(line)))
        .map(String::as_str)
        .collect();
    assert!(
        other.is_empty(),
        "{PAGE} shows what nothing prints:\n\n{}\n",
        other.join("\n")
    );
}
