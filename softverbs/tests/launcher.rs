//! The launcher.

mod library;

use library::{launcher_file, ours_file};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The launcher, in an environment without settings.
fn launcher(arguments: &[&str]) -> Command {
    let mut command = Command::new(launcher_file());
    command.args(arguments).env_remove("LD_PRELOAD");
    for name in [
        "FLUSH",
        "ATOMIC_WRITE",
        "ODP",
        "TRANSPORT",
        "PERSISTENT",
        "WARN",
    ] {
        command.env_remove(format!("SOFTVERBS_{name}"));
    }
    command
}

/// The status, and what was printed.
fn outcome(command: &mut Command) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

#[track_caller]
fn refused(command: &mut Command, status: i32, why: &str) {
    let (code, stdout, stderr) = outcome(command);
    assert_eq!(
        (code, stdout.as_str()),
        (Some(status), ""),
        "{command:?}: {stderr}"
    );
    assert!(
        stderr.starts_with("softverbs: ") && stderr.contains(why),
        "{command:?}: {stderr}"
    );
    assert_eq!(stderr.lines().count(), 1, "{command:?}: {stderr}");
}

#[test]
fn a_program_runs_with_the_library() {
    let shell = r#"echo "$LD_PRELOAD" "$@" "$SOFTVERBS_ODP" "$SOFTVERBS_TRANSPORT"; exit 7"#;
    let arguments = [
        "run", "--no-odp", "--iwarp", "--", "sh", "-c", shell, "sh", "--json", "-h",
    ];
    let (code, stdout, stderr) = outcome(launcher(&arguments).env("LD_PRELOAD", "libc.so.6"));
    let end = "/libsoftverbs.so:libc.so.6 --json -h off iwarp\n";
    assert!(stdout.starts_with('/') && stdout.ends_with(end), "{stdout}");
    assert_eq!((code, stderr.as_str()), (Some(7), ""));
}

/// A program of `tests/launcher`, built.
#[track_caller]
fn built(name: &str) -> PathBuf {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("launcher-{name}"));
    let source = format!("{}/tests/launcher/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let built = outcome(
        Command::new("cc")
            .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o"])
            .args([&program, Path::new(&source)])
            .args(["-lrdmacm", "-libverbs", "-lpthread"]),
    );
    assert_eq!(built, (Some(0), String::new(), String::new()));
    program
}

#[test]
fn threads_that_wait_can_be_cancelled() {
    let program = built("cancel");
    let ended = outcome(&mut launcher(&["run", "--", program.to_str().unwrap()]));
    assert_eq!(ended, (Some(0), String::new(), String::new()));
}

/// As soon as an event can be taken, the id that it is about can be destroyed.
#[test]
fn ids_are_destroyed_while_their_calls_return() {
    let program = built("destroy");
    let mut run = launcher(&["run", "--", program.to_str().unwrap()]);
    let ended = outcome(run.env("MALLOC_PERTURB_", "165"));
    assert_eq!(ended, (Some(0), String::new(), String::new()));
}

#[test]
fn what_can_not_be_run_is_told_apart() {
    refused(
        &mut launcher(&["run", "--", "/no/such/program"]),
        127,
        "/no/such/program: not found",
    );
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("not-a-program");
    fs::write(&file, "no program").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    refused(
        &mut launcher(&["run", file.to_str().unwrap()]),
        126,
        "not-a-program: can't be run",
    );
}

/// An empty directory for what a test runs.
fn directory(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir(&dir).unwrap();
    dir
}

/// Writes a script. By another process, as what is open to be written is not run.
fn script(file: &Path, text: &str) {
    let write = r#"printf '%s' "$1" >"$0" && chmod 755 "$0""#;
    let mut command = Command::new("sh");
    command.args(["-c", write]).arg(file).arg(text);
    assert!(command.status().unwrap().success(), "{file:?}");
}

const NO_LOADER: &str = "it is statically linked";

#[test]
fn a_static_program_is_refused_and_a_script_that_leads_to_one() {
    let dir = directory("launcher-static");
    for (name, options) in [("static", "-static"), ("static-pie", "-static-pie")] {
        let program = dir.join(name);
        let compile =
            format!("echo 'int main(void) {{ return 0; }}' | cc {options} -xc - -o \"$0\"");
        let built = Command::new("sh")
            .args(["-c", &compile])
            .arg(&program)
            .status();
        assert!(built.unwrap().success(), "{name}");
        let program = program.to_str().unwrap();
        let why = format!("{program} can't be run with softverbs: {NO_LOADER}");
        refused(&mut launcher(&["run", "--", program]), 126, &why);
        refused(launcher(&["run", name]).env("PATH", &dir), 126, &why);
        let (first, second) = (dir.join("first"), dir.join("second"));
        script(&first, &format!("#! {program} -x\n"));
        script(&second, &format!("#!{}", first.display()));
        for script in [&first, &second] {
            refused(&mut launcher(&["run", script.to_str().unwrap()]), 126, &why);
        }
    }
}

/// Where the loader does preload, whatever the program is called and leads to.
#[test]
fn a_program_with_a_loader_is_run() {
    let dir = directory("launcher-dynamic");
    let with_shell = dir.join("script");
    script(&with_shell, "#!/bin/sh\ntest -n \"$LD_PRELOAD\"\n");
    let bare = dir.join("bare");
    script(&bare, "test -n \"$LD_PRELOAD\"\n");
    let by_env = dir.join("by-env");
    script(&by_env, "#!/usr/bin/env sh\ntest -n \"$LD_PRELOAD\"\n");
    for file in [&with_shell, &bare, &by_env] {
        let ended = outcome(&mut launcher(&["run", "--", file.to_str().unwrap()]));
        assert_eq!(ended, (Some(0), String::new(), String::new()), "{file:?}");
    }
    // The loader has no loader.
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mut files = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5));
    let loader = files.find(|file| file.contains("/ld-linux"));
    let loader = loader.expect("this program's loader");
    assert!(has_the_library(launcher(&[
        "run",
        loader,
        "/usr/bin/cat",
        MAPS
    ])));
}

const MAPS: &str = "/proc/self/maps";

/// Whether a program that shows its mappings has the library.
fn has_the_library(mut command: Command) -> bool {
    let (code, stdout, stderr) = outcome(&mut command);
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{command:?}");
    stdout.contains("libsoftverbs.so")
}

#[test]
fn a_program_of_another_word_size_or_processor_is_refused() {
    let dir = directory("launcher-machine");
    for (name, at, byte) in [("class", 4, "\\001"), ("machine", 18, "\\377")] {
        let copy = dir.join(name);
        let change = format!(
            "cp /usr/bin/cat \"$0\" && printf '{byte}' |
             dd of=\"$0\" bs=1 seek={at} conv=notrunc status=none"
        );
        let changed = Command::new("sh").args(["-c", &change]).arg(&copy).status();
        assert!(changed.unwrap().success(), "{name}");
        let why = format!("it is not a program for {}", std::env::consts::ARCH);
        refused(&mut launcher(&["run", copy.to_str().unwrap()]), 126, &why);
    }
}

/// The launcher says of a program what the loader does with it: preload, or not.
#[test]
fn a_program_that_gains_rights_is_refused() {
    const BITS: &str = "-ID bit: run a copy without";
    // SAFETY: it only asks.
    if unsafe { libc::getuid() } != 0 {
        // Who is not root can't make any, and there is one on each system.
        return refused(&mut launcher(&["run", "--", "passwd", "--help"]), 126, BITS);
    }
    let dir = directory("launcher-rights");
    for (mode, owner, gains) in [
        ("4755", "65534:0", true),
        ("4755", "0:0", false),
        ("2755", "0:65534", true),
        ("2745", "0:65534", false),
        ("2755", "0:0", false),
        ("755", "65534:65534", false),
    ] {
        let copy = dir.join(format!("cat-{mode}-{gains}"));
        let make = r#"cp /usr/bin/cat "$0" && chown "$1" "$0" && chmod "$2" "$0""#;
        let mut command = Command::new("sh");
        command.args(["-c", make]).arg(&copy).args([owner, mode]);
        assert!(command.status().unwrap().success(), "{command:?}");
        let copy = copy.to_str().unwrap();
        let mut preloaded = Command::new(copy);
        preloaded.arg(MAPS).env("LD_PRELOAD", ours_file());
        assert_eq!(has_the_library(preloaded), !gains, "{mode} of {owner}");
        let mut run = launcher(&["run", "--", copy, MAPS]);
        if gains {
            refused(&mut run, 126, BITS);
        } else {
            assert!(has_the_library(run), "{mode} of {owner}");
        }
    }
}

#[test]
fn bad_arguments_are_refused_in_one_line() {
    refused(&mut launcher(&[]), 2, "'run' or 'info'");
    refused(&mut launcher(&["run"]), 2, "<PROGRAM>");
    refused(
        &mut launcher(&["run", "--no-fush", "true"]),
        2,
        "'--no-fush'",
    );
    refused(&mut launcher(&["walk"]), 2, "'walk'");
    refused(&mut launcher(&["info", "more"]), 2, "'more'");
    for action in [["info", "--json"], ["run", "true"]] {
        refused(
            launcher(&action).env("SOFTVERBS_FLUSH", "maybe"),
            2,
            "SOFTVERBS_FLUSH",
        );
    }
}

#[test]
fn the_library_goes_on_without_what_it_does_not_understand() {
    // Any program that opens the device.
    let (code, stdout, stderr) = outcome(
        Command::new("ibv_devices")
            .env("LD_PRELOAD", ours_file())
            .env("SOFTVERBS_FLUSH", "maybe"),
    );
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("softverbs0"), "{stdout}");
}

#[test]
fn the_path_of_the_library_has_to_be_one_word() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("two words");
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir(&dir).unwrap();
    let copy = dir.join("softverbs");
    // Copied by another process: a child of another test could keep a file open that this one writes,
    // and what is open to be written is not run.
    let copied = Command::new("cp").arg(launcher_file()).arg(&copy).status();
    assert!(copied.unwrap().success(), "cp");
    refused(
        Command::new(&copy).args(["run", "true"]),
        126,
        "is in none of",
    );
    symlink(ours_file(), dir.join("libsoftverbs.so")).unwrap();
    refused(Command::new(&copy).args(["run", "true"]), 126, "space");
}

#[test]
fn info_tells_settings_and_where_they_come_from() {
    let mut command = launcher(&["info", "--json"]);
    command
        .env("SOFTVERBS_TRANSPORT", "iwarp")
        .env("SOFTVERBS_ODP", "1");
    let (code, stdout, stderr) = outcome(&mut command);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    let info: Value = serde_json::from_str(&stdout).unwrap();
    for (name, value, from) in [
        ("SOFTVERBS_TRANSPORT", "iwarp", "environment"),
        ("SOFTVERBS_ODP", "on", "environment"),
        ("SOFTVERBS_FLUSH", "off", "transport"),
        ("SOFTVERBS_PERSISTENT", "file", "default"),
    ] {
        let setting = &info["settings"][name];
        assert_eq!(
            (&setting["value"], &setting["from"]),
            (&value.into(), &from.into()),
            "{name}"
        );
    }
    assert_eq!(info["device"]["name"], "softverbs0");
    assert_eq!(info["device"]["flush"], false);
    let addresses = info["addresses"].as_array().unwrap();
    assert!(addresses.contains(&"127.0.0.1".into()), "{addresses:?}");

    let (code, stdout, _) = outcome(&mut launcher(&["info"]));
    assert_eq!(code, Some(0));
    let line = "  SOFTVERBS_ODP           on       on-demand paging (from default)";
    assert!(stdout.lines().any(|one| one == line), "{stdout}");
}
