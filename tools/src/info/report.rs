//! The report: what was seen, and what was found wrong.

use super::addresses::{Address, Own};
use super::devices::DeviceReport;
use super::finding::Finding;
use super::host::Host;
use serde::Serialize;
use std::path::PathBuf;

#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub schema_version: u32,
    /// Of rpma-info.
    pub version: &'static str,
    /// Whether nothing that is an error was found.
    pub usable: bool,
    pub findings: Vec<Finding>,
    /// Those asked for, or all of this host.
    pub addresses: Vec<Address>,
    pub devices: Vec<DeviceReport>,
    /// Why libibverbs lists no devices, where it fails.
    pub devices_error: Option<String>,
    pub libraries: Libraries,
    pub host: Host,
    /// The addresses of the host, whatever was asked for.
    #[serde(skip)]
    pub(super) own: Vec<Own>,
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct Libraries {
    pub librpma: Library,
    pub libibverbs: Library,
    pub librdmacm: Library,
    /// Whether softverbs stands for the last two.
    pub softverbs: bool,
    /// `LD_PRELOAD`
    pub preload: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct Library {
    pub file: Option<PathBuf>,
    /// What the library or its package says; of libibverbs and librdmacm, the release of rdma-core.
    pub version: Option<String>,
}

impl Report {
    /// The device of that name.
    pub(super) fn device(&self, name: &str) -> Option<&DeviceReport> {
        self.devices.iter().find(|device| device.name == name)
    }

    /// Whether it is about addresses that were asked for.
    pub(super) fn asked(&self) -> bool {
        self.addresses.iter().any(|address| address.asked)
    }

    /// The devices that it is about.
    pub(super) fn devices_shown(&self) -> impl Iterator<Item = &DeviceReport> {
        let reaches = |device: &DeviceReport| {
            let mut addresses = self.addresses.iter();
            addresses.any(|address| address.device.as_ref() == Some(&device.name))
        };
        let shown = move |device: &&DeviceReport| !self.asked() || reaches(device);
        self.devices.iter().filter(shown)
    }
}
