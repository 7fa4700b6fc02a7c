//! What the tools of librpma, `rpma-info` and `rpma-perf`, are made of.
//!
//! They are programs of librpma like any other: they load `librpma.so.0`, whichever the loader finds,
//! and so run on the original as well.

pub mod cli;
pub mod info;
pub mod loaded;
pub mod perf;
pub mod rpma;
