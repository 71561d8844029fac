//! The leader's end of a forwarded connection: TLS with the key of the link.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use beanring::transport::link::leader_config;
use beanring::values::link_secret::LinkSecret;
use rustls::ServerConnection;

/// The most plaintext in a record (RFC 8446, 5.1).
const RECORD_BYTES: usize = 16 * 1024;

/// A connection that a test serves. One clone may read while another one writes.
pub struct TlsEnd {
    tcp: TcpStream,
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    tls: ServerConnection,
    /// Plaintext that is not read.
    unread: VecDeque<u8>,
    /// The other side has ended its output, or the connection has ended.
    is_over: bool,
    /// Ciphertext that the kernel has not taken.
    unsent: Vec<u8>,
    has_ended_output: bool,
}

impl TlsEnd {
    pub fn set_nonblocking(&self, is_set: bool) -> io::Result<()> {
        self.tcp.set_nonblocking(is_set)
    }

    /// Shakes hands as the leader with this secret. Fails if the other side does not accept its key.
    pub fn greet(mut tcp: TcpStream, secret: LinkSecret) -> io::Result<Self> {
        let mut tls = ServerConnection::new(leader_config(secret)).expect("the configuration is valid");
        tls.set_buffer_limit(None);
        while tls.is_handshaking() || tls.wants_write() {
            tls.complete_io(&mut tcp)?;
        }
        let mut shared = Shared {
            tls,
            unread: VecDeque::new(),
            is_over: false,
            unsent: Vec::new(),
            has_ended_output: false,
        };
        // The header may have come with the end of the handshake.
        shared.take_plaintext()?;
        Ok(Self { tcp, shared: Arc::new(Mutex::new(shared)) })
    }

    /// Receives ciphertext and drops it.
    pub fn discard(&self) -> io::Result<usize> {
        (&self.tcp).read(&mut vec![0; 64 * 1024])
    }

    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { tcp: self.tcp.try_clone()?, shared: Arc::clone(&self.shared) })
    }

    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.tcp.set_read_timeout(timeout)
    }

    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.tcp.set_write_timeout(timeout)
    }

    /// Ends the connection as a process that is killed does.
    pub fn cut_off(self) {
        self.shared.lock().expect("no thread panics").has_ended_output = true;
    }

    /// Announces the end of the output, after everything before it.
    pub fn end_output(&self) -> io::Result<()> {
        let mut shared = self.shared.lock().expect("no thread panics");
        if !std::mem::replace(&mut shared.has_ended_output, true) {
            shared.tls.send_close_notify();
            shared.encrypted();
            self.tcp.set_write_timeout(None)?;
            (&self.tcp).write_all(&shared.unsent)?;
            shared.unsent.clear();
        }
        Ok(())
    }
}

impl Shared {
    /// Adds the plaintext of ciphertext to what is unread.
    fn decrypted(&mut self, mut ciphertext: &[u8]) -> io::Result<()> {
        while !ciphertext.is_empty() && !self.is_over {
            self.tls.read_tls(&mut ciphertext)?;
            self.take_plaintext()?;
        }
        Ok(())
    }

    fn take_plaintext(&mut self) -> io::Result<()> {
        let state = self.tls.process_new_packets().map_err(io::Error::other)?;
        self.is_over = state.peer_has_closed();
        let mut plaintext = vec![0; state.plaintext_bytes_to_read()];
        self.tls.reader().read_exact(&mut plaintext)?;
        self.unread.extend(plaintext);
        Ok(())
    }

    /// Adds what TLS has encrypted to what is unsent.
    fn encrypted(&mut self) {
        let Self { tls, unsent, .. } = self;
        while tls.wants_write() {
            tls.write_tls(unsent).expect("memory takes all");
        }
    }
}

impl Read for TlsEnd {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut ciphertext = [0; 4096];
        loop {
            {
                let Shared { unread, is_over, .. } = &mut *self.shared.lock().expect("no thread panics");
                if !unread.is_empty() || *is_over {
                    return unread.read(buffer);
                }
            }
            // Not locked: the other direction goes on.
            let received = self.tcp.read(&mut ciphertext)?;
            let shared = &mut *self.shared.lock().expect("no thread panics");
            shared.is_over |= received == 0;
            shared.decrypted(&ciphertext[..received])?;
        }
    }
}

impl Write for TlsEnd {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut shared = self.shared.lock().expect("no thread panics");
        let Shared { tls, unsent, .. } = &mut *shared;
        while !unsent.is_empty() {
            let sent = self.tcp.write(unsent)?;
            unsent.drain(..sent);
        }
        let record = bytes.len().min(RECORD_BYTES);
        tls.writer().write_all(&bytes[..record])?;
        shared.encrypted();
        let unsent = &mut shared.unsent;
        while !unsent.is_empty() {
            match self.tcp.write(unsent) {
                Ok(sent) => drop(unsent.drain(..sent)),
                // The record counts as written, as bytes in a socket do.
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(record)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for TlsEnd {
    /// Ends the output, as a leader does that closes a connection.
    fn drop(&mut self) {
        if Arc::strong_count(&self.shared) == 1 {
            let _ = self.tcp.set_nonblocking(true);
            let mut shared = self.shared.lock().expect("no thread panics");
            if !shared.has_ended_output {
                shared.tls.send_close_notify();
                shared.encrypted();
                let _ = (&self.tcp).write_all(&shared.unsent);
            }
        }
    }
}
