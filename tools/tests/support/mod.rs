//! What the tests of the tools share.
#![allow(dead_code, reason = "no test program uses all of it")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The checkout.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// An empty directory for one test.
pub fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

/// Where library, software device and its launcher lie in their release build, built here so that
/// they are never stale.
pub fn release() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        run(Command::new(env!("CARGO"))
            .args(["build", "--release", "--locked"])
            .args(["--package", "librpma", "--package", "softverbs"])
            .arg("--target-dir")
            .arg(target)
            .current_dir(root()));
        target.join("release")
    })
}

/// A directory where the loader finds this library as `librpma.so.0`.
pub fn ours() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = scratch(&format!("ours-{}", std::process::id()));
        symlink(release().join("librpma.so"), dir.join("librpma.so.0")).unwrap();
        dir
    })
}

/// A directory where it finds the original of that release, fetched if need be.
pub fn original(release: &str) -> PathBuf {
    let (file, _) = run(Command::new(root().join("scripts/original")).arg(release));
    Path::new(file.trim_end()).parent().unwrap().to_owned()
}

/// What a command printed, stdout and stderr; it must succeed.
#[track_caller]
pub fn run(command: &mut Command) -> (String, String) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(
        output.status.success(),
        "{command:?}\nended with {}\n{stdout}{stderr}",
        output.status
    );
    (stdout, stderr)
}
