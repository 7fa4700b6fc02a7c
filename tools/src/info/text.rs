//! The report for people, and for programs.

use super::addresses::{Address, Own, Whose};
use super::devices::{DeviceReport, Operation};
use super::facts::Port;
use super::finding::{Finding, Level};
use super::report::{Library, Report};
use super::words::bytes;
use std::fmt::Write as _;

/// Where lines end, on a terminal as elsewhere.
const WIDTH: usize = 80;
/// Where values begin.
const COLUMN: usize = 17;

impl Report {
    /// # Panics
    /// Never: all of it is text and numbers.
    #[must_use]
    pub fn json(&self) -> String {
        let text = serde_json::to_string_pretty(self);
        text.expect("text and numbers can be written") + "\n"
    }

    #[must_use]
    pub fn text(&self) -> String {
        let mut page = Page(String::new());
        page.head("Libraries");
        page.line("librpma", &library(&self.libraries.librpma));
        page.line("libibverbs", &library(&self.libraries.libibverbs));
        page.line("librdmacm", &library(&self.libraries.librdmacm));
        for device in self.devices_shown() {
            self.device_text(&mut page, device);
        }
        page.head("Addresses");
        for address in &self.addresses {
            page.line(&address.address, &self.address(address));
        }
        self.host_text(&mut page);
        page.head("Findings");
        if self.findings.is_empty() {
            page.paragraph("  ", "none");
        }
        for (at, findings) in self.said().enumerate() {
            if at > 0 {
                page.0.push('\n');
            }
            page.findings(findings);
        }
        page.head(&self.verdict());
        page.0.trim_start().to_owned()
    }

    /// The findings, those together that say the same of several devices.
    fn said(&self) -> impl Iterator<Item = &[Finding]> {
        self.findings.chunk_by(|a, b| a.says() == b.says())
    }

    /// The last line, which a terminal shows.
    fn verdict(&self) -> String {
        let count = |level| self.said().filter(|all| all[0].level == level).count();
        let words = |count, word: &str| match count {
            1 => format!("1 {word}"),
            _ => format!("{count} {word}s"),
        };
        let counts = [
            (Level::Error, "error"),
            (Level::Warning, "warning"),
            (Level::Note, "note"),
        ];
        let counts = counts
            .map(|(level, word)| words(count(level), word))
            .join(", ");
        let result = match (self.usable, self.asked()) {
            (true, false) => "A device is usable",
            (true, true) => "Usable",
            (false, _) => "Something will fail",
        };
        format!("{result}: {counts}")
    }

    fn address(&self, address: &Address) -> String {
        let mut text = match address.whose {
            Some(Whose::Loopback) => "loopback".to_owned(),
            Some(Whose::Local) => "this host".to_owned(),
            Some(Whose::Remote) => "another host".to_owned(),
            Some(Whose::Wildcard) => "any address".to_owned(),
            None => "unknown".to_owned(),
        };
        if let Some(ip) = address.ip.filter(|_| address.asked) {
            let ip = ip.to_string();
            if !address.address.starts_with(&ip) {
                let _ = write!(text, ", {ip}");
            }
        }
        if let Some(source) = address.source {
            let _ = write!(text, ", from {source}");
        }
        if let Some(interface) = &address.interface {
            let up = |own: &Own| own.up || own.interface != *interface;
            let down = if self.own.iter().all(up) {
                ""
            } else {
                " (down)"
            };
            let _ = write!(text, ", {interface}{down}");
        }
        let remote = address.whose == Some(Whose::Remote);
        let served = match &address.device {
            Some(device) => {
                let usable = self.device(device).is_some_and(|device| device.usable);
                let verb = if remote { "over" } else { "served by" };
                let but = if usable { "" } else { ", which is not usable" };
                format!("{verb} {device}{but}")
            }
            None if remote => "not reached".into(),
            None => "served by no device".into(),
        };
        format!("{text}: {served}")
    }

    fn device_text(&self, page: &mut Page, device: &DeviceReport) {
        let usable = match device.usable {
            true => "usable",
            false => "not usable",
        };
        page.head(&format!("Device {}: {usable}", device.name));
        if device.limits.max_qp == 0 {
            return;
        }
        let ethernet = device
            .ports
            .iter()
            .any(|port| port.link_layer == "Ethernet");
        let transport = match device.transport {
            "InfiniBand" if ethernet => "InfiniBand over Ethernet (RoCE)",
            other => other,
        };
        page.line("transport", transport);
        if !device.firmware.is_empty() {
            page.line("firmware", &device.firmware);
        }
        let addresses = match &device.addresses[..] {
            [] => "none".into(),
            all => all.join(", "),
        };
        page.line("addresses", &addresses);
        if device.error.is_none() {
            page.line("flush", &operation(device.flush, "FLUSH", "an RDMA READ"));
            let in_place = "a WRITE behind a fence";
            page.line(
                "atomic write",
                &operation(device.atomic_write, "ATOMIC WRITE", in_place),
            );
        }
        let odp = match (device.odp.device, device.odp.librpma) {
            (false, _) => "no".into(),
            (true, used) => format!(
                "{} ({})",
                if used {
                    "yes, used where memory can't be pinned"
                } else {
                    "not enough"
                },
                device.odp.operations.join(", ")
            ),
        };
        page.line("ODP", &odp);
        for port in &device.ports {
            self::port(page, port);
        }
        let limits = &device.limits;
        page.line(
            "queue pairs",
            &format!(
                "{}, each of {} requests of {} pieces",
                limits.max_qp, limits.max_qp_wr, limits.max_sge
            ),
        );
        page.line(
            "completions",
            &format!("{} queues, each of {}", limits.max_cq, limits.max_cqe),
        );
        page.line(
            "shared receives",
            &format!("{} queues, each of {}", limits.max_srq, limits.max_srq_wr),
        );
        page.line(
            "memory",
            &format!(
                "{} regions, each of up to {}",
                limits.max_mr,
                bytes(limits.max_mr_size_bytes)
            ),
        );
        page.line(
            "reads at once",
            &format!(
                "{} to this side, {} from it",
                limits.max_qp_rd_atom, limits.max_qp_init_rd_atom
            ),
        );
    }

    fn host_text(&self, page: &mut Page) {
        let host = &self.host;
        page.head(&format!("Host {}", host.name));
        page.line("kernel", &format!("Linux {}", host.kernel));
        if let Some(container) = &host.container {
            page.line("container", container);
        }
        let limit = |limit: Option<u64>, show: &dyn Fn(u64) -> String| {
            limit.map_or_else(|| "unlimited".to_owned(), show)
        };
        let of = |soft, hard, show: &dyn Fn(u64) -> String| match soft == hard {
            true => limit(soft, show),
            false => format!("{}, up to {}", limit(soft, show), limit(hard, show)),
        };
        let memlock = &host.memlock;
        let mut text = of(memlock.soft_bytes, memlock.hard_bytes, &bytes);
        if self.libraries.softverbs {
            text += " (softverbs pins nothing)";
        } else if !memlock.enforced {
            text += " (not enforced: CAP_IPC_LOCK)";
        }
        page.line("locked memory", &text);
        let files = of(host.nofile.soft, host.nofile.hard, &|limit| {
            limit.to_string()
        });
        page.line("open files", &format!("{files}; a connection takes 2 or 3"));
        if !self.libraries.softverbs {
            let modules = &host.modules;
            let modules = [
                ("ib_core", modules.ib_core),
                ("ib_uverbs", modules.ib_uverbs),
                ("rdma_ucm", modules.rdma_ucm),
                ("rdma_rxe", modules.rdma_rxe),
                ("siw", modules.siw),
            ];
            let loaded = modules.into_iter().filter(|(_, loaded)| *loaded);
            let loaded: Vec<_> = loaded.map(|(name, _)| name).collect();
            page.line("modules", &or_none(&loaded));
            let nodes = host.kernel_devices.iter().flat_map(|device| &device.node);
            let nodes: Vec<_> = nodes
                .chain(&host.rdma_cm)
                .map(|node| match node.accessible {
                    true => node.path.display().to_string(),
                    false => format!("{} (no permission)", node.path.display()),
                })
                .collect();
            page.line("device nodes", &or_none(&nodes));
        }
        let memory = &host.persistent_memory;
        let devices = memory.dax_devices.iter().map(|device| {
            let size = device.size_bytes.map(bytes).unwrap_or_default();
            format!("{} {size}", device.node.path.display())
        });
        let filesystems = memory
            .dax_filesystems
            .iter()
            .map(|mount| format!("{} ({}, FSDAX)", mount.path.display(), mount.kind));
        let domains = memory
            .persistence_domains
            .iter()
            .map(|domain| format!("persistence domain {domain}"));
        let all: Vec<_> = devices.chain(filesystems).chain(domains).collect();
        page.line("pmem", &or_none(&all));
    }
}

fn or_none<T: AsRef<str>>(words: &[T]) -> String {
    match words {
        [] => "none".into(),
        words => words
            .iter()
            .map(AsRef::as_ref)
            .collect::<Vec<_>>()
            .join(", "),
    }
}

fn library(library: &Library) -> String {
    let file = library.file.as_ref().map(|file| file.display().to_string());
    let file = file.unwrap_or_else(|| "not found".into());
    match &library.version {
        Some(version) => format!("{version}, {file}"),
        None => file,
    }
}

fn operation(operation: Operation, native: &str, stand_in: &str) -> String {
    match operation {
        Operation { librpma: true, .. } => format!("native {native}"),
        Operation { device: true, .. } => {
            format!("{stand_in}, although the device has the native {native}")
        }
        _ => format!("{stand_in}, since the device has no native {native}"),
    }
}

fn port(page: &mut Page, port: &Port) {
    let mut text = format!("{}, {}", port.state, port.link_layer);
    if port.mtu_bytes > 0 {
        let _ = write!(text, ", MTU {}", port.mtu_bytes);
    }
    if port.speed_gbit_per_s > 0.0 {
        let _ = write!(text, ", {} Gbit/s", port.speed_gbit_per_s);
    }
    page.line(&format!("port {}", port.number), &text);
    for gid in &port.gids {
        let interface = gid.interface.as_ref().map(|name| format!(", {name}"));
        let text = format!("{}, {}{}", gid.gid, gid.kind, interface.unwrap_or_default());
        page.line(&format!("  GID {}", gid.index), &text);
    }
}

/// An address that is asked for may be anything, and is nothing for a terminal to obey.
fn shown(text: &str) -> String {
    let sign = |sign: char| if sign.is_control() { '\u{fffd}' } else { sign };
    text.chars().map(sign).collect()
}

/// Text that grows.
struct Page(String);

impl Page {
    fn head(&mut self, text: &str) {
        let _ = writeln!(self.0, "\n{text}");
    }

    /// A name and its value.
    fn line(&mut self, name: &str, value: &str) {
        let indent = " ".repeat(2 + COLUMN);
        let name = format!("  {:<COLUMN$}", shown(name));
        // A name that is too long for its column has a line to itself.
        let start = match name.len() > indent.len() {
            true => {
                let _ = writeln!(self.0, "{name}");
                &*indent
            }
            false => &*name,
        };
        self.wrapped(start, &indent, value);
    }

    /// What holds for several devices alike is said once.
    fn findings(&mut self, findings: &[Finding]) {
        let [finding, ..] = findings else { return };
        let level = match finding.level {
            Level::Error => "error",
            Level::Warning => "warning",
            Level::Note => "note",
        };
        let subjects = findings.iter().flat_map(|finding| &finding.subject);
        let unsaid = subjects.filter(|subject| !finding.problem.contains(*subject));
        let about = match &*unsaid.map(|subject| &**subject).collect::<Vec<_>>() {
            [] => String::new(),
            subjects => format!(" ({})", subjects.join(", ")),
        };
        self.paragraph("  ", &format!("{level}{about}: {}", finding.problem));
        for remedy in &finding.remedies {
            self.paragraph("    ", &format!("- {}", remedy.how));
            for command in &remedy.commands {
                let _ = writeln!(self.0, "        {}", shown(command));
            }
        }
    }

    fn paragraph(&mut self, indent: &str, text: &str) {
        self.wrapped(indent, &format!("{indent}  "), text);
    }

    fn wrapped(&mut self, first: &str, others: &str, text: &str) {
        let options = textwrap::Options::new(WIDTH)
            .initial_indent(first)
            .subsequent_indent(others)
            .word_splitter(textwrap::WordSplitter::NoHyphenation)
            .break_words(false);
        for line in textwrap::wrap(&shown(text), options) {
            let _ = writeln!(self.0, "{}", line.trim_end());
        }
    }
}
