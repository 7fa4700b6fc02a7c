//! rpma-info, against what other programs say of the same device, host and process: over softverbs, on
//! what this machine has, on the original library, and in the virtual machine on the kernel's device.

#[path = "../src/info/host.rs"]
#[expect(dead_code, reason = "only a part of it is tried by itself")]
mod host;
mod support;

use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::net::Ipv6Addr;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use support::{original, ours, release, root, run, scratch};

const INFO: &str = env!("CARGO_BIN_EXE_rpma-info");
/// How long it may take, in seconds: a name is given up after 10, an address after 1.
const PATIENCE: &str = "600";

/// Runs it on this library, and on what there is of devices.
fn plain(arguments: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args([PATIENCE, INFO]).args(arguments);
    clean(&mut command);
    command
}

/// Runs it over softverbs, with options of the launcher.
fn over_softverbs(options: &[&str], arguments: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command
        .arg(PATIENCE)
        .arg(release().join("softverbs"))
        .arg("run")
        .args(options)
        .args(["--", INFO])
        .args(arguments);
    clean(&mut command);
    command
}

fn clean(command: &mut Command) {
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("LD_LIBRARY_PATH", ours());
}

/// Status, stdout and stderr, of one that ends in time.
#[track_caller]
fn outcome(command: &mut Command) -> (i32, String, String) {
    const LATE: i32 = 124;
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    let code = output.status.code();
    let code = code.unwrap_or_else(|| panic!("{command:?} ended with {}", output.status));
    assert_ne!(code, LATE, "{command:?} has not ended after {PATIENCE} s");
    (code, stdout, stderr)
}

/// The report, and the status that belongs to it.
#[track_caller]
fn report(command: &mut Command) -> Value {
    let (status, stdout, stderr) = outcome(command.arg("--json"));
    let report = serde_json::from_str(&stdout)
        .unwrap_or_else(|error| panic!("{command:?}: {error} in\n{stdout}{stderr}"));
    consistent(&report, status);
    report
}

/// What holds for every report.
#[track_caller]
fn consistent(report: &Value, status: i32) {
    let error = levels(report).contains(&"error");
    assert_eq!(report["usable"], !error, "{report:#}");
    assert_eq!(status, i32::from(error), "{report:#}");
    documented(report, "");
}

fn levels(report: &Value) -> Vec<&str> {
    let findings = report["findings"].as_array().unwrap().iter();
    findings.map(|f| f["level"].as_str().unwrap()).collect()
}

/// `LEVEL CODE SUBJECT` of each finding.
fn findings(report: &Value) -> Vec<String> {
    let findings = report["findings"].as_array().unwrap().iter();
    findings
        .map(|finding| {
            let word = |member: &str| finding[member].as_str().unwrap_or("-");
            format!("{} {} {}", word("level"), word("code"), word("subject"))
        })
        .collect()
}

/// A finding by its code.
#[track_caller]
fn finding<'a>(report: &'a Value, code: &str) -> &'a Value {
    let mut all = report["findings"].as_array().unwrap().iter();
    all.find(|finding| finding["code"] == code)
        .unwrap_or_else(|| panic!("no {code} in {:#}", report["findings"]))
}

/// That docs/rpma-info.md has a member of JSON, and a finding's code.
#[track_caller]
fn documented(value: &Value, path: &str) {
    let docs = fs::read_to_string(root().join("docs/rpma-info.md")).unwrap();
    let has = |word: &str| {
        assert!(
            docs.contains(&format!("`{word}`")),
            "docs/rpma-info.md has nothing of {word}"
        );
    };
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                let path = match path {
                    "" => name.clone(),
                    _ => format!("{path}.{name}"),
                };
                match member {
                    Value::Object(_) => {}
                    Value::Array(values) if values.iter().all(Value::is_object) => {}
                    _ => has(&path),
                }
                documented(member, &path);
            }
        }
        Value::Array(values) => {
            for value in values {
                documented(value, path);
            }
        }
        Value::String(code) if path == "findings.code" => has(code),
        _ => {}
    }
}

/// Compares a device with what `ibv_devinfo -v` says of it.
#[track_caller]
fn as_devinfo_has_it(device: &Value, devinfo: &str) {
    let name = device["name"].as_str().unwrap();
    let all: Vec<_> = devinfo.split("hca_id:").collect();
    let mut about = all
        .iter()
        .filter(|text| text.trim_start().starts_with(name));
    let text = about
        .next()
        .unwrap_or_else(|| panic!("no {name} in\n{devinfo}"));
    let after = |key: &str| {
        let mut lines = text.lines().map(str::trim_start);
        let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        value.map_or("", str::trim)
    };
    let number = |key: &str| {
        let value = after(key).split(' ').next().unwrap();
        let number = match value.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => value.parse(),
        };
        number.unwrap_or_else(|error| panic!("{key} is {value:?}: {error} in\n{text}"))
    };
    let transport = after("transport").split(' ').next().unwrap();
    assert_eq!(device["transport"], transport, "{text}");
    assert_eq!(device["firmware"], after("fw_ver"), "{text}");
    for (member, value) in device["limits"].as_object().unwrap() {
        let key = member.trim_end_matches("_bytes");
        assert_eq!(value.as_u64(), Some(number(key)), "{member}: {text}");
    }
    // rdma/ib_user_verbs.h: FLUSH_GLOBAL, FLUSH_PERSISTENT, ATOMIC_WRITE.
    let flags = number("device_cap_flags_ex");
    assert_eq!(device["flush"]["device"], flags >> 38 & 3 == 3, "{text}");
    assert_eq!(
        device["atomic_write"]["device"],
        flags >> 40 & 1 == 1,
        "{text}"
    );
    let part = |from: &str, to: &str| {
        let (_, part) = text.split_once(from).unwrap();
        part.split_once(to).unwrap().0
    };
    let general = part("general_odp_caps:", "rc_odp_caps:");
    assert_eq!(
        device["odp"]["device"],
        general.split_whitespace().any(|word| word == "ODP_SUPPORT"),
        "{text}"
    );
    let rc = part("rc_odp_caps:", "uc_odp_caps:");
    let operations = rc
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("SUPPORT_"));
    let operations: BTreeSet<_> = operations
        .map(|name| match name {
            "SRQ" => "srq_recv".into(),
            name => name.to_lowercase(),
        })
        .collect();
    let ours = device["odp"]["operations"].as_array().unwrap().iter();
    let ours: BTreeSet<String> = ours.map(|name| name.as_str().unwrap().into()).collect();
    assert_eq!(ours, operations, "{text}");

    let port = &device["ports"][0];
    let state = after("state");
    let active = state.starts_with("PORT_ACTIVE");
    assert_eq!(port["state"] == "active", active, "{state}: {port:#}");
    assert_eq!(port["mtu_bytes"].as_u64(), Some(number("active_mtu")));
    assert_eq!(
        port["max_message_bytes"].as_u64(),
        Some(number("max_msg_sz"))
    );
    assert_eq!(port["link_layer"], after("link_layer"));
    // "4X" times "10.0 Gbps".
    let lanes: f64 = after("active_width")
        .split('X')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    let each: f64 = after("active_speed")
        .split(' ')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!(port["speed_gbit_per_s"].as_f64(), Some(lanes * each));
    let gids = text.lines().filter_map(|line| {
        let (_, gid) = line.trim_start().strip_prefix("GID[")?.split_once("]:")?;
        let (gid, kind) = gid.trim().split_once(", ").unwrap_or((gid.trim(), "IB"));
        let gid: Ipv6Addr = gid.parse().unwrap();
        // It knows two types only: what is no RoCE v2 it takes for v1.
        Some((gid.to_string(), kind == "RoCE v2"))
    });
    let ours = port["gids"].as_array().unwrap().iter();
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    let ours: Vec<_> = ours
        .map(|gid| (word(&gid["gid"]), gid["type"] == "RoCE v2"))
        .collect();
    assert_eq!(ours, gids.collect::<Vec<_>>(), "{text}");
}

#[test]
fn softverbs_is_as_ibv_devinfo_has_it() {
    for options in [
        &[][..],
        &["--no-flush"],
        &["--no-atomic-write"],
        &["--no-odp"],
        &["--iwarp", "--no-odp"],
    ] {
        let report = report(&mut over_softverbs(options, &[]));
        let mut devinfo = Command::new(release().join("softverbs"));
        devinfo
            .arg("run")
            .args(options)
            .args(["--", "ibv_devinfo", "-v"]);
        clean(&mut devinfo);
        let (text, _) = run(&mut devinfo);
        let devices = report["devices"].as_array().unwrap();
        assert_eq!(devices.len(), 1, "{report:#}");
        as_devinfo_has_it(&devices[0], &text);
        assert_eq!(devices[0]["usable"], true, "{report:#}");
    }
}

#[test]
fn says_what_librpma_makes_of_the_device() {
    const ALWAYS: &str = "note softverbs softverbs";
    // flush, atomic write, ODP, as librpma is to use them.
    for (options, used, notes) in [
        (&[][..], [true, true, true], &[][..]),
        (
            &["--no-flush"],
            [false, true, true],
            &["note no_native_flush softverbs0"],
        ),
        (
            &["--no-atomic-write"],
            [true, false, true],
            &["note no_native_atomic_write softverbs0"],
        ),
        (
            &["--no-odp"],
            [true, true, false],
            &["note no_odp softverbs0"],
        ),
        (
            &["--iwarp"],
            [false, false, true],
            &["note iwarp softverbs0"],
        ),
    ] {
        let report = report(&mut over_softverbs(options, &[]));
        let device = &report["devices"][0];
        let uses = ["flush", "atomic_write", "odp"].map(|what| &device[what]["librpma"]);
        assert_eq!(uses, used.map(Value::from).each_ref(), "{options:?}");
        let expected: Vec<_> = notes.iter().copied().chain([ALWAYS]).collect();
        assert_eq!(findings(&report), expected, "{options:?}");
    }
    // Nothing that helps a processor's caches helps here.
    for (option, code) in [("--no-flush", "no_native_flush"), ("--iwarp", "iwarp")] {
        let report = report(&mut over_softverbs(&[option], &[]));
        let remedies = &finding(&report, code)["remedies"];
        assert_eq!(remedies.as_array().unwrap().len(), 1, "{remedies:#}");
        let how = "Over softverbs, only the native FLUSH makes anything persistent:";
        assert_eq!(remedies[0]["how"], how);
        let command = remedies[0]["commands"][0].as_str().unwrap();
        let without = format!("softverbs run -- PROGRAM   # without {option} ");
        assert!(command.starts_with(&without), "{command}");
    }
}

#[test]
fn lists_the_devices_of_this_machine() {
    let report = report(&mut plain(&[]));
    let names = report["devices"].as_array().unwrap().iter();
    let names: BTreeSet<_> = names
        .map(|device| device["name"].as_str().unwrap())
        .collect();
    let mut command = Command::new("ibv_devices");
    clean(&mut command);
    // It fails where the kernel knows nothing of RDMA.
    let listed = String::from_utf8(command.output().unwrap().stdout).unwrap();
    // A heading, a line below it, then a name and a number each.
    let lines = listed.lines().skip(2);
    let listed: BTreeSet<_> = lines
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(names, listed);
    let codes = report["findings"].as_array().unwrap().iter();
    let none = codes
        .clone()
        .any(|finding| finding["code"] == "no_device" || finding["code"] == "device_node_missing");
    assert_eq!(none, listed.is_empty(), "{report:#}");
    if none {
        let suggested = codes
            .clone()
            .any(|finding| finding.to_string().contains("softverbs run"));
        assert!(suggested, "{report:#}");
    }
}

#[test]
fn knows_the_addresses_of_this_host() {
    let report = report(&mut over_softverbs(&[], &[]));
    let (listed, _) = run(Command::new("ip").args(["-o", "addr"]));
    let listed: BTreeSet<_> = listed
        .lines()
        .map(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            let [_, interface, "inet" | "inet6", address, ..] = words[..] else {
                panic!("{line}")
            };
            let interface = interface.split('@').next().unwrap();
            let (address, _) = address.split_once('/').unwrap_or((address, ""));
            (interface.to_owned(), address.to_owned())
        })
        .collect();
    let addresses = report["addresses"].as_array().unwrap();
    let word = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let known: BTreeSet<_> = addresses
        .iter()
        .map(|address| (word(&address["interface"]), word(&address["ip"])))
        .collect();
    assert_eq!(known, listed);
}

#[test]
fn addresses_that_are_asked_for() {
    // Over softverbs, which serves whatever is this host's.
    for (address, whose, finding) in [
        ("127.0.0.1", "loopback", None),
        ("127.9.8.7", "loopback", None),
        ("::1", "loopback", None),
        ("::ffff:127.0.0.1", "loopback", None),
        ("localhost", "loopback", None),
        ("0.0.0.0", "wildcard", Some("wildcard_address")),
        ("::", "wildcard", Some("wildcard_address")),
        ("224.0.0.1", "remote", Some("multicast_address")),
        ("ff02::1%lo", "remote", Some("multicast_address")),
        ("fe80::1%nosuchif", "null", Some("address_not_found")),
        ("fe80::1", "remote", Some("address_without_interface")),
        ("127.0.0.1:7204", "null", Some("address_not_found")),
        ("[::1]:7204", "null", Some("address_not_found")),
        ("no such name", "null", Some("address_not_found")),
        ("1.2.3.4.5", "null", Some("address_not_found")),
        ("host.invalid", "null", Some("address_not_found")),
        ("\u{1b}[31mred", "null", Some("address_not_found")),
    ] {
        let report = report(&mut over_softverbs(&[], &[address]));
        let addresses = report["addresses"].as_array().unwrap();
        let [found] = &addresses[..] else {
            panic!("{address}: {addresses:#?}")
        };
        assert_eq!(found["address"], address);
        assert_eq!(found["asked"], true);
        assert_eq!(
            found["whose"].as_str().unwrap_or("null"),
            whose,
            "{report:#}"
        );
        let errors = report["findings"].as_array().unwrap().iter();
        let errors: Vec<_> = errors
            .filter(|finding| finding["level"] == "error")
            .map(|finding| finding["code"].as_str().unwrap())
            .collect();
        assert_eq!(errors, Vec::from_iter(finding), "{address}: {report:#}");
        if finding.is_none() {
            assert_eq!(found["device"], "softverbs0", "{report:#}");
        }
    }
    for (address, host) in [("127.0.0.1:7204", "127.0.0.1"), ("[::1]:7204", "::1")] {
        let report = report(&mut over_softverbs(&[], &[address]));
        let remedy = &finding(&report, "address_not_found")["remedies"][0]["how"];
        assert_eq!(*remedy, format!("Leave the port out: use {host}."));
    }
    // What is wrong with an address is told even where there is no device.
    for (address, code) in [
        ("0.0.0.0", "wildcard_address"),
        ("::", "wildcard_address"),
        ("fe80::1", "address_without_interface"),
        ("224.0.0.1", "multicast_address"),
        ("127.0.0.1:7204", "address_not_found"),
    ] {
        assert_eq!(
            finding(&report(&mut plain(&[address])), code)["subject"],
            address
        );
    }
    let (_, text, _) = outcome(&mut over_softverbs(&[], &["\u{1b}[31mred"]));
    assert!(!text.contains('\u{1b}'), "{text:?}");
    // Each of several is looked at, and one that will not do is enough to fail.
    let report = report(&mut over_softverbs(&[], &["127.0.0.1", "0.0.0.0", "::1"]));
    assert_eq!(
        findings(&report),
        ["error wildcard_address 0.0.0.0", "note softverbs softverbs"]
    );
}

/// Has a program run with limits on locked memory, and without the capability to do without.
fn limited(command: &mut Command, soft: u64, hard: u64) -> &mut Command {
    const CAP_IPC_LOCK: libc::c_ulong = 14;
    // SAFETY: both calls may be made between fork and exec.
    unsafe {
        command.pre_exec(move || {
            let limit = libc::rlimit {
                rlim_cur: soft,
                rlim_max: hard,
            };
            if libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            // Who may not drop it has not got it.
            libc::prctl(libc::PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0);
            Ok(())
        })
    }
}

#[test]
fn tells_of_a_low_limit_on_locked_memory() {
    let seen = report(limited(&mut plain(&[]), 65536, 131_072));
    let memlock = &seen["host"]["memlock"];
    assert_eq!(memlock["soft_bytes"], 65536, "{seen:#}");
    assert_eq!(memlock["hard_bytes"], 131_072, "{seen:#}");
    assert_eq!(memlock["enforced"], true, "{seen:#}");
    let found = finding(&seen, "memlock_low");
    assert_eq!(found["level"], "warning");
    let text = found.to_string();
    for part in [
        "64 KiB",
        "128 KiB",
        "\"ulimit -l 128\"",
        "limits.d",
        "LimitMEMLOCK=infinity",
        "--ulimit memlock=-1",
    ] {
        assert!(text.contains(part), "no {part} in {text}");
    }
    // In the shell nothing can be done beyond the hard limit.
    let seen = report(limited(&mut plain(&[]), 65536, 65536));
    let text = finding(&seen, "memlock_low").to_string();
    assert!(!text.contains("ulimit -l"), "{text}");
    // Less than a page is nothing at all.
    let seen = report(limited(&mut plain(&[]), 1024, 65536));
    assert_eq!(finding(&seen, "memlock_low")["level"], "error");
    // Softverbs pins nothing.
    let seen = report(limited(&mut over_softverbs(&[], &[]), 1024, 1024));
    assert_eq!(findings(&seen), ["note softverbs softverbs"]);
}

#[test]
fn tells_of_too_few_descriptors() {
    let shell = |limit: u32| {
        let mut command = Command::new("bash");
        let script = format!("ulimit -S -n {limit}; exec \"$@\"");
        command.args(["-c", &script, "bash"]);
        command.arg(release().join("softverbs"));
        command.args(["run", "--", INFO]);
        clean(&mut command);
        command
    };
    let seen = report(&mut shell(100));
    let found = finding(&seen, "nofile_low");
    assert_eq!(found["level"], "warning");
    assert!(found.to_string().contains("open 100 files"), "{found:#}");
    assert_eq!(seen["usable"], true, "{seen:#}");
    // Where it is not even enough to look at the device, or at the address, it says that alone.
    for (limit, addresses) in [(6, &[][..]), (6, &["127.0.0.1"]), (8, &["127.0.0.1"])] {
        let seen = report(shell(limit).args(addresses));
        assert_eq!(seen["usable"], false, "{seen:#}");
        let expected = ["error nofile_low -", "note softverbs softverbs"];
        assert_eq!(findings(&seen), expected, "{limit} files: {seen:#}");
        let text = finding(&seen, "nofile_low").to_string();
        assert!(text.contains("Too many open files"), "{text}");
    }
}

#[test]
fn knows_the_limits_of_the_process() {
    let report = report(&mut plain(&[]));
    let limit = |option: &str| {
        let (text, _) = run(Command::new("bash").args(["-c", &format!("ulimit {option}")]));
        text.trim().parse::<u64>().ok()
    };
    let host = &report["host"];
    let kib = |option| limit(option).map(|kib| kib * 1024);
    assert_eq!(host["memlock"]["soft_bytes"].as_u64(), kib("-S -l"));
    assert_eq!(host["memlock"]["hard_bytes"].as_u64(), kib("-H -l"));
    assert_eq!(host["nofile"]["soft"].as_u64(), limit("-S -n"));
    assert_eq!(host["nofile"]["hard"].as_u64(), limit("-H -n"));
    let (kernel, _) = run(Command::new("uname").arg("-r"));
    assert_eq!(host["kernel"], kernel.trim());
    let (uid, _) = run(Command::new("id").arg("-u"));
    assert_eq!(host["uid"].to_string(), uid.trim());
}

/// No machine of the tests has one mounted.
#[test]
fn finds_dax_filesystems_among_the_mounts() {
    let mounts = "\
        25 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,errors=remount-ro\n\
        90 25 259:0 / /mnt/one rw,relatime shared:54 - ext4 /dev/pmem0 rw,dax=always\n\
        91 25 259:1 / /mnt/two\\040words rw,relatime - xfs /dev/pmem1 rw,attr2,dax,noquota\n\
        92 25 259:3 / /mnt/no rw,relatime - xfs /dev/pmem2 rw,dax=never\n\
        93 25 0:50 / /mnt/dax rw,relatime - tmpfs dax rw\n\
        torn line";
    let found = host::dax_filesystems(mounts);
    let found: Vec<_> = found
        .iter()
        .map(|mount| (mount.path.to_str().unwrap(), &*mount.kind, &*mount.source))
        .collect();
    let expected = [
        ("/mnt/one", "ext4", "/dev/pmem0"),
        ("/mnt/two words", "xfs", "/dev/pmem1"),
    ];
    assert_eq!(found, expected);
}

#[test]
fn tells_which_libraries_are_loaded() {
    let real = |path: &Path| fs::canonicalize(path).unwrap();
    let file = |library: &Value| library["file"].as_str().unwrap().to_owned();
    let seen = report(&mut over_softverbs(&[], &[]));
    let libraries = &seen["libraries"];
    let librpma = real(&release().join("librpma.so"));
    let device = real(&release().join("libsoftverbs.so"));
    assert_eq!(OsStr::new(&file(&libraries["librpma"])), librpma);
    assert_eq!(libraries["librpma"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(OsStr::new(&file(&libraries["libibverbs"])), device);
    assert_eq!(OsStr::new(&file(&libraries["librdmacm"])), device);
    assert_eq!(libraries["softverbs"], true);

    let seen = report(plain(&[]).env("LD_PRELOAD", "/nowhere/libsoftverbs.so"));
    let libraries = &seen["libraries"];
    assert_eq!(libraries["softverbs"], false);
    assert_eq!(finding(&seen, "softverbs_not_loaded")["level"], "warning");
    let (version, _) = run(Command::new("pkg-config").args(["--modversion", "libibverbs"]));
    // 1.14.44.0 is that of rdma-core 44.
    let release = version.trim().split('.').nth(2).unwrap();
    let expected = format!("rdma-core {release}");
    assert_eq!(libraries["libibverbs"]["version"], expected, "{version}");
    let name = format!("libibverbs.so.{}", version.trim());
    assert!(
        file(&libraries["libibverbs"]).ends_with(&name),
        "{libraries:#}"
    );
}

#[test]
fn runs_on_the_original() {
    // 1.2.0 knows no native operations; 1.3.0 as Debian built it does.
    for (version, native) in [("1.2.0", false), ("1.3.0", true)] {
        let dir = original(version);
        let on_it = |mut command: Command| {
            command.env("LD_LIBRARY_PATH", &dir);
            command
        };
        let seen = report(&mut on_it(over_softverbs(&[], &[])));
        let file = fs::canonicalize(dir.join("librpma.so.0")).unwrap();
        let library = &seen["libraries"]["librpma"];
        assert_eq!(library["file"].as_str().unwrap(), file.to_str().unwrap());
        let owner = Command::new("dpkg-query").arg("-S").arg(&file).output();
        if owner.unwrap().status.success() {
            let show = ["-W", "-f", "${Version}", "librpma0"];
            let (package, _) = run(Command::new("dpkg-query").args(show));
            assert_eq!(library["version"], package);
        } else {
            assert_eq!(library["version"], Value::Null);
        }
        let device = &seen["devices"][0];
        assert_eq!(device["flush"]["device"], true, "{seen:#}");
        assert_eq!(device["flush"]["librpma"], native, "{seen:#}");
        assert_eq!(device["atomic_write"]["librpma"], native, "{seen:#}");
        let warned = levels(&seen).contains(&"warning");
        assert_eq!(warned, !native, "{seen:#}");
        // Where no device is, it says so as on ours.
        let seen = report(&mut on_it(plain(&["127.0.0.1"])));
        assert_eq!(seen["addresses"][0]["device"], Value::Null, "{seen:#}");
        assert_eq!(seen["usable"], false, "{seen:#}");
    }
}

#[test]
fn text_reads_on_a_terminal() {
    for options in [&[][..], &["--no-flush", "--no-odp"], &["--iwarp"]] {
        let (status, text, stderr) = outcome(&mut over_softverbs(options, &[]));
        assert_eq!((status, stderr.as_str()), (0, ""));
        for line in text.lines() {
            // What can't be broken: paths and commands.
            let whole = line.contains('/') || line.starts_with("        ");
            assert!(whole || line.chars().count() <= 80, "{line}");
            assert_eq!(line.trim_end(), line);
        }
        let report = report(&mut over_softverbs(options, &[]));
        let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for finding in report["findings"].as_array().unwrap() {
            let problem = finding["problem"].as_str().unwrap();
            assert!(joined.contains(problem), "no {problem:?} in\n{text}");
        }
        let notes = levels(&report).len();
        let plural = if notes == 1 { "" } else { "s" };
        let end = format!("A device is usable: 0 errors, 0 warnings, {notes} note{plural}\n");
        assert!(text.ends_with(&end), "no {end:?} in\n{text}");
    }
}

#[test]
fn bad_arguments_are_refused_in_one_line() {
    for (arguments, part) in [
        (&["--jsn"][..], "--jsn"),
        (&[""], "ADDRESS"),
        (&["127.0.0.1", ""], "ADDRESS"),
        (&["--json=yes"], "--json"),
    ] {
        let (status, stdout, stderr) = outcome(&mut plain(arguments));
        assert_eq!(
            (status, stdout.as_str()),
            (2, ""),
            "{arguments:?}: {stderr}"
        );
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(
            stderr.starts_with("rpma-info: ") && stderr.contains(part),
            "{stderr}"
        );
    }
}

#[test]
fn who_does_not_read_on_has_seen_enough() {
    let mut child = over_softverbs(&[], &[])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*stderr), (Some(0), ""));
}

/// On the kernel's device: a case a line, NAME COMMAND..., whose report is kept under the name.
const CASES: &str = r#"
all             $I
local           $I $RPMA_VM_IP
others          $I 127.0.0.1 198.51.100.1
user            as_user 65536 $I
shown           chmod 666 /dev/dax0.0; as_user 8388608 /share/rpma-info 127.0.0.1; chmod 600 /dev/dax0.0
page            as_user 1024 $I
closed          chmod 600 /dev/infiniband/uverbs0; as_user 8388608 $I; chmod 666 /dev/infiniband/uverbs0
no-cm           mv /dev/infiniband/rdma_cm /run; $I; mv /run/rdma_cm /dev/infiniband
no-driver       mv /etc/libibverbs.d /run; $I; mv /run/libibverbs.d /etc
no-node         mv /dev/infiniband/uverbs0 /run; $I; mv /run/uverbs0 /dev/infiniband
down            ip link set dummy0 down; $I; ip link set dummy0 up
no-address      ip addr flush dev dummy0; $I
none            rdma link del rxe0; $I
"#;

#[test]
fn on_the_kernels_device_in_a_virtual_machine() {
    // (kernel, whether its device has native flush and atomic write)
    for (kernel, native) in [("new", true), ("old", false)] {
        let dir = scratch(&format!("info-{kernel}"));
        fs::copy(INFO, dir.join("rpma-info")).unwrap();
        fs::copy(ours().join("librpma.so.0"), dir.join("librpma.so.0")).unwrap();
        let mut script = String::from(
            "export LD_LIBRARY_PATH=/share\n\
             chmod -R a+rX /share\n\
             I='/share/rpma-info --json'\n\
             as_user() { prlimit --memlock=$1:$1 setpriv --reuid 65534 --regid 65534 \
             --clear-groups ${@:2}; }\n\
             ibv_devinfo -v >out/devinfo\n",
        );
        for case in CASES.trim().lines() {
            let (name, commands) = case.split_once(' ').unwrap();
            script += &format!("{{ {commands}; }} >out/{name} 2>out/{name}.err\n");
        }
        fs::write(dir.join("run.sh"), format!("#!/bin/bash\n{script}true\n")).unwrap();
        run(Command::new("chmod").arg("755").arg(dir.join("run.sh")));
        run(Command::new(root().join("scripts/vm"))
            .args(["run", "--kernel", kernel])
            .arg(&dir)
            .stdin(Stdio::null()));
        let read = |name: &str| {
            let file = dir.join("out").join(name);
            fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
        };
        let case = |name: &str| -> Value {
            let text = read(name);
            let report: Value = serde_json::from_str(&text).unwrap_or_else(|error| {
                panic!(
                    "{kernel} {name}: {error} in\n{text}{}",
                    read(&format!("{name}.err"))
                )
            });
            documented(&report, "");
            report
        };
        let errors = |report: &Value| {
            let found = findings(report).into_iter();
            found
                .filter_map(|line| line.strip_prefix("error ").map(str::to_owned))
                .collect::<Vec<_>>()
        };

        let all = case("all");
        let device = &all["devices"][0];
        as_devinfo_has_it(device, &read("devinfo"));
        assert_eq!(device["usable"], true, "{all:#}");
        assert_eq!(device["flush"]["librpma"], native, "{all:#}");
        assert_eq!(device["atomic_write"]["librpma"], native, "{all:#}");
        assert_eq!(errors(&all), [""; 0], "{all:#}");
        let dax = &all["host"]["persistent_memory"]["dax_devices"][0];
        assert_eq!(
            (&dax["path"], &dax["accessible"]),
            (&"/dev/dax0.0".into(), &true.into())
        );
        assert_eq!(finding(&all, "loopback_not_served")["level"], "note");

        let local = case("local");
        assert_eq!(local["addresses"][0]["device"], "rxe0", "{local:#}");
        assert_eq!(errors(&local), [""; 0], "{local:#}");

        let others = case("others");
        let expected = [
            "address_not_reached 198.51.100.1",
            "address_not_served 127.0.0.1",
        ];
        assert_eq!(errors(&others), expected, "{others:#}");
        let text = finding(&others, "address_not_served").to_string();
        assert!(text.contains("10.77.0.1 (rxe0)"), "{text}");

        let text = read("shown");
        let (_, end) = text.split_once("\nFindings\n").unwrap();
        let lines = end.lines().map(|line| match line {
            "" => String::new(),
            _ => format!("    {line}"),
        });
        let shown = lines.collect::<Vec<_>>().join("\n");
        let readme = fs::read_to_string(root().join("README.md")).unwrap();
        assert!(readme.contains(&shown), "README.md does not show\n{shown}");

        let user = case("user");
        assert_eq!(errors(&user), [""; 0], "{user:#}");
        assert_eq!(finding(&user, "memlock_low")["level"], "warning");
        assert_eq!(
            finding(&user, "pmem_no_permission")["subject"],
            "/dev/dax0.0"
        );

        let page = case("page");
        assert_eq!(page["devices"][0]["error"]["step"], "register", "{page:#}");
        let expected = ["memlock_low -", "memory_not_registered rxe0"];
        assert_eq!(errors(&page), expected, "{page:#}");

        for (name, expected) in [
            ("closed", "no_permission rxe0"),
            ("no-cm", "no_rdma_cm -"),
            ("no-driver", "driver_missing rxe0"),
            ("no-node", "device_node_missing rxe0"),
            ("down", "port_not_active rxe0"),
            ("no-address", "no_address rxe0"),
            ("none", "no_device -"),
        ] {
            let report = case(name);
            assert_eq!(errors(&report), [expected], "{kernel} {name}: {report:#}");
            assert_eq!(report["usable"], false);
        }
    }
}
