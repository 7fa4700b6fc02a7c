//! The queue pairs of the process, and which of other hosts they may be connected to.

use crate::driver::conn::Conn;
use crate::process::{AtFork, LockOrder, at_fork};
use crate::proto::Right;
use crate::settings::Settings;
use crate::sync::lock;
use rdma_sys::ibv_access_flags;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, Weak};

/// A queue pair of another host.
pub type Peer = (u32, IpAddr);

#[derive(Default)]
pub struct Qps {
    /// The queue pairs that have not been destroyed, by number.
    conns: BTreeMap<u32, Weak<Conn>>,
    /// The queue pairs that programs have asked how to reach, by the token of the id that knows them.
    reachable: BTreeMap<u64, Peer>,
}

static QPS: Mutex<Qps> = Mutex::new(Qps {
    conns: BTreeMap::new(),
    reachable: BTreeMap::new(),
});

/// The queue pairs. As long as they are locked no connection gets another queue pair.
pub fn qps() -> MutexGuard<'static, Qps> {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        at_fork(AtFork {
            order: LockOrder::Exports,
            lock: || Box::new(lock(&QPS)),
            in_child: || {},
        });
    });
    lock(&QPS)
}

impl Qps {
    pub fn add(&mut self, num: u32, conn: &Arc<Conn>) {
        self.conns.insert(num, Arc::downgrade(conn));
    }

    pub fn remove(&mut self, num: u32) {
        self.conns.remove(&num);
    }

    pub fn find(&self, num: u32) -> Option<Arc<Conn>> {
        self.conns.get(&num)?.upgrade()
    }

    /// The program has asked an id how to reach the other side.
    pub fn note_reachable(&mut self, id: u64, peer: Peer) {
        self.reachable.insert(id, peer);
    }

    /// The id is destroyed.
    pub fn forget_reachable(&mut self, id: u64) {
        self.reachable.remove(&id);
    }

    pub fn is_reachable(&self, peer: Peer) -> bool {
        self.reachable.values().any(|one| *one == peer)
    }
}

/// A number for a queue pair.
pub fn new_qp_num() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Relaxed: only that no two numbers are the same matters.
    if NEXT.load(Ordering::Relaxed) == 0 {
        let mut random = [0; 4];
        let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
        let start = u32::from_ne_bytes(random) | 1;
        // Relaxed: as above; one thread's start wins.
        let _ = NEXT.compare_exchange(0, start, Ordering::Relaxed, Ordering::Relaxed);
    }
    // 0 and 1 are taken, and there are 24 bits.
    loop {
        // Relaxed: as above.
        let num = NEXT.fetch_add(1, Ordering::Relaxed) & 0xff_ffff;
        if num > 1 {
            return num;
        }
    }
}

/// What connection management lets the other side do: `enum ibv_access_flags`.
pub fn every_access() -> u32 {
    type A = ibv_access_flags;
    let flush = if Settings::get().flush {
        Right::FlushGlobal.bit() | Right::FlushPersistent.bit()
    } else {
        0
    };
    (A::IBV_ACCESS_REMOTE_WRITE | A::IBV_ACCESS_REMOTE_READ | A::IBV_ACCESS_REMOTE_ATOMIC).0 | flush
}
