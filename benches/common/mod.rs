//! The engine with clients, and what a server is made of, ready to be measured.
#![allow(dead_code)]

use beanring::ids::{ClientKey, ConnId, JobId, JobKey};
use beanring::limits::{JOB_BYTES_DEFAULT, LOG_FILE_BYTES_DEFAULT, METRICS_PREFIX_DEFAULT};
use beanring::queue::{Engine, NewJob, Notice, Reserved};
use beanring::server::{Config, HostFacts, Hosts};
use beanring::time::{Span, Time};
use beanring::tube_name::TubeName;

/// With the CR LF.
pub const BODY_BYTES: u32 = 66;
const TTR: u32 = 1000;

pub struct Rig {
    pub engine: Engine,
    pub now: Time,
    pub client: ClientKey,
    /// Client `n` is at `n`.
    pub clients: Vec<ClientKey>,
}

impl Rig {
    pub fn new() -> Self {
        let mut engine = Engine::new(1);
        let client = engine.connect(ConnId { slot: 0, generation: 0 });
        Self { engine, now: Time::from_nanos(1_000_000_000_000), client, clients: vec![client] }
    }

    pub fn connect(&mut self) -> ClientKey {
        let client = self.engine.connect(ConnId { slot: self.clients.len() as u32, generation: 0 });
        self.clients.push(client);
        client
    }

    /// A client that uses and watches just this tube.
    pub fn connect_to(&mut self, tube: &str) -> ClientKey {
        let client = self.connect();
        self.move_to(client, tube);
        client
    }

    pub fn move_to(&mut self, client: ClientKey, tube: &str) {
        let name = TubeName::new(tube.as_bytes()).expect("a valid name");
        self.engine.use_tube(client, name);
        self.engine.watch(client, name);
        self.engine.ignore(client, TubeName::DEFAULT);
    }

    /// A new job that the engine has yet to be given.
    pub fn new_job(&mut self, pri: u32, delay: u32) -> NewJob {
        let body = self.engine.bodies_mut().allocate(BODY_BYTES).expect("there is memory");
        NewJob { id: self.engine.next_id(), pri, delay, ttr: TTR, body }
    }

    pub fn put(&mut self, client: ClientKey, pri: u32, delay: u32) -> JobKey {
        let new = self.new_job(pri, delay);
        self.engine.put(client, new, self.now)
    }

    pub fn reserve(&mut self, client: ClientKey) -> JobId {
        match self.engine.reserve(client, Some(Span::ZERO), self.now) {
            Reserved::Job(job) => self.engine.jobs().get(job).id,
            other => panic!("there is a job, not {other:?}"),
        }
    }

    /// The full life of a job, a microsecond long.
    pub fn cycle(&mut self, client: ClientKey) {
        self.now = self.now + Span::from_nanos(1000);
        self.put(client, 5000, 0);
        let id = self.reserve(client);
        self.engine.delete(client, id, self.now);
    }

    /// The full life of a job that goes to a worker that waits, which then waits again.
    pub fn hand_over(&mut self, producer: ClientKey) {
        self.now = self.now + Span::from_nanos(1000);
        self.put(producer, 5000, 0);
        let Some(Notice::Reserved(conn, job)) = self.engine.next_notice() else { panic!("somebody waits") };
        let worker = self.clients[conn.slot as usize];
        let id = self.engine.jobs().get(job).id;
        self.engine.delete(worker, id, self.now);
        self.engine.reserve(worker, None, self.now);
    }
}

/// Of a server without limits and without a host.
pub fn config() -> Config {
    let host = HostFacts {
        pid: 1,
        version: String::new(),
        id: String::new(),
        hostname: String::new(),
        os: String::new(),
        platform: String::new(),
        driver: "none",
        memory_bytes: 0,
    };
    Config {
        max_job_bytes: JOB_BYTES_DEFAULT,
        max_memory_bytes: None,
        max_connections: None,
        max_tubes: None,
        max_watches: None,
        log_file_bytes: LOG_FILE_BYTES_DEFAULT,
        allow_foreign_requests: false,
        http_hosts: Hosts::any(),
        metrics_prefix: METRICS_PREFIX_DEFAULT.to_owned(),
        started: Time::ZERO,
        seed: 1,
        host,
    }
}

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        beanring::intrusive::mix(self.0)
    }
}
