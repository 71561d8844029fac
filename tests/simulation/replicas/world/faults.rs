//! What goes wrong, and what must be true when nothing goes wrong any more.

use beanring::server::Event;
use bytes::Bytes;

use super::{Broken, Happening, MS, World};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Fault {
    /// A process is killed.
    Kill,
    /// A machine dies: the database notices later that the session has ended.
    MachineDeath,
    /// SIGTERM.
    Stop,
    /// A server cannot reach the database.
    Cut,
    /// The database ends the sessions of a server: its lock is free, and it learns of that later.
    EndOfSessions,
    /// A process stands still for a while, and its clock runs on.
    Pause,
    /// The primary dies, and a standby of the database is promoted.
    Promote,
    /// The primary restarts alone: reads find the changes that were not replicated.
    RestartPrimary,
    /// Nothing is replicated for a while.
    Stall,
    /// There is no space for a while.
    Full,
    LostRequest,
    LostReply,
    /// The network repeats a request, or one arrives although its connection has ended.
    Repeated,
    LateReply,
    /// A wait for the replication is canceled, and reads find the change.
    Canceled,
    /// A server reaches the primary before the last fail-over.
    OldPrimary,
    /// A bit of a stored chunk changes.
    Flip,
    /// An acknowledged chunk is gone.
    Vanish,
}

impl Fault {
    pub const ALL: [Self; 18] = [
        Self::Kill,
        Self::MachineDeath,
        Self::Stop,
        Self::Cut,
        Self::EndOfSessions,
        Self::Pause,
        Self::Promote,
        Self::RestartPrimary,
        Self::Stall,
        Self::Full,
        Self::LostRequest,
        Self::LostReply,
        Self::Repeated,
        Self::LateReply,
        Self::Canceled,
        Self::OldPrimary,
        Self::Flip,
        Self::Vanish,
    ];

    pub const fn bit(self) -> u32 {
        1 << self as u32
    }

    /// Whether the log is damaged after it.
    pub const fn is_damage(self) -> bool {
        matches!(self, Self::Flip | Self::Vanish)
    }
}

/// The longest time until a stop ends if the database is well.
const STOPS_WITHIN: u64 = 3000 * MS;

impl World {
    pub(super) fn fault(&mut self) {
        let fault = self.random.pick(&Fault::ALL);
        if !self.allows(fault) || fault.is_damage() && !self.random.one_in(4) {
            return;
        }
        let host = self.random.below(self.hosts.len());
        let process = self.process(host);
        let lease = self.lease_ns();
        let span = match self.random.below(3) {
            0 => self.random.below_u64(4 * lease),
            _ => self.random.below_u64(lease),
        };
        match fault {
            Fault::Kill | Fault::MachineDeath if self.hosts[host].server.is_some() => {
                self.log(|| format!("server {host}: {fault:?}"));
                let unlocked_within = if fault == Fault::Kill { 20 * MS } else { 8 * lease };
                self.end_process(host, unlocked_within);
                self.start_later(host);
            }
            Fault::Stop if self.hosts[host].server.is_some() && !self.hosts[host].is_stopping => {
                self.stop(host);
                self.within(8000 * MS, Happening::Kill(process));
            }
            Fault::Cut if !self.hosts[host].is_cut => {
                self.log(|| format!("server {host} is cut off for {} ms", span / MS));
                self.hosts[host].is_cut = true;
                self.drop_session(host, 4 * lease);
                self.after(span, Happening::EndOfCut(host));
            }
            Fault::EndOfSessions if self.hosts[host].node.is_some() => {
                self.log(|| format!("the sessions of server {host} are ended"));
                self.drop_session(host, 1);
                let back_within = if self.random.chance(50) { 100 * MS } else { 2 * lease };
                self.within(back_within, Happening::Reconnect(process));
            }
            Fault::Pause if self.is_alive(process) => self.pause(host, false),
            Fault::Promote => self.promote(),
            Fault::RestartPrimary => {
                self.log(|| "the primary restarts".to_owned());
                let primary = self.primary();
                self.nodes[primary].show_all();
                self.drop_sessions_with(primary);
            }
            Fault::Stall if !self.is_stalled => {
                self.log(|| format!("nothing is replicated for {} ms", span / MS));
                self.is_stalled = true;
                self.after(span, Happening::EndOfStall);
            }
            Fault::Full => {
                self.log(|| format!("the database is full for {} ms", span / MS));
                let primary = self.primary();
                self.nodes[primary].is_full = true;
                self.after(span, Happening::EndOfFull);
            }
            Fault::Flip | Fault::Vanish if self.broken.is_none() => self.damage(fault),
            _ => {}
        }
    }

    pub(super) fn stop(&mut self, host: usize) {
        let process = self.process(host);
        self.log(|| format!("server {host} is stopped"));
        self.hosts[host].is_stopping = true;
        self.reach(process, Happening::Stop(process));
    }

    fn drop_sessions_with(&mut self, node: usize) {
        self.unlocked.extend(self.nodes[node].locks.keys());
        self.nodes[node].locks.clear();
        for host in 0..self.hosts.len() {
            if self.hosts[host].node == Some(node) {
                self.drop_session(host, 0);
                let process = self.process(host);
                self.within(100 * MS, Happening::Reconnect(process));
            }
        }
    }

    fn promote(&mut self) {
        let primary = self.primary();
        let received = self.random.below(self.nodes[primary].unreplicated() + 1);
        let received = if self.random.chance(50) { 0 } else { received };
        self.log(|| {
            format!("a standby is promoted with {received} of {}", self.nodes[primary].unreplicated())
        });
        self.unlocked.extend(self.nodes[primary].locks.keys());
        let next = self.nodes[primary].promote(received);
        self.nodes.push(next);
        self.is_replicating.push(false);
        // Waits for the old primary never end with an acknowledgement.
        let waiting = self.requests.values_mut().filter(|request| request.node == primary);
        waiting.for_each(|request| {
            if !matches!(request.request, beanring::wal::replica::Request::Watch(_)) {
                request.waits_for = None;
            }
        });
        for host in 0..self.hosts.len() {
            let stays = self.hosts[host].node == Some(primary)
                && self.allows(Fault::OldPrimary)
                && self.random.one_in(4);
            let process = self.process(host);
            if stays {
                self.within(3000 * MS, Happening::LeaveOldPrimary(process));
            } else if self.hosts[host].node.is_some() {
                self.drop_session(host, 0);
                self.within(300 * MS, Happening::Reconnect(process));
            }
        }
        self.begin_replicating(primary + 1);
    }

    fn damage(&mut self, fault: Fault) {
        let state = &self.nodes[self.primary()].replicated;
        let (Some((&first, _)), Some((&last, _))) =
            (state.chunks.first_key_value(), state.chunks.last_key_value())
        else {
            return;
        };
        // A chunk that only its leader has seen may be missing unnoticed.
        if last < first + 8 {
            return;
        }
        let position = first + 2 + self.random.below_u64(last - first - 7);
        let Some(chunk) = state.chunks.get(&position) else { return };
        let damaged = (fault == Fault::Flip).then(|| {
            let mut bytes = chunk.to_vec();
            let bit = self.random.below(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            Bytes::from(bytes)
        });
        self.log(|| format!("{fault:?} at position {position}"));
        self.nodes.iter_mut().for_each(|node| node.damage(position, damaged.as_ref()));
        let know = (0..self.hosts.len())
            .filter(|&host| self.hosts[host].read_upto >= position || self.hosts[host].was_serving)
            .map(|host| self.process(host))
            .collect();
        self.broken = Some(Broken { position, chunk: damaged, know });
    }

    /// Ends all faults, and checks that the servers recover.
    pub fn heal(&mut self) {
        self.log(|| "no fault from now on".to_owned());
        self.is_healed = true;
        self.is_stalled = false;
        self.nodes.iter_mut().for_each(|node| node.is_full = false);
        let primary = self.primary();
        for host in 0..self.hosts.len() {
            let process = self.process(host);
            self.hosts[host].is_cut = false;
            if self.hosts[host].node.is_some_and(|node| node != primary) {
                self.drop_session(host, 0);
            }
            self.resume(process);
            let process = self.process(host);
            let span = self.random.below_u64(20 * MS);
            self.after(span, Happening::Reconnect(process));
            if self.hosts[host].server.is_none() {
                self.after(span, Happening::Start(host));
            }
        }
        // Servers may have waited for a reply, be about to stop, or have read what was damaged for a while.
        let lease = self.lease_ns();
        let begun = self.now;
        self.run_until(self.now + 500 * MS);
        if self.broken.is_some() {
            // A standby looks at a damaged log again after some seconds.
            return self.be_calm(5500 * MS);
        }
        let before = self.checker.inserted;
        while self.checker.inserted == before {
            assert!(self.now < begun + 3 * lease + 7000 * MS, "no server leads after the end of all faults");
            self.run_until(self.now + 100 * MS);
        }
        if self.setting.seed.is_multiple_of(3) {
            // Until late replies have come, and servers that lead no more know it. A standby that was sent to an old primary has
            // missed acknowledged chunks there: it looks again after some seconds.
            let looks_again = self.setting.faults & Fault::OldPrimary.bit() != 0;
            self.be_calm(4 * lease + if looks_again { 5500 * MS } else { 600 * MS });
            self.hand_over();
        }
    }

    /// Waits for this time.
    fn be_calm(&mut self, span: u64) {
        self.is_calm = true;
        self.run_until(self.now + span);
        self.is_calm = false;
    }

    /// A leader that is killed is replaced in time, and one that stops sooner.
    fn hand_over(&mut self) {
        let leads = self.leads;
        let lease = self.lease_ns();
        let serving = self.leaders();
        let [leader] = serving[..] else { panic!("one server leads, not {serving:?}") };
        self.end_process(leader, 100 * lease);
        let begun = self.now;
        while self.leads == leads {
            assert!(
                self.now < begun + lease / 100 * 133 + 300 * MS,
                "no server leads {} ms after the death of the leader's machine",
                (self.now - begun) / MS
            );
            self.run_until(self.now + 10 * MS);
        }
        self.after(0, Happening::Start(leader));
        self.run_until(self.now + 600 * MS);
        let leads = self.leads;
        let leader = self.leaders()[0];
        let process = self.process(leader);
        self.is_quiet = true;
        self.stop(leader);
        let begun = self.now;
        while self.is_alive(process) {
            assert!(self.now < begun + STOPS_WITHIN, "a stop ends");
            self.run_until(self.now + 10 * MS);
        }
        let stopped = self.now;
        while self.leads == leads {
            assert!(
                self.now < stopped + 300 * MS,
                "no server leads {} ms after the leader has stopped",
                (self.now - stopped) / MS
            );
            self.run_until(self.now + 10 * MS);
        }
        self.run_until(self.now + 100 * MS);
        let quiet_by = self.now + 5000 * MS;
        // A leader compacts what it has found.
        while self.is_appending() {
            assert!(self.now < quiet_by, "a leader without clients comes to rest");
            self.run_until(self.now + MS);
        }
        self.compare_log();
    }

    fn is_appending(&self) -> bool {
        let leader = self.leaders().first().map(|&host| self.process(host));
        let mut own = self.requests.values().filter(|in_flight| Some(in_flight.process) == leader);
        own.any(|in_flight| matches!(in_flight.request, beanring::wal::replica::Request::Append { .. }))
    }

    /// The chunks alone lead to the jobs of the leader.
    fn compare_log(&mut self) {
        let leader = self.leaders()[0];
        let server = self.hosts[leader].server.as_ref().expect("it leads");
        let log = &self.nodes[self.primary()].replicated;
        // An append that was repeated late may be there, before the first chunk. Nobody reads it.
        let chunks =
            log.chunks.range(log.begin..).map(|(&position, chunk)| (position, chunk.clone())).collect();
        super::super::naive::compare(&chunks, server.engine());
    }

    pub(super) fn send_stop(&mut self, host: usize) {
        let (now, _) = self.hosts[host].iteration;
        if let Some(server) = &mut self.hosts[host].server {
            server.handle(now, Event::Stop);
        }
    }
}
