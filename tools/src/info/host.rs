//! What the host and this process bring along, as far as RDMA asks for it.

use rustix::fs::{Access, AtFlags, CWD};
use rustix::process::{Resource, getrlimit};
use rustix::thread::CapabilitySet;
use serde::Serialize;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

#[derive(Debug, Clone, Default, Serialize)]
pub struct Host {
    pub name: String,
    pub kernel: String,
    /// What it is, as far as that can be seen, such as `docker`.
    pub container: Option<String>,
    pub uid: u32,
    pub memory_bytes: u64,
    pub memlock: Memlock,
    pub nofile: Limit,
    pub modules: Modules,
    /// Devices that the kernel has, whether or not programs can get at them.
    pub kernel_devices: Vec<KernelDevice>,
    /// What librdmacm opens, where the kernel or a container's maker has put it.
    pub rdma_cm: Option<Node>,
    pub persistent_memory: PersistentMemory,
}

/// A limit of this process; None is no limit.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Limit {
    pub soft: Option<u64>,
    pub hard: Option<u64>,
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct Memlock {
    pub soft_bytes: Option<u64>,
    pub hard_bytes: Option<u64>,
    /// Not so for a process that has CAP_IPC_LOCK on the host.
    pub enforced: bool,
}

/// Whether the kernel has loaded a module, or has it built in.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Modules {
    pub ib_core: bool,
    pub ib_uverbs: bool,
    pub rdma_ucm: bool,
    pub rdma_rxe: bool,
    pub siw: bool,
}

#[derive(Debug, Clone, Serialize)]
pub struct KernelDevice {
    pub name: String,
    /// The node that programs open it by, which may be missing.
    pub node: Option<Node>,
    /// Network interfaces that it stands behind.
    pub interfaces: Vec<String>,
}

/// A file in /dev.
#[derive(Debug, Clone, Serialize)]
pub struct Node {
    pub path: PathBuf,
    /// Whether this process may read and write it.
    pub accessible: bool,
    pub mode: String,
    pub uid: u32,
    pub gid: u32,
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct PersistentMemory {
    pub dax_devices: Vec<DaxDevice>,
    pub dax_filesystems: Vec<DaxFilesystem>,
    /// Of its regions: from where on a write survives a loss of power.
    pub persistence_domains: Vec<String>,
}

#[derive(Debug, Clone, Serialize)]
pub struct DaxDevice {
    pub size_bytes: Option<u64>,
    pub alignment_bytes: Option<u64>,
    #[serde(flatten)]
    pub node: Node,
}

#[derive(Debug, Clone, Serialize)]
pub struct DaxFilesystem {
    pub path: PathBuf,
    pub kind: String,
    pub source: String,
}

impl Host {
    #[must_use]
    pub fn look() -> Self {
        let uname = rustix::system::uname();
        let info = rustix::system::sysinfo();
        Self {
            name: uname.nodename().to_string_lossy().into_owned(),
            kernel: uname.release().to_string_lossy().into_owned(),
            container: container(),
            uid: rustix::process::geteuid().as_raw(),
            memory_bytes: info.totalram.saturating_mul(info.mem_unit.into()),
            memlock: Memlock::look(),
            nofile: Limit::look(Resource::Nofile),
            modules: Modules::look(),
            kernel_devices: kernel_devices(),
            rdma_cm: Node::look(Path::new("/dev/infiniband/rdma_cm")),
            persistent_memory: PersistentMemory::look(),
        }
    }
}

impl Limit {
    fn look(resource: Resource) -> Self {
        let limit = getrlimit(resource);
        Self {
            soft: limit.current,
            hard: limit.maximum,
        }
    }
}

impl Memlock {
    fn look() -> Self {
        let limit = Limit::look(Resource::Memlock);
        let capable = rustix::thread::capabilities(None)
            .is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
        // In a user namespace the capability counts for nothing here.
        let of_the_host = fs::read_to_string("/proc/self/uid_map")
            .is_ok_and(|map| map.split_whitespace().eq(["0", "0", "4294967295"]));
        Self {
            soft_bytes: limit.soft,
            hard_bytes: limit.hard,
            enforced: !(capable && of_the_host),
        }
    }
}

impl Modules {
    fn look() -> Self {
        let has = |name| Path::new("/sys/module").join(name).exists();
        Self {
            ib_core: has("ib_core"),
            ib_uverbs: has("ib_uverbs"),
            rdma_ucm: has("rdma_ucm"),
            rdma_rxe: has("rdma_rxe"),
            siw: has("siw"),
        }
    }
}

impl Node {
    /// None if there is none.
    fn look(path: &Path) -> Option<Self> {
        let file = fs::metadata(path).ok()?;
        let access = Access::READ_OK | Access::WRITE_OK;
        Some(Self {
            path: path.to_owned(),
            accessible: rustix::fs::accessat(CWD, path, access, AtFlags::EACCESS).is_ok(),
            mode: format!("{:04o}", file.mode() & 0o7777),
            uid: file.uid(),
            gid: file.gid(),
        })
    }
}

impl PersistentMemory {
    fn look() -> Self {
        let of_device = |name: &str, what| line(format!("/sys/bus/dax/devices/{name}/{what}"));
        let devices = names("/dev").into_iter().filter_map(|name| {
            let (region, number) = name.strip_prefix("dax")?.split_once('.')?;
            let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
            if !digits(region) || !digits(number) {
                return None;
            }
            Some(DaxDevice {
                size_bytes: of_device(&name, "size").and_then(|text| text.parse().ok()),
                alignment_bytes: of_device(&name, "align").and_then(|text| text.parse().ok()),
                node: Node::look(&Path::new("/dev").join(&name))?,
            })
        });
        let regions = names("/sys/bus/nd/devices").into_iter();
        let mut persistence_domains: Vec<_> = regions
            .filter_map(|name| line(format!("/sys/bus/nd/devices/{name}/persistence_domain")))
            .collect();
        persistence_domains.sort();
        persistence_domains.dedup();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        Self {
            dax_devices: devices.collect(),
            dax_filesystems: dax_filesystems(&mounts),
            persistence_domains,
        }
    }
}

/// Those whose files all are mapped directly, of a table of mounts as proc(5) has it: `ID PARENT
/// MAJOR:MINOR ROOT PATH OPTIONS [TAG]... - TYPE SOURCE OPTIONS`, with blanks as octal numbers.
#[must_use]
pub fn dax_filesystems(mounts: &str) -> Vec<DaxFilesystem> {
    let found = mounts.lines().filter_map(|line| {
        let (mount, filesystem) = line.split_once(" - ")?;
        let path = mount.split(' ').nth(4)?;
        let [kind, source, options] = *filesystem.split(' ').collect::<Vec<_>>() else {
            return None;
        };
        let dax = |option| option == "dax" || option == "dax=always";
        options.split(',').any(dax).then(|| DaxFilesystem {
            path: path.replace("\\040", " ").into(),
            kind: kind.into(),
            source: source.into(),
        })
    });
    found.collect()
}

/// As the kernel lists them, which a container sees too.
fn kernel_devices() -> Vec<KernelDevice> {
    let of_node = |node: &String| line(format!("/sys/class/infiniband_verbs/{node}/ibdev"));
    let nodes: Vec<_> = names("/sys/class/infiniband_verbs")
        .into_iter()
        .filter_map(|node| Some((of_node(&node)?, Path::new("/dev/infiniband").join(node))))
        .collect();
    let devices = names("/sys/class/infiniband").into_iter();
    let found = devices.map(|name| {
        let node = nodes.iter().find(|(device, _)| *device == name);
        let dir = format!("/sys/class/infiniband/{name}");
        let mut interfaces = names(format!("{dir}/device/net"));
        interfaces.extend(line(format!("{dir}/parent")));
        KernelDevice {
            node: node.and_then(|(_, path)| Node::look(path)),
            interfaces,
            name,
        }
    });
    found.collect()
}

/// By what its maker leaves there for others to see.
fn container() -> Option<String> {
    let named = env::var("container").ok().filter(|name| !name.is_empty());
    let systemd = || line("/run/systemd/container");
    let file = |path, name: &str| Path::new(path).exists().then(|| name.to_owned());
    named
        .or_else(systemd)
        .or_else(|| file("/run/.containerenv", "podman"))
        .or_else(|| file("/.dockerenv", "docker"))
        .or_else(|| file("/var/run/secrets/kubernetes.io", "kubernetes"))
}

/// What a directory holds, in order; nothing if it can't be read.
fn names(dir: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// What a file of one line says.
fn line(file: impl AsRef<Path>) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}
