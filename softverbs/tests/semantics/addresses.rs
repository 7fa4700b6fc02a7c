//! Addresses and ports: binding to them, and finding the way from one to another.

use crate::common::*;
use rdma_sys::*;
use softverbs::exports::cm::{
    rdma_accept, rdma_bind_addr, rdma_connect, rdma_create_id, rdma_disconnect, rdma_get_dst_port,
    rdma_get_src_port, rdma_listen, rdma_reject, rdma_resolve_addr, rdma_resolve_route,
    rdma_set_option,
};
use std::ffi::c_int;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::ptr;

const ANY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
const LOOPBACK6: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 0);
const ANY6: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);

/// Whether this machine has IPv6 at all.
fn has_ipv6() -> bool {
    std::net::TcpListener::bind(LOOPBACK6).is_ok()
}

// ---- binding ----

#[test]
fn binding_to_addresses_of_this_host() {
    let channel = new_channel();
    let mut addresses = vec![LOOPBACK, ANY, at([127, 3, 4, 5], 0)];
    if has_ipv6() {
        addresses.extend([LOOPBACK6, ANY6]);
    }
    for address in addresses {
        let id = Id::new(&channel);
        good(&format!("rdma_bind_addr {address}"), id.bind(&address));
        let local = id.local();
        assert_eq!(local.ip(), address.ip());
        assert_ne!(local.port(), 0, "{address}: the port");
        assert_eq!(c!(rdma_get_src_port(id.0)), local.port().to_be());
        // A wildcard is of no device in particular.
        let has_device = c!(!(*id.0).verbs.is_null());
        assert_eq!(
            has_device,
            !address.ip().is_unspecified(),
            "{address}: a device"
        );
        fails("a second rdma_bind_addr", id.bind(&address), libc::EINVAL);
    }
}

#[test]
fn binding_to_an_address_that_is_not_of_this_host() {
    let channel = new_channel();
    // TEST-NET-1, RFC 5737, and the documentation prefix, RFC 3849.
    let mut addresses = vec![at([192, 0, 2, 1], 0), at([192, 0, 2, 1], 7777)];
    if has_ipv6() {
        addresses.push("[2001:db8::1]:0".parse().unwrap());
    }
    for address in addresses {
        let id = Id::new(&channel);
        let result = id.bind(&address);
        fails(
            &format!("rdma_bind_addr {address}"),
            result,
            libc::EADDRNOTAVAIL,
        );
    }
}

#[test]
fn binding_to_a_port_that_is_bound() {
    let channel = new_channel();
    let first = Id::new(&channel);
    good("rdma_bind_addr", first.bind(&at([127, 0, 7, 2], 0)));
    let taken = first.local();
    fails(
        "rdma_bind_addr",
        Id::new(&channel).bind(&taken),
        libc::EADDRINUSE,
    );
    // Of another address it is another one; with the wildcard, the same.
    good(
        "rdma_bind_addr",
        Id::new(&channel).bind(&at([127, 0, 7, 3], taken.port())),
    );
    let wildcard = at([0, 0, 0, 0], taken.port());
    fails(
        "rdma_bind_addr",
        Id::new(&channel).bind(&wildcard),
        libc::EADDRINUSE,
    );
    good("rdma_listen", c!(rdma_listen(first.0, 0)));
    fails(
        "rdma_bind_addr",
        Id::new(&channel).bind(&taken),
        libc::EADDRINUSE,
    );
    drop(first);
    // Nor is it otherwise with a port that was asked for.
    let first = Id::new(&channel);
    good("rdma_bind_addr", first.bind(&taken));
    fails(
        "rdma_bind_addr",
        Id::new(&channel).bind(&taken),
        libc::EADDRINUSE,
    );
    fails(
        "rdma_bind_addr",
        Id::new(&channel).bind(&wildcard),
        libc::EADDRINUSE,
    );
    good("rdma_listen", c!(rdma_listen(first.0, 0)));
    fails(
        "rdma_bind_addr",
        Id::new(&channel).bind(&taken),
        libc::EADDRINUSE,
    );
}

#[test]
fn two_ids_share_an_address_where_both_say_so() {
    let channel = new_channel();
    let set = |id: &Id, mut on: c_int| {
        // The level and the name of `RDMA_OPTION_ID_REUSEADDR`.
        c!(rdma_set_option(
            id.0,
            0,
            1,
            (&raw mut on).cast(),
            size_of::<c_int>()
        ))
    };
    let share = |id: &Id| good("rdma_set_option", set(id, 1));
    for late in [false, true] {
        let (first, second) = (Id::new(&channel), Id::new(&channel));
        if !late {
            share(&first);
        }
        good("rdma_bind_addr", first.bind(&LOOPBACK));
        if late {
            share(&first);
        }
        share(&second);
        good("rdma_bind_addr", second.bind(&first.local()));
        fails("rdma_set_option", set(&first, 0), libc::EINVAL);
        // Only one of them can listen.
        good("rdma_listen", c!(rdma_listen(first.0, 0)));
        fails(
            "rdma_listen",
            c!(rdma_listen(second.0, 0)),
            libc::EADDRINUSE,
        );
        fails("rdma_set_option", set(&first, 1), libc::EINVAL);
        // The other one goes on once it has gone.
        drop(first);
        good("rdma_listen", c!(rdma_listen(second.0, 0)));
        let _client = begin(&second.local(), &Setup::default());
        drop(Id(channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id));
    }
}

/// Connections that have ended do not keep a port, but what is bound does.
#[test]
fn a_port_of_ended_connections_is_bound_once() {
    // A child that a test makes beside this one has the sockets until it runs its program.
    alone(|| {
        let listener = TcpListener::bind("127.0.7.4:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut client = TcpStream::connect(address).unwrap();
        // Who ends a connection first has to remember it.
        drop(listener.accept().unwrap());
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        drop((client, listener));
        until("the connection is only remembered", || {
            let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
            let local = format!(" 0407007F:{:04X} ", address.port());
            const TIME_WAIT: &str = " 06 ";
            let mut lines = table.lines();
            lines.any(|line| line[..20].contains(&local) && line.contains(TIME_WAIT))
        });
        let channel = new_channel();
        let first = Id::new(&channel);
        good("rdma_bind_addr", first.bind(&address));
        fails(
            "rdma_bind_addr",
            Id::new(&channel).bind(&address),
            libc::EADDRINUSE,
        );
        // Nor has it any other socket of this host, however much that would share.
        let other = TcpListener::bind(address).map_err(|error| error.kind());
        assert_eq!(other.err(), Some(std::io::ErrorKind::AddrInUse));
        good("rdma_listen", c!(rdma_listen(first.0, 0)));
        let _client = begin(&address, &Setup::default());
        drop(Id(channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id));
    });
}

#[test]
fn what_is_no_address_and_no_port_space_is_refused() {
    let channel = new_channel();
    let id = Id::new(&channel);
    let mut local = libc::sockaddr {
        sa_family: libc::AF_UNIX as u16,
        sa_data: [0; 14],
    };
    for address in [ptr::null_mut(), &raw mut local] {
        let bound = c!(rdma_bind_addr(id.0, address));
        fails("rdma_bind_addr", bound, libc::EINVAL);
        let resolved = c!(rdma_resolve_addr(id.0, ptr::null_mut(), address, 1000));
        fails("rdma_resolve_addr", resolved, libc::EINVAL);
    }
    for (ps, error) in [
        (rdma_port_space::RDMA_PS_UDP, libc::EPROTONOSUPPORT),
        (0x9999, libc::EINVAL),
    ] {
        let mut made = ptr::null_mut();
        let result = c!(rdma_create_id(channel.0, &mut made, ptr::null_mut(), ps));
        fails("rdma_create_id", result, error);
    }
}

#[test]
fn a_port_can_be_had_again_at_once() {
    // A child that a test makes beside this one has the listening socket until it runs its program.
    alone(|| {
        let channel = new_channel();
        // Where nobody else takes it meanwhile.
        let mut address = at([127, 0, 7, 1], 0);
        for round in 0..20 {
            let listener = Id::new(&channel);
            address = listener.listen_at(&address, 0);
            // Connections that the server ends, and so has to remember.
            let client = begin(&address, &Setup::default());
            let server = Id(channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id);
            server.create_small_qp();
            server.accept(&ConnParam::default());
            client.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
            channel.expect(RDMA_CM_EVENT_ESTABLISHED);
            server.disconnect();
            client.channel.expect(RDMA_CM_EVENT_DISCONNECTED);
            client.id.disconnect();
            assert_eq!(
                channel.expect(RDMA_CM_EVENT_DISCONNECTED).id,
                server.0,
                "round {round}"
            );
        }
    });
}

#[test]
fn listening_without_an_address() {
    let channel = new_channel();
    let id = Id::new(&channel);
    good("rdma_listen", c!(rdma_listen(id.0, 1)));
    let port = id.local().port();
    assert_ne!(port, 0);
    let client = begin(&at([127, 0, 0, 1], port), &Setup::default());
    let request = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    assert_eq!(request.listen_id, id.0);
    drop(Id(request.id));
    client.channel.expect(RDMA_CM_EVENT_REJECTED);
}

#[test]
fn addresses_of_both_sides() {
    let mut listens = vec![
        (ANY, Ipv4Addr::LOCALHOST.into()),
        (LOOPBACK, Ipv4Addr::LOCALHOST.into()),
    ];
    if has_ipv6() {
        listens.extend([
            (LOOPBACK6, IpAddr::from(Ipv6Addr::LOCALHOST)),
            (ANY6, Ipv6Addr::LOCALHOST.into()),
            (ANY6, Ipv4Addr::LOCALHOST.into()),
        ]);
    }
    for (listen, ip) in listens {
        let channel = new_channel();
        let listener = Id::new(&channel);
        let port = listener.listen_at(&listen, 0).port();
        let client = begin(&at(ip, port), &Setup::default());
        let server = Id(channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id);
        assert_eq!(client.id.peer(), at(ip, port));
        assert_eq!(client.id.local().ip(), ip);
        assert_ne!(client.id.local().port(), 0);
        assert_eq!(
            (server.local(), server.peer()),
            (client.id.peer(), client.id.local())
        );
        assert_eq!(c!(rdma_get_dst_port(client.id.0)), port.to_be());
        assert_eq!(c!(rdma_get_src_port(server.0)), port.to_be());
        assert_eq!(
            c!(rdma_get_dst_port(server.0)),
            c!(rdma_get_src_port(client.id.0))
        );
        let context = c!((*server.0).context) as usize;
        assert_eq!(context, 0x1234, "the listener's context");
        assert_eq!(c!((*server.0).verbs), c!((*client.id.0).verbs));
        assert_eq!(c!((*server.0).port_num), 1);
    }
}

#[test]
fn an_address_to_connect_from() {
    let listener = Listener::new();
    let channel = new_channel();
    let id = Id::new(&channel);
    let mut from = CAddress::new(&at([127, 5, 6, 7], 0));
    let mut to = CAddress::new(&listener.address);
    let result = c!(rdma_resolve_addr(id.0, from.raw(), to.raw(), 1000));
    good("rdma_resolve_addr", result);
    channel.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    good("rdma_resolve_route", c!(rdma_resolve_route(id.0, 1000)));
    channel.expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
    id.create_small_qp();
    id.connect(&ConnParam::default());
    let request = listener.channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    let server = Id(request.id);
    assert_eq!(server.peer(), id.local());
    assert_eq!(id.local().ip(), IpAddr::from([127, 5, 6, 7]));
}

// ---- resolving ----

#[test]
fn steps_out_of_order_are_refused() {
    let channel = new_channel();
    let id = Id::new(&channel);
    let mut param = ConnParam::default().c();
    fails(
        "rdma_resolve_route",
        c!(rdma_resolve_route(id.0, 1000)),
        libc::EINVAL,
    );
    fails(
        "rdma_connect",
        c!(rdma_connect(id.0, &mut param)),
        libc::EINVAL,
    );
    fails(
        "rdma_accept",
        c!(rdma_accept(id.0, &mut param)),
        libc::EINVAL,
    );
    fails(
        "rdma_reject",
        c!(rdma_reject(id.0, ptr::null(), 0)),
        libc::EINVAL,
    );
    fails("rdma_disconnect", c!(rdma_disconnect(id.0)), libc::EINVAL);
    let listener = Listener::new();
    good("rdma_resolve_addr", id.resolve_addr(&listener.address));
    channel.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    fails(
        "rdma_resolve_addr",
        id.resolve_addr(&listener.address),
        libc::EINVAL,
    );
    fails(
        "rdma_connect",
        c!(rdma_connect(id.0, &mut param)),
        libc::EINVAL,
    );
    fails("rdma_listen", c!(rdma_listen(id.0, 0)), libc::EINVAL);
    good("rdma_resolve_route", c!(rdma_resolve_route(id.0, 1000)));
    channel.expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
    assert!(channel.is_quiet());
    fails(
        "rdma_listen",
        c!(rdma_listen(listener.id.0, 0)),
        libc::EINVAL,
    );
}

#[test]
fn an_address_that_nothing_leads_to() {
    // In a network of its own, where not even the loopback is up.
    alone(|| {
        let flags = libc::CLONE_NEWUSER | libc::CLONE_NEWNET;
        let own = c!(libc::unshare(libc::CLONE_NEWNET) == 0 || libc::unshare(flags) == 0);
        let to = if own {
            at([10, 1, 2, 3], 9)
        } else {
            // Without an interface, a link-local address is of no use.
            "[fe80::1]:9".parse().unwrap()
        };
        let channel = new_channel();
        let id = Id::new(&channel);
        good("rdma_resolve_addr", id.resolve_addr(&to));
        let event = channel.expect(RDMA_CM_EVENT_ADDR_ERROR);
        assert!(event.status < 0, "the status is {}", event.status);
        if own {
            assert_eq!(event.status, -libc::ENETUNREACH);
            let sync = new_sync_id();
            fails(
                "rdma_resolve_addr",
                sync.resolve_addr(&to),
                libc::ENETUNREACH,
            );
        }
    });
}
