//! What is to be sent: frames that are gathered in a buffer, and the payload of the last of them,
//! which is sent from where it is.

use super::frames::{self, Frame, MAX_FIELDS, Remote};

/// Frames are gathered up to so many bytes: a full TCP segment on loopback takes 64 KiB, and half
/// of that stays in the processor's first cache.
const CAPACITY: usize = 32 * 1024;
/// A payload up to this length is copied into the buffer. A longer one is sent from the program's
/// memory: the look-up of its region and the longer system call cost about what copying 1 KiB does.
pub const COPY: usize = 1024;
/// So much of the end of a longer message is copied, and is a frame of its own.
///
/// The memory of the rest may go away while its frame is being sent: it is deregistered, or the
/// queue pair is flushed. The frame is then filled with zeroes, and must not be the last.
pub const TAIL: usize = 8;

/// Where the payload after the gathered frames comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A send request, from an offset on.
    Request { seq: u32, offset: u32 },
    /// A region that the other side reads with the request of that number.
    Region { seq: u32, at: Remote },
    /// The memory has gone away; the frame has to be filled.
    Zeroes,
}

#[derive(Clone, Copy, Debug)]
pub struct Bulk {
    pub source: Source,
    pub left: usize,
}

#[derive(Debug, Default)]
pub struct Outbound {
    buffer: Vec<u8>,
    /// How much of the buffer has been sent.
    sent: usize,
    bulk: Option<Bulk>,
    /// The frame with the end of the message, which follows the payload.
    tail: Vec<u8>,
    scratch: Scratch,
}

/// Where frames are put together.
#[derive(Debug)]
struct Scratch([u8; MAX_FIELDS]);

impl Default for Scratch {
    fn default() -> Self {
        Scratch([0; MAX_FIELDS])
    }
}

impl Outbound {
    /// Makes the room that is needed, so that sending allocates nothing.
    pub fn reserve(&mut self) {
        self.buffer.reserve_exact(CAPACITY);
        self.tail.reserve_exact(MAX_FIELDS + TAIL);
    }

    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty() && self.bulk.is_none()
    }

    /// Whether one more frame with a copied payload fits.
    pub fn has_room(&self) -> bool {
        self.bulk.is_none() && self.buffer.len() + MAX_FIELDS + COPY <= CAPACITY
    }

    /// Adds a frame that `payload` bytes follow.
    pub fn frame(&mut self, frame: &Frame, payload: usize) {
        append(&mut self.buffer, &mut self.scratch, frame, payload);
    }

    /// Adds a frame with a payload that `fill` appends. Adds nothing if `fill` returns false.
    pub fn copied(
        &mut self,
        frame: &Frame,
        len: usize,
        fill: impl FnOnce(&mut Vec<u8>) -> bool,
    ) -> bool {
        let before = self.buffer.len();
        append(&mut self.buffer, &mut self.scratch, frame, len);
        let filled = fill(&mut self.buffer);
        if !filled {
            self.buffer.truncate(before);
        }
        filled
    }

    /// Copies the end of a message, which is sent after [`Outbound::bulk`] as a frame of its own.
    pub fn tail(&mut self, frame: &Frame, fill: impl FnOnce(&mut Vec<u8>) -> bool) -> bool {
        self.tail.clear();
        append(&mut self.tail, &mut self.scratch, frame, TAIL);
        let filled = fill(&mut self.tail);
        if !filled {
            self.tail.clear();
        }
        filled
    }

    /// Takes a tail back whose payload is not sent.
    pub fn drop_tail(&mut self) {
        self.tail.clear();
    }

    /// Adds a frame whose payload is sent from where it is.
    pub fn bulk(&mut self, frame: &Frame, bulk: Bulk) {
        append(&mut self.buffer, &mut self.scratch, frame, bulk.left);
        self.bulk = Some(bulk);
    }

    /// The gathered frames that have not been sent.
    pub fn head(&self) -> &[u8] {
        self.buffer.get(self.sent..).unwrap_or_default()
    }

    pub fn bulk_left(&self) -> Option<Bulk> {
        self.bulk
    }

    pub fn has_bulk(&self) -> bool {
        self.bulk.is_some()
    }

    /// What follows the payload.
    pub fn tail_bytes(&self) -> &[u8] {
        &self.tail
    }

    /// The memory of the payload has gone away: the rest of its frame is zeroes. Returns whether
    /// the message would have ended with it.
    pub fn fill_with_zeroes(&mut self) -> bool {
        if let Some(bulk) = &mut self.bulk {
            bulk.source = Source::Zeroes;
        }
        let last = !self.tail.is_empty();
        self.tail.clear();
        last
    }

    /// `n` bytes of head, payload and tail have been sent.
    pub fn sent(&mut self, n: usize) {
        let head = self.head().len().min(n);
        let mut n = n - head;
        self.sent += head;
        if self.sent == self.buffer.len() {
            self.sent = 0;
            self.buffer.clear();
        }
        let Some(bulk) = &mut self.bulk else {
            return;
        };
        let part = n.min(bulk.left);
        n -= part;
        bulk.left -= part;
        match &mut bulk.source {
            Source::Request { offset, .. } => *offset += part as u32,
            Source::Region { at, .. } => at.addr = at.addr.wrapping_add(part as u64),
            Source::Zeroes => {}
        }
        if bulk.left == 0 {
            self.bulk = None;
            let rest = self.tail.get(n..).unwrap_or_default();
            self.buffer.extend_from_slice(rest);
            self.tail.clear();
        }
    }

    pub fn clear(&mut self) {
        self.buffer.clear();
        self.sent = 0;
        self.bulk = None;
        self.tail.clear();
    }
}

fn append(to: &mut Vec<u8>, scratch: &mut Scratch, frame: &Frame, payload: usize) {
    let len = frames::encode(frame, payload, &mut scratch.0);
    to.extend_from_slice(scratch.0.get(..len).unwrap_or_default());
}
