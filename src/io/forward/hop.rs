//! A connection to the leader, over the TLS of the [link](crate::transport::link).

use std::borrow::Cow;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, send};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Error};

use super::leader::{begin_connect, is_connected};
use crate::io::socket::text_of;
use crate::time::{Span, Time};

/// Memory of a connection to the leader beside its buffers, in bytes: what rustls allocates. Measured as RSS per idle connection.
pub const HOP_BYTES: usize = 10 * 1024;

/// What TLS adds to the plaintext of one receive, at most: to each of its records a header, the content type and the tag.
pub const OVERHEAD_BYTES: usize = 5 * 22;

/// Plaintext that the record before a receive may have left incomplete.
pub const RECORD_BYTES_MAX: usize = (1 << 14) + 256;

/// How long the handshake with a leader may take. Its event loop is busy after a take-over.
const GREETING_TIME: Span = Span::from_secs(5);

/// Why a connection is not made, for the program and for an operator.
pub type Failure = (Errno, Cow<'static, str>);

/// A connection to the leader.
pub struct Hop {
    socket: TcpStream,
    tls: Box<ClientConnection>,
    is_connected: bool,
    /// When it must be connected or, after that, have finished the handshake.
    pub until: Time,
    /// The leader has announced its end.
    pub has_ended: bool,
}

impl Hop {
    /// Begins to connect, for up to `time`.
    ///
    /// # Errors
    /// Why no connection can be made.
    pub fn connect(
        address: SocketAddr,
        config: &Arc<ClientConfig>,
        now: Time,
        time: Span,
    ) -> Result<Self, Failure> {
        let socket = begin_connect(address).map_err(failure)?;
        // Only the key counts.
        let name = ServerName::try_from("leader").expect("it is a name");
        let tls = ClientConnection::new(Arc::clone(config), name);
        let mut tls = tls.map_err(|error| (Errno::EPROTO, error.to_string().into()))?;
        tls.set_buffer_limit(None);
        Ok(Self { socket, tls: Box::new(tls), is_connected: false, until: now + time, has_ended: false })
    }

    pub const fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Drops the state of TLS.
    pub fn into_socket(self) -> TcpStream {
        self.socket
    }

    /// Continues to connect and the handshake, as far as they can go now. Returns whether the handshake has finished. Then the leader has
    /// proved its key, and everything was sent.
    ///
    /// # Errors
    /// Why this is no connection to the leader, or that it takes too long.
    pub fn advance(&mut self, now: Time) -> Result<bool, Failure> {
        if !self.is_connected {
            match is_connected(&self.socket) {
                Ok(true) => (self.is_connected, self.until) = (true, now + GREETING_TIME),
                // The event is one of an earlier attempt.
                Ok(false) if now < self.until => return Ok(false),
                Ok(false) => return Err(failure(Errno::ETIMEDOUT)),
                Err(errno) => return Err(failure(errno)),
            }
        }
        match self.shake_hands() {
            Ok(false) if self.until <= now => {
                Err((Errno::EPROTO, "it does not finish the TLS handshake".into()))
            }
            result => result.map_err(|why| (Errno::EPROTO, why)),
        }
    }

    fn shake_hands(&mut self) -> Result<bool, Cow<'static, str>> {
        loop {
            while self.tls.wants_write() {
                match self.tls.write_tls(&mut self.socket) {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                    Err(error) => return Err(text_of(&error).into()),
                }
            }
            if !self.tls.is_handshaking() {
                return Ok(true);
            }
            match self.tls.read_tls(&mut self.socket) {
                Ok(0) => return Err("it has closed the connection: it does not lead yet, or any more".into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(text_of(&error).into()),
            }
            self.tls.process_new_packets().map_err(|error| text(&error))?;
        }
    }

    /// Appends plaintext as ciphertext.
    ///
    /// # Errors
    /// If TLS has ended.
    pub fn encrypt(&mut self, plaintext: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        self.tls.writer().write_all(plaintext)?;
        self.take_output(out)
    }

    /// Sends a header, which fits into the empty buffer of the socket.
    ///
    /// # Errors
    /// If it does not, or the leader has gone.
    pub fn send(&mut self, header: &[u8]) -> nix::Result<()> {
        let mut bytes = Vec::new();
        self.encrypt(header, &mut bytes).map_err(|_| Errno::EPROTO)?;
        let sent = send(self.socket.as_raw_fd(), &bytes, MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT)?;
        if sent == bytes.len() { Ok(()) } else { Err(Errno::ENOBUFS) }
    }

    /// Appends the announcement that nothing more comes.
    ///
    /// # Errors
    /// None: memory takes all.
    pub fn encrypt_end(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        self.tls.send_close_notify();
        self.take_output(out)
    }

    fn take_output(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(out)?;
        }
        Ok(())
    }

    /// Appends ciphertext of the leader as plaintext. An incomplete record stays for the next call.
    ///
    /// # Errors
    /// If it is not what the leader has encrypted.
    pub fn decrypt(&mut self, mut ciphertext: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        while !ciphertext.is_empty() && !self.has_ended {
            // It fails only if plaintext is not taken.
            if self.tls.read_tls(&mut ciphertext).is_err() {
                return Err(Error::General("TLS takes no input".to_owned()));
            }
            let state = self.tls.process_new_packets()?;
            self.has_ended = state.peer_has_closed();
            let start = out.len();
            out.resize(start + state.plaintext_bytes_to_read(), 0);
            self.tls.reader().read_exact(&mut out[start..]).expect("there are as many bytes");
        }
        Ok(())
    }
}

pub fn failure(errno: Errno) -> Failure {
    (errno, errno.desc().into())
}

/// Why a handshake has failed.
fn text(error: &Error) -> Cow<'static, str> {
    match error {
        Error::InvalidCertificate(_) => {
            "it shows another key than the leader has in the database: another server has its address".into()
        }
        Error::InvalidMessage(_) => {
            "it does not speak TLS: it is no server of beanring, or an older one".into()
        }
        error => error.to_string().into(),
    }
}
