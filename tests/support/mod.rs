//! What several of the test programs use.
#![allow(dead_code, reason = "no test program uses all of it")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::{iter, mem};

/// The checkout.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// An empty directory for one test: another one than that of whoever runs the same test now.
pub fn scratch(name: &str) -> PathBuf {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let names = iter::once(name.to_string()).chain((2..).map(|n| format!("{name}.{n}")));
    for name in names {
        let lock = File::create(place.join(format!("{name}.lock"))).unwrap();
        if lock.try_lock().is_ok() {
            // Held as long as this program runs, and not by those that it starts.
            mem::forget(lock);
            let dir = place.join(name);
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir_all(&dir).unwrap();
            return dir;
        }
    }
    unreachable!("there is always another name");
}

/// Where the library in its release build lies, built here so that it is never a stale one.
pub fn release() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| build("librpma"))
}

/// The software device for programs to preload, built here as well.
pub fn softverbs() -> PathBuf {
    build("softverbs").join("libsoftverbs.so")
}

/// Where the tools are, built here as well. They run on any librpma.
pub fn tools() -> PathBuf {
    build("librpma-tools")
}

/// Builds a package of the workspace for release, and gives where it lies then.
fn build(package: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    run(Command::new(env!("CARGO"))
        .args(["build", "--release", "--locked", "--package", package])
        .arg("--target-dir")
        .arg(target)
        .current_dir(root()));
    target.join("release")
}

/// A command that runs a script in the virtual machine, beside what is in the directory.
pub fn vm(dir: &Path, options: &[&str], script: &str) -> Command {
    fs::write(dir.join("run.sh"), script).unwrap();
    let mut command = Command::new(root().join("scripts/vm"));
    command.arg("run").args(options).arg(dir);
    command.stdin(Stdio::null());
    command
}

/// Where the original library of that release is, fetched if need be.
pub fn original_of(release: &str) -> PathBuf {
    let (file, _) = run(Command::new(root().join("scripts/original")).arg(release));
    file.trim_end().into()
}

/// What a command printed, stdout and stderr; it must succeed.
#[track_caller]
pub fn run(command: &mut Command) -> (String, String) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success(),
        "{command:?}\nended with {}\n{stdout}{stderr}",
        output.status
    );
    (stdout, stderr)
}

/// The C compiler, with the warnings that every C program of the project is free of.
pub fn cc() -> Command {
    let mut command = Command::new("cc");
    command.args(["-std=c11", "-Wall", "-Wextra", "-Werror"]);
    command
}

/// The original library, where Debian's package puts it.
pub fn original() -> PathBuf {
    let libraries = Path::new("/usr/lib").join(format!("{}-linux-gnu", std::env::consts::ARCH));
    let file = libraries.join("librpma.so.0");
    assert!(
        file.exists(),
        "{} is missing: scripts/install-deps installs it",
        file.display()
    );
    file
}
