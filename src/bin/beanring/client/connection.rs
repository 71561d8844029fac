//! A connection to a server: blocking, with buffers, and in two halves for pipelining.

use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
#[cfg(feature = "tls")]
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use beanring::config::address::Remote;
use beanring::io::dial::{DialError, dial};
use beanring::io::socket::Address;
use beanring::replies::TlsProblem;
use beanring::time::Seconds;
use beanring::values::ids::JobId;
#[cfg(feature = "tls")]
use nix::sys::socket::{MsgFlags, send};

#[cfg(feature = "tls")]
use super::tls::{Channel, Incoming};
use super::{ClientError, Follows, ReadError, Reply, escaped};

/// The longest time for the connection itself, and for the handshake of TLS.
pub(super) const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// The longest time for a whole reply to a command that does not wait for a job, and for the server to take a command.
pub const REPLY_PATIENCE: Duration = Duration::from_secs(60);

/// Each byte that arrives or leaves adds to the time. At this rate, of a slow line, a body of 1 GiB has 4.5 hours, and statistics of
/// 10 KB 0.2 s: a server that sends a byte per second gains nothing.
const BYTES_PER_SECOND_MIN: u32 = 64 * 1024;

/// Buffered output. It is sent when it reaches this size.
const SEND_BYTES: usize = 64 * 1024;

/// How a server begins that speaks TLS and has got something else: an alert, of TLS 1.0 or newer.
const TLS_ALERT: [u8; 2] = [0x15, 0x03];

/// Commands of which the replies are not read yet. The replies of some hundred bytes each must fit into the buffers of a
/// socket, because the server reads no command while it cannot send.
pub(super) const ASKED_MAX: usize = 64;

/// A shared socket: one thread may send while another receives, and a third may end both.
#[derive(Clone, Debug)]
pub struct Socket(pub(super) Arc<TcpStream>);

/// The layer between the plaintext of a connection and its socket.
#[derive(Clone, Debug)]
enum Layer {
    /// Nothing.
    Plain,
    #[cfg(feature = "tls")]
    Tls(Channel),
}

/// A connection to a server.
#[derive(Debug)]
pub struct Connection {
    sender: Sender,
    receiver: Receiver,
    /// Whether the server has `job-note`, once it was asked.
    has_notes: Option<bool>,
}

/// The half of a connection that sends commands.
#[derive(Debug)]
pub struct Sender {
    socket: Socket,
    layer: Layer,
    remote: Remote,
    buffer: Vec<u8>,
}

/// The half of a connection that receives replies.
#[derive(Debug)]
pub struct Receiver {
    input: BufReader<Timed>,
    remote: Remote,
    patience: Option<Duration>,
}

/// Input with a deadline for all that is read of a reply. Without one, the first byte sets it.
#[derive(Debug)]
struct Timed {
    socket: Socket,
    until: Option<Instant>,
    source: PlaintextSource,
}

/// Where plaintext comes from.
#[derive(Debug)]
enum PlaintextSource {
    /// From the socket. `begin` has the first bytes that have come, up to two.
    Plain { begin: Vec<u8> },
    #[cfg(feature = "tls")]
    Tls { channel: Channel, incoming: Incoming },
}

impl Connection {
    /// Connects to a server.
    ///
    /// # Errors
    /// If the server cannot be reached.
    pub fn open(address: &Address) -> Result<Self, ClientError> {
        let remote = Remote { address: address.clone(), is_tls: false };
        let socket = connected(&remote)?;
        Ok(Self::new(remote, socket, Layer::Plain, PlaintextSource::Plain { begin: Vec::new() }))
    }

    /// Connects to a server, and does the handshake of TLS with the name that its certificate must have.
    ///
    /// # Errors
    /// If the server cannot be reached, or there is no TLS with it.
    #[cfg(feature = "tls")]
    pub(super) fn open_tls(
        remote: &Remote,
        config: Arc<rustls::ClientConfig>,
        name: rustls::pki_types::ServerName<'static>,
    ) -> Result<Self, ClientError> {
        let socket = connected(remote)?;
        let until = Instant::now() + CONNECT_PATIENCE;
        let (channel, incoming) = Channel::open(socket.clone(), config, name, until)
            .map_err(|problem| ClientError::Tls { remote: remote.clone(), problem })?;
        let layer = Layer::Tls(channel.clone());
        Ok(Self::new(remote.clone(), socket, layer, PlaintextSource::Tls { channel, incoming }))
    }

    fn new(remote: Remote, socket: Socket, layer: Layer, source: PlaintextSource) -> Self {
        let input = Timed { socket: socket.clone(), until: None, source };
        let input = BufReader::with_capacity(SEND_BYTES, input);
        Self {
            sender: Sender { socket, layer, remote: remote.clone(), buffer: Vec::new() },
            receiver: Receiver { input, remote, patience: Some(REPLY_PATIENCE) },
            has_notes: None,
        }
    }

    /// Sends a command line without its CR LF, and returns the reply, which must have no data.
    ///
    /// # Errors
    /// If the connection breaks, no reply comes in time, or the reply is none to such a command.
    pub fn ask(&mut self, command: impl AsRef<[u8]>) -> Result<Reply, ClientError> {
        self.ask_for(Follows::Nothing, command)
    }

    /// Sends a command line without its CR LF, and returns the reply, which may have such data.
    ///
    /// # Errors
    /// As for [`Self::ask`].
    pub fn ask_for(&mut self, follows: Follows, command: impl AsRef<[u8]>) -> Result<Reply, ClientError> {
        self.sender.line(&command)?;
        self.reply_to(command.as_ref(), follows)
    }

    /// Sends what is buffered, and returns the reply.
    fn reply_to(&mut self, command: &[u8], follows: Follows) -> Result<Reply, ClientError> {
        self.sender.flush()?;
        let mut reply = self.receiver.reply(follows)?;
        reply.note_command(command);
        Ok(reply)
    }

    /// Sends `put` with a body, and returns the reply. The times are delay and time to run.
    ///
    /// # Errors
    /// As for [`Self::ask`].
    pub fn put(&mut self, pri: u32, times: [Seconds; 2], body: &[u8]) -> Result<Reply, ClientError> {
        self.sender.put(pri, times, "", body)?;
        self.reply_to(PUT_LINE.as_bytes(), Follows::Nothing)
    }

    /// Sends a command line without its CR LF, and the body that follows it. Returns the reply, which must have no data.
    ///
    /// # Errors
    /// As for [`Self::ask`].
    pub fn ask_with_body(&mut self, command: &str, body: &[u8]) -> Result<Reply, ClientError> {
        self.sender.line(command)?;
        self.sender.line(body)?;
        self.reply_to(command.as_bytes(), Follows::Nothing)
    }

    /// Keeps a note with a job that this connection has reserved, if the server has `job-note`. Otherwise the text would be taken for
    /// commands.
    ///
    /// # Errors
    /// As for [`Self::ask`].
    pub fn note(&mut self, id: JobId, text: &[u8]) -> Result<(), ClientError> {
        let has_notes = match self.has_notes {
            Some(has_notes) => has_notes,
            // Without a number of bytes the line is refused, and nothing follows it.
            None => self.ask(format!("job-note {id}"))?.word() == "BAD_FORMAT",
        };
        self.has_notes = Some(has_notes);
        if has_notes {
            self.ask_with_body(&format!("job-note {id} {}", text.len()), text)?;
        }
        Ok(())
    }

    /// Leaves in order: the jobs that this connection has reserved have not failed. It is of no use after this.
    pub fn quit(&mut self) {
        // A connection that is broken has ended already.
        let _ = self.sender.line("quit").and_then(|()| self.sender.flush());
    }

    /// Asks whether the server accepts these times, if one has decimals. After a `put` that is refused for its times a server
    /// would take the body for commands, and beanstalkd ignores the decimals of a timeout.
    ///
    /// # Errors
    /// If the server refuses decimals, or as for [`Self::ask`].
    pub fn require_decimals(&mut self, times: impl IntoIterator<Item = Seconds>) -> Result<(), ClientError> {
        let Some(time) = times.into_iter().find(|time| time.millis() > 0) else { return Ok(()) };
        // No job has the id 0.
        let reply = self.ask(format!("release 0 0 {time}"))?.expect("NOT_FOUND", &format!("{time} s"));
        let meaning =
            "the server accepts whole seconds only; round the time, or use beanring with --sub-second";
        Ok(reply.map(drop).map_err(|refusal| refusal.meaning("BAD_FORMAT", meaning))?)
    }

    /// Uses a tube for the commands that follow.
    ///
    /// # Errors
    /// As for [`Self::ask`], or if the server refuses.
    pub fn use_tube(&mut self, tube: &str) -> Result<(), ClientError> {
        self.enter_tube("use", "USING", tube, "--max-tubes or --max-memory")
    }

    /// Watches a tube.
    ///
    /// # Errors
    /// As for [`Self::ask`], or if the server refuses.
    pub fn watch_tube(&mut self, tube: &str) -> Result<(), ClientError> {
        self.enter_tube("watch", "WATCHING", tube, "--max-tubes, --max-watches or --max-memory")
    }

    fn enter_tube(&mut self, command: &str, done: &str, tube: &str, limits: &str) -> Result<(), ClientError> {
        let limits = format!("there is no room for another tube: {limits} is reached; raise that limit");
        let reply = self
            .ask(format!("{command} {tube}"))?
            .expect(done, &format!("tube {}", escaped(tube.as_bytes())));
        Ok(reply.map(drop).map_err(|refusal| refusal.meaning("OUT_OF_MEMORY", limits))?)
    }

    /// Sends many commands, of which only a bounded number is in flight, and calls `each` with each command and its reply.
    /// The replies must be short: a few hundred bytes.
    ///
    /// # Errors
    /// As for [`Self::ask`], or what `each` returns.
    pub fn ask_all<T, Line: AsRef<[u8]>>(
        &mut self,
        follows: Follows,
        commands: &[T],
        line: impl Fn(&T) -> Line,
        mut each: impl FnMut(&T, Reply) -> Result<(), ClientError>,
    ) -> Result<(), ClientError> {
        for some in commands.chunks(ASKED_MAX) {
            for command in some {
                self.sender.line(line(command))?;
            }
            self.sender.flush()?;
            for command in some {
                let mut reply = self.receiver.reply(follows)?;
                reply.note_command(line(command).as_ref());
                each(command, reply)?;
            }
        }
        Ok(())
    }

    /// Sets how long to wait for a whole reply. `None` waits forever for its first byte.
    pub const fn set_patience(&mut self, patience: Option<Duration>) {
        self.receiver.patience = patience;
    }

    /// Separates the halves, for two threads.
    pub fn split(self) -> (Sender, Receiver) {
        (self.sender, self.receiver)
    }

    /// Returns the socket, with which another thread can end the connection.
    pub fn socket(&self) -> Socket {
        self.sender.socket.clone()
    }
}

/// A `put` as good as any other, for the rights that it needs. Its tags may follow.
pub(super) const PUT_LINE: &str = "put 0 0 1 0";

impl Sender {
    /// Buffers a command line, and sends the buffer if it is full.
    ///
    /// # Errors
    /// If the connection is broken.
    pub fn line(&mut self, command: impl AsRef<[u8]>) -> Result<(), ClientError> {
        self.buffer.extend_from_slice(command.as_ref());
        self.buffer.extend_from_slice(b"\r\n");
        self.flush_if_full()
    }

    /// Buffers a `put` with its body, and sends the buffer if it is full.
    ///
    /// # Errors
    /// If the connection is broken.
    pub fn put(
        &mut self,
        pri: u32,
        [delay, ttr]: [Seconds; 2],
        tags: &str,
        body: &[u8],
    ) -> Result<(), ClientError> {
        write!(self.buffer, "put {pri} {delay} {ttr} {}{tags}\r\n", body.len()).expect("memory is there");
        if body.len() >= SEND_BYTES {
            self.flush()?;
            self.send(body)?;
        } else {
            self.buffer.extend_from_slice(body);
        }
        self.buffer.extend_from_slice(b"\r\n");
        self.flush_if_full()
    }

    /// Sends what is buffered.
    ///
    /// # Errors
    /// If the connection is broken.
    pub fn flush(&mut self) -> Result<(), ClientError> {
        let result = self.send(&self.buffer);
        self.buffer.clear();
        result
    }

    /// Sends bytes, as long as the server takes them.
    fn send(&self, bytes: &[u8]) -> Result<(), ClientError> {
        let until = Instant::now() + REPLY_PATIENCE;
        let sent = match &self.layer {
            Layer::Plain => self.socket.send(bytes, until),
            #[cfg(feature = "tls")]
            Layer::Tls(channel) => channel.send(bytes, until),
        };
        sent.map_err(|error| ClientError::of_server(ReadError::Io(error), &self.remote, REPLY_PATIENCE))
    }

    fn flush_if_full(&mut self) -> Result<(), ClientError> {
        if self.buffer.len() >= SEND_BYTES { self.flush() } else { Ok(()) }
    }
}

impl Receiver {
    /// Waits for a reply, which may have such data.
    ///
    /// # Errors
    /// If the connection breaks, no reply comes in time, or the reply is none to such a command.
    pub fn reply(&mut self, follows: Follows) -> Result<Reply, ClientError> {
        self.input.get_mut().until = self.patience.map(|patience| Instant::now() + patience);
        let patience = self.patience.unwrap_or(REPLY_PATIENCE);
        Reply::read(&mut self.input, follows).map_err(|error| match &self.input.get_ref().source {
            PlaintextSource::Plain { begin } if *begin == TLS_ALERT => {
                ClientError::Tls { remote: self.remote.clone(), problem: TlsProblem::OnlyTls }
            }
            _ => ClientError::of_server(error, &self.remote, patience),
        })
    }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let limit = self.until;
        let left = || limit.map_or(Ok(None), time_left);
        let count = match &mut self.source {
            PlaintextSource::Plain { begin } => {
                self.socket.0.set_read_timeout(left()?)?;
                let count = (&*self.socket.0).read(buffer)?;
                let missing = TLS_ALERT.len().saturating_sub(begin.len());
                begin.extend_from_slice(&buffer[..count.min(missing)]);
                count
            }
            #[cfg(feature = "tls")]
            PlaintextSource::Tls { channel, incoming } => channel.read(incoming, buffer, left)?,
        };
        let until = self.until.unwrap_or_else(|| Instant::now() + REPLY_PATIENCE);
        self.until = Some(until + time_of(count));
        Ok(count)
    }
}

impl Socket {
    /// Ends the connection: a thread that waits for a reply gets an error.
    pub fn close(&self) {
        // This fails only if the connection has ended already.
        let _ = self.0.shutdown(Shutdown::Both);
    }

    /// Sends bytes, as long as the peer takes them. The time that a slow line needs is added to `until`.
    pub(super) fn send(&self, mut bytes: &[u8], mut until: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            self.0.set_write_timeout(time_left(until)?)?;
            match (&*self.0).write(bytes) {
                Ok(count) => {
                    bytes = &bytes[count..];
                    until += time_of(count);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends what the socket takes without waiting.
    #[cfg(feature = "tls")]
    pub(super) fn send_at_once(&self, bytes: &[u8]) -> nix::Result<usize> {
        send(self.0.as_raw_fd(), bytes, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL)
    }

    /// The address of the other end; none of a UNIX socket.
    pub(super) fn peer(&self) -> Option<IpAddr> {
        self.0.peer_addr().ok().map(|address| address.ip())
    }
}

fn connected(remote: &Remote) -> Result<Socket, ClientError> {
    let failed = |error| ClientError::Connect { remote: remote.clone(), error };
    let stream = dial(&remote.address, || Ok(CONNECT_PATIENCE)).map_err(|error| {
        failed(match error {
            DialError::Lookup(_) => io::Error::other("no such host; correct the name, or check DNS"),
            DialError::NoAddress => io::Error::new(ErrorKind::NotFound, "the host has no address"),
            DialError::Refused(error) => error,
        })
    })?;
    if let Address::Tcp { .. } = remote.address {
        stream.set_nodelay(true).map_err(failed)?;
    }
    Ok(Socket(Arc::new(stream)))
}

/// Returns the time until then.
///
/// # Errors
/// If it is over.
pub(super) fn time_left(until: Instant) -> io::Result<Option<Duration>> {
    match until.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(ErrorKind::TimedOut.into()),
        left => Ok(Some(left)),
    }
}

/// The time that a slow line needs for some bytes.
pub(super) fn time_of(bytes: usize) -> Duration {
    Duration::from_secs(bytes as u64) / BYTES_PER_SECOND_MIN
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;

    /// Connects to a server that runs `serve`.
    fn connected(serve: impl FnOnce(TcpStream) + Send + 'static) -> Connection {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        thread::spawn(move || serve(listener.accept().expect("a connection").0));
        Connection::open(&Address::Tcp { host: "127.0.0.1".to_owned(), port }).expect("it listens")
    }

    /// Sends a byte of an endless reply before the time for a byte is over, again and again.
    fn drip(mut stream: TcpStream, reply: &'static [u8]) {
        for byte in reply.iter().chain(std::iter::repeat(&b'A')) {
            if stream.write_all(&[*byte]).is_err() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn a_reply_that_drips_is_given_up() {
        for reply in [&b""[..], b"OK 100000\r\n---\n"] {
            let mut connection = connected(|stream| drip(stream, reply));
            connection.set_patience(Some(Duration::from_millis(400)));
            let result = connection.ask_for(Follows::Statistics, "stats");
            assert!(matches!(result, Err(ClientError::Silent { .. })), "{result:?}");
        }
    }

    #[test]
    fn a_long_reply_has_more_time() {
        let (ours, mut theirs) = UnixStream::pair().expect("descriptors are left");
        let until = Instant::now() + REPLY_PATIENCE;
        let mut input = Timed {
            socket: Socket(Arc::new(TcpStream::from(OwnedFd::from(ours)))),
            until: Some(until),
            source: PlaintextSource::Plain { begin: Vec::new() },
        };
        theirs.write_all(&[b'x'; 4096]).expect("there is room");
        assert_eq!(input.read(&mut [0; 4096]).expect("there are bytes"), 4096);
        assert_eq!(input.until, Some(until + Duration::from_secs(1) / 16));
    }
}
