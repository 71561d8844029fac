//! Connections that send and do not read, without TLS and over it.

use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::rc::Rc;
#[cfg(feature = "tls")]
use std::sync::Arc;

#[cfg(feature = "tls")]
use beanring_testkit::certificates::Certificates;
#[cfg(feature = "tls")]
use beanring_testkit::process::{Address, Transport};
#[cfg(feature = "tls")]
use beanring_testkit::scratch::Scratch;
#[cfg(feature = "tls")]
use beanring_testkit::tls_stream;
#[cfg(feature = "tls")]
use rustls::{ClientConfig, ClientConnection};

/// Whether connections are over TLS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Over {
    Clear,
    #[cfg(feature = "tls")]
    Tls,
}

impl Over {
    pub const ALL: &[Self] = &[
        Self::Clear,
        #[cfg(feature = "tls")]
        Self::Tls,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Clear => "clear",
            #[cfg(feature = "tls")]
            Self::Tls => "tls",
        }
    }

    /// Returns what a server with TLS needs.
    pub fn prepare(self) -> Option<Tls> {
        match self {
            Self::Clear => None,
            #[cfg(feature = "tls")]
            Self::Tls => Some(Tls::new()),
        }
    }
}

/// What a server with TLS needs, for clients and for HTTP.
pub struct Tls {
    pub flags: Vec<String>,
    /// Where clients connect.
    pub path: PathBuf,
    #[cfg(feature = "tls")]
    config: Arc<ClientConfig>,
    #[cfg(feature = "tls")]
    _dir: Scratch,
}

impl Tls {
    #[cfg(feature = "tls")]
    fn new() -> Self {
        let dir = Scratch::new("limits-tls");
        let certificates = Certificates::new(&dir.0);
        let path = match Address::fresh(Transport::Unix) {
            Address::Unix(path) => path,
            other => unreachable!("{other} is none of UNIX sockets"),
        };
        let listen = ["--http-tls", "--tls-listen", &format!("unix:{}", path.display())].map(str::to_owned);
        let flags = listen.into_iter().chain(certificates.server.flags()).collect();
        Self { flags, path, config: tls_stream::client_config(&certificates.ca, None), _dir: dir }
    }

    /// Returns a listener over TLS.
    #[cfg_attr(not(feature = "tls"), expect(clippy::unused_self, reason = "there is no TLS"))]
    pub fn door(&self, path: PathBuf) -> Door {
        Door {
            path,
            #[cfg(feature = "tls")]
            tls: Some(Arc::clone(&self.config)),
        }
    }
}

/// A listener at a UNIX socket.
pub struct Door {
    pub path: PathBuf,
    #[cfg(feature = "tls")]
    tls: Option<Arc<ClientConfig>>,
}

impl Door {
    pub const fn clear(path: PathBuf) -> Self {
        Self {
            path,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }
}

/// A connection, and what it sends.
pub struct Sender {
    stream: UnixStream,
    #[cfg(feature = "tls")]
    tls: Option<Box<ClientConnection>>,
    bytes: Rc<[u8]>,
    sent: usize,
}

impl Sender {
    /// Connects, and shakes hands over TLS.
    pub fn connect(door: &Door, bytes: Rc<[u8]>) -> Self {
        #[cfg_attr(not(feature = "tls"), expect(unused_mut, reason = "there is no TLS"))]
        let mut sender = Self::raw(door, bytes);
        #[cfg(feature = "tls")]
        sender.shake_hands(door);
        sender
    }

    /// Connects, and begins with the bytes, whatever the listener expects.
    pub fn raw(door: &Door, bytes: Rc<[u8]>) -> Self {
        let stream = UnixStream::connect(&door.path).expect("the server accepts");
        stream.set_nonblocking(true).expect("a socket");
        Self {
            stream,
            #[cfg(feature = "tls")]
            tls: None,
            bytes,
            sent: 0,
        }
    }

    /// Connects to a listener over TLS, to send one record without its last byte.
    #[cfg(feature = "tls")]
    pub fn cut(door: &Door, bytes: Rc<[u8]>) -> Self {
        let mut sender = Self::connect(door, bytes);
        let Some(mut tls) = sender.tls.take() else { return sender };
        let mut record = Vec::new();
        tls.writer().write_all(&sender.bytes).expect("the buffer has no limit");
        tls.write_tls(&mut record).expect("a vector grows");
        sender.bytes = record[..record.len() - 1].into();
        sender
    }

    #[cfg(feature = "tls")]
    fn shake_hands(&mut self, door: &Door) {
        self.stream.set_nonblocking(false).expect("a socket");
        self.tls = door.tls.as_ref().map(|config| {
            let (mut tls, mut stream) = (tls_stream::client(config), &self.stream);
            while tls.is_handshaking() || tls.wants_write() {
                // The server may have closed another connection over HTTP for this one, or this one.
                if tls.complete_io(&mut stream).is_err() {
                    break;
                }
            }
            Box::new(tls)
        });
        self.stream.set_nonblocking(true).expect("a socket");
    }

    pub fn is_done(&self) -> bool {
        #[cfg(feature = "tls")]
        if self.tls.as_ref().is_some_and(|tls| tls.wants_write()) {
            return false;
        }
        self.sent == self.bytes.len()
    }

    /// Sends what the server takes at once. Returns whether that was anything. A connection that the server has closed is done.
    pub fn send_now(&mut self) -> bool {
        if self.is_done() {
            return false;
        }
        match self.write() {
            Ok(bytes) if bytes > 0 => true,
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            _ => {
                self.sent = self.bytes.len();
                #[cfg(feature = "tls")]
                if self.tls.is_some() {
                    self.tls = None;
                }
                false
            }
        }
    }

    fn write(&mut self) -> std::io::Result<usize> {
        let rest = &self.bytes[self.sent..];
        #[cfg(feature = "tls")]
        if let Some(tls) = &mut self.tls {
            if !tls.wants_write() {
                let record = &rest[..rest.len().min(16 * 1024)];
                tls.writer().write_all(record)?;
                self.sent += record.len();
            }
            return tls.write_tls(&mut self.stream);
        }
        let bytes = self.stream.write(rest)?;
        self.sent += bytes;
        Ok(bytes)
    }
}
