//! What the two libraries offer and this one does not: it says so.

use super::returns::{minus_one, set_errno};
use rdma_sys::{ibv_ops_wr, ibv_srq};
use std::ffi::{c_int, c_void};
use std::ptr;

/// What a call that returns this answers when it is not supported.
pub trait Unsupported {
    fn unsupported() -> Self;
}

impl<T> Unsupported for *mut T {
    fn unsupported() -> Self {
        set_errno(libc::EOPNOTSUPP);
        ptr::null_mut()
    }
}

/// The calls of the tables that return an `int` return the `errno`.
impl Unsupported for c_int {
    fn unsupported() -> Self {
        libc::EOPNOTSUPP
    }
}

/// A function for an entry of the tables, of whatever type that entry is.
pub trait Refuse {
    fn refuse() -> Self;
}

macro_rules! refuse {
    ($($argument:ident)*) => {
        impl<R: Unsupported, $($argument),*> Refuse for unsafe extern "C" fn($($argument),*) -> R {
            fn refuse() -> Self {
                unsafe extern "C" fn refusing<R: Unsupported, $($argument),*>(
                    $(_: $argument),*
                ) -> R {
                    R::unsupported()
                }
                refusing::<R, $($argument),*>
            }
        }
    };
}

refuse!();
refuse!(A);
refuse!(A B);
refuse!(A B C);
refuse!(A B C D);
refuse!(A B C D E);

/// The one that, moreover, says which request it did not take.
///
/// # Safety
/// `bad` can be written to.
pub unsafe extern "C" fn post_srq_ops(
    _: *mut ibv_srq,
    request: *mut ibv_ops_wr,
    bad: *mut *mut ibv_ops_wr,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { *bad = request };
    libc::EOPNOTSUPP
}

/// Defines entry points that take no notice of their arguments, and so need not name them: in the
/// C calling convention those are the caller's business.
macro_rules! unsupported {
    ($(-> $result:ty = $answer:expr; $($name:ident)*;)*) => {
        $($(
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() -> $result {
                $answer
            }
        )*)*
    };
}

fn refused() -> c_int {
    minus_one(Err(libc::EOPNOTSUPP))
}

unsupported! {
    -> *mut c_void = <*mut c_void>::unsupported();
        ibv_create_ah ibv_create_ah_from_wc ibv_import_device ibv_import_dm ibv_import_mr ibv_import_pd
        ibv_reg_dmabuf_mr;

    -> c_int = c_int::unsupported();
        ibv_attach_mcast ibv_destroy_ah ibv_detach_mcast ibv_query_ece ibv_set_ece;

    -> c_int = refused();
        ibv_init_ah_from_wc ibv_resolve_eth_l2_from_gid
        rdma_get_remote_ece rdma_join_multicast rdma_join_multicast_ex rdma_leave_multicast
        rdma_reject_ece rdma_set_local_ece;

    // These return nothing: of nothing that can be made, or between structures of the kernel that
    // no call here deals in.
    -> () = set_errno(libc::EOPNOTSUPP);
        ibv_copy_ah_attr_from_kern ibv_copy_path_rec_from_kern ibv_copy_path_rec_to_kern
        ibv_copy_qp_attr_from_kern ibv_register_driver
        ibv_unimport_dm ibv_unimport_mr ibv_unimport_pd;

    // Sockets over RDMA.
    -> c_int = refused();
        raccept rbind rclose rconnect rfcntl rgetpeername rgetsockname rgetsockopt riounmap rlisten
        rpoll rselect rsetsockopt rshutdown rsocket;
    -> isize = refused() as isize;
        rread rreadv rrecv rrecvfrom rrecvmsg rsend rsendmsg rsendto rwrite rwritev riowrite;
    -> libc::off_t = libc::off_t::from(refused());
        riomap;
}
