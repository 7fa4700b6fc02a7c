//! Connection management.

mod addresses;
mod addrinfo;
mod association;
mod channel;
mod connections;
mod endpoints;
mod events;
mod id;
mod ids;
mod options;
mod qp;
mod sockaddr;
mod srq;
mod wait;

pub use addresses::*;
pub use addrinfo::*;
pub use connections::*;
pub use endpoints::*;
pub use events::*;
pub use ids::*;
pub use options::*;
pub use qp::*;
pub use srq::*;
