//! Connection management.

mod addresses;
mod addrinfo;
mod connections;
mod endpoints;
mod events;
mod ids;
mod options;
mod qp;
mod srq;

pub use addresses::*;
pub use addrinfo::*;
pub use connections::*;
pub use endpoints::*;
pub use events::*;
pub use ids::*;
pub use options::*;
pub use qp::*;
pub use srq::*;
