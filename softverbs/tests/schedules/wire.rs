//! The link between the two ends, and what is to be read on it.

use softverbs::proto::frames::{Frame, MAX_FIELDS, decode};
use std::collections::VecDeque;

/// One direction of the link.
#[derive(Default)]
pub struct Wire {
    bytes: VecDeque<u8>,
    /// Nothing follows what is under way.
    pub ended: bool,
    /// The link is lost: nothing more can be sent.
    pub lost: bool,
    /// Nobody takes what comes.
    pub unread: bool,
    sent: u64,
    delivered: u64,
    /// The beginning of a frame, and how much payload of one is still to come.
    begun: Vec<u8>,
    payload: usize,
    /// Frames that are under way, each with where its fields end.
    frames: VecDeque<(u64, Frame)>,
}

impl Wire {
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Sends bytes. Returns the frames that have been sent with them.
    pub fn send(&mut self, bytes: &[u8], seen: &mut Vec<Frame>) {
        if !self.unread {
            self.bytes.extend(bytes);
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let skipped = self.payload.min(rest.len());
            self.payload -= skipped;
            self.sent += skipped as u64;
            rest = &rest[skipped..];
            let before = self.begun.len();
            let n = rest.len().min(MAX_FIELDS - before);
            self.begun.extend_from_slice(&rest[..n]);
            match decode(&self.begun).expect("what is sent is well formed") {
                Some((frame, used, payload)) => {
                    self.sent += (used - before) as u64;
                    rest = &rest[used - before..];
                    self.frames.push_back((self.sent, frame));
                    seen.push(frame);
                    self.begun.clear();
                    self.payload = payload;
                }
                None => {
                    self.sent += n as u64;
                    rest = &rest[n..];
                }
            }
        }
    }

    /// Takes bytes out.
    pub fn take(&mut self, to: &mut [u8]) {
        let n = to.len();
        let (front, back) = self.bytes.as_slices();
        let split = front.len().min(n);
        to[..split].copy_from_slice(&front[..split]);
        to[split..].copy_from_slice(&back[..n - split]);
        self.bytes.drain(..n);
        self.delivered += n as u64;
    }

    /// A frame of which all fields have been taken out.
    pub fn delivered(&mut self) -> Option<Frame> {
        let (end, frame) = self.frames.front()?;
        let frame = (*end <= self.delivered).then_some(*frame)?;
        self.frames.pop_front();
        Some(frame)
    }

    /// Whether a frame has come in part.
    pub fn is_in_frame(&self) -> bool {
        self.frames.front().is_some_and(|(end, _)| {
            *end > self.delivered && self.delivered > 0 && !self.bytes.is_empty()
        })
    }

    /// Loses the link: so many bytes still get through.
    pub fn cut(&mut self, left: usize) {
        self.bytes.truncate(left);
        self.ended = true;
        self.lost = true;
    }

    pub fn drop_all(&mut self) {
        self.bytes.clear();
        self.unread = true;
    }
}
