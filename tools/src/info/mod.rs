//! rpma-info: what there is for programs of librpma to run on, and what stands in their way.

mod addresses;
mod devices;
mod facts;
mod finding;
mod findings;
mod host;
mod report;
mod text;
mod verbs;
mod words;

pub use addresses::{Address, Own, Whose};
pub use devices::{DeviceReport, Failure, Native, Operation, Step};
pub use facts::{ACTIVE, Gid, Limits, Odp, Port};
pub use finding::{Finding, Level};
pub use host::{
    DaxDevice, DaxFilesystem, Host, KernelDevice, Limit, Memlock, Modules, Node, PersistentMemory,
};
pub use report::{Libraries, Library, Report};

use crate::loaded::{self, Loaded};
use std::env;
use std::path::Path;
use std::process::Command;

/// Of the report as JSON: raised when a member changes its meaning or goes, not when one is added.
const SCHEMA_VERSION: u32 = 1;

impl Report {
    /// Looks at these addresses, or at all of this host.
    #[must_use]
    pub fn make(asked: &[String]) -> Self {
        let libraries = Libraries::look();
        let release = libraries.libibverbs.file.as_deref();
        let release = release.and_then(loaded::rdma_core_release);
        let (mut devices, devices_error) = match DeviceReport::all(release) {
            Ok(devices) => (devices, None),
            Err(error) => (vec![], Some(error.to_string())),
        };
        let own = addresses::own();
        let of_host: Vec<_> = own.iter().map(Address::of_host).collect();
        for device in &mut devices {
            let served = of_host
                .iter()
                .filter(|address| address.device.as_ref() == Some(&device.name));
            device.addresses = served.map(|address| address.address.clone()).collect();
            device.usable &= !device.addresses.is_empty();
        }
        let asked = asked.iter().map(|text| Address::asked_for(text, &own));
        let asked: Vec<_> = asked.collect();
        let mut report = Self {
            schema_version: SCHEMA_VERSION,
            version: env!("CARGO_PKG_VERSION"),
            usable: false,
            findings: vec![],
            addresses: if asked.is_empty() { of_host } else { asked },
            devices,
            devices_error,
            libraries,
            host: Host::look(),
            own,
        };
        report.findings = findings::of(&report);
        report.usable = !report.findings.iter().any(|f| f.level == Level::Error);
        report
    }
}

impl Libraries {
    fn look() -> Self {
        let verbs = |loaded: Option<Loaded>| {
            let file = loaded.map(|loaded| loaded.file);
            let release = file.as_deref().and_then(loaded::rdma_core_release);
            Library {
                version: release.map(|release| format!("rdma-core {release}")),
                file,
            }
        };
        let librpma = loaded::librpma();
        let noted = librpma.as_ref().and_then(|it| it.noted_version.clone());
        let file = librpma.map(|loaded| loaded.file);
        let libibverbs = verbs(loaded::libibverbs());
        Self {
            librpma: Library {
                version: noted.or_else(|| package_version(file.as_ref()?)),
                file,
            },
            softverbs: libibverbs.file.as_deref().is_some_and(loaded::is_softverbs),
            libibverbs,
            librdmacm: verbs(loaded::librdmacm()),
            preload: env::var("LD_PRELOAD").ok(),
        }
    }
}

/// The version of the Debian package that a file is of, since the original has none in itself.
fn package_version(file: &Path) -> Option<String> {
    let ask = |arguments: &[&str], last: &std::ffi::OsStr| {
        let output = Command::new("dpkg-query")
            .args(arguments)
            .arg(last)
            .env("LC_ALL", "C")
            .env_remove("LD_PRELOAD")
            .output()
            .ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then_some(text)
    };
    let owner = ask(&["--search"], file.as_os_str())?;
    let (package, _) = owner.lines().next()?.rsplit_once(": ")?;
    let format = ["--show", "--showformat=${Version}"];
    ask(&format, package.as_ref()).filter(|version| !version.is_empty())
}
