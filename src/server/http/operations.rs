//! What the operations of the API do: the commands of the protocol that the session of a call serves for them. So limits,
//! memory, drain mode and the order of checks are those of the protocol.

use super::api::Operation;
use super::call::{Begun, Obstacle};
use super::json::{GroupJson, JobJson, JobPageJson};
use super::response::json;
use super::target::{Name, NextState, PutTarget};
use super::tube_json::TubeDetailJson;
use crate::protocol::command::Command;
use crate::protocol::reply::Reply;
use crate::queue::{JobPage, JobState, JobsListed};
use crate::server::Core;
use crate::server::queries::{PERCENTILE_STEPS, STATS_BYTES_PER_STEP};
use crate::server::session::{Session, SessionState};
use crate::time::Time;
use crate::values::ids::{JobId, JobKey};

impl Core {
    /// Serves the commands of an operation, as far as they can be served now.
    pub(super) fn begin(&mut self, session: &mut Session, operation: &Operation, now: Time) -> Begun {
        match operation {
            Operation::Tube(tube) => self.show_tube(session, tube, now),
            Operation::Jobs(tube, query) => {
                match self.engine.list_jobs(session.protocol.client, tube.get(), *query) {
                    JobsListed::Page(page) => self.show_page(session, &page, now),
                    JobsListed::Working => return Begun::Working,
                    JobsListed::NotFound => self.reply_to_call(session, Reply::NotFound),
                }
            }
            Operation::Group(group) => self.show_group(session, group),
            Operation::Job(id) => {
                let job = self.engine.jobs().find(*id);
                self.show_job(session, job, &Command::StatsJob(*id), now);
            }
            Operation::Body { id, .. } => self.serve_words(session, format_args!("peek {id}"), now),
            Operation::Put { job: PutTarget { tube, priority, delay, ttr, tags }, bytes } => {
                if self.use_tube(session.protocol.client, tube.get()) == Reply::OutOfMemory {
                    self.reply_to_call(session, Reply::OutOfMemory);
                    return Begun::Refused(None);
                }
                let tags = tags.get();
                let space = if tags.is_empty() { "" } else { " " };
                let words = format_args!("put {priority} {delay} {ttr} {bytes}{space}{}", tags.as_str());
                self.serve_words(session, words, now);
                return Begun::Receiving;
            }
            Operation::Pause { tube, .. }
            | Operation::Kick { tube, .. }
            | Operation::Flush(tube)
            | Operation::Move { from: tube, .. }
            | Operation::Next(tube, _)
                if !self.use_known_tube(session, tube) =>
            {
                return Begun::Refused(Some(Obstacle::NoTube));
            }
            Operation::Next(_, state) => self.show_next(session, *state, now),
            Operation::Pause { tube, seconds } => {
                let words = format_args!("pause-tube {} {seconds}", tube.get().as_str());
                self.serve_words(session, words, now);
            }
            Operation::Kick { count, .. } => {
                self.serve_words(session, format_args!("kick {count}"), now);
                if session.protocol.state == SessionState::Working {
                    return Begun::Working;
                }
            }
            Operation::Flush(tube) => {
                self.serve_words(session, format_args!("flush-tube {}", tube.get().as_str()), now);
                if session.protocol.state == SessionState::Working {
                    return Begun::Working;
                }
            }
            Operation::Move { from, state, to, count } => {
                let [from, to] = [from, to].map(|tube| tube.get().as_str());
                self.serve_words(
                    session,
                    format_args!("move-jobs {from} {} {to} {count}", state.word()),
                    now,
                );
                if session.protocol.state == SessionState::Working {
                    return Begun::Working;
                }
            }
            Operation::Config { tube, key, value } => {
                let words = format_args!("tube-config {} {} {value}", tube.get().as_str(), key.word());
                self.serve_words(session, words, now);
            }
            Operation::KickJob(id)
            | Operation::MoveJob { id, .. }
            | Operation::Bury { id, .. }
            | Operation::Release { id, .. }
            | Operation::Delete(id) => {
                let Some(job) = self.engine.jobs().find(*id) else {
                    self.reply_to_call(session, Reply::NotFound);
                    return Begun::Refused(None);
                };
                if let Some(obstacle) = self.obstacle(job, operation, now) {
                    self.reply_to_call(session, Reply::NotFound);
                    return Begun::Refused(Some(obstacle));
                }
                self.act_on_job(session, *id, operation, now);
            }
            Operation::Drain | Operation::Undrain => {
                self.draining = *operation == Operation::Drain;
                self.show(session, false, |_| b"{}".to_vec());
            }
        }
        Begun::Replied
    }

    /// Why an operation is not possible with this job, if it is not.
    fn obstacle(&self, job: JobKey, operation: &Operation, now: Time) -> Option<Obstacle> {
        let state = self.engine.jobs().get(job).state;
        let is_permitted = match state {
            JobState::Delayed | JobState::Buried => true,
            JobState::Ready => !matches!(operation, Operation::KickJob(_)),
            JobState::Held => {
                matches!(operation, Operation::KickJob(_) | Operation::MoveJob { .. } | Operation::Delete(_))
            }
            JobState::Reserved => {
                let left = self.engine.job_stats(job, now).time_left;
                return Some(Obstacle::Reserved { seconds_left: left.as_secs() });
            }
        };
        match operation {
            _ if !is_permitted => Some(Obstacle::State(state)),
            Operation::MoveJob { to, .. } if self.engine.tube_of(job) == to.get() => Some(Obstacle::SameTube),
            _ => None,
        }
    }

    /// Changes a job that no client has reserved.
    fn act_on_job(&mut self, session: &mut Session, id: JobId, operation: &Operation, now: Time) {
        if matches!(operation, Operation::Bury { .. } | Operation::Release { .. }) {
            // The command that follows in the same breath ends the reservation.
            let job = self.engine.take_job(session.protocol.client, id, now);
            assert!(job.is_some(), "no client has reserved the job");
        }
        match operation {
            Operation::Bury { priority, .. } => {
                self.serve_words(session, format_args!("bury {id} {priority}"), now);
            }
            Operation::Release { priority, delay, .. } => {
                self.serve_words(session, format_args!("release {id} {priority} {delay}"), now);
            }
            Operation::KickJob(_) => self.serve_words(session, format_args!("kick-job {id}"), now),
            Operation::MoveJob { to, .. } => {
                self.serve_words(session, format_args!("move-job {id} {}", to.get().as_str()), now);
            }
            _ => self.serve_words(session, format_args!("delete {id}"), now),
        }
    }

    /// Serves one command line.
    fn serve_words(&mut self, session: &mut Session, words: std::fmt::Arguments<'_>, now: Time) {
        let line = format!("{words}\r\n");
        let used = self.serve(session, line.as_bytes(), now);
        assert_eq!(used, line.len(), "a call runs only while commands are served");
    }

    /// Has the session use a tube that exists, or replies that there is none.
    fn use_known_tube(&mut self, session: &mut Session, tube: &Name) -> bool {
        let is_known = self.engine.tubes().find(tube.get()).is_some();
        if is_known {
            self.engine.use_tube(session.protocol.client, tube.get());
        } else {
            self.reply_to_call(session, Reply::NotFound);
        }
        is_known
    }

    pub(super) fn reply_to_call(&mut self, session: &mut Session, reply: Reply<'_>) {
        self.with_replies(&mut session.output, |core, replies| replies.reply(reply, &mut core.buffers));
    }

    fn show_tube(&mut self, session: &mut Session, tube: &Name, now: Time) {
        match self.engine.tubes().find(tube.get()) {
            Some(key) => {
                self.extra_steps += self.engine.tube_waiting_cost(key) as u32 + PERCENTILE_STEPS;
                // The statistics should not count the client of this call.
                self.disconnect_call(session, now);
                self.show(session, true, |core| json(&TubeDetailJson::of(core, key, now)));
            }
            None => self.reply_to_call(session, Reply::NotFound),
        }
    }

    fn show_group(&mut self, session: &mut Session, group: &Name) {
        match GroupJson::of(self, group.get()).map(|group| json(&group)) {
            Some(data) => self.show(session, true, |_| data),
            None => self.reply_to_call(session, Reply::NotFound),
        }
    }

    /// Shows the next job of the tube that the session uses.
    fn show_next(&mut self, session: &mut Session, state: NextState, now: Time) {
        let client = session.protocol.client;
        let (job, command) = match state {
            NextState::Ready => (self.engine.peek_ready(client), Command::PeekReady),
            NextState::Reserved => (self.engine.peek_reserved(client), Command::PeekReserved),
            NextState::Delayed => (self.engine.peek_delayed(client), Command::PeekDelayed),
            NextState::Buried => (self.engine.peek_buried(client), Command::PeekBuried),
        };
        self.show_job(session, job, &command, now);
    }

    pub(super) fn show_page(&mut self, session: &mut Session, page: &JobPage, now: Time) {
        self.show(session, false, |core| json(&JobPageJson::of(core, page, now)));
    }

    /// Replies with a job. `command` would show the same to a client.
    fn show_job(&mut self, session: &mut Session, job: Option<JobKey>, command: &Command<'_>, now: Time) {
        let is_harmless = self.is_stalled() && !self.may_reveal_uncommitted(session.protocol.client, command);
        match job {
            Some(job) => self.show(session, is_harmless, |core| json(&JobJson::of(core, job, now))),
            None => self.with_replies(&mut session.output, |core, replies| {
                replies.set_harmless(is_harmless);
                replies.reply(Reply::NotFound, &mut core.buffers);
            }),
        }
    }

    /// Replies with data.
    fn show(&mut self, session: &mut Session, is_harmless: bool, render: impl FnOnce(&Self) -> Vec<u8>) {
        let data = render(self);
        self.extra_steps += (data.len() / STATS_BYTES_PER_STEP) as u32;
        self.with_replies(&mut session.output, |core, replies| {
            replies.set_harmless(is_harmless);
            replies.reply(Reply::Ok { bytes: data.len() }, &mut core.buffers);
            replies.data(&data, &mut core.buffers);
        });
    }
}
