//! `make install` into a prefix of the test's own, a C program built against it in every way that
//! is offered, and `make uninstall`.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{cc, release, root, run, scratch, softverbs, tools};

const PRINTED: &str = "1 Temporary error, try again, success\n";

fn make(goal: &str, variables: &[(&str, &Path)]) {
    run(&mut make_command(goal, variables));
}

/// make, where it can find neither cargo nor rustc: what is built is installed as it is.
fn make_command(goal: &str, variables: &[(&str, &Path)]) -> Command {
    let target = release().parent().unwrap();
    softverbs();
    tools();
    let assign = |(name, value): (&str, &Path)| format!("{name}={}", value.display());
    let mut command = Command::new("make");
    command
        .arg(goal)
        .arg(assign(("CARGO_TARGET_DIR", target)))
        .args(variables.iter().copied().map(assign))
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .current_dir(root());
    command
}

/// Everything below a directory that is not a directory.
fn files(dir: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => found.append(&mut files(&entry.path())),
            false => _ = found.insert(entry.path()),
        }
    }
    found
}

/// An installation and a place to build programs.
struct Installed {
    prefix: PathBuf,
    scratch: PathBuf,
}

impl Installed {
    fn new(name: &str) -> Self {
        let scratch = scratch(name);
        let prefix = scratch.join("prefix");
        make("install", &[("PREFIX", &prefix)]);
        Self { prefix, scratch }
    }

    fn lib(&self) -> PathBuf {
        self.prefix.join("lib")
    }

    fn pkg_config(&self, arguments: &[&str]) -> Vec<String> {
        let mut command = Command::new("pkg-config");
        command.env("PKG_CONFIG_PATH", self.lib().join("pkgconfig"));
        let (stdout, _) = run(command.args(arguments).arg("librpma"));
        stdout.split_whitespace().map(String::from).collect()
    }

    /// Compiles the program, `flags` last.
    fn compile<S: AsRef<std::ffi::OsStr>>(&self, name: &str, flags: &[S]) -> PathBuf {
        let program = self.scratch.join(name);
        run(cc()
            .arg(root().join("c-tests/install/program.c"))
            .arg("-o")
            .arg(&program)
            .args(flags));
        program
    }

    /// The program runs, and finds or doesn't need the installed shared library.
    #[track_caller]
    fn runs(&self, program: &Path, shared: bool) {
        let lib = self.lib();
        let (stdout, _) = run(Command::new(program).env("LD_LIBRARY_PATH", &lib));
        assert_eq!(stdout, PRINTED);
        self.loads(program, shared);
    }

    /// The program finds or doesn't need the installed shared library.
    #[track_caller]
    fn loads(&self, program: &Path, shared: bool) {
        let lib = self.lib();
        let ldd = Command::new("ldd")
            .arg(program)
            .env("LD_LIBRARY_PATH", &lib)
            .output()
            .unwrap();
        let loaded = String::from_utf8(ldd.stdout).unwrap();
        let line = format!("librpma.so.0 => {}", lib.join("librpma.so.0").display());
        assert_eq!(loaded.contains(&line), shared, "{loaded}");
        assert_eq!(loaded.contains("librpma"), shared, "{loaded}");
    }
}

#[test]
fn pkg_config_links_the_shared_library() {
    let installed = Installed::new("install-shared");
    assert_eq!(installed.pkg_config(&["--modversion"]), ["1.4.0"]);
    let program = installed.compile("program", &installed.pkg_config(&["--cflags", "--libs"]));
    installed.runs(&program, true);
}

#[test]
fn pkg_config_links_the_archive() {
    let installed = Installed::new("install-static");
    let mut flags = installed.pkg_config(&["--static", "--cflags", "--libs"]);
    // All of the program static, and then only this library.
    flags.push("-static".into());
    installed.runs(&installed.compile("all", &flags), false);

    flags.pop();
    for flag in &mut flags {
        *flag = flag.replace("-lrpma", "-l:librpma.a");
    }
    installed.runs(&installed.compile("one", &flags), false);
}

/// A path that another tool would take for something else is refused before anything is done.
#[test]
fn odd_paths_are_refused() {
    let dest = scratch("install-odd");
    for odd in ["relative/path", "/opt/a b", "/opt/a&b", "/opt/it's"] {
        let output = make_command("install", &[("DESTDIR", &dest), ("PREFIX", Path::new(odd))])
            .output()
            .unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{odd} was taken");
        assert!(error.contains("must be an absolute path"), "{odd}: {error}");
        assert_eq!(
            fs::read_dir(&dest).unwrap().count(),
            0,
            "{odd} left something"
        );
    }
}

#[test]
fn cmake_finds_the_package_where_it_was_moved_to() {
    let mut installed = Installed::new("install-cmake");
    let moved = installed.scratch.join("moved");
    fs::rename(&installed.prefix, &moved).unwrap();
    installed.prefix = moved;

    let build = installed.scratch.join("build");
    run(Command::new("cmake")
        .arg("-S")
        .arg(root().join("c-tests/install"))
        .arg("-B")
        .arg(&build)
        .arg(format!(
            "-DCMAKE_PREFIX_PATH={}",
            installed.prefix.display()
        )));
    run(Command::new("cmake").arg("--build").arg(&build));
    installed.runs(&build.join("program"), true);
}

/// A program that nothing here was linked with, over the device that was installed.
#[test]
fn softverbs_runs_a_program() {
    let installed = Installed::new("install-softverbs");
    let softverbs = installed.prefix.join("bin/softverbs");
    let program = installed.compile("program", &installed.pkg_config(&["--cflags", "--libs"]));
    let mut command = Command::new(softverbs);
    command.args(["run", "--"]).arg(program);
    let (stdout, _) = run(command.env("LD_LIBRARY_PATH", installed.lib()));
    assert_eq!(stdout, PRINTED);
}

/// They find the library that was installed, and nothing of the place where they were built.
#[test]
fn the_tools_run() {
    let installed = Installed::new("install-tools");
    for tool in ["rpma-info", "rpma-perf"] {
        let program = installed.prefix.join("bin").join(tool);
        let (stdout, _) = run(Command::new(&program)
            .arg("--version")
            .env("LD_LIBRARY_PATH", installed.lib()));
        assert_eq!(stdout, format!("{tool} {}\n", env!("CARGO_PKG_VERSION")));
        installed.loads(&program, true);
    }
}

#[test]
fn the_manual_is_found() {
    let installed = Installed::new("install-manual");
    let show = |arguments: &[&str]| {
        let mut command = Command::new("man");
        command.arg("-M").arg(installed.prefix.join("share/man"));
        run(command.args(arguments).env("MANPAGER", "cat")).0
    };
    let read = show(&["rpma_read"]);
    assert!(read.contains("rpma_read(struct rpma_conn *conn,"), "{read}");
    // A page of several functions, by another name than its own.
    assert_eq!(show(&["rpma_send_with_imm"]), show(&["rpma_send"]));
    let pages = [
        ("7", "librpma"),
        ("7", "softverbs"),
        ("1", "softverbs"),
        ("1", "rpma-info"),
        ("1", "rpma-perf"),
    ];
    for (section, page) in pages {
        let text = show(&[section, page]);
        assert!(text.contains(page), "man {section} {page}: {text}");
    }
}

#[test]
fn everything_lands_in_destdir_and_is_removed_again() {
    let dest = scratch("install-destdir");
    let lib = Path::new("/opt/rpma/lib64");
    let man = dest.join("opt/rpma/share/man");
    let variables = [
        ("DESTDIR", dest.as_path()),
        ("PREFIX", Path::new("/opt/rpma")),
        ("LIBDIR", lib),
        ("INCLUDEDIR", Path::new("/opt/rpma/inc")),
    ];
    make("install", &variables);
    let pages = |dir: &Path| -> Vec<PathBuf> {
        let page = |file: &PathBuf| file.strip_prefix(dir).unwrap().to_owned();
        files(dir).iter().map(page).collect()
    };
    assert_eq!(pages(&man), pages(&root().join("man")));
    let found: Vec<_> = files(&dest)
        .iter()
        .filter(|file| !file.starts_with(&man))
        .map(|file| file.strip_prefix(&dest).unwrap().display().to_string())
        .collect();
    assert_eq!(
        found,
        [
            "opt/rpma/bin/rpma-info",
            "opt/rpma/bin/rpma-perf",
            "opt/rpma/bin/softverbs",
            "opt/rpma/inc/librpma.h",
            "opt/rpma/lib64/cmake/librpma/librpma-config-version.cmake",
            "opt/rpma/lib64/cmake/librpma/librpma-config.cmake",
            "opt/rpma/lib64/librpma.a",
            "opt/rpma/lib64/librpma.so",
            "opt/rpma/lib64/librpma.so.0",
            "opt/rpma/lib64/libsoftverbs.so",
            "opt/rpma/lib64/pkgconfig/librpma.pc",
            "opt/rpma/share/softverbs/softverbs.supp",
        ]
    );
    let pc = fs::read_to_string(dest.join("opt/rpma/lib64/pkgconfig/librpma.pc")).unwrap();
    assert!(
        pc.contains("libdir=/opt/rpma/lib64\nincludedir=/opt/rpma/inc\n"),
        "{pc}"
    );
    make("uninstall", &variables);
    assert!(files(&dest).is_empty(), "left: {:?}", files(&dest));
}
