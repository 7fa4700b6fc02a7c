//! What the built `libsoftverbs.so` offers in the place of the two libraries.

mod library;

use library::{Library, errno, libibverbs, librdmacm, ours, ours_file};
use object::read::elf::ElfFile64;
use object::read::{ExportFlags, NameOrOrdinal};
use object::{Endianness, Object, elf};
use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs;
use std::path::Path;

/// The names that a library exports, but for those that belong to its own drivers, and what it
/// needs.
fn read(file: &Path) -> (BTreeSet<String>, BTreeSet<String>) {
    let data = fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let elf = ElfFile64::<Endianness>::parse(&*data).unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let mut names = BTreeSet::new();
    for export in elf.exports().unwrap() {
        let export = export.unwrap();
        let (NameOrOrdinal::Name(name), ExportFlags::Elf { version, .. }) =
            (export.name(), export.flags())
        else {
            unreachable!("not ELF")
        };
        let (name, version) = (text(name), text(version.unwrap_or_default()));
        if name != version && !version.contains("PRIVATE") {
            names.insert(name);
        }
    }
    let table = elf.elf_dynamic_table().unwrap();
    let needed = table.iter().filter(|entry| entry.tag == elf::DT_NEEDED);
    let needed = needed.map(|entry| text(table.string(entry).unwrap()));
    (names, needed.collect())
}

#[test]
fn every_entry_point_of_the_two_libraries_is_there() {
    let (ours, _) = read(&ours_file());
    let originals = [
        libibverbs().file("ibv_open_device"),
        librdmacm().file("rdma_create_id"),
    ];
    for file in originals {
        let (wanted, _) = read(&file);
        assert!(wanted.len() > 50, "{}: {wanted:?}", file.display());
        let missing: Vec<_> = wanted.difference(&ours).collect();
        assert!(missing.is_empty(), "of {}: {missing:?}", file.display());
    }
}

#[test]
fn it_does_not_need_what_it_replaces() {
    let (_, needed) = read(&ours_file());
    let replaced = |name: &&String| name.contains("ibverbs") || name.contains("rdmacm");
    let replaced: Vec<_> = needed.iter().filter(replaced).collect();
    assert!(replaced.is_empty(), "{replaced:?}");
}

/// Values that mean something, and some that do not.
fn values() -> impl Iterator<Item = c_int> {
    (-3..40).chain([1000, c_int::MAX, c_int::MIN])
}

#[test]
fn names_are_the_same() {
    type Name = unsafe extern "C" fn(c_int) -> *const c_char;
    let name = |library: &Library, function: &str, value| {
        // SAFETY: all of these are of this type, and take any number.
        let name = unsafe { library.function::<Name>(function)(value) };
        // SAFETY: what they return is a string.
        (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_owned())
    };
    for (original, function) in [
        (libibverbs(), "ibv_wc_status_str"),
        (libibverbs(), "ibv_node_type_str"),
        (libibverbs(), "ibv_port_state_str"),
        (libibverbs(), "ibv_event_type_str"),
        (librdmacm(), "rdma_event_str"),
    ] {
        for value in values() {
            let expected = name(original, function, value);
            assert_eq!(
                name(ours(), function, value),
                expected,
                "{function}({value})"
            );
        }
    }
}

#[test]
fn rates_are_the_same() {
    type Rate = unsafe extern "C" fn(c_int) -> c_int;
    for (function, range) in [
        ("ibv_rate_to_mult", -3..40),
        ("ibv_rate_to_mbps", -3..40),
        ("mult_to_ibv_rate", -3..1_000),
        ("mbps_to_ibv_rate", -3..1_500_000),
    ] {
        // SAFETY: all of these are of this type, and take any number.
        let [ours, original] =
            [ours(), libibverbs()].map(|library| unsafe { library.function::<Rate>(function) });
        for value in range.chain(values()) {
            // SAFETY: as above.
            let (got, expected) = unsafe { (ours(value), original(value)) };
            assert_eq!(got, expected, "{function}({value})");
        }
    }
}

#[test]
fn files_are_read_the_same_way() {
    type Read = unsafe extern "C" fn(*const c_char, *const c_char, *mut c_char, usize) -> c_int;
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let c_dir = CString::new(dir.to_str().unwrap()).unwrap();
    let file = c"softverbs-attribute";
    let read = |library: &Library, file: &CStr, size| {
        let mut buffer = [b'x' as c_char; 8];
        // SAFETY: it is of this type; the buffer is longer than any size asked for.
        let length = unsafe {
            let read = library.function::<Read>("ibv_read_sysfs_file");
            read(c_dir.as_ptr(), file.as_ptr(), buffer.as_mut_ptr(), size)
        };
        (length, buffer)
    };
    for text in ["", "\n", "ab", "ab\n", "ab\ncd\n", "longer than that"] {
        fs::write(dir.join(file.to_str().unwrap()), text).unwrap();
        for size in 0..=8 {
            let expected = read(libibverbs(), file, size);
            assert_eq!(
                read(ours(), file, size),
                expected,
                "{text:?} into {size} bytes"
            );
        }
    }
    for library in [libibverbs(), ours()] {
        let missing = errno(|| read(library, c"softverbs-nothing", 8).0);
        assert_eq!(missing, (-1, libc::ENOENT));
    }
}

#[test]
fn what_is_not_supported_says_so() {
    // SAFETY: those of ours take no notice of their arguments.
    unsafe {
        let create_ah: extern "C" fn() -> *mut c_void = ours().function("ibv_create_ah");
        assert_eq!(errno(|| create_ah().is_null()), (true, libc::EOPNOTSUPP));
        let attach_mcast: extern "C" fn() -> c_int = ours().function("ibv_attach_mcast");
        assert_eq!(attach_mcast(), libc::EOPNOTSUPP);
        for name in [
            "rsocket",
            "rpoll",
            "rdma_join_multicast",
            "ibv_init_ah_from_wc",
        ] {
            let call: extern "C" fn() -> c_int = ours().function(name);
            assert_eq!(errno(|| call()), (-1, libc::EOPNOTSUPP), "{name}");
        }
        let rread: extern "C" fn() -> isize = ours().function("rread");
        assert_eq!(errno(|| rread()), (-1, libc::EOPNOTSUPP));
    }
}
