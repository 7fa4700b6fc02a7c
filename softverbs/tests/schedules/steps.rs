//! What a schedule consists of, and how chance makes one.

use proptest::prelude::*;
use std::fmt::{self, Debug, Formatter};

/// One of the two ends: 0 connects, 1 listens.
pub type End = usize;
pub const A: End = 0;
pub const B: End = 1;

/// What a send request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    FetchAdd,
    CompareSwap,
    AtomicWrite,
    Flush,
    /// Eight bytes of the words that atomics work on.
    WriteWord,
    ReadWord,
}

/// What is wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    None,
    /// There is no region of that key at the other side.
    Rkey,
    /// The range goes beyond the region.
    Range,
    /// The region does not give the right.
    Right,
    /// There is no region of that key at this side.
    Lkey,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Post {
    pub kind: Kind,
    pub len: u32,
    pub signaled: bool,
    pub fence: bool,
    pub inline: bool,
    pub solicited: bool,
    pub sges: usize,
    pub flaw: Flaw,
    /// Which of the regions, or of the words, it uses.
    pub place: usize,
}

impl Post {
    pub const fn new(kind: Kind, len: u32) -> Self {
        Post {
            kind,
            len,
            signaled: true,
            fence: false,
            inline: false,
            solicited: false,
            sges: 1,
            flaw: Flaw::None,
            place: 0,
        }
    }
}

impl Debug for Post {
    /// As source text.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "Post {{ ")?;
        let plain = Post::new(self.kind, self.len);
        if self.signaled != plain.signaled {
            write!(f, "signaled: {}, ", self.signaled)?;
        }
        if self.fence {
            write!(f, "fence: true, ")?;
        }
        if self.inline {
            write!(f, "inline: true, ")?;
        }
        if self.solicited {
            write!(f, "solicited: true, ")?;
        }
        if self.sges != plain.sges {
            write!(f, "sges: {}, ", self.sges)?;
        }
        if self.flaw != plain.flaw {
            write!(f, "flaw: Flaw::{:?}, ", self.flaw)?;
        }
        if self.place != plain.place {
            write!(f, "place: {}, ", self.place)?;
        }
        write!(f, "..Post::new(Kind::{:?}, {}) }}", self.kind, self.len)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// All bytes move both ways, and orders are carried out, until nothing happens any more.
    Settle,
    /// That end hands so many bytes to the link at most, which takes no more.
    Transmit(End, usize),
    /// That end takes so many bytes from the link at most.
    Deliver(End, usize),
    /// That end posts a receive of so many bytes.
    Receive(End, u32),
    Post(End, Post),
    Poll(End),
    /// What that end was ordered to carry out is done.
    Order(End),
    /// So many microseconds pass, and that end looks at the clock.
    Due(End, u64),
    /// The link that is wanted is opened.
    Open,
    /// It is refused.
    Refuse,
    Accept,
    Establish,
    Reject(End),
    Disconnect(End),
    /// The id is destroyed.
    Abandon(End),
    /// The program moves the queue pair to the error state.
    Fail(End),
    Reset(End),
    /// The queue pair is destroyed.
    Destroy(End),
    /// The region of that number is deregistered.
    Deregister(End, usize),
    /// The link is lost; so many bytes still get to each end.
    Cut(usize, usize),
}

/// What does not change in a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Both ends are connected before the first step.
    pub connected: bool,
    pub rnr_retry: u8,
    /// How many reads and atomics each end has outstanding towards the other at most.
    pub reads: u8,
    pub max_wr: usize,
    /// How many receives, long enough for most messages, are posted before the first step.
    pub receives: usize,
    /// Whether each end takes its receives from a shared queue.
    pub srq: [bool; 2],
    /// Whether somebody looks at the clock, so that acknowledgements may be held back.
    pub watches: bool,
    /// Each end lacks the right to be written, or read, altogether.
    pub access: [Access; 2],
    /// Both ends connect again, with the same queue pairs, and the second half of the steps follows.
    pub again: bool,
}

/// What the other end may do with a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    All,
    NoWrite,
    NoRead,
    NoAtomic,
}

impl Setup {
    pub const PLAIN: Setup = Setup {
        connected: true,
        rnr_retry: 7,
        reads: 2,
        max_wr: 8,
        receives: 0,
        srq: [false; 2],
        watches: true,
        access: [Access::All; 2],
        again: false,
    };
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    pub setup: Setup,
    pub steps: Vec<Step>,
}

/// Lengths at which something changes: nothing, a word, what is copied (1024), what goes straight to
/// memory (4096), a segment (256 KiB).
fn length(n: u16) -> u32 {
    const LENGTHS: [u32; 16] = [
        8, 0, 1, 7, 9, 64, 300, 1023, 1024, 1025, 1032, 2000, 4097, 4104, 5000, 9000,
    ];
    match n >> 4 {
        4095 => 256 * 1024 + 1,
        4094 => 256 * 1024,
        4093 => 600_000,
        _ => LENGTHS[n as usize & 15],
    }
}

fn amount(n: u16) -> usize {
    const AMOUNTS: [usize; 8] = [1 << 30, 1, 5, 20, 40, 300, 3000, 20_000];
    AMOUNTS[n as usize & 7]
        + if n & 7 == 0 {
            0
        } else {
            (n >> 3) as usize % 37
        }
}

fn kind(n: u16) -> Kind {
    use Kind::*;
    const KINDS: [Kind; 16] = [
        Write,
        Send,
        Read,
        SendImm,
        WriteImm,
        FetchAdd,
        CompareSwap,
        AtomicWrite,
        Flush,
        WriteWord,
        ReadWord,
        Write,
        Send,
        Read,
        WriteWord,
        ReadWord,
    ];
    KINDS[n as usize & 15]
}

fn post(a: u16, b: u16) -> Post {
    Post {
        kind: kind(a),
        len: length(b),
        signaled: a & 0x30 != 0x30,
        fence: a & 0x1c0 == 0x1c0,
        inline: a & 0x600 == 0x600,
        solicited: a & 0x800 != 0,
        sges: [1, 2, 3, 1][a as usize >> 12 & 3],
        flaw: match a >> 10 {
            0x3f => Flaw::Rkey,
            0x3e => Flaw::Range,
            0x3d => Flaw::Right,
            0x3c if b & 0x100 != 0 => Flaw::Lkey,
            _ => Flaw::None,
        },
        place: b as usize >> 9 & 1,
    }
}

fn step((kind, a, b): (u8, u16, u16)) -> Step {
    let end = kind as usize & 1;
    match kind >> 1 {
        0..=11 => Step::Settle,
        12..=24 => Step::Transmit(end, amount(a)),
        25..=38 => Step::Deliver(end, amount(a)),
        39..=54 => Step::Receive(end, length(a & 0xf) + 64 * (u32::from(a) >> 4 & 15)),
        55..=94 => Step::Post(end, post(a, b)),
        95..=101 => Step::Poll(end),
        102..=106 => Step::Order(end),
        107..=116 => {
            const TIMES: [u64; 8] = [1, 60, 50, 1000, 11_000, 700_000, 70_000_000, 20];
            Step::Due(end, TIMES[a as usize & 7])
        }
        117 => match end {
            0 => Step::Open,
            _ if a < 1 << 14 => Step::Refuse,
            _ => Step::Open,
        },
        118 => match end {
            0 => Step::Accept,
            _ => Step::Establish,
        },
        119 if a < 1 << 14 => Step::Reject(end),
        119 => match end {
            0 => Step::Establish,
            _ => Step::Accept,
        },
        120 => match a & 7 {
            0 | 1 => Step::Disconnect(end),
            2 => Step::Abandon(end),
            _ => Step::Poll(end),
        },
        121 | 122 => match a & 7 {
            0 => Step::Fail(end),
            1 => Step::Reset(end),
            2 => Step::Destroy(end),
            _ => Step::Settle,
        },
        123 | 124 => Step::Deregister(end, a as usize % 6),
        125 if b & 3 == 0 => Step::Cut(amount(a) - 1, amount(b >> 2) - 1),
        _ => Step::Settle,
    }
}

/// A message of several segments finds no receive while it is being sent.
fn long_and_not_ready(end: End, a: u16, b: u16) -> Vec<Step> {
    let other = 1 - end;
    let post = Post::new([Kind::SendImm, Kind::WriteImm][b as usize & 1], 600_000);
    let first = 100 + (a as usize) * 8;
    vec![
        Step::Settle,
        Step::Post(end, post),
        Step::Transmit(end, first),
        Step::Deliver(other, first),
        Step::Transmit(other, 1 << 30),
        Step::Deliver(end, 1 << 30),
        Step::Receive(other, 600_000),
    ]
}

/// The programs take turns, so that an acknowledgement is held back for the answer.
fn turns(end: End) -> Vec<Step> {
    let turn = |end| {
        [
            Step::Post(end, Post::new(Kind::Write, 8)),
            Step::Settle,
            Step::Poll(end),
        ]
    };
    let both = [turn(end), turn(1 - end)].concat();
    let mut steps = both.repeat(9);
    steps.extend(turn(end));
    steps
}

/// Memory goes away while bytes move between it and the link, which single steps rarely bring about.
fn gone_meanwhile(end: End, a: u16, b: u16) -> Vec<Step> {
    const KINDS: [Kind; 4] = [Kind::WriteImm, Kind::Send, Kind::Read, Kind::Write];
    const LENGTHS: [u32; 4] = [9000, 5000, 8000, 600];
    let kind = KINDS[a as usize & 3];
    let post = Post {
        fence: a & 4 != 0,
        place: b as usize & 1,
        sges: 1 + (a as usize >> 3 & 1),
        ..Post::new(kind, LENGTHS[a as usize >> 4 & 3])
    };
    // Of the end that the bytes go to, of the one that they come from, or its queue pair.
    let (from, to) = match kind {
        Kind::Read => (1 - end, end),
        _ => (end, 1 - end),
    };
    let part = 100 + (b >> 3) as usize % 8500;
    let region = |end: End| match (kind, end == to) {
        (Kind::Send, _) | (Kind::Read, true) => b as usize & 1,
        (Kind::Read, false) | (_, true) => 2 + (b as usize & 1),
        _ => b as usize & 1,
    };
    let ends = match b >> 1 & 3 {
        0 => Step::Fail(from),
        1 => Step::Reset(to),
        2 => Step::Deregister(from, region(from)),
        _ => Step::Deregister(to, region(to)),
    };
    let mut steps = vec![Step::Settle, Step::Post(end, post)];
    if kind == Kind::Read {
        steps.extend([
            Step::Transmit(end, 1 << 30),
            Step::Deliver(1 - end, 1 << 30),
        ]);
    }
    steps.extend([Step::Transmit(from, part), Step::Deliver(to, part), ends]);
    steps
}

fn setup() -> impl Strategy<Value = Setup> {
    (any::<u32>(), any::<u16>()).prop_map(|(bits, more)| {
        let access = |n: u16| match n & 31 {
            31 => Access::NoWrite,
            30 => Access::NoRead,
            29 => Access::NoAtomic,
            _ => Access::All,
        };
        Setup {
            connected: bits & 7 != 7,
            rnr_retry: [7, 7, 0, 1, 2, 6, 7, 3][bits as usize >> 3 & 7],
            reads: [
                2,
                1,
                3,
                2,
                1,
                4,
                2,
                if bits & 0x1c00 == 0x1c00 { 0 } else { 1 },
            ][bits as usize >> 6 & 7],
            max_wr: [8, 3, 1, 5][bits as usize >> 13 & 3],
            receives: [2, 0, 8, 1][bits as usize >> 21 & 3],
            srq: [bits & 1 << 15 != 0, bits & 1 << 16 != 0],
            watches: bits & 1 << 17 == 0,
            access: [access(more), access(more >> 5)],
            again: bits >> 18 & 7 == 7,
        }
    })
}

/// Schedules of up to so many steps.
pub fn schedules(most: usize) -> impl Strategy<Value = Schedule> {
    let some = |(kind, a, b): (u8, u16, u16)| match kind {
        254.. if (1..5).contains(&(b >> 6)) => turns(kind as usize & 1),
        254.. if b >> 6 == 0 || b >> 6 > 1016 => long_and_not_ready(kind as usize & 1, a, b),
        254.. => gone_meanwhile(kind as usize & 1, a, b),
        _ => vec![step((kind, a, b))],
    };
    let steps = prop::collection::vec(any::<(u8, u16, u16)>().prop_map(some), 1..most);
    (setup(), steps).prop_map(|(setup, steps)| Schedule {
        setup,
        steps: steps.concat(),
    })
}
