//! The port, and the addresses of this host as its GIDs.

use super::limits::MAX_MESSAGE;
use crate::settings::Settings;
use rdma_sys::{
    IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V2, ibv_gid, ibv_gid_entry, ibv_mtu, ibv_port_attr,
    ibv_port_cap_flags, ibv_port_state,
};
use std::ffi::c_int;
use std::mem::zeroed;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::{io, ptr};

/// The only port.
pub const PORT: u32 = 1;
/// The only partition, that of everyone.
pub const PKEY: u16 = 0xffff;

/// `IBV_LINK_LAYER_ETHERNET`, `infiniband/verbs.h`.
const ETHERNET: u8 = 2;
/// What `ibv_port_attr` calls a width of four lanes, a speed of 10 Gbit/s each, a link that is up.
const FOUR_LANES: u8 = 2;
const TEN_GIGABITS: u8 = 4;
const LINK_UP: u8 = 5;

/// An address of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    pub ip: IpAddr,
    /// The index of the interface that has it.
    pub interface: u32,
}

/// The addresses that are up, those of the loopback interface last.
pub fn addresses() -> io::Result<Vec<Address>> {
    let mut first = ptr::null_mut();
    // SAFETY: it gives a list or an error.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found: Vec<Address> = Vec::new();
    let mut next = first;
    // SAFETY: the list is ours until it is freed, and ends with NULL.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        if entry.ifa_flags & libc::IFF_UP as u32 == 0 || entry.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: the family says what the address is; it is not NULL.
        let ip = match c_int::from(unsafe { (*entry.ifa_addr).sa_family }) {
            libc::AF_INET => {
                // SAFETY: as above.
                let address = unsafe { *entry.ifa_addr.cast::<libc::sockaddr_in>() };
                IpAddr::V4(Ipv4Addr::from_bits(u32::from_be(address.sin_addr.s_addr)))
            }
            libc::AF_INET6 => {
                // SAFETY: as above.
                let address = unsafe { *entry.ifa_addr.cast::<libc::sockaddr_in6>() };
                IpAddr::V6(Ipv6Addr::from(address.sin6_addr.s6_addr))
            }
            _ => continue,
        };
        // SAFETY: it is a string.
        let interface = unsafe { libc::if_nametoindex(entry.ifa_name) };
        let address = Address { ip, interface };
        if !found.contains(&address) {
            found.push(address);
        }
    }
    // SAFETY: nothing refers to it any more.
    unsafe { libc::freeifaddrs(first) };
    found.sort_by_key(|address| address.ip.is_loopback());
    Ok(found)
}

/// An address as a GID: an IPv4 address is mapped into IPv6.
pub fn gid(ip: IpAddr) -> ibv_gid {
    let raw = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    ibv_gid { raw }
}

/// The entry `index` of the GID table, which is `address`.
pub fn gid_entry(settings: &Settings, index: usize, address: &Address) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: gid(address.ip),
        gid_index: index as u32,
        port_num: PORT,
        gid_type: if settings.iwarp {
            IBV_GID_TYPE_IB
        } else {
            IBV_GID_TYPE_ROCE_V2
        },
        ndev_ifindex: address.interface,
    }
}

/// What the port says of itself.
pub fn attributes() -> io::Result<ibv_port_attr> {
    let addresses = addresses()?;
    // SAFETY: it consists of numbers.
    let mut attr: ibv_port_attr = unsafe { zeroed() };
    attr.state = if addresses.is_empty() {
        ibv_port_state::IBV_PORT_DOWN
    } else {
        ibv_port_state::IBV_PORT_ACTIVE
    };
    attr.max_mtu = ibv_mtu::IBV_MTU_4096;
    attr.active_mtu = ibv_mtu::IBV_MTU_4096;
    attr.gid_tbl_len = addresses.len() as c_int;
    attr.port_cap_flags =
        ibv_port_cap_flags::IBV_PORT_CM_SUP.0 | ibv_port_cap_flags::IBV_PORT_IP_BASED_GIDS.0;
    attr.max_msg_sz = MAX_MESSAGE;
    attr.pkey_tbl_len = 1;
    attr.max_vl_num = 1;
    attr.active_width = FOUR_LANES;
    attr.active_speed = TEN_GIGABITS;
    attr.phys_state = LINK_UP;
    attr.link_layer = ETHERNET;
    Ok(attr)
}
