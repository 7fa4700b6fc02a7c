//! The packages, built, looked at, and installed into a fresh root of this distribution. Debian's go
//! over the original, beside programs that need it, and away again. RPMs go into the same root, which
//! is no distribution of theirs: rpm is told to leave dependencies alone.

mod support;

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, OnceLock};
use support::{root, run, scratch};

const PACKAGES: [&str; 4] = [
    "librpma0-rs",
    "librpma-rs-dev",
    "librpma-tools",
    "softverbs",
];
/// The members of the workspace whose code is in them.
const MEMBERS: [&str; 3] = ["librpma", "librpma-tools", "softverbs"];
/// How many seconds one step in the root may take; apt is what takes long.
const LIMIT: u32 = 1800;

fn target() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap()
}

/// Builds the packages of a kind among sources whose examples somebody has built, and gives their
/// directory.
fn build(kind: &str) -> PathBuf {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap();
    let _built = Built::new();
    run(Command::new(root().join("scripts").join(kind)).env("CARGO_TARGET_DIR", target()));
    target().join(kind)
}

/// A program that was built of the examples, where they say to, for as long as a test needs it.
struct Built(PathBuf);

impl Built {
    fn new() -> Self {
        let dir = root().join("examples/build");
        fs::create_dir_all(&dir).unwrap();
        let program = dir.join("built_by_a_test");
        fs::copy("/bin/true", &program).unwrap();
        Self(program)
    }
}

impl Drop for Built {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
        // Others may have built something there, too.
        let _ = fs::remove_dir(self.0.parent().unwrap());
    }
}

/// The directory with Debian's packages, built once.
fn packages() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| build("deb"))
}

fn file(package: &str) -> String {
    format!("{package}_{}_amd64.deb", env!("CARGO_PKG_VERSION"))
}

// ---- what they are ----

#[test]
fn there_is_each_package_of_this_version() {
    let found = fs::read_dir(packages()).unwrap();
    let mut found: Vec<_> = found
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".deb"))
        .collect();
    found.sort();
    let symbols =
        ["librpma0-rs", "librpma-tools", "softverbs"].map(|package| format!("{package}-dbgsym"));
    let mut expected: Vec<_> = PACKAGES.map(file).to_vec();
    expected.extend(symbols.iter().map(|package| file(package)));
    expected.sort();
    assert_eq!(found, expected);
}

/// The files that the examples consist of.
fn examples() -> Vec<String> {
    let files = fs::read_dir(root().join("examples")).unwrap();
    let mut names: Vec<_> = files
        .map(Result::unwrap)
        .filter(|entry| entry.file_type().unwrap().is_file())
        .map(|entry| entry.file_name().into_string().unwrap())
        .filter(|name| !name.starts_with('.'))
        .collect();
    names.sort();
    names
}

/// What a package's list of files has in the directory of the examples.
fn examples_among(files: &str) -> Vec<String> {
    let names = files
        .lines()
        .filter_map(|line| line.split_once("/examples/"));
    let mut names: Vec<_> = names.map(|(_, name)| name.to_owned()).collect();
    names.sort();
    names.retain(|name| !name.is_empty());
    names
}

#[test]
fn the_examples_go_into_it_without_what_was_built_of_them() {
    let package = packages().join(file("librpma-rs-dev"));
    let (files, _) = run(Command::new("dpkg-deb").arg("-c").arg(package));
    assert_eq!(examples_among(&files), examples());
}

#[test]
fn lintian_has_nothing_to_say() {
    let mut lintian = Command::new("lintian");
    lintian
        .args(["--allow-root", "--tag-display-limit=0"])
        .args(["--fail-on=error,warning", "--display-level=>=warning"])
        .args(PACKAGES.map(|package| packages().join(file(package))));
    let (said, _) = run(&mut lintian);
    assert_eq!(said, "");
}

/// A debugger finds the lines of the sources in the package of symbols, and no path of this machine.
#[test]
fn symbols_are_apart_and_complete() {
    let dir = scratch("packages-symbols");
    for package in ["librpma0-rs", "librpma0-rs-dbgsym"] {
        let deb = packages().join(file(package));
        run(Command::new("dpkg-deb").arg("-x").arg(deb).arg(&dir));
    }
    let library = dir.join("usr/lib/x86_64-linux-gnu/librpma.so.0");
    let (sections, _) = run(Command::new("readelf").arg("-SW").arg(&library));
    assert!(!sections.contains(".debug_"), "{sections}");
    let (notes, _) = run(Command::new("readelf").arg("-n").arg(&library));
    let id = notes
        .lines()
        .find_map(|line| line.trim().strip_prefix("Build ID: "))
        .unwrap_or_else(|| panic!("no build id: {notes}"));
    let symbols = dir.join(format!(
        "usr/lib/debug/.build-id/{}/{}.debug",
        &id[..2],
        &id[2..]
    ));
    let (names, _) = run(Command::new("nm").arg("--dynamic").arg(&library));
    let address = names
        .lines()
        .find_map(|line| line.strip_suffix(" T rpma_peer_new@@LIBRPMA_1.0"))
        .unwrap_or_else(|| panic!("no rpma_peer_new: {names}"));
    let (line, _) = run(Command::new("addr2line")
        .arg("-e")
        .arg(symbols)
        .arg(address));
    assert!(line.starts_with("/usr/src/librpma/src/api/"), "{line}");
}

// ---- licences ----

/// debian/copyright, from LICENSE and from what cargo knows of the crates that are linked in.
fn copyright() -> String {
    let licence = fs::read_to_string(root().join("LICENSE")).unwrap();
    let holder = licence
        .lines()
        .find_map(|line| line.strip_prefix("Copyright (c) "));
    let terms = licence.split_once("Redistribution").unwrap().1;
    let mut text = format!(
        "\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: librpma
Comment:
 Of vendor/ are the crates that are linked into the libraries and programs, under
 the names that \"cargo vendor --versioned-dirs\" gives them; the sources do not
 have them, cargo downloads them from crates.io. Where one is offered under
 several licences, Apache-2.0 among them, that one is taken. This file is
 generated: make copyright.

Files: *
Copyright: {}
License: BSD-3-Clause
{}
Files: vendor/std/*
Copyright: The Rust Project Developers
License: Apache-2.0
Comment:
 Rust's standard library, as it comes with the toolchain that builds the
 packages; offered under MIT OR Apache-2.0, as is what it is made of.
",
        holder.unwrap(),
        field(&format!("Redistribution{terms}")),
    );
    for crate_ in linked_crates() {
        text += &crate_.paragraphs();
    }
    text += "
License: Apache-2.0
 On Debian systems the full text of the Apache License, Version 2.0, is in
 /usr/share/common-licenses/Apache-2.0.
";
    text
}

/// A text as the lines that continue a field.
fn field(text: &str) -> String {
    let mut lines = String::new();
    for line in text.trim_end().lines().map(str::trim_end) {
        let line = if line.is_empty() { "." } else { line };
        let _ = writeln!(lines, " {line}");
    }
    lines
}

struct Crate {
    name: String,
    version: String,
    /// As an SPDX expression, where there is one.
    licence: Option<String>,
    authors: Vec<String>,
    /// Its licences, notices and the like.
    texts: Texts,
    /// The same of what it carries in a directory that has its own.
    carried: BTreeMap<String, Texts>,
}

/// Files' names and contents.
type Texts = BTreeMap<String, String>;

impl Crate {
    /// What debian/copyright has to say of it.
    fn paragraphs(&self) -> String {
        let Self { name, version, .. } = self;
        let licence = self.licence.as_deref().unwrap_or("own");
        let mut holders = holders(&self.texts);
        if holders.is_empty() {
            holders.clone_from(&self.authors);
        }
        if holders.is_empty() {
            holders.push(format!("The authors of {name}"));
        }
        let files = format!("vendor/{name}-{version}");
        let mut text = if self.is_apache() {
            let terms = format!("Apache-2.0\nComment: Offered under {licence}.\n");
            paragraph(&files, &holders, &terms)
        } else {
            assert!(!self.texts.is_empty(), "{name} has no text of its licence");
            let terms = format!(
                "{name}-{}\n{}",
                licence.replace([' ', '/'], "-"),
                whole(&self.texts)
            );
            paragraph(&files, &holders, &terms)
        };
        for (dir, texts) in &self.carried {
            let terms = format!("{name}-{}\n{}", dir.replace('/', "-"), whole(texts));
            text += &paragraph(&format!("{files}/{dir}"), &self::holders(texts), &terms);
        }
        text
    }

    /// Whether Apache-2.0, whose text every Debian system has, is one that may be chosen.
    fn is_apache(&self) -> bool {
        let licence = self.licence.as_deref().unwrap_or_default();
        let mut offered = licence.split(" OR ").flat_map(|part| part.split('/'));
        let chosen = !licence.contains(" AND ") && offered.any(|one| one == "Apache-2.0");
        assert!(
            !chosen || !self.texts.keys().any(|name| name.starts_with("NOTICE")),
            "{}: Apache-2.0 wants its NOTICE to be passed on",
            self.name
        );
        chosen
    }
}

fn paragraph(files: &str, holders: &[String], terms: &str) -> String {
    let holders = field(&holders.join("\n"));
    format!("\nFiles: {files}/*\nCopyright:{holders}License: {terms}")
}

fn whole(texts: &Texts) -> String {
    let texts: Vec<_> = texts.values().map(|text| text.trim()).collect();
    field(&texts.join("\n\n"))
}

/// Who says in the texts that it is theirs.
fn holders(texts: &Texts) -> Vec<String> {
    let lines = texts.values().flat_map(|text| text.lines());
    let claims = lines.filter_map(|line| line.trim().strip_prefix("Copyright "));
    let names = |claim: &&str| {
        let rest = claim.trim_start_matches("(c) ");
        rest.starts_with(['1', '2']) && rest.contains(char::is_alphabetic)
    };
    let holders: BTreeSet<_> = claims.filter(names).map(String::from).collect();
    holders.into_iter().collect()
}

/// The crates whose code is in the packages, by name: not those that only build or test.
fn linked_crates() -> Vec<Crate> {
    let cargo = || {
        let mut command = Command::new(env!("CARGO"));
        command.current_dir(root());
        command
    };
    let (metadata, _) = run(cargo().args(["metadata", "--locked", "--format-version", "1"]));
    let metadata: Value = serde_json::from_str(&metadata).unwrap();
    let known = metadata["packages"].as_array().unwrap();

    let (tree, _) = run(cargo()
        .args(["tree", "--locked", "--target", "x86_64-unknown-linux-gnu"])
        .args(["--edges", "normal,no-proc-macro", "--no-dedupe"])
        .args(["--prefix", "none", "--format", "{p}"])
        .args(MEMBERS.iter().flat_map(|member| ["--package", member])));
    let mut linked: Vec<_> = tree
        .lines()
        .filter(|line| !line.is_empty() && !line.contains('/'))
        .collect();
    linked.sort_unstable();
    linked.dedup();
    linked
        .into_iter()
        .map(|line| {
            let (name, version) = line.split_once(" v").unwrap();
            let version = version.split(' ').next().unwrap();
            let package = known
                .iter()
                .find(|package| package["name"] == name && package["version"] == version)
                .unwrap_or_else(|| panic!("cargo metadata does not know {line}"));
            let words = |value: &Value| Some(value.as_str()?.to_owned());
            let dir = Path::new(package["manifest_path"].as_str().unwrap()).parent();
            let (texts, carried) = texts(dir.unwrap());
            Crate {
                name: name.into(),
                version: version.into(),
                licence: words(&package["license"]),
                authors: package["authors"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .filter_map(words)
                    .collect(),
                texts,
                carried,
            }
        })
        .collect()
}

/// The texts of a directory of sources, and those of the directories in it that have any.
fn texts(dir: &Path) -> (Texts, BTreeMap<String, Texts>) {
    let starts = ["LICEN", "COPY", "NOTICE", "UNLICENSE"];
    let (mut texts, mut carried) = (Texts::new(), BTreeMap::new());
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        if entry.path().is_dir() {
            // Code, some of it in files with such names; and what is linked into nothing.
            if name == "tests" || name == "src" {
                continue;
            }
            let (own, further) = self::texts(&entry.path());
            let further = further.into_iter();
            carried.extend(further.map(|(dir, texts)| (format!("{name}/{dir}"), texts)));
            if !own.is_empty() {
                carried.insert(name, own);
            }
        } else if starts
            .iter()
            .any(|start| name.to_uppercase().starts_with(start))
        {
            let text = fs::read_to_string(entry.path()).unwrap();
            texts.insert(name, text);
        }
    }
    (texts, carried)
}

#[test]
fn copyright_is_generated_from_what_is_linked() {
    let file = root().join("debian/copyright");
    let made = copyright();
    if std::env::var_os("RPMA_UPDATE_COPYRIGHT").is_some() {
        fs::write(&file, &made).unwrap();
    }
    let kept = fs::read_to_string(&file).unwrap_or_default();
    assert!(
        kept == made,
        "debian/copyright is stale: run `make copyright`"
    );
}

// ---- what becomes of a system ----

/// A fresh root, in which commands are run one after the other.
struct Clean {
    child: Child,
    /// The end of it ends the shell, and with that the root.
    stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

const DONE: &str = "-- this step is done:";

impl Clean {
    /// A root that sees the packages and the C programs as /mnt.
    fn new(name: &str, packages: &Path) -> Self {
        let shared = scratch(name);
        for entry in fs::read_dir(packages).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_file() {
                fs::copy(entry.path(), shared.join(entry.file_name())).unwrap();
            }
        }
        run(Command::new("cp").arg("-r").args([
            &root().join("c-tests/install"),
            &root().join("examples"),
            &shared,
        ]));
        let mut child = Command::new(root().join("scripts/clean-root"))
            .arg(shared)
            .arg("sh")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let stdin = child.stdin.take();
        Self {
            child,
            stdin,
            lines,
        }
    }

    /// What the shell commands print; they must succeed.
    #[track_caller]
    fn run(&mut self, commands: &str) -> String {
        let step = format!(
            "cat >/tmp/step <<'END OF STEP'\n{commands}\nEND OF STEP\n\
             timeout {LIMIT} sh -eu /tmp/step </dev/null 2>&1; echo \"\n{DONE} $?\"\n"
        );
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(step.as_bytes()).unwrap();
        let mut said = String::new();
        loop {
            let Some(Ok(line)) = self.lines.next() else {
                panic!("the root has ended in the middle of: {commands}\n{said}");
            };
            if let Some(status) = line.strip_prefix(DONE) {
                assert_eq!(
                    status.trim(),
                    "0",
                    "status (124: took longer than {LIMIT} s) of: {commands}\n{said}"
                );
                return said.trim_end().to_owned() + "\n";
            }
            said += &line;
            said.push('\n');
        }
    }

    #[track_caller]
    fn install(&mut self, packages: &[&str]) {
        let files = packages
            .iter()
            .map(|package| match PACKAGES.contains(package) {
                true => format!("/mnt/{}", file(package)),
                false => (*package).to_owned(),
            });
        let files = files.collect::<Vec<_>>().join(" ");
        self.run(&format!(
            "apt-get install -qq -y --no-install-recommends {files}"
        ));
    }

    /// Which package a program's librpma.so.0 is of.
    #[track_caller]
    fn library_of(&mut self, program: &str) -> String {
        let said = self.run(&format!(
            "dpkg -S $(realpath $(ldd {program} | sed -n 's/.*librpma.so.0 => \\([^ ]*\\).*/\\1/p'))"
        ));
        said.split(':').next().unwrap().to_owned()
    }

    /// All that is there, but what apt, dpkg and rpm know, caches that are made anew, and what adding a
    /// group, as libibverbs does, leaves.
    fn files(&mut self) -> Vec<String> {
        let said = self.run(
            "find / -xdev \\( -path /tmp -o -path /mnt -o -path /proc -o -path /dev -o -path /var/cache \
             -o -path /run -o -path /var/lib/apt -o -path /var/lib/dpkg -o -path /var/lib/rpm -o -path /var/log \\) -prune \
             -o \\( ! -type d -o -empty \\) ! -path '/root/*' ! -path '/etc/*-' -printf '%p %y %l\\n' | sort",
        );
        said.lines().map(String::from).collect()
    }

    /// The files are those that there were.
    #[track_caller]
    fn is_as(&mut self, before: &[String]) {
        let after = self.files();
        let left: Vec<_> = after.iter().filter(|file| !before.contains(file)).collect();
        let gone: Vec<_> = before.iter().filter(|file| !after.contains(file)).collect();
        assert!(
            left.is_empty() && gone.is_empty(),
            "left: {left:?}, gone: {gone:?}"
        );
    }

    /// Writes to a file as persistent memory, in two processes over softverbs.
    #[track_caller]
    fn write_and_flush(&mut self, programs: &str) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let said = self.run(&format!(
            "cd /tmp; rm -f pmem said; truncate -s 2M pmem; mkfifo said
             softverbs run -- {programs}_server 127.0.0.1 {port} pmem >said &
             exec 3<said
             while read -r line <&3; do
                 echo \"$line\"
                 case $line in listening*) break ;; esac
             done
             LD_PRELOAD=libsoftverbs.so {programs}_client 127.0.0.1 {port} 'over softverbs'
             cat <&3
             wait $!"
        ));
        for line in ["written, and persistent", "now: \"over softverbs\""] {
            assert!(said.contains(line), "expected '{line}': {said}");
        }
        let text = self.run("head -c 14 /tmp/pmem");
        assert_eq!(text, "over softverbs\n");
    }
}

impl Drop for Clean {
    fn drop(&mut self) {
        self.stdin = None;
        let _ = self.child.wait();
    }
}

/// What c-tests/install/program.c prints.
const PRINTED: &str = "1 Temporary error, try again, success\n";

#[test]
fn they_take_the_place_of_the_original_and_give_it_back() {
    let mut clean = Clean::new("packages-deb", packages());
    clean.run("apt-get update -qq");
    // Debian's libibverbs brings it, and apt leaves it, as part of an ordinary system.
    clean.install(&["adduser"]);
    let before = clean.files();

    // Programs that were built with the original; one is a package that depends on it.
    clean.install(&["librpma0", "librpma-dev", "libibverbs-dev", "librdmacm-dev"]);
    clean.run(
        "mkdir /root/old; cd /root/old
         cc /mnt/install/program.c -o program -lrpma -libverbs
         make -s -C /mnt/examples BUILD=$PWD $PWD/write_flush_pmem_server $PWD/write_flush_pmem_client
         mkdir -p package/DEBIAN package/usr/bin debian
         cp program package/usr/bin/of-a-package
         : >debian/control
         depends=$(dpkg-shlibdeps -O program | sed 's/^shlibs:Depends=/Depends: /')
         printf '%s\\n' 'Package: user' 'Version: 1' 'Architecture: amd64' 'Maintainer: nobody' \
             'Description: uses librpma' \"$depends\" >package/DEBIAN/control
         grep -q 'librpma0 (>= ' package/DEBIAN/control || { cat package/DEBIAN/control; exit 1; }
         dpkg-deb -b package user.deb",
    );
    clean.run("apt-get install -qq -y /root/old/user.deb");
    assert_eq!(clean.library_of("/root/old/program"), "librpma0");
    assert_eq!(clean.run("/root/old/program"), PRINTED);

    // Over the original: they go on, with the new library.
    clean.install(&["librpma0-rs", "librpma-tools", "softverbs"]);
    for program in ["/root/old/program", "/usr/bin/of-a-package"] {
        assert_eq!(clean.library_of(program), "librpma0-rs");
        assert_eq!(clean.run(program), PRINTED);
    }
    let state = "dpkg-query -W -f '${db:Status-Abbrev}' user; apt-get check -qq";
    assert_eq!(clean.run(state), "ii\n");
    clean.write_and_flush("/root/old/write_flush_pmem");

    // And new ones are built, with what the package depends on alone.
    clean.run("apt-get purge -qq -y libibverbs-dev librdmacm-dev");
    clean.install(&["librpma-rs-dev"]);
    clean.run(
        "mkdir -p /root/new/debian; cd /root/new; : >debian/control
         cc /mnt/install/program.c -o shared $(pkg-config --cflags --libs librpma)
         cc /mnt/install/program.c -o archive $(pkg-config --cflags --static --libs librpma | sed s/-lrpma/-l:librpma.a/)
         cmake -S /mnt/install -B cmake && cmake --build cmake
         cp -r /usr/share/doc/librpma-rs-dev/examples . && make -s -C examples
         cmake -S examples -B examples-cmake && cmake --build examples-cmake",
    );
    for program in ["shared", "archive", "cmake/program"] {
        assert_eq!(clean.run(&format!("/root/new/{program}")), PRINTED);
    }
    assert!(!clean.run("ldd /root/new/archive").contains("librpma"));
    clean.write_and_flush("/root/new/examples/build/write_flush_pmem");
    let depends = clean.run("cd /root/new; dpkg-shlibdeps -O shared");
    let either = "librpma0-rs (>= 1.0) | librpma0 (>= 1.0)";
    assert!(depends.contains(either), "expected {either}: {depends}");
    let page = clean.run("man -w rpma_read rpma_send_with_imm librpma softverbs");
    assert_eq!(page.lines().count(), 4, "{page}");
    for program in ["softverbs", "rpma-info", "rpma-perf"] {
        let version = clean.run(&format!("{program} --version"));
        assert_eq!(
            version,
            format!("{program} {}\n", env!("CARGO_PKG_VERSION"))
        );
    }

    // Back to the original, which serves the new programs as well, and forth again.
    clean.install(&["librpma0", "librpma-dev"]);
    for program in ["/root/old/program", "/root/new/shared"] {
        assert_eq!(clean.library_of(program), "librpma0");
        assert_eq!(clean.run(program), PRINTED);
    }
    clean.install(&PACKAGES);
    assert_eq!(clean.library_of("/root/new/shared"), "librpma0-rs");

    // Nothing is left of them and of what came with them.
    clean.run(&format!(
        "apt-get purge -qq -y --autoremove user {}",
        PACKAGES.join(" ")
    ));
    clean.is_as(&before);
}

#[test]
fn rpms_hold_what_programs_need_and_go_without_a_trace() {
    let rpms = build("rpm");
    let devel = format!("librpma-devel-{}-1.x86_64.rpm", env!("CARGO_PKG_VERSION"));
    let (files, _) = run(Command::new("rpm").arg("-qlp").arg(rpms.join(devel)));
    assert_eq!(examples_among(&files), examples());
    let mut clean = Clean::new("packages-rpm", &rpms);
    clean.run("apt-get update -qq");
    clean.install(&["rpm", "libibverbs-dev", "librdmacm-dev"]);
    // Directories that other packages of such a distribution own.
    clean.run("mkdir -p /usr/lib64/cmake /usr/lib64/pkgconfig /usr/share/licenses");
    let before = clean.files();

    let names = clean.run("rpm -qp --qf '%{NAME} %{VERSION}\\n' /mnt/*.rpm");
    let expected = ["librpma", "librpma-devel", "librpma-tools", "softverbs"];
    let expected = expected.map(|name| format!("{name} {}\n", env!("CARGO_PKG_VERSION")));
    assert_eq!(names, expected.concat());
    clean.run("rpm -K /mnt/*.rpm");
    // What the program asks for is what the library's package says it has.
    let provided = clean.run("rpm -qp --provides /mnt/librpma-1*.rpm");
    assert!(
        provided.contains("librpma.so.0(LIBRPMA_1.0)(64bit)"),
        "{provided}"
    );
    let required = clean.run("rpm -qp --requires /mnt/librpma-devel-*.rpm");
    for package in [
        "librpma(x86-64) = ",
        "pkgconfig(libibverbs)",
        "rdma-core-devel(x86-64)",
    ] {
        assert!(required.contains(package), "expected {package}: {required}");
    }

    // dpkg has what they require, which rpm does not know.
    clean.run(
        "rpm -i --nodeps /mnt/*.rpm; rpm -V --nodeps librpma librpma-devel librpma-tools softverbs",
    );
    clean.run(
        "mkdir /root/new; cd /root/new; export PKG_CONFIG_PATH=/usr/lib64/pkgconfig
         cc /mnt/install/program.c -o program $(pkg-config --cflags --libs librpma)
         make -s -C /mnt/examples BUILD=$PWD $PWD/write_flush_pmem_server $PWD/write_flush_pmem_client
         man -w rpma_read rpma_send_with_imm librpma softverbs
         echo /usr/lib64 >/etc/ld.so.conf.d/rpm.conf; ldconfig",
    );
    assert_eq!(clean.run("/root/new/program"), PRINTED);
    clean.write_and_flush("/root/new/write_flush_pmem");
    clean.run("rm /etc/ld.so.conf.d/rpm.conf; ldconfig; rpm -e librpma-devel librpma librpma-tools softverbs");
    clean.is_as(&before);
}
