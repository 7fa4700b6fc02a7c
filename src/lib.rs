#![doc = include_str!("../docs/librpma.md")]
//!
//! ## How it is built inside
//!
//! Three layers, each calling only the one below:
//!
//! * [`api`]: the C functions, one file a family. They check arguments, call the
//!   core and turn its result into a code.
//! * `core`: peers, regions, queues, requests and connections as types that own
//!   what they hold.
//! * [`verbs`]: owning wrappers of the verbs objects; the only module that touches
//!   `rdma-sys`.
//!
//! `log` stands beside them: every layer may write to it.

#![deny(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]
// What a C caller must keep is said in the documentation of each C function.
#![allow(clippy::missing_safety_doc)]

#[macro_use]
mod log;

pub mod api;
mod core;
mod note;
pub mod verbs;
