//! Connections whose clients must read, or send the rest of a request: those in a state of [`PeerWait`] that needs progress.
//!
//! Without it they are closed after 30 to 60 s. While bodies of ended jobs, which only replies keep, pass their share of the memory
//! limit, connections with such a body are looked at every second. Those without progress are closed then, and slow ones at the
//! next looks.

use std::ops::Range;

use tracing::debug;

use super::beanstalk::Session;
use super::client_state::{Input, SessionState};
use super::connections::Connection;
use super::{Core, Server};
use crate::bodies::Bodies;
use crate::time::{Span, Time};
use crate::values::peer_wait::{PROGRESS, PeerWait};

/// How often connections are looked at. One that has sent nothing since the last time is closed, so its client has this time to twice
/// of it.
const INTERVAL: Span = PROGRESS;

/// The same while bodies of ended jobs pass their share.
const INTERVAL_SHORT: Span = Span::from_secs(1);

/// Slots of connections that one event-loop iteration looks at. Most need some ns.
const SLOTS: usize = 256;

/// The part of `--max-memory` that bodies of ended jobs may take while they are sent: a quarter.
const ENDED_SHARE: u64 = 4;

/// Bytes that must be sent between two looks while they take more, by the number of looks since they do. The last one ends every
/// connection with such a body, as far as it must.
const FLOORS: [u64; 6] = [1, 1, 1, 64 * 1024, 1024 * 1024, u64::MAX];

/// When to look at the slots of connections, while some of them must send.
pub struct ClosingWatch {
    /// Connections that are closing.
    count: usize,
    /// Others must send too.
    has_others: bool,
    interval: Span,
    /// When to look at all slots again. None while no connection must send.
    due: Option<Time>,
    /// The next slot.
    at: usize,
    /// The number of times that all slots were looked at.
    passes: u64,
    /// Those of them since bodies of ended jobs take more than their share.
    urgent_passes: usize,
}

impl Default for ClosingWatch {
    fn default() -> Self {
        Self {
            count: 0,
            has_others: false,
            interval: INTERVAL,
            due: None,
            at: 0,
            passes: 0,
            urgent_passes: 0,
        }
    }
}

impl ClosingWatch {
    /// Another connection is closing.
    pub fn add(&mut self, now: Time) {
        self.count += 1;
        self.due.get_or_insert(now + self.interval);
    }

    /// A closing connection has closed.
    pub const fn remove(&mut self) {
        self.count -= 1;
        self.end_if_idle();
    }

    /// The number of closing connections.
    pub const fn count(&self) -> usize {
        self.count
    }

    /// Notes whether other connections must send too, and whether they must hurry.
    pub fn note_others(&mut self, has_others: bool, is_urgent: bool, now: Time) {
        self.urgent_passes = if is_urgent { self.urgent_passes } else { 0 };
        (self.has_others, self.interval) = (has_others, if is_urgent { INTERVAL_SHORT } else { INTERVAL });
        if has_others {
            let due = now + self.interval;
            self.due = Some(self.due.map_or(due, |earlier| earlier.min(due)));
        } else {
            self.end_if_idle();
        }
    }

    const fn end_if_idle(&mut self) {
        if self.count == 0 && !self.has_others {
            (self.due, self.at) = (None, 0);
        }
    }

    /// The bytes that must have moved, perhaps at the beginning of another urgent pass.
    fn floor(&mut self, begins_urgent_pass: bool) -> u64 {
        self.urgent_passes += usize::from(begins_urgent_pass);
        FLOORS[self.urgent_passes.min(FLOORS.len() - 1)]
    }

    /// When an iteration must run because of them.
    pub const fn deadline(&self) -> Option<Time> {
        self.due
    }

    /// The slots to look at in this iteration.
    pub fn next_slots(&mut self, capacity: usize, now: Time) -> Range<usize> {
        if self.due.is_none_or(|due| due > now) {
            return 0..0;
        }
        self.passes += u64::from(self.at == 0);
        let slots = self.at..capacity.min(self.at + SLOTS);
        if slots.end < capacity {
            self.at = slots.end;
        } else {
            (self.at, self.due) = (0, Some(now + self.interval));
        }
        slots
    }
}

/// The progress of a connection that needs it.
#[derive(Clone, Copy, Default, Debug)]
pub struct SendProgress {
    mark: Option<Mark>,
}

/// The last looks at a connection.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// The first look that has found these bytes.
    since: Time,
    bytes: u64,
    /// The pass of the last look.
    pass: u64,
}

/// What a look at a connection finds.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// Nothing has moved for the time that a connection has.
    pub is_over: bool,
    /// The bytes since the pass before, if it needed progress then.
    moved: Option<u64>,
}

impl SendProgress {
    /// Takes a look at a connection that waits for its peer, and has moved this much so far. Returns what it finds if it needs progress.
    pub fn look(
        &mut self,
        watch: &ClosingWatch,
        now: Time,
        wait: Option<PeerWait>,
        bytes: u64,
    ) -> Option<Standing> {
        let pass = watch.passes;
        let before = self.mark.take();
        wait.filter(|wait| wait.needs_progress())?;
        let same = before.filter(|mark| mark.bytes == bytes);
        let since = same.map_or(now, |mark| mark.since);
        self.mark = Some(Mark { since, bytes, pass });
        let moved = before.filter(|mark| mark.pass + 1 == pass).map(|mark| bytes - mark.bytes);
        Some(Standing { is_over: since + INTERVAL <= now, moved })
    }
}

/// A pass over connections, as far as it goes in one event-loop iteration.
struct Pass {
    now: Time,
    /// Bytes that must have moved for the body of an ended job.
    floor: u64,
    /// Bodies of ended jobs beyond their share. Only while there are any is there a floor.
    excess: u64,
}

impl Pass {
    /// Whether a connection ends that holds so much of ended jobs.
    fn ends(&mut self, standing: Standing, ended_bytes: u64) -> bool {
        let is_slow = standing.moved.is_some_and(|moved| moved < self.floor);
        let ends = standing.is_over || ended_bytes > 0 && self.excess > 0 && is_slow;
        if ends {
            self.excess = self.excess.saturating_sub(ended_bytes);
        }
        ends
    }
}

impl Session {
    /// What the server waits for. Replies that wait for a commit do not wait for the client.
    fn awaits(&self, ended_bytes: u64) -> Option<PeerWait> {
        let is_sending = self.output.is_sending;
        match self.protocol.state {
            SessionState::Closed => None,
            SessionState::Closing => is_sending.then_some(PeerWait::LastReplies),
            _ if is_sending && ended_bytes > 0 => Some(PeerWait::EndedBody),
            _ if is_sending => Some(PeerWait::Replies),
            SessionState::Serving => Some(match &self.protocol.input {
                Input::Line if self.protocol.put_batch.is_none() => PeerWait::Line,
                Input::Line | Input::Body(_) | Input::Skip { .. } => PeerWait::Body,
            }),
            // The server ends these by itself.
            SessionState::Waiting
            | SessionState::Gathering
            | SessionState::Storing
            | SessionState::Working
            | SessionState::Listing
            | SessionState::Unwatching
            | SessionState::Refused => None,
        }
    }
}

impl Connection {
    /// Whether it needs progress, and has had too little.
    fn is_stuck(&mut self, watch: &ClosingWatch, pass: &mut Pass, bodies: &Bodies) -> bool {
        let ended_bytes = self.output().ended_bytes(bodies);
        let (wait, moved, progress) = match self {
            Self::Client(session) => {
                (session.awaits(ended_bytes), session.output.sent_bytes(), &mut session.progress)
            }
            Self::Http(connection) => {
                (connection.awaits(), connection.moved_bytes(), &mut connection.progress)
            }
        };
        let standing = progress.look(watch, pass.now, wait, moved);
        standing.is_some_and(|standing| pass.ends(standing, ended_bytes))
    }
}

/// The bytes of ended jobs that only output keeps, beyond their share of the memory limit.
fn ended_excess(core: &Core) -> u64 {
    let max = core.config.max_memory_bytes.map_or(u64::MAX, |max| max / ENDED_SHARE);
    (core.engine.bodies().ended_bytes() as u64).saturating_sub(max)
}

impl Server {
    /// Notes which connections must send, and closes those whose clients do not read.
    pub(super) fn watch_output(&mut self, now: Time) {
        let Self { core, connections } = self;
        // Bounded by HTTP_CONNECTIONS_MAX: the HTTP connections.
        let has_others = core.engine.bodies().ended_bytes() > 0
            || connections.all_http().any(|one| one.awaits().is_some_and(PeerWait::needs_progress));
        if has_others || core.closing.deadline().is_some() {
            let is_urgent = ended_excess(core) > 0;
            core.closing.note_others(has_others, is_urgent, now);
            self.end_stuck(now);
        }
    }

    #[inline(never)]
    fn end_stuck(&mut self, now: Time) {
        let Self { core, connections } = self;
        let slots = core.closing.next_slots(connections.capacity(), now);
        if slots.is_empty() {
            return;
        }
        let excess = ended_excess(core);
        let floor = core.closing.floor(slots.start == 0 && excess > 0);
        let mut pass = Pass { now, floor, excess };
        // Bounded by SLOTS: the connections of one event-loop iteration.
        for slot in slots {
            let Some(connection) = connections.at(slot) else { continue };
            if !connection.is_stuck(&core.closing, &mut pass, core.engine.bodies()) {
                continue;
            }
            match connection {
                Connection::Client(session) => {
                    debug!(conn = session.output.number(), "closed: the client does not read");
                    core.hung_up(session, now);
                }
                Connection::Http(connection) => {
                    debug!(
                        conn = connection.output.number(),
                        "closed: the HTTP client neither reads nor sends the rest of its request"
                    );
                    core.close_http(connection, now);
                }
            }
        }
    }
}
