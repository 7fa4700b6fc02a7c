//! A software RDMA device in user space.
//!
//! Preloaded, this library takes the place of libibverbs and librdmacm in a program and gives it a
//! device whose queue pairs are reliable connections over TCP. `docs/softverbs.md` of the sources,
//! which is softverbs(7), says what it guarantees; `docs/architecture.md` shows where it stands.
//!
//! The layers, each on those after it:
//!
//! - [`exports`], the C entry points: check, call in, turn the result into what C expects;
//! - [`objects`], what they make: device, memory, queues, connections, ids, events;
//! - [`frames`], what the two ends of a connection say, as bytes;
//! - [`link`], what carries the bytes;
//! - [`forks`], what a child process does not have of its parent's;
//! - [`engine`], the one thread that makes progress for those who sleep or do nothing.
//!
//! [`settings`] are those of the environment, and [`diagnostic`] has what is said on stderr, and
//! `valgrind` what is said to that.
//!
//! Three things to know before changing anything:
//!
//! - All of one end of a connection, id, queue pair and link, is an
//!   [`Endpoint`](objects::endpoint::Endpoint) under one lock. Whoever has it, a call of the program or
//!   the engine's thread, moves both directions on as far as the link goes, and lets go.
//! - Nothing blocks while holding it. What can't be done now is done when the engine's descriptor tells
//!   so, or by the next one who polls.
//! - What comes from the other side is not trusted: [`frames::decode`] takes any bytes, and memory is
//!   touched only after key, range and rights were looked at, in [`objects::memory`].

pub mod diagnostic;
pub mod engine;
pub mod exports;
pub mod forks;
pub mod frames;
pub mod link;
pub mod objects;
pub mod settings;
mod valgrind;
