//! Owning wrappers of the verbs and rdma_cm objects.
//!
//! A wrapper releases what it owns when it is dropped, ignoring failure; `close`
//! releases it and tells. Every call is made exactly where the core asks for it:
//! programs and providers can see the calls and their order.
//!
//! Functions that `<infiniband/verbs.h>` defines inline are called through the
//! function tables of the device.

mod cm;
mod cq;
mod device;
mod errno;
mod memory;
mod qp;
mod wr;

pub use cm::{AddrInfo, CmEvent, CmId, EventChannel, EventKind, LookupError, Resolve, Unanswered};
pub use cq::{CompChannel, Cq, Srq};
pub use device::{Capabilities, Context, Limits};
pub use errno::Errno;
pub use memory::{Access, Mr, Pd};
pub use qp::{FlushKind, NativeAtomicWrite, NativeFlush, Qp, QpAttr, SendOps};
pub use rdma_sys::{ibv_context, ibv_wc};
pub use wr::{RecvWr, Remote, SendFlags, SendOp, SendWr, Sge};

/// Defines an owning wrapper of a verbs object whose release returns an errno.
macro_rules! owned {
    ($(#[$doc:meta])* $name:ident, $raw:ident, $release:ident) => {
        $(#[$doc])*
        pub struct $name(std::ptr::NonNull<rdma_sys::$raw>);

        impl $name {
            /// Takes ownership of what a verbs call returned; NULL is its failure.
            fn from_call(raw: *mut rdma_sys::$raw) -> Result<Self, crate::verbs::Errno> {
                let raw = std::ptr::NonNull::new(raw);
                raw.map($name).ok_or_else(crate::verbs::Errno::last)
            }

            pub(in crate::verbs) fn as_ptr(&self) -> *mut rdma_sys::$raw {
                self.0.as_ptr()
            }

            /// Releases the object; it is gone also when that fails.
            pub fn close(self) -> Result<(), crate::verbs::Errno> {
                let this = std::mem::ManuallyDrop::new(self);
                // SAFETY: owned by this wrapper, which is not used or dropped again.
                crate::verbs::Errno::left(unsafe { rdma_sys::$release(this.as_ptr()) })
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: owned by this wrapper, which is not used again.
                unsafe { rdma_sys::$release(self.as_ptr()) };
            }
        }
    };
}
use owned;

/// Looks up a function in the extended table of a device, as the inline functions
/// of `<infiniband/verbs.h>` do: the table lies before the context, is there if
/// `abi_compat` is all ones, and is as long as it says.
macro_rules! extended {
    ($context:expr, $op:ident) => {{
        let context: *mut rdma_sys::ibv_context = $context;
        if (*context).abi_compat as usize == usize::MAX {
            let table = context
                .byte_sub(std::mem::offset_of!(rdma_sys::verbs_context, context))
                .cast::<rdma_sys::verbs_context>();
            let from_op = std::mem::size_of::<rdma_sys::verbs_context>()
                - std::mem::offset_of!(rdma_sys::verbs_context, $op);
            if (*table).sz >= from_op {
                (*table).$op
            } else {
                None
            }
        } else {
            None
        }
    }};
}
use extended;

/// An entry of the function table of a device.
///
/// The table must be reached through an object that is alive; libibverbs gives every
/// entry a function, one that refuses where the provider has none.
macro_rules! table {
    ($context:expr, $op:ident) => {
        (*$context).ops.$op.unwrap_unchecked()
    };
}
use table;
