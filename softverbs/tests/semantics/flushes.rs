//! Persistent flushes that wait for a disk, and what goes on meanwhile.
//!
//! The disk is as slow as a test wants: msync(2) waits until the test lets it go on, or fails.

use crate::common::*;
use rdma_sys::ibv_qp_state::*;
use rdma_sys::*;
use softverbs::exports::cq::ibv_ack_cq_events;
use softverbs::exports::qp::{ibv_create_qp, ibv_destroy_qp, ibv_modify_qp};
use std::ffi::{c_int, c_long};
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

const FILE_LEN: usize = 3 * 4096;

/// Has msync(2) wait, of the thread that makes this and of all that it starts from then on.
struct SlowDisk(OwnedFd);

/// An msync(2) that waits.
#[derive(Clone, Copy, Debug)]
struct WriteBack(u64);

impl SlowDisk {
    /// Before softverbs has threads.
    fn new() -> Self {
        Self::must_be_on_a_disk();
        let disk = Self::with_filter();
        // A test that has failed would wait for the disk when it deregisters what it has.
        let tell = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            tell(info);
            std::process::exit(101);
        }));
        disk
    }

    /// What is on tmpfs does not wait for a disk.
    fn must_be_on_a_disk() {
        let path = std::ffi::CString::new(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut fs: libc::statfs = c!(zeroed());
        good("statfs", c!(libc::statfs(path.as_ptr(), &mut fs)));
        assert_ne!(
            fs.f_type,
            libc::TMPFS_MAGIC,
            "{path:?} is on tmpfs: set CARGO_TARGET_DIR to a directory on a disk"
        );
    }

    fn with_filter() -> Self {
        let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
        let equal = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        let give = (libc::BPF_RET | libc::BPF_K) as u16;
        // The first word of what a filter sees is the number of the system call.
        let mut filter = [
            c!(libc::BPF_STMT(load, 0)),
            c!(libc::BPF_JUMP(equal, libc::SYS_msync as u32, 0, 1)),
            c!(libc::BPF_STMT(give, libc::SECCOMP_RET_USER_NOTIF)),
            c!(libc::BPF_STMT(give, libc::SECCOMP_RET_ALLOW)),
        ];
        let program = libc::sock_fprog {
            len: filter.len() as u16,
            filter: filter.as_mut_ptr(),
        };
        let set = c!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
        good("prctl", set);
        let fd: c_long = c!(libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &program
        ));
        assert!(fd >= 0, "seccomp(2): {}", io::Error::last_os_error());
        SlowDisk(c!(OwnedFd::from_raw_fd(fd as i32)))
    }

    /// Whether something waits to be written back that [`SlowDisk::next`] has not given yet.
    fn has_next(&self) -> bool {
        readable(self.0.as_raw_fd(), NOW)
    }

    /// What waits to be written back next.
    #[track_caller]
    fn next(&self) -> WriteBack {
        assert!(
            readable(self.0.as_raw_fd(), LIMIT),
            "nothing is written back within {LIMIT:?}"
        );
        let mut call = c!(zeroed::<libc::seccomp_notif>());
        let recv = libc::SECCOMP_IOCTL_NOTIF_RECV;
        let result = c!(libc::ioctl(self.0.as_raw_fd(), recv, &mut call));
        good("SECCOMP_IOCTL_NOTIF_RECV", result);
        WriteBack(call.id)
    }

    /// Has it written back.
    #[track_caller]
    fn go_on(&self, one: WriteBack) {
        let go_on = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
        self.answer(one, go_on, 0);
    }

    /// Has it fail.
    #[track_caller]
    fn fail(&self, one: WriteBack, errno: c_int) {
        self.answer(one, 0, -errno);
    }

    #[track_caller]
    fn answer(&self, one: WriteBack, flags: u32, error: c_int) {
        let mut answer = c!(zeroed::<libc::seccomp_notif_resp>());
        (answer.id, answer.flags, answer.error) = (one.0, flags, error);
        let send = libc::SECCOMP_IOCTL_NOTIF_SEND;
        let result = c!(libc::ioctl(self.0.as_raw_fd(), send, &mut answer));
        good("SECCOMP_IOCTL_NOTIF_SEND", result);
    }
}

/// Memory of a file, for one side of a connection to have made persistent.
struct Target {
    memory: Memory,
    _file: Scratch,
}

impl Target {
    fn new(pd: &Pd, name: &str) -> Self {
        let file = Scratch::new(name, FILE_LEN as u64);
        let pages = Pages::of_file(&file.open(), FILE_LEN);
        let access = LOCAL | REMOTE_WRITE | REMOTE_READ | FLUSH_PERSISTENT;
        let memory = Memory::of(pd, pages, access);
        Target {
            memory,
            _file: file,
        }
    }

    fn flush(&self, id: u64) -> Wr {
        let all = Op::Flush(self.memory.at(0), FILE_LEN, PERSISTENT, false);
        Wr::new(id, all, vec![])
    }
}

/// What a connection has written in front of its flush (1), that flush (2), and what it has written
/// behind it (3).
struct Flushing {
    target: Target,
    from: Memory,
    write_back: WriteBack,
}

impl Flushing {
    #[track_caller]
    fn begin(disk: &SlowDisk, client: &End, pd: &Pd, name: &str) -> Self {
        let target = Target::new(pd, name);
        let from = client.memory(8, LOCAL);
        from.write(0, &pattern(1, 8));
        let write = |id, at| Wr::new(id, Op::Write(target.memory.at(at)), vec![from.sge(0, 8)]);
        let requests = [write(1, 0), target.flush(2), write(3, 8)];
        client.post_by(Interface::Extended, &requests);
        client.send_cq.expect(1, SUCCESS);
        let write_back = disk.next();
        Flushing {
            target,
            from,
            write_back,
        }
    }

    #[track_caller]
    fn is_under_way(&self, client: &End) {
        assert!(client.send_cq.is_empty(), "the disk has not finished");
        same("behind the flush", &self.target.memory.read(8, 8), &[0; 8]);
    }

    /// The disk has finished.
    #[track_caller]
    fn is_done(&self, client: &End) {
        assert_eq!(client.send_cq.expect(2, SUCCESS).opcode, WC_FLUSH);
        client.send_cq.expect(3, SUCCESS);
        let expected = self.from.read(0, 8);
        same(
            "behind the flush",
            &self.target.memory.read(8, 8),
            &expected,
        );
    }
}

/// Writes to the other side, and reads from it.
#[track_caller]
fn write_and_read(end: &End, there: &Memory, here: &Memory, seed: u64) {
    let data = pattern(seed, 4096);
    here.write(0, &data);
    for op in [Op::Write(there.at(0)), Op::Read(there.at(0))] {
        end.post(Wr::new(seed, op, vec![here.sge(0, 4096)]));
        end.send_cq.expect(seed, SUCCESS);
        same("what was written, and read", &here.read(0, 4096), &data);
        here.fill(0);
    }
}

/// The next completion of an end, whose queues are polled only when there is an event.
#[track_caller]
fn by_event(cq: &Cq, end: &End) -> Wc {
    loop {
        cq.arm(false);
        if let Some(wc) = cq.poll().unwrap() {
            return wc;
        }
        c!(ibv_ack_cq_events(end.comp.take(), 1));
    }
}

#[test]
fn other_connections_go_on_while_a_flush_waits() {
    alone(|| {
        let disk = SlowDisk::new();
        let slow = Pair::new();
        let other = Pair::new();
        let flushing = Flushing::begin(&disk, &slow.client, &slow.server.pd, "others");

        let (there, here) = (
            other.server.memory(4096, ALL),
            other.client.memory(4096, ALL),
        );
        for i in 0..100 {
            write_and_read(&other.client, &there, &here, i);
        }
        talk(&other);
        // Nobody polls: what comes is told by events.
        for i in 0..20 {
            other.server.recv(i, vec![there.sge(0, 4096)]);
            let wr = Wr::new(i, Op::Send, vec![here.sge(0, 4096)]);
            other.client.post(wr);
            let seen = by_event(&other.server.recv_cq, &other.server);
            assert_eq!((seen.id, seen.status), (i, SUCCESS));
            let seen = by_event(&other.client.send_cq, &other.client);
            assert_eq!((seen.id, seen.status), (i, SUCCESS));
        }
        // A connection is made, used, and ended.
        let one_more = Pair::new();
        talk(&one_more);
        one_more.client.id.disconnect();
        one_more.server.channel.expect(RDMA_CM_EVENT_DISCONNECTED);

        flushing.is_under_way(&slow.client);
        disk.go_on(flushing.write_back);
        flushing.is_done(&slow.client);
    });
}

/// Also not a queue that the connection with the flush completes to.
#[test]
fn polling_does_not_wait_for_a_flush() {
    alone(|| {
        let disk = SlowDisk::new();
        let listener = Listener::new();
        let context = made("the device", c!((*listener.id.0).verbs));
        let (pd, cq) = (Pd::new(context), Cq::new(context, 256, None));
        let connect = || Member::connect(&listener, (&pd, &cq, None), &ConnParam::default());
        let (slow, flusher) = connect();
        let (other, sender) = connect();
        let flushing = Flushing::begin(&disk, &flusher, &pd, "polling");
        for i in 0..100 {
            assert!(cq.is_empty());
            assert!(flusher.send_cq.is_empty() && flusher.recv_cq.is_empty());
            assert_eq!(post_recvs(other.qp(), &[(i, vec![])]), Ok(()));
            sender.post(Wr::new(i, Op::Send, vec![]));
            cq.expect(i, SUCCESS);
            sender.send_cq.expect(i, SUCCESS);
        }
        // This side of the connection sends, since only what it receives has to wait.
        flusher.recv(1, vec![]);
        let wr = Wr::new(2, Op::Send, vec![]);
        assert_eq!(post_list(slow.qp(), &[wr]), Ok(()));
        flusher.recv_cq.expect(1, SUCCESS);
        flushing.is_under_way(&flusher);
        disk.go_on(flushing.write_back);
        flushing.is_done(&flusher);
        cq.expect(2, SUCCESS);
    });
}

#[test]
fn flushes_of_two_connections_do_not_wait_for_each_other() {
    alone(|| {
        let disk = SlowDisk::new();
        let pairs = [Pair::new(), Pair::new()];
        // Both wait at once. The second one is done first.
        let both = [0, 1].map(|i| {
            let Pair { client, server } = &pairs[i];
            Flushing::begin(&disk, client, &server.pd, &format!("two-{i}"))
        });
        disk.go_on(both[1].write_back);
        both[1].is_done(&pairs[1].client);
        both[0].is_under_way(&pairs[0].client);
        disk.go_on(both[0].write_back);
        both[0].is_done(&pairs[0].client);
    });
}

/// More than there are threads for it.
#[test]
fn many_flushes_at_once_are_all_done() {
    const MANY: usize = 70;
    alone(|| {
        let disk = SlowDisk::new();
        let pairs: Vec<Pair> = (0..MANY).map(|_| Pair::new()).collect();
        let target = |pair: &Pair, i| Target::new(&pair.server.pd, &format!("many-{i}"));
        let targets = pairs.iter().enumerate().map(|(i, pair)| target(pair, i));
        let targets: Vec<Target> = targets.collect();
        for (pair, target) in pairs.iter().zip(&targets) {
            pair.client
                .post_by(Interface::Extended, &[target.flush(1), target.flush(2)]);
        }
        for _ in 0..2 * MANY {
            let one = disk.next();
            disk.go_on(one);
        }
        for pair in &pairs {
            pair.client.send_cq.expect(1, SUCCESS);
            pair.client.send_cq.expect(2, SUCCESS);
        }
        assert!(!disk.has_next());
    });
}

#[test]
fn deregistering_waits_for_a_flush() {
    alone(|| {
        let disk = SlowDisk::new();
        let pair = Pair::new();
        let mut flushing = Flushing::begin(&disk, &pair.client, &pair.server.pd, "dereg");
        let (tid, gone) = (AtomicI32::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let memory = &mut flushing.target.memory;
            scope.spawn(|| {
                tid.store(c!(libc::gettid()), Ordering::SeqCst);
                memory.deregister();
                gone.store(true, Ordering::SeqCst);
            });
            until("the region is deregistered, or that waits", || {
                let tid = tid.load(Ordering::SeqCst);
                gone.load(Ordering::SeqCst) || tid != 0 && sleeps(tid)
            });
            // Others go on.
            talk(&Pair::new());
            assert!(!gone.load(Ordering::SeqCst), "the disk has not finished");
            disk.go_on(flushing.write_back);
        });
        pair.client.send_cq.expect(2, SUCCESS);
        // The key is no more.
        pair.client.send_cq.expect(3, REM_ACCESS);
    });
}

#[test]
fn a_flush_that_fails() {
    alone(|| {
        let disk = SlowDisk::new();
        for error in [libc::EIO, libc::ENOSPC] {
            let pair = Pair::new();
            let other = Pair::new();
            pair.server.recv(9, vec![]);
            let flushing = Flushing::begin(&disk, &pair.client, &pair.server.pd, "fails");
            disk.fail(flushing.write_back, error);
            pair.client.send_cq.expect(2, REM_OP);
            pair.client.send_cq.expect(3, FLUSHED);
            pair.server.recv_cq.expect(9, FLUSHED);
            same("behind", &flushing.target.memory.read(8, 8), &[0; 8]);
            talk(&other);
        }
    });
}

/// The client's requests fail, at whatever moment that is.
#[track_caller]
fn fail(client: &End) {
    for id in [2, 3] {
        let seen = client.send_cq.next();
        assert_eq!(seen.id, id);
        assert_ne!(seen.status, SUCCESS, "request {id}");
    }
}

#[test]
fn destroying_the_queue_pair_during_its_flush() {
    alone(|| {
        let disk = SlowDisk::new();
        for error in [None, Some(libc::EIO)] {
            let Pair { client, server } = Pair::new();
            let flushing = Flushing::begin(&disk, &client, &server.pd, "qp");
            server.id.destroy_qp();
            talk(&Pair::new());
            client.id.disconnect();
            // The connection is there without its queue pair.
            server.channel.expect(RDMA_CM_EVENT_DISCONNECTED);
            server.id.hang_up();
            client.channel.expect(RDMA_CM_EVENT_DISCONNECTED);
            fail(&client);
            match error {
                None => disk.go_on(flushing.write_back),
                Some(error) => disk.fail(flushing.write_back, error),
            }
            // Waits until the flush has let go of it.
            drop(flushing);
        }
    });
}

/// What has come behind the flush already is not forgotten.
#[test]
fn a_disconnect_behind_a_flush_whose_queue_pair_goes() {
    alone(|| {
        let disk = SlowDisk::new();
        for is_reset in [false, true] {
            let Pair { client, server } = Pair::new();
            let target = Target::new(&server.pd, "behind");
            client.post_by(Interface::Extended, &[target.flush(1)]);
            let first = disk.next();
            // These wait in the socket, and are received together.
            client.post_by(Interface::Extended, &[target.flush(2)]);
            client.id.disconnect();
            client.send_cq.expect(1, FLUSHED);
            client.send_cq.expect(2, FLUSHED);
            disk.go_on(first);
            let write_back = disk.next();
            if is_reset {
                reset(server.qp());
            } else {
                server.id.destroy_qp();
            }
            server.channel.expect(RDMA_CM_EVENT_DISCONNECTED);
            // It has asked, and has not given up.
            assert!(client.channel.is_quiet(), "reset: {is_reset}");
            server.id.disconnect();
            client.channel.expect(RDMA_CM_EVENT_DISCONNECTED);
            disk.go_on(write_back);
        }
    });
}

#[test]
fn destroying_either_end_during_a_flush() {
    alone(|| {
        let disk = SlowDisk::new();
        let pd = Pd::new(device());
        for error in [None, Some(libc::EIO)] {
            for of_client in [true, false] {
                let listener = Listener::new();
                let cq = Cq::new(device(), 16, None);
                let queues = (&pd, &cq, None);
                let (member, client) = Member::connect(&listener, queues, &ConnParam::default());
                let flushing = Flushing::begin(&disk, &client, &pd, "end");
                let other = Pair::new();
                let answer = || match error {
                    None => disk.go_on(flushing.write_back),
                    Some(error) => disk.fail(flushing.write_back, error),
                };
                if of_client {
                    let Flushing { from, .. } = &flushing;
                    same("what was written", &from.read(0, 8), &pattern(1, 8));
                    client.id.destroy_qp();
                    c!(softverbs::exports::cm::rdma_disconnect(client.id.0));
                    talk(&other);
                    answer();
                    let event = member.channel.expect(RDMA_CM_EVENT_DISCONNECTED);
                    assert_eq!(event.id, member.id.0);
                    drop(flushing);
                } else {
                    drop(member);
                    fail(&client);
                    talk(&other);
                    answer();
                    drop(flushing);
                }
                talk(&other);
            }
        }
    });
}

/// A queue pair that was made without an id and has one connection after the other.
struct Reused {
    listener: Listener,
    pd: Pd,
    _cq: Cq,
    qp: *mut ibv_qp,
}

impl Reused {
    fn new() -> Self {
        let (pd, cq) = (Pd::new(device()), Cq::new(device(), 64, None));
        let mut attr: ibv_qp_init_attr = c!(zeroed());
        attr.cap = room_for(4, 4, 0);
        attr.qp_type = ibv_qp_type::IBV_QPT_RC;
        (attr.send_cq, attr.recv_cq) = (cq.0, cq.0);
        let qp = made("ibv_create_qp", c!(ibv_create_qp(pd.0, &mut attr)));
        Reused {
            listener: Listener::new(),
            pd,
            _cq: cq,
            qp,
        }
    }

    #[track_caller]
    fn connect(&self) -> (End, Id) {
        let client = begin(&self.listener.address, &Setup::default());
        let channel = &self.listener.channel;
        let request = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
        let server = Id(request.id);
        c! { (*server.0).qp = self.qp };
        server.accept(&ConnParam::default());
        client.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
        channel.expect(RDMA_CM_EVENT_ESTABLISHED);
        (client, server)
    }

    /// Ends a connection, and makes the queue pair ready for the next one.
    #[track_caller]
    fn end(&self, server: Id) {
        server.disconnect();
        c! { (*server.0).qp = ptr::null_mut() };
        drop(server);
        while self.listener.channel.get_within(NOW).is_some() {}
        reset(self.qp);
    }
}

impl Drop for Reused {
    fn drop(&mut self) {
        let result = c!(ibv_destroy_qp(self.qp));
        if !std::thread::panicking() {
            assert_eq!(result, 0, "ibv_destroy_qp");
        }
    }
}

#[track_caller]
fn reset(qp: *mut ibv_qp) {
    let mut attr: ibv_qp_attr = c!(zeroed());
    attr.qp_state = IBV_QPS_RESET;
    let mask = ibv_qp_attr_mask::IBV_QP_STATE.0 as c_int;
    assert_eq!(c!(ibv_modify_qp(qp, &mut attr, mask)), 0, "ibv_modify_qp");
}

/// The next connection has nothing of it.
#[test]
fn a_flush_of_the_connection_before() {
    alone(|| {
        let disk = SlowDisk::new();
        let reused = Reused::new();
        let (client, server) = reused.connect();
        let before = Flushing::begin(&disk, &client, &reused.pd, "before");
        reused.end(server);
        fail(&client);

        let (client, server) = reused.connect();
        let now = Flushing::begin(&disk, &client, &reused.pd, "now");
        disk.fail(before.write_back, libc::EIO);
        // Returns when the flush before is over.
        drop(before);
        talk(&Pair::new());
        now.is_under_way(&client);
        disk.go_on(now.write_back);
        now.is_done(&client);
        reused.end(server);
    });
}

/// Neither where both still wait for a thread.
#[test]
fn a_flush_of_the_connection_before_that_has_not_begun() {
    /// So many threads there are.
    const THREADS: usize = 64;
    alone(|| {
        let disk = SlowDisk::new();
        let busy: Vec<Pair> = (0..THREADS).map(|_| Pair::new()).collect();
        let busy = busy.iter().enumerate().map(|(i, pair)| {
            let name = format!("busy-{i}");
            let flushing = Flushing::begin(&disk, &pair.client, &pair.server.pd, &name);
            (flushing, &pair.client)
        });
        let mut busy: Vec<_> = busy.collect();
        let mut one_is_free = || {
            let (flushing, client) = busy.pop().unwrap();
            disk.go_on(flushing.write_back);
            flushing.is_done(client);
        };

        let reused = Reused::new();
        let (client, server) = reused.connect();
        let targets = ["before", "now"].map(|name| Target::new(&reused.pd, name));
        // What is sent behind the flush has come when this has been answered.
        let flush = |client: &End, target: &Target| {
            let from = client.memory(8, LOCAL);
            let write = Wr::new(1, Op::Write(target.memory.at(0)), vec![from.sge(0, 8)]);
            client.post_by(Interface::Extended, &[write, target.flush(2)]);
            client.send_cq.expect(1, SUCCESS);
        };
        flush(&client, &targets[0]);
        reused.end(server);
        client.send_cq.next();
        let (client, server) = reused.connect();
        flush(&client, &targets[1]);
        assert!(!disk.has_next(), "there are {THREADS} threads");

        one_is_free();
        let write_back = disk.next();
        // These have nothing to do but the job of the flush before.
        one_is_free();
        one_is_free();
        talk(&Pair::new());
        assert!(client.send_cq.is_empty(), "the disk has not finished");
        disk.fail(write_back, libc::EIO);
        client.send_cq.expect(2, REM_OP);
        while let Some((flushing, client)) = busy.pop() {
            disk.go_on(flushing.write_back);
            flushing.is_done(client);
        }
        reused.end(server);
    });
}

/// A child has threads of its own for its flushes. Its parent's go on in the parent.
#[test]
fn forking_during_a_flush() {
    alone(|| {
        let disk = SlowDisk::new();
        let pair = Pair::new();
        let flushing = Flushing::begin(&disk, &pair.client, &pair.server.pd, "parent");
        let child = fork(|| {
            // The disk, which both have, is the parent's to let go on.
            let pair = Pair::new();
            talk(&pair);
            let target = Target::new(&pair.server.pd, "child");
            pair.client.post_by(Interface::Extended, &[target.flush(1)]);
            pair.client.send_cq.expect(1, SUCCESS);
            0
        });
        let of_child = disk.next();
        flushing.is_under_way(&pair.client);
        disk.go_on(of_child);
        ended(child);
        flushing.is_under_way(&pair.client);
        disk.go_on(flushing.write_back);
        flushing.is_done(&pair.client);
    });
}
