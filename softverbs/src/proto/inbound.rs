//! What has come and has not been dealt with.

use super::frames::MAX_FIELDS;

/// Room for so much: as much as is gathered at the other side.
const BUFFER: usize = 32 * 1024;
/// A payload of which more than this is missing goes straight to where it belongs. Looking up its
/// region first costs about what copying 4 KiB does.
const DIRECT: usize = 4 * 1024;

#[derive(Debug, Default)]
pub struct Inbound {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// The payload of the present frame that has not come, if there is a present frame.
    left: Option<usize>,
}

impl Inbound {
    /// Makes the room, so that receiving allocates nothing.
    pub fn reserve(&mut self) {
        self.buffer.resize(BUFFER, 0);
    }

    pub fn bytes(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).unwrap_or_default()
    }

    /// `n` bytes have been dealt with.
    pub fn used(&mut self, n: usize) {
        self.start += n;
        if self.start >= self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// A frame has begun, and so much payload follows.
    pub fn begin(&mut self, payload: usize) {
        self.left = Some(payload);
    }

    /// The payload of the present frame that has not come.
    pub fn left(&self) -> Option<usize> {
        self.left
    }

    /// `n` bytes of the payload are in their place.
    pub fn placed(&mut self, n: usize) {
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(n);
        }
    }

    pub fn end_frame(&mut self) {
        self.left = None;
    }

    /// How much of the present payload should be taken straight to its place.
    pub fn direct(&self) -> Option<usize> {
        self.left
            .filter(|left| *left > DIRECT && self.start == self.end)
    }

    /// Room for what comes next. Behind a payload that goes straight to its place there is room only
    /// for what the next frame says of itself, so that its payload can do the same.
    pub fn room(&mut self, behind_direct: bool) -> &mut [u8] {
        if self.start > 0 && self.buffer.len() - self.end < MAX_FIELDS {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let most = if behind_direct { MAX_FIELDS } else { BUFFER };
        let end = (self.end + most).min(self.buffer.len());
        self.buffer.get_mut(self.end..end).unwrap_or_default()
    }

    /// `n` bytes have been put into the room.
    pub fn received(&mut self, n: usize) {
        self.end = (self.end + n).min(self.buffer.len());
    }

    /// Drops all that has come and will come.
    pub fn drop_rest(&mut self) {
        self.used(self.end - self.start);
        self.left = Some(usize::MAX);
    }

    pub fn clear(&mut self) {
        self.start = 0;
        self.end = 0;
        self.left = None;
    }
}
