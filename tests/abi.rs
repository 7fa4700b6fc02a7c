//! The binary interface of the built `librpma.so`, as the file tells it and as the loader takes it.

mod support;

use object::elf;
use object::read::elf::{ElfFile64, ProgramHeader};
use object::read::{ExportFlags, NameOrOrdinal};
use object::{Endianness, Object};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{cc, original, release, root, run, scratch};

const SONAME: &str = "librpma.so.0";

/// What the tests ask of a shared library.
struct Library {
    /// `NAME@@VERSION` of each function, sorted.
    functions: Vec<String>,
    /// Any other exported name.
    others: Vec<String>,
    needed: BTreeSet<String>,
    soname: Vec<String>,
    /// The tags and values of the dynamic section.
    dynamic: Vec<(elf::DynamicTag, u64)>,
    /// The types and flags of the program headers.
    segments: Vec<(elf::ProgramType, elf::ProgramFlags)>,
}

impl Library {
    fn read(file: &Path) -> Self {
        let data = fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let elf = ElfFile64::<Endianness>::parse(&*data).unwrap();
        let endian = elf.endian();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();

        let (mut functions, mut others) = (vec![], vec![]);
        for export in elf.exports().unwrap() {
            let export = export.unwrap();
            let (
                NameOrOrdinal::Name(name),
                ExportFlags::Elf {
                    st_info,
                    version,
                    version_hidden,
                    ..
                },
            ) = (export.name(), export.flags())
            else {
                unreachable!("not ELF")
            };
            let version = text(version.unwrap_or_default());
            let at = if version_hidden { "@" } else { "@@" };
            let name = format!("{}{at}{version}", text(name));
            if st_info.st_type() == elf::STT_FUNC {
                functions.push(name);
            } else if name != format!("{version}@@{version}") {
                others.push(name);
            }
        }
        functions.sort();

        let table = elf.elf_dynamic_table().unwrap();
        let strings = |tag| {
            let tagged = table.iter().filter(move |entry| entry.tag == tag);
            tagged.map(|entry| text(table.string(entry).unwrap()))
        };
        Self {
            functions,
            others,
            needed: strings(elf::DT_NEEDED).collect(),
            soname: strings(elf::DT_SONAME).collect(),
            dynamic: table.iter().map(|entry| (entry.tag, entry.val)).collect(),
            segments: elf
                .elf_program_headers()
                .iter()
                .map(|header| (header.p_type(endian), header.p_flags(endian)))
                .collect(),
        }
    }

    /// All the values of one tag of the dynamic section, or-ed.
    fn flags(&self, tag: elf::DynamicTag) -> u64 {
        let tagged = self.dynamic.iter().filter(|entry| entry.0 == tag);
        tagged.fold(0, |flags, entry| flags | entry.1)
    }
}

fn ours() -> PathBuf {
    release().join("librpma.so")
}

#[test]
fn exports_the_functions_of_the_original_and_nothing_else() {
    let (ours, original) = (Library::read(&ours()), Library::read(&original()));
    assert_eq!(original.functions.len(), 84);
    assert!(
        original
            .functions
            .iter()
            .all(|name| name.ends_with("@@LIBRPMA_1.0"))
    );
    assert_eq!(ours.functions, original.functions);
    assert_eq!(ours.others, [""; 0], "exported, and not a function");
}

#[test]
fn is_named_and_needs_what_the_original_does() {
    let ours = Library::read(&ours());
    assert_eq!(ours.soname, [SONAME]);
    let original = Library::read(&original());
    let missing: Vec<_> = original.needed.difference(&ours.needed).collect();
    assert!(
        missing.is_empty(),
        "not needed, unlike the original: {missing:?}"
    );
    // Rust's standard library refers to the unwinder, and to the loader for thread-local storage.
    let rust = ["libgcc_s.so.1", "ld-linux-x86-64.so.2"];
    for more in ours.needed.difference(&original.needed) {
        assert!(rust.contains(&more.as_str()), "needs {more}");
    }
}

#[test]
fn tells_its_version_in_a_note() {
    let (stdout, _) = run(Command::new("readelf")
        .arg("--notes")
        .arg(ours())
        .env("LC_ALL", "C"));
    let note = stdout
        .lines()
        .skip_while(|line| !line.ends_with(".note.librpma"));
    let words: Vec<_> = note.take(5).flat_map(str::split_whitespace).collect();
    let text = concat!(env!("CARGO_PKG_VERSION"), "\0");
    let bytes: Vec<_> = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    assert!(
        words
            .windows(2)
            .any(|pair| pair == ["NT_VERSION", "(version)"])
            && words.ends_with(&bytes.iter().map(String::as_str).collect::<Vec<_>>()),
        "expected the version {text:?} in {stdout}"
    );
}

#[test]
fn is_hardened() {
    let ours = Library::read(&ours());
    let segment = |kind| {
        ours.segments
            .iter()
            .find(|segment| segment.0 == kind)
            .map(|segment| segment.1)
    };
    assert!(segment(elf::PT_GNU_RELRO).is_some(), "no RELRO");
    let now = ours.flags(elf::DT_FLAGS) & elf::DF_BIND_NOW.0;
    assert!(now != 0, "RELRO is not full: no BIND_NOW");
    let stack = segment(elf::PT_GNU_STACK).expect("PT_GNU_STACK");
    assert!(!stack.contains(elf::PF_X), "executable stack");
    let textrel = ours.flags(elf::DT_FLAGS) & elf::DF_TEXTREL.0;
    assert!(textrel == 0 && !ours.dynamic.iter().any(|entry| entry.0 == elf::DT_TEXTREL));
}

/// A directory where the loader finds our library under its name.
fn library_path(scratch: &Path) -> PathBuf {
    let dir = scratch.join("lib");
    fs::create_dir(&dir).unwrap();
    symlink(ours(), dir.join(SONAME)).unwrap();
    dir
}

/// Builds c-tests/abi/`name`.c, which may include functions.h, the list of all functions.
fn build(name: &str, scratch: &Path, link: &[&str]) -> PathBuf {
    let mut list = String::from("#define FUNCTIONS(X)");
    for function in Library::read(&original()).functions {
        let (name, _) = function.split_once('@').unwrap();
        write!(list, " \\\n    X({name})").unwrap();
    }
    fs::write(scratch.join("functions.h"), list + "\n").unwrap();
    let program = scratch.join(name);
    run(cc()
        .args(["-g", "-I", "include", "-I"])
        .arg(scratch)
        .arg("-o")
        .arg(&program)
        .arg(format!("c-tests/abi/{name}.c"))
        .args(link)
        .current_dir(root()));
    program
}

/// Runs a program of [`build`] with nothing set but `env`: it names the file that holds all of the
/// functions, and neither it nor the loader has a word of complaint.
#[track_caller]
fn runs_on(library: &Path, program: &Path, env: &[(&str, &Path)]) {
    let (stdout, stderr) = run(Command::new(program).env_clear().envs(env.iter().copied()));
    assert_eq!(stderr, "", "{} with {env:?}", program.display());
    let mut lines = stdout.lines();
    let file = fs::canonicalize(lines.next().unwrap()).unwrap();
    assert_eq!(file, fs::canonicalize(library).unwrap(), "with {env:?}");
    assert_eq!(
        lines.collect::<Vec<_>>(),
        ["84 functions", "timeout 1000", "Out of memory"]
    );
}

#[test]
fn programs_linked_to_the_original_run_on_ours() {
    let scratch = scratch("abi-original");
    let program = build("program", &scratch, &["-lrpma"]);
    let (path, now) = (library_path(&scratch), Path::new("1"));
    runs_on(&original(), &program, &[]);
    runs_on(&ours(), &program, &[("LD_LIBRARY_PATH", &path)]);
    runs_on(
        &ours(),
        &program,
        &[("LD_LIBRARY_PATH", &path), ("LD_BIND_NOW", now)],
    );
    runs_on(&ours(), &program, &[("LD_PRELOAD", &ours())]);
}

#[test]
fn programs_linked_to_ours_run_on_the_original() {
    let scratch = scratch("abi-ours");
    let dir = release().to_str().unwrap();
    let program = build("program", &scratch, &["-L", dir, "-lrpma"]);
    runs_on(&original(), &program, &[]);
    runs_on(&original(), &program, &[("LD_BIND_NOW", Path::new("1"))]);
    runs_on(
        &ours(),
        &program,
        &[("LD_LIBRARY_PATH", &library_path(&scratch))],
    );
}

#[test]
fn loading_and_unloading_leaves_nothing() {
    let program = build("reload", &scratch("abi-reload"), &[]);
    let (stdout, stderr) = run(Command::new(program).arg(ours()).env_clear());
    assert_eq!((stdout.as_str(), stderr.as_str()), ("1000 times\n", ""));
}
