//! What is measured, as client and server agree upon it.

use super::count;
use super::operation::Operation;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display, Formatter};

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
