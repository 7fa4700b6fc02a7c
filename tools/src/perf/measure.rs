//! The measuring itself, of one operation at one size, depth and number of connections.
//!
//! It is a closed loop: as many operations are under way on each connection as the depth says, and the
//! next one begins when one has completed. So a server that is slow slows the client down, and what
//! would have been asked for in the meantime is not in the figures. With a rate it is an open one: when
//! an operation should begin is fixed beforehand, and its latency counts from then, whether or not it
//! could begin.
//!
//! The figures are of the operations that began after the warm-up, all of them, and the time is that from
//! the first one's beginning to the last one's completion.

use super::operation::Operation;
use super::pattern::{Checked, Pattern};
use super::plan::Plan;
use super::{Failure, Stop};
use crate::rpma::{Completion, Connection, Event, FlushType, Kind, Region, Remote, readable};
use hdrhistogram::Histogram;
use std::time::{Duration, Instant};

/// How long everything may stand still.
pub const STALL: Duration = Duration::from_secs(10);
/// How often the user is told how far it is, and how long to wait before looking for what is wrong.
const TICK: Duration = Duration::from_millis(100);
/// How often the clock is looked at while nothing completes: once in that many times.
const LOOKS: u32 = 64;
/// Marks the completion of a receive; the rest of the context is the place.
const RECEIVED: u64 = 1 << 63;

/// When a measurement ends.
#[derive(Debug, Clone, Copy)]
pub enum Limit {
    Time(Duration),
    Operations(u64),
}

/// How it is measured.
#[derive(Debug, Clone, Copy)]
pub struct Method {
    pub limit: Limit,
    pub warm_up: Duration,
    /// Operations a second, of all connections together.
    pub rate: Option<f64>,
    /// Every which operation has a completion on success.
    pub signal_every: u32,
}

/// What was measured.
#[derive(Debug)]
pub struct Sample {
    /// In nanoseconds.
    pub latency: Histogram<u64>,
    pub operations: u64,
    pub elapsed: Duration,
    pub checked: Checked,
}

/// A connection, and what is under way on it.
#[derive(Debug)]
pub struct Lane {
    pub connection: Connection,
    /// Where the operations of this connection have their places, in the client's memory and in the
    /// server's.
    local: usize,
    remote: usize,
    /// Where replies come in, a place for each that is under way.
    replies: usize,
    began: Vec<Instant>,
    /// Operations since the connection was made: begun, completed, and answered by the server.
    posted: u64,
    completed: u64,
    replied: u64,
}

impl Lane {
    #[must_use]
    pub fn new(connection: Connection, index: usize, plan: &Plan) -> Self {
        let places = plan.depth as usize * plan.stride();
        let all = places * plan.connections as usize;
        Self {
            connection,
            local: index * places,
            remote: index * plan.server_places() as usize * plan.stride(),
            replies: all + index * places,
            began: vec![Instant::now(); plan.depth as usize],
            posted: 0,
            completed: 0,
            replied: 0,
        }
    }

    /// How many operations have begun since the connection was made.
    #[must_use]
    pub fn posted(&self) -> u64 {
        self.posted
    }

    /// How many are done with.
    fn done(&self, plan: &Plan) -> u64 {
        if plan.operation == Operation::PingPong {
            self.completed.min(self.replied)
        } else {
            self.completed
        }
    }

    fn has_room(&self, plan: &Plan) -> bool {
        self.posted - self.done(plan) < plan.depth.into()
    }
}

/// How much memory the client needs.
#[must_use]
pub fn client_memory(plan: &Plan) -> u64 {
    let places = u64::from(plan.connections) * u64::from(plan.depth);
    let replies = if plan.operation == Operation::PingPong {
        2
    } else {
        1
    };
    places
        .saturating_mul(plan.stride() as u64)
        .saturating_mul(replies)
}

/// A measurement under way.
#[derive(Debug)]
pub struct Measurement<'a> {
    plan: &'a Plan,
    method: &'a Method,
    region: &'a Region,
    remote: &'a Remote,
    lanes: Vec<Lane>,
    /// Whether what completes is part of the figures.
    recording: bool,
    /// How many operations have begun and completed since then.
    begun: u64,
    sample: Sample,
    /// When something completed last.
    last: Instant,
    completions: Vec<Completion>,
    bytes: Vec<u8>,
    scratch: Vec<u8>,
}

impl<'a> Measurement<'a> {
    /// Gets ready, with connections that are there.
    ///
    /// # Errors
    /// As the library says of the buffers for replies.
    pub fn new(
        plan: &'a Plan,
        method: &'a Method,
        region: &'a Region,
        remote: &'a Remote,
        lanes: Vec<Lane>,
    ) -> Result<Self, Failure> {
        let latency = Histogram::new(3).expect("three digits can be had");
        let sample = Sample {
            latency,
            operations: 0,
            elapsed: Duration::ZERO,
            checked: Checked::default(),
        };
        let made = Self {
            plan,
            method,
            region,
            remote,
            lanes,
            recording: false,
            begun: 0,
            sample,
            last: Instant::now(),
            completions: Vec::with_capacity(16),
            bytes: vec![0; plan.size()],
            scratch: Vec::with_capacity(plan.size()),
        };
        made.first_contents();
        made.post_replies()?;
        Ok(made)
    }

    /// Memory has contents, and is there, before the clock runs.
    fn first_contents(&self) {
        let mut bytes = vec![0; self.plan.size()];
        for (connection, lane) in self.lanes.iter().enumerate() {
            for place in 0..self.plan.depth as usize {
                self.pattern(connection, place as u64).fill(&mut bytes);
                let offset = place * self.plan.stride();
                self.region.memory().write(lane.local + offset, &bytes);
                if self.plan.operation == Operation::PingPong {
                    self.region
                        .memory()
                        .fill(lane.replies + offset, bytes.len(), 0);
                }
            }
        }
    }

    fn pattern(&self, connection: usize, number: u64) -> Pattern {
        Pattern {
            seed: self.plan.seed,
            connection,
            number,
        }
    }

    /// Posts the buffers for the first replies of each connection.
    fn post_replies(&self) -> Result<(), Failure> {
        if self.plan.operation == Operation::PingPong {
            for lane in &self.lanes {
                for place in 0..self.plan.depth as usize {
                    self.post_reply(lane, place)?;
                }
            }
        }
        Ok(())
    }

    fn post_reply(&self, lane: &Lane, place: usize) -> Result<(), Failure> {
        let to = (self.region, lane.replies + place * self.plan.stride());
        Ok(lane
            .connection
            .receive(to, self.plan.size(), RECEIVED | place as u64)?)
    }

    /// What was measured, and the connections.
    #[must_use]
    pub fn end(self) -> (Sample, Vec<Lane>) {
        (self.sample, self.lanes)
    }

    /// Measures, and tells ten times a second how far it is, once it counts. What was measured until
    /// then is there also where it fails.
    ///
    /// # Errors
    /// If the other side is lost, or the user does not want to go on: then what was under way has
    /// completed.
    pub fn run(
        &mut self,
        stop: &Stop,
        mut progress: impl FnMut(Option<f64>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let warm = Instant::now();
        let warm_up = Limit::Time(self.method.warm_up);
        self.go_on(stop, warm_up, warm, &mut |_| progress(None))?;
        stop.check()?;

        self.recording = true;
        self.begun = 0;
        let start = Instant::now();
        self.last = start;
        let limit = self.method.limit;
        let result = self.go_on(stop, limit, start, &mut |part| progress(Some(part)));
        self.sample.elapsed = self.last - start;
        result.and_then(|()| stop.check())
    }

    /// Begins operations until the limit is reached, and waits for all of them.
    fn go_on(
        &mut self,
        stop: &Stop,
        limit: Limit,
        start: Instant,
        progress: &mut impl FnMut(f64) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        // With a rate, all that is due in that time is done, however long it takes.
        let (until, most) = match (limit, self.method.rate) {
            (Limit::Operations(most), _) => (None, most),
            (Limit::Time(time), Some(rate)) => (None, (time.as_secs_f64() * rate).ceil() as u64),
            (Limit::Time(time), None) => (Some(start + time), u64::MAX),
        };
        let rate = self.method.rate;
        let due = |number: u64| {
            let after = |rate| Duration::from_secs_f64(number as f64 / rate);
            rate.map(|rate| start + after(rate))
        };
        self.begun = 0;
        let (mut now, mut moved, mut told) = (start, start, start);
        let (mut looks, mut ending) = (0, false);
        let open = self.method.rate.is_some();
        // Between operations of a connection of which only some complete, none can end.
        let every = u64::from(self.method.signal_every);
        loop {
            ending = ending
                || stop.wanted()
                || self.begun >= most
                || until.is_some_and(|until| now >= until);
            let mut idle = true;
            for index in 0..self.lanes.len() {
                while self.lanes[index].has_room(self.plan)
                    && (!ending || !self.lanes[index].posted.is_multiple_of(every))
                {
                    let began = match due(self.begun) {
                        Some(due) if due > now && !ending => break,
                        Some(due) => due.min(now),
                        None => now,
                    };
                    self.post(index, began)?;
                    idle = false;
                    if self.begun >= most {
                        ending = true;
                    }
                    if self.plan.depth == 1 && self.lanes.len() > 1 {
                        now = Instant::now();
                    }
                }
            }

            for index in 0..self.lanes.len() {
                idle &= !self.take(index)?;
            }
            looks += 1;
            if !idle || looks >= LOOKS || open {
                looks = 0;
                now = Instant::now();
                if !idle {
                    moved = now;
                }
            }
            let under_way = self
                .lanes
                .iter()
                .any(|lane| lane.posted > lane.done(self.plan));
            if ending && !under_way {
                return Ok(());
            }
            if idle {
                if now - moved > STALL && under_way {
                    let seconds = STALL.as_secs();
                    return Err(Failure::Lost(format!(
                        "nothing has completed for {seconds} s"
                    )));
                }
                if self.plan.events {
                    self.wait(now, until.or(due(self.begun)))?;
                    now = Instant::now();
                }
            }
            if now - told > TICK {
                told = now;
                if now - moved > TICK {
                    self.look_for_ends()?;
                }
                progress(match limit {
                    Limit::Time(time) => (now - start).as_secs_f64() / time.as_secs_f64(),
                    Limit::Operations(most) => self.begun as f64 / most as f64,
                })?;
            }
        }
    }

    /// Begins an operation on a connection.
    #[inline]
    fn post(&mut self, index: usize, began: Instant) -> Result<(), Failure> {
        let (plan, remote) = (self.plan, self.remote);
        let number = self.lanes[index].posted;
        let place = (number % u64::from(plan.depth)) as usize;
        let pattern = self.pattern(index, number);
        let (local, there) = {
            let lane = &self.lanes[index];
            let offset = place * plan.stride();
            (
                (self.region, lane.local + offset),
                (remote, lane.remote + offset),
            )
        };
        if plan.check {
            self.contents(pattern, local.1);
        }
        let lane = &mut self.lanes[index];
        lane.began[place] = if plan.check && self.method.rate.is_none() {
            // Making contents is not what is measured.
            Instant::now()
        } else {
            began
        };
        let signalled = (number + 1).is_multiple_of(self.method.signal_every.into());
        let (connection, size) = (&lane.connection, plan.size());
        match plan.operation {
            Operation::Read => connection.read(local, there, size, signalled, number),
            Operation::Write => connection.write(there, local, size, signalled, number),
            Operation::WriteWithImm => {
                let imm = pattern.imm();
                connection.write_with_imm(there, local, size, imm, signalled, number)
            }
            Operation::AtomicWrite => {
                let mut bytes = [0; 8];
                if plan.check {
                    bytes.copy_from_slice(&self.bytes[..8]);
                }
                connection.atomic_write(there, bytes, signalled, number)
            }
            Operation::FlushVisibility => {
                connection.flush(there, size, FlushType::Visibility, signalled, number)
            }
            Operation::FlushPersistent => {
                connection.flush(there, size, FlushType::Persistent, signalled, number)
            }
            Operation::WriteFlushVisibility | Operation::WriteFlushPersistent => {
                let how = match plan.operation {
                    Operation::WriteFlushPersistent => FlushType::Persistent,
                    _ => FlushType::Visibility,
                };
                connection
                    .write(there, local, size, false, number)
                    .and_then(|()| connection.flush(there, size, how, signalled, number))
            }
            Operation::Send | Operation::PingPong => {
                connection.send(local, size, None, signalled, number)
            }
            Operation::SendWithImm => {
                connection.send(local, size, Some(pattern.imm()), signalled, number)
            }
        }?;
        lane.posted += 1;
        self.begun += 1;
        Ok(())
    }

    /// Gives an operation contents of its own; the place for a read something else.
    fn contents(&mut self, pattern: Pattern, offset: usize) {
        if self.plan.operation == Operation::Read {
            self.region
                .memory()
                .fill(offset, self.plan.size(), !pattern.number as u8);
        } else {
            pattern.fill(&mut self.bytes);
            self.region.memory().write(offset, &self.bytes);
        }
    }

    /// Takes what has completed on a connection; whether anything has.
    #[inline]
    fn take(&mut self, index: usize) -> Result<bool, Failure> {
        let mut completions = std::mem::take(&mut self.completions);
        let result = self.lanes[index].connection.completions(&mut completions);
        let any = !completions.is_empty();
        let mut outcome = result.map_err(Failure::from);
        if any && outcome.is_ok() {
            let now = Instant::now();
            self.last = now;
            for completion in &completions {
                outcome = self.completed(index, completion, now);
                if outcome.is_err() {
                    break;
                }
            }
        }
        self.completions = completions;
        outcome.map(|()| any)
    }

    #[inline]
    fn completed(
        &mut self,
        index: usize,
        completion: &Completion,
        now: Instant,
    ) -> Result<(), Failure> {
        if let Some(why) = completion.failure() {
            return Err(self.broken(index, &why));
        }
        let depth = u64::from(self.plan.depth);
        if completion.kind == Kind::Receive {
            let place = (completion.context & !RECEIVED) as usize;
            let number = self.lanes[index].replied;
            self.lanes[index].replied += 1;
            let began = self.lanes[index].began[(number % depth) as usize];
            self.record(now.saturating_duration_since(began) / 2);
            if self.plan.check {
                let offset = self.lanes[index].replies + place * self.plan.stride();
                self.compare(index, number, offset, completion.len as usize);
            }
            return self.post_reply(&self.lanes[index], place);
        }
        // Those before it have completed too, whether or not they say so.
        let first = self.lanes[index].completed;
        let number = completion.context;
        self.lanes[index].completed = number + 1;
        if self.plan.operation != Operation::PingPong {
            let began = self.lanes[index].began[(number % depth) as usize];
            self.record(now.saturating_duration_since(began));
            if self.recording {
                self.sample.operations += number - first;
            }
        }
        if self.plan.check && self.plan.operation == Operation::Read {
            for number in first..=number {
                let place = (number % depth) as usize * self.plan.stride();
                let offset = self.lanes[index].local + place;
                self.compare(index, number % depth, offset, self.plan.size());
            }
        }
        Ok(())
    }

    /// One operation is done, and took that long.
    #[inline]
    fn record(&mut self, latency: Duration) {
        if self.recording {
            self.sample.operations += 1;
            // It grows as needed: no value is too large.
            let nanoseconds = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX / 2);
            let _ = self.sample.latency.record(nanoseconds.max(1));
        }
    }

    fn compare(&mut self, connection: usize, number: u64, offset: usize, len: usize) {
        self.bytes.resize(self.plan.size(), 0);
        self.region.memory().read(offset, &mut self.bytes);
        let size = self.plan.size();
        let wrong = if len == size {
            let pattern = self.pattern(connection, number);
            let at = pattern.difference(&self.bytes, &mut self.scratch);
            at.map(|at| format!("at byte {at} of {size}"))
        } else {
            Some(format!("{len} bytes instead of {size}"))
        };
        let what = |wrong| format!("what has come on connection {connection} differs {wrong}");
        self.sample.checked.note(wrong.map(what));
    }

    /// Why an operation has failed: because the other side has gone, or for a reason of its own.
    fn broken(&self, index: usize, why: &str) -> Failure {
        let event = self.lanes[index]
            .connection
            .event(Duration::from_millis(500));
        match event {
            Ok(Some(Event::Closed)) => Failure::lost("it has closed the connection"),
            Ok(Some(Event::Lost)) => Failure::Lost(format!("the connection is broken: {why}")),
            _ => Failure::Lost(why.to_owned()),
        }
    }

    /// A device may take long to find out that nobody answers any more; a connection may know.
    fn look_for_ends(&self) -> Result<(), Failure> {
        for lane in &self.lanes {
            match lane.connection.event(Duration::ZERO)? {
                None | Some(Event::Established) => {}
                Some(Event::Closed) => return Err(Failure::lost("it has closed the connection")),
                Some(_) => return Err(Failure::lost("the connection is broken")),
            }
        }
        Ok(())
    }

    /// Waits until something completes or it is time for something else.
    fn wait(&self, now: Instant, until: Option<Instant>) -> Result<(), Failure> {
        let limit = until.map_or(TICK, |until| until.saturating_duration_since(now).min(TICK));
        let connections = self.lanes.iter().map(|lane| &lane.connection);
        let fds: Vec<_> = connections
            .clone()
            .map(Connection::completion_fd)
            .collect::<Result<_, _>>()?;
        for (connection, ready) in connections.zip(readable(&fds, limit)) {
            if ready {
                connection.acknowledge()?;
            }
        }
        Ok(())
    }
}

/// What looking at the clock twice takes, which is part of every latency.
#[must_use]
pub fn clock_cost() -> Duration {
    let mut least = Duration::MAX;
    for _ in 0..16 {
        let start = Instant::now();
        for _ in 0..256 {
            std::hint::black_box(Instant::now());
        }
        least = least.min(start.elapsed() / 256);
    }
    least
}
