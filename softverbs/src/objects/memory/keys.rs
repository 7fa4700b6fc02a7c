//! Which region a key leads to. A key is of one region only, whatever its domain, and says nothing
//! of any other.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustix::io::Errno;
use rustix::rand::GetRandomFlags;

use super::Region;
use crate::objects::lock;

type Table = HashMap<u32, Arc<Region>, BuildHasherDefault<Spread>>;

/// In parts, so that threads seldom meet at one lock.
static TABLES: [RwLock<Table>; 16] =
    [const { RwLock::new(Table::with_hasher(BuildHasherDefault::new())) }; 16];

/// The keys are random: they need to be spread over the hash's bits, and no more.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(((self.0 as u32) << 8) | u32::from(byte));
        }
    }

    fn write_u32(&mut self, key: u32) {
        self.0 = (u64::from(key) << 32) | u64::from(key);
    }
}

/// While it is held, a key that is free stays so.
static ADDING: Mutex<()> = Mutex::new(());

/// All that guards the keys.
pub struct Locks {
    _adding: MutexGuard<'static, ()>,
    _tables: [RwLockWriteGuard<'static, Table>; TABLES.len()],
}

impl Locks {
    pub fn take() -> Self {
        Locks {
            _adding: lock(&ADDING),
            _tables: TABLES
                .each_ref()
                .map(|table| table.write().unwrap_or_else(PoisonError::into_inner)),
        }
    }
}

fn table(key: u32) -> &'static RwLock<Table> {
    &TABLES[(key >> 16) as usize % TABLES.len()]
}

// Nothing panics while holding a lock, so what it guards is whole.
fn read(key: u32) -> RwLockReadGuard<'static, Table> {
    table(key).read().unwrap_or_else(PoisonError::into_inner)
}

fn write(key: u32) -> RwLockWriteGuard<'static, Table> {
    table(key).write().unwrap_or_else(PoisonError::into_inner)
}

pub fn find(key: u32) -> Option<Arc<Region>> {
    read(key).get(&key).cloned()
}

/// Gives the region its keys, and has them lead to it.
pub fn add(mut region: Region) -> Result<Arc<Region>, Errno> {
    let _adding = lock(&ADDING);
    (region.lkey, region.rkey) = loop {
        let (lkey, rkey) = random_pair()?;
        let free = |key| key != 0 && !read(key).contains_key(&key);
        if lkey != rkey && free(lkey) && free(rkey) {
            break (lkey, rkey);
        }
    };
    for key in [region.lkey, region.rkey] {
        write(key).try_reserve(1).map_err(|_| Errno::NOMEM)?;
    }
    let region = Arc::new(region);
    lead_to(&region);
    Ok(region)
}

/// Two keys that can't be guessed from any others.
fn random_pair() -> Result<(u32, u32), Errno> {
    let mut bytes = [0; 8];
    // So few bytes come at once or not at all.
    while rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())? < bytes.len() {}
    let both = u64::from_ne_bytes(bytes);
    Ok((both as u32, (both >> 32) as u32))
}

/// Has the region's keys lead to it, instead of to the one that it replaces.
pub fn lead_to(region: &Arc<Region>) {
    for key in [region.lkey, region.rkey] {
        write(key).insert(key, region.clone());
    }
}

pub fn remove(region: &Region) {
    for key in [region.lkey, region.rkey] {
        write(key).remove(&key);
    }
}
