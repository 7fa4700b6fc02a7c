//! When messages are acknowledged.
//!
//! A message is acknowledged when it has been carried out. Where the two programs take turns, the
//! answer of this one is about to be sent, and the acknowledgement costs nothing if it goes with
//! it: both sides save a system call and a wakeup, of four each. So it waits for the answer, but not
//! longer than [`ACK_DELAY`].

use std::time::Duration;

/// So long an acknowledgement waits for the program's answer at most. A program that polls answers
/// in 2 µs, one that has to be woken in 20.
pub const ACK_DELAY: Duration = Duration::from_micros(50);
/// After so many messages, each answered by the program before the next came, it is expected to
/// answer once more. One that it does not answer in time makes it start again.
const TURNS: u8 = 8;

#[derive(Debug, Default)]
pub struct Ack {
    /// The last message that has been carried out and not been acknowledged.
    owed: Option<u32>,
    /// How many messages in a row the program has answered.
    turns: u8,
    /// A message has come since the program posted something.
    unanswered: bool,
}

impl Ack {
    /// A message has been carried out.
    pub fn owe(&mut self, seq: u32) {
        self.owed = Some(seq);
        if std::mem::replace(&mut self.unanswered, true) {
            self.turns = 0;
        }
    }

    pub fn owed(&self) -> Option<u32> {
        self.owed
    }

    /// It goes with what is being sent.
    pub fn sent(&mut self) {
        self.owed = None;
    }

    /// The program has posted something.
    pub fn answered(&mut self) {
        if std::mem::take(&mut self.unanswered) {
            self.turns = (self.turns + 1).min(TURNS);
        }
    }

    /// The program did not answer in time.
    pub fn missed(&mut self) {
        self.turns = 0;
    }

    /// Whether the program is expected to answer at once.
    pub fn expects_answer(&self) -> bool {
        self.unanswered && self.turns == TURNS
    }
}
