//! One measured phase: warm-up, window, tail, and what ends it early.

use std::io::{IsTerminal, Write, stderr};
use std::rc::Rc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::args::Amount;
use crate::connection::Lane;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::meter::{Belongs, Meter};
use crate::pace::{Clock, Pace, Schedule, Supply, release};
use crate::proc::{Cpu, Memory, Process, Threads, own, threads_since};

/// Interval between checks for a silent server and updates of the progress line.
const TICK: Duration = Duration::from_millis(50);

/// An open loop may work on due operations for as long as its window again, but at least this long.
const OVERRUN_MIN: Duration = Duration::from_secs(1);

/// After an interrupt, operations in flight have this long to complete.
const INTERRUPTED_TAIL_MAX: Duration = Duration::from_secs(2);

/// Tasks that end normally or with the failure of the run.
pub type Tasks = JoinSet<Result<(), Failure>>;

/// What a phase does, and for how long.
#[derive(Clone, Copy)]
pub struct Task {
    /// How much is measured.
    pub amount: Amount,
    pub warm_up: Duration,
    /// Open loop: operations per second.
    pub rate: Option<u64>,
    /// The load ends after this number of operations in any case.
    pub limit: u64,
    /// A phase without a reply for this long has failed.
    pub patience: Duration,
}

/// A phase that is ready to begin.
pub struct Phase {
    task: Task,
    clock: Clock,
    /// The limit has cut the schedule short.
    cut: bool,
    /// The counters and latencies.
    pub meter: Rc<Meter>,
    /// How connections pace themselves.
    pub pace: Pace,
    /// The lanes of the connections that begin operations.
    pub lanes: Rc<[Lane]>,
}

/// CPU time and memory of the processes at one moment.
#[derive(Clone)]
struct Sample {
    at_ns: u64,
    server: Option<(Cpu, Memory, Threads)>,
    own: Duration,
}

/// The result of a phase.
pub struct Measured {
    /// The counts and latencies.
    pub meter: Rc<Meter>,
    /// The duration of the window.
    pub seconds: f64,
    /// CPU time of the server in the window.
    pub server_cpu: Option<Cpu>,
    /// The name and the CPU time in the window of each thread of the server that has used any.
    pub server_threads: Vec<(String, Duration)>,
    /// Memory of the server before and after the window.
    pub server_memory: Option<(Memory, Memory)>,
    /// CPU time of the generator in the window.
    pub own_cpu: Duration,
    /// Ctrl-C or SIGTERM ended the phase.
    pub interrupted: bool,
    /// The limit of operations ended the phase.
    pub limited: bool,
    /// Due operations were dropped, since the schedule was too fast for the server or the generator.
    pub overloaded: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    WarmUp,
    Window,
    /// No operation begins any more. Those in flight complete.
    Tail,
}

impl Phase {
    /// Prepares a phase in which `begin` connections begin operations and the operations of `sample` connections are
    /// counted.
    pub fn new(task: Task, clock: Clock, begin: usize, sample: usize) -> Phase {
        let by_start = task.rate.is_some() || matches!(task.amount, Amount::Count(_));
        let meter = Meter::new(if by_start { Belongs::ByStart } else { Belongs::ByEnd }, sample);
        let lanes = (0..begin).map(|_| Lane::default()).collect();
        let (pace, cut) = match task.rate {
            Some(rate) => {
                let wanted = operations(task, rate);
                let schedule = Schedule::new(clock.now_ns(), rate, begin, wanted.min(task.limit));
                (Pace::Open(Rc::new(schedule)), wanted > task.limit)
            }
            None => (Pace::Closed(Supply::new(task.limit)), false),
        };
        Phase { task, clock, cut, meter, pace, lanes }
    }

    /// Runs the connections in `tasks` to the end of the phase. No task in `beside` may end before.
    pub async fn conduct(
        self,
        mut tasks: Tasks,
        beside: &mut Tasks,
        process: Option<Process>,
        interrupt: &Interrupt,
        name: &str,
    ) -> Result<Measured, Failure> {
        let mut progress = Progress::new(name);
        let mut course = Course::begin(&self, process)?;
        if let Pace::Open(schedule) = &self.pace {
            let released = release(schedule.clone(), self.lanes.clone(), self.clock);
            tasks.spawn_local(async { released.await.map_err(Failure::Timer) });
        }
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !course.abandoned && (!tasks.is_empty() || self.meter.unsettled.get() > 0) {
            let milestone = course.milestone;
            tokio::select! {
                Some(ended) = tasks.join_next() => ended.expect("connections do not panic")?,
                Some(ended) = beside.join_next() => {
                    ended.expect("connections do not panic")?;
                    return Err(Failure::Closed);
                }
                () = sleep_until(milestone.unwrap_or_else(Instant::now)), if milestone.is_some() => {
                    course.advance()?;
                }
                () = interrupt.wait(), if !course.interrupted => course.interrupt()?,
                _ = tick.tick() => {
                    course.watch_silence()?;
                    progress.show(&self.meter, self.clock.now_ns());
                }
            }
        }
        drop(progress);
        course.end()
    }

    fn stop(&self) {
        match &self.pace {
            Pace::Closed(supply) => supply.set(0),
            Pace::Open(schedule) => schedule.stop(),
        }
        self.lanes.iter().for_each(Lane::wake);
    }
}

/// Returns the operations of a whole schedule: those due before the window opens, then the measured ones.
fn operations(task: Task, rate: u64) -> u64 {
    let due_in = |time: Duration| (time.as_nanos() * u128::from(rate)).div_ceil(1_000_000_000) as u64;
    let measured = match task.amount {
        Amount::Count(count) => count,
        Amount::For(time) => due_in(time).max(1),
    };
    due_in(task.warm_up).saturating_add(measured)
}

/// The state of a running phase.
struct Course<'a> {
    phase: &'a Phase,
    process: Option<Process>,
    stage: Stage,
    milestone: Option<Instant>,
    opened: Option<Sample>,
    closed: Option<Sample>,
    interrupted: bool,
    overloaded: bool,
    /// Operations in flight are awaited until this moment.
    abandoned: bool,
    replies_seen: u64,
    replies_at: Instant,
}

impl<'a> Course<'a> {
    fn begin(phase: &'a Phase, process: Option<Process>) -> Result<Course<'a>, Failure> {
        let now = Instant::now();
        let mut course = Course {
            phase,
            process,
            stage: Stage::WarmUp,
            milestone: Some(now + phase.task.warm_up),
            opened: None,
            closed: None,
            interrupted: false,
            overloaded: false,
            abandoned: false,
            replies_seen: 0,
            replies_at: now,
        };
        // A schedule fixes its window in advance, so that operations of its first moment are not missed.
        if let Pace::Open(schedule) = &phase.pace {
            phase.meter.open(schedule.due_ns(0) + phase.task.warm_up.as_nanos() as u64);
        }
        if phase.task.warm_up.is_zero() {
            course.open()?;
        }
        Ok(course)
    }

    fn advance(&mut self) -> Result<(), Failure> {
        match self.stage {
            Stage::WarmUp => self.open(),
            Stage::Window => match &self.phase.pace {
                Pace::Open(schedule) => {
                    self.overrun(schedule);
                    Ok(())
                }
                Pace::Closed(_) => {
                    self.close()?;
                    self.phase.stop();
                    Ok(())
                }
            },
            Stage::Tail => {
                self.abandoned = true;
                self.overloaded = !self.interrupted;
                self.milestone = None;
                Ok(())
            }
        }
    }

    /// Ends the time to work on due operations.
    fn overrun(&mut self, schedule: &Schedule) {
        if schedule.is_owing() {
            self.overloaded = true;
            self.phase.stop();
        }
        self.stage = Stage::Tail;
        // The queue may hold millions of jobs, so this may take longer than the time-out for a silent server, which is
        // a failure.
        self.milestone = Some(Instant::now() + self.phase.task.patience + OVERRUN_MIN);
    }

    fn open(&mut self) -> Result<(), Failure> {
        let sample = self.sample()?;
        let at_ns = sample.at_ns;
        self.stage = Stage::Window;
        self.opened = Some(sample);
        self.milestone = None;
        match (&self.phase.pace, self.phase.task.amount) {
            (Pace::Open(schedule), _) => {
                let end_ns = schedule.end_ns();
                let window = Duration::from_nanos(end_ns.saturating_sub(self.phase.meter.opened_ns()));
                let left = Duration::from_nanos(end_ns.saturating_sub(at_ns));
                self.milestone = Instant::now().checked_add(left + window.max(OVERRUN_MIN));
            }
            (Pace::Closed(supply), Amount::Count(count)) => {
                self.phase.meter.open(at_ns);
                supply.set(count);
            }
            (Pace::Closed(_), Amount::For(time)) => {
                self.phase.meter.open(at_ns);
                self.milestone = Some(Instant::now() + time);
            }
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), Failure> {
        let sample = self.sample()?;
        self.phase.meter.close(sample.at_ns);
        self.closed = Some(sample);
        self.stage = Stage::Tail;
        self.milestone = None;
        Ok(())
    }

    fn interrupt(&mut self) -> Result<(), Failure> {
        self.interrupted = true;
        self.phase.stop();
        // Operations in flight still count where they belong by their start.
        let by_end = matches!((&self.phase.pace, self.phase.task.amount), (Pace::Closed(_), Amount::For(_)));
        if self.stage == Stage::Window && by_end {
            self.close()?;
        }
        self.stage = Stage::Tail;
        self.milestone = Some(Instant::now() + INTERRUPTED_TAIL_MAX);
        Ok(())
    }

    fn watch_silence(&mut self) -> Result<(), Failure> {
        let meter = &self.phase.meter;
        let nothing_due = matches!(self.phase.pace, Pace::Open(_)) && meter.unsettled.get() == 0;
        if meter.replies.get() != self.replies_seen || nothing_due {
            self.replies_seen = meter.replies.get();
            self.replies_at = Instant::now();
        }
        let patience = self.phase.task.patience;
        if self.replies_at.elapsed() > patience { Err(Failure::Silent(patience)) } else { Ok(()) }
    }

    fn end(mut self) -> Result<Measured, Failure> {
        let Some(opened) = self.opened.take() else {
            return Err(if self.interrupted {
                Failure::NothingMeasured
            } else {
                Failure::Usage("the load was over before the warm-up was: raise --queue-max")
            });
        };
        let is_closed = self.closed.is_some();
        let closed = match self.closed.take() {
            Some(closed) => closed,
            None => self.sample()?,
        };
        let meter = self.phase.meter.clone();
        if meter.operations.get() == 0 {
            return Err(match meter.first_complaint() {
                _ if self.overloaded => Failure::Overloaded,
                Some(complaint) => Failure::NothingDone(complaint),
                None => Failure::NothingMeasured,
            });
        }
        // Operations that are awaited end the window. A task may notice a little later.
        let end_ns = if is_closed { closed.at_ns } else { meter.last_done_ns.get() };
        let limited = match (&self.phase.pace, self.phase.task.amount) {
            (Pace::Open(_), _) => self.phase.cut,
            (Pace::Closed(_), Amount::For(_)) => !is_closed,
            (Pace::Closed(_), Amount::Count(_)) => false,
        };
        let server = opened.server.as_ref().zip(closed.server.as_ref());
        Ok(Measured {
            seconds: end_ns.saturating_sub(meter.opened_ns()).max(1) as f64 / 1e9,
            server_cpu: server.map(|(before, after)| after.0.since(before.0)),
            server_memory: server.map(|(before, after)| (before.1, after.1)),
            server_threads: server.map_or(Vec::new(), |(before, after)| threads_since(&before.2, &after.2)),
            own_cpu: closed.own - opened.own,
            interrupted: self.interrupted,
            limited: limited && !self.interrupted && !self.overloaded,
            overloaded: self.overloaded,
            meter,
        })
    }

    fn sample(&self) -> Result<Sample, Failure> {
        let server = match self.process {
            Some(process) => Some((process.cpu()?, process.memory()?, process.threads())),
            None => None,
        };
        Ok(Sample { at_ns: self.phase.clock.now_ns(), server, own: own() })
    }
}

/// Nanoseconds between two updates.
const PERIOD_NS: u64 = 500_000_000;

/// The progress line of a phase.
struct Progress {
    name: String,
    shown: bool,
    terminal: bool,
    last: (u64, u64),
}

impl Progress {
    /// Creates the line of the phase `name`.
    fn new(name: &str) -> Progress {
        Progress { name: name.to_owned(), shown: false, terminal: stderr().is_terminal(), last: (0, 0) }
    }

    /// Updates the line, at most twice per second.
    fn show(&mut self, meter: &Meter, now_ns: u64) {
        let (then_ns, before) = self.last;
        if !self.terminal || now_ns < then_ns + PERIOD_NS {
            return;
        }
        let replies = meter.replies.get();
        let rate = (replies - before) as f64 * 1e9 / (now_ns - then_ns) as f64;
        self.last = (now_ns, replies);
        let (operations, errors) = (meter.operations.get(), meter.errors.get());
        eprint!("\r\x1b[K{}: {operations} operations, {rate:.0} replies/s, {errors} errors", self.name);
        // An error here must not stop the run.
        let _ = stderr().flush();
        self.shown = true;
    }
}

impl Drop for Progress {
    /// Erases the line.
    fn drop(&mut self) {
        if self.shown {
            eprint!("\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_holds_warm_up_and_window() {
        let task = |amount, warm_up_ms| Task {
            amount,
            warm_up: Duration::from_millis(warm_up_ms),
            rate: Some(1000),
            limit: u64::MAX,
            patience: TICK,
        };
        assert_eq!(operations(task(Amount::Count(7), 0), 1000), 7);
        assert_eq!(operations(task(Amount::For(Duration::from_secs(2)), 500), 1000), 2500);
        assert_eq!(operations(task(Amount::For(Duration::from_millis(1)), 0), 3), 1);
        // A warm-up of 1.5 intervals: two operations are due before the window.
        assert_eq!(operations(task(Amount::Count(7), 1500), 1), 9);
    }
}
