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
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// It waits if the last eight messages, or more, were each answered before the next came and
        /// in half of the longest delay, none was missed, and this one has not been answered. It waits
        /// at least twice as long as the last answer took, within the bounds.
        #[test]
        fn waits_where_programs_take_turns(
            calls in prop::collection::vec(
                (
                    prop::sample::select(vec![
                        Call::Owe, Call::Answered, Call::Owe, Call::Answered, Call::Owe,
                        Call::Answered, Call::Owe, Call::Answered, Call::Sent, Call::Missed,
                    ]),
                    prop::sample::select(vec![0, 1, 20, 80, 300, 499, 500, 501, 2000]),
                ),
                0..60,
            ),
            turns in 0..12_u32,
        ) {
            let mut ack = Ack::default();
            // When each message came and whether it was answered, of those that count.
            let mut messages: Vec<(Instant, bool)> = vec![];
            let mut took = Duration::ZERO;
            let mut owed = None;
            let mut now = Instant::now();
            let begin = (0..turns).flat_map(|_| [(Call::Owe, 10), (Call::Answered, 10)]);
            for (seq, (call, micros)) in begin.chain(calls).enumerate() {
                now += Duration::from_micros(micros);
                let seq = seq as u32;
                match call {
                    Call::Owe => {
                        ack.owe(seq, now);
                        owed = Some(seq);
                        if messages.last().is_some_and(|(_, answered)| !answered) {
                            messages.clear();
                        }
                        messages.push((now, false));
                    }
                    Call::Answered => {
                        ack.answered(now);
                        if let Some((since, answered @ false)) = messages.last_mut() {
                            *answered = true;
                            took = now - *since;
                            if took > LONGEST_DELAY / 2 {
                                messages.clear();
                            }
                        }
                    }
                    Call::Missed => {
                        ack.missed();
                        let last = messages.pop();
                        messages.clear();
                        messages.extend(last.filter(|(_, answered)| !answered));
                    }
                    Call::Sent => {
                        ack.sent();
                        owed = None;
                    }
                }
                prop_assert_eq!(ack.owed(), owed);
                let before = messages.len().saturating_sub(1);
                match (messages.last(), ack.wait_until()) {
                    (Some((since, false)), Some(until)) if before >= TURNS.into() => {
                        let least = (took * 2).clamp(SHORTEST_DELAY, LONGEST_DELAY);
                        prop_assert!(until >= *since + least, "after {:?}", call);
                        prop_assert!(until <= *since + LONGEST_DELAY, "after {:?}", call);
                    }
                    (last, until) => {
                        let waits = last.is_some_and(|(_, answered)| !answered);
                        prop_assert!(!waits || before < TURNS.into(), "after {:?}", call);
                        prop_assert_eq!(until, None, "after {:?}", call);
                    }
                }
            }
        }
    }
}
