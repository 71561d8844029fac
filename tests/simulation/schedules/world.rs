//! A server with its job log, its clocks and a client. Time advances from one event to the next.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use beanring::io::wal_files::recover;
use beanring::protocol::reply::Reply;
use beanring::queue::Engine;
use beanring::server::{
    Config, Effect, Entry, Event, Observation, Observer, Protocol, Server, Service, handle,
};
use beanring::time::{Span, Time};
use beanring::values::ids::ConnId;
use beanring::values::tube_rules::{Rule, RuleKey, RuleValue, TubeRules};
use beanring::wal::{Durability, LogReply, LogRequest, Wal, WalConfig};
use beanring_testkit::config::config;
use beanring_testkit::connection::send_all;
use beanring_testkit::disk::{Crash, Disk};
use beanring_testkit::random::Random;

use super::history::{History, compare, counted, tube_name};
use super::model::{Change, FILLER, FULL_TUBE, FULL_TUBE_JOBS};
use super::times::SECOND;
use super::{BODY_BYTES_MAX, LOOK_AHEAD};

const SEGMENT_BYTES: u64 = 64 * 1024;
/// More segments than a run needs.
const SEGMENTS: usize = 10_000;
/// How often the driver reads the system clock.
const CLOCK_LOOK: Span = Span::from_secs(5);
/// A clock that goes back by less was not set, in nanoseconds.
const SET_BACK_MIN: u64 = 60 * SECOND;
/// The longest time until the server looks at its schedules.
const LOOK: Span = Span::from_secs(10);
/// The longest time until a server that may run its schedules again does so.
const RETRY: Span = Span::from_secs(1);
/// More iterations than any moment needs.
const SPINS_MAX: usize = 20_000;

/// The fixed parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// When it begins, and how long it is, in seconds.
    pub begin: u64,
    pub span: u64,
    pub schedules: usize,
    pub actions: usize,
    pub durability: Durability,
    /// The job log goes across a network.
    pub network: bool,
    /// The memory limit, in bytes.
    pub memory: Option<u64>,
    /// The number of jobs that workers leave.
    pub jobs_max: usize,
    pub crashes: bool,
    pub clock_jumps: bool,
}

/// The replies to each `schedule-put` that the server has carried out: whether there is a schedule.
#[derive(Clone, Default)]
struct Puts(Rc<RefCell<Vec<bool>>>);

pub struct World {
    pub setting: Setting,
    pub random: Random,
    server: Server,
    puts: Puts,
    pub disk: Disk,
    conn: ConnId,
    received: Vec<u8>,
    /// Commands whose replies nobody has read.
    unread: usize,
    pub now: Time,
    /// How far the system clock is ahead of that of the server, and how far the server knows it to be, in nanoseconds.
    ahead: i64,
    known_ahead: i64,
    next_clock_look: Time,
    /// How long the run is going on, in nanoseconds.
    pub elapsed: u64,
    pub history: History,
    pub is_draining: bool,
    /// The memory limit has refused something since memory was freed.
    pub is_short: bool,
    /// When the server looks at schedules that it does not look at when they are due. This alone is taken from it.
    turns: BTreeMap<String, u64>,
    pub done: Done,
    pub trace: bool,
}

/// What a run has seen.
#[derive(Clone, Copy, Default, Debug)]
pub struct Done {
    pub runs: u64,
    pub others: u64,
    pub starts: u64,
    pub lost: u64,
}

impl Observer for Puts {
    fn observe(&mut self, _: ConnId, observation: Observation<'_>) {
        if let Observation::Schedule(reply) = observation {
            self.0.borrow_mut().push(reply == Reply::Scheduled);
        }
    }

    fn observe_changes(&mut self, _: Vec<(ConnId, u32)>) {}
}

fn config_of(setting: Setting) -> Config {
    let mut rules = TubeRules::default();
    let max = RuleValue::Number(FULL_TUBE_JOBS as u64);
    rules.set(Rule::new(tube_name(FULL_TUBE), RuleKey::MaxJobs, max).expect("it is a rule"));
    Config {
        max_memory_bytes: setting.memory,
        tube_rules: [(FULL_TUBE.to_owned(), rules)].into(),
        ..config(BODY_BYTES_MAX)
    }
}

fn started(setting: Setting, disk: &Disk, now: Time, puts: &Puts) -> Server {
    let wal = WalConfig {
        durability: setting.durability,
        segment_bytes: SEGMENT_BYTES,
        destination: disk.destination(),
        keep_reservations: false,
    };
    let mut engine = Engine::new(0);
    let log = recover(disk, wal, &mut engine, now).unwrap_or_else(|error| panic!("{error}"));
    let mut server = Server::with_wal(config_of(setting), engine, Some(log));
    server.observe(Box::new(puts.clone()));
    server
}

/// The length of the reply at the beginning, if it is complete.
fn reply_bytes(received: &[u8]) -> Option<usize> {
    let line = received.iter().position(|&byte| byte == b'\n')? + 1;
    let text = std::str::from_utf8(&received[..line]).expect("a line is ASCII").trim_end();
    let words: Vec<&str> = text.split(' ').collect();
    let body: usize = match words[0] {
        "OK" | "RESERVED" | "FOUND" => words[words.len() - 1].parse::<usize>().expect("a length") + 2,
        _ => 0,
    };
    Some(line + body).filter(|&bytes| bytes <= received.len())
}

impl World {
    pub fn new(setting: Setting, random: Random) -> Self {
        let now = Time::from_nanos(setting.begin * SECOND);
        let new_disk = if setting.network { Disk::network } else { Disk::new };
        let disk = new_disk(SEGMENTS, false);
        let puts = Puts::default();
        let mut server = started(setting, &disk, now, &puts);
        let conn = server.accept(now, Protocol::Beanstalk, Entry::Plain(None));
        Self {
            setting,
            random,
            server,
            puts,
            disk,
            conn,
            received: Vec::new(),
            unread: 0,
            now,
            ahead: 0,
            known_ahead: 0,
            next_clock_look: now,
            elapsed: 0,
            history: History::default(),
            is_draining: false,
            is_short: false,
            turns: BTreeMap::new(),
            done: Done::default(),
            trace: std::env::var_os("BEANRING_TEST_TRACE").is_some(),
        }
    }

    pub fn log(&self, text: impl FnOnce() -> String) {
        if self.trace {
            println!("{:>12.3} {} {}", self.elapsed as f64 / SECOND as f64, date(self.system()), text());
        }
    }

    /// The time of the system clock, as far as the server knows.
    pub fn system(&self) -> u64 {
        self.now.as_nanos().saturating_add_signed(self.known_ahead)
    }

    pub fn true_system(&self) -> u64 {
        self.now.as_nanos().saturating_add_signed(self.ahead)
    }

    pub fn end(&self) -> u64 {
        self.setting.span * SECOND
    }

    fn advance(&mut self, to: Time) {
        self.elapsed += to.since(self.now).as_nanos();
        self.now = self.now.max(to);
    }

    fn event(&mut self, event: Event<'_>) {
        handle(&mut self.server, self.now, event);
        self.carry_out();
        self.follow();
    }

    pub fn turn(&mut self) {
        if self.now >= self.next_clock_look {
            self.next_clock_look = self.now + CLOCK_LOOK;
            let before = self.system();
            self.known_ahead = self.ahead;
            if before > self.system() + SET_BACK_MIN {
                self.history.add(Change::SetBack(self.system()));
            }
            self.event(Event::SystemClock(Time::from_nanos(self.true_system())));
        }
        self.server.turn(self.now);
        self.carry_out();
        self.follow();
    }

    pub fn finish_disk_operation(&mut self) {
        if let Some(outcome) = self.disk.finish_one(&mut self.random) {
            self.event(Event::Log(LogReply::Files(outcome)));
        }
    }

    fn carry_out(&mut self) {
        while let Some(effect) = self.server.poll_effect() {
            match effect {
                Effect::Send(conn) => self.received.extend(send_all(&mut self.server, conn, self.now)),
                Effect::Log => {
                    while let Some(LogRequest::Files(operation)) = self.server.poll_log_request(self.now) {
                        self.disk.begin(operation);
                    }
                }
                Effect::Pause(_) | Effect::Resume(_) | Effect::LogClient(..) => {}
                Effect::Close(_) | Effect::Fail => panic!("{effect:?} has no reason"),
            }
        }
    }

    /// Has the model run what the server has run since the last call.
    fn follow(&mut self) {
        let system = self.system();
        while let Some(name) = self.next_run(system) {
            assert!(!self.is_draining, "{name} runs while the server drains");
            let change = self.history.state.run_due(&name, system, || self.new_job());
            self.log(|| format!("due: {change:?}"));
            match change {
                Change::Run(..) => self.done.runs += 1,
                _ => self.done.others += 1,
            }
            self.history.add(change);
            self.turns.insert(name, system);
        }
        let others = self.server.engine().schedules_after(None).filter(|one| one.next() != Some(one.turn()));
        self.turns = others.map(|one| (one.name().as_str().to_owned(), one.turn().as_nanos())).collect();
    }

    /// Of the schedules with which the server has done something, the one whose turn has come first.
    fn next_run(&self, system: u64) -> Option<String> {
        let (state, engine) = (&self.history.state, self.server.engine());
        let has_changed = |name: &str| {
            let found = engine.schedule(tube_name(name));
            found.is_some_and(|found| counted(&found.progress) != state.schedules[name].counted)
        };
        let changed = state.due(system).filter(|&(_, name)| has_changed(name));
        let first = changed.min_by_key(|&(next, name)| (self.turns.get(name).copied().unwrap_or(next), name));
        first.map(|(_, name)| name.to_owned())
    }

    /// The first job of the server that the model does not have.
    pub fn new_job(&self) -> u64 {
        let last = self.history.state.last_id;
        let ids = self.server.engine().jobs().iter().map(|(_, job)| job.id.0);
        ids.filter(|&id| id > last).min().expect("the server has put a job")
    }

    pub fn has_new_job(&self) -> bool {
        self.server.engine().jobs().len() > self.history.state.jobs.len()
    }

    /// The counts of a schedule, as the server has them.
    pub fn counted(&self, name: &str) -> Option<super::model::Counted> {
        self.server.engine().schedule(tube_name(name)).map(|found| counted(&found.progress))
    }

    /// Sends a command, which is carried out at once.
    pub fn send(&mut self, command: &str) {
        self.log(|| command.trim_end().escape_debug().to_string());
        for _ in 0..SPINS_MAX {
            if !self.server.wal().is_some_and(|wal| wal.must_wait()) {
                break;
            }
            self.finish_disk_operation();
            self.turn();
        }
        self.unread += 1;
        handle(&mut self.server, self.now, Event::Received { conn: self.conn, bytes: command.as_bytes() });
        self.carry_out();
    }

    /// Waits until a `schedule-put` is carried out. Returns whether there is a schedule.
    pub fn wait_for_put(&mut self) -> bool {
        for spin in 0..SPINS_MAX {
            if let Some(is_there) = self.puts.0.borrow_mut().pop() {
                return is_there;
            }
            // Without memory for its body its line is refused.
            let has_reply = self.received.iter().filter(|&&byte| byte == b'\n').count() == self.unread;
            if self.is_short && has_reply && self.received.ends_with(b"OUT_OF_MEMORY\r\n") {
                return false;
            }
            if spin % 2 == 0 && self.disk.is_busy() {
                self.finish_disk_operation();
                continue;
            }
            if let Some(at) = self.server.next_deadline().filter(|_| spin % 2 == 0) {
                self.advance(at.min(self.now + RETRY));
            }
            self.turn();
        }
        panic!("the schedule-put is not carried out");
    }

    /// Waits for the reply to the last command. What was done before that command is then safe.
    pub fn reply(&mut self) -> String {
        let done = self.history.len();
        for _ in 0..SPINS_MAX {
            if let Some(bytes) = reply_bytes(&self.received) {
                let reply: Vec<u8> = self.received.drain(..bytes).collect();
                self.unread -= 1;
                self.history.written = self.history.written.max(done);
                if self.setting.durability == Durability::Always {
                    self.history.synced = self.history.synced.max(done);
                }
                return String::from_utf8(reply).expect("a reply is text");
            }
            self.turn();
            self.finish_disk_operation();
        }
        panic!("there is no reply");
    }

    /// Runs iterations until the server has nothing to do at this time, and nothing to write.
    pub fn settle(&mut self) {
        for _ in 0..SPINS_MAX {
            self.finish_disk_operation();
            self.turn();
            let deadline = self.server.next_deadline().unwrap_or(Time::from_nanos(u64::MAX));
            if deadline <= self.now || self.disk.is_busy() {
                continue;
            }
            let is_late =
                !self.is_draining && !self.is_short && self.history.state.next_due(self.system()).is_some();
            let patience = if is_late { RETRY } else { self.sync_interval() };
            if deadline <= self.now + patience {
                self.advance(deadline);
                continue;
            }
            break;
        }
        assert!(!self.disk.is_busy(), "the server always has work and makes no progress");
        self.note_settled();
    }

    const fn sync_interval(&self) -> Span {
        if let Durability::Within(interval) = self.setting.durability { interval } else { Span::ZERO }
    }

    fn note_settled(&mut self) {
        assert!(!self.server.wal().is_some_and(Wal::is_gathering), "all is written");
        let all = self.history.len();
        self.history.written = all;
        if self.setting.durability != Durability::Never {
            self.history.synced = all;
        }
        self.history.settle();
        let system = self.system();
        if let Some(name) = self.history.state.due(system).next().map(|(_, name)| name) {
            let (now, deadline) = (self.now, self.server.next_deadline());
            assert!(
                self.is_draining || self.is_short,
                "{name} is due at {now:?} and does not run before {deadline:?}"
            );
        } else if let Some(next) = self.history.state.next_due(system + LOOK_AHEAD)
            && !self.is_draining
        {
            let latest = (self.now + Span::from_nanos(next - system)).min(self.now + LOOK);
            let deadline = self.server.next_deadline();
            assert!(
                deadline.is_some_and(|at| at <= latest),
                "the next look is at {deadline:?}, after {latest:?}"
            );
        }
    }

    /// Compares the server with the model.
    pub fn compare(&self) {
        if let Err(difference) = compare(&self.history.state, self.server.engine(), self.system()) {
            panic!("at {}: {difference}", date(self.system()));
        }
    }

    /// When the next schedule is due by the clock of the server, if it comes until then.
    pub fn next_due(&self, until: Time) -> Option<Time> {
        let system = self.system();
        let span = until.since(self.now).as_nanos();
        let due = self.history.state.next_due(system + span)?;
        Some(self.now + Span::from_nanos(due.saturating_sub(system)))
    }

    /// Lets time pass. The driver wakes the server for each run, and now and then without a reason.
    pub fn pass(&mut self, span: u64) {
        let until = self.now + Span::from_nanos(span);
        while self.now < until {
            let is_waiting = self.is_draining || self.is_short;
            let due = self.next_due(until).filter(|_| !is_waiting).unwrap_or(until);
            let look = self.server.next_deadline().unwrap_or(until);
            let looks = self.known_ahead != self.ahead || self.random.one_in(if is_waiting { 4 } else { 16 });
            let next = if looks { look.min(due) } else { due };
            // A driver is late by something.
            let late = Span::from_nanos(self.random.pick(&[0, 1, 1_000_000]));
            self.advance((next.max(self.now) + late).min(until).max(self.now));
            self.settle();
            if self.random.one_in(16) {
                self.compare();
            }
        }
    }

    /// The process is paused, and the clocks go on.
    pub fn pause(&mut self, span: u64) {
        self.advance(self.now + Span::from_nanos(span));
    }

    /// Sets the system clock.
    pub fn set_clock(&mut self, by: i64) {
        self.ahead += by;
    }

    /// How far the system clock is from where it began.
    pub fn deviation(&self) -> i64 {
        self.true_system() as i64 - (self.setting.begin * SECOND + self.elapsed) as i64
    }

    /// Stops the server as SIGTERM does.
    pub fn stop(&mut self) {
        self.event(Event::Stop);
        for _ in 0..SPINS_MAX {
            self.turn();
            self.finish_disk_operation();
            if self.server.status().is_settled && !self.disk.is_busy() {
                break;
            }
        }
        assert!(self.server.status().is_settled, "a stop ends");
        self.history.written = self.history.len();
        self.history.synced = self.history.len();
    }

    /// The server ends, and after a while another one goes on with its job log. Its clock differs by `apart`.
    pub fn restart(&mut self, crash: Crash, down: u64, apart: i64) {
        let kept = if crash == Crash::Killed { self.history.written } else { self.history.synced };
        self.disk.crash(crash, &mut self.random);
        self.now = Time::from_nanos((self.true_system() + down).saturating_add_signed(apart));
        self.elapsed += down;
        (self.ahead, self.known_ahead, self.next_clock_look) = (0, 0, self.now);
        self.server = started(self.setting, &self.disk, self.now, &self.puts);
        self.puts.0.borrow_mut().clear();
        (self.received, self.unread) = (Vec::new(), 0);
        self.is_draining = false;
        self.turns.clear();
        self.conn = self.server.accept(self.now, Protocol::Beanstalk, Entry::Plain(None));
        let system = self.system();
        let lost = self.history.restarted(self.server.engine(), kept, system);
        self.log(|| format!("started: {kept} changes had to be there, {lost} are lost"));
        self.is_short = self.history.state.jobs.values().any(|job| job.tube == FILLER);
        self.done.starts += 1;
        self.done.lost += lost as u64;
        self.server.check();
        self.carry_out();
    }

    pub fn check(&self) {
        self.compare();
        self.server.check();
    }
}

/// A time as `schedule-stats` shows it.
pub fn date(nanos: u64) -> String {
    jiff::Timestamp::from_second((nanos / SECOND) as i64).expect("a time of these years").to_string()
}
