//! TLS over another transport. The buffers of a connection are kept, and each write is encrypted whole and sent at once, so that
//! the generator costs little beside the cipher itself.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::marker::PhantomData;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use beanring::io::trusted;
use rustls::client::{ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, HandshakeKind, NamedGroup};

use super::{Returned, ServerAddress, Stream, Transport};
use crate::report::Handshakes;

/// Ciphertext that is read at once. A connection keeps a buffer of this size only while it reads.
const INPUT_BYTES: usize = 18 * 1024;

/// Tickets that are kept for resumption: two of each of the most connections that make sense.
const TICKETS_MAX: usize = 4096;

/// What every connection of the run needs.
struct Setup {
    name: ServerName<'static>,
    fresh: Arc<ClientConfig>,
    resuming: Arc<ClientConfig>,
}

static SETUP: OnceLock<Setup> = OnceLock::new();

/// Whether connections resume sessions.
static RESUMES: AtomicBool = AtomicBool::new(false);

/// Handshakes: all, and those that resumed a session.
static HANDSHAKES: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// Reads the certificates, for a server with this name. Without a file, those of the system.
///
/// # Errors
/// If a file or the name is not valid, as a sentence.
pub fn prepare(ca: Option<&Path>, name: &str) -> Result<(), String> {
    let roots = trusted::roots(ca).map_err(|(path, error)| {
        let source = if ca.is_some() { "--tls-ca " } else { "SSL_CERT_FILE=" };
        format!("{source}{}: {error}", path.display())
    })?;
    let mut fresh = trusted::client_config().with_root_certificates(roots).with_no_client_auth();
    let mut resuming = fresh.clone();
    fresh.resumption = Resumption::disabled();
    resuming.resumption = Resumption::store(Arc::new(Tickets::default()));
    let name =
        ServerName::try_from(name.to_owned()).map_err(|_| format!("--tls-name {name} is not valid"))?;
    let _ = SETUP.set(Setup { name, fresh: Arc::new(fresh), resuming: Arc::new(resuming) });
    Ok(())
}

/// Makes the connections that follow resume sessions, or not.
pub fn resume(resumes: bool) {
    RESUMES.store(resumes, Ordering::Relaxed);
}

/// Returns the numbers of handshakes since the last call.
pub fn take_handshakes() -> Handshakes {
    let [all, resumed] = HANDSHAKES.each_ref().map(|count| count.swap(0, Ordering::Relaxed));
    Handshakes { all, resumed }
}

/// The tickets of the only server. The store that rustls has keeps 8, too few for many connections that resume at once.
#[derive(Default)]
struct Tickets {
    /// Oldest first.
    unused: Mutex<VecDeque<Tls13ClientSessionValue>>,
    group: Mutex<Option<NamedGroup>>,
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tickets").finish_non_exhaustive()
    }
}

/// The generator has one thread, so no lock is ever poisoned.
impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, _: ServerName<'static>, group: NamedGroup) {
        *self.group.lock().unwrap() = Some(group);
    }

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        *self.group.lock().unwrap()
    }

    fn set_tls12_session(&self, _: ServerName<'static>, _: Tls12ClientSessionValue) {}

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {}

    fn insert_tls13_ticket(&self, _: ServerName<'static>, ticket: Tls13ClientSessionValue) {
        let mut unused = self.unused.lock().unwrap();
        if unused.len() == TICKETS_MAX {
            unused.pop_front();
        }
        unused.push_back(ticket);
    }

    /// Returns the newest, since a server may forget old ones.
    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.unused.lock().unwrap().pop_back()
    }
}

/// TLS over `T`.
pub struct Tls<T>(PhantomData<T>);

/// A connection with TLS.
pub struct TlsStream<S> {
    inner: S,
    session: RefCell<ClientConnection>,
    /// Ciphertext that the session has not taken yet.
    rest: RefCell<Vec<u8>>,
    /// The buffers of the socket while they are not in use.
    input: Cell<Vec<u8>>,
    output: Cell<Vec<u8>>,
}

impl<T: Transport> Transport for Tls<T> {
    type Stream = TlsStream<T::Stream>;

    const NAME: &'static str = T::NAME;

    async fn connect(target: &ServerAddress) -> io::Result<Self::Stream> {
        let setup = SETUP.get().expect("it is prepared");
        let resumes = RESUMES.load(Ordering::Relaxed);
        let config = if resumes { &setup.resuming } else { &setup.fresh };
        let mut session =
            ClientConnection::new(config.clone(), setup.name.clone()).map_err(io::Error::other)?;
        session.set_buffer_limit(None);
        let stream = TlsStream {
            inner: T::connect(target).await?,
            session: RefCell::new(session),
            rest: RefCell::default(),
            input: Cell::default(),
            output: Cell::default(),
        };
        while stream.session.borrow().is_handshaking() {
            stream.send().await?;
            if stream.session.borrow().is_handshaking() && !stream.feed()? && !stream.receive().await? {
                return Err(io::Error::new(ErrorKind::UnexpectedEof, "closed in the TLS handshake"));
            }
        }
        stream.send().await?;
        let [all, resumed] = &HANDSHAKES;
        all.fetch_add(1, Ordering::Relaxed);
        if stream.session.borrow().handshake_kind() == Some(HandshakeKind::Resumed) {
            resumed.fetch_add(1, Ordering::Relaxed);
        }
        Ok(stream)
    }
}

impl<S: Stream> TlsStream<S> {
    /// Waits for plaintext, and moves it into the spare capacity. Returns 0 at the end.
    async fn read_into(&self, buf: &mut Vec<u8>) -> io::Result<usize> {
        loop {
            match self.take(buf)? {
                // The server closes the socket after its last record.
                Some(0) => {
                    let (result, input) = self.inner.read(Vec::with_capacity(INPUT_BYTES)).await;
                    drop(input);
                    return result.map(|_| 0);
                }
                Some(count) => return Ok(count),
                None => {}
            }
            if !self.feed()? && !self.receive().await? {
                return Ok(0);
            }
        }
    }

    /// Sends the ciphertext of the session.
    async fn send(&self) -> io::Result<()> {
        let mut output = self.output.take();
        output.clear();
        {
            let mut session = self.session.borrow_mut();
            while session.wants_write() {
                session.write_tls(&mut output)?;
            }
        }
        if output.is_empty() {
            return Ok(());
        }
        let (result, output) = self.inner.write_all(output).await;
        self.output.set(output);
        result
    }

    /// Waits for ciphertext. Returns whether any came.
    async fn receive(&self) -> io::Result<bool> {
        let mut input = self.input.take();
        input.clear();
        input.reserve(INPUT_BYTES);
        let (result, input) = self.inner.read(input).await;
        let has_come = result? > 0;
        if has_come {
            let used = self.feed_from(&input)?;
            self.rest.borrow_mut().extend_from_slice(&input[used..]);
        }
        self.input.set(input);
        Ok(has_come)
    }

    /// Passes on the ciphertext that is left from an earlier read. Returns whether there was any.
    fn feed(&self) -> io::Result<bool> {
        let mut rest = self.rest.borrow_mut();
        let has_rest = !rest.is_empty();
        if has_rest {
            let used = self.feed_from(&rest)?;
            rest.drain(..used);
        }
        Ok(has_rest)
    }

    /// Passes ciphertext to the session until that has plaintext. Returns how much it took.
    fn feed_from(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut session = self.session.borrow_mut();
        let mut left = bytes;
        while !left.is_empty() {
            session.read_tls(&mut left)?;
            let state = session
                .process_new_packets()
                .map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
            if state.plaintext_bytes_to_read() > 0 || state.peer_has_closed() {
                break;
            }
        }
        Ok(bytes.len() - left.len())
    }

    /// Moves plaintext into the spare capacity. Returns none if there is none yet, and 0 at the end.
    fn take(&self, buf: &mut Vec<u8>) -> io::Result<Option<usize>> {
        let (len, capacity) = (buf.len(), buf.capacity());
        let mut session = self.session.borrow_mut();
        let waiting = session.process_new_packets().map_or(0, |state| state.plaintext_bytes_to_read());
        buf.resize(capacity.min(len + waiting.max(1)), 0);
        let result = session.reader().read(&mut buf[len..]);
        buf.truncate(len + *result.as_ref().unwrap_or(&0));
        match result {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(Some(0)),
            result => result.map(Some),
        }
    }
}

impl<S: Stream> Stream for TlsStream<S> {
    async fn read(&self, mut buf: Vec<u8>) -> Returned<usize> {
        (self.read_into(&mut buf).await, buf)
    }

    async fn write_all(&self, buf: Vec<u8>) -> Returned<()> {
        let encrypted = self.session.borrow_mut().writer().write_all(&buf);
        match encrypted {
            Ok(()) => (self.send().await, buf),
            Err(error) => (Err(error), buf),
        }
    }

    fn shutdown(&self) {
        self.inner.shutdown();
    }
}
