//! A software RDMA device in user space.
//!
//! Preloaded, this library takes the place of libibverbs and librdmacm in a program and gives it a
//! device whose queue pairs are reliable connections over TCP. `docs/softverbs.md` of the sources,
//! which is softverbs(7), says what it guarantees; `docs/architecture.md` shows where it stands.
//!
//! The layers, each on those after it:
//!
//! - [`exports`], the C entry points: check, call in, turn the result into what C expects;
//! - [`objects`], what they make: device, memory, queues, ids as C sees them;
//! - [`driver`], which gives the protocol its links, memory, queues and threads;
//! - [`memory`], protection domains and regions, and who may access them;
//! - [`proto`], one end of a connection as a state machine without I/O;
//! - [`link`], what carries the bytes, and [`reactor`], who makes progress and when;
//! - [`process`], what a child process does not have of its parent's; [`settings`], those of the
//!   environment; [`limits`], [`errno`] and [`sync`]. [`diagnostic`] has what is said on stderr, and
//!   `valgrind` what is said to that.
//!
//! Three things to know before changing anything:
//!
//! - What decides is in [`proto`], and can be tried with a clock that a test turns. What touches the
//!   world is in [`driver`], and decides nothing.
//! - Nothing blocks while it holds the lock of a connection, and no thread that looks after several
//!   connections waits for that lock. What can't be done now is done when the reactor's descriptor
//!   tells so, or by the next thread that polls.
//! - What comes from the other side is not trusted: [`proto::frames::decode`] takes any bytes, and
//!   memory is touched only after key, range and rights were looked at, in [`memory`].

pub mod diagnostic;
pub mod driver;
pub mod errno;
pub mod exports;
pub mod limits;
pub mod link;
pub mod memory;
pub mod objects;
pub mod process;
pub mod proto;
pub mod reactor;
pub mod settings;
pub mod sync;
mod valgrind;
