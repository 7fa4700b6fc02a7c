//! Which region has a key. A key is of one region only, whatever its domain, and says nothing
//! of any other.

use std::sync::{
    Arc, Mutex, MutexGuard, Once, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

use rustix::io::Errno;
use rustix::rand::GetRandomFlags;

use super::region::Region;
use crate::process::{AtFork, LockOrder, at_fork};
use crate::sync::lock;

/// In the order of the keys. Not a hash table: the standard library's points into its memory, not to
/// the start of it, which leak checkers take for lost. Registering moves what is behind the key's
/// place, which takes less than looking up the mappings does (1 µs for 100,000 regions).
type Table = Vec<(u32, Arc<Region>)>;

/// In parts, so that threads seldom meet at one lock.
static TABLES: [RwLock<Table>; 16] = [const { RwLock::new(Table::new()) }; 16];

/// While it is held, a key that is free stays so.
static ADDING: Mutex<()> = Mutex::new(());

/// All that guards the keys.
struct Locks {
    _adding: MutexGuard<'static, ()>,
    _tables: [RwLockWriteGuard<'static, Table>; TABLES.len()],
}

/// A child finds the keys whole.
fn take_part_in_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        at_fork(AtFork {
            order: LockOrder::Memory,
            lock: || {
                Box::new(Locks {
                    _adding: lock(&ADDING),
                    _tables: TABLES
                        .each_ref()
                        .map(|table| table.write().unwrap_or_else(PoisonError::into_inner)),
                })
            },
            in_child: || {},
        });
    });
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

/// Where a key is, or belongs.
fn place(table: &Table, key: u32) -> Result<usize, usize> {
    table.binary_search_by_key(&key, |(key, _)| *key)
}

pub fn find(key: u32) -> Option<Arc<Region>> {
    let table = read(key);
    let at = place(&table, key).ok()?;
    table.get(at).map(|(_, region)| region.clone())
}

/// Gives the region its keys, and has it found by them.
pub fn add(mut region: Region) -> Result<Arc<Region>, Errno> {
    take_part_in_forks();
    let _adding = lock(&ADDING);
    (region.lkey, region.rkey) = loop {
        let (lkey, rkey) = random_pair()?;
        let free = |key| key != 0 && place(&read(key), key).is_err();
        if lkey != rkey && free(lkey) && free(rkey) {
            break (lkey, rkey);
        }
    };
    for key in [region.lkey, region.rkey] {
        write(key).try_reserve(1).map_err(|_| Errno::NOMEM)?;
    }
    let region = Arc::new(region);
    publish(&region);
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

/// Has the region found by its keys, in place of the one that had them.
pub fn publish(region: &Arc<Region>) {
    for key in [region.lkey, region.rkey] {
        let mut table = write(key);
        match place(&table, key) {
            Ok(at) => {
                if let Some((_, one)) = table.get_mut(at) {
                    *one = region.clone();
                }
            }
            Err(at) => table.insert(at, (key, region.clone())),
        }
    }
}

pub fn remove(region: &Region) {
    for key in [region.lkey, region.rkey] {
        let mut table = write(key);
        if let Ok(at) = place(&table, key) {
            table.remove(at);
        }
    }
}
