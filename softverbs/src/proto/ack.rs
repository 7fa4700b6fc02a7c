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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug)]
    enum Call {
        Owe,
        Answered,
        Missed,
        Sent,
    }

    proptest! {
        /// It waits if the last eight messages, or more, were each answered before the next came,
        /// none too late, and this one has not been.
        #[test]
        fn waits_where_programs_take_turns(
            calls in prop::collection::vec(
                prop::sample::select(vec![
                    Call::Owe, Call::Answered, Call::Owe, Call::Answered, Call::Owe, Call::Answered,
                    Call::Owe, Call::Answered, Call::Owe, Call::Answered, Call::Sent, Call::Missed,
                ]),
                0..60,
            ),
            turns in 0..12_u32,
        ) {
            let mut ack = Ack::default();
            // Whether each message was answered before the next, since one was not, or too late.
            let mut answered: Vec<bool> = vec![];
            let mut owed = None;
            let begin = (0..turns).flat_map(|_| [Call::Owe, Call::Answered]);
            for (seq, call) in begin.chain(calls).enumerate() {
                let seq = seq as u32;
                match call {
                    Call::Owe => {
                        ack.owe(seq);
                        owed = Some(seq);
                        if answered.last() == Some(&false) {
                            answered.clear();
                        }
                        answered.push(false);
                    }
                    Call::Answered => {
                        ack.answered();
                        if let Some(last) = answered.last_mut() {
                            *last = true;
                        }
                    }
                    Call::Missed => {
                        ack.missed();
                        let last = answered.pop();
                        answered.clear();
                        answered.extend(last.filter(|last| !last));
                    }
                    Call::Sent => {
                        ack.sent();
                        owed = None;
                    }
                }
                let before = answered.len().saturating_sub(1);
                let waits = answered.last() == Some(&false) && before >= TURNS.into();
                prop_assert_eq!(ack.expects_answer(), waits, "after {:?}", call);
                prop_assert_eq!(ack.owed(), owed);
            }
        }
    }
}
