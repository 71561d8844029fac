//! Counts of the server and of the layers around it.

use std::mem;
use std::rc::Rc;

use super::{DriverCounts, DriverStats, TlsCounts};
use crate::protocol::command::CommandKind;
use crate::time::Time;
use crate::values::histogram::Histogram;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

const REPLY_BOUNDS_NS: [u64; 14] = [
    10 * US,
    50 * US,
    100 * US,
    250 * US,
    500 * US,
    MS,
    MS * 5 / 2,
    5 * MS,
    10 * MS,
    50 * MS,
    100 * MS,
    500 * MS,
    1000 * MS,
    10_000 * MS,
];

const COMMAND_BOUNDS: [u64; 13] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096];

/// A count since the start, besides those of commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Count {
    /// Bytes that clients have sent, and bytes that were sent to them.
    ReceivedBytes,
    SentBytes,
    /// Clients that have connected, and those of them that have left.
    Connected,
    Left,
    /// Connections closed because they began with a request of another protocol.
    ForeignRequests,
    /// Commands and bodies refused at the limit of memory.
    MemoryRefusals,
    /// Commands refused because there was no room for another tube or watch. It stays the last.
    TubeRefusals,
}

impl Count {
    const COUNT: usize = Self::TubeRefusals as usize + 1;
}

/// Counts of the server's own work.
pub(super) struct Counts {
    commands: [u64; CommandKind::ALL.len()],
    others: [u64; Count::COUNT],
    reply_times: Histogram,
    commands_per_iteration: Histogram,
    /// Commands served in this iteration.
    served: u64,
}

impl Counts {
    pub fn new() -> Self {
        Self {
            commands: [0; CommandKind::ALL.len()],
            others: [0; Count::COUNT],
            reply_times: Histogram::new(&REPLY_BOUNDS_NS),
            commands_per_iteration: Histogram::new(&COMMAND_BOUNDS),
            served: 0,
        }
    }

    /// Counts a command that is served.
    #[inline(always)]
    pub const fn add_command(&mut self, kind: CommandKind) {
        self.commands[kind as usize] += 1;
        self.served += 1;
    }

    #[inline(always)]
    pub const fn add(&mut self, count: Count, number: u64) {
        self.others[count as usize] += number;
    }

    /// Ends an event-loop iteration.
    #[inline]
    pub fn end_iteration(&mut self) {
        if self.served > 0 {
            self.commands_per_iteration.add(mem::take(&mut self.served));
        }
    }

    /// Counts the time of replies whose sending ends now, from the first input that they answer.
    #[inline]
    pub fn add_reply(&mut self, unanswered_since: Time, now: Time) {
        self.reply_times.add(now.since(unanswered_since).as_nanos());
    }

    pub const fn of(&self, count: Count) -> u64 {
        self.others[count as usize]
    }

    /// The number of connected clients.
    pub const fn clients(&self) -> u64 {
        self.of(Count::Connected) - self.of(Count::Left)
    }

    /// The number of commands served of a kind.
    pub const fn commands(&self, kind: CommandKind) -> u64 {
        self.commands[kind as usize]
    }

    /// Nanoseconds from the input, or from the event that ends a client's wait, until all replies are sent.
    pub const fn reply_times(&self) -> &Histogram {
        &self.reply_times
    }

    /// Commands served per event-loop iteration that served any.
    pub const fn commands_per_iteration(&self) -> &Histogram {
        &self.commands_per_iteration
    }
}

/// Counts of the layers around the server, for replies that show them.
#[derive(Default)]
pub(super) struct OuterCounts {
    driver: Option<Rc<dyn DriverCounts>>,
    /// If there is a listener with TLS.
    tls: Option<Rc<TlsCounts>>,
    /// What the driver had counted at `read_at`.
    read: DriverStats,
    read_at: Option<Time>,
}

impl OuterCounts {
    pub fn show_driver(&mut self, counts: Rc<dyn DriverCounts>) {
        self.driver = Some(counts);
    }

    pub fn show_tls(&mut self, counts: Rc<TlsCounts>) {
        self.tls = Some(counts);
    }

    /// Reads what the driver counts, once in an iteration: CPU time costs a system call.
    pub fn read_driver(&mut self, now: Time) {
        if self.read_at != Some(now) {
            self.read_at = Some(now);
            self.read = self.driver.as_ref().map(|counts| counts.read()).unwrap_or_default();
        }
    }

    /// What the driver had counted when it was last read.
    pub const fn driver(&self) -> &DriverStats {
        &self.read
    }

    pub fn tls(&self) -> Option<&TlsCounts> {
        self.tls.as_deref()
    }
}
