//! Bytes between a link, the protocol and the program's memory.

use super::transfer::{hold, piece};
use crate::link::{Link, Piece};
use crate::memory::{Domain, Hold};
use crate::proto::{Connection, Host, Memory};
use std::io::{self, ErrorKind};

/// Pieces of memory in one system call.
const PIECES: usize = 16;

/// What came of taking bytes from a link.
pub struct Received {
    /// How many there was room for.
    pub asked: usize,
    /// The memory of the payload may not be written to, which has been told to the protocol.
    pub refused: bool,
    pub result: io::Result<usize>,
}

/// What it takes to move bytes.
pub struct Mover<'a, H> {
    pub link: &'a mut dyn Link,
    pub proto: &'a mut Connection,
    /// The domain whose regions the bytes are in; `None` without a queue pair.
    pub domain: Option<&'a Domain>,
    pub host: H,
    /// Room for what is held meanwhile.
    pub holds: &'a mut Vec<Hold>,
}

impl<H: Host> Mover<'_, H> {
    /// Takes bytes from the link: payload to where it goes, all else to the protocol's buffer.
    #[inline]
    pub fn recv(&mut self) -> Received {
        let Mover {
            link,
            proto,
            domain,
            host,
            holds,
        } = self;
        let mut direct = 0;
        let mut refused = false;
        if let (Some((memory, len)), Some(domain)) = (proto.target(), *domain) {
            if hold(domain, memory, len, true, holds) {
                direct = len;
            } else {
                proto.target_refused(host);
                refused = true;
            }
        }
        let mut pieces = [Piece::NONE; PIECES];
        // The last is for what follows.
        let mut held = 0;
        let mut n = 0;
        for (to, one) in pieces.iter_mut().zip(holds.iter()).take(PIECES - 1) {
            *to = piece(one);
            held += one.len();
            n += 1;
        }
        let room = proto.room(direct > 0);
        let mut asked = held;
        // If all of the payload has its place.
        if held == direct
            && let Some(last) = pieces.get_mut(n)
        {
            asked += room.len();
            *last = Piece::of_mut(room);
            n += 1;
        }
        let result = link.recv(pieces.get(..n).unwrap_or_default());
        holds.clear();
        if let Ok(got) = result {
            let placed = got.min(held);
            proto.received(placed, got - placed);
        }
        Received {
            asked,
            refused,
            result,
        }
    }

    /// Hands the gathered frames and the payload after them to the link.
    #[inline]
    pub fn send(&mut self) -> Result<usize, ErrorKind> {
        let Mover {
            link,
            proto,
            domain,
            host,
            holds,
        } = self;
        static ZEROES: [u8; 16 * 1024] = [0; 16 * 1024];
        if let Some((memory, len)) = proto.outgoing().bulk {
            let held = match *domain {
                Some(domain) => hold(domain, memory, len, false, holds),
                None => memory == Memory::Zeroes,
            };
            if !held {
                proto.bulk_refused(host);
            }
        }
        let outgoing = proto.outgoing();
        let mut pieces = [Piece::NONE; PIECES];
        let mut n = 0;
        let mut add = |piece| {
            if let Some(to) = pieces.get_mut(n) {
                *to = piece;
                n += 1;
                return true;
            }
            false
        };
        if !outgoing.head.is_empty() {
            add(Piece::of(outgoing.head));
        }
        let mut whole = true;
        if let Some((memory, len)) = outgoing.bulk {
            if memory == Memory::Zeroes {
                let zeroes = ZEROES.get(..len).unwrap_or(&ZEROES);
                whole = add(Piece::of(zeroes)) && zeroes.len() == len;
            } else {
                whole = holds.iter().all(|one| add(piece(one)));
            }
        }
        // What follows the payload, if all of the payload is there.
        if whole && !outgoing.tail.is_empty() {
            add(Piece::of(outgoing.tail));
        }
        let result = link.send(pieces.get(..n).unwrap_or_default());
        holds.clear();
        result.map_err(|error| error.kind())
    }
}
