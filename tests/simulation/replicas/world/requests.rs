//! Requests on their way to the database and back.

use beanring::server::Event;
use beanring::time::Time;
use beanring::wal::LogReply;
use beanring::wal::replica::{DatabaseReply, Failure, Request, Term};

use super::super::database::{Process, reply_to};
use super::{Fault, Happening, InFlight, MS, World};

/// How often a request that waits for a lock looks again.
const LOCK_WAIT: u64 = 2 * MS;

impl World {
    pub(super) fn begin(&mut self, host: usize, request: Request) {
        let process = self.process(host);
        if let Request::Watch(_) = request {
            let is_watch = |in_flight: &InFlight| matches!(in_flight.request, Request::Watch(_));
            self.requests.retain(|_, in_flight| in_flight.process != process || !is_watch(in_flight));
        }
        if let Request::Claim(claim) = &request {
            self.log(|| format!("server {host} claims epoch {} at {}", claim.seen.next(), claim.position));
        }
        self.next_request += 1;
        let id = self.next_request;
        let in_flight = InFlight {
            process,
            node: 0,
            link: 0,
            request,
            sent_at: self.now,
            is_answered: false,
            waits_for: None,
        };
        self.requests.insert(id, in_flight);
        if self.hosts[host].node.is_none() {
            self.hosts[host].queued.push(id);
        } else {
            self.send(id);
        }
    }

    pub(super) fn send(&mut self, id: u64) {
        let Some(in_flight) = self.requests.get_mut(&id) else { return };
        let host = in_flight.process.0;
        let Some(node) = self.hosts[host].node else { return };
        (in_flight.node, in_flight.link) = (node, self.hosts[host].link);
        let (process, request) = (in_flight.process, in_flight.request.clone());
        if self.strikes(Fault::LostRequest, 60) {
            return self.fail(id, &request, 300 * MS);
        }
        let is_write = !matches!(request, Request::Watch(_) | Request::Read { .. });
        if is_write && self.strikes(Fault::Repeated, 40) {
            self.within(600 * MS, Happening::ArriveAgain(process, node, request));
        }
        let span = self.delay();
        self.after(span, Happening::Arrive(id));
    }

    /// The network has repeated a request.
    pub(super) fn arrive_again(&mut self, process: Process, node: usize, request: Request) {
        if !self.nodes[node].is_blocked(&request) {
            self.nodes[node].execute(process, &request);
            self.begin_replicating(node);
        } else if node == self.primary() {
            self.after(LOCK_WAIT, Happening::ArriveAgain(process, node, request));
        }
    }

    pub(super) fn arrive(&mut self, id: u64) {
        let Some(in_flight) = self.requests.get(&id) else { return };
        let (process, node, request) = (in_flight.process, in_flight.node, in_flight.request.clone());
        let is_cut_off =
            in_flight.link != self.hosts[process.0].link || process.1 != self.hosts[process.0].life;
        // The database may have received it before the connection broke.
        if is_cut_off && (!self.allows(Fault::Repeated) || self.random.chance(50)) {
            return;
        }
        if self.nodes[node].is_blocked(&request) {
            // What an old primary waits for never comes.
            if node == self.primary() {
                self.after(LOCK_WAIT, Happening::Arrive(id));
            }
            return;
        }
        if let Request::Watch(_) = request {
            self.requests.get_mut(&id).expect("it is in flight").waits_for =
                Some((u64::MAX, reply_to(&request, Ok(()))));
            return self.end_watches();
        }
        if let Request::Claim(_) = request
            && is_cut_off
        {
            // The session that would hold the lock is gone.
            self.nodes[node].execute((usize::MAX, 0), &request);
            let epoch = self.nodes[node].visible.epoch.0;
            self.after(MS, Happening::Unlock(node, epoch, (usize::MAX, 0)));
            return self.begin_replicating(node);
        }
        let has_left = self.has_left(node);
        let is_unread = node == self.primary() && self.is_unread(process);
        let answer = self.nodes[node].execute(process, &request);
        let is_lease = matches!(request, Request::Append { .. } | Request::Renew(_) | Request::Claim(_));
        self.log(|| {
            let is_done = answer.waits_for.is_some();
            format!("server {} asks, done: {is_done}: {:.60}", process.0, format!("{request:?}"))
        });
        // What an old primary is asked is never acknowledged.
        let is_primary = node == self.primary();
        if is_lease && is_primary && answer.waits_for.is_some() {
            let bound = self.requests[&id].sent_at + self.lease_with_drift(process.0);
            let host = &mut self.hosts[process.0];
            host.bound_max = host.bound_max.max(bound);
        }
        if let Request::Claim(claim) = &request
            && answer.waits_for.is_some()
        {
            assert!(!is_unread, "server {} claims with a damaged log", process.0);
            if is_primary && !has_left {
                self.check_silence(claim.seen.0);
            }
            if is_primary {
                self.leaders.insert(claim.seen.next().0, process);
            }
            self.hosts[process.0].held = Some(claim.seen.next().0);
        }
        self.begin_replicating(node);
        if is_cut_off {
            return;
        }
        if self.strikes(Fault::LostReply, 60) {
            return self.fail(id, &request, 300 * MS);
        }
        match answer.waits_for {
            Some(changes) if self.strikes(Fault::Canceled, 60) => {
                self.nodes[node].show(changes);
                self.fail(id, &request, 20 * MS);
            }
            Some(changes) if changes > self.nodes[node].replicated_changes => {
                let in_flight = self.requests.get_mut(&id).expect("it is in flight");
                in_flight.waits_for = Some((changes, answer.reply));
            }
            _ => self.reply_later(id, answer.reply),
        }
    }

    /// Tells the server within this time that the result of its request is unknown.
    pub(super) fn fail(&mut self, id: u64, request: &Request, within: u64) {
        self.within(within, Happening::Answer(id, reply_to(request, Err(Failure::Unknown))));
    }

    pub(super) fn reply_later(&mut self, id: u64, reply: DatabaseReply) {
        let mut span = self.delay();
        if self.strikes(Fault::LateReply, 60) {
            span = self.random.below_u64(3 * self.lease_ns());
        }
        self.after(span, Happening::Answer(id, reply));
    }

    pub(super) fn begin_replicating(&mut self, node: usize) {
        if node == self.primary() && !self.is_replicating[node] && self.nodes[node].unreplicated() > 0 {
            self.is_replicating[node] = true;
            self.within(2 * MS, Happening::Replicate(node));
        }
    }

    pub(super) fn replicate(&mut self, node: usize) {
        self.is_replicating[node] = false;
        if node != self.primary() {
            return;
        }
        if self.is_stalled {
            self.is_replicating[node] = true;
            return self.after(5 * MS, Happening::Replicate(node));
        }
        let count = 1 + self.random.below(self.nodes[node].unreplicated().max(1));
        (0..count).for_each(|_| self.nodes[node].replicate_one());
        let replicated = self.nodes[node].replicated_changes;
        let done: Vec<(u64, DatabaseReply)> = self
            .requests
            .iter_mut()
            .filter(|(_, request)| {
                request.node == node
                    && request.waits_for.as_ref().is_some_and(|(changes, _)| *changes <= replicated)
            })
            .map(|(&id, request)| (id, request.waits_for.take().expect("it waits").1))
            .collect();
        for (id, reply) in done {
            self.reply_later(id, reply);
        }
        self.begin_replicating(node);
    }

    pub(super) fn end_watches(&mut self) {
        let done: Vec<(u64, Term)> = self
            .requests
            .iter()
            .filter(|(_, in_flight)| in_flight.waits_for.is_some())
            .filter_map(|(&id, in_flight)| match in_flight.request {
                Request::Watch(term) if self.nodes[in_flight.node].is_unlocked(term) => Some((id, term)),
                _ => None,
            })
            .collect();
        for (id, term) in done {
            let in_flight = self.requests.get_mut(&id).expect("it is in flight");
            in_flight.waits_for = None;
            self.reply_later(id, DatabaseReply::Watched { term, result: Ok(()) });
        }
    }

    pub(super) fn answer(&mut self, id: u64, reply: DatabaseReply) {
        let Some(in_flight) = self.requests.get_mut(&id) else { return };
        if std::mem::replace(&mut in_flight.is_answered, true) {
            return;
        }
        let process = in_flight.process;
        if !self.is_alive(process) {
            self.requests.remove(&id);
            return;
        }
        self.reach(process, Happening::Answer(id, reply));
    }

    pub(super) fn take_reply(&mut self, host: usize, id: u64, reply: DatabaseReply, now: Time) {
        let Some(in_flight) = self.requests.remove(&id) else { return };
        let is_ok = match &reply {
            DatabaseReply::Appended { result, .. } | DatabaseReply::Claimed(result) => result.is_ok(),
            DatabaseReply::Renewed(result) => result.is_ok(),
            _ => false,
        };
        if is_ok {
            let bound = in_flight.sent_at + self.lease_with_drift(host);
            self.hosts[host].bound = self.hosts[host].bound.max(bound);
        }
        if let DatabaseReply::Read(Ok(page)) = &reply {
            let process = self.process(host);
            let upto = page.chunks.last().map_or(0, |(position, _)| position.0);
            self.hosts[host].read_upto = self.hosts[host].read_upto.max(upto);
            if let Some(broken) = &mut self.broken
                && let Request::Read { from } = in_flight.request
                && from.0 < broken.position
                && broken.position <= upto
            {
                // The page may be from before the damage.
                let found = page.chunks.iter().find(|(position, _)| position.0 == broken.position);
                let is_damaged = found.map(|(_, chunk)| chunk) == broken.chunk.as_ref();
                broken.know.retain(|&knows| knows != process);
                if !is_damaged {
                    broken.know.push(process);
                }
            }
        }
        let server = self.hosts[host].server.as_mut().expect("it runs");
        server.handle(now, Event::Log(LogReply::Database(Box::new(reply))));
    }
}
