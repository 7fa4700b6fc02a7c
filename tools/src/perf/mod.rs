//! rpma-perf: latency and bandwidth of the operations of librpma.
//!
//! The client measures; the server has the memory, and receives. What one measurement needs they agree
//! upon over a connection of their own, see [`protocol`].

pub mod arguments;
pub mod channel;
pub mod client;
pub mod compare;
pub mod measure;
pub mod operation;
pub mod pattern;
pub mod plan;
pub mod plot;
pub mod protocol;
pub mod report;
pub mod server;
pub mod side;
pub mod table;

use crate::rpma;
use std::fmt::{self, Display, Formatter};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Why something did not work out.
#[derive(Debug)]
pub enum Failure {
    /// The user does not want it any more.
    Interrupted,
    /// The other side has closed the connection.
    Closed,
    /// The other side does not want the connection.
    Rejected,
    /// Nothing says whether there is another side.
    Unreachable,
    /// There is no other side, as is said.
    Absent(String),
    /// The other side is not there any more, or not as it should be.
    Lost(String),
    /// The other side says why it does not do what it was asked for.
    Refused(String),
    Library(rpma::Error),
    System(io::Error),
    /// What has come is not what was sent.
    Mismatch(String),
}

impl Failure {
    #[must_use]
    pub fn lost(why: &str) -> Self {
        Self::Lost(why.to_owned())
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interrupted => write!(f, "interrupted"),
            Self::Closed => write!(f, "the other side has closed the connection"),
            Self::Rejected => write!(f, "the connection was rejected"),
            Self::Unreachable => write!(f, "the other side can't be reached"),
            Self::Absent(why) => f.write_str(why),
            Self::Lost(why) => write!(f, "the other side is lost: {why}"),
            Self::Refused(why) => write!(f, "refused: {why}"),
            Self::Library(error) => error.fmt(f),
            Self::System(error) => error.fmt(f),
            Self::Mismatch(what) => write!(f, "contents differ: {what}"),
        }
    }
}

impl From<rpma::Error> for Failure {
    fn from(error: rpma::Error) -> Self {
        Self::Library(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

/// Whether the user wants it to end: set by SIGINT and SIGTERM.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    wanted: Arc<AtomicBool>,
    /// By which signal.
    signal: Arc<AtomicUsize>,
}

impl Stop {
    /// # Errors
    /// If the signals can't be had.
    pub fn on_signals() -> io::Result<Self> {
        let stop = Self::default();
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            // Whoever asks twice does not want to wait for an orderly end.
            let status = 128 + signal;
            let wanted = || Arc::clone(&stop.wanted);
            signal_hook::flag::register_conditional_shutdown(signal, status, wanted())?;
            signal_hook::flag::register_usize(signal, Arc::clone(&stop.signal), signal as usize)?;
            signal_hook::flag::register(signal, wanted())?;
        }
        Ok(stop)
    }

    #[must_use]
    pub fn wanted(&self) -> bool {
        // The handler writes which signal it was first: whoever sees this sees that.
        self.wanted.load(Ordering::Acquire)
    }

    /// What shells say of a program that the signal has ended.
    #[must_use]
    pub fn status(&self) -> u8 {
        // Relaxed: whoever asks has seen that the stop is wanted, which orders it.
        128 + self.signal.load(Ordering::Relaxed) as u8
    }

    /// # Errors
    /// If it is wanted.
    pub fn check(&self) -> Result<(), Failure> {
        if self.wanted() {
            Err(Failure::Interrupted)
        } else {
            Ok(())
        }
    }
}

/// `1 connection`, `2 connections`.
#[must_use]
pub fn count(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}
