//! When messages are acknowledged.
//!
//! A message is acknowledged when it has been carried out. Where the two programs take turns, the
//! answer of this one is about to be sent, and the acknowledgement costs nothing if it goes with
//! it: both sides save a system call and a wakeup, of four each. So it waits for the answer: for
//! twice as long as answers took of late, from [`SHORTEST_DELAY`] to [`LONGEST_DELAY`].

use std::time::{Duration, Instant};

/// A program that polls answers in 2 µs, and one that has to be woken in 20. Each delay is looked at once:
/// that costs less, the longer it is, as long as the answers come.
pub const SHORTEST_DELAY: Duration = Duration::from_micros(200);
/// The sender of a message that is not answered waits so long for its completion, once. It is as long
/// as the thread of the reactor may take to look at a deadline.
pub const LONGEST_DELAY: Duration = Duration::from_millis(1);
/// After so many messages, each answered by the program before the next came, it is expected to
/// answer once more. One that it does not answer in time makes it start again.
const TURNS: u8 = 8;

#[derive(Debug, Default)]
pub struct Ack {
    /// The last message that has been carried out and not been acknowledged.
    owed: Option<u32>,
    /// How many messages in a row the program has answered in time.
    turns: u8,
    /// When a message came that the program has not answered.
    unanswered: Option<Instant>,
    /// How long the slowest of the last answers took.
    slowest: Duration,
}

impl Ack {
    /// A message has been carried out.
    pub fn owe(&mut self, seq: u32, now: Instant) {
        self.owed = Some(seq);
        if self.unanswered.replace(now).is_some() {
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
    pub fn answered(&mut self, now: Instant) {
        let Some(since) = self.unanswered.take() else {
            return;
        };
        let took = now.saturating_duration_since(since);
        // What was slower before is forgotten in the course of some turns.
        self.slowest = took.max(self.slowest - self.slowest / 8);
        self.turns = if took <= LONGEST_DELAY / 2 {
            (self.turns + 1).min(TURNS)
        } else {
            0
        };
    }

    /// The program did not answer in time.
    pub fn missed(&mut self) {
        self.turns = 0;
    }

    /// Until when to wait for the answer to the last message, if the program is expected to answer
    /// soon.
    pub fn wait_until(&self) -> Option<Instant> {
        let delay = (self.slowest * 2).clamp(SHORTEST_DELAY, LONGEST_DELAY);
        (self.turns == TURNS).then_some(self.unanswered? + delay)
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
            let start = Instant::now();
            // Whether each message was answered before the next, since one was not, or too late.
            let mut answered: Vec<bool> = vec![];
            let mut owed = None;
            let begin = (0..turns).flat_map(|_| [Call::Owe, Call::Answered]);
            for (seq, call) in begin.chain(calls).enumerate() {
                // Answers come soon.
                let now = start + Duration::from_micros(seq as u64);
                let seq = seq as u32;
                match call {
                    Call::Owe => {
                        ack.owe(seq, now);
                        owed = Some(seq);
                        if answered.last() == Some(&false) {
                            answered.clear();
                        }
                        answered.push(false);
                    }
                    Call::Answered => {
                        ack.answered(now);
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
                prop_assert_eq!(ack.wait_until().is_some(), waits, "after {:?}", call);
                prop_assert_eq!(ack.owed(), owed);
            }
        }
    }
}
