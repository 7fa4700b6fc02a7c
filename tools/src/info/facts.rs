//! What there is to be told of a device and its ports.

use serde::Serialize;

/// The state of a port that works.
pub const ACTIVE: &str = "active";

/// On-demand paging.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Odp {
    /// Whether the device has it at all.
    pub device: bool,
    /// For the whole address space at once.
    pub implicit: bool,
    /// For which operations of reliable connections.
    pub operations: Vec<&'static str>,
    /// Whether librpma uses it: it takes RDMA WRITE and READ.
    pub librpma: bool,
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct Limits {
    pub max_qp: i32,
    pub max_qp_wr: i32,
    pub max_sge: i32,
    pub max_cq: i32,
    pub max_cqe: i32,
    pub max_srq: i32,
    pub max_srq_wr: i32,
    pub max_mr: i32,
    pub max_mr_size_bytes: u64,
    pub max_pd: i32,
    /// READs and atomics under way at once, as their target.
    pub max_qp_rd_atom: i32,
    /// As their origin.
    pub max_qp_init_rd_atom: i32,
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct Port {
    pub number: u32,
    pub state: &'static str,
    pub physical_state: &'static str,
    pub link_layer: &'static str,
    pub mtu_bytes: u32,
    pub max_message_bytes: u32,
    pub speed_gbit_per_s: f64,
    pub gids: Vec<Gid>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Gid {
    pub index: u32,
    pub gid: String,
    /// `IB`, `RoCE v1` or `RoCE v2`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub interface: Option<String>,
}
