//! Every call that the library makes below, beside those of the original: over a stand-in for
//! libibverbs and librdmacm that writes them down (c-tests/recorder), the scenarios of
//! c-tests/recorded run as they are, and once for each call that can fail and each of several errnos.
//!
//!     cargo test --test recorded                  all of it
//!     RPMA_CASE='SCENARIO FAULT' cargo test --test recorded -- --nocapture
//!                                                 one case, its traces shown
#[path = "support/recorded.rs"]
mod recorded;
#[path = "support/recorded_rules.rs"]
mod recorded_rules;
mod support;

use recorded::{
    ApiCall, Case, Fault, Program, Trace, c_tests, cases, difference, list, output, traces,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::env;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use support::{cc, release, root, run, scratch};

/// The sources of the stand-in.
const RECORDER: [&str; 4] = [
    "recorder/trace.c",
    "recorder/system.c",
    "recorder/verbs.c",
    "recorder/cm.c",
];

/// The sources of the scenarios.
const RECORDED: [&str; 8] = [
    "recorded/recorded.c",
    "recorded/scenarios.c",
    "recorded/setup.c",
    "recorded/peers.c",
    "recorded/connections.c",
    "recorded/operations.c",
    "recorded/logs.c",
    "recorded/differences.c",
];

/// A directory with the stand-in and the programs in it, and ours.
fn built() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(build)
}

fn build() -> PathBuf {
    let dir = scratch("recorded");
    symlink(release().join("librpma.so"), dir.join("librpma.so.0")).unwrap();
    let recorder = dir.join("librecorder.so");
    run(cc()
        .args([
            "-g",
            "-O1",
            "-fPIC",
            "-shared",
            "-Wl,-soname,librecorder.so",
        ])
        .arg("-o")
        .arg(&recorder)
        .args(RECORDER.map(c_tests)));
    for (program, sources) in [
        ("recorded", RECORDED.to_vec()),
        (
            "recorded-memory",
            [&RECORDED[..], &["recorder/memory.c"]].concat(),
        ),
        ("threads", vec!["recorded/threads.c"]),
    ] {
        run(cc()
            .args(["-g", "-O1", "-pthread", "-rdynamic", "-I"])
            .arg(root().join("include"))
            .arg("-o")
            .arg(dir.join(program))
            .args(sources.into_iter().map(c_tests))
            .arg(&recorder)
            .arg(release().join("librpma.so")));
    }
    dir
}

/// The scenarios over the original of this release.
fn original(release: &str) -> Program {
    let (path, _) = run(Command::new(root().join("scripts/original")).arg(release));
    Program {
        path: built().join("recorded"),
        library: Path::new(path.trim()).parent().unwrap().to_path_buf(),
    }
}

/// The scenarios over ours.
fn ours() -> Program {
    Program {
        path: built().join("recorded"),
        library: built().to_path_buf(),
    }
}

/// The traces of both programs, run side by side.
fn run_both(programs: [&Program; 2], cases: &[Case]) -> [String; 2] {
    thread::scope(|scope| {
        let runs = programs.map(|program| scope.spawn(|| program.run(cases)));
        runs.map(|run| run.join().unwrap())
    })
}

/// Compares the traces with what the rewrite makes of the reference's.
fn compare(
    reference: &Program,
    other: &Program,
    rewrite: impl Fn(&Case, &str, &HashMap<String, String>) -> (String, Vec<&'static str>),
    wanted: impl Fn(&Case) -> bool,
    differences: &[&'static str],
) {
    let mut cases = cases(&[reference, other]);
    cases.retain(wanted);
    let one = env::var("RPMA_CASE").ok();
    if let Some(one) = &one {
        let (scenario, _) = one.rsplit_once(' ').expect("RPMA_CASE=SCENARIO FAULT");
        let wanted = one.replacen(&format!("{scenario} "), &format!("{scenario}\t"), 1);
        cases.retain(|case| case.fault.is_none() || case.to_string() == wanted);
        cases.retain(|case| case.scenario == scenario || case.fault.is_none());
    }
    let printed = run_both([reference, other], &cases);
    let [expected, seen] = printed.each_ref().map(|printed| traces(printed));
    assert_eq!((expected.len(), seen.len()), (cases.len(), cases.len()));
    let clean: HashMap<_, _> = expected
        .iter()
        .filter(|(case, _)| case.ends_with("\tclean"))
        .map(|(case, trace)| (case.to_string(), trace.to_string()))
        .collect();

    let mut shown = BTreeMap::new();
    let mut failures = BTreeMap::new();
    for ((case, (_, expected)), (text, seen)) in cases.iter().zip(&expected).zip(&seen) {
        assert_eq!(case.to_string(), *text);
        let (wanted, differences) = rewrite(case, expected, &clean);
        let (original, seen) = (Trace::parse(expected), Trace::parse(seen));
        let errnos = errno_differs(&original, &seen);
        let seen = seen.to_string();
        let differs = match wanted == seen {
            true => errnos.map(|(call, [a, b])| (kind(&call, &b), [format!("{call}: {a}"), b])),
            false => Some((kind(&wanted, &seen), [wanted.clone(), seen.clone()])),
        };
        if let Some((kind, [wanted, seen])) = differs {
            failures.entry(kind).or_insert_with(Vec::new).push(format!(
                "{}\n{}",
                text.replace('\t', " "),
                difference(&wanted, &seen)
            ));
        }
        for difference in differences {
            *shown.entry(difference).or_insert(0) += 1;
        }
        if one.is_some() && one.as_deref() == Some(&text.replace('\t', " ")) {
            println!("{text}\n--- the original\n{expected}--- wanted\n{wanted}--- seen\n{seen}");
        }
    }
    println!(
        "{} cases; in how many a difference shows: {shown:?}",
        cases.len()
    );
    let count: usize = failures.values().map(Vec::len).sum();
    let mut text = String::new();
    for (_, of_kind) in failures.iter().take(12) {
        writeln!(text, "{} like this one: {}", of_kind.len(), of_kind[0]).unwrap();
    }
    assert!(
        failures.is_empty(),
        "{count} cases differ, of {} kinds (- as it has to be, + as it is):\n\n{text}\nto see a case: \
         RPMA_CASE='...' cargo test --test recorded -- --nocapture",
        failures.len(),
    );
    for difference in differences {
        assert!(
            one.is_some() || shown.contains_key(difference),
            "{difference} does not show in any case"
        );
    }
}

/// What two calls that failed alike have left in errno, where that is not the same.
///
/// Where others follow the call below that failed, such as those that release what there is, what
/// they leave is theirs.
fn errno_differs(original: &Trace, seen: &Trace) -> Option<(String, [String; 2])> {
    let failed = |line: &String| {
        let value = line.rsplit_once(" = ").map_or("", |(_, value)| value);
        let value = value.strip_prefix("NULL ").unwrap_or(value);
        let value = value.strip_prefix("-1 ").unwrap_or(value);
        value.starts_with('E')
    };
    let alike = original.calls.iter().zip(&seen.calls).filter(|(a, b)| {
        let last = a.lines.last();
        a.code == b.code && a.lines == b.lines && last.is_none_or(failed)
    });
    let mut differ = alike.filter(|(a, b)| a.errno != b.errno);
    let of = |call: &ApiCall| format!("errno {}", call.errno);
    differ.next().map(|(a, b)| (a.text.clone(), [of(a), of(b)]))
}

/// What a difference is, whatever the numbers and the errno.
fn kind(wanted: &str, seen: &str) -> [String; 2] {
    let mut pairs = wanted.lines().chain([""]).zip(seen.lines().chain([""]));
    let (wanted, seen) = pairs.find(|(a, b)| a != b).unwrap_or_default();
    [wanted, seen].map(|line| {
        let end = line
            .find(" = ")
            .map_or(line.len(), |at| at + " = PROVIDER".len());
        let line = line.get(..end).unwrap_or(line);
        line.replace(|c: char| c.is_ascii_digit(), "")
    })
}

#[test]
fn calls() {
    compare(
        &original("1.3.0"),
        &ours(),
        recorded_rules::expected,
        |_| true,
        &recorded_rules::ALL,
    );
}

/// FLUSH is for a libibverbs that can post it: release 46 of rdma-core was the first, as its file
/// name tells (D11).
#[test]
fn release_of_libibverbs() {
    let dir = scratch("recorded-release");
    let case = [Case::parse("accepted on flush\tclean")];
    let made = |file: &str| {
        let dir = dir.join(file);
        fs::create_dir(&dir).unwrap();
        fs::copy(built().join("librecorder.so"), dir.join(file)).unwrap();
        symlink(file, dir.join("librecorder.so")).unwrap();
        for name in ["recorded", "librpma.so.0"] {
            symlink(built().join(name), dir.join(name)).unwrap();
        }
        let program = Program {
            path: dir.join("recorded"),
            library: dir,
        };
        let trace = program.run(&case);
        let made = trace
            .lines()
            .find(|line| line.contains("rdma_create_qp_ex("));
        made.unwrap_or_else(|| panic!("no QP:\n{trace}"))
            .to_string()
    };
    for (file, ops) in [
        ("libibverbs.so.1.14.45.0", "ops 0)"),
        ("libibverbs.so.1.14.46.0", "ops 0x800)"),
    ] {
        let line = made(file);
        assert!(line.contains(ops), "{file}: not {ops}: {line}");
    }
}

/// The other release of the original: what differs is known. Native operations it has none, so all
/// that can be said of a device that has them is that it is one like others.
#[test]
fn releases() {
    compare(
        &original("1.3.0"),
        &original("1.2.0"),
        recorded_rules::expected_of_1_2_0,
        |case| {
            let native = recorded_rules::without_native(&case.scenario) != case.scenario;
            !native || (case.fault.is_none() && !case.scenario.ends_with(" full"))
        },
        &recorded_rules::OF_1_2_0,
    );
}

/// Ours alone: what its release calls can release is released, whatever else fails, and nothing is
/// used after that.
fn check_end(case: &Case, text: &str) {
    const RELEASES: [&str; 7] = [
        "ibv_dealloc_pd",
        "ibv_dereg_mr",
        "ibv_destroy_cq",
        "ibv_destroy_comp_channel",
        "ibv_destroy_srq",
        "rdma_destroy_id",
        "munmap",
    ];
    let trace = Trace::parse(text);
    assert!(
        !text.contains("(gone)") && trace.rest.is_empty(),
        "{case}:\n{text}"
    );
    let excuse = |fault: &Fault| fault.on || RELEASES.contains(&fault.point.call.as_str());
    let excused = case.fault.as_ref().is_some_and(excuse);
    assert!(
        trace
            .alive
            .as_ref()
            .is_some_and(|alive| excused || alive.is_empty()),
        "{case}: this is left: {:?}",
        trace.alive
    );
}

/// Every allocation of a program's fails once. Ours says and does then what the original says and
/// does, to the letter but for the known differences, when one of its own fails in the same call;
/// and nothing is left behind.
#[test]
fn memory() {
    let of = |program: Program| {
        let program = Program {
            path: built().join("recorded-memory"),
            ..program
        };
        let cases = program.allocations();
        let printed = program.run(&cases);
        (cases, printed)
    };
    let (cases, printed) = of(original("1.3.0"));
    let traces_of_original = traces(&printed);
    let clean: HashMap<_, _> = traces_of_original
        .iter()
        .filter(|(case, _)| case.ends_with("\tclean"))
        .map(|(case, trace)| (case.to_string(), without_count(trace)))
        .collect();
    let mut expected: HashMap<_, BTreeSet<String>> = HashMap::new();
    for (case, (_, trace)) in cases.iter().zip(&traces_of_original) {
        let (trace, _) = recorded_rules::expected(case, &without_count(trace), &clean);
        let call = case.fault.as_ref().map(|fault| fault.point.api);
        let of_call = expected.entry((case.scenario.clone(), call)).or_default();
        of_call.insert(Trace::parse(&trace).to_string());
    }
    let (cases, printed) = of(ours());
    let mut failed = 0;
    for (case, (text, trace)) in cases.iter().zip(traces(&printed)) {
        assert_eq!(case.to_string(), text);
        let end = "alive -\nmemory in use: 0\n";
        let Some(fault) = &case.fault else {
            continue;
        };
        failed += 1;
        assert!(
            trace.ends_with(end),
            "{text}: something is left\n{trace}{}",
            again(text)
        );
        let Some(expected) = expected.get(&(case.scenario.clone(), Some(fault.point.api))) else {
            panic!(
                "{text}: the original allocates nothing there{}",
                again(text)
            );
        };
        let trace = Trace::parse(&without_count(trace)).to_string();
        let differences: Vec<_> = expected.iter().map(|e| difference(e, &trace)).collect();
        assert!(
            expected.contains(&trace),
            "{text}\nis like none of these:\n{}{}",
            differences.join("\nor\n"),
            again(text)
        );
    }
    println!("{failed} allocations fail");
    assert!(failed > 100);
}

/// A trace without the number of blocks that the library has, which is its own affair.
fn without_count(trace: &str) -> String {
    let lines = trace.lines();
    let lines = lines.filter(|line| !line.starts_with("memory in use: "));
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// How to see a case in which an allocation fails.
fn again(case: &str) -> String {
    let dir = built().display();
    let case = case.replace('\t', "\\t");
    format!("\nto see it: printf '{case}\\n' | LD_LIBRARY_PATH={dir} {dir}/recorded-memory run")
}

/// Valgrind, which must be content with what it runs.
fn valgrind(tool: &[&str]) -> Command {
    let mut command = Command::new("valgrind");
    command.args(["--quiet", "--error-exitcode=9"]).args(tool);
    command
}

/// All cases of ours in one process: no memory is read that is not there or was not written, and
/// none is lost.
fn checked(program: &Program, cases: &[Case], more: &[&str]) -> String {
    let mut command = valgrind(&[
        "--leak-check=full",
        "--show-leak-kinds=definite,indirect,possible",
        "--errors-for-leak-kinds=definite,indirect,possible",
    ]);
    program.with_library(command.args(more));
    let printed = output(command.arg(&program.path).arg("here"), &list(cases));
    let of_cases = traces(&printed);
    assert_eq!(of_cases.len(), cases.len());
    for (case, (_, trace)) in cases.iter().zip(of_cases) {
        check_end(case, &without_count(trace));
    }
    println!("{} cases", cases.len());
    printed
}

#[test]
fn memcheck() {
    checked(&ours(), &cases(&[&ours()]), &[]);
}

/// The same with each allocation failing. The program's own malloc stays in place for that, and
/// valgrind's stands in for the C library's behind it.
#[test]
fn memcheck_without_memory() {
    let program = Program {
        path: built().join("recorded-memory"),
        ..ours()
    };
    let cases = program.allocations();
    let printed = checked(
        &program,
        &cases,
        &["--soname-synonyms=somalloc=nouserintercepts"],
    );
    // What the C library allocates once a process is there already when a later case counts on it,
    // so a few cases have memory after all.
    let tried = traces(&printed);
    let with: Vec<_> = tried
        .iter()
        .filter(|(case, trace)| !case.ends_with("\tclean") && !trace.contains(" = NOMEM"))
        .map(|(case, _)| case)
        .collect();
    assert!(
        with.len() * 20 < tried.len(),
        "in {} of {} cases there was memory: {with:?}",
        with.len(),
        tried.len()
    );
}

/// Threads: those of a program that does all that may be done at once.
#[test]
fn threads() {
    let dir = scratch("recorded-threads");
    // Only in an unoptimized build are atomic accesses calls that can be told from others.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    run(Command::new(env!("CARGO"))
        .args(["build", "--locked", "--target-dir"])
        .arg(target)
        .current_dir(root()));
    symlink(target.join("debug/librpma.so"), dir.join("librpma.so.0")).unwrap();
    let ours = Program {
        path: built().join("threads"),
        library: dir,
    };
    let suppressions = format!(
        "--suppressions={}",
        c_tests("recorded/atomics.supp").display()
    );
    for device in ["quiet odp", "quiet odp flush atomic"] {
        let mut command = valgrind(&["--tool=helgrind", &suppressions]);
        ours.with_library(&mut command);
        output(command.arg(&ours.path).arg(device), "");
    }
}

/// That program leaves no function out.
#[test]
fn threads_call_all_functions() {
    let read = |path: PathBuf| fs::read_to_string(path).unwrap();
    let header = read(root().join("include/librpma.h"));
    let program = read(c_tests("recorded/threads.c"));
    let mut functions: Vec<_> = header
        .lines()
        .filter(|line| !line.starts_with([' ', '*', '/', '#', 't']))
        .filter_map(|line| line[line.find("rpma_")?..].split_once('('))
        .map(|(name, _)| name)
        .filter(|name| name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_'))
        .collect();
    assert_eq!(functions.len(), 84, "{functions:?}");
    functions.retain(|name| !program.contains(&format!("{name}(")));
    assert_eq!(functions, [""; 0]);
}

/// The list of faults for the tests of these tests is kept up with the sources.
#[test]
fn faults_can_be_put_in() {
    run(Command::new(root().join("scripts/mutants")).arg("check"));
}
