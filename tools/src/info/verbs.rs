//! What libibverbs tells of devices: the only part here with `unsafe`.

use super::facts::{ACTIVE, Gid, Limits, Odp, Port};
use crate::rpma::Device;
use rdma_sys::{
    IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, ibv_context, ibv_device_attr_ex,
    ibv_free_device_list, ibv_get_device_list, ibv_get_device_name, ibv_gid_entry,
    ibv_odp_general_caps, ibv_odp_transport_cap_bits as odp, ibv_open_device, ibv_port_attr,
    ibv_port_state, ibv_query_device, ibv_query_port, ibv_transport_type, verbs_context,
};
use std::ffi::{CStr, c_int};
use std::mem::{offset_of, zeroed};
use std::net::Ipv6Addr;
use std::ptr::{self, NonNull};
use std::{io, slice};
use verbs_ext::{DEVICE_ATOMIC_WRITE, DEVICE_FLUSH_GLOBAL, DEVICE_FLUSH_PERSISTENT};

unsafe extern "C" {
    /// What `ibv_query_gid_table()` of `infiniband/verbs.h` is made of.
    fn _ibv_query_gid_table(
        context: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        max_entries: usize,
        flags: u32,
        entry_size: usize,
    ) -> isize;
}

/// A function in the extended table of a device, as the inline functions of `infiniband/verbs.h` find
/// it: the table lies before the context if that says so, and is as long as it says.
macro_rules! extended {
    ($context:expr, $function:ident) => {{
        let context: *mut ibv_context = $context;
        if (*context).abi_compat as usize == usize::MAX {
            let table = context
                .byte_sub(offset_of!(verbs_context, context))
                .cast::<verbs_context>();
            let from_there = size_of::<verbs_context>() - offset_of!(verbs_context, $function);
            if (*table).sz >= from_there {
                (*table).$function
            } else {
                None
            }
        } else {
            None
        }
    }};
}

/// An open device. It stays so to the end of the process, as what librpma opens does.
#[derive(Debug, Clone, Copy)]
pub struct Open(NonNull<ibv_context>);

/// What a device says of itself.
pub struct Facts {
    pub firmware: String,
    pub flush: bool,
    pub atomic_write: bool,
    pub odp: Odp,
    pub limits: Limits,
    pub ports: u8,
}

/// The devices that there are, by name, and whether they can be opened.
pub fn open_all() -> io::Result<Vec<(String, io::Result<Open>)>> {
    let mut count: c_int = 0;
    // SAFETY: it gives a list of that length, or NULL.
    let list = unsafe { ibv_get_device_list(&raw mut count) };
    if list.is_null() {
        let error = io::Error::last_os_error();
        // What it says where the kernel knows nothing of RDMA.
        return match error.raw_os_error() {
            Some(libc::ENOSYS) => Ok(vec![]),
            _ => Err(error),
        };
    }
    let count = usize::try_from(count).unwrap_or_default();
    // SAFETY: as above.
    let devices = unsafe { slice::from_raw_parts(list, count) };
    let opened = devices.iter().map(|&device| {
        // SAFETY: the device is listed, so has a name, and is only looked at.
        let (name, context) = unsafe {
            let name = CStr::from_ptr(ibv_get_device_name(device));
            (name.to_string_lossy().into_owned(), ibv_open_device(device))
        };
        let context = NonNull::new(context).ok_or_else(io::Error::last_os_error);
        (name, context.map(Open))
    });
    let opened = opened.collect();
    // SAFETY: what is open needs the list no more.
    unsafe { ibv_free_device_list(list) };
    Ok(opened)
}

impl From<Device> for Open {
    fn from(device: Device) -> Self {
        Self(NonNull::new(device.context()).expect("a device is open"))
    }
}

impl Open {
    /// As the wrappers of librpma take it.
    pub fn device(self) -> Device {
        // SAFETY: it stays open.
        unsafe { Device::from_context(self.0) }
    }

    pub fn transport(self) -> &'static str {
        // SAFETY: an open device has its description.
        let transport = unsafe { (*(*self.0.as_ptr()).device).transport_type };
        match transport {
            ibv_transport_type::IBV_TRANSPORT_IB => "InfiniBand",
            ibv_transport_type::IBV_TRANSPORT_IWARP => "iWARP",
            ibv_transport_type::IBV_TRANSPORT_USNIC
            | ibv_transport_type::IBV_TRANSPORT_USNIC_UDP => "usNIC",
            ibv_transport_type::IBV_TRANSPORT_UNSPECIFIED => "unspecified",
            _ => "unknown",
        }
    }

    pub fn query(self) -> io::Result<Facts> {
        // SAFETY: it consists of numbers.
        let mut attr: ibv_device_attr_ex = unsafe { zeroed() };
        let context = self.0.as_ptr();
        // SAFETY: the device is open, and there is room for the answer.
        let code = unsafe {
            let size = size_of_val(&attr);
            match extended!(context, query_device_ex) {
                Some(query) => query(context, ptr::null(), &raw mut attr, size),
                None => ibv_query_device(context, &raw mut attr.orig_attr),
            }
        };
        if code != 0 {
            return Err(io::Error::from_raw_os_error(code.abs()));
        }
        let device = &attr.orig_attr;
        let firmware = device.fw_ver.map(|byte| byte as u8);
        let firmware = CStr::from_bytes_until_nul(&firmware).unwrap_or_default();
        let has = |flags| attr.device_cap_flags_ex & flags == flags;
        let general =
            |flag: ibv_odp_general_caps| attr.odp_caps.general_caps & u64::from(flag.0) != 0;
        let rc = attr.odp_caps.per_transport_caps.rc_odp_caps;
        let operations = [
            ("send", odp::IBV_ODP_SUPPORT_SEND),
            ("recv", odp::IBV_ODP_SUPPORT_RECV),
            ("write", odp::IBV_ODP_SUPPORT_WRITE),
            ("read", odp::IBV_ODP_SUPPORT_READ),
            ("atomic", odp::IBV_ODP_SUPPORT_ATOMIC),
            ("srq_recv", odp::IBV_ODP_SUPPORT_SRQ_RECV),
        ];
        let with = |(_, flag): &(&str, odp)| rc & flag.0 != 0;
        Ok(Facts {
            firmware: firmware.to_string_lossy().into_owned(),
            flush: has(DEVICE_FLUSH_GLOBAL | DEVICE_FLUSH_PERSISTENT),
            atomic_write: has(DEVICE_ATOMIC_WRITE),
            odp: Odp {
                device: general(ibv_odp_general_caps::IBV_ODP_SUPPORT),
                implicit: general(ibv_odp_general_caps::IBV_ODP_SUPPORT_IMPLICIT),
                operations: operations
                    .into_iter()
                    .filter(with)
                    .map(|(name, _)| name)
                    .collect(),
                librpma: false,
            },
            limits: Limits {
                max_qp: device.max_qp,
                max_qp_wr: device.max_qp_wr,
                max_sge: device.max_sge,
                max_cq: device.max_cq,
                max_cqe: device.max_cqe,
                max_srq: device.max_srq,
                max_srq_wr: device.max_srq_wr,
                max_mr: device.max_mr,
                max_mr_size_bytes: device.max_mr_size,
                max_pd: device.max_pd,
                max_qp_rd_atom: device.max_qp_rd_atom,
                max_qp_init_rd_atom: device.max_qp_init_rd_atom,
            },
            ports: device.phys_port_cnt,
        })
    }

    /// Those that answer.
    pub fn ports(self, count: u8) -> Vec<Port> {
        let answers = (1..=count).filter_map(|number| Some((number, self.port(number)?)));
        let answers: Vec<_> = answers.collect();
        let places = answers.iter().map(|(_, attr)| attr.gid_tbl_len);
        let gids = self.gids(
            places
                .filter_map(|places| usize::try_from(places).ok())
                .sum(),
        );
        let report = |(number, attr): (u8, ibv_port_attr)| Port {
            number: number.into(),
            state: state(attr.state),
            physical_state: physical_state(attr.phys_state),
            link_layer: match attr.link_layer {
                1 => "InfiniBand",
                2 => "Ethernet",
                _ => "unspecified",
            },
            mtu_bytes: match attr.active_mtu {
                code @ 1..=5 => 128 << code,
                _ => 0,
            },
            max_message_bytes: attr.max_msg_sz,
            speed_gbit_per_s: speed(attr.active_width, attr.active_speed),
            gids: gids
                .iter()
                .filter(|entry| entry.port_num == u32::from(number))
                .map(|entry| Gid {
                    index: entry.gid_index,
                    // SAFETY: any bytes are one.
                    gid: Ipv6Addr::from(unsafe { entry.gid.raw }).to_string(),
                    kind: match entry.gid_type {
                        IBV_GID_TYPE_ROCE_V1 => "RoCE v1",
                        IBV_GID_TYPE_ROCE_V2 => "RoCE v2",
                        _ => "IB",
                    },
                    interface: interface(entry.ndev_ifindex),
                })
                .collect(),
        };
        answers.into_iter().map(report).collect()
    }

    fn port(self, number: u8) -> Option<ibv_port_attr> {
        // SAFETY: it consists of numbers.
        let mut attr: ibv_port_attr = unsafe { zeroed() };
        let context = self.0.as_ptr();
        // SAFETY: the device is open, and there is room for the answer; the old function writes the
        // beginning of it.
        let code = unsafe {
            match extended!(context, query_port) {
                Some(query) => query(context, number, &raw mut attr, size_of_val(&attr)),
                None => ibv_query_port(context, number, (&raw mut attr).cast()),
            }
        };
        (code == 0).then_some(attr)
    }

    /// Those in use, of all ports, whose tables have that many places.
    fn gids(self, places: usize) -> Vec<ibv_gid_entry> {
        let mut entries: Vec<ibv_gid_entry> = Vec::with_capacity(places);
        // SAFETY: there is room for as many entries as is said.
        let found = unsafe {
            let size = size_of::<ibv_gid_entry>();
            _ibv_query_gid_table(self.0.as_ptr(), entries.as_mut_ptr(), places, 0, size)
        };
        let found = usize::try_from(found).unwrap_or_default();
        // SAFETY: that many have been written; a failure is a negative number.
        unsafe { entries.set_len(found.min(places)) };
        entries
    }
}

/// The name of a network interface.
fn interface(index: u32) -> Option<String> {
    let name = nix::net::if_::if_indextoname(index).ok()?;
    name.into_string().ok()
}

fn state(state: ibv_port_state::Type) -> &'static str {
    match state {
        ibv_port_state::IBV_PORT_DOWN => "down",
        ibv_port_state::IBV_PORT_INIT => "initialising",
        ibv_port_state::IBV_PORT_ARMED => "armed",
        ibv_port_state::IBV_PORT_ACTIVE => ACTIVE,
        ibv_port_state::IBV_PORT_ACTIVE_DEFER => "active, deferred",
        _ => "unknown",
    }
}

/// As the InfiniBand specification numbers them, in PortInfo.
fn physical_state(state: u8) -> &'static str {
    match state {
        1 => "sleep",
        2 => "polling",
        3 => "disabled",
        4 => "training",
        5 => "link up",
        6 => "error recovery",
        7 => "test",
        _ => "unknown",
    }
}

/// Lanes times what each carries, as the same table numbers them.
fn speed(width: u8, speed: u8) -> f64 {
    let lanes = match width {
        1 => 1.0,
        2 => 4.0,
        4 => 8.0,
        8 => 12.0,
        16 => 2.0,
        _ => 0.0,
    };
    let each = match speed {
        1 => 2.5,
        2 => 5.0,
        4 | 8 => 10.0,
        16 => 14.0,
        32 => 25.0,
        64 => 50.0,
        128 => 100.0,
        _ => 0.0,
    };
    lanes * each
}
