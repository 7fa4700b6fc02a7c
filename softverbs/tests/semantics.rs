//! What the device does, call by call: through the C entry points, and with both ends of most
//! connections in one process.
//!
//!     cargo test -p softverbs --test semantics                    all of it
//!     cargo test -p softverbs --test semantics -- atomics         what has this in its name
//!
//! Where a test is about a process (that it is killed, forks, leaves nothing behind), this program
//! is run once more for that test alone.

#[macro_use]
mod verbs;

#[path = "semantics/common.rs"]
mod common;
#[path = "semantics/raw_peer.rs"]
mod raw_peer;

#[path = "semantics/addresses.rs"]
mod addresses;
#[path = "semantics/bad_peers.rs"]
mod bad_peers;
#[path = "semantics/connections.rs"]
mod connections;
#[path = "semantics/errors.rs"]
mod errors;
#[path = "semantics/events.rs"]
mod events;
#[path = "semantics/flushes.rs"]
mod flushes;
#[path = "semantics/nulls.rs"]
mod nulls;
#[path = "semantics/operations.rs"]
mod operations;
#[path = "semantics/order.rs"]
mod order;
#[path = "semantics/processes.rs"]
mod processes;
#[path = "semantics/progress.rs"]
mod progress;
#[path = "semantics/queue_pairs.rs"]
mod queue_pairs;
#[path = "semantics/queues.rs"]
mod queues;
#[path = "semantics/remains.rs"]
mod remains;
#[path = "semantics/slow_peers.rs"]
mod slow_peers;
#[path = "semantics/strangers.rs"]
mod strangers;
