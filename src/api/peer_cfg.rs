//! What one side tells the other about itself.

use super::{call, delete, export, get, give, give_box, out};
use crate::core::{Error, PeerCfg};
use std::ffi::{c_int, c_void};

/// What one side tells the other about itself.
pub type rpma_peer_cfg = crate::core::PeerCfg;

/// Makes a peer configuration.
///
/// In it direct write to persistent memory is not supported.
///
/// It is the caller's, to be released by rpma_peer_cfg_delete(). One side makes it and
/// sends its descriptor; the other makes a copy of that by
/// rpma_peer_cfg_from_descriptor() and gives it to rpma_conn_apply_remote_peer_cfg().
///
/// Thread-safe.
///
/// Errors, with `*pcfg_ptr` as it was:
/// - RPMA_E_INVAL: `pcfg_ptr` is NULL
/// - RPMA_E_NOMEM: out of memory: nothing was made; the call can be repeated
///
/// # Example
///
/// The side whose memory is written to:
///
/// ```c
/// struct rpma_peer_cfg *pcfg = NULL;
/// uint8_t descriptor[32];
/// size_t size = 0;
/// ret = rpma_peer_cfg_new(&pcfg);
/// if (!ret)
///     ret = rpma_peer_cfg_set_direct_write_to_pmem(pcfg, true);
/// if (!ret)
///     ret = rpma_peer_cfg_get_descriptor_size(pcfg, &size);
/// if (!ret && size <= sizeof(descriptor))
///     ret = rpma_peer_cfg_get_descriptor(pcfg, descriptor);
/// /* Send it to the other side, as private data for one. */
/// rpma_peer_cfg_delete(&pcfg);
/// ```
pub unsafe extern "C" fn rpma_peer_cfg_new(pcfg_ptr: *mut *mut rpma_peer_cfg) -> c_int {
    // SAFETY: NULL or valid to write to.
    call(|| give(PeerCfg::new(false), unsafe { out(pcfg_ptr) }?))
}

/// Releases a peer configuration.
///
/// `*pcfg_ptr` is set to NULL; one that is NULL already is fine.
///
/// A connection that the configuration was applied to keeps nothing of it.
///
/// Thread-safe on separate configurations.
///
/// Errors:
/// - RPMA_E_INVAL: `pcfg_ptr` is NULL
///
/// # Example
///
/// See rpma_peer_cfg_new().
pub unsafe extern "C" fn rpma_peer_cfg_delete(pcfg_ptr: *mut *mut rpma_peer_cfg) -> c_int {
    // SAFETY: NULL, or points to NULL or to a configuration made here.
    unsafe { delete(pcfg_ptr, |_| Ok(())) }
}

/// Declares whether direct write to persistent memory is supported.
///
/// It is if what a device writes into the persistent memory of this side is persistent
/// once it is flushed, with no help of the processor. That is a matter of the platform,
/// which the library can't find out: say true where the platform's manual does. It is
/// false at first.
///
/// Thread-safe.
///
/// Errors:
/// - RPMA_E_INVAL: `pcfg` is NULL
///
/// # Example
///
/// See rpma_peer_cfg_new().
pub unsafe extern "C" fn rpma_peer_cfg_set_direct_write_to_pmem(
    pcfg: *mut rpma_peer_cfg,
    supported: bool,
) -> c_int {
    call(|| {
        // SAFETY: NULL or a configuration.
        unsafe { get(pcfg) }?.set_direct_write_to_pmem(supported);
        Ok(())
    })
}

/// Tells whether direct write to persistent memory is supported.
///
/// Thread-safe.
///
/// Errors, with `*supported` as it was:
/// - RPMA_E_INVAL: `pcfg` or `supported` is NULL
pub unsafe extern "C" fn rpma_peer_cfg_get_direct_write_to_pmem(
    pcfg: *const rpma_peer_cfg,
    supported: *mut bool,
) -> c_int {
    call(|| {
        // SAFETY: NULL or a configuration; NULL or valid to write to.
        let (cfg, supported) = unsafe { (get(pcfg)?, out(supported)?) };
        supported.write(cfg.direct_write_to_pmem());
        Ok(())
    })
}

/// Writes the descriptor of a peer configuration, to be sent to the other side.
///
/// `desc` has room for as many bytes as rpma_peer_cfg_get_descriptor_size() tells. The
/// other side must be able to trust what it gets: an attacker who changes it may make it
/// take for persistent what is not. Send it by a secured connection.
///
/// Thread-safe.
///
/// Errors:
/// - RPMA_E_INVAL: `pcfg` or `desc` is NULL
///
/// # Example
///
/// See rpma_peer_cfg_new().
pub unsafe extern "C" fn rpma_peer_cfg_get_descriptor(
    pcfg: *const rpma_peer_cfg,
    desc: *mut c_void,
) -> c_int {
    call(|| {
        // SAFETY: NULL or a configuration; NULL or room for a descriptor.
        let (cfg, desc) = unsafe { (get(pcfg)?, out(desc.cast())?) };
        desc.write(cfg.descriptor());
        Ok(())
    })
}

/// Gives the size of the descriptor of a peer configuration, in bytes.
///
/// Thread-safe.
///
/// Errors, with `*desc_size` as it was:
/// - RPMA_E_INVAL: `pcfg` or `desc_size` is NULL
pub unsafe extern "C" fn rpma_peer_cfg_get_descriptor_size(
    pcfg: *const rpma_peer_cfg,
    desc_size: *mut usize,
) -> c_int {
    call(|| {
        // SAFETY: NULL or a configuration; NULL or valid to write to.
        let (_, size) = unsafe { (get(pcfg)?, out(desc_size)?) };
        size.write(PeerCfg::DESCRIPTOR_SIZE);
        Ok(())
    })
}

/// Makes a peer configuration of a descriptor that the other side has sent.
///
/// What follows the descriptor within `desc_size` bytes is ignored. The configuration is
/// the caller's, to be released by rpma_peer_cfg_delete(); it keeps nothing of `desc`.
///
/// Thread-safe.
///
/// Errors, with `*pcfg_ptr` as it was:
/// - RPMA_E_INVAL: `desc` or `pcfg_ptr` is NULL, or `desc_size` is 0
/// - RPMA_E_NOMEM: out of memory: nothing was made; the call can be repeated
///
/// # Example
///
/// The side that writes, with the descriptor that it has got:
///
/// ```c
/// ret = rpma_peer_cfg_from_descriptor(descriptor, size, &pcfg);
/// if (!ret) {
///     ret = rpma_conn_apply_remote_peer_cfg(conn, pcfg);
///     rpma_peer_cfg_delete(&pcfg);
/// }
/// ```
pub unsafe extern "C" fn rpma_peer_cfg_from_descriptor(
    desc: *const c_void,
    desc_size: usize,
    pcfg_ptr: *mut *mut rpma_peer_cfg,
) -> c_int {
    call(|| {
        let size = desc_size.min(PeerCfg::DESCRIPTOR_SIZE);
        // SAFETY: NULL or desc_size bytes; NULL or valid to write to.
        let (desc, cfg) = unsafe {
            let cfg = out(pcfg_ptr)?;
            if desc.is_null() {
                return Err(Error::INVAL);
            }
            (std::slice::from_raw_parts(desc.cast::<u8>(), size), cfg)
        };
        give_box(PeerCfg::from_descriptor(desc)?, cfg);
        Ok(())
    })
}

export!(
    rpma_peer_cfg_new
    rpma_peer_cfg_delete
    rpma_peer_cfg_set_direct_write_to_pmem
    rpma_peer_cfg_get_direct_write_to_pmem
    rpma_peer_cfg_get_descriptor
    rpma_peer_cfg_get_descriptor_size
    rpma_peer_cfg_from_descriptor
);
