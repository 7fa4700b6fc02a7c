//! A socket that takes connections, for a cm id that listens.

use super::conn::{Conn, Owner};
use crate::link::TcpListener;
use crate::reactor::{self, Interest, Source};
use crate::sync::lock;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// When a listener without descriptors looks for one again.
const FULL_TIME: Duration = Duration::from_millis(100);
/// So many links that have not asked for a connection may a listener have. Each costs a descriptor.
const STRANGERS: usize = 8192;
const READ: Interest = Interest {
    read: true,
    write: false,
};

pub struct Listener {
    token: u64,
    socket: Mutex<Option<TcpListener>>,
    owner: Weak<dyn Owner>,
    /// One for each link that has not asked for a connection.
    strangers: Arc<()>,
}

impl Listener {
    pub fn new(socket: TcpListener, owner: Weak<dyn Owner>) -> Arc<Self> {
        let listener = Arc::new(Listener {
            token: reactor::new_token(),
            socket: Mutex::new(None),
            owner,
            strangers: Arc::new(()),
        });
        let source: Weak<dyn Source> = Arc::downgrade(&listener) as Weak<dyn Source>;
        reactor::add_source(listener.token, source);
        reactor::watch(socket.fd(), listener.token, Interest::default(), READ);
        *lock(&listener.socket) = Some(socket);
        listener
    }

    /// Takes the links that have come.
    fn accept(&self) {
        let socket = lock(&self.socket);
        while let Some(listener) = &*socket {
            let link = match listener.accept() {
                Ok(link) => link,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
                Err(_) => {
                    // There are no descriptors left: those who come have to wait for some.
                    reactor::watch(listener.fd(), self.token, READ, Interest::default());
                    reactor::schedule(self.token, Instant::now() + FULL_TIME);
                    return;
                }
            };
            // Those that say nothing must not be too many.
            if Arc::strong_count(&self.strangers) > STRANGERS {
                continue;
            }
            let conn = Conn::new();
            let stranger = self.strangers.clone();
            conn.lock().greet(self.owner.clone(), link, stranger);
        }
    }
}

impl Source for Listener {
    fn ready(&self, _: bool, _: bool) -> bool {
        self.accept();
        true
    }

    /// There may be descriptors again.
    fn due(&self) {
        if let Some(listener) = &*lock(&self.socket) {
            reactor::watch(listener.fd(), self.token, Interest::default(), READ);
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(listener) = &*lock(&self.socket) {
            reactor::watch(listener.fd(), self.token, READ, Interest::default());
        }
        reactor::remove_source(self.token);
    }
}
