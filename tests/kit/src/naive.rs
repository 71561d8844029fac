//! The queue as the protocol describes it, in vectors that are searched from end to end. Comments say what the protocol
//! leaves open.

mod bulk;
mod compare;
mod concurrency;
mod draws;
mod failures;
mod groups;
mod job_waits;
mod lapses;
mod rules;
mod statistics;
mod tags;
mod time;

use std::collections::BTreeMap;

use beanring::queue::{Counts, JobEnd, JobState, JobTotals, Repeated, RuleCounts};
use beanring::time::{Seconds, Span, Time};
use beanring::values::ids::{ClientKey, TubeKey, TubeSlot};
use beanring::values::reserve_mode::ReserveMode;

pub use bulk::Bulk;
pub use lapses::Lapses;
pub use rules::{Ruled, Value};
pub use tags::{Kept, Tags, number_of_key, number_of_tube};

/// A tube; 0 is `default`.
pub type Name = u16;
/// A client, numbered in the order of connecting.
pub type Conn = u32;

/// The holder of jobs that have been reserved since before the start: no client.
pub const RECOVERED: Conn = Conn::MAX;

const MARGIN: Span = Span::from_secs(1);

/// The memory that kept and promised idempotency keys may take.
#[derive(Clone, Copy)]
pub struct KeyShare {
    pub bytes_max: usize,
    /// The length of the name of a tube.
    pub name_bytes: fn(Name) -> usize,
}

#[derive(Default)]
pub struct Model {
    pub now: Time,
    /// By id.
    pub jobs: Vec<Job>,
    /// In the order of `list-tubes`.
    pub tubes: Vec<Tube>,
    pub clients: Vec<Client>,
    /// Notices to clients.
    pub told: Vec<(Conn, Told)>,
    /// What is counted of the whole queue. [`Model::job_totals`] has the rest.
    pub totals: JobTotals,
    /// Keys of deleted jobs, some of them longer than they are kept.
    pub kept: Vec<Kept>,
    pub key_share: Option<KeyShare>,
    pub key_refusals: u64,
    pub rules: BTreeMap<Name, Ruled>,
    /// Tubes that unfinished moves name.
    pub pinned: Vec<Name>,
    pub rule_totals: RuleCounts,
    pub last_id: u64,
    /// Numbers waits, and the arrivals of jobs at their places.
    pub turns: u64,
    /// Of the whole queue.
    pub lapses: Lapses,
    /// Reservations survive a restart.
    pub keeps_reservations: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Told {
    Reserved(u64),
    TimedOut,
    DeadlineSoon,
    JobEnded(JobEnd),
}

#[derive(Debug)]
pub struct Job {
    pub id: u64,
    pub tube: Name,
    pub pri: u32,
    pub ttr: Seconds,
    pub created: Time,
    /// Of the last put or release.
    pub delay: Seconds,
    pub place: Place,
    /// When the job got to this place.
    pub since: Time,
    pub counts: Counts,
    /// The times and texts of its notes, the oldest first.
    pub notes: Vec<(Time, Vec<u8>)>,
    pub tags: Tags,
    /// The size of the body.
    pub bytes: u64,
    /// Numbers the jobs of a place in the order in which they came there.
    pub entered: u64,
    /// It has no tags and no fraction of a second, and has been ready in its tube since it was put.
    pub is_fresh: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    Ready,
    Reserved { by: Conn, until: Time, turn: u64 },
    Delayed { until: Time },
    Buried { turn: u64 },
    // The group is done if `is_free`: the job is released soon after a restart.
    Held { until: Time, turn: u64, is_free: bool },
}

#[derive(Debug)]
pub struct Tube {
    pub name: Name,
    /// The key of the engine, for the order of events at the same instant.
    pub key: TubeKey,
    pub pause: Option<(Time, Span)>,
    pub total_jobs: u64,
    pub deletes: u64,
    pub pauses: u64,
    pub timeouts: u64,
    pub buries: u64,
    pub lapses: Lapses,
}

#[derive(Debug)]
pub struct Client {
    pub conn: Conn,
    /// The key of the engine, for the order of events at the same instant.
    pub key: ClientKey,
    pub used: Name,
    /// In the order of `list-tubes-watched`.
    pub watched: Vec<Name>,
    pub mode: ReserveMode,
    pub wait: Option<Wait>,
    pub job_wait: Option<JobWait>,
    pub producer: bool,
    pub worker: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Wait {
    turn: u64,
    until: Option<Time>,
}

/// The wait for the end of a job.
#[derive(Clone, Copy, Debug)]
pub struct JobWait {
    pub id: u64,
    turn: u64,
    until: Time,
}

/// What becomes of a job whose body is complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stored {
    Job,
    Repeated(Repeated),
    /// The tube is full.
    Refused,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reserve {
    Job(u64),
    /// There are jobs, and chance decides: [`Model::draw`] takes the one that the server has chosen.
    Draw,
    DeadlineSoon,
    TimedOut,
    Waiting,
}

impl Tube {
    /// An empty tube that nothing has been counted for.
    pub fn new(name: Name, key: TubeKey) -> Self {
        let lapses = Lapses::default();
        Self { name, key, pause: None, total_jobs: 0, deletes: 0, pauses: 0, timeouts: 0, buries: 0, lapses }
    }
}

impl Job {
    pub fn state(&self) -> JobState {
        match self.place {
            Place::Ready => JobState::Ready,
            Place::Reserved { .. } => JobState::Reserved,
            Place::Delayed { .. } => JobState::Delayed,
            Place::Buried { .. } => JobState::Buried,
            Place::Held { .. } => JobState::Held,
        }
    }

    pub fn deadline(&self) -> Option<Time> {
        match self.place {
            Place::Reserved { until, .. } | Place::Delayed { until } => Some(until),
            Place::Ready | Place::Buried { .. } | Place::Held { .. } => None,
        }
    }

    pub fn is_held_by(&self, conn: Conn) -> bool {
        matches!(self.place, Place::Reserved { by, .. } if by == conn)
    }

    /// Whether the client may finish the reserved job: it holds it, or no client does.
    fn is_finished_by(&self, conn: Conn, keeps_reservations: bool) -> bool {
        self.is_held_by(conn) || keeps_reservations && self.is_held_by(RECOVERED)
    }
}

impl Model {
    pub fn new() -> Self {
        let mut model = Self::default();
        model.make_tube(0);
        model
    }

    // Commands.

    pub fn connect(&mut self, conn: Conn, key: ClientKey) {
        let (mode, wait, job_wait) = (ReserveMode::Default, None, None);
        let (producer, worker) = (false, false);
        let client = Client { conn, key, used: 0, watched: vec![0], mode, wait, job_wait, producer, worker };
        self.clients.push(client);
    }

    /// Reserved jobs are returned in the order of reservation, so waiting clients get them in this order. Then the watches are
    /// removed from the front, as in beanstalkd, and the last watch takes the place of the first.
    ///
    /// The jobs have failed, unless the client has quit.
    pub fn disconnect(&mut self, conn: Conn, has_quit: bool) {
        self.end_wait(conn);
        while let Some(at) = self.held_longest(conn) {
            self.end_held(at, has_quit);
        }
        while !self.client(conn).watched.is_empty() {
            self.client(conn).watched.swap_remove(0);
            self.drop_tubes();
        }
        self.clients.retain(|client| client.conn != conn);
        self.drop_tubes();
    }

    pub fn end_wait(&mut self, conn: Conn) {
        let client = self.client(conn);
        (client.wait, client.job_wait) = (None, None);
    }

    pub fn use_tube(&mut self, conn: Conn, tube: Name) {
        self.make_tube(tube);
        self.client(conn).used = tube;
        self.drop_tubes();
    }

    pub fn watch(&mut self, conn: Conn, tube: Name) -> usize {
        self.make_tube(tube);
        let watched = &mut self.client(conn).watched;
        if !watched.contains(&tube) {
            watched.push(tube);
        }
        watched.len()
    }

    /// Returns `None` if the tube is the only one.
    pub fn ignore(&mut self, conn: Conn, tube: Name) -> Option<usize> {
        let watched = &mut self.client(conn).watched;
        if let Some(at) = watched.iter().position(|&watched| watched == tube) {
            if watched.len() == 1 {
                return None;
            }
            watched.swap_remove(at);
        }
        let count = watched.len();
        self.drop_tubes();
        Some(count)
    }

    /// Takes the id of a job whose body is not received yet.
    pub fn take_id(&mut self, conn: Conn) -> u64 {
        self.last_id += 1;
        self.mark_producer(conn);
        self.last_id
    }

    pub fn mark_producer(&mut self, conn: Conn) {
        self.client(conn).producer = true;
    }

    /// Stores a job whose body is complete, unless it repeats another, or its tube is full.
    pub fn store(
        &mut self,
        conn: Conn,
        id: u64,
        pri: u32,
        times: [Seconds; 2],
        tags: Tags,
        bytes: u64,
    ) -> Stored {
        if let Some(repeated) = self.repeat(conn, pri, tags) {
            return Stored::Repeated(repeated);
        }
        if !self.admits_key(conn, tags) || self.admits(conn, 1, bytes).is_err() {
            return Stored::Refused;
        }
        self.store_new(conn, id, pri, times, tags, bytes);
        Stored::Job
    }

    fn store_new(
        &mut self,
        conn: Conn,
        id: u64,
        pri: u32,
        [delay, ttr]: [Seconds; 2],
        tags: Tags,
        bytes: u64,
    ) {
        let tube = self.get(conn).used;
        let ttr = self.ttr_of_put(tube, ttr);
        self.totals.total_jobs += 1;
        self.tube(tube).total_jobs += 1;
        let place = self.first_place(delay, tags);
        let at = self.jobs.partition_point(|job| job.id < id);
        let (created, since, counts) = (self.now, self.now, Counts::default());
        let is_fresh = place == Place::Ready && tags == Tags::default() && ttr.millis() == 0;
        let entered = self.next_turn();
        self.jobs.insert(
            at,
            Job {
                id,
                tube,
                pri,
                ttr,
                created,
                delay,
                place,
                since,
                counts,
                notes: Vec::new(),
                tags,
                bytes,
                entered,
                is_fresh,
            },
        );
        self.serve_after(at);
    }

    pub fn reserve(&mut self, conn: Conn, patience: Option<Span>) -> Reserve {
        self.client(conn).worker = true;
        if let Some(at) = self.best_ready(conn) {
            let is_drawn = self.get(conn).mode.is_weighted();
            return if is_drawn { Reserve::Draw } else { Reserve::Job(self.hand_out(at, conn)) };
        }
        let margin_begins = self.jobs.iter().filter(|job| job.is_held_by(conn)).filter_map(Job::deadline);
        if margin_begins.map(|until| until.back(MARGIN)).any(|margin| margin <= self.now) {
            return Reserve::DeadlineSoon;
        }
        if patience == Some(Span::ZERO) {
            return Reserve::TimedOut;
        }
        let wait = Wait { turn: self.next_turn(), until: patience.map(|patience| self.now + patience) };
        self.client(conn).wait = Some(wait);
        Reserve::Waiting
    }

    pub fn reserve_job(&mut self, conn: Conn, id: u64) -> bool {
        let may =
            |job: &Job| !matches!(job.state(), JobState::Reserved | JobState::Held) && !self.is_at_limit(job);
        let Some(at) = self.find(id, may) else { return false };
        self.client(conn).worker = true;
        self.hold(at, conn);
        true
    }

    pub fn delete(&mut self, conn: Conn, id: u64) -> bool {
        let keeps_reservations = self.keeps_reservations;
        let may =
            |job: &Job| job.state() != JobState::Reserved || job.is_finished_by(conn, keeps_reservations);
        let Some(at) = self.find(id, may) else { return false };
        self.remove(at);
        true
    }

    pub fn bury(&mut self, conn: Conn, id: u64, pri: u32) -> bool {
        let Some(at) = self.find_reserved(conn, id) else { return false };
        self.note_lapse(at);
        self.jobs[at].pri = pri;
        let con = self.jobs[at].tags.con;
        self.bury_at(at);
        self.end_job(id, JobEnd::Buried);
        self.serve_key(con);
        true
    }

    pub fn touch(&mut self, conn: Conn, id: u64) -> bool {
        let Some(at) = self.find_reserved(conn, id) else { return false };
        let next_turn = self.next_turn();
        let job = &mut self.jobs[at];
        let restarted = self.now + job.ttr.span();
        if let Place::Reserved { by, until, turn } = &mut job.place {
            if *by == RECOVERED {
                (*by, *turn) = (conn, next_turn);
            }
            *until = restarted;
        }
        true
    }

    pub fn kick(&mut self, conn: Conn, bound: u32) -> u32 {
        let tube = self.client(conn).used;
        let buried = self.jobs.iter().any(|job| job.tube == tube && job.state() == JobState::Buried);
        let mut kicked = 0;
        while kicked < bound {
            let next = if buried { self.oldest_buried(tube) } else { self.soonest_delayed(tube) };
            let Some(at) = next else { break };
            self.jobs[at].counts.kicks += 1;
            self.totals.kicks += 1;
            self.make_ready(at);
            kicked += 1;
        }
        kicked
    }

    pub fn kick_job(&mut self, id: u64) -> bool {
        let may = |job: &Job| !matches!(job.state(), JobState::Ready | JobState::Reserved);
        let Some(at) = self.find(id, may) else { return false };
        self.jobs[at].counts.kicks += 1;
        self.totals.kicks += 1;
        self.make_ready(at);
        true
    }

    pub fn pause(&mut self, tube: Name, length: Span) -> bool {
        let until = self.now + length;
        let Some(tube) = self.tubes.iter_mut().find(|there| there.name == tube) else { return false };
        tube.pauses += 1;
        tube.pause = (length > Span::ZERO).then_some((until, length));
        self.serve();
        true
    }

    pub fn peek_ready(&self, conn: Conn) -> Option<u64> {
        self.most_urgent(self.get(conn).used).map(|at| self.jobs[at].id)
    }

    pub fn peek_delayed(&self, conn: Conn) -> Option<u64> {
        self.soonest_delayed(self.get(conn).used).map(|at| self.jobs[at].id)
    }

    pub fn peek_reserved(&self, conn: Conn) -> Option<u64> {
        let used = self.get(conn).used;
        let first = self.first_by(|job| match job.place {
            Place::Reserved { turn, .. } if job.tube == used => Some((turn, job.id)),
            _ => None,
        });
        first.map(|at| self.jobs[at].id)
    }

    /// The first ids above `after`, or none if there is no such tube.
    pub fn list_jobs(&self, tube: Name, state: JobState, after: u64, limit: u32) -> Option<Vec<u64>> {
        self.tubes.iter().find(|there| there.name == tube)?;
        let is_shown = |job: &&Job| job.tube == tube && job.state() == state && job.id > after;
        Some(self.jobs.iter().filter(is_shown).map(|job| job.id).take(limit as usize).collect())
    }

    pub fn peek_buried(&self, conn: Conn) -> Option<u64> {
        self.oldest_buried(self.get(conn).used).map(|at| self.jobs[at].id)
    }

    // Helpers.

    /// Whether the client holds the job.
    pub fn holds(&self, conn: Conn, id: u64) -> bool {
        self.jobs.iter().any(|job| job.id == id && job.is_held_by(conn))
    }

    pub fn get(&self, conn: Conn) -> &Client {
        self.clients.iter().find(|client| client.conn == conn).expect("the client is there")
    }

    fn next_turn(&mut self) -> u64 {
        self.turns += 1;
        self.turns
    }

    /// The place of a reserved job that the client may finish.
    fn find_reserved(&self, conn: Conn, id: u64) -> Option<usize> {
        self.find(id, |job| job.is_finished_by(conn, self.keeps_reservations))
    }

    /// The clients for which this is something, the smallest first.
    fn in_order(&self, turn: impl Fn(&Client) -> Option<u64>) -> Vec<Conn> {
        let mut order: Vec<_> =
            self.clients.iter().filter_map(|client| Some((turn(client)?, client.conn))).collect();
        order.sort();
        order.into_iter().map(|(_, conn)| conn).collect()
    }

    /// Assigns jobs to waiting clients: the client that has waited longest gets its most urgent job first.
    fn serve(&mut self) {
        for conn in self.in_order(|client| client.wait.map(|wait| wait.turn)) {
            let best = self.best_ready(conn);
            self.end_wait_with(conn, best);
        }
    }

    /// Gives a job, if there is one, to a client that waits.
    fn end_wait_with(&mut self, conn: Conn, at: Option<usize>) {
        if let Some(at) = at {
            let id = self.hand_out(at, conn);
            self.client(conn).wait = None;
            self.told.push((conn, Told::Reserved(id)));
        }
    }

    fn best_ready(&self, conn: Conn) -> Option<usize> {
        self.best_ready_in(&self.get(conn).watched)
    }

    /// The most urgent job that a reserve from these tubes gets.
    fn best_ready_in(&self, tubes: &[Name]) -> Option<usize> {
        self.first_by(|job| {
            self.urgency(job).filter(|_| tubes.contains(&job.tube) && !self.is_closed(job.tube))
        })
    }

    /// The rank of a job that a reserve may get.
    fn urgency(&self, job: &Job) -> Option<(u32, u64)> {
        (job.state() == JobState::Ready && !self.is_at_limit(job)).then_some((job.pri, job.id))
    }

    fn hold(&mut self, at: usize, conn: Conn) -> u64 {
        let turn = self.next_turn();
        self.note_lapse(at);
        let job = &mut self.jobs[at];
        (job.since, job.is_fresh) = (self.now, false);
        let until = self.now + job.ttr.span();
        job.place = Place::Reserved { by: conn, until, turn };
        job.counts.reserves += 1;
        job.id
    }

    fn make_ready(&mut self, at: usize) {
        self.note_lapse(at);
        let turn = self.next_turn();
        let job = &mut self.jobs[at];
        (job.place, job.since, job.entered) = (Place::Ready, self.now, turn);
        self.serve_after(at);
    }

    /// Records the latency that ends when the job leaves its place. The deletion of a ready job does not call this.
    fn note_lapse(&mut self, at: usize) {
        let Job { tube, since, ref place, .. } = self.jobs[at];
        let span = self.now.since(since).as_nanos();
        let tube = self.tubes.iter_mut().find(|there| there.name == tube).expect("the tube is there");
        for lapses in [&mut tube.lapses, &mut self.lapses] {
            match place {
                Place::Ready => lapses.note(true, span, self.now),
                Place::Reserved { .. } => lapses.note(false, span, self.now),
                Place::Delayed { .. } | Place::Buried { .. } | Place::Held { .. } => {}
            }
        }
    }

    fn ready_or_delayed(&self, delay: Seconds) -> Place {
        if delay == Seconds::ZERO { Place::Ready } else { Place::Delayed { until: self.now + delay.span() } }
    }

    /// The job with the smallest rank, of those that have one.
    fn first_by<R: Ord>(&self, rank: impl Fn(&Job) -> Option<R>) -> Option<usize> {
        self.jobs.iter().enumerate().filter_map(|(at, job)| Some((rank(job)?, at))).min().map(|(_, at)| at)
    }

    fn held_longest(&self, conn: Conn) -> Option<usize> {
        self.first_by(|job| match job.place {
            Place::Reserved { by, turn, .. } if by == conn => Some(turn),
            _ => None,
        })
    }

    fn soonest(&self, is_it: impl Fn(&Job) -> bool) -> Option<usize> {
        self.first_by(|job| is_it(job).then_some((job.deadline(), job.id)))
    }

    fn soonest_delayed(&self, tube: Name) -> Option<usize> {
        self.soonest(|job| job.tube == tube && job.state() == JobState::Delayed)
    }

    /// The job that a reserve from the tube gets, if that is not paused.
    fn most_urgent(&self, tube: Name) -> Option<usize> {
        self.first_by(|job| self.urgency(job).filter(|_| job.tube == tube))
    }

    fn oldest_buried(&self, tube: Name) -> Option<usize> {
        self.first_by(|job| match job.place {
            Place::Buried { turn } if job.tube == tube => Some(turn),
            _ => None,
        })
    }

    fn make_tube(&mut self, name: Name) {
        if self.tubes.iter().all(|tube| tube.name != name) {
            let key = TubeKey { slot: TubeSlot(u32::MAX), generation: 0 };
            self.tubes.push(Tube::new(name, key));
        }
    }

    fn drop_tubes(&mut self) {
        let is_wanted = |name: Name| {
            name == 0
                || self.pinned.contains(&name)
                || self.rules.get(&name).is_some_and(Ruled::is_throttled)
                || self.jobs.iter().any(|job| job.tube == name)
                || self.clients.iter().any(|client| client.used == name || client.watched.contains(&name))
        };
        if let Some(at) = self.tubes.iter().position(|tube| !is_wanted(tube.name)) {
            self.tubes.swap_remove(at);
            assert!(self.tubes.iter().all(|tube| is_wanted(tube.name)), "one tube is removed at a time");
        }
    }

    fn find(&self, id: u64, may: impl Fn(&Job) -> bool) -> Option<usize> {
        self.jobs.iter().position(|job| job.id == id && may(job))
    }

    fn client(&mut self, conn: Conn) -> &mut Client {
        self.clients.iter_mut().find(|client| client.conn == conn).expect("the client is there")
    }

    fn tube(&mut self, name: Name) -> &mut Tube {
        self.tubes.iter_mut().find(|tube| tube.name == name).expect("the tube is there")
    }
}
