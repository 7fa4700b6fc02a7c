//! What the two ends of a connection say to each other, as bytes.
//!
//! A frame is a header of [`HEADER`] bytes, fields whose number its kind fixes, and a payload. All
//! numbers are little endian. Nothing here touches memory but the slices it is given, and whatever
//! bytes come, [`decode`] gives a frame whose lengths are within bounds or says that they are none.
#![forbid(unsafe_code)]

/// Bytes that every frame begins with: length of the rest (4), kind (1), flags (1), code (2).
pub const HEADER: usize = 8;
/// The longest payload of one frame; longer messages are cut.
pub const SEGMENT: usize = 256 * 1024;
/// The longest message, as of most devices.
pub const MAX_MESSAGE: u64 = 1 << 31;
/// The longest header and fields of any frame.
pub const MAX_FIELDS: usize = HEADER + 32 + Private::MAX;
/// What a connection begins with, so that strangers are known by their first bytes.
const MAGIC: u64 = u64::from_le_bytes(*b"softvrbs");
/// The version of what is described here.
pub const VERSION: u16 = 1;
/// The bytes at the start of a connection that are the same in all versions, so that any two versions
/// can tell each other apart: the header, with `REQUEST`, `REPLY` or `VERSIONS` as its kind and
/// the version as its code, and then the magic number. What follows is up to the version. Only
/// `REJECT` may come in place of them, from a side that knows the version it was asked in.
pub const OPENING: usize = HEADER + size_of::<u64>();

bitflags::bitflags! {
    /// What is to be known of one segment of a message.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Flags: u8 {
        const FIRST = 1;
        const LAST = 2;
        const IMM = 4;
        const SOLICITED = 8;
        /// The sender waits for the acknowledgement.
        const ACK = 16;
    }
}

/// Private data of connection management.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Private {
    len: u8,
    bytes: [u8; Self::MAX],
}

impl Private {
    /// What a reply can carry.
    pub const MAX: usize = 196;
    pub const REQUEST: usize = 56;
    pub const REJECT: usize = 148;
    pub const NONE: Self = Private {
        len: 0,
        bytes: [0; Self::MAX],
    };

    pub fn new(data: &[u8], max: usize) -> Option<Self> {
        let mut private = Self::NONE;
        if data.len() > max.min(Self::MAX) {
            return None;
        }
        private.len = data.len() as u8;
        private.bytes[..data.len()].copy_from_slice(data);
        Some(private)
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }

    /// The data as connection management hands it over: with zeroes up to what fits in the message.
    pub fn padded(&self, len: usize) -> &[u8] {
        &self.bytes[..len]
    }
}

impl Default for Private {
    fn default() -> Self {
        Self::NONE
    }
}

impl std::fmt::Debug for Private {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{:02x?}", self.bytes())
    }
}

/// What each side of a connection tells the other of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Params {
    pub qp_num: u32,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    /// How often the other side is to try again when no receive is posted.
    pub rnr_retry_count: u8,
    pub srq: u8,
}

/// A place in the memory of the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    pub addr: u64,
    pub rkey: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushKind {
    Global,
    Persistent,
    Both,
}

/// Why a request was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nak {
    InvalidRequest,
    AccessError,
    OperationError,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    // Connection management.
    Request(Params, Private),
    Reply(Params, Private),
    Reject(u16, Private),
    Ready,
    Disconnect,
    Disconnected,
    // Requests; `seq` counts the messages of a direction.
    Send {
        seq: u32,
        flags: Flags,
        imm: u32,
    },
    Write {
        seq: u32,
        flags: Flags,
        imm: u32,
        at: Remote,
        /// Of the message, from this segment on.
        left: u32,
    },
    Read {
        seq: u32,
        at: Remote,
        len: u32,
    },
    Atomic {
        seq: u32,
        at: Remote,
        op: AtomicOp,
    },
    AtomicWrite {
        seq: u32,
        flags: Flags,
        at: Remote,
        value: [u8; 8],
    },
    Flush {
        seq: u32,
        flags: Flags,
        at: Remote,
        len: u64,
        kind: FlushKind,
        /// All of the region, not only the range.
        whole: bool,
    },
    // Responses.
    Data {
        seq: u32,
        flags: Flags,
    },
    Value {
        seq: u32,
        value: u64,
    },
    /// All messages up to this one have been carried out.
    Ack(u32),
    Nak(u32, Nak),
    /// No receive was posted for this message; it and what follows it was dropped.
    NotReady {
        seq: u32,
        timer: u8,
    },
    /// A receive has been posted since.
    ReadyAgain,
    /// The queue pair is in error: nothing will be carried out any more.
    Failed,
    /// Answers a request of another version: this one is spoken here.
    Version(u16),
}

/// The bytes are not those of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Why the first frame of a connection is not one of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stranger {
    /// It is not softverbs that speaks.
    WrongMagic,
    /// It is softverbs, of this version of the protocol.
    WrongVersion(u16),
    /// It begins as this version does, and goes on as it does not.
    Malformed,
}

const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const REJECT: u8 = 3;
const READY: u8 = 4;
const DISCONNECT: u8 = 5;
const DISCONNECTED: u8 = 6;
const SEND: u8 = 7;
const WRITE: u8 = 8;
const READ: u8 = 9;
const COMPARE_SWAP: u8 = 10;
const FETCH_ADD: u8 = 11;
const ATOMIC_WRITE: u8 = 12;
const FLUSH: u8 = 13;
const DATA: u8 = 14;
const VALUE: u8 = 15;
const ACK: u8 = 16;
const NAK: u8 = 17;
const NOT_READY: u8 = 18;
const READY_AGAIN: u8 = 19;
const FAILED: u8 = 20;
const VERSIONS: u8 = 21;

/// Writes fields one after the other; there is room for those of any frame.
struct Fields<'a>(&'a mut [u8; MAX_FIELDS], usize);

impl Fields<'_> {
    #[inline(always)]
    fn put<const N: usize>(&mut self, bytes: [u8; N]) -> &mut Self {
        self.0[self.1..self.1 + N].copy_from_slice(&bytes);
        self.1 += N;
        self
    }

    #[inline(always)]
    fn u32(&mut self, value: u32) -> &mut Self {
        self.put(value.to_le_bytes())
    }

    #[inline(always)]
    fn u64(&mut self, value: u64) -> &mut Self {
        self.put(value.to_le_bytes())
    }

    #[inline(always)]
    fn remote(&mut self, at: Remote) -> &mut Self {
        self.u64(at.addr).u32(at.rkey)
    }

    fn params(&mut self, params: &Params, private: &Private) {
        self.u64(MAGIC).u32(params.qp_num);
        self.put([
            params.responder_resources,
            params.initiator_depth,
            params.flow_control,
            params.retry_count,
            params.rnr_retry_count,
            params.srq,
        ]);
        self.private(private);
    }

    fn private(&mut self, private: &Private) {
        let len = private.len as usize;
        self.0[self.1..self.1 + len].copy_from_slice(private.bytes());
        self.1 += len;
    }
}

/// Writes a frame that is followed by `payload` bytes; gives the number of bytes written.
#[inline]
pub fn encode(frame: &Frame, payload: usize, out: &mut [u8; MAX_FIELDS]) -> usize {
    debug_assert!(payload <= SEGMENT);
    let mut to = Fields(out, HEADER);
    let (kind, flags, code) = match frame {
        Frame::Request(params, private) => {
            to.params(params, private);
            (REQUEST, 0, VERSION)
        }
        Frame::Reply(params, private) => {
            to.params(params, private);
            (REPLY, 0, VERSION)
        }
        Frame::Reject(reason, private) => {
            to.private(private);
            (REJECT, 0, *reason)
        }
        Frame::Ready => (READY, 0, 0),
        Frame::Disconnect => (DISCONNECT, 0, 0),
        Frame::Disconnected => (DISCONNECTED, 0, 0),
        Frame::Send { seq, flags, imm } => {
            to.u32(*seq).u32(*imm);
            (SEND, flags.bits(), 0)
        }
        Frame::Write {
            seq,
            flags,
            imm,
            at,
            left,
        } => {
            to.u32(*seq).u32(*imm).remote(*at).u32(*left);
            (WRITE, flags.bits(), 0)
        }
        Frame::Read { seq, at, len } => {
            to.u32(*seq).remote(*at).u32(*len);
            (READ, 0, 0)
        }
        Frame::Atomic { seq, at, op } => {
            to.u32(*seq).remote(*at);
            match op {
                AtomicOp::CompareSwap { compare, swap } => {
                    to.u64(*compare).u64(*swap);
                    (COMPARE_SWAP, 0, 0)
                }
                AtomicOp::FetchAdd(add) => {
                    to.u64(*add);
                    (FETCH_ADD, 0, 0)
                }
            }
        }
        Frame::AtomicWrite {
            seq,
            flags,
            at,
            value,
        } => {
            to.u32(*seq).remote(*at).put(*value);
            (ATOMIC_WRITE, flags.bits(), 0)
        }
        Frame::Flush {
            seq,
            flags,
            at,
            len,
            kind,
            whole,
        } => {
            to.u32(*seq).remote(*at).u64(*len);
            let code = match kind {
                FlushKind::Global => 1,
                FlushKind::Persistent => 2,
                FlushKind::Both => 3,
            };
            (FLUSH, flags.bits(), code | u16::from(*whole) << 8)
        }
        Frame::Data { seq, flags } => {
            to.u32(*seq);
            (DATA, flags.bits(), 0)
        }
        Frame::Value { seq, value } => {
            to.u32(*seq).u64(*value);
            (VALUE, 0, 0)
        }
        Frame::Ack(seq) => {
            to.u32(*seq);
            (ACK, 0, 0)
        }
        Frame::Nak(seq, nak) => {
            to.u32(*seq);
            let code = match nak {
                Nak::InvalidRequest => 1,
                Nak::AccessError => 2,
                Nak::OperationError => 3,
            };
            (NAK, 0, code)
        }
        Frame::NotReady { seq, timer } => {
            to.u32(*seq);
            (NOT_READY, 0, (*timer).into())
        }
        Frame::ReadyAgain => (READY_AGAIN, 0, 0),
        Frame::Failed => (FAILED, 0, 0),
        Frame::Version(version) => {
            to.u64(MAGIC);
            (VERSIONS, 0, *version)
        }
    };
    let end = to.1;
    let rest = (end - HEADER + payload) as u32;
    out[..4].copy_from_slice(&rest.to_le_bytes());
    out[4] = kind;
    out[5] = flags;
    out[6..8].copy_from_slice(&code.to_le_bytes());
    end
}

/// Reads fields one after the other.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    #[inline(always)]
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*taken)
    }

    #[inline(always)]
    fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_le_bytes)
    }

    #[inline(always)]
    fn u64(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_le_bytes)
    }

    #[inline(always)]
    fn remote(&mut self) -> Result<Remote, Malformed> {
        Ok(Remote {
            addr: self.u64()?,
            rkey: self.u32()?,
        })
    }

    fn params(&mut self, code: u16, max: usize) -> Result<(Params, Private), Malformed> {
        if self.u64()? != MAGIC || code != VERSION {
            return Err(Malformed);
        }
        let qp_num = self.u32()?;
        let [
            responder_resources,
            initiator_depth,
            flow_control,
            retry_count,
            rnr_retry_count,
            srq,
        ] = self.take()?;
        let params = Params {
            qp_num,
            responder_resources,
            initiator_depth,
            flow_control,
            retry_count,
            rnr_retry_count,
            srq,
        };
        Ok((params, self.private(max)?))
    }

    /// What is left is private data.
    fn private(&mut self, max: usize) -> Result<Private, Malformed> {
        let private = Private::new(self.0, max).ok_or(Malformed)?;
        self.0 = &[];
        Ok(private)
    }
}

/// A frame with how many bytes its header and fields took, and how many of payload follow.
pub type Decoded = (Frame, usize, usize);

/// Reads the frame that `bytes` begin with; `None` if its fields are not all there yet.
#[inline]
pub fn decode(bytes: &[u8]) -> Result<Option<Decoded>, Malformed> {
    let Some((header, _)) = bytes.split_first_chunk::<HEADER>() else {
        return Ok(None);
    };
    let [l0, l1, l2, l3, kind, flags, c0, c1] = *header;
    let rest = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    let code = u16::from_le_bytes([c0, c1]);
    let flags = Flags::from_bits(flags).ok_or(Malformed)?;
    // How many bytes the fields take. Private data has no payload after it.
    let (fields, segment) = match kind {
        REQUEST => (rest, 0),
        REPLY => (rest, 0),
        REJECT => (rest, 0),
        READY | DISCONNECT | DISCONNECTED | READY_AGAIN | FAILED => (0, 0),
        SEND => (8, SEGMENT),
        WRITE => (24, SEGMENT),
        READ => (20, 0),
        COMPARE_SWAP => (32, 0),
        FETCH_ADD | ATOMIC_WRITE | FLUSH => (24, 0),
        DATA => (4, SEGMENT),
        VALUE => (12, 0),
        ACK | NAK | NOT_READY => (4, 0),
        VERSIONS => (8, 0),
        _ => return Err(Malformed),
    };
    // What means nothing in a kind is nothing, so that there is one form of each frame.
    let has_flags = matches!(kind, SEND | WRITE | ATOMIC_WRITE | FLUSH | DATA);
    let has_code = matches!(
        kind,
        REQUEST | REPLY | REJECT | FLUSH | NAK | NOT_READY | VERSIONS
    );
    if !(has_flags || flags.is_empty()) || !(has_code || code == 0) {
        return Err(Malformed);
    }
    let payload = rest.checked_sub(fields).ok_or(Malformed)?;
    if payload > segment || HEADER + fields > MAX_FIELDS {
        return Err(Malformed);
    }
    let Some(slice) = bytes.get(HEADER..HEADER + fields) else {
        return Ok(None);
    };
    let mut from = Reader(slice);
    let frame = match kind {
        REQUEST => {
            let (params, private) = from.params(code, Private::REQUEST)?;
            Frame::Request(params, private)
        }
        REPLY => {
            let (params, private) = from.params(code, Private::MAX)?;
            Frame::Reply(params, private)
        }
        REJECT => Frame::Reject(code, from.private(Private::REJECT)?),
        READY => Frame::Ready,
        DISCONNECT => Frame::Disconnect,
        DISCONNECTED => Frame::Disconnected,
        SEND => Frame::Send {
            seq: from.u32()?,
            flags,
            imm: from.u32()?,
        },
        WRITE => {
            let (seq, imm) = (from.u32()?, from.u32()?);
            let (at, left) = (from.remote()?, from.u32()?);
            // The last segment is one that leaves nothing.
            let last = flags.contains(Flags::LAST);
            if (left as usize) < payload || last != (left as usize == payload) {
                return Err(Malformed);
            }
            Frame::Write {
                seq,
                flags,
                imm,
                at,
                left,
            }
        }
        READ => Frame::Read {
            seq: from.u32()?,
            at: from.remote()?,
            len: from.u32()?,
        },
        COMPARE_SWAP => Frame::Atomic {
            seq: from.u32()?,
            at: from.remote()?,
            op: AtomicOp::CompareSwap {
                compare: from.u64()?,
                swap: from.u64()?,
            },
        },
        FETCH_ADD => Frame::Atomic {
            seq: from.u32()?,
            at: from.remote()?,
            op: AtomicOp::FetchAdd(from.u64()?),
        },
        ATOMIC_WRITE => Frame::AtomicWrite {
            seq: from.u32()?,
            flags,
            at: from.remote()?,
            value: from.take()?,
        },
        FLUSH => Frame::Flush {
            seq: from.u32()?,
            flags,
            at: from.remote()?,
            len: from.u64()?,
            kind: match code & 0xff {
                1 => FlushKind::Global,
                2 => FlushKind::Persistent,
                3 => FlushKind::Both,
                _ => return Err(Malformed),
            },
            whole: match code >> 8 {
                0 => false,
                1 => true,
                _ => return Err(Malformed),
            },
        },
        DATA => Frame::Data {
            seq: from.u32()?,
            flags,
        },
        VALUE => Frame::Value {
            seq: from.u32()?,
            value: from.u64()?,
        },
        ACK => Frame::Ack(from.u32()?),
        NAK => {
            let nak = match code {
                1 => Nak::InvalidRequest,
                2 => Nak::AccessError,
                3 => Nak::OperationError,
                _ => return Err(Malformed),
            };
            Frame::Nak(from.u32()?, nak)
        }
        NOT_READY => Frame::NotReady {
            seq: from.u32()?,
            timer: u8::try_from(code)
                .ok()
                .filter(|t| *t < 32)
                .ok_or(Malformed)?,
        },
        READY_AGAIN => Frame::ReadyAgain,
        VERSIONS => {
            if from.u64()? != MAGIC {
                return Err(Malformed);
            }
            Frame::Version(code)
        }
        _ => Frame::Failed,
    };
    Ok(Some((frame, HEADER + fields, payload)))
}

/// As [`decode`], of the first frame that comes from the other side: tells who does not speak this
/// protocol from who speaks it badly.
pub fn decode_first(bytes: &[u8]) -> Result<Option<Decoded>, Stranger> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else {
        return Ok(None);
    };
    let [.., kind, _, c0, c1] = *header;
    match kind {
        REJECT => {}
        REQUEST | REPLY | VERSIONS => {
            let Some(magic) = rest.first_chunk() else {
                return Ok(None);
            };
            if u64::from_le_bytes(*magic) != MAGIC {
                return Err(Stranger::WrongMagic);
            }
            let version = u16::from_le_bytes([c0, c1]);
            if version != VERSION {
                return Err(Stranger::WrongVersion(version));
            }
        }
        _ => return Err(Stranger::WrongMagic),
    }
    decode(bytes).map_err(|Malformed| Stranger::Malformed)
}
