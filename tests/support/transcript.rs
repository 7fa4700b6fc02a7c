//! Runs the C test programs (c-tests/) over the original library and ours, and compares what they
//! print: `key: value` lines, which have to be the same but for those that show a known difference
//! (`[D7] key: value`), and these have to be what each library is known to give.
#![allow(dead_code, reason = "the tests without a device use less of it")]

use std::ffi::OsString;
use std::fmt::Write;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use std::{fs, thread};

/// How long one run of a case may take, which is many times what it does take.
const LIMIT: Duration = Duration::from_secs(600);

/// A library to run the programs over.
#[derive(Clone, Debug)]
pub struct Library {
    pub name: &'static str,
    /// The directory with `librpma.so.0`.
    pub dir: PathBuf,
    /// What else its programs find in their environment.
    pub env: Vec<(&'static str, OsString)>,
}

impl Library {
    pub fn new(name: &'static str, dir: impl Into<PathBuf>) -> Self {
        let dir = dir.into();
        Self {
            name,
            dir,
            env: vec![],
        }
    }
}

pub const ORIGINAL: &str = "original";
pub const OURS: &str = "ours";

/// Where a difference shows: on every device, on those with native flush, or on those without.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Place {
    Any,
    Native,
    Raw,
}

/// One line that is meant to differ: a row of `differences.table`, which says what each part is.
pub struct Difference {
    pub number: &'static str,
    case: &'static str,
    place: Place,
    of_peer: bool,
    key: &'static str,
    original: &'static str,
    ours: &'static str,
}

/// All of the table.
pub fn known() -> Vec<Difference> {
    let rows = include_str!("differences.table").lines();
    rows.filter(|row| !row.is_empty() && !row.starts_with('#'))
        .map(|row| {
            let parts: Vec<_> = row.split(" | ").map(str::trim).collect();
            let [number, case, place, whose, key, original, ours] = parts[..] else {
                panic!("not a row of differences.table: {row}");
            };
            Difference {
                number,
                case,
                place: match place {
                    "any" => Place::Any,
                    "native" => Place::Native,
                    "raw" => Place::Raw,
                    _ => panic!("no such place: {row}"),
                },
                of_peer: match whose {
                    "own" => false,
                    "peer" => true,
                    _ => panic!("neither own nor peer: {row}"),
                },
                key,
                original,
                ours,
            }
        })
        .collect()
}

impl Difference {
    fn is_of(&self, case: &str, place: Place) -> bool {
        self.case == case && (self.place == Place::Any || self.place == place)
    }

    fn covers(&self, line: &Line) -> bool {
        let key = match self.key.strip_suffix('*') {
            Some(beginning) => line.key.starts_with(beginning),
            None => line.key == self.key,
        };
        key && line.mark == Some(self.number)
    }

    fn value_over(&self, library: &str) -> &'static str {
        if library == OURS {
            self.ours
        } else {
            self.original
        }
    }
}

/// A line of a transcript, in its parts.
pub struct Line<'a> {
    pub mark: Option<&'a str>,
    pub key: &'a str,
    pub value: &'a str,
}

impl<'a> Line<'a> {
    pub fn parse(line: &'a str) -> Self {
        let (mark, rest) = match line.strip_prefix('[').and_then(|l| l.split_once("] ")) {
            Some((mark, rest)) => (Some(mark), rest),
            None => (None, line),
        };
        let (key, value) = rest.split_once(": ").unwrap_or((rest, ""));
        Line { mark, key, value }
    }
}

/// What one process printed, and over which library; `peer` is that of the other side.
pub struct Transcript {
    pub side: &'static str,
    pub library: &'static str,
    pub peer: &'static str,
    pub lines: Vec<String>,
}

impl Transcript {
    fn who(&self) -> String {
        match self.side {
            "" => format!("over {}", self.library),
            "server" => format!("server over {}, client over {}", self.library, self.peer),
            _ => format!("client over {}, server over {}", self.library, self.peer),
        }
    }

    /// The value of the first line with this key.
    pub fn value(&self, key: &str) -> Option<&str> {
        let parsed = self.lines.iter().map(|line| Line::parse(line));
        parsed
            .filter(|line| line.key == key)
            .map(|line| line.value)
            .next()
    }
}

/// The lines around one of them, which is pointed at.
pub fn around(lines: &[String], at: usize) -> String {
    let mut text = String::new();
    for i in at.saturating_sub(4)..(at + 4).min(lines.len().max(at + 1)) {
        let pointer = if i == at { '>' } else { ' ' };
        let line = lines.get(i).map_or("(nothing more)", String::as_str);
        writeln!(text, "  {pointer} {:4}  {line}", i + 1).unwrap();
    }
    text
}

/// Compares a transcript with the reference, both of one side of one case. Lines of known
/// differences are compared with `known`, and noted in `seen` by its index and library.
pub fn compare(
    case: &str,
    place: Place,
    known: &[Difference],
    reference: &Transcript,
    transcript: &Transcript,
    seen: &mut Vec<(usize, &'static str)>,
) -> Result<(), String> {
    let count = reference.lines.len().max(transcript.lines.len());
    for i in 0..count {
        let expected = reference.lines.get(i).map(|l| Line::parse(l));
        let line = transcript.lines.get(i).map(|l| Line::parse(l));
        let problem = match (&expected, &line) {
            (Some(expected), Some(line))
                if (expected.mark, expected.key) == (line.mark, line.key) =>
            {
                let row = known
                    .iter()
                    .position(|row| row.is_of(case, place) && row.covers(line));
                match row {
                    Some(row) => {
                        let library = if known[row].of_peer {
                            transcript.peer
                        } else {
                            transcript.library
                        };
                        let value = known[row].value_over(library);
                        if line.value == value {
                            seen.push((row, library));
                            continue;
                        }
                        format!("with {library} this has to be `{value}`")
                    }
                    None if line.value == expected.value => continue,
                    None if line.mark.is_some() => {
                        "no such difference is known here, so this has to be the same".to_string()
                    }
                    None => "this has to be the same".to_string(),
                }
            }
            _ => "the two go different ways here".to_string(),
        };
        return Err(format!(
            "{problem}\n  {}:\n{}  {}:\n{}",
            reference.who(),
            around(&reference.lines, i),
            transcript.who(),
            around(&transcript.lines, i),
        ));
    }
    Ok(())
}

/// What is wrong with a transcript of a case that checks by itself.
pub fn check_own(transcript: &Transcript) -> Result<(), String> {
    let lines = &transcript.lines;
    if lines.ends_with(&["end: reached".to_string(), "exit: 0".to_string()]) {
        return Ok(());
    }
    let end = around(lines, lines.len().saturating_sub(1));
    Err(format!("over {}:\n{end}", transcript.library))
}

/// The differences of a case that did not show over both libraries.
pub fn unseen(
    case: &str,
    place: Place,
    known: &[Difference],
    seen: &[(usize, &'static str)],
) -> Vec<String> {
    let mut missing = vec![];
    for (i, row) in known.iter().enumerate() {
        for library in [ORIGINAL, OURS] {
            if row.is_of(case, place) && !seen.contains(&(i, library)) {
                missing.push(format!(
                    "[{}] {}: {} was not seen over {library}",
                    row.number,
                    row.key,
                    row.value_over(library)
                ));
            }
        }
    }
    missing
}

/// A running program, its output read as it comes.
struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    output: Receiver<String>,
    lines: Vec<String>,
}

fn forward(from: impl Read + Send + 'static, prefix: &'static str, to: Sender<String>) {
    thread::spawn(move || {
        for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
            let line = format!("{prefix}{}", String::from_utf8_lossy(&line));
            if to.send(line).is_err() {
                break;
            }
        }
    });
}

impl Process {
    fn start(program: &Path, library: &Library, args: &[&str]) -> Self {
        let mut child = Command::new(program)
            .args(args)
            .env("LD_LIBRARY_PATH", &library.dir)
            .envs(library.env.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        let (sender, output) = channel();
        forward(child.stdout.take().unwrap(), "", sender.clone());
        forward(child.stderr.take().unwrap(), "stderr: ", sender);
        Self {
            stdin: child.stdin.take(),
            child,
            output,
            lines: vec![],
        }
    }

    /// Waits for a line with this key and takes its value out of the transcript.
    fn take_value(&mut self, key: &str, deadline: Instant) -> Result<String, String> {
        loop {
            let line = self
                .next_line(deadline)?
                .ok_or_else(|| format!("it ended without a line `{key}`"))?;
            match line.strip_prefix(key) {
                Some(value) => return Ok(value.to_string()),
                None => self.lines.push(line),
            }
        }
    }

    fn next_line(&mut self, deadline: Instant) -> Result<Option<String>, String> {
        let left = deadline.saturating_duration_since(Instant::now());
        match self.output.recv_timeout(left) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => {
                Err(format!("it hangs (the limit is {} s)", LIMIT.as_secs()))
            }
        }
    }

    /// Waits for the end, which becomes the last line.
    fn finish(&mut self, deadline: Instant) -> Result<(), String> {
        while let Some(line) = self.next_line(deadline)? {
            // A server that tells its port tells another each time.
            if !line.starts_with("port: ") {
                self.lines.push(line);
            }
        }
        let status = self.child.wait().map_err(|error| error.to_string())?;
        self.lines.push(match status.signal() {
            Some(signal) => format!("exit: signal {signal}"),
            None => format!("exit: {}", status.code().unwrap_or(-1)),
        });
        Ok(())
    }

    /// What it has printed and what it is at, for whoever has to find out why it hangs.
    fn state(&mut self) -> String {
        let mut text = around(&self.lines, self.lines.len().saturating_sub(1));
        if let Ok(None) = self.child.try_wait() {
            for file in ["wchan", "syscall", "stack"] {
                let path = format!("/proc/{}/{file}", self.child.id());
                let state = fs::read_to_string(path).unwrap_or_else(|error| error.to_string());
                writeln!(
                    text,
                    "    {file}: {}",
                    state.trim().replace('\n', "\n      ")
                )
                .unwrap();
            }
        }
        text
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How a case is run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Kind {
    /// One process over each library.
    Solo,
    /// Server and client, in all pairings.
    Pair,
    /// One process over ours, which checks by itself.
    Own,
}

/// The cases of a program.
pub fn cases(program: &Path, library: &Library) -> Vec<(String, Kind)> {
    let mut process = Process::start(program, library, &["list"]);
    let finished = process.finish(Instant::now() + LIMIT);
    let lines = &process.lines;
    assert!(
        finished.is_ok() && lines.last().is_some_and(|line| line == "exit: 0"),
        "{} list: {lines:#?}",
        program.display()
    );
    lines
        .iter()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(name, kind)| {
            let kind = match kind {
                "solo" => Kind::Solo,
                "pair" => Kind::Pair,
                "own" => Kind::Own,
                _ => return None,
            };
            Some((name.to_string(), kind))
        })
        .collect()
}

/// Runs a case that is one process.
pub fn run_solo(program: &Path, args: &[&str], library: &Library) -> Result<Transcript, String> {
    let mut process = Process::start(program, library, args);
    process
        .finish(Instant::now() + LIMIT)
        .map_err(|error| format!("over {}: {error}\n{}", library.name, process.state()))?;
    Ok(Transcript {
        side: "",
        library: library.name,
        peer: library.name,
        lines: std::mem::take(&mut process.lines),
    })
}

/// Runs both sides of a case: the server's transcript and the client's.
pub fn run_pair(
    program: &Path,
    case: &str,
    address: &str,
    server_library: &Library,
    client_library: &Library,
) -> Result<[Transcript; 2], String> {
    let deadline = Instant::now() + LIMIT;
    let names = (server_library.name, client_library.name);
    let mut server = Process::start(program, server_library, &[case, "server", address]);
    let port = match server.take_value("port: ", deadline) {
        Ok(port) => port,
        Err(error) => {
            let state = server.state();
            return Err(format!("server over {}: {error}\n{state}", names.0));
        }
    };
    let mut client = Process::start(program, client_library, &[case, "client", address, &port]);
    let mut result = client
        .finish(deadline)
        .map_err(|error| format!("client: {error}"));
    // The server may wait for this, to be there as long as the client is.
    drop(server.stdin.take());
    if result.is_ok() {
        result = server
            .finish(deadline)
            .map_err(|error| format!("server: {error}"));
    }
    if let Err(error) = result {
        while let Ok(line) = server.output.try_recv() {
            server.lines.push(line);
        }
        return Err(format!(
            "{error}\n  server over {}:\n{}  client over {}:\n{}",
            names.0,
            server.state(),
            names.1,
            client.state()
        ));
    }
    Ok([
        Transcript {
            side: "server",
            library: names.0,
            peer: names.1,
            lines: std::mem::take(&mut server.lines),
        },
        Transcript {
            side: "client",
            library: names.1,
            peer: names.0,
            lines: std::mem::take(&mut client.lines),
        },
    ])
}
