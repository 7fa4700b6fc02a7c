//! What client and server say to each other over a connection of their own, before and after each
//! measurement: JSON, one message at a time, each answered but for signs of life. Whatever comes is
//! judged before use.

use super::count;
use super::operation::Operation;
use super::report::Side;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display, Formatter};

/// Changed whenever a message changes its meaning.
pub const PROTOCOL: u32 = 2;
/// How long a message is at most.
pub const MESSAGE: usize = 16 << 10;

/// What comes with a request for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To talk.
    Control,
    /// To measure over, as agreed under that number.
    Data(u64),
}

const MAGIC: &[u8; 9] = b"rpma-perf";

impl Purpose {
    #[must_use]
    pub fn encode(self) -> Vec<u8> {
        let (kind, token) = match self {
            Self::Control => (b'c', 0),
            Self::Data(token) => (b'd', token),
        };
        [&MAGIC[..], &[kind], &token.to_le_bytes()].concat()
    }

    /// None if it is of another program. Devices fill up with zeros.
    #[must_use]
    pub fn decode(private_data: &[u8]) -> Option<Self> {
        let (kind, rest) = private_data.strip_prefix(MAGIC)?.split_first()?;
        let token = u64::from_le_bytes(*rest.first_chunk()?);
        match kind {
            b'c' if token == 0 => Some(Self::Control),
            b'd' => Some(Self::Data(token)),
            _ => None,
        }
    }
}

/// What the client asks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// The first message. What follows the number may differ between versions.
    Hello { protocol: u32 },
    /// Nothing: the client is there, and measures. It is not answered.
    Alive,
    /// To get ready for a measurement.
    Prepare(Plan),
    /// What was done on each connection, when all of it has completed.
    Finish { operations: Vec<u64> },
}

/// What the server answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    Welcome {
        protocol: u32,
        persistent: Option<String>,
        side: Box<Side>,
    },
    Ready {
        token: u64,
        region: Vec<u8>,
        peer_config: Vec<u8>,
    },
    Finished {
        operations: u64,
        mismatches: u64,
        first: Option<String>,
    },
    Refused {
        why: String,
    },
}

/// A measurement that both sides have to know about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub operation: Operation,
    /// In bytes.
    pub size: u64,
    /// How many operations are under way at once on a connection.
    pub depth: u32,
    pub connections: u32,
    /// Wait for events rather than poll.
    pub events: bool,
    /// Have the server poll also where its program takes no part.
    pub server_polls: bool,
    /// Compare contents.
    pub check: bool,
    pub seed: u64,
}

pub const MAX_SIZE: u64 = 1 << 30;
pub const MAX_DEPTH: u32 = 16 << 10;
pub const MAX_CONNECTIONS: u32 = 1024;

impl Plan {
    /// What is out of range, if anything is.
    ///
    /// # Errors
    /// Says what.
    pub fn validate(&self) -> Result<(), String> {
        let ranges = [
            ("size", self.size, MAX_SIZE),
            ("depth", self.depth.into(), MAX_DEPTH.into()),
            (
                "connections",
                self.connections.into(),
                MAX_CONNECTIONS.into(),
            ),
        ];
        for (name, value, most) in ranges {
            if !(1..=most).contains(&value) {
                return Err(format!("{name} {value} is not within 1 and {most}"));
            }
        }
        if self.operation == Operation::AtomicWrite && self.size != 8 {
            return Err(format!("an atomic write is of 8 bytes, not {}", self.size));
        }
        Ok(())
    }

    #[must_use]
    pub fn size(&self) -> usize {
        self.size as usize
    }

    /// From one place in memory to the next: they share no line of the cache.
    #[must_use]
    pub fn stride(&self) -> usize {
        self.size().next_multiple_of(64)
    }

    /// How many buffers for messages the server has posted at a time: more than can be under way, so
    /// that a server that is late has some left. Without one, a device waits for as long as it takes
    /// to do thousands of operations.
    #[must_use]
    pub fn receives(&self) -> u32 {
        const MEMORY: usize = 4 << 20;
        const MOST: u32 = 512;
        if !self.operation.is_received() {
            return 0;
        }
        let room = u32::try_from(MEMORY / self.stride().max(1)).unwrap_or(MOST);
        self.depth.saturating_add(room.min(MOST).max(self.depth))
    }

    /// How many places of a connection the server has.
    #[must_use]
    pub fn server_places(&self) -> u32 {
        if self.operation.is_message() {
            self.receives()
        } else {
            self.depth
        }
    }

    /// How much memory the server needs.
    #[must_use]
    pub fn server_memory(&self) -> u64 {
        let places = u64::from(self.connections) * u64::from(self.server_places());
        places.saturating_mul(self.stride() as u64)
    }
}

/// A message as it is sent.
///
/// # Errors
/// If it is longer than messages may be.
pub fn encode<M: Serialize>(message: &M) -> Result<Vec<u8>, String> {
    let text = serde_json::to_vec(message).map_err(|error| error.to_string())?;
    if text.len() > MESSAGE {
        return Err(format!("a message of {} bytes is too long", text.len()));
    }
    Ok(text)
}

/// What a message says.
///
/// # Errors
/// If it says nothing that is understood.
pub fn decode<M: DeserializeOwned>(bytes: &[u8]) -> Result<M, String> {
    serde_json::from_slice(bytes).map_err(|error| format!("not understood: {error}"))
}

impl Display for Plan {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (bytes, connections) = (
            count(self.size, "byte"),
            count(self.connections.into(), "connection"),
        );
        write!(
            f,
            "{} of {bytes}, depth {}, {connections}",
            self.operation, self.depth
        )
    }
}
