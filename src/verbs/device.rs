use super::{Errno, extended};
use rdma_sys::{
    ibv_alloc_pd, ibv_context, ibv_device_attr_ex, ibv_odp_general_caps,
    ibv_odp_transport_cap_bits, ibv_query_device, ibv_transport_type,
};
use std::ffi::{CStr, c_int};
use std::mem::MaybeUninit;
use std::ptr;
use verbs_ext as ext;

/// An open device; librdmacm or the program owns it.
#[derive(Clone, Copy)]
pub struct Context(ptr::NonNull<ibv_context>);

/// What `ibv_query_device_ex` says of a device, as far as the library asks.
pub struct Capabilities(ibv_device_attr_ex);

/// How much of what a device gives, to show beside what was asked for.
#[derive(Clone, Copy)]
pub struct Limits {
    pub max_mr_size: u64,
    pub max_qp_wr: c_int,
    pub max_cqe: c_int,
    pub max_srq_wr: c_int,
}

impl Context {
    /// # Safety
    /// `raw` is NULL or an open device that stays open as long as this and
    /// everything made of it is used.
    pub unsafe fn from_raw(raw: *mut ibv_context) -> Option<Self> {
        ptr::NonNull::new(raw).map(Context)
    }

    pub fn as_ptr(self) -> *mut ibv_context {
        self.0.as_ptr()
    }

    /// `ibv_query_device_ex`.
    pub fn query(self) -> Result<Capabilities, Errno> {
        let mut attr = MaybeUninit::<ibv_device_attr_ex>::zeroed();
        // SAFETY: the device is open; the extended table is used only if it is
        // there and long enough; `attr` has the size that the call is told, and all
        // zeroes is a value of its type.
        unsafe {
            if let Some(query) = extended!(self.as_ptr(), query_device_ex) {
                let size = size_of::<ibv_device_attr_ex>();
                let ret = query(self.as_ptr(), ptr::null(), attr.as_mut_ptr(), size);
                if ret != libc::EOPNOTSUPP && ret != libc::ENOSYS {
                    Errno::left(ret)?;
                    return Ok(Capabilities(attr.assume_init()));
                }
            }
            attr = MaybeUninit::zeroed();
            let orig = &raw mut (*attr.as_mut_ptr()).orig_attr;
            Errno::left(ibv_query_device(self.as_ptr(), orig))?;
            Ok(Capabilities(attr.assume_init()))
        }
    }

    pub fn is_iwarp(self) -> bool {
        // SAFETY: an open device has its description.
        let transport = unsafe { (*(*self.as_ptr()).device).transport_type };
        transport == ibv_transport_type::IBV_TRANSPORT_IWARP
    }
}

impl Capabilities {
    /// On-demand paging, for RDMA WRITE and READ over RC.
    pub fn odp(&self) -> bool {
        let rc = self.0.odp_caps.per_transport_caps.rc_odp_caps;
        let write = ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_WRITE.0;
        let read = ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_READ.0;
        let general = ibv_odp_general_caps::IBV_ODP_SUPPORT.0 as u64;
        self.0.odp_caps.general_caps & general != 0 && rc & write != 0 && rc & read != 0
    }

    pub fn limits(&self) -> Limits {
        let attr = &self.0.orig_attr;
        Limits {
            max_mr_size: attr.max_mr_size,
            max_qp_wr: attr.max_qp_wr,
            max_cqe: attr.max_cqe,
            max_srq_wr: attr.max_srq_wr,
        }
    }

    pub fn atomic_write(&self) -> bool {
        self.0.device_cap_flags_ex & ext::DEVICE_ATOMIC_WRITE != 0
    }

    /// Both kinds of flush, by a device whose libibverbs can post them.
    pub fn flush(&self) -> bool {
        let both = ext::DEVICE_FLUSH_GLOBAL | ext::DEVICE_FLUSH_PERSISTENT;
        self.0.device_cap_flags_ex & both == both && libibverbs_release() >= ext::FLUSH_SINCE
    }
}

/// The release of rdma-core that the loaded libibverbs is of, `u32::MAX` if it is
/// not known.
///
/// No function tells, but the file's name does: `libibverbs.so.1.14.44.0` is of
/// rdma-core 44. Whatever else stands in for libibverbs is taken to be current.
fn libibverbs_release() -> u32 {
    let mut path = [0u8; libc::PATH_MAX as usize];
    // SAFETY: dladdr fills `info` or fails; the name it gives is a C string, and
    // realpath writes at most PATH_MAX bytes.
    unsafe {
        let mut info = MaybeUninit::<libc::Dl_info>::uninit();
        let symbol = ibv_alloc_pd as *const libc::c_void;
        if libc::dladdr(symbol, info.as_mut_ptr()) == 0
            || libc::realpath(info.assume_init().dli_fname, path.as_mut_ptr().cast()).is_null()
        {
            return u32::MAX;
        }
    }
    let path = CStr::from_bytes_until_nul(&path).unwrap_or_default();
    release_in_name(path).unwrap_or(u32::MAX)
}

fn release_in_name(path: &CStr) -> Option<u32> {
    let name = path.to_str().ok()?.rsplit('/').next()?;
    let version = name.strip_prefix("libibverbs.so.1.")?;
    version.split('.').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::release_in_name;

    #[test]
    fn the_release_is_in_the_name_of_the_file() {
        assert_eq!(
            release_in_name(c"/usr/lib/libibverbs.so.1.14.44.0"),
            Some(44)
        );
        assert_eq!(release_in_name(c"libibverbs.so.1.14.56.1"), Some(56));
        assert_eq!(release_in_name(c"/opt/lib/libibverbs.so.1"), None);
        assert_eq!(release_in_name(c"/usr/lib/libother.so.1.14.44.0"), None);
    }
}
