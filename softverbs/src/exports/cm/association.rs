//! Which queue pair an id's connection has: the one that is in `id->qp` when the connection is asked
//! for, accepted or answered, whoever made it; or the one that the program names instead.

use super::id::Id;
use crate::exports::qp_place::{attach, attach_named, detach};
use crate::objects::endpoint::Endpoint;
use std::sync::Arc;

/// Gives an endpoint the queue pair that its id has now, or else the one of that number; none if
/// that is 0.
///
/// # Safety
/// What is in `id->qp` is NULL or a queue pair of this library.
pub unsafe fn attach_qp(id: &Id, endpoint: &Arc<Endpoint>, qp_num: u32) -> Result<(), i32> {
    // SAFETY: the id is there as long as it is borrowed; for the rest, as the caller promises.
    unsafe {
        let qp = (*id.abi()).qp;
        if !qp.is_null() {
            attach(endpoint, qp)
        } else if qp_num != 0 {
            attach_named(endpoint, qp_num)
        } else {
            detach(endpoint)
        }
    }
}
