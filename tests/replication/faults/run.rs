//! A run: clients work while a fault occurs, and what is left is compared with their record.

use std::env;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use beanring_testkit::process::REPLY_PATIENCE;
use beanring_testkit::random::Random;
use beanring_testkit::wait;

use super::check::Check;
use super::clients::{Clients, Plan};
use super::figures::Times;
use super::place::{CLIENTS, Place, Use};
use super::preload;
use super::record::Event;

/// A take-over whose logs are shown, in microseconds.
const SLOW: u64 = 3_000_000;

/// What a standby logs when it finds damage.
pub const ALARM: &str = "cannot follow the job log";

/// How a run is made.
pub struct Setup {
    pub what: &'static str,
    /// The variable that says how often the fault occurs, and how often it does otherwise.
    pub rounds: (&'static str, usize),
    pub lease_s: usize,
    pub database: Use,
    /// Jobs may be there beforehand.
    pub preloads: bool,
    /// What differs from the usual plan.
    pub plan: fn(Plan) -> Plan,
}

pub struct Run {
    pub place: Place,
    pub clients: Clients,
    pub random: Random,
    pub rounds: usize,
    /// When the fault has occurred.
    pub moments: Vec<u64>,
    /// When servers may have closed connections to a leader that went on. See [`Check`].
    pub closing: Vec<Range<u64>>,
    /// The test has damaged the log.
    pub is_damaged: bool,
    what: &'static str,
    jobs: usize,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            what: "",
            rounds: ("", 0),
            lease_s: 1,
            database: Use::Shared,
            preloads: false,
            plan: |plan| plan,
        }
    }
}

/// A number in a variable of the environment, or another one.
pub fn variable(name: &str, default: usize) -> usize {
    let name = format!("BEANRING_TEST_{name}");
    env::var(&name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// The seed of a run, which is printed.
fn seed() -> u64 {
    let given = env::var("BEANRING_TEST_SEED").ok().map(|text| text.parse().expect("a seed is a number"));
    let time = || UNIX_EPOCH.elapsed().expect("a clock after 1970").as_micros() as u64;
    let seed = given.unwrap_or_else(time);
    println!("seed {seed}: BEANRING_TEST_SEED={seed} makes the same choices");
    seed
}

impl Setup {
    /// Starts three servers and their clients; prints why that cannot be.
    pub fn start(self) -> Option<Run> {
        self.start_after(|_| Ok(()))
    }

    /// The same, after a preparation.
    pub fn start_after(self, prepare: impl FnOnce(&Place) -> Result<(), String>) -> Option<Run> {
        let place = Place::start(3, self.lease_s, self.database);
        let place = place.and_then(|place| prepare(&place).map(|()| place));
        let place = place.inspect_err(|reason| println!("skipped: {}, because {reason}", self.what)).ok()?;
        let seed = seed();
        let jobs = if self.preloads { preload::put(&place) } else { 0 };
        let namespace = place.machines.as_ref().map(|machines| machines.name(CLIENTS));
        let plan = (self.plan)(Plan { namespace, ..Plan::new(place.addresses(), seed) });
        Some(Run {
            clients: Clients::start(&plan),
            place,
            random: Random::new(seed),
            rounds: variable(self.rounds.0, self.rounds.1),
            moments: Vec::new(),
            closing: Vec::new(),
            is_damaged: false,
            what: self.what,
            jobs,
        })
    }
}

impl Run {
    /// Waits until a random number of commands was acknowledged.
    pub fn work(&mut self, commands: Range<usize>) {
        let acknowledged = || self.clients.shared.acknowledged.load(Ordering::Relaxed);
        let enough = acknowledged() + (commands.start + self.random.below(commands.len())) as u64;
        wait::until("the clients work", || acknowledged() >= enough);
    }

    /// Waits for a random time in milliseconds.
    pub fn pause(&mut self, time_ms: Range<usize>) {
        let time_ms = time_ms.start + self.random.below(time_ms.len());
        thread::sleep(Duration::from_millis(time_ms as u64));
    }

    /// The number of the server that leads, once all servers follow if there are many jobs.
    pub fn leader(&self) -> usize {
        if self.jobs > 0 {
            preload::wait_until_warm(&self.place);
        }
        self.place.leader(REPLY_PATIENCE)
    }

    /// Notes that the fault occurs, and returns when.
    pub fn note_moment(&mut self) -> u64 {
        let now = self.clients.now();
        self.moments.push(now);
        now
    }

    /// Waits for a put that was asked after this time and accepted.
    pub fn expect_put(&self, since: u64) {
        assert!(
            self.clients.wait_for_put(since, REPLY_PATIENCE),
            "no put\n{}",
            self.place.cluster.log_texts()
        );
        self.show_if_slow(self.clients.now() - since);
    }

    /// Prints the logs after a take-over that took long, in microseconds.
    pub fn show_if_slow(&self, took: u64) {
        if took > SLOW {
            println!("{} ms until a put was accepted", took / 1000);
            self.place.nodes.iter().for_each(|node| println!("{}", node.last_lines()));
        }
    }

    /// Ends the load, checks the record, and prints what was counted. `note` says what else has occurred.
    pub fn conclude(&mut self, note: &str) -> Vec<Event> {
        let (name, clock) = (self.what, self.clients.shared.clock);
        let events = self.clients.end();
        // No server takes a fault for damage, unless there was some.
        let alarms: usize = self.place.nodes.iter().map(|node| node.log_text().matches(ALARM).count()).sum();
        assert!(alarms == 0 || self.is_damaged, "{name}: {alarms} false alarms");
        // As they are now, and as the database has them.
        for restarts in [false, true] {
            if restarts {
                self.place.restart_all();
            }
            let survivor = self.place.survivor(&events, clock);
            self.place.check_schedules();
            match Check::new(&events, &survivor, &self.closing).run() {
                Ok(figures) if restarts => println!("{name}: {figures:?}, {} jobs are left", survivor.count),
                Ok(_) => {}
                Err(violations) => panic!("{name}: after a restart of all: {restarts}: {violations}"),
            }
        }
        preload::check(&self.place, self.jobs);
        let times = Times::to_first_put(&self.moments, &events);
        println!("{name}: {} rounds{note}, to the first put: {times}", self.rounds);
        events
    }
}
