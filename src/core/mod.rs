//! Peers, regions, queues, requests and connections, owning what they hold.
//!
//! A type whose release can fail has a `delete` that does every step and returns
//! the first failure; dropping it does the same and is silent. Members stand in the
//! order in which they must be released.

mod conn;
mod conn_cfg;
mod conn_req;
mod cq;
mod device;
mod ep;
mod error;
mod events;
mod flush;
mod link;
mod mr;
mod peer;
mod peer_cfg;
mod private_data;
mod remedy;
mod setting;
mod srq;

pub use conn::{Completion, Conn, Event, FlushType};
pub use conn_cfg::ConnCfg;
pub use conn_req::ConnReq;
pub use cq::Cq;
pub use device::{Side, find_device, is_odp_capable};
pub use ep::Ep;
pub use error::{Error, Result, room};
pub use mr::{LocalRange, MrLocal, MrRemote, RemoteRange, Usage};
pub use peer::Peer;
pub use peer_cfg::PeerCfg;
pub use private_data::PrivateData;
pub use setting::Setting;
pub use srq::{Srq, SrqCfg};
