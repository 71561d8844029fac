//! Recomputes every counter, link and index of the queue from the jobs and clients, for tests.

use std::collections::HashMap;

use super::background::Work;
use super::engine::Engine;
use super::job::{Activity, State};
use super::stats::JobTotals;
use crate::ids::{ClientSlot, JobKey, TubeSlot};
use crate::time::Time;

/// What the jobs and clients say about one tube.
#[derive(Default, PartialEq, Eq, Debug)]
struct Tally {
    jobs: [usize; 4],
    urgent: u32,
    using: u32,
    watching: u32,
    narrow_waiting: usize,
    wide: usize,
    pins: u32,
}

impl Engine {
    /// Asserts everything that must hold between two calls.
    ///
    /// # Panics
    /// If something does not hold: always a defect of the queue.
    pub fn check(&self) {
        self.jobs.check();
        self.tubes.check();
        self.clients.check();
        self.timers.check();
        self.bodies().check();
        self.check_counts();
        self.check_containers();
        self.check_timers();
        self.check_nobody_waits_in_vain();
    }

    fn check_counts(&self) {
        let mut totals = JobTotals { timeouts: self.totals.timeouts, ..JobTotals::default() };
        totals.total_jobs = self.totals.total_jobs;
        let mut tallies: HashMap<TubeSlot, Tally> = HashMap::new();
        for (_, job) in self.jobs.iter() {
            let tally = tallies.entry(job.tube).or_default();
            tally.jobs[job.state as usize] += 1;
            totals.jobs[job.state as usize] += 1;
            let is_urgent = job.state == State::Ready && job.pri < crate::limits::URGENT_BELOW;
            tally.urgent += u32::from(is_urgent);
            totals.urgent += u32::from(is_urgent);
        }
        for (key, client) in self.clients.slab.iter() {
            tallies.entry(client.used).or_default().using += 1;
            totals.waiting += u32::from(client.is_waiting());
            totals.producers += u32::from(client.producer && !client.leaving);
            totals.workers += u32::from(client.worker && !client.leaving);
            let lengths = self
                .clients
                .watched(self.clients.key(ClientSlot(key)))
                .map(|tube| self.tubes[tube].name().as_bytes().len());
            assert_eq!(
                client.name_lengths,
                lengths.sum::<usize>(),
                "the names that a client watches are counted"
            );
            for tube in self.clients.watched(self.clients.key(ClientSlot(key))) {
                let tally = tallies.entry(tube).or_default();
                tally.watching += 1;
                tally.wide += usize::from(client.is_wide());
                tally.narrow_waiting += usize::from(!client.is_wide() && client.is_waiting());
            }
        }
        for work in &self.work {
            match work {
                Work::Kick(kick) => tallies.entry(self.tubes.slot(kick.tube)).or_default().pins += 1,
                Work::Serve { tube } => tallies.entry(self.tubes.slot(*tube)).or_default().pins += 1,
                Work::Depart { .. } | Work::Tidy => {}
            }
        }
        let is_tidying = self.work.iter().any(|work| matches!(work, Work::Tidy));
        assert_eq!(self.is_tidying, is_tidying, "one piece of work tidies");
        assert_eq!(self.totals, totals, "the counts of the queue");
        for (key, tube) in self.tubes.iter() {
            let reserved = tube.reserved as usize;
            let counted = Tally {
                jobs: [tube.ready.len(), reserved, tube.delayed.len(), tube.buried.len()],
                urgent: tube.urgent,
                using: tube.using,
                watching: tube.watching,
                narrow_waiting: tube.waiting.len(),
                wide: tube.wide.len(),
                pins: tube.pins,
            };
            let expected = tallies.remove(&key.slot).unwrap_or_default();
            assert_eq!(counted, expected, "the counts of tube {}", tube.name().as_str());
            let serving = self.work.iter().any(|work| matches!(work, Work::Serve { tube } if *tube == key));
            assert_eq!(tube.serving, serving, "a tube is served once");
            assert!(tube.is_wanted() || key.slot == self.default_tube, "an unwanted tube is gone");
        }
        assert!(tallies.is_empty(), "no job or client names a tube that is gone");
    }

    fn check_containers(&self) {
        for (key, tube) in self.tubes.iter() {
            tube.ready.check(&self.jobs.slab);
            tube.ready_order.check(&self.jobs, key.slot, tube.ready.len());
            tube.delayed.check(&self.jobs.activities);
            tube.buried.check(&self.jobs.slab);
            tube.waiting.check(&self.clients.watches);
            tube.wide.check(&self.clients.watches);
            tube.ready.for_each(&self.jobs.slab, |job| self.check_place(JobKey(job), State::Ready, key.slot));
            for job in tube.buried.iter(&self.jobs.slab) {
                self.check_place(JobKey(job), State::Buried, key.slot);
            }
            tube.delayed.for_each(&self.jobs.activities, |activity| {
                self.check_place(self.jobs.activities[activity].job, State::Delayed, key.slot);
            });
            let waiting = tube.waiting.iter(&self.clients.watches);
            let turns: Vec<u64> =
                waiting.map(|watch| self.clients.turn(self.clients.watches[watch].client)).collect();
            assert!(turns.is_sorted(), "the longest waiting is first");
        }
        for (key, client) in self.clients.slab.iter() {
            client.held.check(&self.jobs.activities);
            client.held_order.check(&self.jobs.slab);
            assert_eq!(client.held.len(), client.held_order.len(), "what is held is in the list too");
            for job in client.held_order.iter(&self.jobs.slab) {
                assert_eq!(self.jobs.activity(JobKey(job)).and_then(Activity::holder), Some(ClientSlot(key)));
            }
            client.held.for_each(&self.jobs.activities, |activity| {
                let activity = &self.jobs.activities[activity];
                assert_eq!(activity.holder(), Some(ClientSlot(key)), "a held job knows its holder");
                assert_eq!(self.jobs.get(activity.job).state, State::Reserved);
            });
        }
        let held: usize = self.clients.slab.iter().map(|(_, client)| client.held.len()).sum();
        assert_eq!(held, self.totals.in_state(State::Reserved) as usize, "every reserved job is held");
    }

    fn check_place(&self, job: JobKey, state: State, tube: TubeSlot) {
        let job = self.jobs.get(job);
        assert_eq!((job.state, job.tube), (state, tube), "job {} is where its state says", job.id);
    }

    /// A timer may fire early, but not late.
    fn check_timers(&self) {
        for (key, client) in self.clients.slab.iter() {
            let wait_end = client.wait.and_then(|wait| wait.until);
            for due in [self.soonest_held(ClientSlot(key)), wait_end].into_iter().flatten() {
                self.check_armed(self.timers.armed(client.timer), due);
            }
        }
        for (_, tube) in self.tubes.iter() {
            let delayed = tube.delayed.min().map(|activity| self.jobs.activities[activity].deadline);
            for due in [delayed, tube.pause.map(|pause| pause.until)].into_iter().flatten() {
                self.check_armed(self.timers.armed(tube.timer), due);
            }
        }
    }

    fn check_armed(&self, armed: Option<Time>, due: Time) {
        assert!(armed.is_some_and(|at| at <= due), "what is due at {due:?} has a timer, not {armed:?}");
    }

    /// Where a job could be handed out and somebody waits for it, work to do so is queued.
    fn check_nobody_waits_in_vain(&self) {
        for (key, client) in self.clients.slab.iter().filter(|(_, client)| client.is_waiting()) {
            assert!(!client.leaving, "who has gone does not wait");
            for tube in self.clients.watched(self.clients.key(ClientSlot(key))) {
                let is_seen = client.is_wide() && self.clients.turn(ClientSlot(key)) <= self.tubes[tube].seen;
                assert!(!is_seen, "a tube does not pass over a client that waits for it");
                let queued =
                    |work: &Work| matches!(work, Work::Serve { tube: serving } if serving.slot == tube);
                assert!(
                    !self.tubes[tube].listed || self.work.iter().any(queued),
                    "nobody waits while there is a job for him"
                );
            }
        }
    }
}
