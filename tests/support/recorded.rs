//! Traces of the recording stack (c-tests/recorded): what a case is, what its trace says, and the
//! cases of two libraries side by side.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Write as _};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// The errnos that every call fails with; `+`: and so does all that can fail after it.
const ERRORS: [&str; 7] = [
    "=EIO",
    "+=EIO",
    "=ENOMEM",
    "=EOPNOTSUPP",
    "+=EOPNOTSUPP",
    "=EAGAIN",
    "=EINVAL",
];

/// Those that mean something to one call.
const ERRORS_OF: [(&str, &str); 6] = [
    ("rdma_get_cm_event", "=ENODATA"),
    ("ibv_query_device_ex", "=ENOSYS"),
    ("rdma_create_qp_ex", "=ENOSYS"),
    ("ibv_advise_mr", "=EFAULT"),
    ("ibv_alloc_pd", "=0"),
    ("rdma_getaddrinfo", "=EAI_NONAME"),
];

/// The text of an errno, as the log shows it.
pub fn error_text(name: &str) -> &'static str {
    match name {
        "EIO" => "Input/output error",
        "ENOMEM" => "Cannot allocate memory",
        "EOPNOTSUPP" => "Operation not supported",
        "EAGAIN" => "Resource temporarily unavailable",
        "EINVAL" => "Invalid argument",
        "ENOSYS" => "Function not implemented",
        _ => panic!("an errno without a text: {name}"),
    }
}

/// A call that could have failed: the `api`th of the interface makes its `nth` call of that name.
#[derive(Clone, PartialEq, Debug)]
pub struct Point {
    pub api: usize,
    pub call: String,
    pub nth: usize,
}

impl Point {
    pub fn parse(text: &str) -> Self {
        let parts: Vec<_> = text.split(':').collect();
        let [api, call, nth] = parts[..] else {
            panic!("not a point: {text}");
        };
        Point {
            api: api.parse().unwrap(),
            call: call.to_string(),
            nth: nth.parse().unwrap(),
        }
    }
}

impl Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}:{}:{}", self.api, self.call, self.nth)
    }
}

/// The call that fails in a case.
#[derive(Clone, PartialEq, Debug)]
pub struct Fault {
    pub point: Point,
    /// And so does all that can fail after it.
    pub on: bool,
    /// The errno's name.
    pub error: String,
}

/// A scenario with a fault, or as it is.
#[derive(Clone, PartialEq, Debug)]
pub struct Case {
    pub scenario: String,
    pub fault: Option<Fault>,
}

impl Case {
    /// `SCENARIO`, a tab, `clean` or `API:CALL:NTH[+]=ERRNO`.
    pub fn parse(text: &str) -> Self {
        let (scenario, fault) = text.split_once('\t').unwrap();
        let fault = (fault != "clean").then(|| {
            let (point, error) = fault.split_once('=').unwrap();
            let (point, on) = match point.strip_suffix('+') {
                Some(point) => (point, true),
                None => (point, false),
            };
            Fault {
                point: Point::parse(point),
                on,
                error: error.to_string(),
            }
        });
        let scenario = scenario.to_string();
        Case { scenario, fault }
    }

    pub fn clean(&self) -> String {
        format!("{}\tclean", self.scenario)
    }
}

impl Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match &self.fault {
            None => write!(f, "{}\tclean", self.scenario),
            Some(Fault { point, on, error }) => {
                let on = if *on { "+" } else { "" };
                write!(f, "{}\t{point}{on}={error}", self.scenario)
            }
        }
    }
}

/// A program of scenarios with a library under it.
#[derive(Clone)]
pub struct Program {
    pub path: PathBuf,
    /// The directory of its `librpma.so.0`.
    pub library: PathBuf,
}

impl Program {
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        self.with_library(&mut command);
        command
    }

    pub fn with_library(&self, command: &mut Command) {
        let mut path = self.library.clone().into_os_string();
        path.push(":");
        path.push(self.path.parent().unwrap());
        command.env("LD_LIBRARY_PATH", path);
    }

    /// All that could have failed, each as `SCENARIO`, a tab, and a point or `clean`.
    pub fn points(&self) -> Vec<String> {
        let output = output(self.command().arg("points"), "");
        output.lines().map(str::to_string).collect()
    }

    /// Each scenario as it is, and with each of its allocations failing.
    pub fn allocations(&self) -> Vec<Case> {
        let points = self.points();
        let allocation = |point: &String| point.contains(":malloc:");
        let case = |point: &String| match allocation(point) {
            true => Case::parse(&format!("{point}=ENOMEM")),
            false => Case::parse(point),
        };
        let points = points.iter();
        let cases = points.filter(|p| allocation(p) || p.ends_with("\tclean"));
        cases.map(case).collect()
    }

    /// The traces of the cases, in their order.
    pub fn run(&self, cases: &[Case]) -> String {
        output(self.command().arg("run"), &list(cases))
    }
}

pub fn list(cases: &[Case]) -> String {
    let mut text = String::new();
    for case in cases {
        writeln!(text, "{case}").unwrap();
    }
    text
}

/// How long a run of all cases may take, which is many times what it does take.
const LIMIT: Duration = Duration::from_secs(60 * 60);

/// What a command prints, given this to read; it must succeed, and in time.
pub fn output(command: &mut Command, input: &str) -> String {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let (ended, end) = mpsc::channel();
    let (printed, in_time) = thread::scope(|scope| {
        // If the program ends early, that is told below.
        scope.spawn(move || stdin.write_all(input.as_bytes()));
        let reader = scope.spawn(move || {
            let mut printed = vec![];
            stdout.read_to_end(&mut printed).unwrap();
            // Nobody waits any more if it was too late.
            let _ = ended.send(());
            printed
        });
        let in_time = end.recv_timeout(LIMIT).is_ok();
        if !in_time {
            child.kill().unwrap();
        }
        (reader.join().unwrap(), in_time)
    });
    let status = child.wait().unwrap();
    let text = String::from_utf8_lossy(&printed).into_owned();
    if !in_time || !status.success() {
        let what = match in_time {
            true => format!("ended with {status}"),
            false => format!("did not end within {} s", LIMIT.as_secs()),
        };
        let mut lines: Vec<_> = text.lines().collect();
        let why = lines.iter().find(|line| line.starts_with("cannot go on"));
        let case = lines.iter().rev().find_map(|line| line.strip_prefix("== "));
        let again = case.map_or(String::new(), |case| {
            let case = case.replace('\t', " ");
            format!(
                "\nto see the case: RPMA_CASE='{case}' cargo test --test recorded -- --nocapture"
            )
        });
        let why = why.unwrap_or(&"").to_string();
        lines.drain(..lines.len().saturating_sub(12));
        panic!(
            "{command:?} {what}. {why}\nIt printed last:\n{}{again}",
            lines.join("\n")
        );
    }
    text
}

/// Every case of a program over several libraries: what can fail in any of them, with each errno.
pub fn cases(programs: &[&Program]) -> Vec<Case> {
    let points = programs.iter().map(|program| program.points());
    let points: Vec<BTreeSet<String>> = points.map(BTreeSet::from_iter).collect();
    let mut cases = vec![];
    for scenario in points[0].iter().filter_map(|p| p.strip_suffix("\tclean")) {
        cases.push(Case::parse(&format!("{scenario}\tclean")));
        let of_scenario = format!("{scenario}\t");
        let mut all: Vec<Point> = points
            .iter()
            .flatten()
            .filter_map(|p| p.strip_prefix(&of_scenario))
            .filter(|p| *p != "clean")
            .map(Point::parse)
            .collect();
        // Each of them once; those of one library stay in their order.
        all.sort_by_key(|point| point.api);
        let mut seen = BTreeSet::new();
        for point in all {
            if !seen.insert(point.to_string()) {
                continue;
            }
            let text = format!("{of_scenario}{point}");
            let in_all = points.iter().all(|points| points.contains(&text));
            let of_call = ERRORS_OF.iter().filter(|(call, _)| *call == point.call);
            for error in ERRORS.iter().chain(of_call.map(|(_, error)| error)) {
                // Where one library makes no such call, it has nothing to go on failing after.
                if error.starts_with('+') && !in_all {
                    continue;
                }
                cases.push(Case::parse(&format!("{scenario}\t{point}{error}")));
            }
        }
    }
    cases
}

/// Cuts what a program printed into the traces of its cases.
pub fn traces(printed: &str) -> Vec<(&str, &str)> {
    printed
        .split("== ")
        .skip(1)
        .map(|trace| trace.split_once('\n').unwrap_or((trace, "")))
        .collect()
}

/// A call of the interface in a trace.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct ApiCall {
    /// What it called.
    pub lines: Vec<String>,
    /// The call as it stands in the program; empty for what is before the first call or behind the
    /// last one.
    pub text: String,
    pub code: String,
    /// What became of its out-parameter, if it has one.
    pub out: String,
    /// What it left in errno, which was 0, if it failed; not shown.
    pub errno: String,
    /// The lines that it logged.
    pub log: Vec<String>,
    /// What the program shows of what it gave.
    pub shown: Vec<String>,
}

impl ApiCall {
    pub fn is(&self, function: &str) -> bool {
        self.text
            .strip_prefix(function)
            .is_some_and(|rest| rest.starts_with('('))
    }

    /// Where the call of this name is that comes first.
    pub fn find(&self, call: &str) -> Option<usize> {
        self.lines.iter().position(|line| name(line) == call)
    }
}

/// The name of the call in a line.
pub fn name(line: &str) -> &str {
    line.split('(').next().unwrap_or_default()
}

/// A whole trace.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Trace {
    /// What the program shows before the first call.
    pub first: Vec<String>,
    pub calls: Vec<ApiCall>,
    /// What was alive when all was over; None if the process did not get there.
    pub alive: Option<Vec<String>>,
    /// What is in no other place, the signal that killed the process among them.
    pub rest: Vec<String>,
}

impl Trace {
    pub fn parse(text: &str) -> Self {
        let mut trace = Trace::default();
        let mut lines = vec![];
        for line in text.lines() {
            if let Some(call) = parse_call(line) {
                trace.calls.push(ApiCall {
                    lines: std::mem::take(&mut lines),
                    ..call
                });
            } else if let (Some(errno), Some(call)) =
                (line.strip_prefix("    errno "), trace.calls.last_mut())
            {
                call.errno = errno.to_string();
            } else if let Some(shown) = line.strip_prefix("    ") {
                let shown_by = match trace.calls.last_mut() {
                    Some(call) => &mut call.shown,
                    None => &mut trace.first,
                };
                shown_by.push(shown.to_string());
            } else if let Some(alive) = line.strip_prefix("alive ") {
                let names = alive.split(' ').filter(|name| *name != "-");
                trace.alive = Some(names.map(str::to_string).collect());
            } else if name(line).starts_with(char::is_lowercase) && line.contains('(') {
                lines.push(line.to_string());
            } else {
                trace.rest.push(line.to_string());
            }
        }
        trace.calls.push(ApiCall {
            lines,
            ..ApiCall::default()
        });
        trace
    }

    /// What is left alive no more.
    pub fn released(&mut self, name: &str) {
        if let Some(alive) = &mut self.alive {
            alive.retain(|other| other != name);
        }
    }
}

/// `TEXT = CODE[ out OUT] log LINES`
fn parse_call(line: &str) -> Option<ApiCall> {
    if !line.starts_with("rpma_") {
        return None;
    }
    let (text, result) = line.rsplit_once(" = ")?;
    let (code, log) = result.split_once(" log ")?;
    let (code, out) = code.split_once(" out ").unwrap_or((code, ""));
    Some(ApiCall {
        text: text.to_string(),
        code: code.to_string(),
        out: out.to_string(),
        log: match log {
            "-" => vec![],
            log => log.split(',').map(str::to_string).collect(),
        },
        ..ApiCall::default()
    })
}

impl Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for shown in &self.first {
            writeln!(f, "    {shown}")?;
        }
        for call in &self.calls {
            for line in &call.lines {
                writeln!(f, "{line}")?;
            }
            if call.text.is_empty() {
                continue;
            }
            let out = if call.out.is_empty() { "" } else { " out " };
            let log = if call.log.is_empty() { "-" } else { "" };
            writeln!(
                f,
                "{} = {}{out}{} log {log}{}",
                call.text,
                call.code,
                call.out,
                call.log.join(",")
            )?;
            for shown in &call.shown {
                writeln!(f, "    {shown}")?;
            }
        }
        for line in &self.rest {
            writeln!(f, "{line}")?;
        }
        if let Some(alive) = &self.alive {
            let none = if alive.is_empty() { "-" } else { "" };
            writeln!(f, "alive {none}{}", alive.join(" "))?;
        }
        Ok(())
    }
}

/// The first place where two texts differ, with the lines around it.
pub fn difference(expected: &str, seen: &str) -> String {
    let (expected, seen): (Vec<_>, Vec<_>) = (expected.lines().collect(), seen.lines().collect());
    let same = expected.iter().zip(&seen).take_while(|(a, b)| a == b);
    let at = same.count();
    let mut text = String::new();
    for line in &expected[at.saturating_sub(6)..at] {
        writeln!(text, "      {line}").unwrap();
    }
    for (lines, sign) in [(&expected, '-'), (&seen, '+')] {
        for line in lines.iter().skip(at).take(4) {
            writeln!(text, "    {sign} {line}").unwrap();
        }
        if lines.len() <= at {
            writeln!(text, "    {sign} (the end)").unwrap();
        }
    }
    text
}

/// A C file or directory of the test programs.
pub fn c_tests(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("c-tests")
        .join(name)
}
