//! The device as a program finds it.

mod library;

use library::{errno, ours};
use rdma_sys::{
    ibv_context, ibv_device, ibv_device_attr, ibv_device_attr_ex, ibv_gid, ibv_gid_entry,
    ibv_port_attr, ibv_port_state, ibv_query_device_ex_input, verbs_context,
};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::{MaybeUninit, offset_of, size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Once;
use std::time::Duration;
use std::{ptr, slice, thread};

/// A function of the library, by its name and type.
macro_rules! call {
    ($name:ident($($argument:ident: $type:ty = $value:expr),* $(,)?) -> $result:ty) => {{
        // SAFETY: it is of this type.
        let function: unsafe extern "C" fn($($type),*) -> $result =
            unsafe { ours().function(stringify!($name)) };
        // SAFETY: the arguments are good.
        unsafe { function($($value),*) }
    }};
}

struct Open(*mut ibv_context);

impl Open {
    fn new() -> Self {
        static WATCH: Once = Once::new();
        // It may have to be built first, which takes its time.
        ours();
        WATCH.call_once(|| {
            thread::spawn(|| {
                thread::sleep(Duration::from_secs(600));
                eprintln!("the tests hang: those of which no outcome is told");
                std::process::exit(101);
            });
        });
        let mut count: c_int = 0;
        let list =
            call!(ibv_get_device_list(count: *mut c_int = &mut count) -> *mut *mut ibv_device);
        assert_eq!(count, 1);
        // SAFETY: the list has one entry and a NULL.
        let devices = unsafe { slice::from_raw_parts(list, 2) };
        assert!(!devices[0].is_null() && devices[1].is_null());
        let context =
            call!(ibv_open_device(device: *mut ibv_device = devices[0]) -> *mut ibv_context);
        assert!(!context.is_null());
        call!(ibv_free_device_list(list: *mut *mut ibv_device = list) -> ());
        Self(context)
    }

    fn table(&self) -> &verbs_context {
        // SAFETY: the context is open, and the end of the extended table.
        unsafe {
            assert_eq!((*self.0).abi_compat.addr(), usize::MAX);
            &*self.0.byte_sub(offset_of!(verbs_context, context)).cast()
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        assert_eq!(
            call!(ibv_close_device(context: *mut ibv_context = self.0) -> c_int),
            0
        );
    }
}

#[test]
fn every_entry_of_the_tables_is_filled() {
    let open = Open::new();
    let verbs = open.table();
    assert_eq!(verbs.sz, size_of::<verbs_context>());
    let words = |table: *const c_void, length| {
        // SAFETY: the tables consist of words.
        unsafe { slice::from_raw_parts(table.cast::<usize>(), length / 8) }
    };
    let empty = |words: &[usize]| -> Vec<usize> {
        let all = words.iter().enumerate();
        all.filter(|(_, word)| **word == 0)
            .map(|(i, _)| 8 * i)
            .collect()
    };
    let ops = &verbs.context.ops;
    assert_eq!(
        empty(words(ptr::from_ref(ops).cast(), size_of_val(ops))),
        []
    );
    // What is no function of today's.
    let expected = [
        offset_of!(verbs_context, priv_),
        offset_of!(verbs_context, ABI_placeholder2),
        offset_of!(verbs_context, ABI_placeholder1),
        offset_of!(verbs_context, _ABI_placeholder3),
    ];
    let extended = words(ptr::from_ref(verbs).cast(), offset_of!(verbs_context, sz));
    assert_eq!(empty(extended), expected);
}

#[test]
fn an_entry_that_is_not_supported_refuses() {
    let open = Open::new();
    let verbs = open.table();
    // SAFETY: they look at no argument but the last of post_srq_ops.
    unsafe {
        let alloc_mw = verbs.context.ops.alloc_mw.unwrap();
        let got = errno(|| alloc_mw(ptr::null_mut(), 1).is_null());
        assert_eq!(got, (true, libc::EOPNOTSUPP));
        assert_eq!(verbs.close_xrcd.unwrap()(ptr::null_mut()), libc::EOPNOTSUPP);
        let (request, mut bad) = (ptr::dangling_mut(), ptr::null_mut());
        let post = verbs.post_srq_ops.unwrap();
        assert_eq!(post(ptr::null_mut(), request, &mut bad), libc::EOPNOTSUPP);
        assert_eq!(bad, request);
    }
}

/// What `fill` writes to where there are `size` bytes for a `T`, which is all that it may write.
fn filled<T>(size: usize, fill: impl FnOnce(*mut T, usize) -> c_int) -> Vec<u8> {
    const MARK: u8 = 0xa5;
    let mut room = vec![u64::from_ne_bytes([MARK; 8]); size / 8 + 8];
    assert_eq!(fill(room.as_mut_ptr().cast(), size), 0);
    // SAFETY: these are the bytes of the words.
    let bytes = unsafe { slice::from_raw_parts(room.as_ptr().cast::<u8>(), room.len() * 8) };
    let (written, left) = bytes.split_at(size);
    assert!(
        left.iter().all(|byte| *byte == MARK),
        "{size} bytes: more were written"
    );
    written.to_vec()
}

/// That older and newer forms of a structure have what they know of in common.
fn grows<T>(known: usize, fill: impl Fn(*mut T, usize) -> c_int) {
    let whole = filled(known, &fill);
    let less = filled(known - 24, &fill);
    assert_eq!(less, whole[..known - 24]);
    let more = filled(known + 24, &fill);
    assert_eq!(more[..known], whole);
    assert_eq!(more[known..], [0; 24]);
}

#[test]
fn the_attributes_have_the_size_that_the_program_knows() {
    let open = Open::new();
    let query = open.table().query_device_ex.unwrap();
    // SAFETY: there is room for as much as is said.
    grows(size_of::<ibv_device_attr_ex>(), |attr, size| unsafe {
        query(open.0, ptr::null(), attr, size)
    });
    let query = open.table().query_port.unwrap();
    // SAFETY: as above.
    grows(size_of::<ibv_port_attr>(), |attr, size| unsafe {
        query(open.0, 1, attr, size)
    });
}

#[test]
fn the_queries_agree() {
    let open = Open::new();
    // SAFETY: both consist of numbers.
    let (mut old, mut new): (ibv_device_attr, ibv_device_attr_ex) = unsafe { zeroed() };
    let context = open.0;
    let answer = call!(ibv_query_device(
        context: *mut ibv_context = context,
        attr: *mut ibv_device_attr = &mut old,
    ) -> c_int);
    assert_eq!(answer, 0);
    let query = open.table().query_device_ex.unwrap();
    let size = size_of_val(&new);
    // SAFETY: there is room.
    assert_eq!(unsafe { query(context, ptr::null(), &mut new, size) }, 0);
    let bytes = |attr: &ibv_device_attr| {
        // SAFETY: it is zeroed before it is filled, and consists of numbers.
        unsafe { slice::from_raw_parts(ptr::from_ref(attr).cast::<u8>(), size_of_val(attr)) }
            .to_vec()
    };
    assert_eq!(bytes(&old), bytes(&new.orig_attr));
    assert_ne!(old.node_guid, 0);
    // Of the bits of an OUI, the one that says that no vendor has it.
    assert_eq!(
        old.vendor_id & 0xff02_0000,
        0x0002_0000,
        "{:#x}",
        old.vendor_id
    );

    let unknown = ibv_query_device_ex_input { comp_mask: 1 };
    // SAFETY: there is room.
    assert_eq!(
        unsafe { query(context, &unknown, &mut new, size) },
        libc::EINVAL
    );

    // What the port says without its extended query ends before the newest members.
    const OLD: usize = offset_of!(ibv_port_attr, port_cap_flags2);
    let old = filled(OLD, |attr: *mut c_void, _| {
        call!(ibv_query_port(
            context: *mut ibv_context = context,
            port: u8 = 1,
            attr: *mut c_void = attr,
        ) -> c_int)
    });
    let query = open.table().query_port.unwrap();
    // SAFETY: there is room.
    let new = filled(size_of::<ibv_port_attr>(), |attr, size| unsafe {
        query(context, 1, attr, size)
    });
    assert_eq!(old, new[..OLD]);
    // SAFETY: there is no room, and none is needed.
    assert_eq!(
        unsafe { query(context, 2, ptr::null_mut(), 0) },
        libc::EINVAL
    );
}

/// The address that a GID stands for.
fn address(gid: &ibv_gid) -> IpAddr {
    // SAFETY: it consists of bytes.
    Ipv6Addr::from(unsafe { gid.raw }).to_canonical()
}

#[test]
fn the_gids_are_the_addresses_of_this_host() {
    let open = Open::new();
    let context = open.0;
    // SAFETY: it consists of numbers.
    let mut port: ibv_port_attr = unsafe { zeroed() };
    let size = size_of_val(&port);
    // SAFETY: there is room.
    assert_eq!(
        unsafe { open.table().query_port.unwrap()(context, 1, &mut port, size) },
        0
    );
    assert_eq!(port.state, ibv_port_state::IBV_PORT_ACTIVE);

    let count = port.gid_tbl_len as usize;
    let single: Vec<_> = (0..count)
        .map(|index| {
            let mut gid = ibv_gid { raw: [0; 16] };
            let answer = call!(ibv_query_gid(
                context: *mut ibv_context = context,
                port: u8 = 1,
                index: c_int = index as c_int,
                gid: *mut ibv_gid = &mut gid,
            ) -> c_int);
            assert_eq!(answer, 0);
            address(&gid)
        })
        .collect();
    assert!(single.contains(&Ipv4Addr::LOCALHOST.into()), "{single:?}");
    let loopback: Vec<_> = single.iter().map(IpAddr::is_loopback).collect();
    assert!(loopback.is_sorted(), "loopback is not last: {single:?}");

    // Entries longer than those known are zero behind.
    #[repr(C)]
    struct Longer(ibv_gid_entry, u64);
    let mut table: Vec<MaybeUninit<Longer>> =
        (0..count + 1).map(|_| MaybeUninit::uninit()).collect();
    let found = call!(_ibv_query_gid_table(
        context: *mut ibv_context = context,
        entries: *mut MaybeUninit<Longer> = table.as_mut_ptr(),
        length: usize = table.len(),
        flags: u32 = 0,
        size: usize = size_of::<Longer>(),
    ) -> isize);
    assert_eq!(found, count as isize);
    for (index, entry) in table[..count].iter().enumerate() {
        // SAFETY: it was filled.
        let Longer(entry, behind) = unsafe { entry.assume_init_ref() };
        assert_eq!(address(&entry.gid), single[index]);
        assert_eq!(
            (entry.gid_index, entry.port_num, *behind),
            (index as u32, 1, 0)
        );
        // SAFETY: it consists of numbers.
        let mut one: ibv_gid_entry = unsafe { zeroed() };
        let answer = call!(_ibv_query_gid_ex(
            context: *mut ibv_context = context,
            port: u32 = 1,
            index: u32 = index as u32,
            entry: *mut ibv_gid_entry = &mut one,
            flags: u32 = 0,
            size: usize = size_of::<ibv_gid_entry>(),
        ) -> c_int);
        assert_eq!(answer, 0);
        assert_eq!(address(&one.gid), single[index]);
        assert_eq!(one.ndev_ifindex, entry.ndev_ifindex);
    }
    // An array that is too short gets nothing, and that is an error, as the kernel does it.
    for length in 0..count {
        let mut short = vec![0xaa_u8; count * size_of::<ibv_gid_entry>()];
        let found = call!(_ibv_query_gid_table(
            context: *mut ibv_context = context,
            entries: *mut u8 = short.as_mut_ptr(),
            length: usize = length,
            flags: u32 = 0,
            size: usize = size_of::<ibv_gid_entry>(),
        ) -> isize);
        assert_eq!(found, -(libc::EINVAL as isize), "{length} of {count}");
        assert!(
            short.iter().all(|byte| *byte == 0xaa),
            "{length} of {count}"
        );
    }

    let mut gid = ibv_gid { raw: [0; 16] };
    for (port, index) in [(1, port.gid_tbl_len), (1, -1), (0, 0), (2, 0)] {
        let answer = errno(|| {
            call!(ibv_query_gid(
                context: *mut ibv_context = context,
                port: u8 = port,
                index: c_int = index,
                gid: *mut ibv_gid = &mut gid,
            ) -> c_int)
        });
        assert_eq!(answer, (-1, libc::EINVAL), "port {port}, index {index}");
    }
}

#[test]
fn there_is_one_partition() {
    let open = Open::new();
    let context = open.0;
    let mut key = 0u16;
    let query = |port, index, key: &mut u16| {
        call!(ibv_query_pkey(
            context: *mut ibv_context = context,
            port: u8 = port,
            index: c_int = index,
            key: *mut u16 = key,
        ) -> c_int)
    };
    assert_eq!(query(1, 0, &mut key), 0);
    assert_eq!(key, 0xffff);
    assert_eq!(errno(|| query(1, 1, &mut key)), (-1, libc::EINVAL));
    let index = |key| {
        call!(ibv_get_pkey_index(
            context: *mut ibv_context = context,
            port: u8 = 1,
            key: u16 = key,
        ) -> c_int)
    };
    assert_eq!(index(key), 0);
    assert_eq!(index(0x1234), -1);
}

#[test]
fn the_events_of_each_context_are_its_own() {
    let contexts = [Open::new(), Open::new()];
    // SAFETY: they are open.
    let fds = contexts
        .each_ref()
        .map(|open| unsafe { (*open.0).async_fd });
    assert_ne!(fds[0], fds[1]);
    for (open, fd) in contexts.iter().zip(fds) {
        // SAFETY: the descriptor is open.
        assert_eq!(
            unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) },
            0
        );
        let mut event = [0u64; 2];
        let answer = errno(|| {
            call!(ibv_get_async_event(
                context: *mut ibv_context = open.0,
                event: *mut [u64; 2] = &mut event,
            ) -> c_int)
        });
        assert_eq!(answer, (-1, libc::EAGAIN));
    }
}

#[test]
fn the_common_context_stays_open() {
    let get = || {
        let mut count: c_int = 0;
        let list = call!(rdma_get_devices(count: *mut c_int = &mut count) -> *mut *mut ibv_context);
        assert_eq!(count, 1);
        // SAFETY: the list has an entry.
        let context = unsafe { *list };
        call!(rdma_free_devices(list: *mut *mut ibv_context = list) -> ());
        context
    };
    let context = get();
    assert_eq!(
        call!(ibv_close_device(context: *mut ibv_context = context) -> c_int),
        0
    );
    assert_eq!(get(), context);
    // SAFETY: it is open.
    let fd = unsafe { (*context).async_fd };
    // SAFETY: any number is good.
    assert!(
        unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0,
        "the descriptor is closed"
    );
    // SAFETY: it is open.
    let device = unsafe { (*context).device };
    let name = call!(ibv_get_device_name(device: *mut ibv_device = device) -> *const c_char);
    // SAFETY: it is a string.
    assert_eq!(unsafe { CStr::from_ptr(name) }, c"softverbs0");
}
