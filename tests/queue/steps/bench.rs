//! An engine with clients, whose steps are counted. A bench that goes out of scope is checked.

use beanring::queue::{BACKGROUND_STEPS, Engine, JobState, NewJob, Notice, Reserved};
use beanring::time::{Seconds, Span, Time};
use beanring::values::ids::{ClientKey, ConnId, JobId, JobKey};
use beanring::values::tags::Tags;
use beanring::values::tube_name::TubeName;

pub const START: Time = Time::from_nanos(1_000_000_000_000);
/// Background work and timers share the steps of a call.
pub const MOVED_MAX: u32 = 2 * BACKGROUND_STEPS;
/// Many times the calls that any work of these tests takes.
const CALLS_MAX: u32 = 100_000;
pub const URGENT: u32 = 0;
pub const USUAL: u32 = 5000;

pub struct Bench {
    pub engine: Engine,
    pub now: Time,
    pub conns: u32,
    /// A client with a tube of its own.
    pub apart: ClientKey,
    pub amid: ClientKey,
    /// There are too many jobs for a check.
    pub is_large: bool,
    /// All elementary steps until they were last counted.
    spent_before: u64,
}

pub fn named(text: &str) -> TubeName<'_> {
    TubeName::new(text.as_bytes()).expect("a valid name")
}

/// Asserts that the number of steps is within the bounds for this number of jobs.
pub fn assert_steps(steps: u32, jobs: u32) {
    assert!(steps >= jobs / MOVED_MAX, "{steps} steps for {jobs} jobs");
    assert!(steps <= jobs / (BACKGROUND_STEPS / 2) + 2, "{steps} steps for {jobs} jobs");
}

impl Bench {
    pub fn new() -> Self {
        Self::seeded(0)
    }

    pub fn seeded(seed: u64) -> Self {
        let mut engine = Engine::new(seed);
        let mut connect = |slot| engine.connect(ConnId { slot, generation: 0 });
        let (apart, amid) = (connect(0), connect(1));
        let mut bench = Self { engine, now: START, conns: 2, apart, amid, is_large: false, spent_before: 0 };
        bench.use_only(apart, "apart");
        bench
    }

    pub fn connect(&mut self) -> ClientKey {
        self.conns += 1;
        self.engine.connect(ConnId { slot: self.conns, generation: 0 })
    }

    pub fn connect_to(&mut self, tube: &str) -> ClientKey {
        let client = self.connect();
        self.use_only(client, tube);
        client
    }

    fn use_only(&mut self, client: ClientKey, tube: &str) {
        self.use_and_watch(client, tube);
        self.engine.ignore(client, TubeName::DEFAULT);
    }

    pub fn use_and_watch(&mut self, client: ClientKey, tube: &str) {
        self.engine.use_tube(client, named(tube));
        self.engine.watch(client, named(tube));
    }

    pub fn slot(&self, client: ClientKey) -> u32 {
        self.engine.clients().get(client).conn.slot
    }

    // Jobs.

    pub fn put(&mut self, client: ClientKey, pri: u32, delay: u32) -> JobId {
        self.put_job(client, pri, delay, 0, "")
    }

    pub fn put_tagged(&mut self, client: ClientKey, pri: u32, tags: &str) -> JobId {
        self.put_job(client, pri, 0, 0, tags)
    }

    pub fn put_job(&mut self, client: ClientKey, pri: u32, delay: u32, body_bytes: u32, tags: &str) -> JobId {
        let id = self.engine.next_id();
        let body = self.engine.bodies_mut().allocate(body_bytes + 2).expect("there is memory");
        let tags = if tags.is_empty() { Some(Tags::NONE) } else { Tags::new(tags.as_bytes()) };
        let tags_key = self.engine.store_tags(tags.expect("valid tags"));
        let ttr = Seconds::whole(100);
        self.engine.put(client, NewJob { id, pri, delay: delay.into(), ttr, body, tags_key }, self.now);
        id
    }

    pub fn put_many(&mut self, client: ClientKey, count: u32, delay: u32) {
        for _ in 0..count {
            self.put(client, USUAL, delay);
        }
    }

    pub fn reserve(&mut self, client: ClientKey) -> Reserved {
        self.engine.reserve(client, None, self.now)
    }

    /// Reserves a job without waiting.
    pub fn reserve_now(&mut self, client: ClientKey) -> Reserved {
        self.engine.reserve(client, Some(Span::ZERO), self.now)
    }

    /// Reserves a job, which must be there.
    pub fn reserve_id(&mut self, client: ClientKey) -> JobId {
        let reserved = self.reserve_now(client);
        let Reserved::Job(job) = reserved else { panic!("there is a job, not {reserved:?}") };
        self.engine.jobs().get(job).id
    }

    /// Reserves and buries this many jobs.
    pub fn bury_many(&mut self, client: ClientKey, count: u32) {
        for _ in 0..count {
            let id = self.reserve_id(client);
            assert!(self.engine.bury(client, id, USUAL, self.now));
        }
    }

    pub fn ids_of(&self, jobs: &[JobKey]) -> Vec<JobId> {
        jobs.iter().map(|&job| self.engine.jobs().get(job).id).collect()
    }

    pub fn state_of(&self, id: JobId) -> JobState {
        let job = self.engine.jobs().find(id).expect("the job is there");
        self.engine.jobs().get(job).state
    }

    pub fn in_state(&self, state: JobState) -> u32 {
        self.engine.totals().in_state(state)
    }

    pub fn ready(&self) -> u32 {
        self.in_state(JobState::Ready)
    }

    pub fn reserved(&self) -> u32 {
        self.in_state(JobState::Reserved)
    }

    // Steps.

    pub fn is_due(&self) -> bool {
        self.engine.next_deadline().is_some_and(|at| at <= self.now)
    }

    pub fn pass(&mut self, span: Span) {
        self.now = self.now + span;
    }

    /// Calls the engine. Returns whether work is left.
    pub fn step(&mut self) -> bool {
        self.engine.step(self.now)
    }

    /// Puts, reserves and deletes a job that is more urgent than all others.
    fn cycle(&mut self, client: ClientKey) {
        let id = self.put(client, URGENT, 0);
        assert_eq!(self.reserve_id(client), id, "the most urgent job of the tube comes first");
        assert!(self.engine.delete(client, id, self.now));
    }

    /// Steps until nothing is due, while two clients work. `progress` counts the jobs moved so far. Returns the number of
    /// steps.
    pub fn run_all_steps(&mut self, progress: impl Fn(&Self) -> u32) -> u32 {
        let mut steps = 0;
        while self.is_due() {
            let before = progress(self);
            self.step();
            let moved = progress(self) - before;
            assert!(moved <= MOVED_MAX, "step {steps} moved {moved} jobs");
            self.cycle(self.apart);
            self.cycle(self.amid);
            steps += 1;
        }
        assert!(!self.step(), "no work is left");
        steps
    }

    /// Steps until nothing is due, in as many steps as this number of jobs takes.
    pub fn run_in_steps(&mut self, jobs: u32, progress: impl Fn(&Self) -> u32) {
        let steps = self.run_all_steps(progress);
        assert_steps(steps, jobs);
    }

    /// Returns the number of elementary steps since the last call.
    pub fn spent(&mut self) -> u32 {
        let before = std::mem::replace(&mut self.spent_before, self.engine.budget().spent());
        u32::try_from(self.spent_before - before).expect("a test takes fewer steps")
    }

    /// Takes the number of elementary steps since the last call.
    pub fn take_steps(&mut self, most: u32) -> u32 {
        let steps = self.spent();
        assert!(steps <= most, "a call took {steps} steps, more than {most}");
        steps
    }

    /// Calls the engine until nothing is due. Returns the number of calls, and that of elementary steps, at most `most` in each call.
    pub fn finish(&mut self, most: u32) -> (u32, u32) {
        let (mut calls, mut steps) = (0, 0);
        while self.is_due() {
            self.step();
            steps += self.take_steps(most);
            calls += 1;
            assert!(calls < CALLS_MAX, "the work has an end");
        }
        (calls, steps)
    }

    // Notices.

    pub fn notices(&mut self) -> Vec<Notice> {
        std::iter::from_fn(|| self.engine.next_notice()).collect()
    }

    pub fn only_notice(&mut self) -> Option<Notice> {
        let mut notices = self.notices();
        assert!(notices.len() < 2, "{notices:?}");
        notices.pop()
    }

    /// Takes the notices, which are all of jobs. Returns the slots of the clients that have reserved them.
    pub fn reserved_by(&mut self) -> Vec<u32> {
        let slot = |notice| match notice {
            Notice::Reserved(conn, _) => conn.slot,
            other => panic!("{other:?}"),
        };
        self.notices().into_iter().map(slot).collect()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if !self.is_large && !std::thread::panicking() {
            self.engine.check();
        }
    }
}
