//! A server with a load, and the client that triggers something in it.

use std::time::{Duration, Instant};

use beanring::server::{Config, HttpAccess, Protocol, Token};
use beanring_testkit::config::config;
use beanring_testkit::measured::{Iterations, MeasuredServer};

use crate::doors::Door;
use crate::scenarios::Place;
use crate::talk::{Talk, http, put, put_batch};

/// The tube that loads are about.
pub const TUBE: &str = "load";

/// Defaults of the program.
const TUBES_MAX: u32 = 100_000;
const WATCHES_MAX: u32 = 65_536;

/// Jobs of one batch.
pub const BATCH: usize = 1000;

pub struct World {
    /// How clients come in.
    pub door: Door,
    /// Sends what is measured. Uses [`TUBE`], and watches it alone unless the load says otherwise.
    pub actor: Talk,
    /// Prepares things. Uses [`TUBE`] too.
    pub helper: Talk,
    /// The clients of the load.
    pub clients: Vec<Talk>,
    /// What a client of the load sends again after it has got a reply.
    pub again: Option<String>,
    /// Jobs of the load that the actor may delete.
    pub jobs: Vec<u64>,
    /// The end of something that the load has begun.
    pub ends_at: Option<Instant>,
    /// Dropped last: clients leave before the server stops.
    pub server: MeasuredServer,
}

impl World {
    pub fn new(place: Place) -> Self {
        Self::with_token(place, None)
    }

    /// Starts a server whose API needs this token.
    pub fn with_token(place: Place, token: Option<Token>) -> Self {
        // Users have tokens of their own.
        let token = token.filter(|_| place.door != Door::Users);
        let server = place.door.serve(place.io, server_config(token), None);
        let [actor, helper] = [(); 2].map(|()| worker(&server, place.door));
        let (clients, jobs) = (Vec::new(), Vec::new());
        Self { door: place.door, actor, helper, clients, again: None, jobs, ends_at: None, server }
    }

    /// Connects a client.
    pub fn connect(&self) -> Talk {
        self.door.connect(&self.server)
    }

    /// Connects a client that uses and watches [`TUBE`] alone.
    pub fn worker(&self) -> Talk {
        worker(&self.server, self.door)
    }

    /// Asks over HTTP. Returns the status of the response.
    pub fn http(&self, method: &str, path: &str) -> u16 {
        http(self.door.enter(&self.server, Protocol::Http), method, path, &self.door.field())
    }

    /// Puts many jobs without tags into the used tube of the helper. Returns their ids.
    pub fn put_many(&mut self, count: usize, delay: u32) -> Vec<u64> {
        self.put_tagged(count, delay, |_| String::new())
    }

    /// Puts many jobs, each with its tags.
    pub fn put_tagged(&mut self, count: usize, delay: u32, tags: impl Fn(usize) -> String) -> Vec<u64> {
        let mut ids = Vec::new();
        for from in (0..count).step_by(BATCH) {
            let jobs = from..count.min(from + BATCH);
            ids.extend(
                self.helper.expect(&put_batch(jobs.map(|at| put(delay, &tags(at)))), "INSERTED_BATCH"),
            );
        }
        ids
    }

    /// Measures the iterations of the server from the begin of an action until it has nothing more to do.
    pub fn measure(&mut self, action: impl FnOnce(&mut Self)) -> Iterations {
        self.mend();
        self.server.await_idle();
        let start = self.server.reset();
        action(self);
        self.server.await_idle();
        self.server.since(&start)
    }

    /// Brings clients that were served back into the state of the load.
    pub fn mend(&mut self) {
        let Self { server, clients, again, .. } = self;
        let Some(again) = again else { return };
        server.await_idle();
        for client in clients {
            if client.drain() {
                client.send(again);
            }
        }
    }

    /// Sleeps until what the load has begun has ended.
    pub fn await_end(&self) {
        let end = self.ends_at.expect("the load has an end") + Duration::from_millis(50);
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
    }
}

fn worker(server: &MeasuredServer, door: Door) -> Talk {
    let mut client = door.connect(server);
    client.expect(&format!("use {TUBE}\r\n"), "USING");
    client.expect(&format!("watch {TUBE}\r\n"), "WATCHING");
    client.expect("ignore default\r\n", "WATCHING");
    client
}

/// The limits of a server without flags.
pub fn server_config(token: Option<Token>) -> Config {
    Config {
        max_tubes: Some(TUBES_MAX),
        max_watches: Some(WATCHES_MAX),
        sub_second: true,
        http_access: HttpAccess { token, allow_writes: true },
        ..config(beanring::values::limits::JOB_BYTES_DEFAULT)
    }
}
