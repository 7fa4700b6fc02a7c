//! The device, its port, its events.

use super::returns::{errno, minus_one, pointer, set_errno};
use super::unsupported::{Refuse, post_srq_ops};
use super::{cq, memory, post, qp, srq};
use crate::driver::async_events::object_of;
use crate::errno::errno_of;
use crate::objects::device::{self, Context, attributes, port};
use crate::settings::Settings;
use rdma_sys::{
    _compat_ibv_port_attr, IBV_FORK_UNNEEDED, ibv_async_event, ibv_context, ibv_device,
    ibv_device_attr, ibv_device_attr_ex, ibv_gid, ibv_gid_entry, ibv_port_attr,
    ibv_query_device_ex_input, verbs_context,
};
use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::fs::File;
use std::io::Read;
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;
use std::{env, ptr, slice};

/// Writes a structure to where C has `size` bytes for it: older programs know of less, newer ones
/// of more, which they find zero.
///
/// # Safety
/// There are so many bytes.
unsafe fn give<T>(value: &T, to: *mut T, size: usize) {
    let known = size.min(size_of::<T>());
    // SAFETY: `known` bytes are there on both sides, and `size` on the one written to.
    unsafe {
        ptr::write_bytes(to.cast::<u8>(), 0, size);
        ptr::copy_nonoverlapping(ptr::from_ref(value).cast::<u8>(), to.cast(), known);
    }
}

/// A NULL-terminated array for C to free, and its length without the NULL.
///
/// # Safety
/// The length can be written to, or is NULL.
unsafe fn list<T>(entry: *mut T, length: *mut c_int) -> *mut *mut T {
    // SAFETY: it allocates.
    let list: *mut *mut T = unsafe { libc::calloc(2, size_of::<*mut T>()) }.cast();
    if !list.is_null() {
        // SAFETY: there is room for two.
        unsafe { list.write(entry) };
        if !length.is_null() {
            // SAFETY: as the caller promises.
            unsafe { *length = 1 };
        }
    }
    list
}

/// Fills the two tables of a context.
fn fill(verbs: &mut verbs_context) {
    /// An entry without a function here is one that refuses.
    macro_rules! table {
        (@) => { Refuse::refuse() };
        (@ $function:path) => { $function };
        ($table:expr; $($entry:ident $(= $function:path)?,)*) => {
            $($table.$entry = Some(table!(@ $($function)?));)*
        };
    }
    table! {
        verbs.context.ops;
        poll_cq = cq::poll_cq,
        req_notify_cq = cq::req_notify_cq,
        post_send = post::post_send,
        post_recv = post::post_recv,
        post_srq_recv = post::post_srq_recv,
        alloc_mw, bind_mw, dealloc_mw,
        _compat_query_device = ibv_query_device,
        _compat_query_port = ibv_query_port,
        _compat_alloc_pd, _compat_dealloc_pd, _compat_reg_mr, _compat_rereg_mr, _compat_dereg_mr,
        _compat_create_cq, _compat_cq_event, _compat_resize_cq, _compat_destroy_cq,
        _compat_create_srq, _compat_modify_srq, _compat_query_srq, _compat_destroy_srq,
        _compat_create_qp, _compat_query_qp, _compat_modify_qp, _compat_destroy_qp,
        _compat_create_ah, _compat_destroy_ah, _compat_attach_mcast, _compat_detach_mcast,
        _compat_async_event,
    }
    table! {
        verbs;
        query_port = query_port,
        query_device_ex = query_device_ex,
        create_cq_ex = cq::create_cq_ex,
        create_qp_ex = qp::create_qp_ex,
        create_srq_ex = srq::create_srq_ex,
        get_srq_num = srq::get_srq_num,
        advise_mr = memory::advise_mr,
        post_srq_ops = post_srq_ops,
        alloc_null_mr, alloc_parent_domain, alloc_td, dealloc_td,
        alloc_dm, free_dm, reg_dm_mr,
        create_counters, destroy_counters, read_counters, attach_counters_point_flow,
        ibv_create_flow, ibv_destroy_flow,
        create_flow_action_esp, modify_flow_action_esp, destroy_flow_action,
        create_wq, modify_wq, destroy_wq, create_rwq_ind_table, destroy_rwq_ind_table,
        modify_cq, modify_qp_rate_limit, open_qp, open_xrcd, close_xrcd, query_rt_values,
    }
}

/// # Safety
/// The length can be written to, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(length: *mut c_int) -> *mut *mut ibv_device {
    // SAFETY: as the caller promises.
    unsafe { list(device::device(), length) }
}

/// # Safety
/// The list is one of [`ibv_get_device_list`], or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: as the caller promises.
    unsafe { libc::free(list.cast()) };
}

/// The context of the connection manager, opened when first asked for and never closed. NULL if it
/// can't be opened; `errno` says why.
pub fn default_context() -> *mut ibv_context {
    pointer(device::default_context(fill).map_err(|error| errno_of(&error)))
}

/// # Safety
/// The length can be written to, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_devices(length: *mut c_int) -> *mut *mut ibv_context {
    let context = default_context();
    if context.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: as the caller promises.
    unsafe { list(context, length) }
}

/// # Safety
/// The list is one of [`rdma_get_devices`], or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: as the caller promises.
    unsafe { libc::free(list.cast()) };
}

/// # Safety
/// It is a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: as the caller promises.
    unsafe { (&raw const (*device).name).cast() }
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_guid(_: *mut ibv_device) -> u64 {
    u64::from_ne_bytes(device::guid())
}

/// The index is the kernel's, which does not know of this device.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_index(_: *mut ibv_device) -> c_int {
    -1
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    pointer(if device == device::device() {
        Context::open(fill).map_err(|error| errno_of(&error))
    } else {
        Err(libc::ENODEV)
    })
}

/// # Safety
/// It is an open context, and not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { Context::close(context) };
    0
}

/// # Safety
/// The attributes can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(
    _: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { *attr = attributes::attributes(Settings::get()).orig_attr };
    0
}

/// # Safety
/// `input` is valid or NULL, and `size` bytes of `attr` can be written to.
unsafe extern "C" fn query_device_ex(
    _: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    // SAFETY: as the caller promises.
    if unsafe { input.as_ref() }.is_some_and(|input| input.comp_mask != 0) {
        return libc::EINVAL;
    }
    // SAFETY: as the caller promises.
    unsafe { give(&attributes::attributes(Settings::get()), attr, size) };
    0
}

/// # Safety
/// `size` bytes of `attr` can be written to.
unsafe extern "C" fn query_port(
    _: *mut ibv_context,
    number: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    if u32::from(number) != port::PORT {
        return libc::EINVAL;
    }
    errno(
        port::attributes()
            .map_err(|error| errno_of(&error))
            .map(|all| {
                // SAFETY: as the caller promises.
                unsafe { give(&all, attr, size) };
            }),
    )
}

/// # Safety
/// There is room for the attributes as they were before `port_cap_flags2`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    number: u8,
    attr: *mut _compat_ibv_port_attr,
) -> c_int {
    const SIZE: usize = offset_of!(ibv_port_attr, port_cap_flags2);
    // SAFETY: as the caller promises.
    unsafe { query_port(context, number, attr.cast(), SIZE) }
}

/// The entries of the GID table of a port.
fn gids(number: u32) -> Result<Vec<port::Address>, c_int> {
    if number != port::PORT {
        return Err(libc::EINVAL);
    }
    port::addresses().map_err(|error| errno_of(&error))
}

/// One of them.
fn gid(number: u32, index: usize) -> Result<port::Address, c_int> {
    gids(number)?.get(index).copied().ok_or(libc::EINVAL)
}

/// # Safety
/// The GID can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(
    _: *mut ibv_context,
    number: u8,
    index: c_int,
    to: *mut ibv_gid,
) -> c_int {
    // A negative index is one that no table has.
    minus_one(gid(number.into(), index as usize).map(|address| {
        // SAFETY: as the caller promises.
        unsafe { *to = port::gid(address.ip) };
    }))
}

/// # Safety
/// `size` bytes of the entry can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_ex(
    _: *mut ibv_context,
    number: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    if flags != 0 {
        return libc::EOPNOTSUPP;
    }
    let index = index as usize;
    errno(gid(number, index).map(|address| {
        let found = port::gid_entry(Settings::get(), index, &address);
        // SAFETY: as the caller promises.
        unsafe { give(&found, entry, size) };
    }))
}

/// # Safety
/// There are `length` entries of `size` bytes each that can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_table(
    _: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    length: usize,
    flags: u32,
    size: usize,
) -> isize {
    if flags != 0 {
        return -(libc::EOPNOTSUPP as isize);
    }
    let gids = match gids(port::PORT) {
        Ok(gids) => gids,
        Err(errno) => return -(errno as isize),
    };
    // As the kernel does it: a table that is longer than the array is not read in part.
    if gids.len() > length {
        set_errno(libc::EINVAL);
        return -(libc::EINVAL as isize);
    }
    for (index, address) in gids.iter().enumerate() {
        let entry = port::gid_entry(Settings::get(), index, address);
        // SAFETY: as the caller promises.
        unsafe { give(&entry, entries.byte_add(index * size), size) };
    }
    gids.len() as isize
}

/// What `ibv_devinfo` asks, though no header offers it: 1 is RoCE v2, and 0 any other.
///
/// # Safety
/// The kind can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid_type(
    _: *mut ibv_context,
    number: u8,
    index: c_uint,
    kind: *mut c_uint,
) -> c_int {
    minus_one(gid(number.into(), index as usize).map(|_| {
        // SAFETY: as the caller promises.
        unsafe { *kind = u32::from(!Settings::get().iwarp) };
    }))
}

/// # Safety
/// The key can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_pkey(
    _: *mut ibv_context,
    number: u8,
    index: c_int,
    key: *mut u16,
) -> c_int {
    if u32::from(number) != port::PORT || index != 0 {
        return minus_one(Err(libc::EINVAL));
    }
    // SAFETY: as the caller promises.
    unsafe { *key = port::PKEY.to_be() };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_pkey_index(_: *mut ibv_context, number: u8, key: u16) -> c_int {
    let known = u32::from(number) == port::PORT && key == port::PKEY.to_be();
    minus_one(known.then_some(()).ok_or(libc::EINVAL))
}

/// # Safety
/// It is an open context, and the event can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: as the caller promises.
    let got = unsafe { Context::of(context) }.events().get();
    minus_one(got.map(|got| {
        // SAFETY: as the caller promises.
        unsafe { event.write(got.into_c()) };
    }))
}

/// # Safety
/// It is an event of [`ibv_get_async_event`] that has not been acknowledged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: as the caller promises.
    let (object, context) = unsafe { object_of(&*event) };
    // SAFETY: a context outlives its objects.
    unsafe { Context::of(context) }.events().settle(object, 1);
}

/// Registered memory is ordinary memory here, and a child's is its own.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_is_fork_initialized() -> c_int {
    IBV_FORK_UNNEEDED as c_int
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_fork_init() -> c_int {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_dontfork_range(_: *mut c_void, _: usize) -> c_int {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_dofork_range(_: *mut c_void, _: usize) -> c_int {
    0
}

/// Where the kernel's files are: `/sys`, unless `SYSFS_PATH` says otherwise.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    static PATH: OnceLock<Vec<u8>> = OnceLock::new();
    let path = PATH.get_or_init(|| {
        let set = env::var_os("SYSFS_PATH");
        let mut path = set.as_deref().map_or(b"/sys".as_slice(), OsStr::as_bytes);
        while let Some(shorter) = path.strip_suffix(b"/") {
            path = shorter;
        }
        [path, b"\0"].concat()
    });
    path.as_ptr().cast()
}

/// The length of what a file says, without the newline at its end. -1 if it can't be read, or if
/// there is no room for it and a NUL.
///
/// # Safety
/// `dir` and `file` are strings, and `size` bytes of the buffer can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: as the caller promises.
    let [dir, file] = [dir, file].map(|text| unsafe { CStr::from_ptr(text) }.to_bytes());
    let buffer = if size == 0 {
        // It may be NULL.
        &mut []
    } else {
        // SAFETY: the program gives a buffer of `size` bytes.
        unsafe { slice::from_raw_parts_mut(buffer.cast::<u8>(), size) }
    };
    let path = Path::new(OsStr::from_bytes(dir)).join(OsStr::from_bytes(file));
    let length = match File::open(path).and_then(|mut file| file.read(buffer)) {
        Ok(length) => length,
        Err(error) => return minus_one(Err(errno_of(&error))),
    };
    match length {
        0 => 0,
        _ if buffer[length - 1] == b'\n' => {
            buffer[length - 1] = 0;
            length as c_int - 1
        }
        _ if length < size => {
            buffer[length] = 0;
            length as c_int
        }
        _ => minus_one(Err(libc::EOVERFLOW)),
    }
}
