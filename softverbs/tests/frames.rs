//! The frames as bytes: what is written is what is read, and nothing that comes is too much.

mod fuzz;

use fuzz::{Cases, pick, pick_u64};
use softverbs::proto::frames::{
    AtomicOp, Decoded, Flags, FlushKind, Frame, HEADER, MAX_FIELDS, Malformed, Nak, OPENING,
    Params, Private, Remote, SEGMENT, Stranger, VERSION, decode, decode_first, encode,
};
use std::mem::discriminant;

/// How many inputs each test tries.
const CASES: u64 = if cfg!(debug_assertions) {
    200_000
} else {
    4_000_000
};
const KINDS: u8 = 21;

/// Any frame, with the length of a payload that it may have.
fn frame(rng: &mut fastrand::Rng, kind: u8) -> (Frame, usize) {
    let payload = match rng.u8(..4) {
        0 => 0,
        1 => SEGMENT,
        _ => rng.usize(..=SEGMENT),
    };
    let seq = pick(rng);
    let at = Remote {
        addr: pick_u64(rng),
        rkey: pick(rng),
    };
    let flags = Flags::from_bits_truncate(rng.u8(..));
    match kind {
        0 => (
            Frame::Request(params(rng), private(rng, Private::REQUEST)),
            0,
        ),
        1 => (Frame::Reply(params(rng), private(rng, Private::MAX)), 0),
        2 => (Frame::Reject(rng.u16(..), private(rng, Private::REJECT)), 0),
        3 => (Frame::Ready, 0),
        4 => (Frame::Disconnect, 0),
        5 => (Frame::Disconnected, 0),
        6 => {
            let imm = pick(rng);
            (Frame::Send { seq, flags, imm }, payload)
        }
        7 => {
            let last = rng.bool();
            let left = if last {
                payload as u32
            } else {
                rng.u32(payload as u32 + 1..)
            };
            let mut flags = flags;
            flags.set(Flags::LAST, last);
            let imm = pick(rng);
            let write = Frame::Write {
                seq,
                flags,
                imm,
                at,
                left,
            };
            (write, payload)
        }
        8 => {
            let len = pick(rng);
            (Frame::Read { seq, at, len }, 0)
        }
        9 | 10 => {
            let op = match kind {
                9 => AtomicOp::FetchAdd(pick_u64(rng)),
                _ => AtomicOp::CompareSwap {
                    compare: pick_u64(rng),
                    swap: pick_u64(rng),
                },
            };
            (Frame::Atomic { seq, at, op }, 0)
        }
        11 => {
            let value = pick_u64(rng).to_ne_bytes();
            let write = Frame::AtomicWrite {
                seq,
                flags,
                at,
                value,
            };
            (write, 0)
        }
        12 => {
            let kinds = [FlushKind::Global, FlushKind::Persistent, FlushKind::Both];
            let flush = Frame::Flush {
                seq,
                flags,
                at,
                len: pick_u64(rng),
                kind: kinds[rng.usize(..3)],
                whole: rng.bool(),
            };
            (flush, 0)
        }
        13 => (Frame::Data { seq, flags }, payload),
        14 => {
            let value = pick_u64(rng);
            (Frame::Value { seq, value }, 0)
        }
        15 => (Frame::Ack(seq), 0),
        16 => {
            let naks = [Nak::InvalidRequest, Nak::AccessError, Nak::OperationError];
            (Frame::Nak(seq, naks[rng.usize(..3)]), 0)
        }
        17 => {
            let timer = rng.u8(..32);
            (Frame::NotReady { seq, timer }, 0)
        }
        18 => (Frame::ReadyAgain, 0),
        19 => (Frame::Version(rng.u16(..)), 0),
        _ => (Frame::Failed, 0),
    }
}

fn params(rng: &mut fastrand::Rng) -> Params {
    Params {
        qp_num: pick(rng),
        responder_resources: rng.u8(..),
        initiator_depth: rng.u8(..),
        flow_control: rng.u8(..),
        retry_count: rng.u8(..),
        rnr_retry_count: rng.u8(..),
        srq: rng.u8(..),
    }
}

fn private(rng: &mut fastrand::Rng, most: usize) -> Private {
    let mut data = [0; Private::MAX];
    rng.fill(&mut data);
    let len = rng.usize(..=most);
    Private::new(&data[..len], most).expect("as much as fits")
}

/// The bytes of a frame, without its payload.
fn bytes((frame, payload): &(Frame, usize)) -> Vec<u8> {
    let mut out = [0xa5; MAX_FIELDS];
    let len = encode(frame, *payload, &mut out);
    out[..len].to_vec()
}

#[test]
fn what_is_written_is_what_is_read() {
    let mut kinds = std::collections::HashSet::new();
    let mut cases = Cases::new("frames", "what_is_written_is_what_is_read", CASES);
    while let Some((seed, rng)) = cases.one() {
        let of = (seed % u64::from(KINDS)) as u8;
        let frame = frame(rng, of);
        kinds.insert(discriminant(&frame.0));
        let mut bytes = bytes(&frame);
        let len = bytes.len();
        assert_eq!(
            u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize,
            len - HEADER + frame.1,
            "length of {frame:?}"
        );
        // A part of it is a part of it, and what follows it does not matter.
        let part = rng.usize(..len);
        assert_eq!(
            decode(&bytes[..part]),
            Ok(None),
            "{part} bytes of {frame:?}"
        );
        let whole = Ok(Some((frame.0, len, frame.1)));
        assert_eq!(decode(&bytes), whole);
        bytes.push(rng.u8(..));
        assert_eq!(decode(&bytes), whole);
    }
    // Both atomics are one kind.
    assert_eq!(kinds.len(), usize::from(KINDS) - 1);
    cases.tell("frames");
}

/// Bytes that are nearly a frame, or not at all.
fn nearly(rng: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = if rng.u8(..8) == 0 {
        let mut bytes = vec![0; rng.usize(..MAX_FIELDS + 8)];
        rng.fill(&mut bytes);
        bytes
    } else {
        let of = rng.u8(..KINDS);
        bytes(&frame(rng, of))
    };
    for _ in 0..rng.u8(..4) {
        if bytes.is_empty() {
            break;
        }
        // The header is what most depends on.
        let most = if rng.bool() {
            bytes.len().min(HEADER)
        } else {
            bytes.len()
        };
        let i = rng.usize(..most);
        match rng.u8(..6) {
            0 => bytes[i] = rng.u8(..),
            1 => bytes[i] ^= 1 << rng.u8(..8),
            2 => bytes[i] = bytes[i].wrapping_add(1),
            3 => bytes.truncate(i),
            4 => bytes.insert(i, rng.u8(..)),
            _ => {
                let length = pick(rng).to_le_bytes();
                let n = bytes.len().min(4);
                bytes[..n].copy_from_slice(&length[..n]);
            }
        }
    }
    bytes
}

/// What holds of whatever was made of any bytes.
fn check(bytes: &[u8], (frame, used, payload): &Decoded) {
    assert!((HEADER..=MAX_FIELDS.min(bytes.len())).contains(used));
    assert!(*payload <= SEGMENT);
    let most = match frame {
        Frame::Request(_, private) => (private.bytes().len(), Private::REQUEST),
        Frame::Reply(_, private) => (private.bytes().len(), Private::MAX),
        Frame::Reject(_, private) => (private.bytes().len(), Private::REJECT),
        _ => (0, 0),
    };
    assert!(most.0 <= most.1, "private data of {frame:?}");
    if let Frame::Write { flags, left, .. } = frame {
        assert!(*payload <= *left as usize);
        assert_eq!(flags.contains(Flags::LAST), *payload == *left as usize);
    }
    let carries = matches!(
        frame,
        Frame::Send { .. } | Frame::Write { .. } | Frame::Data { .. }
    );
    assert!(*payload == 0 || carries, "payload of {frame:?}");
    // No two forms mean the same.
    let again = self::bytes(&(*frame, *payload));
    assert_eq!(again, bytes[..*used], "{frame:?} is written otherwise");
}

#[test]
fn any_bytes_are_a_frame_within_bounds_or_none() {
    let mut accepted = 0_u64;
    let name = "any_bytes_are_a_frame_within_bounds_or_none";
    let mut cases = Cases::new("frames", name, CASES);
    while let Some((_, rng)) = cases.one() {
        let bytes = nearly(rng);
        let whole = decode(&bytes);
        match &whole {
            Ok(Some(decoded)) => {
                accepted += 1;
                check(&bytes, decoded);
            }
            // More is waited for no longer than any frame is long.
            Ok(None) => assert!(bytes.len() < MAX_FIELDS, "{bytes:02x?}"),
            Err(Malformed) => {}
        }
        // What is known of a part holds of the whole.
        let part = rng.usize(..=bytes.len());
        match decode(&bytes[..part]) {
            Ok(None) => {}
            known => assert_eq!(known, whole, "{part} of {bytes:02x?}"),
        }
    }
    assert!(accepted > CASES / 20, "only {accepted} were frames");
    cases.tell(&format!("inputs, {accepted} of them frames"));
}

/// The opening of a connection in that version, with what follows it there.
fn opening(rng: &mut fastrand::Rng, version: u16) -> Vec<u8> {
    let mut bytes = bytes(&(Frame::Version(version), 0));
    // Request, reply, version; the length and the flags are up to the version.
    bytes[4] = [1, 2, 21][rng.usize(..3)];
    rng.fill(&mut bytes[..4]);
    bytes[5] = rng.u8(..);
    for _ in 0..rng.usize(..2 * MAX_FIELDS) {
        bytes.push(rng.u8(..));
    }
    bytes
}

/// The opening is the same for ever: these are its bytes.
#[test]
fn all_versions_begin_alike() {
    let answer = bytes(&(Frame::Version(VERSION), 0));
    assert_eq!(answer, b"\x08\0\0\0\x15\0\x01\0softvrbs");
    assert_eq!(answer.len(), OPENING);
    let (mut rng, none) = (fastrand::Rng::with_seed(1), Private::NONE);
    let params = params(&mut rng);
    for (frame, kind) in [
        (Frame::Request(params, none), 1),
        (Frame::Reply(params, none), 2),
    ] {
        let bytes = bytes(&(frame, 0));
        assert_eq!(
            bytes[4..OPENING],
            [&[kind, 0, 1, 0], &b"softvrbs"[..]].concat()
        );
    }
}

#[test]
fn another_version_is_known_by_its_opening_whatever_follows() {
    let name = "another_version_is_known_by_its_opening_whatever_follows";
    let mut cases = Cases::new("frames", name, CASES / 10);
    while let Some((_, rng)) = cases.one() {
        let version = rng.u16(..);
        let bytes = opening(rng, version);
        let known = decode_first(&bytes);
        if version == VERSION {
            assert_ne!(known, Err(Stranger::WrongMagic), "{bytes:02x?}");
            assert!(
                !matches!(known, Err(Stranger::WrongVersion(_))),
                "{bytes:02x?}"
            );
            continue;
        }
        assert_eq!(known, Err(Stranger::WrongVersion(version)), "{bytes:02x?}");
        let less = rng.usize(..OPENING);
        assert_eq!(
            decode_first(&bytes[..less]),
            Ok(None),
            "{less} of {bytes:02x?}"
        );
        // One bit of the magic number more or less, and it is somebody else.
        let mut other = bytes.clone();
        other[rng.usize(HEADER..OPENING)] ^= 1 << rng.u8(..8);
        assert_eq!(
            decode_first(&other),
            Err(Stranger::WrongMagic),
            "{other:02x?}"
        );
    }
    cases.tell("openings");
}

/// First frames: what is known of a part holds of the whole, what is a frame is the one that it is
/// later, and what begins no connection is not of this protocol.
#[test]
fn a_first_frame_is_a_frame_or_of_a_stranger() {
    let name = "a_first_frame_is_a_frame_or_of_a_stranger";
    let mut cases = Cases::new("frames", name, CASES);
    let mut met = std::collections::HashSet::new();
    while let Some((_, rng)) = cases.one() {
        let bytes = nearly(rng);
        let whole = decode_first(&bytes);
        let begins = matches!(bytes.get(4), Some(1 | 2 | 3 | 21));
        match whole {
            Ok(Some((frame, ..))) => {
                assert_eq!(decode(&bytes), Ok(whole.unwrap()));
                assert!(begins, "{frame:?} begins a connection");
                met.insert("a frame");
            }
            Ok(None) => assert!(bytes.len() < MAX_FIELDS, "{bytes:02x?}"),
            Err(Stranger::WrongMagic) => {
                met.insert("a stranger");
            }
            Err(Stranger::WrongVersion(_)) => {
                assert!(begins, "{bytes:02x?}");
                met.insert("another version");
            }
            Err(Stranger::Malformed) => {
                assert_eq!(decode(&bytes), Err(Malformed), "{bytes:02x?}");
                assert!(begins, "{bytes:02x?}");
                met.insert("bad words");
            }
        }
        let part = rng.usize(..=bytes.len());
        match decode_first(&bytes[..part]) {
            Ok(None) => {}
            known => assert_eq!(known, whole, "{part} of {bytes:02x?}"),
        }
    }
    assert_eq!(met.len(), 4, "only {met:?} came");
    cases.tell("first frames");
}

/// Reads a stream as it comes, in pieces.
#[derive(Default)]
struct Reader {
    buffer: Vec<u8>,
    left: usize,
    got: Vec<(Frame, usize)>,
    /// Of all payloads, and whether a frame was none.
    payload: Vec<u8>,
    malformed: bool,
}

impl Reader {
    fn take(&mut self, piece: &[u8]) {
        self.buffer.extend_from_slice(piece);
        let mut at = 0;
        while !self.malformed {
            let n = self.left.min(self.buffer.len() - at);
            self.payload.extend_from_slice(&self.buffer[at..at + n]);
            self.left -= n;
            at += n;
            if self.left > 0 {
                break;
            }
            match decode(&self.buffer[at..]) {
                Ok(None) => break,
                Ok(Some((frame, used, payload))) => {
                    self.got.push((frame, payload));
                    self.left = payload;
                    at += used;
                }
                Err(Malformed) => self.malformed = true,
            }
        }
        self.buffer.drain(..at);
    }
}

#[test]
fn a_stream_is_the_same_however_it_is_cut() {
    let name = "a_stream_is_the_same_however_it_is_cut";
    let mut cases = Cases::new("frames", name, CASES / 100);
    let mut frames = 0;
    while let Some((_, rng)) = cases.one() {
        let mut sent = vec![];
        let mut payloads = vec![];
        let mut stream = vec![];
        for _ in 0..rng.usize(1..24) {
            let of = rng.u8(..KINDS);
            let mut one = frame(rng, of);
            // Long ones say nothing new here.
            let short = one.1.min(rng.usize(..600));
            if let Frame::Write { flags, left, .. } = &mut one.0 {
                *left -= (one.1 - short) as u32;
                assert_eq!(flags.contains(Flags::LAST), short == *left as usize);
            }
            one.1 = short;
            stream.extend(bytes(&one));
            let start = payloads.len();
            payloads.resize(start + short, 0);
            rng.fill(&mut payloads[start..]);
            stream.extend(&payloads[start..]);
            sent.push(one);
        }
        frames += sent.len();
        let nonsense = rng.bool();
        if nonsense {
            stream.extend([0, 0, 0, 0, 0xff, 0, 0, 0]);
        }
        let mut reader = Reader::default();
        let mut left = &stream[..];
        let most = [1, 7, 64, 4096][rng.usize(..4)];
        while !left.is_empty() {
            let (piece, rest) = left.split_at(rng.usize(1..=most).min(left.len()));
            reader.take(piece);
            left = rest;
        }
        assert_eq!(reader.got, sent);
        assert_eq!(reader.payload, payloads);
        assert_eq!(reader.malformed, nonsense);
    }
    cases.tell(&format!("streams, {frames} frames"));
}
