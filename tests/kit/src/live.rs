//! A [`Peer`] that is a server process, reached over sockets, in real time.

use std::path::Path;
use std::thread;
use std::time::Duration;

use super::peer::{Patience, Peer, Received};
use super::process::{REPLY_PATIENCE, ServerProcess, Transport};
use super::stream::Stream;

const QUIET_PATIENCE: Duration = Duration::from_millis(60);

pub struct Live {
    server: ServerProcess,
    /// Kept for the first `open`, so that the server counts no connection that the conversation does not open.
    first: Option<Stream>,
    streams: Vec<Option<Stream>>,
    /// The connection that has sent last and got nothing since. Before another one sends, the server must have
    /// received this input.
    unanswered: Option<usize>,
}

impl Live {
    /// Starts a server.
    pub fn start(program: &Path, transport: Transport, flags: &[String]) -> Self {
        Self::with(ServerProcess::start(program, transport, flags))
    }

    /// Wraps a running server and its first connection.
    pub fn with((server, first): (ServerProcess, Stream)) -> Self {
        Self { server, first: Some(first), streams: Vec::new(), unanswered: None }
    }

    fn stream(&mut self, conn: usize) -> &mut Stream {
        self.streams[conn].as_mut().expect("the connection is open")
    }

    fn settle_unless(&mut self, conn: usize) {
        if self.unanswered.take().is_some_and(|other| other != conn) {
            self.server.settle();
        }
    }
}

impl Peer for Live {
    fn open(&mut self) -> usize {
        let stream = self.first.take().unwrap_or_else(|| self.server.connect());
        self.streams.push(Some(stream));
        self.streams.len() - 1
    }

    fn send(&mut self, conn: usize, bytes: &[u8]) {
        self.settle_unless(conn);
        self.stream(conn).send(bytes);
        self.unanswered = Some(conn);
    }

    fn receive(&mut self, conn: usize, patience: Patience) -> Received {
        let received = self.stream(conn).receive(match patience {
            Patience::Reply => REPLY_PATIENCE,
            Patience::Quiet => QUIET_PATIENCE,
        });
        // Silence does not tell whether the server has received the input: it may be waiting for a core.
        if received != Received::Silence {
            self.unanswered.take_if(|last| *last == conn);
        }
        received
    }

    fn advance(&mut self, span: Duration) {
        thread::sleep(span);
    }

    fn half_close(&mut self, conn: usize) {
        self.settle_unless(conn);
        self.stream(conn).half_close();
        self.server.settle();
    }

    fn close(&mut self, conn: usize) {
        self.settle_unless(conn);
        self.streams[conn].take().expect("the connection is open").close();
        self.server.settle();
    }

    fn drain(&mut self) {
        self.server.drain();
        self.server.settle();
    }
}
