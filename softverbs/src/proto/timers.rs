//! Until when a connection waits for what.

use std::time::{Duration, Instant};

/// What a connection can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timer {
    /// An acknowledgement waits for an answer of the program to go with.
    Ack,
    /// The other side is to answer a request to connect, or to ask for a connection.
    Handshake,
    /// Nobody listened at the other side; perhaps somebody does now.
    Open,
    /// The other side may have posted a receive by now.
    Rnr,
    /// The other side does nothing any more: requests that it has not answered fail.
    PeerFailed,
    /// The other side is to confirm that the connection ends.
    Disconnect,
    /// `RDMA_CM_EVENT_TIMEWAIT_EXIT`.
    Timewait,
    /// What is left to be sent after the program has destroyed the id is given up.
    Linger,
}

pub const ALL: [Timer; 8] = [
    Timer::Ack,
    Timer::Handshake,
    Timer::Open,
    Timer::Rnr,
    Timer::PeerFailed,
    Timer::Disconnect,
    Timer::Timewait,
    Timer::Linger,
];

/// As long as connection management of InfiniBand tries: 15 retries of about 4 s.
pub const CONNECT_TIME: Duration = Duration::from_secs(60);
/// A stranger on a listening port is given so long to ask for a connection. It costs a descriptor.
pub const GREETING_TIME: Duration = Duration::from_secs(10);
/// So long the last answers of a side that has failed are waited for. They are on their way already.
pub const PEER_FAILED_TIME: Duration = Duration::from_millis(500);
/// As long as the other side of a disconnect may take to answer it.
pub const DISCONNECT_TIME: Duration = Duration::from_secs(60);
/// From the end of a connection to `RDMA_CM_EVENT_TIMEWAIT_EXIT`; a NIC takes about as long.
pub const TIMEWAIT_TIME: Duration = Duration::from_secs(1);
/// So long what is left to be sent is tried to be sent after the program has destroyed the id.
pub const LINGER_TIME: Duration = Duration::from_secs(5);

/// The deadline of each timer that runs.
#[derive(Debug, Default)]
pub struct Timers {
    at: [Option<Instant>; ALL.len()],
}

impl Timers {
    pub fn set(&mut self, timer: Timer, at: Instant) {
        self.at[timer as usize] = Some(at);
    }

    pub fn clear(&mut self, timer: Timer) {
        self.at[timer as usize] = None;
    }

    pub fn clear_all(&mut self) {
        self.at = Default::default();
    }

    pub fn is_set(&self, timer: Timer) -> bool {
        self.at[timer as usize].is_some()
    }

    #[cfg(test)]
    pub fn at(&self, timer: Timer) -> Option<Instant> {
        self.at[timer as usize]
    }

    /// The next deadline.
    pub fn next(&self) -> Option<Instant> {
        self.at.iter().flatten().min().copied()
    }

    /// Stops one that is due and returns it.
    pub fn pop_due(&mut self, now: Instant) -> Option<Timer> {
        let due = ALL
            .into_iter()
            .find(|timer| self.at[*timer as usize].is_some_and(|at| at <= now))?;
        self.clear(due);
        Some(due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Compared with a map from timers to deadlines: none is early, none is late, none comes twice.
        #[test]
        fn each_is_due_once_and_at_its_time(
            calls in prop::collection::vec((0..5_u8, 0..ALL.len(), 0..40_u64), 0..100),
        ) {
            let start = Instant::now();
            let mut timers = Timers::default();
            let mut model: BTreeMap<usize, u64> = BTreeMap::new();
            let mut now = 0;
            for (call, timer, ms) in calls {
                match call {
                    0 | 1 => {
                        timers.set(ALL[timer], start + Duration::from_millis(now + ms));
                        model.insert(timer, now + ms);
                    }
                    2 => {
                        timers.clear(ALL[timer]);
                        model.remove(&timer);
                    }
                    3 if timer == 0 && ms == 0 => {
                        timers.clear_all();
                        model.clear();
                    }
                    _ => {
                        now += ms;
                        while let Some(due) = timers.pop_due(start + Duration::from_millis(now)) {
                            let at = model.remove(&(due as usize));
                            prop_assert!(at.is_some_and(|at| at <= now), "{:?} at {:?}", due, at);
                        }
                        prop_assert!(model.values().all(|at| *at > now), "{:?} at {}", model, now);
                    }
                }
                for (i, timer) in ALL.into_iter().enumerate() {
                    prop_assert_eq!(timer as usize, i);
                    prop_assert_eq!(timers.is_set(timer), model.contains_key(&i));
                }
                let next = model.values().min().map(|ms| start + Duration::from_millis(*ms));
                prop_assert_eq!(timers.next(), next);
            }
        }
    }
}
