//! A connection to a server: blocking, with buffers, and in two halves for pipelining.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use super::error::ClientError;
use super::escape::escaped;
use super::reply::{Parsed, Reply};
use crate::io::socket::Address;
use crate::time::Seconds;

/// The longest time for the connection itself.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// The longest time for a reply to a command that does not wait for a job.
pub const REPLY_PATIENCE: Duration = Duration::from_secs(60);

/// Buffered output. It is sent when it reaches this size.
const SEND_BYTES: usize = 64 * 1024;

/// The longest line of a reply. Those of beanstalk servers have less than 300 bytes.
const LINE_BYTES_MAX: u64 = 64 * 1024;

/// The most that follows a line: the largest job body, 1 GiB, and room for lists of tubes.
const DATA_BYTES_MAX: u64 = 4 << 30;

/// Commands of which the replies are not read yet. The replies of some hundred bytes each must fit into the buffers of a
/// socket, because the server reads no command while it cannot send.
pub(super) const ASKED_MAX: usize = 64;

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A shared socket: one thread may send while another receives, and a third may end both.
#[derive(Clone, Debug)]
pub struct Socket(Arc<Stream>);

/// A connection to a server.
#[derive(Debug)]
pub struct Connection {
    sender: Sender,
    receiver: Receiver,
}

/// The half of a connection that sends commands.
#[derive(Debug)]
pub struct Sender {
    socket: Socket,
    address: Address,
    buffer: Vec<u8>,
}

/// The half of a connection that receives replies.
#[derive(Debug)]
pub struct Receiver {
    input: BufReader<Socket>,
    address: Address,
    patience: Option<Duration>,
}

impl Connection {
    /// Connects to a server.
    ///
    /// # Errors
    /// If the server cannot be reached.
    pub fn open(address: &Address) -> Result<Self, ClientError> {
        let failed = |error| ClientError::Connect { address: address.clone(), error };
        let socket = Socket(Arc::new(stream(address).map_err(failed)?));
        let patience = Some(REPLY_PATIENCE);
        socket.set_read_timeout(patience).map_err(failed)?;
        let input = BufReader::with_capacity(SEND_BYTES, socket.clone());
        Ok(Self {
            sender: Sender { socket, address: address.clone(), buffer: Vec::new() },
            receiver: Receiver { input, address: address.clone(), patience },
        })
    }

    /// Sends a command line without its CR LF, and returns the reply.
    ///
    /// # Errors
    /// If the connection breaks, or the reply is none of the protocol.
    pub fn ask(&mut self, command: impl AsRef<[u8]>) -> Result<Reply, ClientError> {
        self.sender.line(command)?;
        self.sender.flush()?;
        self.receiver.reply()
    }

    /// Sends `put` with a body, and returns the reply. The times are delay and time to run.
    ///
    /// # Errors
    /// As for [`Self::ask`].
    pub fn put(&mut self, pri: u32, times: [Seconds; 2], body: &[u8]) -> Result<Reply, ClientError> {
        self.sender.put(pri, times, "", body)?;
        self.sender.flush()?;
        self.receiver.reply()
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
    pub fn ask_all<T>(
        &mut self,
        commands: &[T],
        line: impl Fn(&T) -> String,
        mut each: impl FnMut(&T, Reply) -> Result<(), ClientError>,
    ) -> Result<(), ClientError> {
        for some in commands.chunks(ASKED_MAX) {
            for command in some {
                self.sender.line(line(command))?;
            }
            self.sender.flush()?;
            for command in some {
                each(command, self.receiver.reply()?)?;
            }
        }
        Ok(())
    }

    /// Sets how long to wait for a reply; `None` waits forever.
    ///
    /// # Errors
    /// If the connection is broken.
    pub fn set_patience(&mut self, patience: Option<Duration>) -> Result<(), ClientError> {
        self.receiver.set_patience(patience)
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
            (&self.socket).write_all(body).map_err(|error| self.broken(error))?;
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
        let result = (&self.socket).write_all(&self.buffer);
        self.buffer.clear();
        result.map_err(|error| self.broken(error))
    }

    fn flush_if_full(&mut self) -> Result<(), ClientError> {
        if self.buffer.len() >= SEND_BYTES { self.flush() } else { Ok(()) }
    }

    fn broken(&self, error: io::Error) -> ClientError {
        ClientError::Broken { address: self.address.clone(), error }
    }
}

impl Receiver {
    /// Waits for a reply.
    ///
    /// # Errors
    /// If the connection breaks, no reply comes in time, or the reply is none of the protocol.
    pub fn reply(&mut self) -> Result<Reply, ClientError> {
        let line = self.line()?;
        match Reply::parse(line) {
            Parsed::Complete(reply) => Ok(reply),
            Parsed::NeedsData { line, bytes } if bytes < DATA_BYTES_MAX => {
                let mut data = Vec::new();
                let read = self.input.by_ref().take(bytes + 2).read_to_end(&mut data);
                read.map_err(|error| self.failed(error))?;
                if data.len() as u64 != bytes + 2 {
                    return Err(self.failed(ErrorKind::UnexpectedEof.into()));
                }
                if !data.ends_with(b"\r\n") {
                    return Err(self.foreign(line));
                }
                data.truncate(bytes as usize);
                Ok(Reply::with_data(line, data))
            }
            Parsed::NeedsData { line, .. } | Parsed::Foreign(line) => Err(self.foreign(line)),
        }
    }

    fn set_patience(&mut self, patience: Option<Duration>) -> Result<(), ClientError> {
        self.patience = patience;
        self.input.get_ref().set_read_timeout(patience).map_err(|error| self.failed(error))
    }

    fn line(&mut self) -> Result<Vec<u8>, ClientError> {
        let mut line = Vec::new();
        let read = self.input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        read.map_err(|error| self.failed(error))?;
        if line.ends_with(b"\r\n") {
            line.truncate(line.len() - 2);
            return Ok(line);
        }
        if line.len() as u64 == LINE_BYTES_MAX || line.ends_with(b"\n") {
            return Err(self.foreign(line));
        }
        Err(self.failed(ErrorKind::UnexpectedEof.into()))
    }

    fn foreign(&self, line: Vec<u8>) -> ClientError {
        ClientError::Foreign { address: self.address.clone(), line }
    }

    fn failed(&self, error: io::Error) -> ClientError {
        let address = self.address.clone();
        match (error.kind(), self.patience) {
            (ErrorKind::WouldBlock | ErrorKind::TimedOut, Some(patience)) => {
                ClientError::Silent { address, patience }
            }
            _ => ClientError::Broken { address, error },
        }
    }
}

impl Socket {
    /// Ends the connection: a thread that waits for a reply gets an error.
    pub fn close(&self) {
        // This fails only if the connection has ended already.
        let _ = match &*self.0 {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }

    fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match &*self.0 {
            Stream::Tcp(stream) => stream.set_read_timeout(timeout),
            Stream::Unix(stream) => stream.set_read_timeout(timeout),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &*self.0 {
            Stream::Tcp(stream) => (&*stream).read(buffer),
            Stream::Unix(stream) => (&*stream).read(buffer),
        }
    }
}

impl Write for &Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &*self.0 {
            Stream::Tcp(stream) => (&*stream).write(bytes),
            Stream::Unix(stream) => (&*stream).write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Tries each address of a host name.
fn stream(address: &Address) -> io::Result<Stream> {
    match address {
        Address::Unix(path) => UnixStream::connect(path).map(Stream::Unix),
        Address::Tcp { host, port } => {
            let mut refusal = io::Error::new(ErrorKind::NotFound, "the host has no address");
            let places = (host.as_str(), *port)
                .to_socket_addrs()
                .map_err(|_| io::Error::other("no such host; correct the name, or check DNS"))?;
            for place in places {
                match TcpStream::connect_timeout(&place, CONNECT_PATIENCE) {
                    Ok(stream) => {
                        stream.set_nodelay(true)?;
                        return Ok(Stream::Tcp(stream));
                    }
                    Err(error) => refusal = error,
                }
            }
            Err(refusal)
        }
    }
}
