//! The device: there is one, for the whole process, and it has one port.

pub mod attributes;
pub mod port;

use crate::driver::async_events::{self, AsyncEvents};
use crate::limits;
use crate::process::{AtFork, LockOrder, at_fork};
use crate::settings::Settings;
use crate::sync::lock;
use rdma_sys::{ibv_context, ibv_device, ibv_node_type, ibv_transport_type, verbs_context};
use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, zeroed};
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock};
use std::{fs, io, ptr};

pub const NAME: &str = "softverbs0";

/// What `abi_compat` is in a context with the extended table, `infiniband/verbs.h`.
const EXTENDED: *mut c_void = ptr::without_provenance_mut(usize::MAX);

#[repr(C)]
struct Device {
    device: ibv_device,
    /// The libraries of vendors, asked whether a device is one of theirs, look for their own
    /// tables here, behind it: there are none.
    behind: [*const c_void; 64],
}

// SAFETY: nobody changes it once it is made.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// The device.
pub fn device() -> *mut ibv_device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    let device = DEVICE.get_or_init(|| {
        // SAFETY: it consists of numbers and pointers.
        let mut made: Device = unsafe { zeroed() };
        let device = &mut made.device;
        (device.node_type, device.transport_type) = if Settings::get().iwarp {
            let transport = ibv_transport_type::IBV_TRANSPORT_IWARP;
            (ibv_node_type::IBV_NODE_RNIC, transport)
        } else {
            let transport = ibv_transport_type::IBV_TRANSPORT_IB;
            (ibv_node_type::IBV_NODE_CA, transport)
        };
        // No device of the kernel is called so: its files are not taken for those of another.
        let uverbs = format!("uverbs-{NAME}");
        write(&mut device.name, NAME);
        write(&mut device.dev_name, &uverbs);
        write(
            &mut device.dev_path,
            &format!("/sys/class/infiniband_verbs/{uverbs}"),
        );
        write(
            &mut device.ibdev_path,
            &format!("/sys/class/infiniband/{NAME}"),
        );
        made
    });
    (&raw const device.device).cast_mut()
}

/// A string into a C array that is zeroed and longer.
fn write(array: &mut [c_char], text: &str) {
    for (to, from) in array.iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
}

/// The number of the device: not zero, always the same on one host.
pub fn guid() -> [u8; 8] {
    static GUID: OnceLock<[u8; 8]> = OnceLock::new();
    *GUID.get_or_init(|| {
        let host = [
            "/etc/machine-id",
            "/var/lib/dbus/machine-id",
            "/proc/sys/kernel/random/boot_id",
            "/proc/sys/kernel/hostname",
        ]
        .into_iter()
        .filter_map(|file| fs::read(file).ok())
        .find(|text| !text.trim_ascii().is_empty())
        .unwrap_or_default();
        // The identity of a host is not for others to see, so it is hashed: FNV-1a.
        let hash = NAME
            .bytes()
            .chain(host)
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
            });
        let mut guid = hash.to_be_bytes();
        guid[0] = guid[0] & !1 | 2; // as EUI-64 marks those that no vendor assigned
        guid
    })
}

/// An open device.
#[repr(C)]
pub struct Context {
    verbs: verbs_context,
    events: Arc<AsyncEvents>,
}

impl Context {
    /// Opens the device; `fill` writes the functions into its tables.
    pub fn open(fill: fn(&mut verbs_context)) -> io::Result<*mut ibv_context> {
        take_part_in_forks();
        let events = Arc::new(AsyncEvents::new()?);
        // SAFETY: it consists of numbers, pointers and functions that may be absent.
        let mut verbs: verbs_context = unsafe { zeroed() };
        verbs.sz = size_of::<verbs_context>();
        verbs.context.device = device();
        verbs.context.cmd_fd = -1;
        verbs.context.async_fd = events.fd();
        verbs.context.num_comp_vectors = limits::COMP_VECTORS as c_int;
        verbs.context.abi_compat = EXTENDED;
        fill(&mut verbs);
        let context = Box::into_raw(Box::new(Self { verbs, events }));
        // SAFETY: it was made just now.
        Ok(unsafe { &raw mut (*context).verbs.context })
    }

    /// Where the context begins that C has a pointer into.
    fn start(context: *const ibv_context) -> *mut Self {
        const INSIDE: usize = offset_of!(Context, verbs) + offset_of!(verbs_context, context);
        context.wrapping_byte_sub(INSIDE).cast_mut().cast()
    }

    /// # Safety
    /// The context is one of [`Context::open`], and stays open as long as this is used.
    pub unsafe fn of<'a>(context: *const ibv_context) -> &'a Self {
        // SAFETY: as the caller promises.
        unsafe { &*Self::start(context) }
    }

    /// # Safety
    /// The context is one of [`Context::open`], and is not used any more.
    pub unsafe fn close(context: *mut ibv_context) {
        // Others in the process have the common one, too: it stays.
        if lock(&DEFAULT).0 != Self::start(context) {
            // SAFETY: as the caller promises.
            drop(unsafe { Box::from_raw(Self::start(context)) });
        }
    }

    /// Makes an object that is about to be destroyed unknown to the events: those that nobody has
    /// got are gone, and for those that someone has it waits until they are acknowledged.
    pub fn forget(&self, object: *const c_void) {
        self.events.forget(object);
    }

    pub fn events(&self) -> &Arc<AsyncEvents> {
        &self.events
    }
}

/// The context of those who did not open one, or NULL. C's pointer leads into it, and this is the only
/// one to its start, by which leak checkers know that it is not lost.
struct Common(*mut Context);

// SAFETY: a context can be used by all threads, and this one is never closed.
unsafe impl Send for Common {}

static DEFAULT: Mutex<Common> = Mutex::new(Common(ptr::null_mut()));

/// What guards the context that is everybody's.
struct Locks {
    _default: MutexGuard<'static, Common>,
    _events: Option<async_events::Locks>,
}

/// A child finds the common context whole.
fn take_part_in_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        at_fork(AtFork {
            order: LockOrder::Device,
            lock: || {
                let default = lock(&DEFAULT);
                // SAFETY: it is NULL, or never closed.
                let context: Option<&'static Context> = unsafe { default.0.as_ref() };
                let events = context.map(|context| context.events.locks());
                Box::new(Locks {
                    _default: default,
                    _events: events,
                })
            },
            in_child: || {},
        });
    });
}

/// The context of the connection manager, opened when first asked for and never closed.
pub fn default_context(fill: fn(&mut verbs_context)) -> io::Result<*mut ibv_context> {
    let mut default = lock(&DEFAULT);
    if default.0.is_null() {
        default.0 = Context::start(Context::open(fill)?);
    }
    // SAFETY: it is never closed.
    Ok(unsafe { &raw mut (*default.0).verbs.context })
}
