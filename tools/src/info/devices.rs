//! Devices: what they can do, and what librpma makes of it.

use super::addresses::why;
use super::facts::{ACTIVE, Limits, Odp, Port};
use super::verbs::{self, Open};
use crate::rpma::{Backing, Device, Memory, Peer, Region, Usage, sys};
use serde::Serialize;
use std::io;
use verbs_ext::{ATOMIC_WRITE_SINCE, FLUSH_SINCE};

/// One that libibverbs lists.
#[derive(Debug, Clone, Default, Serialize)]
pub struct DeviceReport {
    pub name: String,
    /// Whether librpma can work with it: it opens, takes memory, and one of its ports is active.
    pub usable: bool,
    /// Why it can't be opened, or what librpma says where it can't work with it.
    pub error: Option<Failure>,
    pub transport: &'static str,
    pub firmware: String,
    pub flush: Operation,
    pub atomic_write: Operation,
    pub odp: Odp,
    pub limits: Limits,
    pub ports: Vec<Port>,
    /// Of this host, those that it serves.
    pub addresses: Vec<String>,
}

/// What failed.
#[derive(Debug, Clone, Serialize)]
pub struct Failure {
    pub step: Step,
    pub why: String,
    /// Where it is known.
    pub errno: Option<i32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// `ibv_open_device()`
    Open,
    /// `ibv_query_device_ex()`
    Query,
    /// `rpma_peer_new()`
    Peer,
    /// `rpma_mr_reg()` of one page
    Register,
}

/// An operation that not every device has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Operation {
    /// Whether the device has it.
    pub device: bool,
    /// Whether libibverbs has; null where that can't be known.
    pub libibverbs: Option<bool>,
    /// Whether librpma uses it; else it has a stand-in.
    pub librpma: bool,
}

impl DeviceReport {
    /// All that libibverbs lists; an error of its own if it can't.
    pub fn all(rdma_core_release: Option<u32>) -> io::Result<Vec<Self>> {
        let found = verbs::open_all()?.into_iter();
        Ok(found
            .map(|(name, opened)| {
                let mut report = Self {
                    name,
                    ..Self::default()
                };
                report.error = match opened {
                    Ok(device) => report.fill(&device, rdma_core_release).err(),
                    Err(error) => Some(Failure::of(Step::Open, &error)),
                };
                let active = report.ports.iter().any(|port| port.state == ACTIVE);
                report.usable = report.error.is_none() && active;
                report
            })
            .collect())
    }

    fn fill(&mut self, device: &Open, release: Option<u32>) -> Result<(), Failure> {
        let since = |first| release.map(|release| release >= first);
        self.transport = device.transport();
        let facts = device
            .query()
            .map_err(|error| Failure::of(Step::Query, &error))?;
        self.firmware = facts.firmware;
        self.limits = facts.limits;
        self.odp = facts.odp;
        self.flush.device = facts.flush;
        self.flush.libibverbs = since(FLUSH_SINCE);
        self.atomic_write.device = facts.atomic_write;
        self.atomic_write.libibverbs = since(ATOMIC_WRITE_SINCE);
        self.ports = device.ports(facts.ports);
        self.try_out(device.device())
    }

    /// Goes as far as a program does before it connects, and hears what the library makes of it.
    fn try_out(&mut self, device: Device) -> Result<(), Failure> {
        let failed = |step| move |error| Failure::of_librpma(step, &error);
        self.odp.librpma = device.pages_on_demand().map_err(failed(Step::Query))?;
        let (peer, said) = Peer::with_remarks(device);
        let peer = peer.map_err(failed(Step::Peer))?;
        let used = Native {
            flush: self.flush.device,
            atomic_write: self.atomic_write.device,
        }
        .used(&said);
        self.flush.librpma = used.flush;
        self.atomic_write.librpma = used.atomic_write;

        let page = rustix::param::page_size();
        let memory = Memory::new(page, Backing::Dram, page)
            .map_err(|error| Failure::of(Step::Register, &error))?;
        let usage = sys::RPMA_MR_USAGE_READ_SRC
            | sys::RPMA_MR_USAGE_READ_DST
            | sys::RPMA_MR_USAGE_WRITE_SRC
            | sys::RPMA_MR_USAGE_WRITE_DST;
        Region::new(&peer, memory, Usage(usage)).map_err(failed(Step::Register))?;
        Ok(())
    }
}

/// Which of the operations there are that not every device has.
#[derive(Debug, Clone, Copy)]
pub struct Native {
    pub flush: bool,
    pub atomic_write: bool,
}

impl Native {
    /// Those of a device that librpma uses; None where it can't be found out.
    #[must_use]
    pub fn of(device: Device) -> Option<Self> {
        let facts = Open::from(device).query().ok()?;
        let (peer, said) = Peer::with_remarks(device);
        peer.ok()?;
        let has = Self {
            flush: facts.flush,
            atomic_write: facts.atomic_write,
        };
        Some(has.used(&said))
    }

    /// Those of what the device has that librpma uses, by what it remarked on the device.
    fn used(self, said: &[String]) -> Self {
        let lacks = |operation: &str| {
            let remark = format!("{operation} is not supported");
            said.iter()
                .any(|line| line.to_ascii_lowercase().contains(&remark))
        };
        let atomic_write = self.atomic_write && !lacks("atomic write");
        // The original 1.2.0 knows neither, and says so of atomic write alone.
        let knows = atomic_write || !self.atomic_write;
        Self {
            flush: self.flush && knows && !lacks("flush"),
            atomic_write,
        }
    }
}

impl Failure {
    fn of(step: Step, error: &io::Error) -> Self {
        Self {
            step,
            why: error.to_string(),
            errno: error.raw_os_error(),
        }
    }

    fn of_librpma(step: Step, error: &crate::rpma::Error) -> Self {
        Self {
            step,
            why: why(error),
            errno: None,
        }
    }
}
