//! Protection domains and memory regions.

use libc::{c_int, c_void, size_t};
use rdma_sys::{
    ib_uverbs_advise_mr_advice as advice, ibv_context, ibv_mr, ibv_pd, ibv_rereg_mr_err_code,
    ibv_sge,
};
use rustix::io::Errno;

use super::returns::{errno, pointer, set_errno};
use crate::memory::Prefetch;
use crate::objects::mr::{Mr, Pd};
use crate::settings::Settings;

/// # Safety
///
/// `context` is an open device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    Box::into_raw(Pd::new(context)).cast()
}

/// # Safety
///
/// `pd` is from `ibv_alloc_pd`, and not used again if this is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the caller's word.
    if unsafe { Pd::from_raw(pd) }.domain.is_used() {
        return errno(Err(libc::EBUSY));
    }
    // SAFETY: made by ibv_alloc_pd, and the last use of it.
    drop(unsafe { Box::from_raw(pd.cast::<Pd>()) });
    0
}

/// # Safety
///
/// `pd` is from `ibv_alloc_pd`; the memory stays as it is mapped until it is deregistered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's word.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, addr as u64, access as u32) }
}

/// # Safety
///
/// As for `ibv_reg_mr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's word.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, access as u32) }
}

/// # Safety
///
/// As for `ibv_reg_mr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    iova: u64,
    access: u32,
) -> *mut ibv_mr {
    // SAFETY: the caller's word.
    let pd = unsafe { Pd::from_raw(pd) };
    let mr = Mr::register(pd, addr, length, iova, access);
    pointer(
        mr.map(|mr| Box::into_raw(mr).cast())
            .map_err(Errno::raw_os_error),
    )
}

/// # Safety
///
/// `mr` is from one of the functions that register memory; `pd`, if it is to change to that, from
/// `ibv_alloc_pd`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    access: c_int,
) -> c_int {
    const TRANSLATION: c_int = 1;
    const PD: c_int = 1 << 1;
    const ACCESS: c_int = 1 << 2;

    let changes = |what| flags & what != 0;
    if flags & !(TRANSLATION | PD | ACCESS) != 0
        || (changes(TRANSLATION) && (addr.is_null() || length == 0))
        || (changes(PD) && pd.is_null())
        || (!changes(ACCESS) && access != 0)
    {
        set_errno(libc::EINVAL);
        return ibv_rereg_mr_err_code::IBV_REREG_MR_ERR_INPUT;
    }
    // SAFETY: the caller's word; the region is the caller's to change.
    let mr = unsafe { &mut *mr.cast::<Mr>() };
    // SAFETY: as above.
    let pd = changes(PD).then(|| unsafe { Pd::from_raw(pd) });
    let place = changes(TRANSLATION).then_some((addr, length));
    let access = changes(ACCESS).then_some(access as u32);
    match mr.register_anew(pd, place, access) {
        Ok(()) => 0,
        Err(error) => {
            set_errno(error.raw_os_error());
            ibv_rereg_mr_err_code::IBV_REREG_MR_ERR_CMD
        }
    }
}

/// # Safety
///
/// `mr` is from one of the functions that register memory, and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: made there, and the last use of it.
    let mr = unsafe { Box::from_raw(mr.cast::<Mr>()) };
    mr.deregister();
    0
}

/// What `ibv_advise_mr` calls.
///
/// # Safety
///
/// `pd` is from `ibv_alloc_pd`; there are `num_sge` elements at `sg_list`.
pub unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: advice::Type,
    flags: u32,
    sg_list: *mut ibv_sge,
    num_sge: u32,
) -> c_int {
    const FLUSH: u32 = 1;

    if !Settings::get().odp {
        return errno(Err(libc::EOPNOTSUPP));
    }
    let advice = match advice {
        advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH => Prefetch::ToRead,
        advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE => Prefetch::ToWrite,
        advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => Prefetch::WhatIsThere,
        _ => return errno(Err(libc::EOPNOTSUPP)),
    };
    if flags & !FLUSH != 0 || sg_list.is_null() || num_sge == 0 {
        return errno(Err(libc::EINVAL));
    }
    // SAFETY: the caller's word.
    let (pd, sges) = unsafe {
        let sges = std::slice::from_raw_parts(sg_list, num_sge as usize);
        (Pd::from_raw(pd), sges)
    };
    let prefetched = sges.iter().try_for_each(|sge| {
        let len = u64::from(sge.length);
        pd.domain.prefetch(sge.lkey, sge.addr, len, advice)
    });
    errno(prefetched.map_err(Errno::raw_os_error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::null_mut;

    const READ_ONLY: c_int = 0;
    const LOCAL_WRITE: c_int = 1;
    const REMOTE_WRITE: c_int = 1 << 1;
    const ON_DEMAND: c_int = 1 << 6;

    fn last_error() -> Errno {
        // SAFETY: the thread's own.
        Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
    }

    fn memory() -> Vec<u64> {
        vec![0; 64]
    }

    #[test]
    fn handles_lead_to_each_other() {
        let mut memory = memory();
        let addr = memory.as_mut_ptr().cast();
        // Only handed through.
        let context = 0x1000 as *mut ibv_context;
        // SAFETY: handles of this test, used as they are meant to be.
        unsafe {
            let pd = ibv_alloc_pd(context);
            assert_eq!((*pd).context, context);
            let mr = ibv_reg_mr(pd, addr, 512, LOCAL_WRITE);
            assert!(!mr.is_null(), "{}", last_error());
            assert_eq!((*mr).context, context);
            assert_eq!((*mr).pd, pd);
            assert_eq!(((*mr).addr, (*mr).length), (addr, 512));
            assert_eq!(ibv_dealloc_pd(pd), libc::EBUSY);
            assert_eq!(last_error(), Errno::BUSY);
            assert_eq!(ibv_dereg_mr(mr), 0);
            assert_eq!(ibv_dealloc_pd(pd), 0);
        }
    }

    #[test]
    fn registering_leaves_its_error() {
        let mut memory = memory();
        let addr = memory.as_mut_ptr().cast::<c_void>();
        let iova = addr as u64;
        // SAFETY: as above.
        unsafe {
            let pd = ibv_alloc_pd(null_mut());
            assert!(ibv_reg_mr(pd, addr, 512, REMOTE_WRITE).is_null());
            assert_eq!(last_error(), Errno::INVAL);
            assert!(ibv_reg_mr(pd, null_mut(), 512, LOCAL_WRITE).is_null());
            assert_eq!(last_error(), Errno::FAULT);
            assert!(ibv_reg_mr_iova(pd, addr, 512, iova + 1, LOCAL_WRITE).is_null());
            assert_eq!(last_error(), Errno::INVAL);
            assert!(ibv_reg_mr_iova2(pd, addr, 512, iova, 1 << 31).is_null());
            assert_eq!(last_error(), Errno::INVAL);
            for mr in [
                ibv_reg_mr_iova(pd, addr, 512, iova % 4096, LOCAL_WRITE),
                ibv_reg_mr_iova2(pd, addr, 512, iova, 1 << 20),
            ] {
                assert!(!mr.is_null(), "{}", last_error());
                assert_eq!(ibv_dereg_mr(mr), 0);
            }
            assert_eq!(ibv_dealloc_pd(pd), 0);
        }
    }

    #[test]
    fn registering_anew_tells_whose_error_it_is() {
        use ibv_rereg_mr_err_code::{IBV_REREG_MR_ERR_CMD, IBV_REREG_MR_ERR_INPUT};
        let mut memory = memory();
        let addr = memory.as_mut_ptr().cast::<c_void>();
        let input = (IBV_REREG_MR_ERR_INPUT, Errno::INVAL);
        // SAFETY: as above.
        unsafe {
            let pd = ibv_alloc_pd(null_mut());
            let mr = ibv_reg_mr(pd, addr, 512, LOCAL_WRITE);
            for (flags, new_pd, new_addr, length, access, expected) in [
                (8, pd, addr, 512, LOCAL_WRITE, input),
                (0, pd, addr, 512, LOCAL_WRITE, input),
                (1, null_mut(), null_mut(), 512, READ_ONLY, input),
                (1, null_mut(), addr, 0, READ_ONLY, input),
                (1, null_mut(), addr, 512, LOCAL_WRITE, input),
                (2, null_mut(), addr, 512, READ_ONLY, input),
                (
                    4,
                    null_mut(),
                    addr,
                    0,
                    REMOTE_WRITE,
                    (IBV_REREG_MR_ERR_CMD, Errno::INVAL),
                ),
                (
                    1,
                    null_mut(),
                    std::ptr::without_provenance_mut(1),
                    512,
                    READ_ONLY,
                    (IBV_REREG_MR_ERR_CMD, Errno::FAULT),
                ),
            ] {
                let code = ibv_rereg_mr(mr, flags, new_pd, new_addr, length, access);
                assert_eq!((code, last_error()), expected, "flags {flags}");
            }
            let next = addr.wrapping_byte_add(8);
            assert_eq!(ibv_rereg_mr(mr, 7, pd, next, 64, READ_ONLY), 0);
            assert_eq!(((*mr).addr, (*mr).length), (next, 64));
            assert_eq!(ibv_dereg_mr(mr), 0);
            assert_eq!(ibv_dealloc_pd(pd), 0);
        }
    }

    #[test]
    fn advice_is_checked() {
        let mut memory = memory();
        let addr = memory.as_mut_ptr().cast::<c_void>();
        // SAFETY: as above.
        unsafe {
            let pd = ibv_alloc_pd(null_mut());
            let mr = ibv_reg_mr(pd, addr, 512, ON_DEMAND);
            assert!(!mr.is_null(), "{}", last_error());
            let sge = |length, lkey| ibv_sge {
                addr: addr as u64,
                length,
                lkey,
            };
            let (good, long, stray) = (sge(512, (*mr).lkey), sge(513, (*mr).lkey), sge(8, 0));
            for (advice, flags, mut sges, expected) in [
                (0, 0, vec![good], 0),
                (0, 1, vec![good, good], 0),
                (2, 0, vec![good], 0),
                (1, 0, vec![good], libc::EPERM),
                (3, 0, vec![good], libc::EOPNOTSUPP),
                (0, 2, vec![good], libc::EINVAL),
                (0, 0, vec![], libc::EINVAL),
                (0, 0, vec![good, long], libc::EFAULT),
                (0, 0, vec![stray], libc::ENOENT),
            ] {
                let count = sges.len() as u32;
                let outcome = advise_mr(pd, advice, flags, sges.as_mut_ptr(), count);
                assert_eq!(outcome, expected, "advice {advice}, flags {flags}, {count}");
            }
            assert_eq!(ibv_dereg_mr(mr), 0);
            assert_eq!(ibv_dealloc_pd(pd), 0);
        }
    }
}
