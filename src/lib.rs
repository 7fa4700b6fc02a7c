#![doc = include_str!("../docs/librpma.md")]
//!
//! # The crate
//!
//! It is built as `librpma.so.0`, for programs in C; what is documented from here on is for
//! those who change it. `docs/architecture.md` of the sources has a picture, who owns what, and
//! where to put a new function.
//!
//! Three layers, each calling only the one below:
//!
//! * [`api`]: the C functions, one file a family. They check arguments, call the
//!   core and turn its result into a code.
//! * `core`: peers, regions, queues, requests and connections as types that own
//!   what they hold. Whatever the library does beyond passing calls on is here.
//! * [`verbs`]: owning wrappers of the verbs objects; the only module that touches
//!   `rdma-sys`.
//!
//! `log` stands beside them: every layer may write to it.
//!
//! An operation goes straight through: [`api::ops`] makes references of pointers, `Conn` of the core
//! addresses and keys, and [`verbs::SendWr`] the request that the device takes. It allocates
//! nothing, takes no lock and makes no system call, which a benchmark holds it to.
//!
//! A failure comes up as an [`verbs::Errno`] and becomes a code of C where it is logged, with what
//! may be done about it. A failure of the program that calls, such as a NULL, is
//! `RPMA_E_INVAL` before anything is touched. Nothing panics into C.

#![deny(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]
// What a C caller must keep is said in the documentation of each C function.
#![allow(clippy::missing_safety_doc)]

#[macro_use]
mod log;

pub mod api;
mod core;
mod note;
pub mod verbs;
