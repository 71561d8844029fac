//! The queue engine with clients.

use beanring::queue::{Engine, NewJob, Notice, Reserved};
use beanring::time::{Seconds, Span, Time};
use beanring::values::ids::{ClientKey, ConnId, JobId, JobKey};
use beanring::values::tags::Tags;
use beanring::values::tube_name::TubeName;

/// Size of each job body, with its CR LF.
pub const BODY_BYTES: u32 = 66;
const TTR: Seconds = Seconds::whole(1000);

/// An engine, its clock and its clients.
pub struct Rig {
    pub engine: Engine,
    pub now: Time,
    pub client: ClientKey,
    /// Client `n` is at index `n`.
    pub clients: Vec<ClientKey>,
}

impl Default for Rig {
    fn default() -> Self {
        Self::new()
    }
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

    /// Connects a client that uses and watches only this tube.
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

    /// Allocates a job that is not in the engine yet.
    pub fn new_job(&mut self, pri: u32, delay: u32) -> NewJob {
        let body = self.engine.bodies_mut().allocate(BODY_BYTES).expect("there is memory");
        NewJob { id: self.engine.next_id(), pri, delay: delay.into(), ttr: TTR, body, tags_key: None }
    }

    /// Puts ready jobs of these concurrency keys in turn, and has a client reserve one of each. The limit is one.
    pub fn park(&mut self, client: ClientKey, keys: u32, jobs: u32) {
        for number in 0..jobs {
            let tags = format!("con:key-{}", number % keys);
            let tags_key = self.engine.store_tags(Tags::new(tags.as_bytes()).expect("the tag is valid"));
            let new = NewJob { tags_key, ..self.new_job(0, 0) };
            self.engine.put(client, new, self.now);
        }
        let holder = self.connect();
        for _ in 0..keys {
            assert!(matches!(self.engine.reserve(holder, None, self.now), Reserved::Job(_)));
        }
        assert_eq!(self.engine.reserve(holder, Some(Span::ZERO), self.now), Reserved::TimedOut);
    }

    pub fn put(&mut self, client: ClientKey, pri: u32, delay: u32) -> JobKey {
        let new = self.new_job(pri, delay);
        self.engine.put(client, new, self.now)
    }

    pub fn reserve(&mut self, client: ClientKey) -> JobId {
        match self.engine.reserve(client, Some(Span::ZERO), self.now) {
            Reserved::Job(job) => self.engine.jobs().get(job).id,
            other => panic!("reserve returns a job, not {other:?}"),
        }
    }

    /// Puts, reserves and deletes a job. A microsecond passes.
    pub fn cycle(&mut self, client: ClientKey) {
        self.now = self.now + Span::from_nanos(1000);
        self.put(client, 5000, 0);
        let id = self.reserve(client);
        self.engine.delete(client, id, self.now);
    }

    /// Puts a job for a waiting worker, which receives and deletes it and then waits again.
    pub fn deliver(&mut self, producer: ClientKey) {
        self.now = self.now + Span::from_nanos(1000);
        self.put(producer, 5000, 0);
        let Some(Notice::Reserved(conn, job)) = self.engine.next_notice() else { panic!("a worker waits") };
        let worker = self.clients[conn.slot as usize];
        let id = self.engine.jobs().get(job).id;
        self.engine.delete(worker, id, self.now);
        self.engine.reserve(worker, None, self.now);
    }
}
