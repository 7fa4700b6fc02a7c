//! What is measured.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display, Formatter};

/// An operation, or a few that belong together.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    Read,
    Write,
    WriteWithImm,
    AtomicWrite,
    FlushVisibility,
    FlushPersistent,
    WriteFlushVisibility,
    WriteFlushPersistent,
    Send,
    SendWithImm,
    PingPong,
}

impl Operation {
    /// As it is called on the command line and in files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::WriteWithImm => "write-with-imm",
            Self::AtomicWrite => "atomic-write",
            Self::FlushVisibility => "flush-visibility",
            Self::FlushPersistent => "flush-persistent",
            Self::WriteFlushVisibility => "write-flush-visibility",
            Self::WriteFlushPersistent => "write-flush-persistent",
            Self::Send => "send",
            Self::SendWithImm => "send-with-imm",
            Self::PingPong => "ping-pong",
        }
    }

    /// What it does.
    #[must_use]
    pub fn about(self) -> &'static str {
        match self {
            Self::Read => "Read from the server's memory",
            Self::Write => "Write to the server's memory",
            Self::WriteWithImm => "Write, and complete a receive of the server with a number",
            Self::AtomicWrite => "Write 8 bytes at once, whatever the sizes",
            Self::FlushVisibility => "Flush memory of the server that was not written before",
            Self::FlushPersistent => "As flush-visibility, to persistence",
            Self::WriteFlushVisibility => "Write and flush to visibility, as one",
            Self::WriteFlushPersistent => "Write and flush to persistence, as one",
            Self::Send => "Send a message to the server",
            Self::SendWithImm => "Send a message with a number",
            Self::PingPong => "Send a message that the server sends back",
        }
    }

    /// What its latency is the time of.
    #[must_use]
    pub fn latency_of(self) -> &'static str {
        match self {
            Self::PingPong => "half of the round trip",
            Self::WriteFlushVisibility | Self::WriteFlushPersistent => {
                "the write posted to the flush completed"
            }
            _ => "posting to completion",
        }
    }

    /// Whether the server needs persistent memory for it.
    #[must_use]
    pub fn is_persistent(self) -> bool {
        matches!(self, Self::FlushPersistent | Self::WriteFlushPersistent)
    }

    /// Whether it ends with a flush.
    #[must_use]
    pub fn flushes(self) -> bool {
        matches!(
            self,
            Self::FlushVisibility
                | Self::FlushPersistent
                | Self::WriteFlushVisibility
                | Self::WriteFlushPersistent
        )
    }

    /// Whether the server's program has to receive something.
    #[must_use]
    pub fn is_received(self) -> bool {
        self.is_message() || self == Self::WriteWithImm
    }

    /// Whether it goes into a buffer that the server has posted.
    #[must_use]
    pub fn is_message(self) -> bool {
        matches!(self, Self::Send | Self::SendWithImm | Self::PingPong)
    }

    /// Whether it changes the server's memory at an address of the client's choice.
    #[must_use]
    pub fn writes(self) -> bool {
        matches!(
            self,
            Self::Write
                | Self::WriteWithImm
                | Self::AtomicWrite
                | Self::WriteFlushVisibility
                | Self::WriteFlushPersistent
        )
    }

    /// Whether it has a payload: a flush alone has none.
    #[must_use]
    pub fn moves_bytes(self) -> bool {
        !matches!(self, Self::FlushVisibility | Self::FlushPersistent)
    }

    /// How many requests it takes in the send queue.
    #[must_use]
    pub fn requests(self) -> u32 {
        match self {
            Self::WriteFlushVisibility | Self::WriteFlushPersistent => 2,
            _ => 1,
        }
    }
}

impl Display for Operation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
