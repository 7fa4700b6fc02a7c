//! One end's program: its memory, what it has posted, and what it was told.

use super::steps::{End, Flaw, Kind, Post};
use softverbs::proto::frames::{AtomicOp, Params, Private, Remote};
use softverbs::proto::{
    Cause, Completion, Event, Host, Memory, Op, RecvQueue, RecvWqe, Right, Sge, Status, parts,
};
use std::cell::{Ref, RefCell};

/// Memory that nothing was put into. What is put there is odd, or zero where a frame is filled.
pub const FRESH: u8 = 0xa4;
/// Between what two requests use.
const GAP: usize = 8;

pub const LOCAL: usize = 0;
pub const REMOTE: usize = 2;
const READ_ONLY: usize = 4;
pub const WORDS: usize = 5;
pub const WORDS_LEN: usize = 2;
const REGION_LEN: u64 = 1 << 30;

/// Whose a range of memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// Payload of this end's request of that number.
    Source(usize),
    /// Where this end's request puts what it reads.
    Sink(usize),
    /// This end's receive of that number.
    Receive(usize),
    /// Where the other end's request writes.
    Target(usize),
    /// What the other end's request reads.
    Read(usize),
    Words,
}

/// A range of addresses, from and to, and whose it is.
pub type Use = (u64, u64, User);

pub struct Region {
    base: u64,
    pub key: u32,
    rights: u32,
    bytes: RefCell<Vec<u8>>,
    users: Vec<Use>,
    pub alive: bool,
}

impl Region {
    fn range(&self, addr: u64, len: u64) -> bool {
        addr >= self.base && addr - self.base <= REGION_LEN - len.min(REGION_LEN)
    }

    fn user(&self, addr: u64, len: usize) -> Option<User> {
        let i = self.users.partition_point(|(start, _, _)| *start <= addr);
        let (_, end, user) = *self.users.get(i.checked_sub(1)?)?;
        (addr + len as u64 <= end).then_some(user)
    }

    fn slice(&self, addr: u64, len: usize) -> Ref<'_, [u8]> {
        let from = (addr - self.base) as usize;
        Ref::map(self.bytes.borrow(), |bytes| &bytes[from..from + len])
    }

    fn put(&self, addr: u64, data: &[u8]) {
        let from = (addr - self.base) as usize;
        self.bytes.borrow_mut()[from..from + data.len()].copy_from_slice(data);
    }

    /// The bytes of the region, with what each range is used for.
    pub fn all(&self) -> (Ref<'_, Vec<u8>>, &[Use], u64) {
        (self.bytes.borrow(), &self.users, self.base)
    }
}

/// The byte at that offset of the payload of a request. Never what is there before, nor zero.
pub fn payload(id: u64, offset: usize) -> u8 {
    (id.wrapping_mul(38) as usize + offset * 26 + (offset >> 7) * 6) as u8 | 1
}

pub fn has_pattern(id: u64, from: usize, bytes: &[u8]) -> bool {
    let mut i = from;
    bytes.iter().all(|byte| {
        let same = *byte == payload(id, i);
        i += 1;
        same
    })
}

/// A send request as it was posted, and what is known of it.
#[derive(Debug)]
pub struct Request {
    pub id: u64,
    pub post: Post,
    pub op: Op,
    pub len: u32,
    pub sges: Vec<Sge>,
    /// How it must end if nothing else comes between.
    pub expected: Status,
    /// Its completion, or that none comes any more.
    pub ended: Option<Status>,
    pub forgotten: bool,
    /// It is known to have been carried out.
    pub executed: bool,
    /// What an atomic found.
    pub found: u64,
    /// RNR NAKs of it that have come back.
    pub rnr_naks: u32,
}

#[derive(Debug)]
pub struct Receive {
    pub len: u32,
    pub sges: Vec<Sge>,
    pub ended: Option<Status>,
    pub forgotten: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    Offer,
    Reply,
    Response,
    Established,
    Rejected,
    Unreachable,
    Disconnected,
    TimewaitExit,
}

pub struct Program {
    pub me: End,
    pub regions: Vec<Region>,
    pub requests: Vec<Request>,
    pub receives: Vec<Receive>,
    pub srq: Option<RecvQueue>,
    pub srq_waits: bool,
    /// Completions that have not been looked at.
    pub news: Vec<Completion>,
    pub told: Vec<Told>,
    pub last_wqe: u32,
    pub watches: bool,
    pub fault: RefCell<Option<String>>,
}

const LOCAL_WRITE: u32 = 1;

impl Program {
    pub fn new(me: End, srq: bool, watches: bool) -> Self {
        let all = LOCAL_WRITE | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 8 | 1 << 9;
        let rights = [LOCAL_WRITE, LOCAL_WRITE, all, all, Right::Read.bit(), all];
        let regions = rights
            .into_iter()
            .enumerate()
            .map(|(i, rights)| Region {
                base: (i as u64 + 1 + 16 * me as u64) << 32,
                key: (i + 100 + 10 * me) as u32,
                rights,
                bytes: RefCell::default(),
                users: vec![],
                alive: true,
            })
            .collect();
        let mut program = Program {
            me,
            regions,
            requests: vec![],
            receives: vec![],
            srq: srq.then(|| RecvQueue::new(64, 2).expect("there is memory")),
            srq_waits: false,
            news: vec![],
            told: vec![],
            last_wqe: 0,
            watches,
            fault: RefCell::default(),
        };
        let words = program.give(WORDS, WORDS_LEN * 8, User::Words);
        program.regions[WORDS].put(words, &[0; WORDS_LEN * 8]);
        program
    }

    /// Notes the first rule that was broken.
    pub fn fault(&self, text: impl FnOnce() -> String) {
        self.fault.borrow_mut().get_or_insert_with(text);
    }

    /// Gives fresh memory of a region to a user.
    pub fn give(&mut self, region: usize, len: usize, user: User) -> u64 {
        let region = &mut self.regions[region];
        let bytes = region.bytes.get_mut();
        let start = bytes.len();
        bytes.resize(start + len + GAP, FRESH);
        let addr = region.base + start as u64;
        region.users.push((addr, addr + len as u64, user));
        addr
    }

    /// Memory in pieces.
    pub fn pieces(&mut self, region: usize, len: u32, n: usize, user: User) -> Vec<Sge> {
        if len == 0 {
            return vec![];
        }
        let n = n.min(len as usize);
        (0..n)
            .map(|i| {
                let length = if i + 1 == n {
                    len - (len / n as u32) * i as u32
                } else {
                    len / n as u32
                };
                let addr = self.give(region, length as usize, user);
                Sge {
                    addr,
                    length,
                    lkey: self.regions[region].key,
                }
            })
            .collect()
    }

    fn local(&self, sge: &Sge, write: bool) -> Option<&Region> {
        let len = sge.length.into();
        self.regions.iter().find(|r| {
            r.key == sge.lkey
                && r.alive
                && r.range(sge.addr, len)
                && (!write || r.rights & LOCAL_WRITE != 0)
        })
    }

    fn remote(&self, at: Remote, len: u64, right: Right) -> Option<&Region> {
        self.regions.iter().find(|r| {
            r.key == at.rkey && r.alive && r.range(at.addr, len) && r.rights & right.bit() != 0
        })
    }

    pub fn by_address(&self, addr: u64) -> &Region {
        let i = (addr >> 32) as usize - 1 - 16 * self.me;
        &self.regions[i]
    }

    /// Bytes of pieces, one after the other.
    pub fn gathered(
        &self,
        sges: &[Sge],
        len: usize,
        mut f: impl FnMut(usize, &[u8]) -> bool,
    ) -> bool {
        let mut offset = 0;
        parts(sges, 0, len as u64).all(|part| {
            let bytes = self
                .by_address(part.addr)
                .slice(part.addr, part.length as usize);
            let good = f(offset, &bytes);
            offset += bytes.len();
            good
        })
    }

    pub fn holds_pattern(&self, id: u64, sges: &[Sge], len: u32) -> bool {
        self.gathered(sges, len as usize, |from, bytes| {
            has_pattern(id, from, bytes)
        })
    }

    pub fn bytes_at(&self, at: Remote, len: u32) -> Ref<'_, [u8]> {
        self.by_address(at.addr).slice(at.addr, len as usize)
    }

    pub fn put_pattern(&self, id: u64, sges: &[Sge]) {
        let mut offset = 0;
        for sge in sges {
            let i = (sge.addr >> 32) as usize - 1 - 16 * self.me;
            let region = &self.regions[i];
            let from = (sge.addr - region.base) as usize;
            for byte in &mut region.bytes.borrow_mut()[from..from + sge.length as usize] {
                *byte = payload(id, offset);
                offset += 1;
            }
        }
    }

    /// The memory is used for something else.
    pub fn scribble(&self, sges: &[Sge]) {
        for sge in sges {
            let bytes = vec![0x66; sge.length as usize];
            self.by_address(sge.addr).put(sge.addr, &bytes);
        }
    }

    pub fn word(&self, addr: u64) -> u64 {
        let bytes = self.regions[WORDS].slice(addr, 8);
        u64::from_ne_bytes((*bytes).try_into().expect("eight bytes"))
    }

    pub fn set_word(&self, addr: u64, value: u64) {
        self.regions[WORDS].put(addr, &value.to_ne_bytes());
    }

    pub fn word_at(&self, place: usize) -> Remote {
        Remote {
            // They are the first that the region gave.
            addr: self.regions[WORDS].base + 8 * (place % WORDS_LEN) as u64,
            rkey: self.regions[WORDS].key,
        }
    }

    /// Checks that memory that is about to be touched is that of a request that is outstanding.
    fn may_touch(&self, addr: u64, len: usize, write: bool, remote: bool) {
        if len == 0 {
            return;
        }
        let user = self.by_address(addr).user(addr, len);
        let good = match user {
            Some(User::Source(i)) => !write && !remote && self.is_outstanding(i),
            Some(User::Sink(i)) => write && !remote && self.is_outstanding(i),
            Some(User::Receive(i)) => {
                let receive = &self.receives[i];
                write && !remote && receive.ended.is_none() && !receive.forgotten
            }
            Some(User::Target(_)) => write && remote,
            Some(User::Read(_)) => !write && remote,
            Some(User::Words) => remote,
            None => false,
        };
        if !good {
            self.fault(|| {
                format!("rule 8: memory at {addr:#x}+{len} of {user:?} is {} that no outstanding request names",
                    if write { "written" } else { "read" })
            });
        }
    }

    fn is_outstanding(&self, i: usize) -> bool {
        let request = &self.requests[i];
        request.ended.is_none() && !request.forgotten
    }

    /// Reads bytes for the link; false if they may not be read.
    pub fn read(&self, memory: Memory<'_>, len: usize, out: &mut Vec<u8>) -> bool {
        match memory {
            Memory::Zeroes => out.resize(out.len() + len, 0),
            Memory::Local(sges, offset) => {
                if !parts(sges, offset, len as u64).all(|part| self.local(&part, false).is_some()) {
                    return false;
                }
                for part in parts(sges, offset, len as u64) {
                    self.may_touch(part.addr, part.length as usize, false, false);
                    let region = self.by_address(part.addr);
                    out.extend_from_slice(&region.slice(part.addr, part.length as usize));
                }
            }
            Memory::Remote(at) => {
                if self.remote(at, len as u64, Right::Read).is_none() {
                    return false;
                }
                self.may_touch(at.addr, len, false, true);
                out.extend_from_slice(&self.by_address(at.addr).slice(at.addr, len));
            }
        }
        true
    }

    pub fn may_read(&self, memory: Memory<'_>, len: usize) -> bool {
        match memory {
            Memory::Zeroes => true,
            Memory::Local(sges, offset) => {
                parts(sges, offset, len as u64).all(|part| self.local(&part, false).is_some())
            }
            Memory::Remote(at) => self.remote(at, len as u64, Right::Read).is_some(),
        }
    }

    pub fn may_write(&self, memory: Memory<'_>, len: usize) -> bool {
        match memory {
            Memory::Zeroes => false,
            Memory::Local(sges, offset) => {
                parts(sges, offset, len as u64).all(|part| self.local(&part, true).is_some())
            }
            Memory::Remote(at) => self.remote(at, len as u64, Right::Write).is_some(),
        }
    }

    /// Writes bytes that have come; they may be written.
    pub fn write(&self, memory: Memory<'_>, data: &[u8]) {
        let put = |addr: u64, part: &[u8]| {
            self.may_touch(addr, part.len(), true, matches!(memory, Memory::Remote(_)));
            if self.fault.borrow().is_none() {
                self.by_address(addr).put(addr, part);
            }
        };
        match memory {
            Memory::Zeroes => {}
            Memory::Local(sges, offset) => {
                let mut rest = data;
                for part in parts(sges, offset, data.len() as u64) {
                    let (now, then) = rest.split_at(part.length as usize);
                    put(part.addr, now);
                    rest = then;
                }
            }
            Memory::Remote(at) => put(at.addr, data),
        }
    }

    /// Makes a request; `peer` has what it is about. Returns the pieces and the payload if it is inline.
    pub fn request(&mut self, post: Post, peer: &mut Program, expected: Status) -> &Request {
        let number = self.requests.len();
        let id = (self.me as u64 + 1) * 1_000_000 + number as u64;
        let region = LOCAL + post.place % 2;
        let is_word = matches!(
            post.kind,
            Kind::FetchAdd
                | Kind::CompareSwap
                | Kind::AtomicWrite
                | Kind::WriteWord
                | Kind::ReadWord
        );
        let len = match post.kind {
            Kind::AtomicWrite | Kind::Flush => 0,
            _ if is_word => 8,
            _ => post.len,
        };
        let imm = id as u32 ^ 0x55;
        let mut at = if is_word {
            peer.word_at(post.place)
        } else {
            let (region, user) = match (post.kind, post.flaw) {
                (Kind::Read, _) => (REMOTE + post.place % 2, User::Read(number)),
                (_, Flaw::Right) => (READ_ONLY, User::Target(number)),
                _ => (REMOTE + post.place % 2, User::Target(number)),
            };
            let needs = matches!(post.kind, Kind::Read | Kind::Write | Kind::WriteImm);
            let addr = peer.give(region, if needs { len as usize } else { 0 }, user);
            if post.kind == Kind::Read {
                let bytes: Vec<u8> = (0..len as usize).map(|i| payload(id, i)).collect();
                peer.regions[region].put(addr, &bytes);
            }
            Remote {
                addr,
                rkey: peer.regions[region].key,
            }
        };
        match post.flaw {
            Flaw::Rkey => at.rkey = 7,
            Flaw::Range => at.addr += REGION_LEN,
            _ => {}
        }
        let user = match post.kind {
            Kind::Read | Kind::ReadWord | Kind::FetchAdd | Kind::CompareSwap => User::Sink(number),
            _ => User::Source(number),
        };
        let mut sges = self.pieces(region, len, post.sges, user);
        if matches!(user, User::Source(_)) {
            self.put_pattern(id, &sges);
        }
        if post.flaw == Flaw::Lkey {
            for sge in &mut sges {
                sge.lkey = 7;
            }
        }
        let value = id << 8 | 1;
        let op = match post.kind {
            Kind::Send => Op::Send { imm: None },
            Kind::SendImm => Op::Send { imm: Some(imm) },
            Kind::Write | Kind::WriteWord => Op::Write { at, imm: None },
            Kind::WriteImm => Op::Write { at, imm: Some(imm) },
            Kind::Read | Kind::ReadWord => Op::Read { at },
            Kind::FetchAdd => Op::Atomic {
                at,
                op: AtomicOp::FetchAdd(value),
            },
            Kind::CompareSwap => Op::Atomic {
                at,
                op: AtomicOp::CompareSwap {
                    // Found about half of the time: where nothing but zero was put there.
                    compare: 0,
                    swap: value,
                },
            },
            Kind::AtomicWrite => Op::AtomicWrite {
                at,
                value: value.to_ne_bytes(),
            },
            Kind::Flush => Op::Flush {
                at,
                len: id,
                kind: softverbs::proto::frames::FlushKind::Both,
                whole: false,
            },
        };
        self.requests.push(Request {
            id,
            post,
            op,
            len,
            sges,
            expected,
            ended: None,
            forgotten: false,
            executed: false,
            found: 0,
            rnr_naks: 0,
        });
        &self.requests[number]
    }

    /// Whether the memory that a request uses here can be used.
    pub fn has_local(&self, sges: &[Sge], write: bool) -> bool {
        sges.iter().all(|sge| self.local(sge, write).is_some())
    }
}

impl Host for Program {
    fn permits(&self, at: Remote, len: u64, right: Right) -> bool {
        self.remote(at, len, right).is_some()
    }

    fn may_use(&self, sges: &[Sge], write: bool) -> bool {
        self.has_local(sges, write)
    }

    fn read_local(&self, sges: &[Sge], offset: u64, len: usize, out: &mut Vec<u8>) -> bool {
        let before = out.len();
        for part in parts(sges, offset, len as u64) {
            let Some(region) = self.local(&part, false) else {
                out.truncate(before);
                return false;
            };
            out.extend_from_slice(&region.slice(part.addr, part.length as usize));
        }
        true
    }

    fn read_remote(&self, at: Remote, len: usize, out: &mut Vec<u8>) -> bool {
        match self.remote(at, len as u64, Right::Read) {
            Some(region) => {
                out.extend_from_slice(&region.slice(at.addr, len));
                true
            }
            None => false,
        }
    }

    fn write_local(&self, sges: &[Sge], offset: u64, data: &[u8]) -> bool {
        let memory = Memory::Local(sges, offset);
        let may = self.may_write(memory, data.len());
        if may {
            self.write(memory, data);
        }
        may
    }

    fn write_remote(&self, at: Remote, data: &[u8]) -> bool {
        let memory = Memory::Remote(at);
        let may = self.may_write(memory, data.len());
        if may {
            self.write(memory, data);
        }
        may
    }

    fn take_shared_receive(&mut self, to: &mut RecvWqe) -> bool {
        let Some(srq) = &mut self.srq else {
            return false;
        };
        let taken = srq.pop(to);
        self.srq_waits |= !taken;
        taken
    }

    fn complete(&mut self, completion: Completion) {
        // The memory is the program's again from now on.
        let i = completion.wr_id as usize;
        let ended = if completion.opcode.is_recv() {
            self.receives.get_mut(i).map(|one| &mut one.ended)
        } else {
            self.requests.get_mut(i).map(|one| &mut one.ended)
        };
        let twice = ended.is_none_or(|ended| ended.replace(completion.status).is_some());
        if twice {
            self.fault(|| {
                format!("rule 1: {completion:?} is the second of its request, or of none")
            });
        }
        self.news.push(completion);
    }

    fn last_wqe_reached(&mut self) {
        self.last_wqe += 1;
    }

    fn offer(&mut self, _: &Params, _: &Private) -> bool {
        self.told.push(Told::Offer);
        true
    }

    fn event(&mut self, event: Event) {
        self.told.push(match event {
            Event::Reply(..) => Told::Reply,
            Event::Response(..) => Told::Response,
            Event::Established => Told::Established,
            Event::Rejected(..) => Told::Rejected,
            Event::Unreachable => Told::Unreachable,
            Event::Disconnected => Told::Disconnected,
            Event::TimewaitExit => Told::TimewaitExit,
        });
    }

    fn explain(&mut self, _: Cause<'_>, _: bool) {}

    fn watches_deadlines(&self) -> bool {
        self.watches
    }
}
