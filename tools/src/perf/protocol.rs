//! What client and server say to each other over a connection of their own, before and after each
//! measurement: JSON, one message at a time, each answered but for signs of life. Whatever comes is
//! judged before use.

use super::plan::Plan;
use super::side::Side;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

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
