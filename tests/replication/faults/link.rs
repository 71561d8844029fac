//! A link between a server and its database. Each byte takes a time. Sessions can end so that the database notices first, or it alone.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// A piece of a stream, and when it arrives.
type Piece = (Instant, Vec<u8>);

pub struct SlowLink {
    pub address: SocketAddr,
    state: Arc<State>,
}

struct State {
    /// The time of a byte in one direction.
    latency: Duration,
    is_cut: AtomicBool,
    /// Both ends of each connection: that of the server, and that of the database.
    connections: Mutex<Vec<[TcpStream; 2]>>,
}

impl SlowLink {
    /// A link to this port of this machine that adds `round_trip` to each exchange.
    pub fn new(port: u16, round_trip: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let address = listener.local_addr().expect("it listens");
        let state =
            State { latency: round_trip / 2, is_cut: AtomicBool::new(false), connections: Mutex::default() };
        let state = Arc::new(state);
        let accepting = state.clone();
        thread::spawn(move || {
            for server in listener.incoming().map_while(Result::ok) {
                accepting.connect(server, port);
            }
        });
        Self { address, state }
    }

    /// Closes what leads to the database. The server learns of it later.
    pub fn end_sessions(&self) {
        self.close_at_database();
    }

    /// Closes what leads to the database. The server sees connections on which nothing comes.
    pub fn cut(&self) {
        self.state.is_cut.store(true, Ordering::SeqCst);
        self.close_at_database();
    }

    fn close_at_database(&self) {
        for [_, database] in &*self.state.connections.lock().expect("nothing panics") {
            let _ = database.shutdown(Shutdown::Both);
        }
    }

    /// Ends the connections that were cut. Others can be made again.
    pub fn heal(&self) {
        self.state.is_cut.store(false, Ordering::SeqCst);
        for [server, _] in self.state.connections.lock().expect("nothing panics").drain(..) {
            let _ = server.shutdown(Shutdown::Both);
        }
    }
}

impl State {
    fn connect(self: &Arc<Self>, server: TcpStream, port: u16) {
        let is_cut = self.is_cut.load(Ordering::SeqCst);
        // Nothing answers a cut link, as if packets were lost.
        let database = if is_cut { server.try_clone() } else { TcpStream::connect(("127.0.0.1", port)) };
        let Ok(database) = database else { return };
        let clone = |stream: &TcpStream| stream.try_clone().expect("there are descriptors");
        self.connections.lock().expect("nothing panics").push([clone(&server), clone(&database)]);
        if is_cut {
            return;
        }
        for (from, to) in [(&server, &database), (&database, &server)] {
            from.set_nodelay(true).expect("a socket option");
            let (sender, receiver) = mpsc::channel();
            let (from, to, state) = (clone(from), clone(to), self.clone());
            thread::spawn(move || state.read(from, &sender));
            let state = self.clone();
            thread::spawn(move || state.write(to, &receiver));
        }
    }

    fn read(&self, mut from: TcpStream, pieces: &Sender<Piece>) {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(bytes) = from.read(&mut buffer)
            && bytes > 0
            && pieces.send((Instant::now() + self.latency, buffer[..bytes].to_vec())).is_ok()
        {}
    }

    fn write(&self, mut to: TcpStream, pieces: &Receiver<Piece>) {
        for (at, piece) in pieces {
            thread::sleep(at.saturating_duration_since(Instant::now()));
            if self.is_cut.load(Ordering::SeqCst) || to.write_all(&piece).is_err() {
                break;
            }
        }
        if !self.is_cut.load(Ordering::SeqCst) {
            thread::sleep(self.latency);
            let _ = to.shutdown(Shutdown::Both);
        }
    }
}
