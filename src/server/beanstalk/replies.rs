//! The beanstalk protocol: from the outcome of a command to the reply.

use std::sync::Arc;

use super::session::Session;
use super::{Listing, stats};
use crate::protocol::reply::{Reply, Yaml};
use crate::server::Core;
use crate::server::Rights;
use crate::server::access::SessionAccess;
use crate::server::client_state::{ProtocolState, SessionState};
use crate::server::commit_gate::Replies;
use crate::server::memory::Kept;
use crate::server::outcome::Outcome;
use crate::time::Time;
use crate::values::budget::Cost;
use crate::values::ids::{JobId, JobKey};

impl Core {
    /// Replies with an outcome.
    #[inline(never)]
    pub(in crate::server) fn reply(
        &mut self,
        protocol: &mut ProtocolState,
        replies: &mut Replies,
        outcome: Outcome<'_>,
        now: Time,
    ) {
        self.reply_inline(protocol, replies, outcome, now);
    }

    // For the ways that most commands take: the compiler then sees which outcomes there are.
    #[inline(always)]
    pub(super) fn reply_inline(
        &mut self,
        protocol: &mut ProtocolState,
        replies: &mut Replies,
        outcome: Outcome<'_>,
        now: Time,
    ) {
        match outcome {
            Outcome::Done(reply) => replies.reply(reply, &mut self.buffers),
            Outcome::Reserved(job) => self.reply_job(replies, job, reserved),
            Outcome::Pending => {}
            Outcome::Refused(refusal) if refusal.may_reveal() => {
                replies.reply(refusal.reply(), &mut self.buffers);
            }
            Outcome::Refused(refusal) => replies.refuse(refusal.reply(), &mut self.buffers),
            other => self.reply_at_length(protocol, replies, other, now),
        }
    }

    #[inline(never)]
    fn reply_at_length(
        &mut self,
        protocol: &mut ProtocolState,
        replies: &mut Replies,
        outcome: Outcome<'_>,
        now: Time,
    ) {
        match outcome {
            Outcome::ReservedBatch(jobs) => self.reply_batch(replies, &jobs),
            Outcome::InsertedBatch(each) => {
                replies.reply(Reply::InsertedBatch(each.len()), &mut self.buffers);
                // Bounded by BATCH_JOBS_MAX: the jobs of one batch, which were counted as they were stored.
                each.into_iter().for_each(|reply| replies.reply(reply, &mut self.buffers));
            }
            Outcome::Found(job) => self.reply_job(replies, job, found),
            Outcome::Moved(moved) => {
                replies.reply(Reply::MovedJobs(moved.count.into()), &mut self.buffers);
            }
            Outcome::Stats => {
                self.outer_counts.read_driver(now);
                self.reply_data(replies, |core, out| stats::stats(core, out, now));
            }
            Outcome::JobStats(job) => {
                self.reply_data(replies, |core, out| stats::job(core, job, out, now));
            }
            Outcome::TubeStats(tube) => {
                self.reply_data(replies, |core, out| stats::tube(core, tube, out, now));
            }
            Outcome::GroupStats(name) => self.reply_data(replies, |core, out| stats::group(core, name, out)),
            Outcome::ScheduleStats(name) => {
                self.reply_data(replies, |core, out| stats::schedule(core, name, out, now));
            }
            Outcome::Schedules { after, limit } => {
                let user = protocol.access.as_ref().map(|access| Arc::clone(&access.user));
                let user = user.as_deref();
                let limit = self.charge_schedules(limit, user);
                self.reply_data(replies, |core, out| stats::schedules(core, after, limit, user, out));
            }
            Outcome::Rules(name) => self.reply_data(replies, |core, out| stats::rules(core, name, out)),
            Outcome::Jobs(page) => {
                self.reply_data(replies, |core, out| stats::page(core, &page, out, now));
            }
            Outcome::TubeUsed => {
                let reply = Reply::Using(self.engine.used(protocol.client).name());
                replies.reply(reply, &mut self.buffers);
            }
            Outcome::Tubes => {
                let list = self.engine.list_tubes();
                let is_whole =
                    |access: &SessionAccess| access.user.grants.everywhere().has_any(Rights::INSPECT);
                let user = protocol.access.as_ref().filter(|access| !is_whole(access));
                let user = user.map(|access| Arc::clone(&access.user));
                self.begin_list(protocol, replies, Listing::new(list, user));
            }
            Outcome::TubesWatched => {
                let list = self.engine.list_watched(protocol.client);
                self.begin_list(protocol, replies, Listing::new(list, None));
            }
            Outcome::Done(_) | Outcome::Refused(_) | Outcome::Reserved(_) | Outcome::Pending => {
                unreachable!("its reply is made inline")
            }
        }
    }

    /// Renders another piece of the list that a session waits for.
    pub(in crate::server) fn continue_list(&mut self, session: &mut Session, now: Time) {
        let Session { protocol, output, .. } = session;
        self.with_replies(output, |core, replies| {
            replies.set_harmless(true);
            let list = protocol.list.as_mut().expect("a session that lists has a list");
            if core.reply_piece(list, replies) {
                core.end_list(protocol);
                protocol.serve_again();
                protocol.is_choked = replies.unsent_bytes() >= core.memory.output_bytes_pause();
            }
        });
        self.charge(Cost::COMMAND);
        self.after_serving(session, now);
    }

    /// Replies with a list: at once if it is short, else in pieces.
    pub(in crate::server) fn begin_list(
        &mut self,
        protocol: &mut ProtocolState,
        replies: &mut Replies,
        mut listing: Listing,
    ) {
        if !listing.is_part() {
            let bytes = Yaml::list_length(listing.list().tubes(), listing.list().name_lengths());
            replies.reply(Reply::Ok { bytes }, &mut self.buffers);
            self.begin_data(replies);
        }
        let mut is_done = self.reply_piece(&mut listing, replies);
        if !is_done && listing.is_part() && !listing.is_counting() {
            // A short list is counted in one piece, and rendered in another.
            is_done = self.reply_piece(&mut listing, replies);
        }
        if !is_done {
            self.engine.register_list(listing.list());
            self.memory.count(Kept::List, false, true);
            protocol.list = Some(Box::new(listing));
            protocol.state = SessionState::Listing;
        }
    }

    /// Forgets the list of a session, if there is one.
    pub(in crate::server) fn end_list(&mut self, protocol: &mut ProtocolState) {
        if let Some(listing) = protocol.list.take() {
            self.engine.end_list(listing.list());
            self.memory.count(Kept::List, true, false);
        }
    }

    /// Appends what stands before the entries.
    fn begin_data(&mut self, replies: &mut Replies) {
        let mut data = self.buffers.take_scratch();
        _ = Yaml::new(&mut data);
        replies.data(&data, &mut self.buffers);
        self.buffers.keep_scratch(data);
    }

    /// Appends a bounded piece of a list, or counts a piece of it. Returns true if it was the last.
    fn reply_piece(&mut self, listing: &mut Listing, replies: &mut Replies) -> bool {
        if listing.is_counting() {
            if let Some(bytes) = listing.count(&mut self.engine) {
                replies.reply(Reply::Ok { bytes }, &mut self.buffers);
                self.begin_data(replies);
            }
            return false;
        }
        let mut data = self.buffers.take_scratch();
        let is_done = listing.render(&mut self.engine, &mut data);
        replies.data(&data, &mut self.buffers);
        self.buffers.keep_scratch(data);
        is_done
    }

    /// Replies with the jobs of a `reserve-batch`.
    fn reply_batch(&mut self, replies: &mut Replies, jobs: &[JobKey]) {
        replies.reply(Reply::ReservedBatch(jobs.len()), &mut self.buffers);
        // Bounded by BATCH_JOBS_MAX: the jobs of one batch, which are counted.
        for &job in jobs {
            let copied = Cost::copied(self.engine.jobs().get(job).body.len());
            self.charge(Cost::BATCH_JOB.plus(copied));
            self.reply_job(replies, job, reserved);
        }
    }

    /// Replies with a job's body.
    pub(in crate::server) fn reply_job(
        &mut self,
        replies: &mut Replies,
        job: JobKey,
        reply: fn(JobId, u32) -> Reply<'static>,
    ) {
        let (job, bodies) = self.engine.job_and_bodies(job);
        let bytes = job.body.len() as u32 - 2;
        replies.reply(reply(job.id, bytes), &mut self.buffers);
        replies.body(&job.body, job.body.len(), bodies, &mut self.buffers);
    }

    /// Replies with data that `write` renders.
    fn reply_data(&mut self, replies: &mut Replies, write: impl FnOnce(&Self, &mut Vec<u8>)) {
        let mut data = self.buffers.take_scratch();
        write(self, &mut data);
        replies.reply(Reply::Ok { bytes: data.len() }, &mut self.buffers);
        data.extend_from_slice(b"\r\n");
        replies.data(&data, &mut self.buffers);
        self.charge(Cost::rendered(data.len()));
        self.buffers.keep_scratch(data);
    }
}

const fn reserved(id: JobId, bytes: u32) -> Reply<'static> {
    Reply::Reserved { id, bytes }
}

const fn found(id: JobId, bytes: u32) -> Reply<'static> {
    Reply::Found { id, bytes }
}
