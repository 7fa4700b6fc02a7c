//! Addresses, whose they are, and which device serves them.

use crate::rpma::{self, Device};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use serde::Serialize;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs as _, UdpSocket};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// How long a name is looked up.
const LOOKUP: Duration = Duration::from_secs(10);

/// An address of this host, or one that was asked for.
#[derive(Debug, Clone, Serialize)]
pub struct Address {
    /// As it was asked for, or as a program is to be given it.
    pub address: String,
    /// Whether it was asked for.
    pub asked: bool,
    /// What a host name stands for, and what is looked at in its place.
    pub ip: Option<IpAddr>,
    pub whose: Option<Whose>,
    /// The interface that has it, or that leads there.
    pub interface: Option<String>,
    /// This host's address on the way to that of another.
    pub source: Option<IpAddr>,
    /// The device by which librpma reaches it.
    pub device: Option<String>,
    /// Why there is none: what librpma says, or the resolver.
    pub error: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Whose {
    /// This host's alone.
    Loopback,
    /// This host's.
    Local,
    /// Another host's, or nobody's.
    Remote,
    /// Any of this host's.
    Wildcard,
}

/// An address of an interface of this host.
#[derive(Debug, Clone)]
pub struct Own {
    pub ip: IpAddr,
    pub interface: String,
    pub loopback: bool,
    pub up: bool,
}

/// The addresses of this host, those of loopback interfaces last.
#[must_use]
pub fn own() -> Vec<Own> {
    let entries = getifaddrs().into_iter().flatten();
    let mut found: Vec<Own> = entries
        .filter_map(|entry| {
            let address = entry.address?;
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            let v6 = || address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip()));
            Some(Own {
                ip: v4.or_else(v6)?,
                loopback: entry.flags.contains(InterfaceFlags::IFF_LOOPBACK),
                up: entry.flags.contains(InterfaceFlags::IFF_UP),
                interface: entry.interface_name,
            })
        })
        .collect();
    found.sort_by_key(|own| own.loopback);
    found
}

impl Own {
    /// As a program is to be given it: one that is of one link alone needs the interface too.
    fn text(&self) -> String {
        match self.ip {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => format!("{ip}%{}", self.interface),
            ip => ip.to_string(),
        }
    }
}

impl Address {
    /// One of this host.
    #[must_use]
    pub fn of_host(own: &Own) -> Self {
        let mut address = Self::new(own.text(), false);
        address.ip = Some(own.ip);
        address.whose = Some(if own.loopback {
            Whose::Loopback
        } else {
            Whose::Local
        });
        address.interface = Some(own.interface.clone());
        address.find_device();
        address
    }

    /// One that the user asks about.
    #[must_use]
    pub fn asked_for(text: &str, own: &[Own]) -> Self {
        let mut address = Self::new(text.to_owned(), true);
        match resolve(text) {
            Ok(found) => {
                address.ip = Some(found.ip());
                address.place(found, own);
                address.find_device();
            }
            Err(why) => address.error = Some(why),
        }
        address
    }

    fn new(address: String, asked: bool) -> Self {
        Self {
            address,
            asked,
            ip: None,
            whose: None,
            interface: None,
            source: None,
            device: None,
            error: None,
        }
    }

    /// Finds out whose it is, and the way there.
    fn place(&mut self, address: SocketAddr, own: &[Own]) {
        // An IPv4 address may be given as one of IPv6.
        let ip = address.ip().to_canonical();
        let mine = own.iter().find(|own| own.ip == ip);
        self.interface = mine.map(|own| own.interface.clone());
        self.whose = Some(match ip {
            ip if ip.is_loopback() => Whose::Loopback,
            ip if ip.is_unspecified() => Whose::Wildcard,
            _ if mine.is_some() => Whose::Local,
            _ => Whose::Remote,
        });
        if self.whose == Some(Whose::Remote) {
            self.source = source(address);
            let way = own.iter().find(|own| Some(own.ip) == self.source);
            self.interface = way.map(|own| own.interface.clone());
        }
    }

    /// Asks the library.
    fn find_device(&mut self) {
        let found = match self.whose {
            Some(Whose::Remote) => Device::remote(&self.address),
            _ => Device::local(&self.address),
        };
        match found {
            Ok(device) => self.device = Some(device.name()),
            Err(error) => self.error = Some(why(&error)),
        }
    }
}

/// What the library says.
pub(super) fn why(error: &rpma::Error) -> String {
    match &error.log[..] {
        [] => format!("{}(): {}", error.call, rpma::explain(error.code)),
        lines => lines.join("; "),
    }
}

/// What an address or a host name stands for.
fn resolve(text: &str) -> Result<SocketAddr, String> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok((ip, 0).into());
    }
    // The resolver may ask servers that do not answer, for longer than anybody waits.
    let (sender, receiver) = mpsc::channel();
    let name = text.to_owned();
    let look_up = move || {
        let found = (name.as_str(), 0).to_socket_addrs();
        let _ = sender.send(found.map(|mut all| all.next()));
    };
    if let Err(error) = thread::Builder::new().spawn(look_up) {
        return Err(format!("no thread to look it up in: {error}"));
    }
    match receiver.recv_timeout(LOOKUP) {
        Ok(Ok(Some(address))) => Ok(address),
        Ok(Ok(None)) => Err("the resolver knows no address of it".into()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Err(format!(
            "the resolver has not answered within {} s",
            LOOKUP.as_secs()
        )),
    }
}

/// The address that this host would send from; no packet is sent to find it.
fn source(to: SocketAddr) -> Option<IpAddr> {
    let any: SocketAddr = match to {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, 0, 0, 0).into(),
    };
    const DISCARD: u16 = 9;
    let mut to = to;
    to.set_port(DISCARD);
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(to).ok()?;
    Some(socket.local_addr().ok()?.ip())
}
