//! What the entry points make, as C sees it: device, memory, queues, event channels.

pub mod alive;
pub mod channel;
pub mod cq;
pub mod device;
pub mod mr;
pub mod qp;
pub mod srq;
