//! What may be done about a call that failed, as far as its errno tells: the end of its line in
//! the log.
//!
//! An errno says little: "Cannot allocate memory" is mostly a limit that can be raised. What is
//! known of each call stands here and nowhere else. The device is asked nothing; the limits of the
//! process and its rights to the device files are looked up, and errno is left as it was.

use crate::log::Text;
use crate::verbs::{CmId, Errno, LookupError};
use libc::rlimit;
use std::ffi::CStr;
use std::fmt::{self, Write};

/// Shown as nothing where nothing is known, else as a sentence after the one before.
#[derive(Clone, Copy)]
pub enum Remedy {
    Unknown,
    Text(&'static str),
    /// The limit of locked memory, most likely.
    Memlock,
    /// What is wrong with the device files, or, if nothing is, that there is no device.
    NoDevice,
    /// What is wrong with the device files, or, if nothing is, with the address, of which librdmacm
    /// has an id.
    NotServed,
}

const FILES: &str = "The process has as many descriptors open as it may: close some, or raise the \
    limit (`ulimit -n`, LimitNOFILE= of a systemd unit)";
const GONE: &str = "The device is gone or broken: the kernel's log (dmesg) may say why";
const FORKED: &str = "After fork(), the listener and the connections stay with the process that made \
    them: a daemon goes to the background before it listens. Otherwise the device is gone, and the \
    kernel's log (dmesg) may say why";

const NO_HOST: &str = "It is neither an address nor the name of a host: `getent hosts` shows what a \
    name stands for";
const NO_PORT: &str = "A port is a number from 0 to 65535";

const NO_DEVICE: &str = "librdmacm finds no RDMA device that it can use: `rdma link` and \
    `ibv_devices` show what there is";
const NOT_SERVED: &str = "An RDMA device serves the addresses of its own network interface, which \
    `rdma link` shows, and loopback has none; over softverbs (`softverbs run -- PROGRAM`) every \
    address is served";
const WILDCARD: &str = "The wildcard stands for all addresses of the host: name one that a device \
    serves";
const NOT_OURS: &str = "It is no address of this host: `ip address` shows those that are";
const PORT_TAKEN: &str = "Another program, or another endpoint of this one, listens on the port: \
    stop it, or take another";
const PORT_LOW: &str = "A port below 1024 takes CAP_NET_BIND_SERVICE: take another";
const NO_WAY: &str = "There is no way to the address: `ip route get` shows the one that is taken, \
    which has to be over the network interface of an RDMA device that is up";
const NO_ANSWER: &str = "Nobody answered in time: the other host may be down or not reached by \
    this interface (`ping -I`), or take longer than rpma_conn_cfg_set_timeout() allows";
const NO_TIME: &str = "The address may not have been resolved in time: see \
    rpma_conn_cfg_set_timeout()";
const NO_ROUTE: &str = "The two sides have no path between them: on InfiniBand a subnet manager \
    has to run (`sminfo`), and on Ethernet both need a GID of the same kind and IP version";

const DATA_OUT: &str = "The private data may be longer than a request can take: 56 bytes on \
    InfiniBand and RoCE";
const DATA_BACK: &str = "The other side may have given up meanwhile, or the private data be longer \
    than an answer can take: 196 bytes on InfiniBand and RoCE";
const NOT_CONNECTED: &str = "The connection is not, or no longer, established";

const NOT_MAPPED: &str = "Not all of it is mapped, or it is mapped read-only while the usage has it \
    written; or it is a file on an ordinary filesystem, which since Linux 6.5 can't be registered \
    to be written: take device-DAX, tmpfs or hugetlbfs";
const NOT_PINNED: &str = "A file on a DAX filesystem can be registered only by a device with \
    on-demand paging: take such a device, or device-DAX, which any device can";
const NOT_TAKEN: &str = "The range is empty or too long, or the device can't use this memory so; \
    old kernels' rxe says the same where the limit of locked memory (`ulimit -l`) is the cause";
const NO_ADVICE: &str = "The device takes no such advice. Advice is a hint: go on without it";
const BAD_ADVICE: &str = "The range must lie within the region, the usage of the region must allow \
    the advice, and the flags must be known. Some devices take advice only for memory that they \
    page on demand. Advice is a hint: go on without it";

const CQ_SIZE: &str = "A CQ takes 1 to max_cqe entries: see rpma_conn_cfg_set_cq_size(), \
    rpma_conn_cfg_set_rcq_size() and rpma_srq_cfg_set_rcq_size()";
const CQ_LOST: &str = "More completions came than the CQ has room for, as it seems, and the \
    connections that use it are broken: take completions sooner, or make it longer by \
    rpma_conn_cfg_set_cq_size(), rpma_conn_cfg_set_rcq_size() or rpma_srq_cfg_set_rcq_size()";
const SRQ_SIZE: &str = "A shared RQ takes 1 to max_srq_wr receives: see rpma_srq_cfg_set_rq_size()";
const NO_SRQ: &str = "The device has no shared RQs";
const QP_SIZE: &str = "Either a queue is longer than max_qp_wr (rpma_conn_cfg_set_sq_size(), \
    rpma_conn_cfg_set_rq_size()), or the peer is of another device than the one that serves the \
    address";

const SQ_FULL: &str = "The send queue is full: take completions by rpma_cq_get_wc(), or make it \
    longer by rpma_conn_cfg_set_sq_size(). What asks for no completion leaves the queue only with \
    a later operation whose completion is taken";
const RQ_FULL: &str = "The receive queue is full: have fewer receives waiting, or make it longer by \
    rpma_conn_cfg_set_rq_size()";
const NO_RQ: &str = "The connection is closed, or uses a shared RQ, which rpma_srq_recv() is for";
const SRQ_FULL: &str = "The shared RQ is full: have fewer receives waiting, or make it longer by \
    rpma_srq_cfg_set_rq_size()";

const IN_USE: &str = "Something that was made of it is still there: delete that first";

impl Remedy {
    /// What is known of this call where it leaves this errno.
    pub fn of(call: &str, Errno(errno): Errno) -> Self {
        use Remedy::{Memlock, NoDevice, NotServed, Text, Unknown};
        use libc::*;

        match (call, errno) {
            (_, EMFILE | ENFILE) => Text(FILES),
            (
                "rdma_getaddrinfo" | "rdma_create_event_channel" | "rdma_create_id",
                ENODEV | ENOENT | EACCES | EPERM | ENOMEM,
            ) => NoDevice,
            ("rdma_bind_addr" | "rdma_resolve_addr", ENODEV) => NotServed,
            ("rdma_bind_addr", EADDRNOTAVAIL) => Text(NOT_OURS),
            ("rdma_bind_addr" | "rdma_listen", EADDRINUSE) => Text(PORT_TAKEN),
            ("rdma_bind_addr", EACCES) => Text(PORT_LOW),
            ("rdma_resolve_addr", EADDRNOTAVAIL | ENETUNREACH | EHOSTUNREACH) => Text(NO_WAY),
            ("rdma_resolve_addr", ETIMEDOUT) => Text(NO_ANSWER),
            ("rdma_resolve_route", EINVAL) => Text(NO_TIME),
            ("rdma_resolve_route", ETIMEDOUT | ENETUNREACH | EHOSTUNREACH) => Text(NO_ROUTE),

            ("rdma_connect", EINVAL) => Text(DATA_OUT),
            ("rdma_accept", EINVAL) => Text(DATA_BACK),
            ("rdma_disconnect", EINVAL | ENOTCONN) => Text(NOT_CONNECTED),

            ("ibv_reg_mr", ENOMEM | EPERM) => Memlock,
            ("ibv_reg_mr", EFAULT) => Text(NOT_MAPPED),
            ("ibv_reg_mr", EOPNOTSUPP) => Text(NOT_PINNED),
            ("ibv_reg_mr", EINVAL) => Text(NOT_TAKEN),
            ("ibv_advise_mr", EOPNOTSUPP | ENOSYS) => Text(NO_ADVICE),
            ("ibv_advise_mr", EINVAL | EFAULT | ENOENT | EPERM) => Text(BAD_ADVICE),

            ("ibv_create_cq", EINVAL) => Text(CQ_SIZE),
            // With whatever number: providers have their own.
            ("ibv_poll_cq", _) => Text(CQ_LOST),
            ("ibv_create_srq", EINVAL) => Text(SRQ_SIZE),
            ("ibv_create_srq", EOPNOTSUPP | ENOSYS) => Text(NO_SRQ),
            ("rdma_create_qp_ex", EINVAL) => Text(QP_SIZE),
            ("ibv_create_cq" | "ibv_create_srq" | "rdma_create_qp_ex", ENOMEM | EPERM | ENOSPC) => {
                Memlock
            }

            ("ibv_post_send" | "ibv_wr_complete", ENOMEM | ENOSPC) => Text(SQ_FULL),
            ("ibv_post_send" | "ibv_wr_complete", EINVAL) => Text(NOT_CONNECTED),
            ("ibv_post_recv", ENOMEM | ENOSPC) => Text(RQ_FULL),
            ("ibv_post_recv", EINVAL) => Text(NO_RQ),
            ("ibv_post_srq_recv", ENOMEM | ENOSPC) => Text(SRQ_FULL),

            (
                "ibv_dealloc_pd"
                | "ibv_destroy_comp_channel"
                | "ibv_destroy_cq"
                | "ibv_destroy_srq",
                EBUSY,
            ) => Text(IN_USE),
            ("rdma_get_cm_event", ENODEV) => Text(FORKED),
            (_, ENODEV | EIO) => Text(GONE),
            _ => Unknown,
        }
    }

    pub fn of_lookup(cause: &LookupError) -> Self {
        match *cause {
            LookupError::Errno(errno) => Self::of("rdma_getaddrinfo", errno),
            LookupError::Gai(libc::EAI_NONAME | libc::EAI_NODATA) => Remedy::Text(NO_HOST),
            LookupError::Gai(libc::EAI_SERVICE) => Remedy::Text(NO_PORT),
            LookupError::Gai(_) => Remedy::Unknown,
        }
    }

    /// For the address of an id that librdmacm has found no device for.
    pub fn not_served(id: &CmId) -> Self {
        match id.local_addr().is_wildcard() {
            true => Remedy::Text(WILDCARD),
            false => Remedy::NotServed,
        }
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let errno = Errno::last();
        let shown = match self {
            Remedy::Unknown => Ok(()),
            Remedy::Text(text) => write!(f, ". {text}"),
            Remedy::Memlock => show_memlock(f, memlock()),
            Remedy::NoDevice => show_no_device(f),
            Remedy::NotServed => show_not_served(f),
        };
        errno.leave();
        shown
    }
}

/// How much a process may lock; what the kernel pins for a device counts, unless the process has
/// CAP_IPC_LOCK.
fn memlock() -> rlimit {
    let mut limit = rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: writes to a structure of the type it takes, or fails and leaves it.
    unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    limit
}

fn show_memlock(f: &mut impl Write, limit: rlimit) -> fmt::Result {
    if limit.rlim_cur == libc::RLIM_INFINITY {
        return f.write_str(
            ". The host or the device has no more memory, or the device no more of these; it is \
             not the limit of locked memory (RLIMIT_MEMLOCK), for there is none",
        );
    }
    let soft = limit.rlim_cur;
    write!(
        f,
        ". A process without CAP_IPC_LOCK may lock {soft} bytes in all (RLIMIT_MEMLOCK, "
    )?;
    match limit.rlim_max {
        libc::RLIM_INFINITY => f.write_str("which it may raise to any number")?,
        hard if hard == soft => f.write_str("which is also the hard limit")?,
        hard => write!(f, "which it may raise to {hard}")?,
    }
    f.write_str(
        "): raise that by `ulimit -l`, memlock in /etc/security/limits.conf, LimitMEMLOCK= of a \
         systemd unit or --ulimit memlock=-1 of a container. If it is enough, the host or the \
         device has no more memory, or the device no more of these",
    )
}

const CM: &CStr = c"/dev/infiniband/rdma_cm";

/// librdmacm does not tell a device that is not there from one that it may not open.
fn show_no_device(f: &mut fmt::Formatter) -> fmt::Result {
    match try_to_open(CM) {
        Ok(()) => show_devices(f, NO_DEVICE),
        Err(errno) => show_unopened(f, CM, errno),
    }
}

/// Where there is an id without this file, it is not the kernel that serves addresses.
fn show_not_served(f: &mut fmt::Formatter) -> fmt::Result {
    match try_to_open(CM) {
        Err(Errno(libc::ENOENT)) => write!(f, ". {NOT_SERVED}"),
        _ => show_devices(f, NOT_SERVED),
    }
}

fn show_devices(f: &mut fmt::Formatter, other: &str) -> fmt::Result {
    let mut any = false;
    for number in 0..32 {
        let mut path = Text::<32>::new();
        write!(path, "/dev/infiniband/uverbs{number}")?;
        match try_to_open(path.as_c_str()) {
            Ok(()) => any = true,
            Err(Errno(libc::ENOENT)) => {}
            Err(errno) => return show_unopened(f, path.as_c_str(), errno),
        }
    }
    match any {
        true => write!(f, ". {other}"),
        false => show_unopened(f, c"/dev/infiniband/uverbs0", Errno(libc::ENOENT)),
    }
}

fn show_unopened(f: &mut fmt::Formatter, path: &CStr, errno: Errno) -> fmt::Result {
    let path = path.to_str().unwrap_or_default();
    match errno.0 {
        libc::ENOENT => write!(
            f,
            ". There is no {path}: without an RDMA device run the program by `softverbs run -- \
             PROGRAM`; with one, load the kernel modules ib_uverbs and rdma_ucm, or give the container its device files \
             (--device=/dev/infiniband)"
        ),
        libc::EMFILE | libc::ENFILE => write!(f, ". {FILES}"),
        _ => write!(
            f,
            ". {path} can't be opened ({errno}): let the user read and write it, or give the \
             container its device files (--device=/dev/infiniband)"
        ),
    }
}

/// Opens a file as librdmacm does, and closes it again.
fn try_to_open(path: &CStr) -> Result<(), Errno> {
    // SAFETY: a C string; the descriptor is closed once, by whom it was opened.
    unsafe {
        match libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) {
            -1 => Err(Errno::last()),
            fd => {
                libc::close(fd);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Remedy, rlimit, show_memlock};
    use crate::verbs::Errno;

    fn memlock(rlim_cur: u64, rlim_max: u64) -> String {
        let mut text = String::new();
        show_memlock(&mut text, rlimit { rlim_cur, rlim_max }).unwrap();
        text
    }

    #[test]
    fn the_limit_is_shown_with_what_it_may_be_raised_to() {
        let all = libc::RLIM_INFINITY;
        let begins = [
            (
                65536,
                65536,
                "65536 bytes in all (RLIMIT_MEMLOCK, which is also the hard limit)",
            ),
            (
                65536,
                131072,
                "65536 bytes in all (RLIMIT_MEMLOCK, which it may raise to 131072)",
            ),
            (
                0,
                all,
                "0 bytes in all (RLIMIT_MEMLOCK, which it may raise to any number)",
            ),
        ];
        for (soft, hard, words) in begins {
            let text = memlock(soft, hard);
            let words =
                format!(". A process without CAP_IPC_LOCK may lock {words}: raise that by ");
            assert!(text.starts_with(&words), "{text}");
        }
        assert!(memlock(all, all).ends_with("(RLIMIT_MEMLOCK), for there is none"));
    }

    /// What the call was given takes up to some 300 bytes of 1023.
    #[test]
    fn every_remedy_has_room_in_a_message() {
        let calls = [
            "rdma_getaddrinfo",
            "rdma_create_event_channel",
            "rdma_create_id",
            "rdma_bind_addr",
            "rdma_listen",
            "rdma_resolve_addr",
            "rdma_resolve_route",
            "rdma_connect",
            "rdma_accept",
            "rdma_disconnect",
            "rdma_get_cm_event",
            "rdma_create_qp_ex",
            "ibv_reg_mr",
            "ibv_advise_mr",
            "ibv_create_cq",
            "ibv_create_srq",
            "ibv_post_send",
            "ibv_wr_complete",
            "ibv_post_recv",
            "ibv_post_srq_recv",
            "ibv_dealloc_pd",
        ];
        for call in calls {
            let remedies = (1..134).map(|errno| Remedy::of(call, Errno(errno)).to_string());
            let longest = remedies.map(|text| text.len()).max();
            assert!(
                (1..700).contains(&longest.unwrap_or(0)),
                "{call}: {longest:?}"
            );
        }
    }
}
