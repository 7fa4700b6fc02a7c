//! How much of everything there can be.

/// Queue pairs.
pub const MAX_QP: u32 = 1 << 16;
/// Requests that one queue of a queue pair holds.
pub const MAX_QP_WR: u32 = 1 << 14;
/// Pieces that a request consists of.
pub const MAX_SGE: u32 = 32;
/// Bytes that a request carries inline.
pub const MAX_INLINE: u32 = 512;
/// Reads and atomics of one queue pair that are under way to it, and from it.
pub const MAX_QP_RD_ATOM: u32 = 128;
pub const MAX_QP_INIT_RD_ATOM: u32 = 128;
/// Bytes of one message.
pub const MAX_MESSAGE: u32 = 1 << 31;

/// Completion queues, and what one holds.
pub const MAX_CQ: u32 = 1 << 16;
pub const MAX_CQE: u32 = (1 << 22) - 1;
/// Completion vectors to choose from.
pub const COMP_VECTORS: u32 = 1;

/// Shared receive queues, and what one holds.
pub const MAX_SRQ: u32 = 1 << 16;
pub const MAX_SRQ_WR: u32 = 1 << 14;
pub const MAX_SRQ_SGE: u32 = 32;

/// Protection domains and memory regions, and the bytes of a region: all that can have an address.
pub const MAX_PD: u32 = 1 << 16;
pub const MAX_MR: u32 = 1 << 20;
pub const MAX_MR_SIZE: u64 = u64::MAX / 2;
