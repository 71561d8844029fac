//! Processes: their start and end, their sessions with the database, and their pauses.

use beanring::server::Server;
use beanring::time::Span;
use beanring::wal::replica::{Failure, Member, ReplicaConfig};
use beanring::wal::{Destination, Durability, WalConfig};
use beanring_testkit::config::config;

use super::super::database::{Process, reply_to};
use super::{Fault, Happening, MS, World};

impl World {
    pub(super) fn start(&mut self, host: usize) {
        let token = 1 + self.random.next() % 1_000_000_000;
        let now = self.clock(host, self.now);
        let state = &mut self.hosts[host];
        if state.server.is_some() {
            return;
        }
        state.token = token;
        let lease = Span::from_millis(state.lease_ms);
        let me = Member { token, secret: 1, lease, ..Member::default() };
        let wal = WalConfig {
            durability: Durability::Always,
            segment_bytes: self.setting.segment_bytes,
            keep_reservations: true,
            destination: Destination::Network { writes_in_flight_max: 4 },
        };
        let replica = ReplicaConfig { me, wal, forwards: true };
        let config = config(2 * 1024 * 1024);
        state.server = Some(Server::with_replica(config, replica, now));
        (state.is_stopping, state.was_serving, state.spins, state.wake_at) = (false, false, 0, None);
        (state.bound, state.bound_max, state.read_upto, state.paused_at) = (0, 0, 0, None);
        self.log(|| format!("server {host} starts"));
        let process = self.process(host);
        let span = self.delay();
        if !self.hosts[host].is_cut {
            self.after(span, Happening::Reconnect(process));
        }
        self.after(0, Happening::Wake(process));
    }

    pub(super) fn start_later(&mut self, host: usize) {
        let span = if self.is_healed { 20 * MS } else { self.random.below_u64(2000 * MS) };
        self.after(span, Happening::Start(host));
    }

    /// The process is gone, and its session with the database after this time.
    pub(super) fn end_process(&mut self, host: usize, unlocked_within: u64) {
        let process = self.process(host);
        let connections = std::mem::take(&mut self.hosts[host].connections);
        for (_, client) in connections {
            for command in &client.commands {
                self.checker.lost(command);
            }
        }
        self.hosts[host].server = None;
        self.drop_session(host, unlocked_within);
        let state = &mut self.hosts[host];
        state.life += 1;
        state.held = None;
        state.queued.clear();
        state.backlog.clear();
        state.paused_at = None;
        if let Some(broken) = &mut self.broken {
            broken.know.retain(|&knows| knows != process);
        }
    }

    /// The session with the database ends. The database notices it within this time.
    pub(super) fn drop_session(&mut self, host: usize, unlocked_within: u64) {
        let process = self.process(host);
        self.hosts[host].link += 1;
        let Some(node) = self.hosts[host].node.take() else { return };
        let epochs: Vec<u64> = self.nodes[node]
            .locks
            .iter()
            .filter(|&(_, &holder)| holder == process)
            .map(|(&epoch, _)| epoch)
            .collect();
        for epoch in epochs {
            self.within(unlocked_within + 1, Happening::Unlock(node, epoch, process));
        }
        let open: Vec<u64> = self
            .requests
            .iter()
            .filter(|(_, request)| request.process == process && !request.is_answered)
            .map(|(&id, _)| id)
            .collect();
        for id in open {
            let request = self.requests[&id].request.clone();
            self.fail(id, &request, 20 * MS);
        }
    }

    pub(super) fn reconnect(&mut self, process: Process) {
        let (host, _) = process;
        if !self.is_alive(process) || self.hosts[host].is_cut || self.hosts[host].node.is_some() {
            return;
        }
        let mut node = self.primary();
        // The primary before may still be reachable.
        if node > 0 && self.strikes(Fault::OldPrimary, 3) {
            node -= 1;
            self.within(3000 * MS, Happening::LeaveOldPrimary(process));
        }
        self.hosts[host].node = Some(node);
        self.hosts[host].link += 1;
        if let Some(epoch) = self.hosts[host].held.filter(|&epoch| epoch == self.nodes[node].visible.epoch.0)
        {
            self.nodes[node].locks.insert(epoch, process);
        }
        for id in std::mem::take(&mut self.hosts[host].queued) {
            // A watch that was replaced is forgotten.
            let Some(in_flight) = self.requests.get(&id) else { continue };
            if self.random.chance(50) {
                let reply = reply_to(&in_flight.request, Err(Failure::Unknown));
                self.after(0, Happening::Answer(id, reply));
            } else {
                self.send(id);
            }
        }
    }

    pub(super) fn pause(&mut self, host: usize, has_effects: bool) {
        if self.hosts[host].paused_at.is_some() {
            return;
        }
        let span = match self.random.below(4) {
            0 => self.random.below_u64(4 * self.lease_ns()),
            1 => self.random.below_u64(self.lease_ns()),
            _ => self.random.below_u64(20 * MS),
        };
        self.log(|| format!("server {host} is paused for {} ms", span / MS));
        self.hosts[host].paused_at = Some(self.now);
        self.hosts[host].has_effects = has_effects;
        let process = self.process(host);
        self.after(span, Happening::Resume(process));
    }

    pub(super) fn resume(&mut self, process: Process) {
        let (host, _) = process;
        if !self.is_alive(process) {
            return;
        }
        let Some(paused_at) = self.hosts[host].paused_at.take() else { return };
        self.log(|| format!("server {host} goes on"));
        if std::mem::take(&mut self.hosts[host].has_effects) {
            // The effects are those of the iteration in which it was paused.
            self.carry_out(host, true);
        }
        // The clock may have been read before the pause, and what happened during the pause come with that time.
        let mut read_at =
            if self.random.chance(50) { paused_at.max(self.hosts[host].iteration.1) } else { self.now };
        let mut backlog = std::mem::take(&mut self.hosts[host].backlog).into_iter();
        while let Some(happening) = backlog.next() {
            if !self.is_alive(process) {
                return;
            }
            if self.hosts[host].paused_at.is_some() {
                let later: Vec<Happening> = std::iter::once(happening).chain(backlog).collect();
                self.hosts[host].backlog.splice(0..0, later);
                return;
            }
            self.iterate(host, happening, read_at);
            if self.random.chance(50) {
                read_at = self.now;
            }
        }
    }
}
