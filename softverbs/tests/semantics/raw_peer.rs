//! A peer that is a bare socket, which also can do what no honest one does.

use crate::common::*;
use softverbs::proto::frames::{self, Flags, Frame, Params, Private};
use softverbs::proto::frames::{MAX_FIELDS, SEGMENT};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

/// A socket to where someone listens.
pub struct Stranger(pub TcpStream);

impl Stranger {
    pub fn new(to: &SocketAddr) -> Self {
        let socket = TcpStream::connect(to).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        socket.set_write_timeout(Some(LIMIT)).unwrap();
        Stranger(socket)
    }

    /// Writes what the other side takes before it has enough.
    pub fn say(&mut self, bytes: &[u8]) {
        let _ = self.0.write_all(bytes);
    }

    /// The other side ends the connection.
    #[track_caller]
    pub fn is_cut_off(&mut self) {
        let end = Instant::now() + LIMIT;
        let mut buffer = [0; 4096];
        loop {
            match self.0.read(&mut buffer) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
                Err(error) => panic!("the connection is still there: {error}"),
            }
            assert!(
                Instant::now() < end,
                "the connection is still there, and talks"
            );
        }
    }
}

pub fn encoded(frame: &Frame, payload: &[u8]) -> Vec<u8> {
    let mut out = [0; MAX_FIELDS];
    let len = frames::encode(frame, payload.len().min(SEGMENT), &mut out);
    [&out[..len], payload].concat()
}

pub const PARAMS: Params = Params {
    qp_num: 77,
    responder_resources: 16,
    initiator_depth: 16,
    flow_control: 1,
    retry_count: 7,
    rnr_retry_count: 7,
    srq: 0,
};

pub fn request() -> Vec<u8> {
    encoded(&Frame::Request(PARAMS, Private::NONE), &[])
}

pub const ALONE: Flags = Flags::FIRST.union(Flags::LAST);

/// An honest connection works.
#[track_caller]
pub fn is_well(listener: &Listener) {
    let setup = Setup::default();
    let client = begin(&listener.address, &setup);
    let server = loop {
        let id = Id(listener.channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id);
        // Strangers may have asked, too.
        if id.peer() == client.id.local() {
            break listener.accept_id(id, &setup);
        }
    };
    client.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    server.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    let (from, to) = (client.memory(64, LOCAL), server.memory(64, ALL));
    from.fill(9);
    client.post(Wr::new(1, Op::Write(to.at(0)), vec![from.sge(0, 64)]));
    client.send_cq.expect(1, SUCCESS);
    same("what was written", &to.read(0, 64), &[9; 64]);
}

/// A connection whose other side is a bare socket.
pub struct Connection {
    pub server: End,
    pub peer: Stranger,
    /// What has come for the peer and was not looked at.
    pub come: Vec<u8>,
    /// The payload of the message of the last frame, as far as it has come.
    pub message: Vec<u8>,
    pub message_ended: bool,
}

impl Connection {
    pub fn new() -> Self {
        Self::with(&Setup::default())
    }

    pub fn with(setup: &Setup) -> Self {
        let listener = Listener::new();
        let mut peer = Stranger::new(&listener.address);
        peer.say(&request());
        let server = listener.accept(setup);
        let mut connection = Connection {
            server,
            peer,
            come: vec![],
            message: vec![],
            message_ended: false,
        };
        let (frame, _) = connection.next();
        assert!(matches!(frame, Frame::Reply(..)), "{frame:?} is no reply");
        connection.say(Frame::Ready, &[]);
        connection.server.channel.expect(RDMA_CM_EVENT_ESTABLISHED);
        connection
    }

    pub fn say(&mut self, frame: Frame, payload: &[u8]) {
        self.peer.say(&encoded(&frame, payload));
    }

    /// The next frame for the peer, with its payload.
    #[track_caller]
    pub fn next(&mut self) -> (Frame, Vec<u8>) {
        self.next_or_end().expect("a frame, and not the end")
    }

    #[track_caller]
    pub fn next_or_end(&mut self) -> Option<(Frame, Vec<u8>)> {
        loop {
            if let Some((frame, fields, payload)) = frames::decode(&self.come).unwrap()
                && self.come.len() >= fields + payload
            {
                let data = self.come[fields..fields + payload].to_vec();
                self.come.drain(..fields + payload);
                if std::mem::take(&mut self.message_ended) {
                    self.message.clear();
                }
                if let Frame::Send { flags, .. }
                | Frame::Write { flags, .. }
                | Frame::Data { flags, .. } = frame
                {
                    self.message.extend_from_slice(&data);
                    self.message_ended = flags.contains(Flags::LAST);
                }
                return Some((frame, data));
            }
            let mut buffer = [0; 65_536];
            let n = match self.peer.0.read(&mut buffer) {
                Ok(0) => return None,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                result => result.expect("a frame"),
            };
            self.come.extend_from_slice(&buffer[..n]);
        }
    }
}
