use super::error::failed;
use super::remedy::Remedy;
use super::{Error, Result};
use crate::verbs::{AddrInfo, CmId, Context, Resolve};
use std::ffi::{CStr, c_int};
use std::fmt;

/// How long an address is looked for if nothing else is said: `RPMA_DEFAULT_TIMEOUT_MS`.
pub const DEFAULT_TIMEOUT_MS: c_int = 1000;

/// On which side of a connection a device is looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// By its own address.
    Local,
    /// By an address that it reaches.
    Remote,
}

/// A C string for a message; what is not UTF-8 is shown as `\u{FFFD}`.
pub struct Shown<'a>(pub &'a CStr);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for chunk in self.0.to_bytes().utf8_chunks() {
            f.write_str(chunk.valid())?;
            if !chunk.invalid().is_empty() {
                f.write_str("\u{FFFD}")?;
            }
        }
        Ok(())
    }
}

/// Looks up an address for a connection.
pub fn lookup(addr: &CStr, port: Option<&CStr>, resolve: Resolve) -> Result<AddrInfo> {
    AddrInfo::lookup(addr, port, resolve).map_err(|cause| {
        let flags = match resolve {
            Resolve::Passive => "RAI_PASSIVE",
            Resolve::Active => "0",
        };
        log!(
            Error,
            "rdma_getaddrinfo(node={}, service={}, ai_flags={flags}, ai_qp_type=IBV_QPT_RC, \
             ai_port_space=RDMA_PS_TCP) failed: {cause}{}",
            Shown(addr),
            Shown(port.unwrap_or(c"NULL")),
            Remedy::of_lookup(&cause)
        );
        Error::PROVIDER
    })
}

/// The device of an id, which librdmacm may not have found.
pub fn device_of(id: &CmId, addr: impl fmt::Display) -> Result<Context> {
    id.context().ok_or_else(|| {
        log!(
            Error,
            "no RDMA device serves the address {addr}{}",
            Remedy::not_served(id)
        );
        Error::PROVIDER
    })
}

/// The device that serves a local address or reaches a remote one.
pub fn find_device(addr: &CStr, side: Side) -> Result<Context> {
    let resolve = match side {
        Side::Local => Resolve::Passive,
        Side::Remote => Resolve::Active,
    };
    let info = lookup(addr, None, resolve)?;
    let id = CmId::create(None).map_err(failed!("rdma_create_id"))?;
    match side {
        Side::Local => bind(&id, &info, Shown(addr))?,
        Side::Remote => resolve_addr(&id, &info, addr, DEFAULT_TIMEOUT_MS)?,
    }
    device_of(&id, Shown(addr))
}

/// `addr` is what `info` was looked up by, to show.
pub fn bind(id: &CmId, info: &AddrInfo, addr: impl fmt::Display) -> Result<()> {
    id.bind(info)
        .map_err(failed!("rdma_bind_addr", "addr={addr}"))
}

pub fn resolve_addr(id: &CmId, info: &AddrInfo, addr: &CStr, timeout_ms: c_int) -> Result<()> {
    let addr = Shown(addr);
    id.resolve_addr(info, timeout_ms).map_err(failed!(
        "rdma_resolve_addr",
        "dst_addr={addr}, timeout_ms={timeout_ms}"
    ))
}

/// Whether the device pages on demand for RDMA WRITE and READ.
pub fn is_odp_capable(context: Context) -> Result<bool> {
    let capabilities = context.query().map_err(failed!("ibv_query_device_ex"))?;
    Ok(capabilities.odp())
}
