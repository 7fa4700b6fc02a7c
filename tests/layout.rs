//! What the library takes rdma-core's structures and constants to be, checked by a C program
//! against the headers of this machine.

mod support;

use std::fmt::Write;
use std::fs;
use std::mem::{MaybeUninit, offset_of};
use std::process::Command;
use support::{cc, root, run, scratch};
use verbs_ext as ext;

/// A C expression and what Rust takes it to be.
type Fact = (String, u64);

fn size_of_pointee<T>(_: *const T) -> u64 {
    size_of::<T>() as u64
}

/// The size of each structure, and the offset and size of each member, that the library touches.
/// A member is `C.path`, or `C.path = rust.path` where rdma-sys names it otherwise.
macro_rules! structures {
    ($($name:ident { $($($c:ident).+ $(= $($rust:ident).+)?),+ $(,)? })+) => {{
        let mut facts = vec![];
        $(
            let structure = stringify!($name);
            let size = size_of::<rdma_sys::$name>() as u64;
            facts.push((format!("sizeof(struct {structure})"), size));
            $(
                let member = stringify!($($c).+).replace(' ', "");
                let (offset, size) = member!($name, [$($c).+] $([$($rust).+])?);
                facts.push((format!("offsetof(struct {structure}, {member})"), offset));
                facts.push((format!("sizeof(((struct {structure} *)0)->{member})"), size));
            )+
        )+
        facts
    }};
}

macro_rules! member {
    ($name:ident, [$($c:ident).+] [$($rust:ident).+]) => { member!($name, [$($rust).+]) };
    ($name:ident, [$($rust:ident).+]) => {{
        let value = MaybeUninit::<rdma_sys::$name>::uninit();
        // SAFETY: only the place is named, nothing is read.
        let size = size_of_pointee(unsafe { &raw const (*value.as_ptr()).$($rust).+ });
        (offset_of!(rdma_sys::$name, $($rust).+) as u64, size)
    }};
}

/// Constants of rdma-sys, under the names that C has for them; bits are of a type of their own.
macro_rules! constants {
    ($($module:ident { $($name:ident),+ $(,)? })+; bits: $($kind:ident { $($bit:ident),+ $(,)? })+) => {
        vec![
            $($((stringify!($name).to_string(), rdma_sys::$module::$name as u64),)+)+
            $($((stringify!($bit).to_string(), rdma_sys::$kind::$bit.0 as u64),)+)+
        ]
    };
}

fn structures() -> Vec<Fact> {
    structures! {
        ibv_sge { addr, length, lkey }
        ibv_send_wr {
            wr_id, next, sg_list, num_sge, opcode, send_flags,
            imm_data = imm_data_invalidated_rkey_union.imm_data,
            wr.rdma.remote_addr, wr.rdma.rkey,
        }
        ibv_recv_wr { wr_id, next, sg_list, num_sge }
        ibv_wc {
            wr_id, status, opcode, vendor_err, byte_len,
            imm_data = imm_data_invalidated_rkey_union.imm_data,
            qp_num, src_qp, wc_flags, pkey_index, slid, sl, dlid_path_bits,
        }
        ibv_device { node_type, transport_type }
        ibv_context { device, ops, abi_compat }
        ibv_context_ops { poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv }
        verbs_context { advise_mr, query_device_ex, sz, context }
        ibv_device_attr_ex {
            orig_attr, odp_caps.general_caps, odp_caps.per_transport_caps.rc_odp_caps,
            device_cap_flags_ex,
        }
        ibv_odp_caps { general_caps, per_transport_caps }
        ibv_query_device_ex_input { comp_mask }
        ibv_pd { context }
        ibv_mr { context, pd, addr, length, lkey, rkey }
        ibv_comp_channel { context, fd }
        ibv_cq { context, channel }
        ibv_srq { context }
        ibv_srq_init_attr { srq_context, attr.max_wr, attr.max_sge, attr.srq_limit }
        ibv_qp { context, qp_num }
        ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        ibv_qp_init_attr_ex {
            qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd,
            send_ops_flags,
        }
        ibv_qp_ex { qp_base, comp_mask, wr_id, wr_flags, wr_start, wr_complete }
        rdma_event_channel { fd }
        rdma_cm_id { verbs, channel, qp, route.addr.src_addr = route.addr.src_addr_union.src_addr }
        rdma_conn_param {
            private_data, private_data_len, responder_resources, initiator_depth, flow_control,
            retry_count, rnr_retry_count, srq, qp_num,
        }
        rdma_cm_event {
            id, listen_id, event, status, param.conn.private_data, param.conn.private_data_len,
        }
        rdma_addrinfo {
            ai_flags, ai_family, ai_qp_type, ai_port_space, ai_src_len, ai_dst_len, ai_src_addr,
            ai_dst_addr,
        }
    }
}

fn constants() -> Vec<Fact> {
    constants! {
        ibv_qp_type { IBV_QPT_RC }
        ibv_transport_type { IBV_TRANSPORT_IWARP }
        ibv_wr_opcode {
            IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ, IBV_WR_SEND,
            IBV_WR_SEND_WITH_IMM,
        }
        rdma_port_space { RDMA_PS_TCP }
        rdma_cm_event_type {
            RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_CONNECT_ERROR,
            RDMA_CM_EVENT_UNREACHABLE, RDMA_CM_EVENT_REJECTED, RDMA_CM_EVENT_DISCONNECTED,
            RDMA_CM_EVENT_DEVICE_REMOVAL, RDMA_CM_EVENT_TIMEWAIT_EXIT,
        };
        bits:
        ibv_access_flags {
            IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_READ,
            IBV_ACCESS_ON_DEMAND,
        }
        ibv_odp_general_caps { IBV_ODP_SUPPORT }
        ibv_odp_transport_cap_bits { IBV_ODP_SUPPORT_WRITE, IBV_ODP_SUPPORT_READ }
        ibv_qp_init_attr_mask { IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS }
        ibv_send_flags { IBV_SEND_FENCE, IBV_SEND_SIGNALED, IBV_SEND_INLINE }
    }
}

/// What verbs-ext defines, since bindings made from older headers lack it.
fn own_definitions() -> Vec<Fact> {
    macro_rules! members {
        ($($name:ident)*) => { vec![$((
            concat!("offsetof(struct ibv_qp_ex, ", stringify!($name), ")").to_string(),
            (ext::QP_EX_TAIL + offset_of!(ext::QpExTail, $name)) as u64,
        )),*] };
    }
    macro_rules! constants {
        ($($c:ident = $rust:ident)*) => { vec![$((stringify!($c).to_string(), ext::$rust as u64)),*] };
    }
    let members = members! { wr_start wr_complete wr_abort wr_atomic_write wr_flush };
    let constants = constants! {
        IB_UVERBS_DEVICE_FLUSH_GLOBAL = DEVICE_FLUSH_GLOBAL
        IB_UVERBS_DEVICE_FLUSH_PERSISTENT = DEVICE_FLUSH_PERSISTENT
        IB_UVERBS_DEVICE_ATOMIC_WRITE = DEVICE_ATOMIC_WRITE
        IBV_ACCESS_FLUSH_GLOBAL = ACCESS_FLUSH_GLOBAL
        IBV_ACCESS_FLUSH_PERSISTENT = ACCESS_FLUSH_PERSISTENT
        IBV_QP_EX_WITH_FLUSH = QP_EX_WITH_FLUSH
        IBV_QP_EX_WITH_ATOMIC_WRITE = QP_EX_WITH_ATOMIC_WRITE
        IBV_WR_ATOMIC_WRITE = WR_ATOMIC_WRITE
        IBV_WC_FLUSH = WC_FLUSH
        IBV_WC_ATOMIC_WRITE = WC_ATOMIC_WRITE
        IBV_FLUSH_GLOBAL = FLUSH_GLOBAL
        IBV_FLUSH_PERSISTENT = FLUSH_PERSISTENT
        IBV_FLUSH_RANGE = FLUSH_RANGE
        IBV_FLUSH_MR = FLUSH_MR
    };
    [members, constants].concat()
}

/// Whether the headers have all that a C expression names.
fn known(expression: &str) -> bool {
    let dir = scratch("layout-known");
    fs::write(dir.join("facts.h"), format!("FACT({expression}, 0)\n")).unwrap();
    let mut compiler = cc();
    let program = root().join("c-tests/layout.c");
    compiler
        .arg("-fsyntax-only")
        .arg("-I")
        .arg(dir)
        .arg(program);
    compiler.output().unwrap().status.success()
}

/// The release of rdma-core that the headers are of: 44 where libibverbs is 1.14.44.0.
fn headers_release() -> u32 {
    let (version, _) = run(Command::new("pkg-config").args(["--modversion", "libibverbs"]));
    version.split('.').nth(2).unwrap().parse().unwrap()
}

#[test]
fn c_sees_what_rust_sees() {
    let (own, unknown): (Vec<_>, Vec<_>) = own_definitions()
        .into_iter()
        .partition(|(expression, _)| known(expression));
    if headers_release() >= ext::FLUSH_SINCE {
        assert_eq!(unknown, [], "in none of the headers");
    }

    let facts = [structures(), constants(), own].concat();
    let dir = scratch("layout");
    let mut list = String::new();
    for (expression, value) in &facts {
        writeln!(list, "FACT({expression}, {value}ULL)").unwrap();
    }
    fs::write(dir.join("facts.h"), list).unwrap();
    let program = dir.join("layout");
    run(cc()
        .arg("-I")
        .arg(&dir)
        .arg(root().join("c-tests/layout.c"))
        .arg("-o")
        .arg(&program));
    let (stdout, _) = run(&mut Command::new(program));
    assert_eq!(stdout, format!("{} facts hold\n", facts.len()));
}
