//! Schedules as the protocol describes them, without the code of the server: which run is due when, and what becomes of it.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;

use super::times::{SECOND, Times};

/// Runs that `missed:all` makes up for in one go, with the last one.
const CATCH_UP_MAX: u32 = 100;

/// A clock that is set back by more than this was wrong before. Lines with a fixed minute and hour wait longer than others.
const WAIT_MAX_FIXED: u64 = 3 * 3600 * SECOND;
const WAIT_MAX: u64 = 60 * SECOND;

/// A tube that holds few jobs, by its rule.
pub const FULL_TUBE: &str = "full";
pub const FULL_TUBE_JOBS: usize = 4;

/// The tube of jobs that fill the memory.
pub const FILLER: &str = "filler";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Missed {
    Once,
    Skip,
    All,
}

impl Missed {
    pub const ALL: [Self; 3] = [Self::Once, Self::Skip, Self::All];

    pub const fn word(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::Skip => "skip",
            Self::All => "all",
        }
    }
}

/// What a `schedule-put` says.
#[derive(Clone, Debug)]
pub struct Plan {
    pub times: Rc<Times>,
    pub tube: &'static str,
    /// It names the schedule and its put.
    pub body: String,
    pub pri: u32,
    pub delay: u32,
    pub ttr: u32,
    pub missed: Missed,
    pub overlaps: bool,
}

/// What `schedule-stats` counts.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counted {
    pub runs: u64,
    pub skips: u64,
    pub refusals: u64,
    pub gaps: u64,
}

/// A schedule. Times are nanoseconds of the system clock.
#[derive(Clone)]
pub struct Schedule {
    pub plan: Plan,
    pub created: u64,
    /// All times up to this one have run, or were left out.
    pub handled: u64,
    pub caught_up: u32,
    /// For which time it has run last, when, and the job.
    pub last: Option<(u64, u64, u64)>,
    pub counted: Counted,
    pub logged: Logged,
    pub found: Cell<Found>,
}

/// Other values that the job log may have: starts have changed them, and compaction may have appended each since.
#[derive(Clone, Default)]
pub struct Logged {
    pub created: BTreeSet<u64>,
    pub handled: BTreeSet<u64>,
}

/// What a search for the next time has found.
#[derive(Clone, Copy, Debug)]
pub enum Found {
    At(u64),
    /// None up to this time.
    NoneUntil(u64),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Job {
    pub tube: &'static str,
    pub body: String,
    pub ttr: u32,
}

/// What the job log keeps.
#[derive(Clone, Default)]
pub struct State {
    pub schedules: BTreeMap<String, Schedule>,
    pub jobs: BTreeMap<u64, Job>,
    /// The largest id so far.
    pub last_id: u64,
    /// The next time of all schedules.
    found: Cell<Found>,
}

/// What a record of the job log changes.
#[derive(Clone)]
pub enum Change {
    Schedule(String, Option<Schedule>),
    Job(u64, Option<Job>),
    /// The clock of a running server. The job log has it only of schedules that it gets later.
    SetBack(u64),
    /// A schedule and its new job.
    Run(String, Schedule, u64, Job),
}

impl Default for Found {
    fn default() -> Self {
        Self::NoneUntil(0)
    }
}

impl Found {
    /// The time that was found, if it comes until then.
    fn by(self, until: u64) -> Option<u64> {
        if let Self::At(at) = self { Some(at).filter(|&at| at <= until) } else { None }
    }
}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Schedule(name, Some(one)) => write!(f, "{name} is {one:?}"),
            Self::Schedule(name, None) => write!(f, "{name} is deleted"),
            Self::Job(id, Some(_)) => write!(f, "job {id} is put"),
            Self::Job(id, None) => write!(f, "job {id} is deleted"),
            Self::SetBack(_) => write!(f, "the clock is set back"),
            Self::Run(name, one, id, _) => write!(f, "{name} puts job {id} and is {one:?}"),
        }
    }
}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plan, created, handled, caught_up, last, counted, .. } = self;
        let Plan { times, tube, missed, overlaps, .. } = plan;
        write!(f, "{} in {tube}, {missed:?}, overlaps {overlaps}, since {created}, ", times.text)?;
        write!(f, "handled up to {handled}, {caught_up} in a row, last {last:?}, {counted:?}")
    }
}

impl Schedule {
    pub fn new(plan: Plan, system: u64) -> Self {
        Self {
            plan,
            created: system,
            handled: system,
            caught_up: 0,
            last: None,
            counted: Counted::default(),
            logged: Logged::default(),
            found: Cell::new(Found::NoneUntil(system)),
        }
    }

    /// The schedule put again. If its times are the same, it goes on where it is.
    pub fn put_again(&self, plan: Plan, system: u64) -> Self {
        let is_same = plan.times.text == self.plan.times.text;
        let mut next = Self { plan, logged: Logged::default(), ..self.clone() };
        if is_same {
            next.set_clock(system);
        } else {
            (next.created, next.caught_up) = (system, 0);
            next.set_handled(system);
        }
        next
    }

    fn set_handled(&mut self, at: u64) {
        self.handled = at;
        self.found.set(Found::NoneUntil(at));
    }

    /// The clock of the server is set back while it runs.
    fn set_back(&mut self, system: u64) {
        self.logged.created.insert(self.created);
        self.logged.handled.insert(self.handled);
        self.set_clock(system);
    }

    /// Starts over if the clock was wrong before.
    pub fn set_clock(&mut self, system: u64) {
        let wait_max = if self.plan.times.is_fixed() { WAIT_MAX_FIXED } else { WAIT_MAX };
        if self.handled > system + wait_max {
            self.handled = system;
        }
        self.created = self.created.min(self.handled);
        self.set_handled(self.handled);
    }

    /// The first of its times that is not handled, if it comes until then.
    pub fn next(&self, until: u64) -> Option<u64> {
        if let Found::NoneUntil(from) = self.found.get()
            && from < until
        {
            let at = self.first_after(from, until);
            self.found.set(at.map_or(Found::NoneUntil(until), Found::At));
        }
        self.found.get().by(until)
    }

    fn first_after(&self, after: u64, until: u64) -> Option<u64> {
        self.plan.times.first_after(self.created, after, until)
    }

    /// The last of its times up to now, and whether there are several. The first is `due`.
    fn last_due(&self, due: u64, system: u64) -> (u64, bool) {
        let mut last = due;
        while let Some(next) = self.first_after(last, system) {
            last = next;
        }
        (last, last != due)
    }

    /// Decides what becomes of the time that is due. Returns the time for which it is to run, if it is.
    fn decide(&mut self, system: u64, jobs: &BTreeMap<u64, Job>) -> Option<u64> {
        let due = self.next(system).expect("it is due");
        let is_in_order = self.plan.missed == Missed::All && self.caught_up + 1 < CATCH_UP_MAX;
        let (at, leaves_out) = if is_in_order { (due, false) } else { self.last_due(due, system) };
        let is_behind = self.first_after(at, system).is_some();
        assert!(self.handled < at && at <= system, "a run is neither repeated nor early");
        self.caught_up = if is_behind { self.caught_up + 1 } else { 0 };
        self.set_handled(at);
        self.logged.handled.clear();
        let is_too_late = self.plan.missed == Missed::Skip && system - at > 60 * SECOND;
        let is_there = self.last.is_some_and(|(_, _, job)| jobs.contains_key(&job));
        let is_skipped = !is_too_late && !self.plan.overlaps && is_there;
        self.counted.gaps += u64::from(leaves_out || is_too_late);
        self.counted.skips += u64::from(is_skipped);
        (!is_too_late && !is_skipped).then_some(at)
    }
}

impl State {
    pub fn apply(&mut self, change: &Change) {
        self.search_again();
        match change.clone() {
            Change::Schedule(name, Some(schedule)) => _ = self.schedules.insert(name, schedule),
            Change::Schedule(name, None) => _ = self.schedules.remove(&name),
            Change::Job(id, Some(job)) => self.add_job(id, job),
            Change::Job(id, None) => _ = self.jobs.remove(&id),
            Change::SetBack(system) => self.schedules.values_mut().for_each(|one| one.set_back(system)),
            Change::Run(name, schedule, id, job) => {
                self.schedules.insert(name, schedule);
                self.add_job(id, job);
            }
        }
    }

    fn add_job(&mut self, id: u64, job: Job) {
        self.last_id = id;
        self.jobs.insert(id, job);
    }

    /// The schedules that are due, each with its time.
    pub fn due(&self, system: u64) -> impl Iterator<Item = (u64, &str)> {
        let are_some = self.next_due(system).is_some();
        let all = self.schedules.iter().filter(move |_| are_some);
        all.filter_map(move |(name, one)| Some((one.next(system)?, name.as_str())))
    }

    /// The first time at which a schedule is due, if it comes until then.
    pub fn next_due(&self, until: u64) -> Option<u64> {
        if let Found::NoneUntil(from) = self.found.get()
            && from < until
        {
            let next = self.schedules.values().filter_map(|one| one.next(until)).min();
            self.found.set(next.map_or(Found::NoneUntil(until), Found::At));
        }
        self.found.get().by(until)
    }

    /// A schedule has changed.
    pub fn search_again(&self) {
        self.found.set(Found::default());
    }

    fn is_full(&self, tube: &str) -> bool {
        tube == FULL_TUBE && self.jobs.values().filter(|job| job.tube == tube).count() >= FULL_TUBE_JOBS
    }

    /// What a schedule does that is due. `id` is that of its job, if it puts one.
    pub fn run_due(&self, name: &str, system: u64, id: impl FnOnce() -> u64) -> Change {
        let mut schedule = self.schedules[name].clone();
        match schedule.decide(system, &self.jobs) {
            Some(due) => self.run(name, schedule, (due, system), id),
            None => Change::Schedule(name.to_owned(), Some(schedule)),
        }
    }

    /// What a `schedule-run` does.
    pub fn run_by_hand(&self, name: &str, system: u64, id: impl FnOnce() -> u64) -> Change {
        let mut schedule = self.schedules[name].clone();
        schedule.logged.handled.clear();
        self.run(name, schedule, (system, system), id)
    }

    fn run(
        &self,
        name: &str,
        mut schedule: Schedule,
        (due, system): (u64, u64),
        id: impl FnOnce() -> u64,
    ) -> Change {
        let Plan { tube, ref body, ttr, .. } = schedule.plan;
        if self.is_full(tube) {
            schedule.counted.refusals += 1;
            return Change::Schedule(name.to_owned(), Some(schedule));
        }
        let (id, job) = (id(), Job { tube, body: body.clone(), ttr: ttr.max(1) });
        schedule.last = Some((due, system, id));
        schedule.counted.runs += 1;
        Change::Run(name.to_owned(), schedule, id, job)
    }
}
