//! Which queue pair an id's connection has: the one that is in `id->qp` when the connection is asked
//! for, accepted or answered, whoever made it; or the one that the program names instead.

use super::id::Id;
use crate::driver::cm::WithQp;
use crate::exports::qp_handle::conn_of;
use crate::objects::qp::Qps;

/// The queue pair that the id has now, or else the one of that number; none if that is 0.
///
/// # Safety
/// What is in `id->qp` is NULL or a queue pair of this library.
pub unsafe fn qp_of(id: &Id, qp_num: u32, qps: &Qps) -> Result<WithQp, i32> {
    // SAFETY: the id is there as long as it is borrowed, and its `qp` is NULL or of this library.
    unsafe {
        let qp = (*id.abi()).qp;
        if !qp.is_null() {
            Ok(WithQp {
                conn: Some(conn_of(qp).clone()),
                program_moves_qp: false,
            })
        } else if qp_num != 0 {
            Ok(WithQp {
                conn: Some(qps.find(qp_num).ok_or(libc::EINVAL)?),
                program_moves_qp: true,
            })
        } else {
            Ok(WithQp::default())
        }
    }
}
