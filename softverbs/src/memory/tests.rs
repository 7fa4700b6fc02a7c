use super::lasting::Medium;
use super::*;
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(300);

/// The flags by the names that programs know them by, short.
const LW: u32 = 1;
const RW: u32 = 1 << 1;
const RR: u32 = 1 << 2;
const RA: u32 = 1 << 3;
const MW: u32 = 1 << 4;
const ZB: u32 = 1 << 5;
const ODP: u32 = 1 << 6;
const HUGE: u32 = 1 << 7;
const FG: u32 = 1 << 8;
const FP: u32 = 1 << 9;

const ON: Settings = Settings {
    flush: true,
    atomic_write: true,
    odp: true,
    iwarp: false,
    any_persistent: false,
    warn: true,
};

/// Memory of the test, unmapped in the end.
struct Map(*mut libc::c_void, usize);

impl Map {
    fn anonymous(pages: usize) -> Map {
        Map::anonymous_at(std::ptr::null_mut(), pages)
    }

    fn anonymous_at(hint: *mut libc::c_void, pages: usize) -> Map {
        let len = pages * page_size();
        let all = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new memory, wherever there is room.
        let at = unsafe { rustix::mm::mmap_anonymous(hint, len, all, MapFlags::PRIVATE) };
        let at = at.expect("map anonymous memory");
        assert!(hint.is_null() || at == hint, "{hint:?} is taken");
        Map(at, len)
    }

    fn of(file: impl std::os::fd::AsFd, pages: usize, flags: MapFlags) -> Map {
        let len = pages * page_size();
        let all = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as above.
        let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, all, flags, file, 0) };
        Map(at.expect("map a file"), len)
    }

    /// Puts the file in the place of a page.
    fn replace(&self, page: usize, file: &File) {
        let all = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the page is the map's own.
        unsafe { rustix::mm::mmap(self.page(page), page_size(), all, flags, file, 0) }
            .expect("map a file over a page");
    }

    fn protect(&self, page: usize, flags: MprotectFlags) {
        // SAFETY: as above.
        unsafe { rustix::mm::mprotect(self.page(page), page_size(), flags) }.expect("mprotect");
    }

    /// Leaves a hole. Only a map far from where new ones are placed keeps it.
    fn unmap(&self, page: usize) {
        // SAFETY: as above.
        unsafe { rustix::mm::munmap(self.page(page), page_size()) }.expect("munmap");
    }

    fn page(&self, page: usize) -> *mut libc::c_void {
        self.0.wrapping_byte_add(page * page_size())
    }

    fn addr(&self) -> u64 {
        self.0 as u64
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the map's own, holes or not.
        unsafe { rustix::mm::munmap(self.0, self.1) }.expect("munmap");
    }
}

/// Where the kernel puts nothing that doesn't ask for it.
fn far_away() -> *mut libc::c_void {
    static NEXT: AtomicUsize = AtomicUsize::new(0x1000_0000_0000);
    NEXT.fetch_add(1 << 30, Ordering::Relaxed) as *mut _
}

/// A file of some pages, removed in the end.
struct TempFile(PathBuf, File);

impl TempFile {
    fn new(pages: usize) -> TempFile {
        TempFile::named(&std::env::temp_dir(), "plain", pages)
    }

    fn named(dir: &Path, name: &str, pages: usize) -> TempFile {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = dir.join(format!("softverbs-{}-{count}-{name}", std::process::id()));
        let mut open = File::options();
        let file = open.read(true).write(true).create_new(true).open(&path);
        let file = file.unwrap_or_else(|error| panic!("{path:?}: {error}"));
        file.set_len((pages * page_size()) as u64).expect("set_len");
        TempFile(path, file)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        // One of the tests has removed it.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn domain() -> Arc<Domain> {
    Arc::default()
}

fn register(domain: &Arc<Domain>, map: &Map, flags: u32) -> Result<Registration, Errno> {
    Registration::new(domain, map.0 as usize, map.1, map.addr(), flags)
}

/// What registering gives, with nothing left of it.
fn outcome(map: &Map, flags: u32) -> Result<(), Errno> {
    outcome_of((map.0 as usize, map.1), map.addr(), flags, &ON)
}

fn outcome_of(
    place: (usize, usize),
    iova: u64,
    flags: u32,
    settings: &Settings,
) -> Result<(), Errno> {
    Region::new(&Arc::default(), place, iova, flags, settings).map(drop)
}

/// The offset of what is held, and its length.
fn held(map: &Map, hold: Result<Hold, Refusal>) -> Result<(usize, usize), Refusal> {
    hold.map(|hold| (hold.ptr() as usize - map.0 as usize, hold.len()))
}

#[test]
fn keys_are_unlike_each_other() {
    let (domain, map) = (domain(), Map::anonymous(1));
    let mrs: Vec<_> = (0..500)
        .map(|_| register(&domain, &map, LW).expect("register"))
        .collect();
    let keys: Vec<u32> = mrs.iter().flat_map(|mr| [mr.lkey(), mr.rkey()]).collect();
    let distinct: HashSet<u32> = keys.iter().copied().collect();
    assert_eq!(distinct.len(), keys.len(), "a key is of one region");
    assert!(!distinct.contains(&0), "0 is no key");
    let steps: HashSet<u32> = keys.windows(2).map(|k| k[1].wrapping_sub(k[0])).collect();
    assert!(steps.len() > 900, "{} steps of 999 differ", steps.len());
    for bit in 0..32 {
        let ones = keys.iter().filter(|&key| key >> bit & 1 == 1).count();
        assert!(
            (350..650).contains(&ones),
            "bit {bit} is set in {ones} of 1000"
        );
    }
    for mr in mrs {
        mr.deregister();
    }
    assert!(keys.iter().all(|&key| keys::find(key).is_none()));
}

#[test]
fn flags_are_checked() {
    let map = Map::anonymous(1);
    for (flags, expected) in [
        (0, Ok(())),
        (LW, Ok(())),
        (RR, Ok(())),
        (RW, Err(Errno::INVAL)),
        (RA, Err(Errno::INVAL)),
        (RW | RA | RR | FG, Err(Errno::INVAL)),
        (LW | RW, Ok(())),
        (LW | RA, Ok(())),
        (LW | RW | RR, Ok(())),
        (LW | RW | RR | FG, Ok(())),
        (LW | RW | RR | FP, Err(Errno::INVAL)),
        (FG, Ok(())),
        (MW, Ok(())),
        (ZB, Ok(())),
        (ODP, Ok(())),
        (HUGE | ODP, Ok(())),
        (1 << 10, Err(Errno::INVAL)),
        (1 << 19, Err(Errno::INVAL)),
        (1 << 20, Ok(())),
        (1 << 29, Ok(())),
        (LW | 0x3ff0_0000, Ok(())),
        (1 << 30, Err(Errno::INVAL)),
        (1 << 31, Err(Errno::INVAL)),
    ] {
        assert_eq!(outcome(&map, flags), expected, "flags {flags:#x}");
    }
}

#[test]
fn what_the_device_has_not_is_refused() {
    let (no_flush, no_odp) = (
        Settings { flush: false, ..ON },
        Settings { odp: false, ..ON },
    );
    let check = |flags, settings| Access::check(flags, settings).map(|access| access.bits());
    assert_eq!(check(FG, &no_flush), Err(Errno::INVAL));
    assert_eq!(check(FP, &no_flush), Err(Errno::INVAL));
    assert_eq!(check(ODP, &no_flush), Ok(ODP));
    assert_eq!(check(ODP, &no_odp), Err(Errno::OPNOTSUPP));
    assert_eq!(check(LW | ODP, &no_odp), Err(Errno::OPNOTSUPP));
    assert_eq!(check(FG | FP, &no_odp), Ok(FG | FP));
}

#[test]
fn memory_is_checked() {
    let map = Map::anonymous_at(far_away(), 4);
    map.protect(1, MprotectFlags::READ);
    map.protect(2, MprotectFlags::empty());
    map.unmap(3);
    let page = page_size();
    let at = |offset: usize, len: usize, flags| {
        let addr = map.0 as usize + offset;
        outcome_of((addr, len), addr as u64, flags, &ON)
    };
    assert_eq!(at(0, page, LW), Ok(()));
    assert_eq!(at(0, 2 * page, RR), Ok(()));
    assert_eq!(at(0, page + 1, LW), Err(Errno::FAULT), "read-only");
    assert_eq!(at(page, page, RR | FG), Ok(()));
    assert_eq!(at(page, page, MW), Err(Errno::FAULT), "binding writes");
    assert_eq!(at(0, 2 * page + 1, 0), Err(Errno::FAULT), "no access");
    assert_eq!(at(3 * page, 1, 0), Err(Errno::FAULT), "unmapped");
    assert_eq!(at(page + 8, page - 8, 0), Ok(()), "any bytes of a page");
    // No page is no region, while no byte of a page is one.
    assert_eq!(at(0, 0, LW), Err(Errno::INVAL));
    assert_eq!(at(8, 0, LW), Ok(()));
    for len in [
        usize::MAX,
        map.0.addr().wrapping_neg(),
        map.0.addr().wrapping_neg() - 1,
    ] {
        assert_eq!(at(0, len, LW), Err(Errno::INVAL), "length {len:#x}");
    }
    assert_eq!(outcome_of((0, page), 0, LW, &ON), Err(Errno::FAULT));
    let implicit = outcome_of((0, usize::MAX), 0, LW | ODP, &ON);
    assert_eq!(implicit, Err(Errno::INVAL));
}

#[test]
fn a_gap_is_found_among_thousands_of_mappings() {
    const PAGES: usize = 4000;
    let map = Map::anonymous_at(far_away(), PAGES);
    // Neighbours that differ stay mappings of their own.
    for page in (0..PAGES).step_by(2) {
        map.protect(page, MprotectFlags::READ);
    }
    assert_eq!(outcome(&map, RR), Ok(()));
    assert_eq!(outcome(&map, LW), Err(Errno::FAULT));
    map.unmap(PAGES - 2);
    assert_eq!(outcome(&map, RR), Err(Errno::FAULT));
}

#[test]
fn a_mapping_beyond_its_file_is_no_memory() {
    let file = TempFile::new(2);
    file.1.set_len(page_size() as u64 + 10).expect("set_len");
    for flags in [MapFlags::SHARED, MapFlags::PRIVATE] {
        let map = Map::of(&file.1, 4, flags);
        let first = |len| outcome_of((map.0 as usize, len), map.addr(), LW, &ON);
        assert_eq!(first(2 * page_size()), Ok(()));
        assert_eq!(first(2 * page_size() + 1), Err(Errno::FAULT));
        assert_eq!(outcome(&map, RR), Err(Errno::FAULT));
    }
}

#[test]
fn only_a_files_memory_persists() {
    let any = Settings {
        any_persistent: true,
        ..ON
    };
    let check = |map: &Map, what: &str, expected: Result<(), Errno>| {
        let place = (map.0 as usize, map.1);
        for flags in [FP, LW | RW | RR | FG | FP] {
            let outcome = outcome_of(place, map.addr(), flags, &ON);
            assert_eq!(outcome, expected, "{what}, flags {flags:#x}");
            let outcome = outcome_of(place, map.addr(), flags, &any);
            assert_eq!(outcome, Ok(()), "{what}, any memory persists");
        }
    };
    let none = Err(Errno::INVAL);

    let file = TempFile::new(2);
    check(&Map::of(&file.1, 2, MapFlags::SHARED), "file", Ok(()));
    check(&Map::of(&file.1, 2, MapFlags::PRIVATE), "private", none);
    let shm = TempFile::named(Path::new("/dev/shm"), "tmpfs", 1);
    check(&Map::of(&shm.1, 1, MapFlags::SHARED), "tmpfs", Ok(()));
    let odd = TempFile::named(&std::env::temp_dir(), "a b\nc (deleted)", 1);
    check(&Map::of(&odd.1, 1, MapFlags::SHARED), "odd name", Ok(()));

    check(&Map::anonymous(1), "anonymous", none);
    let memfd = rustix::fs::memfd_create("memory", MemfdFlags::CLOEXEC).expect("memfd");
    rustix::fs::ftruncate(&memfd, page_size() as u64).expect("ftruncate");
    check(&Map::of(&memfd, 1, MapFlags::SHARED), "memfd", none);
    let zero = File::options().read(true).write(true).open("/dev/zero");
    let zero = zero.expect("open /dev/zero");
    check(&Map::of(&zero, 1, MapFlags::SHARED), "/dev/zero", none);

    let mixed = Map::anonymous(3);
    mixed.replace(0, &file.1);
    mixed.replace(2, &file.1);
    check(&mixed, "not all from a file", none);
    mixed.replace(1, &shm.1);
    check(&mixed, "from two files", Ok(()));

    let map = Map::of(&file.1, 1, MapFlags::SHARED);
    std::fs::remove_file(&file.0).expect("remove");
    check(&map, "deleted", none);
}

#[test]
fn system_v_memory_does_not_persist() {
    // SAFETY: a new segment, removed at once, mapped where there is room.
    let at = unsafe {
        let id = libc::shmget(libc::IPC_PRIVATE, page_size(), 0o600);
        assert_ne!(id, -1, "shmget: {}", io::Error::last_os_error());
        let at = libc::shmat(id, std::ptr::null(), 0);
        libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
        at
    };
    assert_ne!(at.addr(), usize::MAX, "shmat");
    let map = Map(at, page_size());
    assert_eq!(outcome(&map, LW | FG), Ok(()));
    assert_eq!(outcome(&map, LW | FP), Err(Errno::INVAL));
}

#[test]
fn local_access_is_checked() {
    let (domain, map) = (domain(), Map::anonymous(2));
    let mr = register(&domain, &map, LW).expect("register");
    let constant = register(&domain, &map, 0).expect("register");
    let (lkey, rkey) = (mr.lkey(), mr.rkey());
    let local = |key, addr, len, write| held(&map, domain.local(key, addr, len, write));
    let (addr, size) = (map.addr(), map.1 as u64);

    assert_eq!(local(lkey, addr, size, true), Ok((0, map.1)));
    assert_eq!(local(lkey, addr + 8, 8, false), Ok((8, 8)));
    assert_eq!(local(lkey, addr + size - 1, 1, true), Ok((map.1 - 1, 1)));
    for (addr, len) in [
        (addr, size + 1),
        (addr + 1, size),
        (addr + size, 1),
        (addr - 1, 1),
        (addr - 1, size),
        (addr, u64::MAX),
        (addr + 8, u64::MAX - 4),
        (addr + 8, u64::MAX - addr - 7),
        (u64::MAX, 1),
        (u64::MAX, u64::MAX),
        (0, 8),
    ] {
        let refused = local(lkey, addr, len, false);
        assert_eq!(refused, Err(Refusal::Bounds), "{addr:#x}, {len:#x}");
    }
    assert_eq!(local(constant.lkey(), addr, 8, false), Ok((0, 8)));
    assert_eq!(local(constant.lkey(), addr, 8, true), Err(Refusal::Right));
    assert_eq!(local(0, addr, 8, false), Err(Refusal::Key));
    assert_eq!(local(rkey, addr, 8, false), Err(Refusal::Key));
    let empty = domain.local(0, 0, 0, true).expect("nothing");
    assert!(empty.is_empty() && !empty.ptr().is_null());
    empty.persist().expect("persist nothing");

    let other = self::domain();
    assert_eq!(
        held(&map, other.local(lkey, addr, 8, false)),
        Err(Refusal::Key)
    );
    mr.deregister();
    assert_eq!(local(lkey, addr, 8, false), Err(Refusal::Key));
    constant.deregister();
}

#[test]
fn remote_access_needs_its_right() {
    let file = TempFile::new(1);
    let (domain, map) = (domain(), Map::of(&file.1, 1, MapFlags::SHARED));
    let rights = [
        (Right::Read, RR),
        (Right::Write, RW),
        (Right::Atomic, RA),
        (Right::FlushGlobal, FG),
        (Right::FlushPersistent, FP),
    ];
    let (addr, size) = (map.addr(), map.1 as u64);
    for (given, flags) in rights {
        let mr = register(&domain, &map, LW | flags).expect("register");
        for (asked, _) in rights {
            let expected = if asked == given {
                Ok((8, 16))
            } else {
                Err(Refusal::Right)
            };
            let hold = domain.remote(mr.rkey(), addr + 8, 16, asked);
            assert_eq!(held(&map, hold), expected, "{asked:?} of {given:?}");
            let whole = domain.remote_whole(mr.rkey(), asked);
            let expected = expected.map(|_| (0, map.1));
            assert_eq!(held(&map, whole), expected, "{asked:?} of {given:?}");
        }
        let remote = |key, addr, len| held(&map, domain.remote(key, addr, len, given));
        assert_eq!(remote(mr.lkey(), addr, 8), Err(Refusal::Key));
        assert_eq!(remote(mr.rkey(), addr, size + 1), Err(Refusal::Bounds));
        assert_eq!(remote(mr.rkey(), addr + 1, u64::MAX), Err(Refusal::Bounds));
        mr.deregister();
    }
    for (right, expected) in [
        (Right::Read, Ok(0)),
        (Right::Write, Ok(0)),
        (Right::FlushGlobal, Err(Refusal::Key)),
    ] {
        let hold = domain.remote(0, 0, 0, right).map(|hold| hold.len());
        assert_eq!(hold, expected, "{right:?} of nothing");
    }
}

#[test]
fn addresses_are_relative_to_the_iova() {
    let (domain, map) = (domain(), Map::anonymous(2));
    let page = page_size() as u64;
    let middle = map.0.wrapping_byte_add(8);
    for (iova, flags) in [
        (8, LW | RR),
        (page * 7 + 8, LW | RR),
        (8_u64.wrapping_sub(page), LW | RR),
    ] {
        let mr =
            Registration::new(&domain, middle as usize, map.1 - 8, iova, flags).expect("register");
        for offset in [0, 16, page] {
            // The addresses may go on from 0 after the last.
            let addr = iova.wrapping_add(offset);
            let expected = Ok((offset as usize + 8, 8));
            let local = domain.local(mr.lkey(), addr, 8, true);
            assert_eq!(held(&map, local), expected, "{iova:#x}");
            let remote = domain.remote(mr.rkey(), addr, 8, Right::Read);
            assert_eq!(held(&map, remote), expected, "{iova:#x}");
        }
        let local = domain.local(mr.lkey(), iova.wrapping_sub(1), 8, true);
        assert_eq!(held(&map, local), Err(Refusal::Bounds), "{iova:#x}");
        let local = domain.local(mr.lkey(), map.addr(), 8, true);
        assert_eq!(held(&map, local), Err(Refusal::Bounds), "{iova:#x}");
        mr.deregister();
    }
    let other_offset = Registration::new(&domain, middle as usize, 64, page, LW).map(drop);
    assert_eq!(other_offset, Err(Errno::INVAL));

    let mr =
        Registration::new(&domain, middle as usize, 64, middle as u64, ZB | LW).expect("register");
    let local = |addr, len| held(&map, domain.local(mr.lkey(), addr, len, true));
    assert_eq!(local(0, 64), Ok((8, 64)));
    assert_eq!(local(60, 4), Ok((68, 4)));
    assert_eq!(local(60, 5), Err(Refusal::Bounds));
    mr.deregister();
}

/// Starts what has to wait for a hold, and checks that it does: that it has begun, as no new hold
/// is given, and ends only when the last is dropped. Gives what it ends with.
fn check_waits<T: 'static>(
    hold: Hold,
    another: impl Fn() -> Result<Hold, Refusal>,
    waits: impl FnOnce() -> Sent<T> + Send + 'static,
) -> T {
    let holds = [hold, another().expect("a second hold")];
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || done.send(waits()));
    let start = Instant::now();
    while another().is_ok() {
        assert!(start.elapsed() < LIMIT, "holds are still given");
        std::thread::yield_now();
    }
    for hold in holds {
        // What would not wait gets time to end.
        for _ in 0..1000 {
            std::thread::yield_now();
            let early = is_done.try_recv().err();
            assert_eq!(early, Some(mpsc::TryRecvError::Empty), "did not wait");
        }
        // SAFETY: the memory is the test's, of at least 8 bytes.
        unsafe { hold.ptr().write(1) };
    }
    let ended = is_done.recv_timeout(LIMIT);
    ended.expect("ends when nothing is held").take()
}

/// Lets another thread have what only its pointers keep here.
struct Sent<T>(T);
// SAFETY: used by one thread at a time.
unsafe impl<T> Send for Sent<T> {}
impl<T> Sent<T> {
    fn take(self) -> T {
        self.0
    }
}

#[test]
fn deregistering_waits_for_what_is_held() {
    let (domain, map) = (domain(), Map::anonymous(1));
    let mr = register(&domain, &map, LW | RW).expect("register");
    let (rkey, domain) = (mr.rkey(), domain.clone());
    let hold = || domain.remote(rkey, map.addr(), 8, Right::Write);
    let local = domain.local(mr.lkey(), map.addr(), 8, true);
    let mr = Sent(mr);
    check_waits(local.expect("hold"), hold, || {
        mr.take().deregister();
        Sent(())
    });
    assert!(!domain.is_used());
}

#[test]
fn registering_anew_changes_what_is_asked() {
    let (first, second, map) = (domain(), domain(), Map::anonymous_at(far_away(), 3));
    let page = page_size() as u64;
    let mut mr = Registration::new(&first, map.0 as usize, page_size(), map.addr(), LW | RW)
        .expect("register");
    let (lkey, rkey) = (mr.lkey(), mr.rkey());
    let write = |domain: &Arc<Domain>, addr| held(&map, domain.remote(rkey, addr, 8, Right::Write));
    let read = |domain: &Arc<Domain>, addr| held(&map, domain.remote(rkey, addr, 8, Right::Read));

    mr.change(None, None, Some(LW | RR)).expect("access");
    assert_eq!(write(&first, map.addr()), Err(Refusal::Right));
    assert_eq!(read(&first, map.addr()), Ok((0, 8)));

    mr.change(Some(&second), None, None).expect("domain");
    assert_eq!(read(&first, map.addr()), Err(Refusal::Key));
    assert_eq!(read(&second, map.addr()), Ok((0, 8)));
    assert!(!first.is_used() && second.is_used());

    let place = (map.page(1) as usize, page_size());
    mr.change(None, Some(place), None).expect("place");
    assert_eq!(read(&second, map.addr()), Err(Refusal::Bounds));
    assert_eq!(read(&second, map.addr() + page), Ok((page_size(), 8)));

    map.unmap(2);
    let gone = (map.page(2) as usize, page_size());
    let failed = mr.change(Some(&first), Some(gone), Some(0));
    assert_eq!(failed, Err(Errno::FAULT));
    assert_eq!(mr.change(None, None, Some(RW)), Err(Errno::INVAL));
    assert_eq!(read(&second, map.addr() + page), Ok((page_size(), 8)));
    assert!(!first.is_used());

    assert_eq!((mr.lkey(), mr.rkey()), (lkey, rkey));
    mr.deregister();
    assert!(!second.is_used());
}

#[test]
fn registering_anew_waits_for_what_is_held() {
    let (domain, map) = (domain(), Map::anonymous(1));
    let mr = register(&domain, &map, LW | RW).expect("register");
    let (rkey, domain) = (mr.rkey(), domain.clone());
    let hold = || domain.remote(rkey, map.addr(), 8, Right::Write);
    let mr = Sent(mr);
    let mr = check_waits(hold().expect("hold"), hold, || {
        let mut mr = mr.take();
        let anew = mr.change(None, None, Some(LW | RR));
        anew.expect("register anew");
        Sent(mr)
    });
    mr.deregister();
}

/// Registers, accesses and deregisters the same memory in several threads.
#[test]
fn threads_do_not_disturb_each_other() {
    let (domain, map) = (domain(), Map::anonymous(1));
    let (domain, map) = (&domain, &map);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let sent = Sent((domain, map));
            scope.spawn(move || {
                let (domain, map) = sent.take();
                for _ in 0..200 {
                    let mr = register(domain, map, LW).expect("register");
                    let hold = domain.local(mr.lkey(), map.addr(), 8, true);
                    drop(hold.expect("hold"));
                    let lkey = mr.lkey();
                    mr.deregister();
                    let hold = domain.local(lkey, map.addr(), 8, true);
                    assert_eq!(held(map, hold), Err(Refusal::Key));
                }
            });
        }
    });
    assert!(!domain.is_used());
}

#[test]
fn a_domain_is_used_while_something_needs_it() {
    let (domain, map) = (domain(), Map::anonymous(1));
    assert!(!domain.is_used());
    domain.attach();
    let mr = register(&domain, &map, LW).expect("register");
    domain.detach();
    assert!(domain.is_used());
    assert_eq!(register(&domain, &map, RW).map(drop), Err(Errno::INVAL));
    mr.deregister();
    assert!(!domain.is_used());
}

#[test]
fn what_is_from_a_file_is_written_back() {
    // An unmapped page is what writing back fails for, which shows that it is asked for, and
    // for the range that is held only.
    let file = TempFile::new(1);
    let map = Map::anonymous_at(far_away(), 4);
    map.replace(1, &file.1);
    map.replace(2, &file.1);
    let domain = Arc::new(Domain::default());
    let any = Settings {
        any_persistent: true,
        ..ON
    };
    let place = (map.0 as usize, map.1);
    let region = Region::new(&domain, place, map.addr(), LW | FP, &any).expect("region");
    let region = keys::add(region).expect("keys");
    for page in [0, 2, 3] {
        map.unmap(page);
    }
    let persist = |addr, len| {
        let hold = domain.remote(region.rkey, addr, len, Right::FlushPersistent);
        let persisted = hold.expect("hold").persist();
        persisted.map_err(|error| error.raw_os_error())
    };
    let (page, gone) = (page_size() as u64, Err(Some(libc::ENOMEM)));
    let file_at = map.addr() + page;
    assert_eq!(persist(file_at, page), Ok(()));
    assert_eq!(persist(file_at + 3, 8), Ok(()));
    assert_eq!(persist(file_at + page - 8, 16), gone);
    assert_eq!(persist(file_at + page, 1), gone);
    assert_eq!(persist(file_at + page, 0), Ok(()));
    assert_eq!(persist(file_at - page, page + 8), Ok(()), "from anonymous");
    assert_eq!(persist(file_at + 2 * page, page), Ok(()), "anonymous");
    let whole = domain.remote_whole(region.rkey, Right::FlushPersistent);
    assert!(whole.expect("hold").persist().is_err());
    keys::remove(&region);
}

#[test]
fn writing_back_caches_keeps_the_content() {
    let mut bytes = vec![7_u8; 1000];
    let at = bytes.as_mut_ptr() as usize;
    let lasting = Lasting {
        range: at..at + 1000,
        medium: Medium::Memory,
    };
    bytes[500] = 8;
    lasting.persist(at + 3..at + 2000).expect("persist");
    assert!((0..1000).all(|i| bytes[i] == if i == 500 { 8 } else { 7 }));
}

#[test]
fn prefetching_is_checked() {
    let (domain, other, map) = (domain(), domain(), Map::anonymous_at(far_away(), 2));
    let mr = register(&domain, &map, ODP | LW).expect("register");
    let constant = register(&domain, &map, ODP).expect("register");
    let pinned = register(&domain, &map, LW).expect("register");
    let readable = register(&domain, &map, 0).expect("register");
    let (addr, size) = (map.addr(), map.1 as u64);
    map.unmap(1);
    use Prefetch::*;
    for (domain, key, at, len, advice, expected) in [
        (&domain, mr.lkey(), addr + 1, 8, ToRead, Ok(())),
        (&domain, mr.lkey(), addr, 8, ToWrite, Ok(())),
        (&domain, mr.lkey(), addr, size, WhatIsThere, Ok(())),
        (&domain, mr.lkey(), addr, size, ToRead, Err(Errno::FAULT)),
        (
            &domain,
            mr.lkey(),
            addr,
            size + 1,
            ToRead,
            Err(Errno::FAULT),
        ),
        (&domain, mr.rkey(), addr, 8, ToRead, Err(Errno::NOENT)),
        (&domain, 0, addr, 8, ToRead, Err(Errno::NOENT)),
        (&other, mr.lkey(), addr, 8, ToRead, Err(Errno::PERM)),
        (&domain, constant.lkey(), addr, 8, ToRead, Ok(())),
        (&domain, constant.lkey(), addr, 8, ToWrite, Err(Errno::PERM)),
        // A region without on-demand paging has it all checked as well.
        (&domain, pinned.lkey(), addr + 1, 8, ToRead, Ok(())),
        (&domain, pinned.lkey(), addr, 8, ToWrite, Ok(())),
        (&domain, pinned.lkey(), addr, size, WhatIsThere, Ok(())),
        (
            &domain,
            pinned.lkey(),
            addr,
            size + 1,
            ToRead,
            Err(Errno::FAULT),
        ),
        (&domain, pinned.rkey(), addr, 8, ToRead, Err(Errno::NOENT)),
        (&other, pinned.lkey(), addr, 8, ToRead, Err(Errno::PERM)),
        (&domain, readable.lkey(), addr, 8, ToRead, Ok(())),
        (&domain, readable.lkey(), addr, 8, ToWrite, Err(Errno::PERM)),
    ] {
        let outcome = domain.prefetch(key, at, len, advice);
        assert_eq!(outcome, expected, "{advice:?} {len} at {:#x}", at - addr);
    }
    for mr in [mr, constant, pinned, readable] {
        mr.deregister();
    }
}

#[test]
fn parts_of_a_range_are_all_of_it_without_gaps_only() {
    let part = |range| Lasting {
        range,
        medium: Medium::File,
    };
    let all = |parts: &[Lasting]| Lasting::is_all(parts, &(4..8));
    assert!(all(&[part(4..8)]));
    assert!(all(&[part(4..6), part(6..8)]));
    assert!(!all(&[]));
    assert!(!all(&[part(4..7)]));
    assert!(!all(&[part(5..8)]));
    assert!(!all(&[part(4..5), part(6..8)]));
}
