//! A connection to the leader, over the TLS of the [link](crate::transport::link).

use std::borrow::Cow;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Error};

use crate::io::socket::text_of;

/// Memory of a connection to the leader beside its buffers, in bytes: what rustls allocates. Measured as RSS per idle connection.
pub const HOP_BYTES: usize = 10 * 1024;

/// What TLS adds to the plaintext of one receive, at most: to each of its records a header, the content type and the tag.
pub const OVERHEAD_BYTES: usize = 5 * 22;

/// Plaintext that the record before a receive may have left incomplete.
pub const RECORD_BYTES_MAX: usize = (1 << 14) + 256;

/// A connection to the leader.
pub struct Hop {
    fd: OwnedFd,
    tls: Box<ClientConnection>,
    /// The leader has announced its end.
    pub has_ended: bool,
}

impl Hop {
    /// Begins TLS on a connection.
    pub fn new(fd: OwnedFd, config: &Arc<ClientConfig>) -> Result<Self, Error> {
        // Only the key counts.
        let name = ServerName::try_from("leader").expect("it is a name");
        let mut tls = ClientConnection::new(Arc::clone(config), name)?;
        tls.set_buffer_limit(None);
        Ok(Self { fd, tls: Box::new(tls), has_ended: false })
    }

    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Drops the state of TLS.
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Continues the handshake as far as it can go now. Returns whether it has finished. Then the leader has proved its key, and
    /// everything was sent.
    ///
    /// # Errors
    /// Why this is no connection to the leader.
    pub fn shake_hands(&mut self) -> Result<bool, Cow<'static, str>> {
        let mut socket = Socket(self.fd.as_raw_fd());
        loop {
            while self.tls.wants_write() {
                match self.tls.write_tls(&mut socket) {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                    Err(error) => return Err(text_of(&error).into()),
                }
            }
            if !self.tls.is_handshaking() {
                return Ok(true);
            }
            match self.tls.read_tls(&mut socket) {
                Ok(0) => return Err("it has closed the connection: it does not lead yet, or any more".into()),
                Ok(_) => {}
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
        let sent = send(self.fd.as_raw_fd(), &bytes, MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT)?;
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

/// The socket of a hop, which does not block.
struct Socket(RawFd);

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        again(|| recv(self.0, buffer, MsgFlags::MSG_DONTWAIT))
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        again(|| send(self.0, bytes, MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn again(mut call: impl FnMut() -> nix::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            result => return Ok(result?),
        }
    }
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
