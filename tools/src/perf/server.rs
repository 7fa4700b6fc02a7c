//! The side that has the memory. It does not measure, and in one-sided operations it takes no part.

use super::arguments;
use super::channel::{Channel, QUEUE};
use super::operation::Operation;
use super::pattern::{Checked, Pattern};
use super::plan::Plan;
use super::protocol::{Answer, Ask, PROTOCOL, Purpose};
use super::side::Side;
use super::{Failure, Stop, count, table};
use crate::rpma::{
    self, Backing, Completion, Connection, ConnectionConfig, Device, Endpoint, Event, Kind, Memory,
    Peer, PeerConfig, Region, Request, Usage, readable, sys,
};
use rustix::fs::{FallocateFlags, FileType, Mode, OFlags, fallocate, fstat, ftruncate, open};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, mem};

/// How long a client may take to say something, where it is its turn.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long nothing may be heard of a client that measures, which shows itself every second.
const SILENCE: Duration = Duration::from_secs(10);
/// How often it is made sure that a client is there.
const PROBE: Duration = Duration::from_secs(2);
/// How long a server that polls does not look for anything else.
const BUSY: Duration = Duration::from_millis(1);
/// How many clients may wait for their turn.
const WAITING: usize = 16;
/// Marks the completion of a send; the rest of the context is the place.
const SENT: u64 = 1 << 63;

/// Serves clients until the user does not want that any more.
///
/// # Errors
/// If nothing can be served.
pub fn run(arguments: &arguments::Server, stop: &Stop) -> Result<(), Failure> {
    let store = Store::new(arguments)?;
    let device = Device::local(&arguments.address)?;
    let peer = Peer::new(device)?;
    let endpoint = Endpoint::listen(&peer, &arguments.address, &arguments.port.to_string())?;
    let behind = match &store.pmem {
        None => "DRAM".into(),
        Some(pmem) => pmem.path.display().to_string(),
    };
    let (address, port) = (&arguments.address, &arguments.port);
    let memory = table::bytes(arguments.memory);
    let device_name = device.name();
    say(&format!(
        "listening at {address} port {port} on {device_name}, with up to {memory} of {behind}"
    ));
    let side = Side::here(device);
    let mut server = Server {
        peer,
        endpoint,
        store,
        side,
        waiting: VecDeque::new(),
        clients: 0,
        warned: false,
    };
    loop {
        match server.next(stop) {
            Ok(request) => server.client(request, stop),
            Err(Failure::Interrupted) => return Ok(()),
            Err(failure) => return Err(failure),
        }
    }
}

/// Tells the user something, who need not listen.
fn say(what: &str) {
    let _ = writeln!(io::stdout(), "rpma-perf: {what}");
    let _ = io::stdout().flush();
}

struct Server {
    peer: Peer,
    endpoint: Endpoint,
    store: Store,
    side: Side,
    /// Clients that have come while another one was served.
    waiting: VecDeque<Request>,
    clients: u64,
    /// Whether the library has warned of the memory.
    warned: bool,
}

/// What is going on with a client.
struct Session {
    greeted: bool,
    /// It measures, and shows that it is there.
    alive: bool,
    work: Option<Work>,
    /// That of the connections which come now.
    config: ConnectionConfig,
}

impl Server {
    /// The next client's request.
    fn next(&mut self, stop: &Stop) -> Result<Request, Failure> {
        let config = ConnectionConfig::new(QUEUE, QUEUE)?;
        loop {
            stop.check()?;
            if let Some(request) = self.waiting.pop_front() {
                return Ok(request);
            }
            if readable(&[self.endpoint.fd()?], Duration::from_millis(500))[0] {
                self.arrive(&config, &mut None);
            }
        }
    }

    /// Takes a request, for the measurement under way or to be served later.
    fn arrive(&mut self, config: &ConnectionConfig, work: &mut Option<Work>) {
        let outcome = self.endpoint.next(config).and_then(|request| {
            match (Purpose::decode(&request.private_data()?), work) {
                (Some(Purpose::Control), _) if self.waiting.len() < WAITING => {
                    self.waiting.push_back(request);
                }
                (Some(Purpose::Data(token)), Some(work)) if work.expects(token) => {
                    return work.accept(request);
                }
                // Strangers are rejected.
                _ => {}
            }
            Ok(())
        });
        if let Err(error) = outcome {
            say(&error.to_string());
        }
    }

    /// Serves a client, and tells how that went.
    fn client(&mut self, request: Request, stop: &Stop) {
        self.clients += 1;
        let (number, mut measured) = (self.clients, 0);
        let outcome = self.serve(request, stop, &mut measured);
        let done = count(measured, "measurement");
        match outcome {
            Err(Failure::Closed) => say(&format!("client {number}: done, {done}")),
            Err(failure) => say(&format!("client {number}: after {done}: {failure}")),
            Ok(()) => {}
        }
    }

    fn serve(&mut self, request: Request, stop: &Stop, measured: &mut u64) -> Result<(), Failure> {
        let mut channel = Channel::new(&self.peer, request, &[], PATIENCE / 3, stop)?;
        let mut session = Session {
            greeted: false,
            alive: false,
            work: None,
            config: ConnectionConfig::new(QUEUE, QUEUE)?,
        };
        let (mut heard, mut probed) = (Instant::now(), Instant::now());
        loop {
            stop.check()?;
            let work = session.work.as_mut().filter(|work| !work.finished);
            let busy = work.is_some();
            let polled = work.is_some_and(|work| work.is_polled());
            if polled && let Some(work) = &mut session.work {
                let until = Instant::now() + BUSY;
                while Instant::now() < until {
                    work.receive()?;
                }
            }
            if self.wait(&session, &channel, polled)? {
                self.arrive(&session.config, &mut session.work);
            }
            if let Some(work) = &mut session.work {
                work.look()?;
            }
            channel.check().map_err(|failure| match failure {
                Failure::Closed if busy => {
                    Failure::lost("it has gone in the middle of a measurement")
                }
                other => other,
            })?;
            if let Some(message) = channel.message() {
                heard = Instant::now();
                match message.and_then(|ask| self.answer(&mut session, ask)) {
                    Ok(None) => {}
                    Ok(Some(answer)) => {
                        *measured += u64::from(matches!(answer, Answer::Finished { .. }));
                        channel.send(&answer, PATIENCE / 3)?;
                    }
                    Err(why) => {
                        let _ = channel.send(&Answer::Refused { why: why.clone() }, PATIENCE / 3);
                        return Err(Failure::lost(&format!("what it says is {why}")));
                    }
                }
            }
            let limit = if session.alive { SILENCE } else { PATIENCE };
            if heard.elapsed() > limit {
                let why = format!("nothing was heard of it for {} s", limit.as_secs());
                return Err(Failure::Lost(why));
            }
            if probed.elapsed() > PROBE {
                probed = Instant::now();
                channel.probe()?;
            }
        }
    }

    /// Waits until something comes, or not at all if it is looked for otherwise. Tells whether that is a
    /// request.
    fn wait(&self, session: &Session, channel: &Channel, polled: bool) -> Result<bool, Failure> {
        let limit = if polled {
            Duration::ZERO
        } else {
            Duration::from_millis(500)
        };
        let [event, completion] = channel.fds()?;
        let mut fds = vec![self.endpoint.fd()?, event, completion];
        if let Some(work) = &session.work {
            work.fds(&mut fds)?;
        }
        Ok(readable(&fds, limit)[0])
    }

    /// The answer to what a client asks, if it is to have one; an error if that was nonsense.
    fn answer(&mut self, session: &mut Session, ask: Ask) -> Result<Option<Answer>, String> {
        session.alive = ask == Ask::Alive;
        let answer = match ask {
            Ask::Hello { protocol } if protocol != PROTOCOL => {
                let why = format!("the client speaks version {protocol}, the server {PROTOCOL}");
                Err(Failure::Refused(why))
            }
            Ask::Hello { .. } => {
                session.greeted = true;
                let pmem = self.store.pmem.as_ref();
                Ok(Answer::Welcome {
                    protocol: PROTOCOL,
                    persistent: pmem.map(|pmem| pmem.path.display().to_string()),
                    side: Box::new(self.side.clone()),
                })
            }
            _ if !session.greeted => return Err("without a greeting".into()),
            Ask::Alive => return Ok(None),
            Ask::Prepare(plan) => self.prepare(session, &plan),
            Ask::Finish { operations } => match &mut session.work {
                None => Err(Failure::Refused("nothing was begun".into())),
                Some(work) => work.finish(&operations).map(|checked| Answer::Finished {
                    operations: checked.operations,
                    mismatches: checked.mismatches,
                    first: checked.first,
                }),
            },
        };
        Ok(Some(answer.unwrap_or_else(|failure| Answer::Refused {
            why: match failure {
                // The other side says itself that it was refused.
                Failure::Refused(why) => why,
                other => other.to_string(),
            },
        })))
    }

    /// Gets ready for a measurement.
    fn prepare(&mut self, session: &mut Session, plan: &Plan) -> Result<Answer, Failure> {
        // Its memory is needed for the next one.
        session.work = None;
        plan.validate().map_err(Failure::Refused)?;
        let pmem = self.store.pmem.is_some();
        if plan.operation.is_persistent() && !pmem {
            let why = "the server has no persistent memory: see its option --pmem";
            return Err(Failure::Refused(why.into()));
        }
        let memory = self.store.memory(plan.server_memory())?;
        let mut usage = sys::RPMA_MR_USAGE_READ_SRC
            | sys::RPMA_MR_USAGE_WRITE_DST
            | sys::RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY
            | sys::RPMA_MR_USAGE_SEND
            | sys::RPMA_MR_USAGE_RECV;
        if pmem {
            usage |= sys::RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT;
        }
        let region = Region::new(&self.peer, memory, Usage(usage))?;
        // It would be the same each time.
        let warnings = rpma::take_warnings();
        if !self.warned {
            self.warned = !warnings.is_empty();
            warnings.iter().for_each(|warning| say(warning));
        }
        let work = Work::new(*plan, region)?;
        let answer = Answer::Ready {
            token: work.token,
            region: work.region.descriptor()?,
            peer_config: PeerConfig::new(pmem)?.descriptor()?,
        };
        let requests = plan.receives().max(QUEUE);
        session.config = ConnectionConfig::new(requests, requests)?;
        session.work = Some(work);
        Ok(answer)
    }
}

/// Where memory comes from.
struct Store {
    pmem: Option<Pmem>,
    limit: u64,
}

struct Pmem {
    file: File,
    path: PathBuf,
    /// Mappings of a device are of a multiple of that, and of no more than it has.
    device: Option<(usize, u64)>,
    /// A file that was not there before is gone afterwards.
    made: bool,
}

impl Store {
    fn new(arguments: &arguments::Server) -> Result<Self, Failure> {
        let pmem = arguments.pmem.as_deref();
        let pmem = pmem.map(|path| {
            Pmem::open(path, arguments.overwrite)
                .map_err(|error| Failure::Refused(format!("{}: {error}", path.display())))
        });
        Ok(Self {
            pmem: pmem.transpose()?,
            limit: arguments.memory,
        })
    }

    /// Memory of that size, which may have anything in it.
    fn memory(&self, size: u64) -> Result<Memory, Failure> {
        let limit = table::bytes(self.limit);
        if size > self.limit {
            let why = format!(
                "it takes {size} bytes of the server's memory, of which it gives {limit}: see its option --memory"
            );
            return Err(Failure::Refused(why));
        }
        let size_here = usize::try_from(size).map_err(io::Error::other)?;
        let Some(pmem) = &self.pmem else {
            return Ok(Memory::new(size_here, Backing::Dram, 1)?);
        };
        let granule = match pmem.device {
            None => {
                pmem.grow(size).map_err(|error| {
                    let (file, size) = (pmem.path.display(), table::bytes(size));
                    let why = format!("{file} can't have {size}: {error}");
                    io::Error::new(error.kind(), why)
                })?;
                1
            }
            Some((_, has)) if size > has => {
                let why = format!("it takes {size} bytes, and the device has {has}");
                return Err(Failure::Refused(why));
            }
            Some((granule, _)) => granule,
        };
        Ok(Memory::new(size_here, Backing::File(&pmem.file), granule)?)
    }
}

impl Pmem {
    fn open(path: &Path, overwrite: bool) -> Result<Self, String> {
        let plain = |error: &dyn std::fmt::Display| error.to_string();
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let owner = Mode::RUSR | Mode::WUSR;
        if path.is_dir() {
            // It has a name, since what could not be found again would not be persistent.
            let name = format!("rpma-perf.{}", std::process::id());
            return Self::open(&path.join(name), overwrite);
        }
        let made = !path.exists();
        let flags = if made {
            flags | OFlags::CREATE | OFlags::EXCL
        } else {
            flags
        };
        let file = open(path, flags, owner).map_err(|error| plain(&error))?;
        let stat = fstat(&file).map_err(|error| plain(&error))?;
        let device = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => None,
            FileType::CharacterDevice => Some(dax(stat.st_rdev).ok_or("it is no DAX device")?),
            _ => return Err("it is neither a file nor a DAX device".into()),
        };
        if !overwrite && (device.is_some() || stat.st_size > 0) {
            return Err("it is there already, and only --overwrite has it overwritten".into());
        }
        Ok(Self {
            file: file.into(),
            path: path.into(),
            device,
            made,
        })
    }

    /// Sees to it that the file has that size at least, and the space for it.
    fn grow(&self, size: u64) -> io::Result<()> {
        if self.file.metadata()?.len() >= size {
            return Ok(());
        }
        match fallocate(&self.file, FallocateFlags::empty(), 0, size) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(ftruncate(&self.file, size)?),
            result => Ok(result?),
        }
    }
}

impl Drop for Pmem {
    fn drop(&mut self) {
        if self.made {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// What mappings of a DAX device are a multiple of, and its size; None if it is another device.
fn dax(number: u64) -> Option<(usize, u64)> {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let about = PathBuf::from(format!("/sys/dev/char/{major}:{minor}"));
    let subsystem = fs::canonicalize(about.join("subsystem")).ok()?;
    if subsystem.file_name()? != "dax" {
        return None;
    }
    let number = |name: &str| {
        fs::read_to_string(about.join(name))
            .ok()?
            .trim()
            .parse::<u64>()
            .ok()
    };
    let align = number("align")
        .or_else(|| number("device/align"))
        .unwrap_or(2 << 20);
    Some((usize::try_from(align).ok()?, number("size")?))
}

/// What a measurement needs on this side.
struct Work {
    plan: Plan,
    // They end before the memory does: a client learns that it is over, not that it has no access.
    links: Vec<Link>,
    region: Region,
    token: u64,
    finished: bool,
    checked: Checked,
    completions: Vec<Completion>,
    bytes: Vec<u8>,
    scratch: Vec<u8>,
}

/// A connection to measure over.
struct Link {
    connection: Connection,
    /// How many messages, or writes with a number, have come.
    received: u64,
    /// Nothing comes any more.
    gone: bool,
}

impl Work {
    fn new(plan: Plan, region: Region) -> Result<Self, Failure> {
        let mut token = [0; 8];
        getrandom(&mut token[..], GetRandomFlags::empty()).map_err(io::Error::from)?;
        let work = Self {
            plan,
            region,
            token: u64::from_ne_bytes(token),
            links: vec![],
            finished: false,
            checked: Checked::default(),
            completions: Vec::with_capacity(16),
            bytes: vec![0; plan.size()],
            scratch: Vec::with_capacity(plan.size()),
        };
        work.first_contents();
        Ok(work)
    }

    /// Memory is there, and what is to be read has contents, before the client begins.
    fn first_contents(&self) {
        let mut bytes = vec![0; self.plan.size()];
        for connection in 0..self.plan.connections as usize {
            for place in 0..self.plan.server_places() as usize {
                if self.plan.operation == Operation::Read {
                    self.pattern(connection, place as u64).fill(&mut bytes);
                }
                self.region
                    .memory()
                    .write(self.offset(connection, place), &bytes);
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

    fn offset(&self, connection: usize, place: usize) -> usize {
        (connection * self.plan.server_places() as usize + place) * self.plan.stride()
    }

    fn expects(&self, token: u64) -> bool {
        !self.finished && token == self.token && self.links.len() < self.plan.connections as usize
    }

    /// Whether this side has to look for completions all the time.
    fn is_polled(&self) -> bool {
        let polled = if self.plan.operation.is_received() {
            !self.plan.events
        } else {
            self.plan.server_polls
        };
        polled && !self.finished
    }

    fn accept(&mut self, request: Request) -> rpma::Result<()> {
        let index = self.links.len();
        for place in 0..self.plan.receives() as usize {
            let (offset, len) = self.buffer(index, place);
            request.receive(&self.region, offset, len, place as u64)?;
        }
        let connection = request.connect(&[])?;
        self.links.push(Link {
            connection,
            received: 0,
            gone: false,
        });
        Ok(())
    }

    /// The buffer for a receive. What comes with a write needs none, but before there is a connection
    /// the library posts no receive without.
    fn buffer(&self, connection: usize, place: usize) -> (usize, usize) {
        if self.plan.operation.is_message() {
            (self.offset(connection, place), self.plan.size())
        } else {
            (0, 1)
        }
    }

    /// Adds what can be read when there is something for [`Self::look`].
    fn fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) -> rpma::Result<()> {
        for link in self.links.iter().filter(|link| !link.gone) {
            fds.push(link.connection.event_fd()?);
            fds.push(link.connection.completion_fd()?);
        }
        Ok(())
    }

    /// Takes events and completions.
    fn look(&mut self) -> rpma::Result<()> {
        for link in self.links.iter_mut().filter(|link| !link.gone) {
            let fds = [
                link.connection.event_fd()?,
                link.connection.completion_fd()?,
            ];
            let ready = readable(&fds, Duration::ZERO);
            if ready[1] {
                link.connection.acknowledge()?;
            }
            if ready[0] {
                let event = link.connection.event(Duration::ZERO)?;
                link.gone = event.is_some_and(|event| event != Event::Established);
            }
        }
        self.receive()
    }

    /// Takes all that has come.
    fn receive(&mut self) -> rpma::Result<()> {
        let mut completions = mem::take(&mut self.completions);
        for index in 0..self.links.len() {
            loop {
                self.links[index].connection.completions(&mut completions)?;
                if completions.is_empty() {
                    break;
                }
                for completion in &completions {
                    // Of a connection that was closed, all receives fail.
                    if completion.failure().is_some() || self.received(index, completion).is_err() {
                        self.links[index].gone = true;
                    }
                }
            }
        }
        self.completions = completions;
        Ok(())
    }

    fn received(&mut self, index: usize, completion: &Completion) -> rpma::Result<()> {
        let place = (completion.context & !SENT) as usize;
        let (offset, size) = self.buffer(index, place);
        if completion.kind == Kind::Other {
            let connection = &self.links[index].connection;
            return connection.receive((&self.region, offset), size, place as u64);
        }
        let number = self.links[index].received;
        self.links[index].received += 1;
        if self.plan.check {
            let wrong = self.difference(index, number, offset, completion);
            self.checked.note(wrong);
        }
        let connection = &self.links[index].connection;
        if self.plan.operation == Operation::PingPong {
            let len = (completion.len as usize).min(size);
            connection.send((&self.region, offset), len, None, true, SENT | place as u64)
        } else {
            connection.receive((&self.region, offset), size, place as u64)
        }
    }

    /// What is wrong with what has come, if anything is.
    fn difference(
        &mut self,
        index: usize,
        number: u64,
        offset: usize,
        completion: &Completion,
    ) -> Option<String> {
        let (pattern, size) = (self.pattern(index, number), self.plan.size());
        let what = format!("operation {number} on connection {index}");
        let with_imm = matches!(
            self.plan.operation,
            Operation::WriteWithImm | Operation::SendWithImm
        );
        let expected = with_imm.then(|| pattern.imm());
        if completion.imm != expected {
            return Some(format!(
                "{what} came with {:?} instead of {expected:?}",
                completion.imm
            ));
        }
        if !self.plan.operation.is_message() {
            return None;
        }
        if completion.len as usize != size {
            return Some(format!(
                "{what} came with {} bytes instead of {size}",
                completion.len
            ));
        }
        self.region.memory().read(offset, &mut self.bytes);
        let at = pattern.difference(&self.bytes, &mut self.scratch);
        at.map(|at| format!("{what} differs at byte {at} of {size}"))
    }

    /// All was done: compares what is there with what should be.
    fn finish(&mut self, operations: &[u64]) -> Result<Checked, Failure> {
        if self.finished || operations.len() != self.links.len() {
            return Err(Failure::Refused("that is not what was begun".into()));
        }
        if self.plan.operation.is_received() {
            // They have come, but this side may not know yet.
            let until = Instant::now() + Duration::from_secs(5);
            let all = |links: &[Link]| {
                links
                    .iter()
                    .zip(operations)
                    .all(|(link, expected)| link.received == *expected)
            };
            while !all(&self.links) {
                self.receive()?;
                if Instant::now() > until {
                    let received: Vec<_> = self.links.iter().map(|link| link.received).collect();
                    let why =
                        format!("{received:?} operations have come instead of {operations:?}");
                    return Err(Failure::Refused(why));
                }
            }
        }
        self.finished = true;
        if self.plan.check && self.plan.operation.writes() {
            for (connection, posted) in operations.iter().enumerate() {
                let depth = u64::from(self.plan.depth);
                for number in posted.saturating_sub(depth)..*posted {
                    let place = (number % depth) as usize;
                    self.region
                        .memory()
                        .read(self.offset(connection, place), &mut self.bytes);
                    let pattern = self.pattern(connection, number);
                    let at = pattern.difference(&self.bytes, &mut self.scratch);
                    self.checked.note(at.map(|at| {
                        format!(
                            "operation {number} on connection {connection} differs at byte {at}"
                        )
                    }));
                }
            }
        }
        Ok(mem::take(&mut self.checked))
    }
}
