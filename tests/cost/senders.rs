//! A thread that sends for many connections.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use beanring::server::Protocol;
use beanring_testkit::stream::Stream;
use rustls::ClientConnection;

use crate::world::World;

/// The most plaintext in a record (RFC 8446, 5.1).
const RECORD_BYTES: usize = 16 * 1024;

/// A connection of such a thread.
pub trait Actor: Send {
    /// Does what can be done at once.
    fn step(&mut self, buffer: &mut [u8]);
}

/// The thread. Dropping it closes the connections.
pub struct Senders {
    stops: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Senders {
    /// Starts the thread once all connections are open.
    pub fn start<A: Actor + 'static>(actors: impl Iterator<Item = A>) -> Self {
        let stops = Arc::new(AtomicBool::new(false));
        let mut actors: Vec<A> = actors.collect();
        let is_over = Arc::clone(&stops);
        let run = move || {
            let mut buffer = vec![0; 256 * 1024];
            while !is_over.load(Ordering::SeqCst) {
                actors.iter_mut().for_each(|actor| actor.step(&mut buffer));
            }
        };
        Self { stops, thread: Some(thread::spawn(run)) }
    }
}

impl Drop for Senders {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::SeqCst);
        self.thread.take().map(JoinHandle::join).expect("it is joined once").expect("it does not panic");
    }
}

/// A connection that sends a text again and again, and reads what it gets.
pub struct Sender {
    tcp: TcpStream,
    tls: Option<Box<ClientConnection>>,
    text: String,
    /// How much of the text is sent.
    at: usize,
}

impl Sender {
    pub fn connect(world: &World, protocol: Protocol, text: String) -> Self {
        let mut stream = world.door.enter(&world.server, protocol);
        if let (Protocol::Beanstalk, Some(command)) = (protocol, world.door.greeting()) {
            stream.send(command.as_bytes());
        }
        let (tcp, tls) = parts(stream);
        Self { tcp, tls, text, at: 0 }
    }

    /// Reads what has arrived.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.tcp.read(buffer) };
        let bytes = tls.read_tls(&mut self.tcp)?;
        tls.process_new_packets().map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        while tls.reader().read(buffer).is_ok_and(|bytes| bytes > 0) {}
        Ok(bytes)
    }

    /// Sends as much as fits.
    fn write(&mut self) -> io::Result<()> {
        let rest = &self.text.as_bytes()[self.at..];
        let bytes = match &mut self.tls {
            None => self.tcp.write(rest)?,
            Some(tls) if tls.wants_write() => return tls.write_tls(&mut self.tcp).map(drop),
            Some(tls) => {
                let bytes = rest.len().min(RECORD_BYTES);
                tls.writer().write_all(&rest[..bytes])?;
                bytes
            }
        };
        self.at = (self.at + bytes) % self.text.len();
        Ok(())
    }
}

impl Actor for Sender {
    fn step(&mut self, buffer: &mut [u8]) {
        match self.read(buffer) {
            Ok(0) => panic!("the server closed the connection"),
            Err(error) if error.kind() != ErrorKind::WouldBlock => panic!("{error}"),
            _ => {}
        }
        // Over TLS, the second call sends what the first one has encrypted.
        for _ in 0..1 + usize::from(self.tls.is_some()) {
            if let Err(error) = self.write() {
                assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
            }
        }
    }
}

/// The socket of a connection, which does not block from now on, and its end of TLS.
pub fn parts(stream: Stream) -> (TcpStream, Option<Box<ClientConnection>>) {
    let (tcp, tls) = match stream {
        Stream::Tcp(tcp) => (tcp, None),
        Stream::Tls(stream) => (stream.tcp, Some(stream.tls)),
        Stream::Unix(_) => unreachable!("no door is a UNIX socket"),
    };
    tcp.set_nonblocking(true).expect("a TCP socket");
    (tcp, tls)
}
