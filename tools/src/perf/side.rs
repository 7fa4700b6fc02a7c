//! What one side of the connection runs on.

use super::operation::Operation;
use crate::info::Native;
use crate::loaded;
use crate::rpma::Device;
use rustix::system::uname;
use serde::{Deserialize, Serialize};
use std::{fs, thread};

/// One side of the connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Side {
    pub host: String,
    pub kernel: String,
    pub machine: String,
    pub processor: Option<String>,
    pub processors: u64,
    pub device: String,
    pub librpma: Option<Library>,
    pub libibverbs: Option<Library>,
    /// Whether the library uses those of the device, else it has stand-ins; older tools do not tell.
    pub native_flush: Option<bool>,
    pub native_atomic_write: Option<bool>,
}

/// A library that was loaded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Library {
    pub file: String,
    /// What it says itself, where it does.
    pub version: Option<String>,
}

impl From<loaded::Loaded> for Library {
    fn from(library: loaded::Loaded) -> Self {
        Self {
            file: library.file.display().to_string(),
            version: library.noted_version,
        }
    }
}

impl Side {
    /// This side, by that device.
    #[must_use]
    pub fn here(device: Device) -> Self {
        let system = uname();
        let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
        let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = processors
            .lines()
            .find(|line| line.starts_with("model name"));
        let model = model.and_then(|line| line.split_once(": "));
        let native = Native::of(device);
        Self {
            host: text(system.nodename()),
            kernel: text(system.release()),
            machine: text(system.machine()),
            processor: model.map(|(_, model)| model.trim().to_owned()),
            processors: thread::available_parallelism().map_or(1, |number| number.get() as u64),
            device: device.name(),
            librpma: loaded::librpma().map(Library::from),
            libibverbs: loaded::libibverbs().map(Library::from),
            native_flush: native.map(|native| native.flush),
            native_atomic_write: native.map(|native| native.atomic_write),
        }
    }

    /// What this client does in place of a native operation, for people; None if it need not.
    #[must_use]
    pub fn stand_in(&self, operation: Operation) -> Option<&'static str> {
        let (native, instead) = match operation {
            Operation::AtomicWrite => (
                self.native_atomic_write,
                "no native ATOMIC WRITE: each is an ordinary write behind a fence",
            ),
            operation if operation.is_persistent() => (
                self.native_flush,
                "no native FLUSH: each is an RDMA READ, which alone makes nothing persistent",
            ),
            operation if operation.flushes() => {
                (self.native_flush, "no native FLUSH: each is an RDMA READ")
            }
            _ => return None,
        };
        (native == Some(false)).then_some(instead)
    }

    /// The library in a few words, for people.
    #[must_use]
    pub fn library(&self) -> String {
        match &self.librpma {
            None => "librpma".into(),
            Some(Library {
                version: Some(version),
                ..
            }) => format!("librpma {version}"),
            Some(Library { file, .. }) => format!("librpma of {file}"),
        }
    }
}
