//! What happens when time passes.

use beanring::queue::Failure;
use beanring::time::Time;

use super::{Client, Conn, Job, MARGIN, Model, Name, Place, RECOVERED, Told};

impl Model {
    /// Handles everything that is due up to `to`, each event at its instant. At the same instant, clients come before tubes,
    /// and both are in the order of the engine's keys.
    pub fn pass(&mut self, to: Time) {
        self.release_free();
        self.return_recovered();
        while let Some(at) = self.next_due().filter(|&at| at <= to) {
            self.now = self.now.max(at);
            // The client of the engine that holds these jobs is its first.
            self.reservations_due(RECOVERED);
            let mut clients: Vec<_> = self.clients.iter().map(|client| (client.key, client.conn)).collect();
            clients.sort();
            for (_, conn) in clients {
                self.client_due(conn);
            }
            let mut tubes: Vec<_> = self.tubes.iter().map(|tube| (tube.key, tube.name)).collect();
            tubes.sort();
            for (_, name) in tubes {
                self.tube_due(name);
            }
        }
        self.now = to;
    }

    /// Returns the jobs of recovered reservations, if reservations are not kept.
    pub fn return_recovered(&mut self) {
        while !self.keeps_reservations
            && let Some(at) = self.held_longest(RECOVERED)
        {
            self.make_ready(at);
        }
    }

    /// The time of the next event.
    pub fn next_due(&self) -> Option<Time> {
        let jobs = self.jobs.iter().filter_map(Job::deadline);
        let pauses = self.tubes.iter().filter_map(|tube| tube.pause.map(|(until, _)| until));
        let waits = self.clients.iter().filter_map(|client| client.wait.and_then(|wait| wait.until));
        let job_waits = self.clients.iter().filter_map(|client| client.job_wait.map(|wait| wait.until));
        let waits = waits.chain(job_waits).chain(self.margins());
        jobs.chain(pauses).chain(waits).chain(self.rule_deadlines()).min()
    }

    /// Returns true if the order of events up to `to` does not decide which client gets which job, which job is buried first, or in
    /// which order jobs of a tube become ready.
    pub fn is_calm(&self, to: Time) -> bool {
        let due = || self.jobs.iter().filter(|job| job.deadline().is_some_and(|at| at <= to));
        // One timer returns all jobs of a client, and one ends all delays of a tube.
        let timer = |job: &Job| match job.place {
            Place::Reserved { by, .. } => Some(by),
            _ => None,
        };
        let is_apart = |job: &Job| due().all(|other| other.tube != job.tube || timer(other) == timer(job));
        let mut pauses = self.tubes.iter().filter_map(|tube| tube.pause.map(|(until, _)| until));
        if self.rule_deadlines().any(|at| at <= to) {
            return false;
        }
        let is_quiet = due().next().is_none() && pauses.all(|at| at > to);
        let is_waiting = self.clients.iter().any(|client| client.wait.is_some());
        is_quiet || due().all(is_apart) && !is_waiting && !self.may_retire()
    }

    /// The times at which the safety margins of waiting clients begin.
    fn margins(&self) -> impl Iterator<Item = Time> {
        self.clients.iter().filter(|client| client.wait.is_some()).filter_map(|client| self.margin(client))
    }

    fn margin(&self, client: &Client) -> Option<Time> {
        let held = self.jobs.iter().filter(|job| job.is_held_by(client.conn));
        held.filter_map(Job::deadline).min().map(|until| until.back(MARGIN))
    }

    fn client_due(&mut self, conn: Conn) {
        let now = self.now;
        let client = self.get(conn);
        if let Some(wait) = client.wait {
            let soon = self.margin(client).filter(|&margin| margin <= now);
            let end = wait.until.filter(|&until| until <= now);
            let told = match (soon, end) {
                (Some(soon), end) if end.is_none_or(|end| soon <= end) => Some(Told::DeadlineSoon),
                (_, end) => end.map(|_| Told::TimedOut),
            };
            if let Some(told) = told {
                self.client(conn).wait = None;
                self.told.push((conn, told));
            }
        }
        self.job_wait_due(conn);
        self.reservations_due(conn);
    }

    fn reservations_due(&mut self, conn: Conn) {
        let now = self.now;
        let is_due = |job: &Job| job.is_held_by(conn) && job.deadline().is_some_and(|until| until <= now);
        while let Some(at) = self.soonest(is_due) {
            self.totals.timeouts += 1;
            let tube = self.jobs[at].tube;
            self.tube(tube).timeouts += 1;
            self.fail(at, Failure::Timeout);
        }
    }

    fn tube_due(&mut self, name: Name) {
        let now = self.now;
        let tube = self.tube(name);
        if tube.pause.is_some_and(|(until, _)| until <= now) {
            tube.pause = None;
            self.serve();
        }
        self.throttle_due(name);
        while let Some(at) = self
            .soonest_delayed(name)
            .filter(|&at| self.jobs[at].deadline().is_some_and(|until| until <= now))
        {
            self.make_ready(at);
        }
        self.expiry_due(name);
        self.drop_tubes();
    }
}
