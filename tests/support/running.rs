//! A program that runs beside a test.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// What it prints, to either stream, comes line by line. It does not outlive this.
pub struct Running {
    pub what: String,
    pub seen: Vec<String>,
    pub since: Instant,
    pub child: Child,
    lines: Receiver<String>,
}

impl Running {
    pub fn start(command: &mut Command) -> Self {
        let what = format!("{command:?}");
        let (output, input) = std::io::pipe().unwrap();
        let child = command
            .stdout(input.try_clone().unwrap())
            .stderr(input)
            .spawn()
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        // The command keeps the ends of the pipe that the program has.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let pid = child.id();
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                let _ = sender.send(String::from_utf8_lossy(&line).into_owned());
            }
            // Who sees the channel end can collect the status at once.
            // SAFETY: waitid() fills in the zeroed info; it leaves the child to be waited for.
            unsafe {
                let mut info = std::mem::zeroed();
                libc::waitid(libc::P_PID, pid, &mut info, libc::WEXITED | libc::WNOWAIT);
            }
            drop(sender);
        });
        Running {
            what,
            seen: Vec::new(),
            since: Instant::now(),
            child,
            lines,
        }
    }

    /// The next line; `None` if the program has ended.
    pub fn next(&mut self, within: Duration) -> Result<Option<String>, RecvTimeoutError> {
        match self.lines.recv_timeout(within) {
            Ok(line) => {
                self.seen.push(line.clone());
                Ok(Some(line))
            }
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(timeout) => Err(timeout),
        }
    }

    pub fn status(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: a signal to a child that has not been waited for.
        let sent = unsafe { libc::kill(self.child.id() as i32, signal) };
        assert_eq!(sent, 0, "{}", self.what);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
