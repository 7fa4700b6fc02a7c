//! A software RDMA device in user space.
//!
//! Preloaded, this library takes the place of libibverbs and librdmacm in a program and gives it a
//! device whose queue pairs are reliable connections over TCP. The layers, each on those after it:
//!
//! - [`exports`], the C entry points: check, call in, turn the result into what C expects;
//! - [`objects`], what they make: device, memory, queues, connections, ids, events;
//! - [`frames`], what the two ends of a connection say, as bytes;
//! - [`link`], what carries the bytes;
//! - [`forks`], what a child process does not have of its parent's;
//! - [`engine`], the one thread that makes progress for those who sleep or do nothing.

pub mod engine;
pub mod exports;
pub mod forks;
pub mod frames;
pub mod link;
pub mod objects;
pub mod settings;
