//! The thread that forwards connections.

mod token;
mod watch;

use std::borrow::Cow;
use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::thread::JoinHandle;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::EventFd;
use slab::Slab;
use tracing::{debug, warn};

use self::token::{EVERYTHING, Key, Token};
use super::connection::{Connection, Next, Phase, Pipe, Side, client_address};
use super::hop::{self, HOP_BYTES, Hop};
use super::leader::{Leader, Watch, is_shortage, look_up};
use super::{Arrival, GivenBack, LeaderTarget, Settings};
use crate::io::bell::Bell;
use crate::io::clock::Clock;
use crate::io::lost_peers::{LostPeers, reset};
use crate::io::socket::text_of;
use crate::server::ForwardCounts;
use crate::time::{Span, Time};
use crate::transport::forwarded::header;
use crate::values::budget::Cost;
use crate::values::log_limit::LogLimit;

const EVENTS_MAX: usize = 256;

/// How long a client may take to end its side after the leader has ended its own.
const LINGER: Span = Span::from_secs(5);

/// The shortest time between warnings that the leader is out of reach.
const WARNING_INTERVAL: Span = Span::from_secs(10);

/// What another thread tells this one.
#[derive(Debug)]
pub enum Order {
    Forward(OwnedFd, Arrival),
    Lead(Option<LeaderTarget>),
    /// This server leads: its event loop, which has this bell, serves the clients that wait.
    GiveBack(Option<Bell>),
    /// The addresses of a name.
    Found(String, Vec<SocketAddr>),
    End,
}

pub struct Worker {
    settings: Settings,
    counts: Arc<ForwardCounts>,
    orders: (Sender<Order>, Receiver<Order>),
    given_back: Sender<GivenBack>,
    wake: Arc<EventFd>,
    epoll: Epoll,
    clock: Clock,
    now: Time,
    leader: Option<Leader>,
    watch: Watch,
    /// Since when connections that would watch the leader get no answer.
    silent_since: Option<Time>,
    look_up: Option<JoinHandle<()>>,
    connections: Slab<Connection>,
    generation: u32,
    /// Clients that wait for a connection to the leader, first come, first served, with some that have gone.
    waiting: VecDeque<Key>,
    waiting_count: usize,
    connecting: usize,
    /// Times at which connections may have taken too long.
    deadlines: BTreeSet<(Time, Key)>,
    lost_clients: Option<LostPeers>,
    /// Connections that may have more input than one turn allows, or that had no turn yet in an iteration that was full.
    again: VecDeque<Key>,
    pipe: Pipe,
    warnings: LogLimit,
    is_ending: bool,
}

impl Worker {
    pub fn new(
        settings: Settings,
        counts: Arc<ForwardCounts>,
        orders: (Sender<Order>, Receiver<Order>),
        given_back: Sender<GivenBack>,
        wake: Arc<EventFd>,
    ) -> nix::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&*wake, Token::Wake.event(EpollFlags::EPOLLIN))?;
        Ok(Self {
            settings,
            counts,
            orders,
            given_back,
            wake,
            epoll,
            clock: Clock::start(),
            now: Time::ZERO,
            leader: None,
            watch: Watch::Pause(Time::ZERO),
            silent_since: None,
            look_up: None,
            connections: Slab::new(),
            generation: 0,
            waiting: VecDeque::new(),
            waiting_count: 0,
            connecting: 0,
            deadlines: BTreeSet::new(),
            lost_clients: settings.keepalive.map(LostPeers::new),
            again: VecDeque::new(),
            pipe: Pipe::new(settings.memory_max),
            warnings: LogLimit::every(WARNING_INTERVAL),
            is_ending: false,
        })
    }

    /// Forwards until the end is ordered.
    pub fn run(&mut self) {
        let mut events = vec![EpollEvent::empty(); EVENTS_MAX];
        while !self.is_ending {
            let count = match self.epoll.wait(&mut events, self.timeout()) {
                Ok(count) => count,
                Err(Errno::EINTR) => 0,
                Err(errno) => panic!("the forwarding thread cannot wait for events: {errno}"),
            };
            self.now = self.clock.now();
            self.pipe.budget.begin_iteration();
            // First: after a change of leader no byte is passed on.
            self.take_orders();
            for event in &events[..count] {
                self.handle(Token::from_word(event.data()), event.events());
            }
            for _ in 0..self.again.len() {
                if self.pipe.budget.is_full() {
                    break;
                }
                let key = self.again.pop_front().expect("the queue does not shrink otherwise");
                self.take_turn(key);
            }
            self.expire();
            self.reset_lost_clients();
            self.look_up_leader();
            self.watch_leader();
            self.connect_waiting();
            self.show_counts();
        }
        self.warnings.end("the leader is out of reach");
        if let Some(look_up) = self.look_up.take() {
            look_up.join().expect("the thread does not panic");
        }
    }

    fn timeout(&self) -> EpollTimeout {
        if !self.again.is_empty() || self.may_connect() {
            return EpollTimeout::ZERO;
        }
        let deadline = self.deadlines.first().map(|&(until, _)| until);
        let watch = match &self.watch {
            Watch::Pause(until)
                if self.leader.as_ref().is_some_and(|leader| !leader.addresses.is_empty()) =>
            {
                Some(*until)
            }
            Watch::Connecting(hop) => Some(hop.until),
            Watch::Pause(_) | Watch::Open(_) => None,
        };
        // An earlier retry has been made, and connections are under way or wait for a look-up.
        let is_paused = |leader: &&Leader| self.waiting_count > 0 && leader.retry_at > self.now;
        let retry = self.leader.as_ref().filter(is_paused).map(|leader| leader.retry_at);
        let look_up = self.leader.as_ref().filter(|_| self.look_up.is_none()).and_then(Leader::next_look_up);
        let lost_clients = self.lost_clients.as_ref().filter(|_| !self.connections.is_empty());
        let looks = lost_clients.map(LostPeers::deadline);
        let Some(next) = [deadline, watch, retry, look_up, looks].into_iter().flatten().min() else {
            return EpollTimeout::NONE;
        };
        // Rounded up, so that it is due then.
        let ms = next.since(self.clock.now()).as_nanos().div_ceil(1_000_000);
        EpollTimeout::try_from(ms).unwrap_or(EpollTimeout::MAX)
    }

    fn take_orders(&mut self) {
        while let Ok(order) = self.orders.1.try_recv() {
            match order {
                Order::Forward(client, arrival) => self.admit(client, arrival),
                Order::Lead(target) => self.lead_to(target),
                Order::GiveBack(bell) => self.give_back(bell.as_ref()),
                Order::Found(address, found) => self.found(&address, found),
                Order::End => self.is_ending = true,
            }
        }
    }

    /// Takes a client, which waits at first.
    fn admit(&mut self, client: OwnedFd, arrival: Arrival) {
        self.generation = (self.generation + 1) & Key::GENERATION_MAX;
        let entry = self.connections.vacant_entry();
        let key = Key { slot: entry.key() as u32, generation: self.generation };
        // An error and the end of both directions are reported even so.
        let event = Token::Connection(key, Side::Client).event(EpollFlags::EPOLLET);
        let is_watched = self.epoll.add(&client, event).is_ok();
        let until = self.now + self.settings.wait;
        entry.insert(Connection::new(client, key.generation, arrival, until));
        self.waiting_count += 1;
        self.waiting.push_back(key);
        self.deadlines.insert((until, key));
        self.connect_waiting();
        if !is_watched || self.waiting_count > self.settings.waiting_max {
            self.refuse(key);
        }
    }

    fn lead_to(&mut self, target: Option<LeaderTarget>) {
        if self.leader.as_ref().map(|leader| &leader.target) == target.as_ref() {
            return;
        }
        let closed = self.close_forwarded();
        self.counts.closed_by_change.add(closed);
        match &target {
            Some(target) => debug!("clients are forwarded to the leader at {}", target.address),
            None => debug!("clients wait: there is no leader to forward them to"),
        }
        self.leader = target.map(Leader::new);
        self.watch = Watch::Pause(Time::ZERO);
        self.silent_since = None;
    }

    /// Closes what is forwarded, and gives clients that wait back to the event loop: nothing of them was read.
    fn give_back(&mut self, bell: Option<&Bell>) {
        self.lead_to(None);
        for key in std::mem::take(&mut self.waiting) {
            if self.find(key).is_none_or(|connection| !matches!(connection.phase, Phase::Waiting)) {
                continue;
            }
            let Connection { client, listener, .. } = self.connections.remove(key.slot as usize);
            self.waiting_count -= 1;
            // The event loop keeps it open, so it would stay here.
            let is_there = self.epoll.delete(&client).is_ok();
            self.counts.open.subtract(1);
            if is_there {
                // This fails only if the event loop has ended.
                let _ = self.given_back.send(GivenBack { client, listener });
            }
        }
        bell.into_iter().for_each(Bell::ring);
    }

    /// Closes every connection that has reached the leader, and has those that are being made wait again. Returns the number of those
    /// closed.
    fn close_forwarded(&mut self) -> u64 {
        let mut closed = 0;
        for slot in 0..self.connections.capacity() {
            let Some(connection) = self.connections.get(slot) else { continue };
            let key = Key { slot: slot as u32, generation: connection.generation };
            match connection.phase {
                Phase::Waiting => {}
                Phase::Connecting { .. } => self.wait_again(key),
                Phase::Open { .. } => {
                    connection.abort();
                    self.close(key);
                    closed += 1;
                }
            }
        }
        closed
    }

    /// Looks the leader's name up if that is due, one name at a time.
    fn look_up_leader(&mut self) {
        let Some(leader) = &mut self.leader else { return };
        if self.look_up.is_some() || leader.next_look_up().is_none_or(|at| at > self.now) {
            return;
        }
        leader.begin_look_up(self.now);
        let address = leader.target.address.clone();
        match look_up(address, self.orders.0.clone(), Arc::clone(&self.wake)) {
            Ok(thread) => self.look_up = Some(thread),
            Err(error) => self.note_failure(&text_of(&error)),
        }
    }

    fn found(&mut self, address: &str, found: Vec<SocketAddr>) {
        if let Some(ended) = self.look_up.take() {
            ended.join().expect("the thread does not panic");
        }
        let Some(leader) = &mut self.leader else { return };
        if leader.target.address != address {
            return;
        }
        if !found.is_empty() {
            leader.addresses = found;
        } else if leader.addresses.is_empty() {
            self.note_failure("no such host");
        }
    }

    fn handle(&mut self, token: Token, events: EpollFlags) {
        match token {
            Token::Wake => {
                let _ = self.wake.read();
            }
            Token::Watch => self.handle_watch(events),
            Token::Connection(key, side) => {
                self.pipe.budget.charge(Cost::STEP);
                let is_full = self.pipe.budget.is_full();
                let Some(connection) = self.find(key) else { return };
                match (&connection.phase, side) {
                    (Phase::Open { .. }, _) => {
                        connection.note(side, events);
                        self.take_turn_or_wait(key, is_full);
                    }
                    (Phase::Connecting { .. }, Side::Leader) => self.take_turn_or_wait(key, is_full),
                    (Phase::Waiting | Phase::Connecting { .. }, Side::Client) => {
                        if events.intersects(EpollFlags::EPOLLERR | EpollFlags::EPOLLHUP) {
                            self.close(key);
                        }
                    }
                    // Of a connection to an address that has failed.
                    (Phase::Waiting, Side::Leader) => {}
                }
            }
        }
    }

    /// Gives a connection with an event its turn, unless it waits for one, or the iteration is full.
    fn take_turn_or_wait(&mut self, key: Key, is_full: bool) {
        if is_full {
            self.queue(key);
        } else if !self.connections[key.slot as usize].is_queued {
            self.take_turn(key);
        }
    }

    fn take_turn(&mut self, key: Key) {
        let Some(connection) = self.find(key) else { return };
        connection.is_queued = false;
        match connection.phase {
            Phase::Waiting => {}
            Phase::Connecting { .. } => self.advance(key),
            Phase::Open { .. } => {
                let Self { connections, pipe, .. } = self;
                let next = connections[key.slot as usize].pump_both(pipe);
                self.go_on(key, next);
            }
        }
    }

    fn queue(&mut self, key: Key) {
        if !std::mem::replace(&mut self.connections[key.slot as usize].is_queued, true) {
            self.again.push_back(key);
        }
    }

    fn go_on(&mut self, key: Key, next: Next) {
        match next {
            Next::Close => return self.close(key),
            Next::Again => self.queue(key),
            Next::Wait => {}
        }
        let connection = &mut self.connections[key.slot as usize];
        if connection.leader_has_ended && connection.lingers_until.is_none() {
            let until = self.now + LINGER;
            connection.lingers_until = Some(until);
            self.deadlines.insert((until, key));
        }
    }

    /// Begins connections to the leader for clients that wait.
    fn connect_waiting(&mut self) {
        while self.may_connect() && !self.pipe.budget.is_full() {
            let Some(key) = self.waiting.pop_front() else { return };
            let is_waiting = |connection: &mut Connection| matches!(connection.phase, Phase::Waiting);
            if self.find(key).is_some_and(is_waiting) {
                self.waiting_count -= 1;
                self.connecting += 1;
                let index = self.leader.as_ref().map_or(0, |leader| leader.preferred);
                self.dial(key, index, 0, Errno::EHOSTUNREACH.desc().into());
            }
        }
    }

    /// Whether a client waits that may have a connection now.
    fn may_connect(&self) -> bool {
        self.waiting_count > 0
            && self.leader.as_ref().is_some_and(|leader| leader.can_connect(self.now, self.connecting))
    }

    /// Connects to the address with this index, or the next one that does not fail at once.
    fn dial(&mut self, key: Key, mut index: usize, mut tried: usize, mut failure: Cow<'static, str>) {
        while let Some(leader) = &self.leader
            && tried < leader.addresses.len()
            && let Some(address) = leader.address(index)
        {
            let event = Token::Connection(key, Side::Leader).event(EVERYTHING);
            // The keys of the handshake are made at once.
            self.pipe.budget.charge(Cost::ACCEPT.plus(Cost::HANDSHAKE));
            let begun = Hop::connect(address, &leader.tls, self.now, self.settings.connect)
                .and_then(|hop| self.epoll.add(hop.socket(), event).map(|()| hop).map_err(hop::failure));
            match begun {
                Ok(hop) => {
                    self.deadlines.insert((hop.until, key));
                    self.connections[key.slot as usize].phase = Phase::Connecting { hop, index, tried };
                    return;
                }
                Err((errno, _)) if is_shortage(errno) => {
                    self.wait_again(key);
                    return self.note_shortage(errno);
                }
                Err((_, why)) => failure = why,
            }
            (index, tried) = (index + 1, tried + 1);
        }
        self.wait_again(key);
        self.note_failure(&failure);
    }

    /// Ends the attempt to connect for a client, which waits again, before all others.
    fn wait_again(&mut self, key: Key) {
        self.connecting -= 1;
        self.connections[key.slot as usize].phase = Phase::Waiting;
        self.waiting.push_front(key);
        self.waiting_count += 1;
    }

    fn note_shortage(&mut self, errno: Errno) {
        if let Some(leader) = &mut self.leader {
            leader.pause(self.now);
        }
        if let Some(left_out) = self.warnings.admit(self.now) {
            warn!("clients wait to be forwarded: {}{left_out}", errno.desc());
        }
    }

    fn note_failure(&mut self, why: &str) {
        self.counts.failed_connects.add(1);
        let Some(leader) = &mut self.leader else { return };
        leader.note_failure(self.now);
        if let Some(left_out) = self.warnings.admit(self.now) {
            warn!("cannot connect to the leader at {}: {why}{left_out}", leader.target.address);
        }
    }

    /// Continues to connect. Nothing of the client is read before the leader has proved its key.
    fn advance(&mut self, key: Key) {
        let connection = &mut self.connections[key.slot as usize];
        let Phase::Connecting { hop, index, tried } = &mut connection.phase else { return };
        self.pipe.budget.charge(Cost::HANDSHAKE);
        match hop.advance(self.now) {
            Ok(true) => self.open(key),
            Ok(false) => {
                self.deadlines.insert((hop.until, key));
            }
            Err((_, why)) => {
                let (index, tried) = (*index + 1, *tried + 1);
                connection.phase = Phase::Waiting;
                self.dial(key, index, tried, why);
            }
        }
    }

    /// Begins to pass bytes on.
    fn open(&mut self, key: Key) {
        let connection = &mut self.connections[key.slot as usize];
        let Phase::Connecting { hop, index, .. } = std::mem::replace(&mut connection.phase, Phase::Waiting)
        else {
            return;
        };
        self.connecting -= 1;
        let Some(leader) = &mut self.leader else { return };
        leader.note_accept(index);
        self.counts.total.add(1);
        let opened = client_address(&connection.client).ok_or(Errno::ENOTCONN).and_then(|address| {
            connection.open(hop, &header(address, connection.inbound, leader.target.secret.shown))?;
            let mut event = Token::Connection(key, Side::Client).event(EVERYTHING);
            self.epoll.modify(&connection.client, &mut event)
        });
        if opened.is_err() {
            // Not one of those that wait, whatever its phase is.
            self.remove(key);
        } else {
            self.go_on(key, Next::Again);
        }
    }

    /// Ends what has taken too long.
    fn expire(&mut self) {
        let now = self.now;
        while let Some(&(until, key)) = self.deadlines.first()
            && until <= now
        {
            self.deadlines.pop_first();
            let Some(connection) = self.find(key) else { continue };
            match &connection.phase {
                Phase::Open { .. } if connection.lingers_until.is_some_and(|until| until <= now) => {
                    self.close(key);
                }
                Phase::Open { .. } => {}
                _ if connection.waits_until <= now => self.refuse(key),
                // The connection may be made, and this thread late to see it.
                Phase::Connecting { hop, .. } if hop.until <= now => self.advance(key),
                Phase::Connecting { .. } | Phase::Waiting => {}
            }
        }
    }

    fn refuse(&mut self, key: Key) {
        if self.find(key).is_some() {
            self.counts.refused.add(1);
            self.close(key);
        }
    }

    fn close(&mut self, key: Key) {
        match self.connections[key.slot as usize].phase {
            Phase::Waiting => self.waiting_count -= 1,
            Phase::Connecting { .. } => self.connecting -= 1,
            Phase::Open { .. } => {}
        }
        self.remove(key);
    }

    fn remove(&mut self, key: Key) {
        self.connections.remove(key.slot as usize).clear(&mut self.pipe);
        self.counts.open.subtract(1);
        // Those that have gone would stay in the queue for as long as there is no leader.
        if self.waiting.len() > 16 + 4 * self.waiting_count {
            let Self { connections, waiting, .. } = self;
            waiting.retain(|key| {
                let found = connections.get(key.slot as usize);
                found.is_some_and(|connection| {
                    connection.generation == key.generation && matches!(connection.phase, Phase::Waiting)
                })
            });
        }
    }

    /// Looks at the next clients of a round, and resets those whose machines are gone. The resets are events like others.
    fn reset_lost_clients(&mut self) {
        let Some(lost_clients) = &mut self.lost_clients else { return };
        for slot in lost_clients.slots(self.now, self.connections.capacity()) {
            let Some(connection) = self.connections.get_mut(slot) else { continue };
            self.pipe.budget.charge(Cost::SOCKET_LOOK);
            let client = connection.client.as_raw_fd();
            if lost_clients.is_lost(client, &mut connection.silent_since) && reset(client).is_ok() {
                self.pipe.lost_clients += 1;
            }
        }
    }

    fn find(&mut self, key: Key) -> Option<&mut Connection> {
        let found = self.connections.get_mut(key.slot as usize);
        found.filter(|connection| connection.generation == key.generation)
    }

    fn show_counts(&mut self) {
        let [to_leader, to_clients] = std::mem::take(&mut self.pipe.passed);
        self.counts.to_leader.add(to_leader);
        self.counts.to_clients.add(to_clients);
        self.counts.lost.add(std::mem::take(&mut self.pipe.lost_clients));
        let hops = self.connections.len() - self.waiting_count;
        self.counts.memory.set((self.pipe.memory + hops * HOP_BYTES) as u64);
        self.counts.waiting.set((self.waiting_count + self.connecting) as u64);
    }
}
