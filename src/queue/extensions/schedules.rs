//! Schedules: jobs that the server puts by itself, at the times of a cron line or at equal intervals.
//!
//! Their times are those of the system clock, which may be changed while the server runs; all others are of its own clock. A schedule is
//! due at the first of its times that is not dealt with. A run deals with one or several, and its job and that it was made are one change.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use crate::bodies::{Bodies, Slot};
use crate::queue::extensions::rules::FullBy;
use crate::queue::store::Store;
use crate::queue::store::timers::{Owner, TimerKey, Timers};
use crate::time::{Span, Time};
use crate::values::budget::{Budget, Cost};
use crate::values::ids::JobId;
use crate::values::limits::{ALLOCATION_BYTES, SCHEDULES_MAX};
use crate::values::schedules::{CATCH_UP_MAX, Missed, Plan, Progress};
use crate::values::tube_name::TubeName;
use crate::values::when::When;

/// How late a run may be with `missed:skip`.
const LATE_MAX: Span = Span::from_secs(60);

/// The timer fires at least this often while there are schedules, since the system clock may be set.
const LOOK: Span = Span::from_secs(10);

/// If a cron line with a fixed minute and hour is further ahead of the system clock than this, that clock was wrong before, and the schedule
/// starts over. Otherwise it waits, and repeats no run. cronie has the same limit. Other schedules wait no longer than [`SET_BACK_MIN`].
const AHEAD_MAX: Span = Span::from_secs(3 * 3600);

/// A system clock before this time was never set: the machine has no other clock, and the year is 1970. No schedule starts over for it,
/// and what it said is forgotten once it is set.
const SET_FROM: Time = Time::from_nanos(365 * 86_400 * 1_000_000_000);

/// A clock that goes back by less was not set.
const SET_BACK_MIN: Span = Span::from_secs(60);

/// Times that are passed one by one before the last one is searched.
const STEPS_MAX: usize = 8;

/// No time.
const NEVER: Time = Time::from_nanos(u64::MAX);

/// The name of a schedule, which several tables share.
pub type ScheduleName = Arc<[u8]>;

/// All schedules.
pub struct Schedules {
    by_name: BTreeMap<ScheduleName, Schedule>,
    /// The names by the times at which they are looked at.
    due: BTreeSet<(Time, ScheduleName)>,
    timer: TimerKey,
    clock: SystemClock,
    /// The memory of names and times.
    text_bytes: usize,
    /// The first of those that are still to be looked at since the system clock was set back, or for the first time.
    recheck: Option<ScheduleName>,
    /// How many come from the configuration file.
    configured: usize,
    totals: ScheduleCounts,
}

/// How far the system clock is from that of the server.
#[derive(Clone, Copy, Default)]
struct SystemClock {
    /// In nanoseconds. It is behind if this is negative.
    ahead: i64,
}

/// What a client, or the configuration, has said of a schedule.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct NewSchedule<'a> {
    pub name: TubeName<'a>,
    /// The tube that gets the jobs.
    pub tube: TubeName<'a>,
    pub plan: Plan,
    /// Whether it comes from the configuration file, and goes when that lacks it.
    pub is_configured: bool,
}

/// A schedule.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct Schedule {
    name: ScheduleName,
    tube: Box<[u8]>,
    pub plan: Plan,
    pub is_configured: bool,
    /// When it was put with these times. Intervals begin here.
    pub created: Time,
    /// The body of its jobs with its CR LF.
    pub body: Slot,
    pub progress: Progress,
    /// When it is due.
    next: Time,
    /// When it is looked at: when it is due or, if it makes up for missed times or waits for space, behind those that are due before.
    turn: Time,
}

/// A schedule as the job log has it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct LoggedSchedule<'a> {
    pub name: TubeName<'a>,
    pub tube: TubeName<'a>,
    pub plan: Plan,
    pub is_configured: bool,
    pub created: Time,
    pub progress: Progress,
    /// The body with its CR LF.
    pub body: &'a [u8],
}

/// What schedules have done since the start.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ScheduleCounts {
    /// Jobs that were put.
    pub runs: u64,
    /// Runs that were left out because the last job still existed.
    pub skips: u64,
    /// Runs whose tube could not take a job.
    pub refusals: u64,
    /// How often times were left out because the server could not run.
    pub gaps: u64,
    /// By how much runs were late, together.
    pub lateness: Span,
}

/// Why a run has put no job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunRefusal {
    /// The tube is full by this rule.
    Full(FullBy),
    /// There is no tube of this name, and no room for one.
    NoTube,
    /// There is no memory for the body.
    NoMemory,
    /// A file of the job log has no room for the job.
    NoRoom,
}

/// What becomes of a schedule that is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    /// Its job is to be put, for this time.
    Run(Time),
    /// Its last job still exists, or it is too late. Times up to this one are dealt with.
    LeftOut,
}

impl LoggedSchedule<'_> {
    /// The size of its names, its times and its body.
    pub fn texts_bytes(&self) -> usize {
        let names = self.name.as_bytes().len() + self.tube.as_bytes().len();
        names + self.plan.when.as_str().len() + self.body.len()
    }
}

impl Schedule {
    /// Its name.
    pub fn name(&self) -> TubeName<'_> {
        TubeName::checked_before(&self.name)
    }

    /// Its name, to keep.
    pub fn shared_name(&self) -> ScheduleName {
        Arc::clone(&self.name)
    }

    /// The tube that gets its jobs.
    pub fn tube(&self) -> TubeName<'_> {
        TubeName::checked_before(&self.tube)
    }

    /// When it is due, by the system clock.
    pub fn next(&self) -> Option<Time> {
        Some(self.next).filter(|&next| next != NEVER)
    }

    /// When it is looked at, by the system clock: those that are due take turns.
    pub const fn turn(&self) -> Time {
        self.turn
    }

    fn text_bytes(&self) -> usize {
        self.name.len() + self.tube.len() + self.plan.when.bytes() + 5 * ALLOCATION_BYTES
    }

    /// As the job log has it.
    pub fn logged<'a>(&'a self, bodies: &'a Bodies) -> LoggedSchedule<'a> {
        LoggedSchedule {
            name: self.name(),
            tube: self.tube(),
            plan: self.plan.clone(),
            is_configured: self.is_configured,
            created: self.created,
            progress: self.progress,
            body: bodies.bytes(&self.body),
        }
    }

    /// The first of its times that is not dealt with.
    fn find_next(&self) -> Time {
        self.plan.when.next(self.created, self.progress.handled).unwrap_or(NEVER)
    }

    /// Finds its next time by a clock that has this time. If that clock was far ahead before, it starts over.
    fn begin_by(&mut self, system: Time) {
        (self.created, self.progress.handled) =
            reached(&self.plan.when, self.created, self.progress.handled, system);
        self.next = self.find_next();
        self.turn = self.next;
    }

    /// The time that counts at `now`, from which it is due: the next one or, if others have passed, as its policy says. Returns whether
    /// times are left out by that.
    fn counting(&self, now: Time) -> (Time, bool) {
        let due = self.next;
        let after = |at| self.plan.when.next(self.created, at).filter(|&next| next <= now);
        let Some(mut last) = after(due) else { return (due, false) };
        if self.plan.missed == Missed::All && self.progress.caught_up < CATCH_UP_MAX - 1 {
            return (due, false);
        }
        // Bounded by STEPS_MAX: the times that are passed one by one.
        for _ in 0..STEPS_MAX {
            match after(last) {
                Some(next) => last = next,
                None => return (last, true),
            }
        }
        (self.plan.when.last(self.created, last, now), true)
    }
}

/// When a schedule began, and how far it is, by a clock that has this time now. A beginning by a clock that was wrong is forgotten: intervals
/// would wait for it.
fn reached(when: &When, created: Time, handled: Time, system: Time) -> (Time, Time) {
    // mutant schedule-makes-up-for-time-before-the-clock-was-set: handled < SET_FROM && SET_FROM <= system => false
    if handled < SET_FROM && SET_FROM <= system {
        return (system, system);
    }
    let handled = if is_far_ahead(when, handled, system) { system } else { handled };
    // mutant schedule-keeps-a-wrong-beginning: created.min(handled) => created
    (created.min(handled), handled)
}

/// Whether a schedule that is at `handled` starts over by a clock that has this time.
fn is_far_ahead(when: &When, handled: Time, system: Time) -> bool {
    // mutant schedule-waits-for-each-wrong-clock: when.is_fixed() => true
    let ahead_max = if when.is_fixed() { AHEAD_MAX } else { SET_BACK_MIN };
    // mutant schedule-starts-over-before-the-clock-is-set: SET_FROM <= system && handled > system + ahead_max => handled > system + ahead_max
    SET_FROM <= system && handled > system + ahead_max
}

impl SystemClock {
    /// The time of the system clock.
    fn at(self, now: Time) -> Time {
        Time::from_nanos(now.as_nanos().saturating_add_signed(self.ahead))
    }

    /// The time of the server's clock at which the system clock has this time.
    fn when(self, at: Time) -> Time {
        Time::from_nanos(at.as_nanos().saturating_add_signed(self.ahead.saturating_neg()))
    }
}

impl Schedules {
    /// No schedules.
    pub fn new(timers: &mut Timers) -> Self {
        let timer = timers.add();
        timers.set_owner(timer, Owner::Schedules);
        Self {
            by_name: BTreeMap::new(),
            due: BTreeSet::new(),
            timer,
            clock: SystemClock::default(),
            text_bytes: 0,
            recheck: None,
            configured: 0,
            totals: ScheduleCounts::default(),
        }
    }

    pub fn bytes(&self) -> usize {
        // Nodes of a tree are at least half full.
        let entries = size_of::<(ScheduleName, Schedule)>() + size_of::<(Time, ScheduleName)>();
        self.by_name.len() * 2 * entries + self.text_bytes
    }

    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    pub const fn totals(&self) -> ScheduleCounts {
        self.totals
    }

    /// Whether there is room for a schedule of a client with this name. Those of the configuration file do not count.
    pub fn can_put(&self, name: TubeName<'_>) -> bool {
        self.by_name.len() - self.configured < SCHEDULES_MAX || self.by_name.contains_key(name.as_bytes())
    }

    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    pub fn get(&self, name: &[u8]) -> Option<&Schedule> {
        self.by_name.get(name)
    }

    /// Schedules in the order of their names, after this one.
    pub fn after<'a>(&'a self, name: Option<TubeName<'_>>) -> impl Iterator<Item = &'a Schedule> {
        let begin = name.map_or(Bound::Unbounded, |name| Bound::Excluded(name.as_bytes()));
        // Bounded by its caller: an iterator.
        self.by_name.range::<[u8], _>((begin, Bound::Unbounded)).map(|(_, schedule)| schedule)
    }

    /// The time of the system clock.
    pub fn system_time(&self, now: Time) -> Time {
        self.clock.at(now)
    }

    /// Has the same system clock as other schedules.
    pub const fn keep_clock(&mut self, others: &Self) {
        self.clock = others.clock;
    }

    /// Takes the time of the system clock.
    pub fn set_system_time(&mut self, system: Time, now: Time, timers: &mut Timers) {
        let before = self.clock.at(now);
        let nanos = |time: Time| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        // mutant schedule-clock-is-never-set: nanos(system) - nanos(now) => 0
        self.clock.ahead = nanos(system) - nanos(now);
        // mutant schedule-waits-for-a-wrong-clock: before > system + SET_BACK_MIN => false
        if before > system + SET_BACK_MIN || before < SET_FROM && SET_FROM <= system {
            // Bounded by one: the first name.
            self.recheck = self.by_name.keys().next().cloned();
        }
        self.arm(now, now, timers);
    }

    /// Adds a schedule, or replaces that of the same name. If its times are the same, it is as far as before: a run that was missed is
    /// still due, and none is repeated.
    pub fn put(&mut self, new: NewSchedule<'_>, body: Slot, now: Time, store: &mut Store) {
        let system = self.clock.at(now);
        let NewSchedule { name, tube, plan, is_configured } = new;
        let before = self.remove(name.as_bytes());
        let mut created = system;
        let mut progress = before.as_ref().map_or(Progress::default(), |before| before.progress);
        match before.as_ref().filter(|before| before.plan.when == plan.when) {
            Some(before) => {
                // mutant schedule-put-again-starts-over: reached(&plan.when, before.created, progress.handled, system) => (system, system)
                (created, progress.handled) = reached(&plan.when, before.created, progress.handled, system);
            }
            None => (progress.handled, progress.caught_up) = (system, 0),
        }
        if let Some(before) = before {
            store.bodies.free(before.body);
        }
        let (name, tube) = (name.as_bytes().into(), tube.as_bytes().into());
        let mut schedule =
            Schedule { name, tube, plan, is_configured, created, body, progress, next: NEVER, turn: NEVER };
        schedule.next = schedule.find_next();
        schedule.turn = schedule.next;
        self.insert(schedule);
        self.arm(now, now, &mut store.timers);
    }

    /// Whether a schedule is this one already.
    pub fn is_as(&self, new: &NewSchedule<'_>, body: &[u8], bodies: &Bodies) -> bool {
        self.get(new.name.as_bytes()).is_some_and(|has| {
            has.tube() == new.tube
                && has.plan == new.plan
                && has.is_configured == new.is_configured
                && bodies.bytes(&has.body) == body
        })
    }

    /// Restores a schedule, or replaces that of the same name.
    pub fn restore(&mut self, logged: &LoggedSchedule<'_>, body: Slot, store: &mut Store) {
        if let Some(before) = self.remove(logged.name.as_bytes()) {
            store.bodies.free(before.body);
        }
        let schedule = Schedule {
            name: logged.name.as_bytes().into(),
            tube: logged.tube.as_bytes().into(),
            plan: logged.plan.clone(),
            is_configured: logged.is_configured,
            created: logged.created,
            body,
            progress: logged.progress,
            next: NEVER,
            turn: NEVER,
        };
        self.insert(schedule);
    }

    /// Takes how far a schedule is, if it is there.
    pub fn restore_progress(&mut self, name: TubeName<'_>, progress: Progress) {
        if let Some(schedule) = self.by_name.get_mut(name.as_bytes()) {
            schedule.progress = progress;
        }
    }

    /// Begins: each restored schedule is due at the first of its times that is not dealt with.
    // Bounded by recovery: no client is connected.
    pub fn settle(&mut self, now: Time, timers: &mut Timers) {
        let system = self.clock.at(now);
        self.due.clear();
        for (name, schedule) in &mut self.by_name {
            schedule.begin_by(system);
            self.due.insert((schedule.turn, Arc::clone(name)));
        }
        self.arm(now, now, timers);
    }

    /// Finds the next time of one schedule again, after the system clock was set back. Returns whether there was one.
    pub fn recheck(&mut self, now: Time) -> bool {
        let Some(from) = self.recheck.take() else { return false };
        let system = self.clock.at(now);
        // Bounded by two: this one and the name of the next.
        let mut left = self.by_name.range::<[u8], _>((Bound::Included(&*from), Bound::Unbounded));
        let Some((name, _)) = left.next() else { return false };
        let name = Arc::clone(name);
        self.recheck = left.next().map(|(name, _)| Arc::clone(name));
        self.update(&name, |schedule| schedule.begin_by(system));
        true
    }

    /// Changes a schedule, which is then looked at when its new turn comes.
    fn update(&mut self, name: &ScheduleName, change: impl FnOnce(&mut Schedule)) {
        let schedule = self.by_name.get_mut(name).expect("the schedule is there");
        self.due.remove(&(schedule.turn, Arc::clone(name)));
        change(schedule);
        self.due.insert((schedule.turn, Arc::clone(name)));
    }

    fn insert(&mut self, schedule: Schedule) {
        self.text_bytes += schedule.text_bytes();
        self.due.insert((schedule.turn, schedule.shared_name()));
        self.configured += usize::from(schedule.is_configured);
        self.by_name.insert(schedule.shared_name(), schedule);
    }

    /// Removes a schedule, whose body is still to be freed.
    fn remove(&mut self, name: &[u8]) -> Option<Schedule> {
        let schedule = self.by_name.remove(name)?;
        self.due.remove(&(schedule.turn, schedule.shared_name()));
        self.configured -= usize::from(schedule.is_configured);
        self.text_bytes -= schedule.text_bytes();
        Some(schedule)
    }

    /// Removes the schedule of this name. Returns whether there was one.
    pub fn delete(&mut self, name: TubeName<'_>, bodies: &mut Bodies) -> bool {
        let Some(schedule) = self.remove(name.as_bytes()) else { return false };
        bodies.free(schedule.body);
        true
    }

    /// Has a schedule that is due looked at again at this time.
    pub fn postpone(&mut self, name: &ScheduleName, until: Time) {
        let earliest = self.clock.at(until);
        self.update(name, |schedule| schedule.turn = schedule.next.max(earliest));
    }

    fn get_mut(&mut self, name: &ScheduleName) -> &mut Schedule {
        self.by_name.get_mut(name).expect("the schedule is there")
    }

    /// The schedule that is due first, if one is due now.
    pub fn next_due(&self, now: Time) -> Option<&Schedule> {
        let (at, name) = self.due.first()?;
        if *at > self.clock.at(now) {
            return None;
        }
        self.get(name)
    }

    /// Arms the timer for the next look: when one is due, but not before `earliest`, or when the system clock may have been set.
    pub fn arm(&self, earliest: Time, now: Time, timers: &mut Timers) {
        if self.recheck.is_some() {
            timers.arm(self.timer, now);
        } else if let Some((first, _)) = self.due.first() {
            timers.arm(self.timer, self.clock.when(*first).max(earliest).min(now + LOOK));
        }
    }

    /// Decides about a schedule that is due, and notes that its times are dealt with. [`ran`](Self::ran) or [`refused`](Self::refused) must follow
    /// a run.
    pub fn begin(&mut self, name: &ScheduleName, now: Time, store: &Store, budget: &mut Budget) -> Due {
        let system = self.clock.at(now);
        let schedule = self.by_name.get_mut(name).expect("the schedule is there");
        let (at, has_gap) = schedule.counting(system);
        budget.charge(if has_gap { Cost::SCHEDULE_SEARCH } else { Cost::SCHEDULE_RUN });
        let is_late = schedule.plan.when.next(schedule.created, at).is_some_and(|next| next <= system);
        let progress = &mut schedule.progress;
        let last_exists = progress.job.0 > 0 && store.jobs.find(progress.job).is_some();
        progress.handled = at;
        // mutant schedule-catches-up-without-end: progress.caught_up.saturating_add(1) => 0
        progress.caught_up = if is_late { progress.caught_up.saturating_add(1) } else { 0 };
        let is_too_late = schedule.plan.missed == Missed::Skip && system.since(at) > LATE_MAX;
        let is_skipped = !is_too_late && last_exists && !schedule.plan.overlaps;
        // A file may say anything of them.
        let [gap, skip] = [has_gap || is_too_late, is_skipped].map(u64::from);
        progress.gaps = progress.gaps.saturating_add(gap);
        progress.skips = progress.skips.saturating_add(skip);
        self.totals.gaps += gap;
        self.totals.skips += skip;
        self.update(name, |schedule| {
            schedule.next = schedule.find_next();
            schedule.turn = schedule.next.max(system);
        });
        if is_too_late || is_skipped { Due::LeftOut } else { Due::Run(at) }
    }

    /// Notes the job that a run has put for this time.
    pub fn ran(&mut self, name: &ScheduleName, due: Time, job: JobId, now: Time) {
        let ran = self.clock.at(now);
        let schedule = self.get_mut(name);
        if is_far_ahead(&schedule.plan.when, schedule.progress.handled, ran) {
            // Its turn to be looked at since the clock was set back has not come.
            self.update(name, |schedule| schedule.begin_by(ran));
        }
        let progress = &mut self.get_mut(name).progress;
        (progress.due, progress.ran, progress.job) = (due, ran, job);
        progress.runs = progress.runs.saturating_add(1);
        self.totals.runs += 1;
        let late = ran.since(due).as_nanos();
        self.totals.lateness = Span::from_nanos(self.totals.lateness.as_nanos().saturating_add(late));
    }

    /// Notes that the tube could not take the job of a run.
    pub fn refused(&mut self, name: &ScheduleName) {
        let refusals = &mut self.get_mut(name).progress.refusals;
        *refusals = refusals.saturating_add(1);
        self.totals.refusals += 1;
    }

    // Bounded by its caller: a test.
    pub fn check(&self) {
        assert_eq!(self.due.len(), self.by_name.len(), "every schedule has a time");
        let text: usize = self.by_name.values().map(Schedule::text_bytes).sum();
        assert_eq!(self.text_bytes, text, "names are counted");
        let configured = self.by_name.values().filter(|schedule| schedule.is_configured).count();
        assert_eq!(self.configured, configured, "schedules of the configuration file are counted");
        for (name, schedule) in &self.by_name {
            assert_eq!(*name, schedule.name, "a schedule is found by its name");
            assert!(self.due.contains(&(schedule.turn, Arc::clone(name))), "a schedule is found by its turn");
            assert!(schedule.turn >= schedule.next, "no schedule is looked at before it is due");
            assert_eq!(
                schedule.next,
                schedule.find_next(),
                "a schedule is due at the first time that is left"
            );
        }
    }
}
