//! One slot: reserves a job, runs the command, and deletes, buries or releases the job, again and again.

use std::process::ExitStatus;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use beanring::time::{Seconds, Span};
use beanring::values::ids::JobId;
use nix::sys::signal::Signal;

use super::super::connection::REPLY_PATIENCE;
use super::super::{
    ClientError, Connection, Follows, ServerTarget, Stats, Untrusted, hold, inspect, reserve, units,
};
use super::command::{self, Running};
use super::control::{Control, Event, Retries};
use super::report::{Ended, Fate, Report};
use crate::cli::verbs::{OnFailure, Work};

/// How long a slot waits for a job in one command. A server that has gone without a word is noticed then.
const RESERVE_SECONDS: u32 = 60;

/// Time between SIGTERM and SIGKILL for a command that has run too long.
const KILL_GRACE: Duration = Duration::from_secs(5);

/// Time between two attempts to connect: the first, and the longest.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// First delay of a released job, without `--delay` and without a rule of its tube.
const DELAY_DEFAULT: Seconds = Seconds::ONE;

/// Time before the next job if the system cannot start a command at the moment.
const START_AGAIN: Seconds = Seconds::ONE;

pub(super) struct Slot<'a> {
    pub(super) place: usize,
    pub(super) verb: &'a Work,
    pub(super) target: &'a ServerTarget,
    pub(super) control: &'a Control,
    pub(super) report: &'a Report,
    pub(super) retries: &'a Retries,
    pub(super) mailbox: Receiver<Event>,
}

/// A reserved job.
struct Job {
    id: JobId,
    body: Untrusted,
    stats: Stats,
    reserved: Instant,
}

/// How a command ended.
enum Outcome {
    Success,
    /// It failed. The last line of its standard error says why, unless it wrote nothing.
    Failure(String, Vec<u8>),
    /// It failed, and nothing reads standard output any more.
    Unread(String),
    /// Killed by the second signal.
    Killed,
}

/// Connects, and watches the tubes. A back-off with decimals must be possible before a job is reserved.
pub(super) fn open(target: &ServerTarget, verb: &Work) -> Result<Connection, ClientError> {
    let mut connection = target.connect()?;
    if verb.on_failure == OnFailure::Release {
        connection.require_decimals([verb.delay.unwrap_or(DELAY_DEFAULT), verb.max_delay])?;
    }
    reserve::watch(&mut connection, &verb.tube)?;
    connection.set_patience(Some(REPLY_PATIENCE + Duration::from_secs(RESERVE_SECONDS.into())));
    Ok(connection)
}

impl Slot<'_> {
    /// Works until it must stop.
    ///
    /// # Errors
    /// If all slots must stop because of it.
    pub(super) fn run(&mut self, mut connection: Option<Connection>) -> Result<(), ClientError> {
        let mut opened = Instant::now();
        while !self.control.is_stopping() {
            let mut open = match connection.take() {
                Some(open) => open,
                None => {
                    let Some(open) = self.connect()? else { break };
                    opened = Instant::now();
                    open
                }
            };
            match self.work_once(&mut open) {
                Ok(true) => connection = Some(open),
                Ok(false) => break,
                Err(error) if error.is_connection() && !self.control.is_stopping() => {
                    self.report.down(&error, opened)
                }
                Err(error) if error.is_connection() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Connects as soon as the server can be reached. Returns none if the slot must stop.
    fn connect(&self) -> Result<Option<Connection>, ClientError> {
        let (mut pause, longest) = RECONNECT;
        loop {
            let tried = Instant::now();
            match open(self.target, self.verb) {
                Ok(connection) => {
                    self.report.up();
                    return Ok(Some(connection));
                }
                Err(error) if error.is_connection() => self.report.down(&error, tried),
                Err(error) => return Err(error),
            }
            self.sleep(pause);
            if self.control.is_stopping() {
                return Ok(None);
            }
            pause = (pause * 2).min(longest);
        }
    }

    /// Waits, unless the slot must stop.
    fn sleep(&self, time: Duration) {
        if !self.control.is_stopping() {
            let _ = self.mailbox.recv_timeout(time);
        }
    }

    /// Reserves a job and runs its command. Returns whether the slot goes on.
    fn work_once(&mut self, connection: &mut Connection) -> Result<bool, ClientError> {
        if !self.control.begin_reserve(self.place, connection.socket()) {
            return Ok(false);
        }
        let seconds = if self.verb.until_empty { 0 } else { RESERVE_SECONDS };
        let reply = connection.ask_for(Follows::Job, format!("reserve-with-timeout {seconds}"));
        if !self.control.end_reserve(self.place) {
            return Ok(false);
        }
        let reply = reply?;
        if reply.word() == "TIMED_OUT" {
            if self.verb.until_empty {
                return Ok(false);
            }
            return if command::is_output_closed() { Err(ClientError::OutputClosed) } else { Ok(true) };
        }
        if reply.word() == "RESERVED" && command::is_output_closed() {
            // The job is ready again, and this is no failed attempt.
            connection.quit();
            return Err(ClientError::OutputClosed);
        }
        let reserved = Instant::now();
        let (id, body) = reply.into_job("reserve")?;
        let stats = inspect::of_job(connection, id)?;
        self.process(connection, &Job { id, body, stats, reserved })?;
        Ok(true)
    }

    /// Runs the command of a job, and does with the job what follows from its end.
    fn process(&mut self, connection: &mut Connection, job: &Job) -> Result<(), ClientError> {
        let Some(mailbox) = self.control.begin_command(self.place) else {
            return self.finish(connection, job, Outcome::Killed);
        };
        let started = Running::start(self.verb, self.target, (job.id, job.body.bytes()), &job.stats, mailbox);
        let running = match started {
            Ok(running) => running,
            Err(error) => {
                self.control.end_command();
                return self.not_started(connection, job, error);
            }
        };
        let waited = self.wait(connection, job, running);
        self.control.end_command();
        let is_known = waited.is_ok();
        waited.and_then(|outcome| self.finish(connection, job, outcome)).inspect_err(|error| {
            if !is_known || error.is_connection() {
                // The server has made the job ready, and another worker may have it. A new connection could delete a job that
                // runs there, or, after a restart of the server, another job with this id.
                self.lost(job, "the connection broke");
            }
        })
    }

    /// Waits for the end of a command. Touches the job, and ends the command when its time is over.
    ///
    /// # Errors
    /// If the connection broke. The command has ended also then.
    fn wait(&self, connection: &mut Connection, job: &Job, running: Running) -> Result<Outcome, ClientError> {
        let interval = hold::touch_interval(job.stats.time("ttr"));
        let limit = self.verb.timeout.map(|seconds| Duration::from_secs(seconds.into()));
        let mut touch_at = (!self.verb.no_touch).then(|| job.reserved + interval);
        let mut end_at = limit.map(|limit| (Instant::now() + limit, Signal::SIGTERM));
        let mut is_over_time = false;
        let mut is_killed = false;
        let mut broken = None;
        loop {
            let next = [touch_at, end_at.map(|(at, _)| at)].into_iter().flatten().min();
            match self.next_event(next) {
                Some(Event::Exited) => break,
                Some(Event::Kill) => {
                    is_killed = true;
                    running.signal(Signal::SIGKILL);
                }
                Some(Event::Stop) | None => {}
            }
            let now = Instant::now();
            if let Some((_, signal)) = end_at.filter(|(at, _)| *at <= now) {
                is_over_time = true;
                running.signal(signal);
                end_at = (signal == Signal::SIGTERM).then(|| (now + KILL_GRACE, Signal::SIGKILL));
            }
            if touch_at.is_some_and(|at| at <= now) {
                // Without a reservation there is nothing to touch, and the end of the command shows what became of the job.
                touch_at = match connection.ask(format!("touch {}", job.id)) {
                    Ok(reply) => (reply.word() == "TOUCHED").then(|| now + interval),
                    Err(error) => {
                        broken = Some(error);
                        None
                    }
                };
            }
        }
        if is_over_time || is_killed {
            // What the command has started and not waited for.
            running.signal(Signal::SIGKILL);
        }
        let (status, line) =
            running.reap().map_err(|error| ClientError::System { what: "wait for the command", error })?;
        match broken {
            Some(error) => Err(error),
            None if is_killed => Ok(Outcome::Killed),
            None if is_over_time => {
                let limit = units::Seconds(self.verb.timeout.unwrap_or_default().into());
                Ok(Outcome::Failure(format!("not done within {limit} and killed"), line))
            }
            None => Ok(outcome(status, line)),
        }
    }

    fn next_event(&self, until: Option<Instant>) -> Option<Event> {
        match until {
            None => self.mailbox.recv().ok(),
            Some(until) => self.mailbox.recv_timeout(until.saturating_duration_since(Instant::now())).ok(),
        }
    }

    /// Deletes, buries or releases a job after its command.
    fn finish(&self, connection: &mut Connection, job: &Job, outcome: Outcome) -> Result<(), ClientError> {
        let (id, pri) = (job.id, job.stats.number("pri"));
        match outcome {
            Outcome::Success => {
                self.end(connection, job, None, (format!("delete {id}"), Fate::Deleted, None))
            }
            Outcome::Killed => {
                self.hand_back(connection, job, "killed by the second signal".to_owned());
                Ok(())
            }
            Outcome::Unread(reason) => {
                self.hand_back(connection, job, reason);
                Err(ClientError::OutputClosed)
            }
            Outcome::Failure(reason, line) => {
                note(connection, id, &reason, &line)?;
                let end = match self.back_off(connection, job)? {
                    None => (format!("bury {id} {pri}"), Fate::Buried, None),
                    Some(delay) => {
                        // Without a delay the rules of the tube decide what happens to the job.
                        let known = (delay.span() != Span::ZERO).then_some(delay);
                        (format!("release {id} {pri} {delay}"), Fate::Released, known)
                    }
                };
                self.end(connection, job, Some(reason), end)
            }
        }
    }

    /// Ends the reservation of a job by a command.
    fn end(
        &self,
        connection: &mut Connection,
        job: &Job,
        reason: Option<String>,
        (command, fate, delay): (String, Fate, Option<Seconds>),
    ) -> Result<(), ClientError> {
        let reply = connection.ask(command)?;
        let expected = match fate {
            Fate::Deleted => "DELETED",
            Fate::Released => "RELEASED",
            Fate::Buried | Fate::Lost => "BURIED",
        };
        match reply.word() {
            word if word == expected => self.ended(job, reason, fate, delay),
            // The job has had its last attempt, or a server is out of memory: it is buried instead.
            "BURIED" => self.ended(job, reason, Fate::Buried, None),
            "NOT_FOUND" => self.lost(job, "the reservation had timed out"),
            _ => {
                return Err(reply.expect(expected, &format!("job {}", job.id)).map(drop).unwrap_err().into());
            }
        }
        Ok(())
    }

    /// Leaves with a job whose command this program has stopped. It is ready again, and has not failed.
    fn hand_back(&self, connection: &mut Connection, job: &Job, reason: String) {
        connection.quit();
        self.ended(job, Some(reason), Fate::Released, None);
    }

    /// Returns the delay of a job whose command failed, or none if it is to be buried.
    ///
    /// # Errors
    /// If the connection broke.
    fn back_off(&self, connection: &mut Connection, job: &Job) -> Result<Option<Seconds>, ClientError> {
        let Work { on_failure, delay, max_delay, tries, tube, .. } = self.verb;
        let releases = job.stats.number("releases");
        if *on_failure == OnFailure::Bury || tries.is_some_and(|tries| releases + 1 >= tries.into()) {
            return Ok(None);
        }
        let delay = match delay {
            Some(delay) => *delay,
            None => {
                let name = job.stats.text("tube");
                let watched = tube.iter().find(|tube| tube.as_bytes() == name.bytes());
                let is_delayed = match watched {
                    Some(tube) => self.retries.are_delayed(connection, tube)?,
                    None => false,
                };
                if is_delayed { Seconds::ZERO } else { DELAY_DEFAULT }
            }
        };
        Ok(Some(back_off(delay, *max_delay, releases)))
    }

    /// A command cannot be started. The job is ready again at once, or when the next attempt may succeed.
    fn not_started(
        &self,
        connection: &mut Connection,
        job: &Job,
        error: std::io::Error,
    ) -> Result<(), ClientError> {
        let program = self.verb.command[0].to_string_lossy().into_owned();
        let is_permanent = command::is_permanent(&error);
        let error = ClientError::Command { program, error };
        if is_permanent {
            // The job is ready again, and this is no failed attempt.
            connection.quit();
            return Err(error);
        }
        let delay = START_AGAIN;
        connection.ask(format!("release {} {} {delay}", job.id, job.stats.number("pri")))?;
        self.ended(job, Some(error.to_string()), Fate::Released, Some(delay));
        self.sleep(Duration::from_nanos(delay.span().as_nanos()));
        Ok(())
    }

    fn lost(&self, job: &Job, reason: &str) {
        self.ended(job, Some(reason.to_owned()), Fate::Lost, None);
    }

    fn ended(&self, job: &Job, reason: Option<String>, fate: Fate, delay: Option<Seconds>) {
        let (id, tube, elapsed) = (job.id.0, job.stats.text("tube"), job.reserved.elapsed());
        self.report.ended(&Ended { id, tube, reason, fate, delay, elapsed });
    }
}

fn outcome(status: ExitStatus, line: Vec<u8>) -> Outcome {
    match command::failure(status) {
        None => Outcome::Success,
        Some(reason) if command::is_output_closed() => Outcome::Unread(reason),
        Some(reason) => Outcome::Failure(reason, line),
    }
}

/// Keeps with a job why its command has failed.
fn note(connection: &mut Connection, id: JobId, reason: &str, line: &[u8]) -> Result<(), ClientError> {
    let separator = if line.is_empty() { "" } else { ": " };
    let text = [reason.as_bytes(), separator.as_bytes(), line].concat();
    connection.note(id, &text)
}

/// Returns the delay after this number of releases: doubled for each, up to a maximum.
fn back_off(delay: Seconds, max_delay: Seconds, releases: u64) -> Seconds {
    let factor = 1_u64 << releases.min(63);
    let delay = Span::from_nanos(delay.span().as_nanos().saturating_mul(factor));
    Seconds::of(delay.min(max_delay.span()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_back_off_doubles_up_to_its_maximum() {
        for (delay, max_delay, releases, expected) in [
            (1, 3600, 0, 1),
            (1, 3600, 1, 2),
            (1, 3600, 11, 2048),
            (1, 3600, 12, 3600),
            (1, 3600, u64::MAX, 3600),
            (10, 5, 0, 5),
            (0, 3600, 70, 0),
            (u32::MAX, u32::MAX, 63, u32::MAX),
        ] {
            let [delay, max_delay, expected] = [delay, max_delay, expected].map(Seconds::whole);
            assert_eq!(back_off(delay, max_delay, releases), expected, "{delay} {max_delay} {releases}");
        }
        let [quarter, longest] = ["0.25", "1.5"].map(|text| Seconds::parse(text).expect("a time"));
        for (releases, expected) in [(0, "0.25"), (1, "0.5"), (2, "1"), (3, "1.5")] {
            assert_eq!(back_off(quarter, longest, releases).to_string(), expected, "{releases}");
        }
    }
}
