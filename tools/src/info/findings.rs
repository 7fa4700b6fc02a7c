//! What will go wrong, and how to mend it.

use super::addresses::{Address, Whose};
use super::devices::{DeviceReport, Operation, Step};
use super::facts::{ACTIVE, Port};
use super::finding::{Finding, Level};
use super::host::Node;
use super::report::Report;
use super::words::{bytes, cause};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};
use verbs_ext::{ATOMIC_WRITE_SINCE, FLUSH_SINCE};

/// All of them, errors first.
pub fn of(report: &Report) -> Vec<Finding> {
    let mut found = vec![];
    found.extend(libraries(report));
    if out_of_files(report) {
        // Nothing else that was seen can be relied on.
        found.extend(nofile(report));
        found.sort_by_key(|finding| (finding.level, finding.code));
        return found;
    }
    found.extend(no_device(report));
    found.extend(unlisted(report));
    // Without it nothing is served, which need not be said of each device and address.
    let cm = rdma_cm(report);
    let connects = cm.is_none();
    found.extend(cm);
    for device in report.devices_shown() {
        found.extend(of_device(report, device, connects));
    }
    if report.asked() {
        let asked = report.addresses.iter();
        found.extend(asked.filter_map(|address| not_served(report, address, connects)));
    } else {
        found.extend(loopback(report));
    }
    found.extend(memlock(report));
    found.extend(nofile(report));
    found.extend(persistent_memory(report));
    found.sort_by_key(|finding| (finding.level, finding.code));
    found
}

fn libraries(report: &Report) -> Option<Finding> {
    let libraries = &report.libraries;
    if libraries.softverbs {
        let problem = "softverbs stands for libibverbs and librdmacm: a software device for \
                       development and test, which both sides of a connection have to run over.";
        return Some(Finding::new(Level::Note, "softverbs", problem).about("softverbs"));
    }
    let preload = libraries.preload.as_ref()?;
    preload.contains("libsoftverbs.so").then(|| {
        let problem = format!(
            "LD_PRELOAD is {preload}, but softverbs is not loaded: there is no such file, or it \
             can't be read."
        );
        Finding::new(Level::Warning, "softverbs_not_loaded", problem)
            .about("softverbs")
            .mend(
                "Leave it to the launcher to find:",
                &["softverbs run -- PROGRAM"],
            )
    })
}

const OVER_SOFTVERBS: &str =
    "Run both sides of a connection over softverbs, a device in user space:";
const SOFTVERBS: [&str; 1] = ["softverbs run -- PROGRAM"];
const WITH_DEVICES: [&str; 1] =
    ["docker run --network host --device /dev/infiniband --ulimit memlock=-1 IMAGE"];

fn no_device(report: &Report) -> Option<Finding> {
    if let Some(why) = &report.devices_error {
        let problem = format!("libibverbs can't list the RDMA devices: {why}.");
        let finding = Finding::new(Level::Error, "devices_not_listed", problem);
        return Some(finding.mend(OVER_SOFTVERBS, &SOFTVERBS));
    }
    if !report.devices.is_empty() || !report.host.kernel_devices.is_empty() {
        return None;
    }
    let container = report.host.container.is_some();
    let place = if container {
        "in this container"
    } else {
        "on this host"
    };
    let problem = format!("There is no RDMA device {place}, and librpma works with nothing else.");
    let mut finding = Finding::new(Level::Error, "no_device", problem);
    finding = finding.mend(OVER_SOFTVERBS, &SOFTVERBS);
    let mut own = report.own.iter();
    let interface = own.find(|own| own.up && !own.loopback);
    let interface = interface.map(|own| &*own.interface);
    let add = rxe_on(report, interface.unwrap_or("INTERFACE"));
    let root = if container {
        "Put the kernel's software device on a network interface, as root on the host, and \
         start the container with it:"
    } else {
        "Put the kernel's software device on a network interface, as root:"
    };
    let mut commands = vec!["modprobe rdma_rxe", &*add];
    if container {
        commands.extend(WITH_DEVICES);
    }
    Some(finding.or(root, &commands))
}

/// Devices that the kernel has and libibverbs does not list.
fn unlisted(report: &Report) -> Vec<Finding> {
    if report.libraries.softverbs || report.devices_error.is_some() {
        return vec![];
    }
    let level = match report.devices.iter().any(|device| device.usable) {
        true => Level::Warning,
        false => Level::Error,
    };
    let kernel = report.host.kernel_devices.iter();
    let unlisted = kernel.filter(|kernel| report.device(&kernel.name).is_none());
    let found = unlisted.map(|kernel| {
        let name = &kernel.name;
        let finding = if let Some(node) = &kernel.node {
            let problem = format!(
                "The kernel has the RDMA device {name}, at {}, but libibverbs has no driver for it.",
                node.path.display()
            );
            Finding::new(level, "driver_missing", problem).mend(
                "Install the drivers of rdma-core; on Debian, and on Fedora and the like:",
                &["apt-get install ibverbs-providers", "dnf install libibverbs"],
            )
        } else {
            let problem = format!(
                "The kernel has the RDMA device {name}, but programs can't open it: there is no \
                 /dev/infiniband/uverbs* for it here."
            );
            let finding = Finding::new(level, "device_node_missing", problem);
            match report.host.container {
                Some(_) => finding.mend("Start the container with the devices:", &WITH_DEVICES),
                None => finding.mend(
                    "Load the module that makes it, as root:",
                    &["modprobe ib_uverbs"],
                ),
            }
        };
        finding
            .about(name)
            .or(OVER_SOFTVERBS, &SOFTVERBS)
    });
    found.collect()
}

/// Adds a device of the first free name.
fn rxe_on(report: &Report, interface: &str) -> String {
    let taken = |name: &String| report.devices.iter().any(|device| device.name == *name);
    let mut names = (0..).map(|number| format!("rxe{number}"));
    let name = names.find(|name| !taken(name)).unwrap_or_default();
    format!("rdma link add {name} type rxe netdev {interface}")
}

fn rdma_cm(report: &Report) -> Option<Finding> {
    if report.libraries.softverbs || report.devices.is_empty() {
        return None;
    }
    let Some(node) = &report.host.rdma_cm else {
        let problem = "There is no /dev/infiniband/rdma_cm, without which no connection is made.";
        let finding = Finding::new(Level::Error, "no_rdma_cm", problem);
        return Some(if report.host.container.is_some() {
            finding.mend("Start the container with it:", &WITH_DEVICES)
        } else {
            finding.mend(
                "Load the module that makes it, as root:",
                &["modprobe rdma_ucm"],
            )
        });
    };
    (!node.accessible).then(|| no_permission(report, "librdmacm", node))
}

/// A node that this user may not open.
fn no_permission(report: &Report, what: &str, node: &Node) -> Finding {
    let path = node.path.to_string_lossy();
    let (uid, mode) = (report.host.uid, &node.mode);
    let problem = format!(
        "{what} can't be used by this user (uid {uid}): {path} is of uid {}, gid {}, mode {mode}.",
        node.uid, node.gid
    );
    let finding = Finding::new(Level::Error, "no_permission", problem).about(path.clone());
    let group = u32::from_str_radix(mode, 8).is_ok_and(|mode| mode & 0o060 == 0o060);
    if group && node.gid != 0 {
        let join = format!("sudo usermod -aG \"$(stat -c %G {path})\" \"$USER\"");
        finding.mend("Join the group of the file, and log in anew:", &[&join])
    } else {
        finding.mend(
            "Let every user at it, as the udev rules of rdma-core do when a device appears:",
            &["sudo chmod 666 /dev/infiniband/uverbs* /dev/infiniband/rdma_cm"],
        )
    }
}

fn of_device(report: &Report, device: &DeviceReport, connects: bool) -> Vec<Finding> {
    // What spoils one device is no error as long as there is another to use.
    let other = report.devices.iter().any(|device| device.usable) && !report.asked();
    let level = if other { Level::Warning } else { Level::Error };
    let name = &*device.name;
    let mut found = vec![];
    if let Some(failure) = &device.error {
        let mut kernel = report.host.kernel_devices.iter();
        let node = kernel
            .find(|kernel| kernel.name == name)
            .and_then(|kernel| kernel.node.as_ref());
        let why = cause(&failure.why);
        let log = format!("dmesg | grep -i -e rdma -e {name}");
        let log = ["Ask the kernel's log for the cause:", &log];
        let finding = match (failure.step, node) {
            (Step::Open, Some(node)) if !node.accessible => Finding {
                level,
                ..no_permission(report, name, node)
            },
            (Step::Open, _) => {
                let problem = format!("{name} can't be opened: {why}.");
                let finding = Finding::new(level, "device_not_opened", problem);
                match report.host.container {
                    Some(_) => finding.mend("Start the container with the devices:", &WITH_DEVICES),
                    None => finding.mend(log[0], &log[1..]),
                }
            }
            (Step::Register, _) => {
                let problem = format!("Not even a page of memory can be registered: {why}.");
                let finding = Finding::new(level, "memory_not_registered", problem);
                // The finding about the limit has the remedy.
                match memlock(report) {
                    Some(_) => finding,
                    None => finding.mend(log[0], &log[1..]),
                }
            }
            (Step::Query | Step::Peer, _) => {
                let problem = format!("librpma can't work with {name}: {why}.");
                Finding::new(level, "device_fails", problem).mend(log[0], &log[1..])
            }
        };
        found.push(finding.about(name));
        return found;
    }
    found.extend(ports(report, device, level));
    if device.addresses.is_empty() && connects {
        found.push(no_address(report, device, level));
    }
    if device.transport == IWARP {
        found.push(iwarp(report, device));
    } else {
        found.extend(flush(report, device));
        found.extend(atomic_write(report, device));
    }
    found.extend(odp(report, device));
    found
}

const IWARP: &str = "iWARP";
const ETHERNET: &str = "Ethernet";

/// The network interface of a device, as far as it is known.
fn interface<'a>(report: &'a Report, device: &'a DeviceReport) -> &'a str {
    let mut gids = device.ports.iter().flat_map(|port| &port.gids);
    let of_gid = gids.find_map(|gid| gid.interface.as_deref());
    let mut kernel = report.host.kernel_devices.iter();
    let of_kernel = || {
        let kernel = kernel.find(|kernel| kernel.name == device.name)?;
        kernel.interfaces.first().map(|name| &**name)
    };
    of_gid.or_else(of_kernel).unwrap_or("INTERFACE")
}

fn ports(report: &Report, device: &DeviceReport, level: Level) -> Vec<Finding> {
    let name = &*device.name;
    if device.ports.is_empty() {
        let problem = format!("{name} tells of no port.");
        return vec![Finding::new(level, "no_port", problem).about(name)];
    }
    let any = device.ports.iter().any(|port| port.state == ACTIVE);
    let level = if any { Level::Note } else { level };
    let down = |port: &&Port| port.state != ACTIVE;
    let of_port = |port: &Port| {
        let problem = format!(
            "Port {} of {name} is {} (physical state: {}).",
            port.number, port.state, port.physical_state
        );
        let finding = Finding::new(level, "port_not_active", problem).about(name);
        if port.link_layer == ETHERNET {
            let up = format!("ip link set dev {} up", interface(report, device));
            finding.mend(
                "Bring its network interface up, as root, and see to cable and switch:",
                &[&up],
            )
        } else if port.state == "down" {
            finding.mend("See to cable and switch.", &[])
        } else {
            finding.mend(
                "A subnet manager has to bring the port up: one of the fabric's switches, or a host \
                 that runs:",
                &["opensm"],
            )
        }
    };
    let mut found: Vec<_> = device.ports.iter().filter(down).map(of_port).collect();
    let v1_only = device
        .ports
        .iter()
        .any(|port| !port.gids.is_empty() && port.gids.iter().all(|gid| gid.kind == "RoCE v1"));
    if v1_only {
        let problem = "The device has GIDs of RoCE v1 alone: it reaches hosts on the same Ethernet \
                       segment, and none behind a router.";
        found.push(Finding::new(Level::Note, "roce_v1_only", problem).about(name));
    }
    found
}

fn no_address(report: &Report, device: &DeviceReport, level: Level) -> Finding {
    let name = &*device.name;
    let interface = interface(report, device);
    let new = |problem: String| Finding::new(level, "no_address", problem).about(name);
    let up = format!("ip link set dev {interface} up");
    // It may have one that failed to be bound to.
    let mut addresses = report.addresses.iter();
    let refused = addresses.find_map(|address| {
        let of_device = address.interface.as_deref() == Some(interface);
        let why = address.error.as_ref().filter(|_| of_device)?;
        Some((&address.address, cause(why)))
    });
    if let Some((address, why)) = refused {
        let problem = format!(
            "{name} serves no address of this host, although its network interface {interface} has \
             {address}: {why}."
        );
        let show = format!("ibv_devinfo -v -d {name}");
        let how = "See whether the link is up, and the address among the GIDs of the device:";
        return new(problem).mend(how, &[&up, &show]);
    }
    let finding = new(format!(
        "{name} serves no address of this host, and librpma finds a device by its address alone."
    ));
    let add = format!("ip addr add ADDRESS/PREFIX dev {interface}");
    let infiniband = device
        .ports
        .iter()
        .any(|port| port.link_layer == "InfiniBand");
    if infiniband {
        let how = "Give its IP interface (IPoIB) an address, as root:";
        finding.mend(how, &["modprobe ib_ipoib", &add])
    } else {
        let how = "Give its network interface an address, as root:";
        finding.mend(how, &[&add, &up])
    }
}

fn iwarp(report: &Report, device: &DeviceReport) -> Finding {
    let problem = "iWARP has neither FLUSH nor ATOMIC WRITE: librpma flushes by an RDMA READ, which \
                   makes what was written visible, and not by itself persistent, and sends an \
                   atomic write as an ordinary one behind a fence. Memory to read into is open for \
                   writing by the other side too, as iWARP demands.";
    let finding = Finding::new(Level::Note, "iwarp", problem).about(&device.name);
    persistence(
        report,
        finding,
        "without --iwarp and SOFTVERBS_TRANSPORT=iwarp",
    )
}

const DIRECT_WRITE: &str = "For persistence, see to it that writes of the device that has the persistent memory get there \
     past the processor's caches (on Intel: DDIO switched off for its slot) or that these survive a \
     loss of power (eADR); then let that side say so, by rpma_peer_cfg_set_direct_write_to_pmem(3).";

/// What keeps librpma from an operation that the device has.
fn unused(
    report: &Report,
    device: &DeviceReport,
    operation: Operation,
    (code, what, since): (&'static str, &str, u32),
) -> Finding {
    let name = &*device.name;
    if operation.libibverbs == Some(false) {
        let release = report
            .libraries
            .libibverbs
            .version
            .as_deref()
            .unwrap_or("old");
        let problem =
            format!("The device has {what}, but libibverbs ({release}) can't ask for it.");
        return Finding::new(Level::Warning, code, problem)
            .about(name)
            .mend(format!("Install rdma-core {since} or newer."), &[]);
    }
    let problem =
        format!("Device and libibverbs have {what}, but the librpma loaded does not use it.");
    Finding::new(Level::Warning, code, problem)
        .about(name)
        .mend(
            "Lead the program to a librpma that does, such as 1.4.0:",
            &["LD_LIBRARY_PATH=DIRECTORY PROGRAM"],
        )
}

fn flush(report: &Report, device: &DeviceReport) -> Option<Finding> {
    const CODE: &str = "no_native_flush";
    let name = &*device.name;
    if device.flush.librpma {
        return None;
    }
    if device.flush.device {
        return Some(unused(
            report,
            device,
            device.flush,
            (CODE, "the native FLUSH", FLUSH_SINCE),
        ));
    }
    let problem = "The device has no native FLUSH: librpma flushes by an RDMA READ, which makes \
                   what was written visible, and not by itself persistent.";
    let finding = Finding::new(Level::Note, CODE, problem).about(name);
    Some(persistence(
        report,
        finding,
        "without --no-flush and SOFTVERBS_FLUSH=off",
    ))
}

/// The way to persistence where flushes are RDMA READs; of softverbs, how it is to be run.
fn persistence(report: &Report, finding: Finding, softverbs: &str) -> Finding {
    if report.libraries.softverbs {
        finding.mend(
            "Over softverbs, only the native FLUSH makes anything persistent:",
            &[&format!("softverbs run -- PROGRAM   # {softverbs}")],
        )
    } else if report
        .host
        .persistent_memory
        .persistence_domains
        .iter()
        .any(|it| it == "cpu_cache")
    {
        finding.mend(
            "The processor's caches of this host survive a loss of power (persistence_domain: \
             cpu_cache), so it may say so, by rpma_peer_cfg_set_direct_write_to_pmem(3).",
            &[],
        )
    } else {
        finding.mend(DIRECT_WRITE, &[])
    }
}

fn atomic_write(report: &Report, device: &DeviceReport) -> Option<Finding> {
    const CODE: &str = "no_native_atomic_write";
    let name = &*device.name;
    if device.atomic_write.librpma {
        return None;
    }
    if device.atomic_write.device {
        return Some(unused(
            report,
            device,
            device.atomic_write,
            (CODE, "the native ATOMIC WRITE", ATOMIC_WRITE_SINCE),
        ));
    }
    let problem = "The device has no native ATOMIC WRITE: librpma sends the 8 bytes as an ordinary \
                   write behind a fence, which is as atomic as the device writes them to memory.";
    Some(Finding::new(Level::Note, CODE, problem).about(name))
}

fn odp(report: &Report, device: &DeviceReport) -> Option<Finding> {
    let name = &*device.name;
    if device.odp.librpma {
        return None;
    }
    let problem = "The device does not page on demand (ODP) for RDMA READ and WRITE: memory of \
                   files on a DAX filesystem can't be registered; that of a DAX device can.";
    let finding = Finding::new(Level::Note, "no_odp", problem).about(name);
    if report.libraries.softverbs {
        let on = "softverbs run -- PROGRAM   # without --no-odp and SOFTVERBS_ODP=off";
        return Some(finding.mend("It is switched off:", &[on]));
    }
    let mounts = &report.host.persistent_memory.dax_filesystems;
    let Some(mount) = mounts.first() else {
        return Some(finding);
    };
    let how = format!(
        "Make a DAX device of the namespace behind {}, which drops what is on it:",
        mount.path.display()
    );
    let make = "ndctl create-namespace --force --mode=devdax --reconfig=NAMESPACE";
    let finding = finding.mend(how, &[make]);
    Some(Finding {
        level: Level::Warning,
        ..finding
    })
}

/// Why an address that was asked for will not do.
fn not_served(report: &Report, address: &Address, connects: bool) -> Option<Finding> {
    let text = &*address.address;
    let found =
        |code, problem: String| Finding::new(Level::Error, code, problem).about(text.to_owned());
    if address.ip.is_some_and(|ip| ip.is_multicast()) {
        let problem = format!("{text} is a multicast address, to which nobody connects.");
        return Some(found("multicast_address", problem));
    }
    let why = cause(address.error.as_ref()?);
    let Some(whose) = address.whose else {
        if let Some(host) = before_port(text) {
            let problem = format!("{text} can't be looked up: a port is no part of an address.");
            let finding = found("address_not_found", problem);
            return Some(finding.mend(format!("Leave the port out: use {host}."), &[]));
        }
        let problem = format!("{text} can't be looked up: {why}.");
        let finding = found("address_not_found", problem);
        let ask = format!("getent ahosts {text}");
        return Some(finding.mend("Give an address, or a name that the host knows:", &[&ask]));
    };
    if let Some(IpAddr::V6(ip)) = address.ip
        && ip.is_unicast_link_local()
        && !text.contains('%')
    {
        return Some(without_interface(report, address, ip));
    }
    let hopeless = report.devices.is_empty() || !connects;
    if hopeless && whose != Whose::Wildcard {
        // That has been said, and nothing about the address would help.
        return None;
    }
    let interface = address.interface.as_deref();
    let behind = report
        .devices
        .iter()
        .find(|device| interface.is_some() && interface == Some(self::interface(report, device)));
    Some(match (whose, behind, interface) {
        (Whose::Wildcard, ..) => {
            let problem = format!("{text} stands for every address, and so for no device.");
            instead(report, found("wildcard_address", problem))
        }
        (Whose::Loopback, ..) => {
            let problem = format!("{text} is a loopback address, which no RDMA device serves.");
            let finding = instead(report, found("address_not_served", problem));
            finding.or(OVER_SOFTVERBS, &SOFTVERBS)
        }
        (Whose::Local, Some(device), Some(interface)) => {
            let name = &device.name;
            let gid = address.ip.map(|ip| match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().to_string(),
                IpAddr::V6(ip) => ip.to_string(),
            });
            let mut gids = device.ports.iter().flat_map(|port| &port.gids);
            let reason = match gids.any(|it| Some(&it.gid) == gid.as_ref()) {
                true => "",
                false => "it has no GID for it; ",
            };
            let problem = format!(
                "{name} is behind {interface}, but does not serve {text}: {reason}librpma says: \
                 {why}."
            );
            instead(report, found("address_not_served", problem)).mend(
                "See whether the address is in use and the link up:",
                &[
                    &format!("ip addr show dev {interface}"),
                    &format!("ibv_devinfo -v -d {name}"),
                ],
            )
        }
        (Whose::Local, _, interface) => {
            let interface = interface.unwrap_or("INTERFACE");
            let problem = format!("No RDMA device stands behind {interface}, which has {text}.");
            let finding = instead(report, found("address_not_served", problem));
            let how = format!("Put the kernel's software device on {interface}, as root:");
            finding.or(&how, &["modprobe rdma_rxe", &rxe_on(report, interface)])
        }
        (Whose::Remote, behind, interface) => {
            let way = match (interface, address.source, behind) {
                (Some(interface), Some(source), None) => format!(
                    " The way there leads from {source} over {interface}, which no RDMA device \
                     stands behind."
                ),
                (Some(interface), Some(source), Some(_)) => {
                    format!(" The way there leads from {source} over {interface}.")
                }
                _ => " There is no way there.".into(),
            };
            let problem = format!("{text} can't be reached by RDMA: {why}.{way}");
            found("address_not_reached", problem).mend(
                "See how this host reaches it, and whether it answers:",
                &[&format!("ip route get {text}"), &format!("ping {text}")],
            )
        }
    })
}

/// The host of an address that has a port behind it.
fn before_port(text: &str) -> Option<&str> {
    let (host, port) = text.rsplit_once(':')?;
    let port = !port.is_empty() && port.bytes().all(|c| c.is_ascii_digit());
    let bare = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    let host = bare.or((!host.contains(':')).then_some(host))?;
    (port && !host.is_empty()).then_some(host)
}

/// An address that every link may have, without the one that is meant.
fn without_interface(report: &Report, address: &Address, ip: Ipv6Addr) -> Finding {
    let text = &*address.address;
    let mine = address.whose == Some(Whose::Local);
    let own = report.own.iter();
    let interfaces: BTreeSet<_> = own
        .filter(|own| match mine {
            true => own.ip == ip,
            false => own.up && !own.loopback,
        })
        .map(|own| format!("{ip}%{}", own.interface))
        .collect();
    let problem = format!("{text} is of one link alone, and does not say by which interface.");
    let finding = Finding::new(Level::Error, "address_without_interface", problem).about(text);
    let interfaces: Vec<_> = interfaces.into_iter().collect();
    match interfaces.is_empty() {
        true => finding,
        false => finding.mend(format!("Use {}.", interfaces.join(" or ")), &[]),
    }
}

/// Names the addresses to use.
fn instead(report: &Report, finding: Finding) -> Finding {
    let served = report.devices.iter().filter(|device| device.usable);
    let served: Vec<_> = served
        .flat_map(|device| {
            let of = |address| format!("{address} ({})", device.name);
            // Those of one link alone are nothing to be told.
            let addresses = device.addresses.iter();
            addresses.filter(|it| !it.contains('%')).map(of)
        })
        .collect();
    match &served[..] {
        [] => finding,
        [first @ .., last] if !first.is_empty() => {
            finding.mend(format!("Use {} or {last}.", first.join(", ")), &[])
        }
        [only, ..] => finding.mend(format!("Use {only}."), &[]),
    }
}

/// Where all of the host is looked at, what people try first is worth a word.
fn loopback(report: &Report) -> Option<Finding> {
    let usable = report.devices.iter().any(|device| device.usable);
    let unserved = |address: &&Address| {
        address.whose == Some(Whose::Loopback) && address.device.is_none() && usable
    };
    let address = &report.addresses.iter().find(unserved)?.address;
    let problem = format!(
        "No RDMA device serves loopback addresses such as {address}: two programs on this host meet \
         at another of its addresses."
    );
    let finding = Finding::new(Level::Note, "loopback_not_served", problem).about(address);
    Some(instead(report, finding))
}

fn memlock(report: &Report) -> Option<Finding> {
    let limit = &report.host.memlock;
    let soft = limit.soft_bytes?;
    if report.libraries.softverbs || !limit.enforced || soft >= report.host.memory_bytes {
        return None;
    }
    let show = |limit: Option<u64>| limit.map_or("none".into(), bytes);
    let problem = format!(
        "A process of this user can register {} of memory altogether (RLIMIT_MEMLOCK; hard limit: \
         {}). More fails with \"Cannot allocate memory\".",
        bytes(soft),
        show(limit.hard_bytes)
    );
    let mut finding = Finding::new(Level::Warning, "memlock_low", problem);
    let page = rustix::param::page_size() as u64;
    if soft < page {
        finding.level = Level::Error;
    }
    let raise = match limit.hard_bytes {
        None => Some("ulimit -l unlimited".to_owned()),
        Some(hard) if hard > soft => Some(format!("ulimit -l {}", hard / 1024)),
        Some(_) => None,
    };
    if let Some(raise) = &raise {
        finding = finding.mend("In the shell, before the program is started:", &[raise]);
    }
    Some(
        finding
            .mend(
                "For users who log in, as root; it holds from the next login on:",
                &["echo '* - memlock unlimited' >/etc/security/limits.d/rdma.conf"],
            )
            .mend(
                "For a service of systemd, by 'systemctl edit SERVICE':",
                &["[Service]", "LimitMEMLOCK=infinity"],
            )
            .mend(
                "For a container:",
                &["docker run --ulimit memlock=-1 IMAGE"],
            ),
    )
}

/// What a process may usually open, and more than a few connections need.
const USUAL_FILES: u64 = 1024;

/// Whether something could not be looked at for want of descriptors.
fn out_of_files(report: &Report) -> bool {
    let devices = report.devices.iter().filter_map(|it| it.error.as_ref());
    let addresses = report.addresses.iter().filter_map(|it| it.error.as_ref());
    let mut causes = devices
        .map(|failure| &failure.why)
        .chain(addresses)
        .chain(&report.devices_error);
    // Not those of the whole system, which no limit of the process is about.
    causes.any(|why| why.contains("Too many open files") && !why.contains("in system"))
}

fn nofile(report: &Report) -> Option<Finding> {
    let limit = &report.host.nofile;
    let out = out_of_files(report);
    let soft = limit.soft.filter(|soft| out || *soft < USUAL_FILES)?;
    let (level, problem) = match out {
        true => (
            Level::Error,
            format!(
                "A process of this user can open {soft} files (RLIMIT_NOFILE), which is too few to \
                 look at the devices and addresses: \"Too many open files\"."
            ),
        ),
        false => (
            Level::Warning,
            format!(
                "A process of this user can open {soft} files (RLIMIT_NOFILE), and each connection \
                 takes 2 or 3 descriptors. More fails with \"Too many open files\"."
            ),
        ),
    };
    let raise = limit.hard.map_or(USUAL_FILES, |hard| hard.min(USUAL_FILES));
    let finding = Finding::new(level, "nofile_low", problem);
    Some(if raise > soft {
        let raise = format!("ulimit -n {raise}");
        finding.mend("In the shell, before the program is started:", &[&raise])
    } else {
        let write = "echo '* - nofile 65536' >/etc/security/limits.d/nofile.conf";
        finding.mend(
            "For users who log in, as root; it holds from the next login on:",
            &[write],
        )
    })
}

fn persistent_memory(report: &Report) -> Vec<Finding> {
    let devices = report.host.persistent_memory.dax_devices.iter();
    let closed = devices.filter(|device| !device.node.accessible);
    let found = closed.map(|device| {
        let path = device.node.path.to_string_lossy();
        let problem = format!(
            "The persistent memory {path} can't be opened by this user (uid {}): it is of uid {}, \
             gid {}, mode {}.",
            report.host.uid, device.node.uid, device.node.gid, device.node.mode
        );
        Finding::new(Level::Warning, "pmem_no_permission", problem)
            .about(path.clone())
            .mend(
                "Give it to this user, as root:",
                &[&format!("chown {} {path}", report.host.uid)],
            )
    });
    found.collect()
}
