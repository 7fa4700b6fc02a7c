//! Names and numbers, as the two libraries give them.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::ptr;

/// The name that a table has for a value. One that it leaves out has none, as in the original.
fn name(table: &[Option<&'static CStr>], value: c_int, unknown: &'static CStr) -> *const c_char {
    match usize::try_from(value)
        .ok()
        .and_then(|value| table.get(value))
    {
        Some(Some(name)) => name.as_ptr(),
        Some(None) => ptr::null(),
        None => unknown.as_ptr(),
    }
}

macro_rules! names {
    ($($function:ident $unknown:literal [$($name:expr),* $(,)?];)*) => { $(
        #[unsafe(no_mangle)]
        pub extern "C" fn $function(value: c_int) -> *const c_char {
            name(&[$($name),*], value, $unknown)
        }
    )* };
}

names! {
    ibv_wc_status_str c"unknown" [
        Some(c"success"),
        Some(c"local length error"),
        Some(c"local QP operation error"),
        Some(c"local EE context operation error"),
        Some(c"local protection error"),
        Some(c"Work Request Flushed Error"),
        Some(c"memory management operation error"),
        Some(c"bad response error"),
        Some(c"local access error"),
        Some(c"remote invalid request error"),
        Some(c"remote access error"),
        Some(c"remote operation error"),
        Some(c"transport retry counter exceeded"),
        Some(c"RNR retry counter exceeded"),
        Some(c"local RDD violation error"),
        Some(c"remote invalid RD request"),
        Some(c"aborted error"),
        Some(c"invalid EE context number"),
        Some(c"invalid EE context state"),
        Some(c"fatal error"),
        Some(c"response timeout error"),
        Some(c"general error"),
        Some(c"TM error"),
        Some(c"TM software rendezvous"),
    ];
    ibv_node_type_str c"unknown" [
        Some(c"unknown"),
        Some(c"InfiniBand channel adapter"),
        Some(c"InfiniBand switch"),
        Some(c"InfiniBand router"),
        Some(c"iWARP NIC"),
        Some(c"usNIC"),
        Some(c"usNIC UDP"),
        Some(c"unspecified"),
    ];
    ibv_port_state_str c"unknown" [
        Some(c"no state change (NOP)"),
        Some(c"down"),
        Some(c"init"),
        Some(c"armed"),
        Some(c"active"),
        Some(c"active defer"),
    ];
    ibv_event_type_str c"unknown" [
        Some(c"CQ error"),
        Some(c"local work queue catastrophic error"),
        Some(c"invalid request local work queue error"),
        Some(c"local access violation work queue error"),
        Some(c"communication established"),
        Some(c"send queue drained"),
        Some(c"path migrated"),
        Some(c"path migration request error"),
        Some(c"local catastrophic error"),
        Some(c"port active"),
        Some(c"port error"),
        Some(c"LID change"),
        Some(c"P_Key change"),
        Some(c"SM change"),
        Some(c"SRQ catastrophic error"),
        Some(c"SRQ limit reached"),
        Some(c"last WQE reached"),
        Some(c"client reregistration"),
        Some(c"GID table change"),
        Some(c"WQ fatal"),
    ];
    ibv_wr_opcode_str c"unknown" [
        Some(c"rdma-write"),
        Some(c"rdma-write-with-imm"),
        Some(c"send"),
        Some(c"send-with-imm"),
        Some(c"rdma-read"),
        Some(c"atomic-cmp-and-swp"),
        Some(c"atomic-fetch-and-add"),
        Some(c"local-inv"),
        Some(c"bind-mw"),
        Some(c"send-with-inv"),
        Some(c"tso"),
        Some(c"driver1"),
        None,
        None,
        Some(c"flush"),
        Some(c"atomic-write"),
    ];
    rdma_event_str c"UNKNOWN EVENT" [
        Some(c"RDMA_CM_EVENT_ADDR_RESOLVED"),
        Some(c"RDMA_CM_EVENT_ADDR_ERROR"),
        Some(c"RDMA_CM_EVENT_ROUTE_RESOLVED"),
        Some(c"RDMA_CM_EVENT_ROUTE_ERROR"),
        Some(c"RDMA_CM_EVENT_CONNECT_REQUEST"),
        Some(c"RDMA_CM_EVENT_CONNECT_RESPONSE"),
        Some(c"RDMA_CM_EVENT_CONNECT_ERROR"),
        Some(c"RDMA_CM_EVENT_UNREACHABLE"),
        Some(c"RDMA_CM_EVENT_REJECTED"),
        Some(c"RDMA_CM_EVENT_ESTABLISHED"),
        Some(c"RDMA_CM_EVENT_DISCONNECTED"),
        Some(c"RDMA_CM_EVENT_DEVICE_REMOVAL"),
        Some(c"RDMA_CM_EVENT_MULTICAST_JOIN"),
        Some(c"RDMA_CM_EVENT_MULTICAST_ERROR"),
        Some(c"RDMA_CM_EVENT_ADDR_CHANGE"),
        Some(c"RDMA_CM_EVENT_TIMEWAIT_EXIT"),
    ];
}

/// The rates: the value of `ibv_rate`, the multiple of 2.5 Gbit/s, or 0 if it is none, and Mbit/s.
const RATES: [(c_uint, c_int, c_int); 23] = [
    (2, 1, 2_500),
    (3, 4, 10_000),
    (4, 12, 30_000),
    (5, 2, 5_000),
    (6, 8, 20_000),
    (7, 16, 40_000),
    (8, 24, 60_000),
    (9, 32, 80_000),
    (10, 48, 120_000),
    (11, 0, 14_062),
    (12, 0, 56_250),
    (13, 0, 112_500),
    (14, 0, 168_750),
    (15, 0, 25_781),
    (16, 0, 103_125),
    (17, 0, 206_250),
    (18, 0, 309_375),
    (19, 11, 28_125),
    (20, 20, 53_125),
    (21, 160, 425_000),
    (22, 240, 637_500),
    (23, 320, 850_000),
    (24, 480, 1_275_000),
];
const RATE_MAX: c_uint = 0;

fn rate(which: impl Fn(&(c_uint, c_int, c_int)) -> bool) -> Option<(c_uint, c_int, c_int)> {
    RATES.iter().copied().find(which)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mult(value: c_uint) -> c_int {
    rate(|&(rate, mult, _)| rate == value && mult != 0).map_or(-1, |(_, mult, _)| mult)
}

#[unsafe(no_mangle)]
pub extern "C" fn mult_to_ibv_rate(value: c_int) -> c_uint {
    rate(|&(_, mult, _)| mult == value && mult != 0).map_or(RATE_MAX, |(rate, ..)| rate)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mbps(value: c_uint) -> c_int {
    rate(|&(rate, ..)| rate == value).map_or(-1, |(_, _, mbps)| mbps)
}

#[unsafe(no_mangle)]
pub extern "C" fn mbps_to_ibv_rate(value: c_int) -> c_uint {
    rate(|&(_, _, mbps)| mbps == value).map_or(RATE_MAX, |(rate, ..)| rate)
}
