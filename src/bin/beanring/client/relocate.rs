//! `beanring move`: jobs of one tube become jobs of another, by `move-jobs`. beanstalkd cannot do that, so there each job is
//! put again, and then deleted. A job can be in both tubes if this program dies in between, and never in none.

use std::process::ExitCode;

use beanring::time::Seconds;
use beanring::values::ids::JobId;
use beanring::values::job_state::JobState;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::interrupt::Interrupt;
use super::{ClientError, Connection, Follows, NO_TUBE, Output, Stats, Untrusted, inspect, units};
use crate::cli::verbs;

/// Jobs that one `move-jobs` moves at most. A signal ends the move between two such commands.
const MOVED_AT_ONCE_MAX: u64 = 1000;

/// The delay of a copy until it is buried, so that no worker reserves it. If this program dies in between, the copy
/// becomes ready after this time.
const BURY_DELAY: Seconds = Seconds::whole(3600);

#[derive(Serialize)]
struct Moved<'a> {
    from: &'a str,
    to: &'a str,
    moved: u64,
    /// Where it has stopped early, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    stopped_at: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

/// Both tubes, each with a connection that uses it.
struct Move {
    state: JobState,
    from: Connection,
    to: Connection,
    moved: u64,
    /// The job that the other tube did not take.
    stopped_at: Option<JobId>,
}

pub(super) fn run(verb: &verbs::Move) -> Result<ExitCode, ClientError> {
    if verb.from == verb.to {
        return Err(ClientError::Usage(format!("FROM and TO are the same tube, {}; name another", verb.to)));
    }
    let mut from = super::connect(&verb.common)?;
    let stats = inspect::if_permitted(inspect::of_tube(&mut from, &verb.from, NO_TUBE))?;
    // Jobs that are put during the move stay, if it is known how many there are.
    let all = stats.map_or(u64::MAX, |stats| stats.number(&format!("current-jobs-{}", verb.state.word())));
    let limit = verb.count.map_or(all, |count| all.min(count.into()));
    from.use_tube(&verb.from)?;
    let mut to = super::connect(&verb.common)?;
    to.use_tube(&verb.to)?;
    let interrupt = Interrupt::catch()?;
    let mut work = Move { state: verb.state, from, to, moved: 0, stopped_at: None };
    let result = work.run(verb, limit, &interrupt);
    let (moved, stopped_at) = (work.moved, work.stopped_at.map(|id| id.0));
    let jobs = units::jobs(moved);
    let mut output = Output::new(&verb.common);
    if output.is_json() {
        let reason = match &result {
            Err(ClientError::Refused(refusal)) if stopped_at.is_some() => Some(&*refusal.meaning),
            _ => None,
        };
        output.json(&Moved { from: &verb.from, to: &verb.to, moved, stopped_at, reason })?;
    } else {
        output.line(&format!("moved {jobs} from {} to {}", verb.from, verb.to))?;
    }
    output.flush()?;
    result?;
    if moved < limit && interrupt.is_caught() {
        return interrupt.report(&format!("moved {jobs}"), &mut output);
    }
    Ok(ExitCode::SUCCESS)
}

/// A bar on a terminal, and nothing elsewhere.
fn progress(limit: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos} of {len} jobs, {eta} left");
    ProgressBar::new(limit).with_style(style.expect("the template is valid"))
}

impl Move {
    fn run(&mut self, verb: &verbs::Move, limit: u64, interrupt: &Interrupt) -> Result<(), ClientError> {
        let progress = progress(limit);
        let result = match self.move_many(verb, limit, interrupt, &progress) {
            Err(ClientError::Refused(refusal)) if refusal.word() == "UNKNOWN_COMMAND" => {
                self.move_each(limit, interrupt, &progress)
            }
            result => result,
        };
        progress.finish_and_clear();
        result
    }

    /// Has the server move the jobs. It stops at a job that the other tube cannot take, and does not say why.
    fn move_many(
        &mut self,
        verb: &verbs::Move,
        mut limit: u64,
        interrupt: &Interrupt,
        progress: &ProgressBar,
    ) -> Result<(), ClientError> {
        let verbs::Move { from, to, state, .. } = verb;
        while self.moved < limit && !interrupt.is_caught() {
            let most = (limit - self.moved).min(MOVED_AT_ONCE_MAX);
            let reply = self.from.ask(format!("move-jobs {from} {} {to} {most}", state.word()))?;
            let moved = match reply.word() {
                // The last job has left the tube.
                "NOT_FOUND" => 0,
                _ => reply.expect("MOVED", &format!("tube {from}"))?.count()?,
            };
            self.moved += moved;
            progress.set_position(self.moved);
            if moved < most {
                let Some((next, _)) = inspect::if_permitted(self.next_job())?.flatten() else { break };
                // Whether it moves or is gone, one job less is to be moved.
                if !self.move_alone(next, to)? {
                    limit -= 1;
                }
            }
        }
        Ok(())
    }

    /// Returns the job that the next move begins with, and its body.
    fn next_job(&mut self) -> Result<Option<(JobId, Untrusted)>, ClientError> {
        let reply = self.from.ask_for(Follows::Job, format!("peek-{}", self.state.word()))?;
        if reply.word() == "NOT_FOUND" { Ok(None) } else { Ok(Some(reply.into_job("peek")?)) }
    }

    /// Moves one job, for which the server says why it does not. Returns false if the job is gone.
    fn move_alone(&mut self, id: JobId, to: &str) -> Result<bool, ClientError> {
        let reply = self.from.ask(format!("move-job {id} {to}"))?;
        if reply.word() == "NOT_FOUND" {
            return Ok(false);
        }
        let moved = reply.expect("MOVED", &format!("stopped at job {id}"));
        moved.map_err(|refusal| {
            self.stopped_at = Some(id);
            let full = format!(
                "{to} is full by its rules (beanring tube-config {to}), or the disk of the job log is full"
            );
            refusal
                .meaning(
                    "NOT_MOVED",
                    format!("{to} has a job with the same idempotency key; delete one of the two"),
                )
                .meaning("OUT_OF_MEMORY", full)
        })?;
        self.moved += 1;
        Ok(true)
    }

    /// Puts each job again. A signal ends it between two jobs.
    fn move_each(
        &mut self,
        limit: u64,
        interrupt: &Interrupt,
        progress: &ProgressBar,
    ) -> Result<(), ClientError> {
        while self.moved < limit && !interrupt.is_caught() {
            let Some((id, body)) = self.next_job()? else { break };
            if self.move_one(id, body.bytes())? {
                self.moved += 1;
                progress.set_position(self.moved);
            }
        }
        Ok(())
    }

    /// Returns whether the job has moved. It has not if another client was faster.
    fn move_one(&mut self, id: JobId, body: &[u8]) -> Result<bool, ClientError> {
        let stats = match inspect::of_job(&mut self.from, id) {
            Err(ClientError::Refused(refusal)) if refusal.word() == "NOT_FOUND" => return Ok(false),
            stats => stats?,
        };
        if *stats.text("state") != *self.state.word() {
            return Ok(false);
        }
        // A ready job must not be given to a worker now. A delayed or buried one is not, and reserving it would make it ready
        // if this program died.
        if self.state == JobState::Ready {
            let reply = self.from.ask_for(Follows::Job, format!("reserve-job {id}"))?;
            if reply.word() == "NOT_FOUND" {
                return Ok(false);
            }
            reply.into_job(&format!("job {id}"))?;
        }
        let copy = self.put(id, &stats, body)?;
        let reply = self.from.ask(format!("delete {id}"))?;
        if reply.word() == "NOT_FOUND" {
            self.delete_copy(copy)?;
            return Ok(false);
        }
        reply.expect("DELETED", &format!("job {id}"))?;
        Ok(true)
    }

    /// Puts a copy of the job into the other tube.
    fn put(&mut self, id: JobId, stats: &Stats, body: &[u8]) -> Result<JobId, ClientError> {
        let narrow = |key| u32::try_from(stats.number(key)).unwrap_or(u32::MAX);
        let pri = narrow("pri");
        let delay = match self.state {
            JobState::Ready => Seconds::ZERO,
            JobState::Delayed => Seconds::whole(narrow("time-left")),
            JobState::Buried => BURY_DELAY,
            JobState::Reserved | JobState::Held => unreachable!("jobs in these states are not moved"),
        };
        let subject = format!("job {id}");
        let reply = self.to.put(pri, [delay, Seconds::whole(narrow("ttr"))], body)?;
        if let ("BURIED", Some(copy)) = (reply.word(), reply.number()) {
            self.delete_copy(JobId(copy))?;
        }
        let reply = reply.expect("INSERTED", &subject)?;
        let copy = JobId(reply.count()?);
        if self.state == JobState::Buried {
            self.to.ask_for(Follows::Job, format!("reserve-job {copy}"))?.into_job(&subject)?;
            self.to.ask(format!("bury {copy} {pri}"))?.expect("BURIED", &subject)?;
        }
        Ok(copy)
    }

    /// Another client has the original, so there must be no copy.
    fn delete_copy(&mut self, copy: JobId) -> Result<(), ClientError> {
        let reply = self.to.ask(format!("delete {copy}"))?;
        // A worker may have been faster here too. Then the job runs twice.
        if reply.word() == "NOT_FOUND" { Ok(()) } else { Ok(reply.expect("DELETED", "copy").map(drop)?) }
    }
}
