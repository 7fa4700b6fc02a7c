//! The connection over which client and server talk.

use super::protocol::{Ask, MESSAGE, decode, encode};
use super::{Failure, Stop};
use crate::rpma::{
    Backing, Completion, Connection, Event, Kind, Memory, Peer, Region, Request, Usage, readable,
    sys,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// How many requests a connection to talk needs in each queue.
pub const QUEUE: u32 = 8;
/// Where messages come in, and where one is sent from.
const BUFFERS: usize = 2;
const OUT: usize = BUFFERS * MESSAGE;
/// How many messages may wait: each is answered before the next one comes.
const UNREAD: usize = 4;
/// How often the other side is shown that this one is there.
const SIGN: Duration = Duration::from_secs(1);
/// What completions are of: a message that has come has the number of its buffer.
const SENT: u64 = 100;
const PROBED: u64 = 101;

#[derive(Debug)]
pub struct Channel {
    connection: Connection,
    region: Region,
    completions: Vec<Completion>,
    /// Messages that were not asked for yet.
    messages: Vec<Vec<u8>>,
    sending: bool,
    probing: bool,
    signed: Instant,
}

impl Channel {
    /// Makes a connection of a request, and waits until it is there.
    ///
    /// # Errors
    /// If it does not come about.
    pub fn new(
        peer: &Peer,
        request: Request,
        private_data: &[u8],
        limit: Duration,
        stop: &Stop,
    ) -> Result<Self, Failure> {
        let memory = Memory::new(OUT + MESSAGE, Backing::Dram, 1)?;
        let usage = Usage(sys::RPMA_MR_USAGE_SEND | sys::RPMA_MR_USAGE_RECV);
        let region = Region::new(peer, memory, usage)?;
        for buffer in 0..BUFFERS {
            request.receive(&region, buffer * MESSAGE, MESSAGE, buffer as u64)?;
        }
        let connection = request.connect(private_data)?;
        established(&connection, limit, stop)?;
        Ok(Self {
            connection,
            region,
            completions: vec![],
            messages: vec![],
            sending: false,
            probing: false,
            signed: Instant::now(),
        })
    }

    /// Whether either of these can be read, [`Self::check`] has something to do.
    ///
    /// # Errors
    /// As the library says.
    pub fn fds(&self) -> Result<[BorrowedFd<'_>; 2], Failure> {
        Ok([
            self.connection.event_fd()?,
            self.connection.completion_fd()?,
        ])
    }

    /// Takes what has come without waiting.
    ///
    /// # Errors
    /// If the other side has gone.
    pub fn check(&mut self) -> Result<(), Failure> {
        let [event, completion] = self.fds()?;
        let ready = readable(&[event, completion], Duration::ZERO);
        if ready[1] {
            self.connection.acknowledge()?;
        }
        self.take()?;
        if ready[0] && self.messages.is_empty() {
            match self.connection.event(Duration::ZERO)? {
                Some(Event::Closed) => return Err(Failure::Closed),
                Some(_) => return Err(Failure::lost("the connection is broken")),
                None => {}
            }
        }
        Ok(())
    }

    fn take(&mut self) -> Result<(), Failure> {
        loop {
            self.connection.completions(&mut self.completions)?;
            if self.completions.is_empty() {
                return Ok(());
            }
            for completion in &self.completions {
                if let Some(why) = completion.failure() {
                    // Who closes leaves behind what it has not received.
                    let event = self.connection.event(Duration::from_millis(200))?;
                    let closed = event == Some(Event::Closed);
                    return Err(if closed {
                        Failure::Closed
                    } else {
                        Failure::lost(&why)
                    });
                }
                match (completion.kind, completion.context) {
                    (Kind::Receive, buffer) => {
                        let offset = buffer as usize * MESSAGE;
                        let mut message = vec![0; (completion.len as usize).min(MESSAGE)];
                        self.region.memory().read(offset, &mut message);
                        self.messages.push(message);
                        if self.messages.len() > UNREAD {
                            return Err(Failure::lost("it talks without listening"));
                        }
                        self.connection
                            .receive((&self.region, offset), MESSAGE, buffer)?;
                    }
                    (_, SENT) => self.sending = false,
                    (_, PROBED) => self.probing = false,
                    _ => {}
                }
            }
        }
    }

    /// The next message, if one has come.
    pub fn message<M: DeserializeOwned>(&mut self) -> Option<Result<M, String>> {
        let message = (!self.messages.is_empty()).then(|| self.messages.remove(0))?;
        Some(decode(&message))
    }

    /// Sends a message.
    ///
    /// # Errors
    /// If the other side does not take it.
    pub fn send<M: Serialize>(&mut self, message: &M, limit: Duration) -> Result<(), Failure> {
        let until = Instant::now() + limit;
        self.sent(until)?;
        self.post(message)?;
        self.sent(until)
    }

    /// Waits until nothing is being sent.
    fn sent(&mut self, until: Instant) -> Result<(), Failure> {
        while self.sending {
            self.wait(until)?;
        }
        Ok(())
    }

    fn post<M: Serialize>(&mut self, message: &M) -> Result<(), Failure> {
        let bytes = encode(message).map_err(|why| Failure::lost(&why))?;
        self.region.memory().write(OUT, &bytes);
        self.sending = true;
        Ok(self
            .connection
            .send((&self.region, OUT), bytes.len(), None, true, SENT)?)
    }

    /// Shows the other side now and then that this one is there, without waiting for anything.
    ///
    /// # Errors
    /// If the other side has gone.
    pub fn show_life(&mut self) -> Result<(), Failure> {
        if self.signed.elapsed() < SIGN {
            return Ok(());
        }
        self.signed = Instant::now();
        self.check()?;
        if self.sending {
            return Ok(());
        }
        self.post(&Ask::Alive)
    }

    /// Waits for a message.
    ///
    /// # Errors
    /// If none comes in time, or none that is understood.
    pub fn receive<M: DeserializeOwned>(
        &mut self,
        limit: Duration,
        stop: &Stop,
    ) -> Result<M, Failure> {
        let until = Instant::now() + limit;
        loop {
            if let Some(message) = self.message() {
                return message.map_err(|why| Failure::lost(&format!("what it says is {why}")));
            }
            stop.check()?;
            self.wait(until)?;
        }
    }

    /// Waits for something to come, but not longer than until then, nor for long at all.
    fn wait(&mut self, until: Instant) -> Result<(), Failure> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Failure::lost("it does not answer"));
        }
        let _ = readable(&self.fds()?, left.min(Duration::from_millis(200)));
        self.check()
    }

    /// Makes sure that the other side's host is there, even while its program has nothing to say.
    ///
    /// # Errors
    /// If the connection is broken already.
    pub fn probe(&mut self) -> Result<(), Failure> {
        if !self.probing {
            self.connection.probe(PROBED)?;
            self.probing = true;
        }
        Ok(())
    }
}

/// Waits until a connection is there.
///
/// # Errors
/// If it does not come about.
pub fn established(connection: &Connection, limit: Duration, stop: &Stop) -> Result<(), Failure> {
    let until = Instant::now() + limit;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match connection.event(left.min(Duration::from_millis(200)))? {
            Some(Event::Established) => return Ok(()),
            Some(Event::Rejected) => return Err(Failure::Rejected),
            Some(Event::Unreachable) => return Err(Failure::Unreachable),
            Some(Event::Closed | Event::Lost) => {
                return Err(Failure::lost("the connection is broken"));
            }
            None if left.is_zero() => return Err(Failure::lost("it does not answer")),
            None => stop.check()?,
        }
    }
}
