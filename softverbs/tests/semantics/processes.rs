//! Processes: forks, ends, signals, and programs that load the library and let it go.

use crate::common::*;
use rdma_sys::*;
use softverbs::exports::cm::{
    rdma_ack_cm_event, rdma_disconnect, rdma_get_cm_event, rdma_resolve_route,
};
use softverbs::exports::cq::{ibv_ack_cq_events, ibv_get_cq_event};
use std::ffi::c_int;
use std::io::{ErrorKind, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

#[test]
fn a_child_that_does_nothing() {
    alone(|| {
        let pair = Pair::new();
        let ends = |child: fn() -> c_int| {
            let pid = fork(child);
            talk(&pair);
            ended(pid);
            talk(&pair);
        };
        ends(|| 0);
        // With all that runs when a program ends.
        ends(|| c!(libc::exit(0)));
        ends(|| {
            let program = c"true".as_ptr();
            c!(libc::execlp(program, program, ptr::null::<libc::c_char>()))
        });
    });
}

#[test]
fn a_child_of_a_busy_process_uses_objects_of_its_own() {
    alone(|| {
        let pair = Pair::new();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Whatever is locked while something goes on, is so now and then when a child is made.
            scope.spawn(|| {
                let to = pair.server.memory(1 << 16, ALL);
                let from = pair.client.memory(1 << 16, LOCAL);
                let mut i = 0;
                while !stop.load(Ordering::SeqCst) {
                    let len = [8, 1 << 16][i % 2];
                    let sges = vec![from.sge(0, len)];
                    pair.client.post(Wr::new(1, Op::Write(to.at(0)), sges));
                    pair.client.send_cq.expect(1, SUCCESS);
                    drop(pair.client.memory(4096, LOCAL));
                    i += 1;
                }
            });
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    drop(Pair::new());
                }
            });
            for _ in 0..100 {
                ended(fork(|| {
                    talk(&Pair::new());
                    0
                }));
            }
            stop.store(true, Ordering::SeqCst);
        });
    });
}

#[test]
fn children_of_children() {
    alone(|| {
        let pair = Pair::new();
        let pid = fork(|| {
            let pair = Pair::new();
            let pid = fork(|| {
                talk(&Pair::new());
                0
            });
            talk(&pair);
            ended(pid);
            0
        });
        talk(&pair);
        ended(pid);
    });
}

#[test]
fn a_child_can_destroy_what_its_parent_made() {
    // It is the child's copy: the parent's goes on.
    alone(|| {
        let pair = Pair::new();
        let listener = Listener::new();
        let (pair, listener) = (Shared(&raw const pair), Shared(&raw const listener));
        ended(fork(|| {
            c! {
                drop(ptr::read(pair.get()));
                drop(ptr::read(listener.get()));
            }
            0
        }));
        talk(c!(&*pair.get()));
        let client = begin(c!(&(*listener.get()).address), &Setup::default());
        c!(&*listener.get()).accept(&Setup::default());
        client.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    });
}

/// Rather than waiting for ever.
#[test]
fn a_child_is_told_that_nothing_comes_for_its_parents_ids() {
    let test = || {
        let (empty, listener) = (new_channel(), Listener::new());
        let (empty, listener) = (Shared(&raw const empty), Shared(&raw const listener));
        ended(fork(|| {
            let channel = c!(&(*listener.get()).channel);
            let get = || {
                let mut event = ptr::null_mut();
                c!(rdma_get_cm_event(channel.0, &mut event))
            };
            fails("rdma_get_cm_event", get(), libc::ENODEV);
            fails("rdma_get_cm_event", get(), libc::ENODEV);
            // Ids of its own are another matter, on that channel as on one that had none.
            for channel in [channel, c!(&*empty.get())] {
                let id = Id::new(channel);
                good("rdma_resolve_addr", id.resolve_addr(&LOOPBACK));
                channel.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
            }
            0
        }));
        let client = begin(c!(&(*listener.get()).address), &Setup::default());
        c!(&*listener.get()).accept(&Setup::default());
        client.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    };
    let said = said_by(test, LIMIT, &[]);
    if role().is_none() {
        let [line] = &said[..] else {
            panic!("expected one line, not {said:?}");
        };
        assert!(line.contains("do not survive fork()"), "{line}");
    }
}

/// Nor does it write to what has the number of a socket of its parent.
#[test]
fn a_child_that_posts_touches_no_descriptors_of_its_own() {
    alone(|| {
        let pair = Pair::new();
        let pid = fork(|| {
            let pairs: Vec<_> = (0..64).map(|_| UnixStream::pair().unwrap()).collect();
            for end in [&pair.client, &pair.server] {
                let _ = post_list(end.qp(), &[Wr::new(1, Op::Send, vec![])]);
                let _ = c!(rdma_disconnect(end.id.0));
            }
            for (one, other) in &pairs {
                for mut end in [one, other] {
                    end.set_nonblocking(true).unwrap();
                    let read = end.read(&mut [0]).map_err(|error| error.kind());
                    assert_eq!(read, Err(ErrorKind::WouldBlock), "bytes of the connection");
                }
            }
            0
        });
        ended(pid);
        talk(&pair);
    });
}

#[test]
fn a_child_that_polls_touches_no_descriptors_of_its_own() {
    alone(|| {
        let pair = Pair::new();
        let ends = [&pair.client, &pair.server];
        for end in ends {
            end.recv(1, vec![]);
        }
        ended(fork(|| {
            // Some of them have the numbers that the connection's sockets had.
            for _ in 0..64 {
                std::mem::forget(std::fs::File::open("/dev/null").unwrap());
            }
            for _ in 0..1000 {
                for end in ends {
                    assert!(end.send_cq.is_empty() && end.recv_cq.is_empty());
                }
            }
            0
        }));
        for end in ends {
            assert!(end.send_cq.is_empty() && end.recv_cq.is_empty());
        }
    });
}

#[test]
fn a_child_keeps_nothing_of_its_parents_connections() {
    alone(|| {
        let channel = new_channel();
        let bound = Id::new(&channel);
        good("rdma_bind_addr", bound.bind(&LOOPBACK));
        let taken = bound.local();
        let pair = Pair::new();
        // Much longer than all of the test.
        let pid = fork(|| {
            c!(libc::alarm(4 * LIMIT.as_secs() as u32));
            c!(libc::pause())
        });
        let sockets = |pid: &str| {
            let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
            // One may be closed meanwhile, as that of the directory itself.
            let links = entries.flat_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
            links
                .filter(|link| link.to_str().unwrap().starts_with("socket:"))
                .count()
        };
        assert!(
            sockets("self") >= 3,
            "of the pair, and the one that is bound"
        );
        let child = pid.to_string();
        until("the child has no sockets", || sockets(&child) == 0);
        drop(bound);
        good("rdma_bind_addr", Id::new(&channel).bind(&taken));
        talk(&pair);
        c!(libc::kill(pid, libc::SIGKILL));
        c!(libc::waitpid(pid, ptr::null_mut(), 0));
    });
}

fn port_of(part: &mut Part) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, part.told().parse().unwrap()).into()
}

#[test]
fn the_end_of_a_process_is_noticed_although_its_child_lives() {
    if role().is_some() {
        let listener = Listener::new();
        tell(listener.address.port());
        let server = listener.accept(&Setup::default());
        server.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
        let pid = fork(|| {
            // Much longer than all of the test.
            c!(libc::alarm(2 * LIMIT.as_secs() as u32));
            c!(libc::pause())
        });
        tell(pid);
        wait_to_go_on();
        return;
    }
    let mut part = Part::start("server");
    let to = port_of(&mut part);
    let client = begin(&to, &Setup::default());
    client.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    let child: libc::pid_t = part.told().parse().unwrap();
    assert!(client.channel.is_quiet());
    part.kill();
    client.channel.expect(RDMA_CM_EVENT_DISCONNECTED);
    assert_eq!(c!(libc::kill(child, 0)), 0, "the child lives");
    // Nor does it keep the port.
    let again = begin(&to, &Setup::default());
    assert_eq!(again.channel.expect(RDMA_CM_EVENT_REJECTED).status, 8);
    c!(libc::kill(child, libc::SIGKILL));
}

#[test]
fn a_program_may_end_with_connections_open() {
    if role().is_some() {
        let listener = Listener::new();
        tell(listener.address.port());
        let mut servers = vec![];
        for _ in 0..5 {
            servers.push(listener.accept(&Setup::default()));
        }
        wait_to_go_on();
        // All of it is open, and this returns to nobody.
        std::process::exit(0);
    }
    let mut part = Part::start("server");
    let to = port_of(&mut part);
    let clients: Vec<End> = (0..5).map(|_| begin(&to, &Setup::default())).collect();
    for client in &clients {
        client.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
        // It waits for a receive.
        client.post(Wr::new(1, Op::Send, vec![]));
    }
    part.go_on();
    part.ends();
    for client in &clients {
        client.channel.expect(RDMA_CM_EVENT_DISCONNECTED);
        client.send_cq.expect(1, RETRY_EXC);
    }
}

#[test]
fn what_was_acknowledged_before_an_end_has_arrived() {
    // The one who sends ends at once when it knows that all has come.
    if let Some(port) = role() {
        let client = begin(
            &(Ipv4Addr::LOCALHOST, port.parse().unwrap()).into(),
            &Setup::default(),
        );
        client.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
        let from = client.memory(1 << 20, LOCAL);
        from.write(0, &pattern(1, 1 << 20));
        for id in 0..8 {
            let sge = from.sge(id as usize * 100_000, 100_000);
            client.post(Wr::new(id, Op::Send, vec![sge]));
        }
        for id in 0..8 {
            client.send_cq.expect(id, SUCCESS);
        }
        std::process::exit(0);
    }
    let listener = Listener::new();
    let mut part = Part::start(&listener.address.port().to_string());
    let request = Id(listener.channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id);
    let server = End::new(request, new_channel(), &Setup::default());
    let to = server.memory(1 << 20, LOCAL);
    for id in 0..8 {
        server.recv(id, vec![to.sge(id as usize * 100_000, 100_000)]);
    }
    server.id.accept(&ConnParam::default());
    part.ends();
    for id in 0..8 {
        server.recv_cq.expect(id, SUCCESS);
    }
    same(
        "the messages",
        &to.read(0, 800_000),
        &pattern(1, 1 << 20)[..800_000],
    );
    listener.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    listener.channel.expect(RDMA_CM_EVENT_DISCONNECTED);
}

#[test]
fn a_process_that_is_stopped_for_a_while_goes_on() {
    if role().is_some() {
        let listener = Listener::new();
        tell(listener.address.port());
        let server = listener.accept(&Setup::default());
        let to = server.memory(1 << 20, ALL);
        server.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
        let At { addr, rkey } = to.at(0);
        tell(format!("{addr} {rkey}"));
        wait_to_go_on();
        return;
    }
    let mut part = Part::start("server");
    let client = begin(&port_of(&mut part), &Setup::default());
    client.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    let place = part.told();
    let (addr, rkey) = place.split_once(' ').unwrap();
    let at = At {
        addr: addr.parse().unwrap(),
        rkey: rkey.parse().unwrap(),
    };
    let from = client.memory(1 << 20, LOCAL);
    c!(libc::kill(part.pid() as libc::pid_t, libc::SIGSTOP));
    let tasks = format!("/proc/{}/task", part.pid());
    until("all of its threads stand still", || {
        std::fs::read_dir(&tasks).unwrap().all(|task| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat"));
            stat.is_ok_and(|stat| stat.rsplit(')').next().unwrap().starts_with(" T"))
        })
    });
    for id in 0..20 {
        client.post(Wr::new(id, Op::Write(at), vec![from.sge(0, 1 << 20)]));
    }
    let end = Instant::now() + Duration::from_millis(700);
    while Instant::now() < end {
        assert!(
            client.send_cq.is_empty(),
            "a completion while the other side stands still"
        );
    }
    c!(libc::kill(part.pid() as libc::pid_t, libc::SIGCONT));
    for id in 0..20 {
        client.send_cq.expect(id, SUCCESS);
    }
    assert!(client.channel.is_quiet());
    part.go_on();
    part.ends();
}

// ---- signals ----

static SIGNALS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_signal(_: c_int) {
    SIGNALS.fetch_add(1, Ordering::SeqCst);
}

fn handle(signal: c_int, flags: c_int) {
    let mut action: libc::sigaction = c!(std::mem::zeroed());
    action.sa_sigaction = count_signal as *const () as usize;
    action.sa_flags = flags;
    good(
        "sigaction",
        c!(libc::sigaction(signal, &action, ptr::null_mut())),
    );
}

/// What a call returns that sleeps, when a signal comes that its thread handles; and what it
/// returns when, afterwards, there is something.
fn interrupted(
    flags: c_int,
    call: impl Fn() -> (c_int, c_int) + Send + 'static,
    wake: impl FnOnce(),
) -> (c_int, c_int) {
    SIGNALS.store(0, Ordering::SeqCst);
    handle(libc::SIGUSR1, flags);
    let (send, thread) = std::sync::mpsc::channel();
    let (done, outcome) = std::sync::mpsc::channel();
    // It lives until all signals have been sent.
    let (leave, left) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        let ids = c!((libc::pthread_self(), libc::gettid()));
        send.send(Shared(ids)).unwrap();
        done.send(call()).unwrap();
        let _ = left.recv();
    });
    let (thread, tid) = thread.recv().unwrap().get();
    let mut early = None;
    // It may have slept elsewhere on its way to the call, where a signal does nothing: so there are
    // several.
    for n in 1..=5 {
        until("it sleeps, or has returned", || {
            early = early.or(outcome.try_recv().ok());
            early.is_some() || sleeps(tid)
        });
        if early.is_some() {
            break;
        }
        good(
            "pthread_kill",
            c!(libc::pthread_kill(thread, libc::SIGUSR1)),
        );
        until("the signal is handled", || {
            SIGNALS.load(Ordering::SeqCst) >= n
        });
    }
    wake();
    let outcome = early.unwrap_or_else(|| outcome.recv_timeout(LIMIT).expect("the call to return"));
    drop(leave);
    outcome
}

fn cm_event(channel: Shared<*mut rdma_event_channel>) -> (c_int, c_int) {
    let mut event = ptr::null_mut();
    let result = c!(rdma_get_cm_event(channel.get(), &mut event));
    let error = errno();
    if result == 0 {
        c!(rdma_ack_cm_event(event));
        return (0, 0);
    }
    (result, error)
}

#[test]
fn signals_while_waiting_for_an_event_of_a_connection() {
    alone(|| {
        let channel = new_channel();
        let id = Id::new(&channel);
        let raw = Shared(channel.0);
        let wake = || {
            good(
                "rdma_resolve_addr",
                id.resolve_addr(&(Ipv4Addr::LOCALHOST, 9).into()),
            )
        };
        let outcome = interrupted(0, move || cm_event(raw), wake);
        assert_eq!(outcome, (-1, libc::EINTR), "without SA_RESTART");
        channel.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
        let wake = || good("rdma_resolve_route", c!(rdma_resolve_route(id.0, 1000)));
        let outcome = interrupted(libc::SA_RESTART, move || cm_event(raw), wake);
        assert_eq!(outcome, (0, 0), "with SA_RESTART");
    });
}

#[test]
fn signals_while_waiting_for_a_completion() {
    alone(|| {
        let pair = Pair::new();
        let raw = Shared(pair.server.comp.0);
        let call = move || {
            let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
            let result = c!(ibv_get_cq_event(raw.get(), &mut cq, &mut context));
            let error = errno();
            if result == 0 {
                c!(ibv_ack_cq_events(cq, 1));
                return (0, 0);
            }
            (result, error)
        };
        let message = || {
            pair.server.recv(1, vec![]);
            pair.client.post(Wr::new(2, Op::Send, vec![]));
        };
        pair.server.recv_cq.arm(false);
        let outcome = interrupted(0, call, || {});
        assert_eq!(outcome, (-1, libc::EINTR), "without SA_RESTART");
        let outcome = interrupted(libc::SA_RESTART, call, message);
        assert_eq!(outcome, (0, 0), "with SA_RESTART");
    });
}

#[test]
fn signals_are_handled_by_the_programs_threads() {
    alone(|| {
        let _pair = Pair::new();
        let ours: Vec<String> = tasks()
            .into_iter()
            .filter(|task| comm(task) == "softverbs")
            .collect();
        assert!(!ours.is_empty(), "the thread that makes progress");
        for task in ours {
            // All but those that can't be held back, SIGKILL and SIGSTOP, and the C library's two.
            let free = !mask(&task, "SigBlk") & !(1 << 8 | 1 << 18 | 1 << 31 | 1 << 32);
            assert_eq!(free, 0, "signals that the thread would handle: {free:#x}");
        }
    });
}

fn tasks() -> Vec<String> {
    let entries = std::fs::read_dir("/proc/self/task").unwrap();
    entries
        .map(|entry| entry.unwrap().path().to_str().unwrap().to_string())
        .collect()
}

fn comm(task: &str) -> String {
    std::fs::read_to_string(format!("{task}/comm"))
        .unwrap()
        .trim()
        .to_string()
}

fn mask(task: &str, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("{task}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap()
}

// ---- the library as a file ----

/// The library of the build that this program is of.
fn library_file() -> std::path::PathBuf {
    std::env::current_exe()
        .unwrap()
        .with_file_name("libsoftverbs.so")
}

/// Builds and runs a C program that loads the library while it runs.
fn run_c(name: &str, source: &str) {
    let dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = dir.join(format!("{name}.c"));
    let program = dir.join(name);
    std::fs::write(&file, source).unwrap();
    let built = Command::new("cc")
        .args([
            "-std=c11",
            "-D_GNU_SOURCE",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-o",
        ])
        .args([&program, &file])
        .args(["-ldl", "-lpthread"])
        .output()
        .unwrap();
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    let mut child = Command::new(program)
        .arg(library_file())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "{name} ended with {status}");
            return;
        }
        if Instant::now() > end {
            let _ = child.kill();
            panic!("{name} has not ended within {LIMIT:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_library_can_be_closed() {
    run_c("semantics-dlclose", include_str!("dlclose.c"));
}

#[test]
fn a_device_without_a_thread_can_be_had_later() {
    alone(|| {
        let channel = new_channel();
        // The allocator has taken what it needs for a call that fails.
        let create = || {
            let mut id = ptr::null_mut();
            let ps = rdma_port_space::RDMA_PS_TCP;
            let result = c!(rdma_create_id(channel.0, &mut id, ptr::null_mut(), ps));
            (result, id)
        };
        let mut limit = c!(std::mem::zeroed::<libc::rlimit>());
        let good_limit = |limit: &libc::rlimit| {
            good("setrlimit", c!(libc::setrlimit(libc::RLIMIT_AS, limit)));
        };
        good(
            "getrlimit",
            c!(libc::getrlimit(libc::RLIMIT_AS, &mut limit)),
        );
        // Not enough for the stack of another thread.
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
        let tight = libc::rlimit {
            rlim_cur: pages * 4096 + (256 << 10),
            ..limit
        };
        let before = descriptors();
        for _ in 0..10 {
            good_limit(&tight);
            let failed = create().0;
            good_limit(&limit);
            fails("rdma_create_id", failed, libc::EAGAIN);
        }
        assert_eq!(descriptors(), before, "descriptors, now and before");
        let (result, id) = create();
        good("rdma_create_id", result);
        drop(Id(id));
    });
}
