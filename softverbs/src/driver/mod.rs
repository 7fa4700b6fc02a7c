//! The driver: it gives the protocol its links, memory, queues and threads.
//!
//! - `conn` is one end of a connection: the protocol and its link under one lock; `move_bytes` and
//!   `transfer` move bytes to and from the program's memory, `orders` carries out atomics and
//!   flushes, `flush` waits for disks;
//! - `cm` has the ids of connection management, `listener` takes the links that come;
//! - `post` takes requests, `cq` holds completions and is polled, `srq` holds shared receives;
//! - `event_queue` and `async_events` are what a program waits on.

pub mod async_events;
pub mod cm;
pub mod conn;
pub mod cq;
pub mod event_queue;
mod flush;
mod listener;
mod move_bytes;
mod next_source;
mod orders;
pub mod post;
pub mod srq;
mod transfer;
