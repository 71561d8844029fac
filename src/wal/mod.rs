//! The write-ahead log (WAL): the durable record of all jobs, in segments. It decides what is written where and when, and
//! which replies wait for that. A driver does the writing (docs/internals/LOG.md).

mod allocator;
mod appender;
pub mod batch;
mod capacity;
mod changes;
mod checksum;
mod closing;
mod commit;
mod compaction;
mod disk_space;
mod operation;
mod operations;
mod pauses;
mod placed;
pub mod record;
pub mod replay;
pub mod replica;
mod retirement;
mod rounds;
mod rules;
pub mod scan;
mod schedules;
pub mod segment;
mod segment_index;
mod snapshot;
mod stats;

use std::collections::VecDeque;
use std::io;

use self::allocator::SegmentAllocator;
use self::appender::Appender;
pub use self::appender::{BATCH_BYTES_KEPT, BATCHES_SPARE, NETWORK_BATCH_BYTES};
pub use self::batch::Batch;
pub use self::capacity::PutSpace;
use self::capacity::{Capacity, PREPARED_MIN};
use self::closing::CloseSchedule;
pub use self::closing::{EndMark, MARK_BYTES};
use self::commit::CommitState;
use self::compaction::Compactor;
use self::disk_space::DiskSpace;
pub use self::operation::{Arrangement, DiskOperation, DiskOutcome, LogReply, LogRequest, is_full};
use self::pauses::Pauses;
use self::placed::KeptKeys;
use self::record::{Lsn, PauseRecord, Record, job_bytes_max};
pub use self::record::{job_record_bytes, note_record_bytes, run_record_bytes, schedule_room_bytes};
pub use self::replay::{Recovered, Replay};
use self::retirement::Retirement;
pub use self::rounds::{Round, Rounds};
use self::rules::LoggedRules;
use self::schedules::LoggedSchedules;
use self::segment::{HEADER_BYTES, Header, format_of};
pub use self::segment::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SegmentNumber};
use self::segment_index::SegmentIndex;
pub use self::snapshot::snapshot;
pub use self::stats::WalStats;
use self::stats::{SYNC_BOUNDS, WalCounters};
use crate::queue::{Change, Engine, LogRoom};
use crate::time::{Span, Time};
use crate::values::histogram::Histogram;
use crate::values::ids::{JobId, JobKey};
use crate::values::tags::Tags;
use crate::values::tube_name::TubeName;

/// When a change becomes durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    /// Before the reply leaves (`-f 0`).
    Always,
    /// At most this time, and one sync, after the reply (`-f MS`). The change is written before the reply leaves.
    Within(Span),
    /// When the system writes it back (`-F`). The change is written before the reply leaves.
    Never,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct WalConfig {
    pub durability: Durability,
    /// The size of a segment: a multiple of [`batch::BLOCK_BYTES`].
    pub segment_bytes: u64,
    /// Reservations are logged, so that they survive a restart.
    pub keep_reservations: bool,
    pub destination: Destination,
}

/// What the log is written to, as far as that decides how it is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destination {
    /// Files in a directory (`-b`). One write is in flight, and with `-f 0` each fills whole blocks.
    Directory,
    /// A store across a network. A write takes a round trip, so several are in flight, and none is padded. The durability
    /// is [`Durability::Always`].
    Network {
        /// How many writes may be in flight; at least 1.
        writes_in_flight_max: usize,
    },
}

impl WalConfig {
    /// The format of new segments.
    pub const fn format(&self) -> u32 {
        format_of(self.keep_reservations)
    }

    /// Whether a batch ends with a whole block, so that no later write touches a block that holds a durable record.
    const fn pads(&self) -> bool {
        matches!((self.durability, self.destination), (Durability::Always, Destination::Directory))
    }
}

/// Bytes that may wait to be written; with more, no command is served. They take memory, and replies wait for them.
pub const BACKLOG_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The WAL of one server. Its parts have a file each; this type connects them.
///
/// - Inputs: [`record`](Self::record) logs changes of the queue, [`compact`](Self::compact) and
///   [`close_when_idle`](Self::close_when_idle) follow once per event-loop iteration, [`complete`](Self::complete) takes
///   outcomes, [`stop`](Self::stop) announces the end.
/// - Outputs: [`next_operation`](Self::next_operation), until it returns none, and
///   [`next_deadline`](Self::next_deadline).
/// - Group commit: each reply has the [`ticket`](Self::ticket) of the batch that its records are in. It may leave when
///   that batch is committed: when [`committed`](Self::committed) has reached the ticket.
pub struct Wal {
    config: WalConfig,
    /// Which records are live, and in which segment.
    index: SegmentIndex,
    pauses: Pauses,
    kept_keys: KeptKeys,
    rules: LoggedRules,
    schedules: LoggedSchedules,
    appender: Appender,
    segments: SegmentAllocator,
    space: DiskSpace,
    compactor: Compactor,
    retirement: Retirement,
    commits: CommitState,
    rounds: Rounds,
    closing: CloseSchedule,
    counters: WalCounters,
    sync_times: Histogram,
    /// Empty between calls; kept for its allocation.
    changes: Vec<Change>,
    is_stopping: bool,
    /// See [`refuse_puts`](Self::refuse_puts).
    refuses_puts: bool,
    /// Further puts could have ids from which no server starts.
    is_out_of_ids: bool,
    /// See [`rewrite`](Self::rewrite).
    rewritten_up_to: Option<SegmentNumber>,
    /// See [`hold`](Self::hold).
    is_held: bool,
    failure: Option<io::Error>,
}

impl Wal {
    /// Continues a recovered log. `prepared` are the segments that are ready to be written to.
    ///
    /// # Panics
    /// If no segment is prepared and the log does not continue in its last one; or if the durability does not suit the
    /// destination.
    pub fn new(
        config: WalConfig,
        recovered: Recovered,
        prepared: Vec<SegmentNumber>,
        engine: &Engine,
    ) -> Self {
        if let Destination::Network { writes_in_flight_max } = config.destination {
            assert!(writes_in_flight_max > 0, "a log is written");
            assert_eq!(config.durability, Durability::Always, "a network has no sync of its own");
        }
        let Recovered { log_id, end, active: last, other_size_up_to, largest, closed_end, mark, .. } =
            recovered;
        let Replay { index, pauses, kept_keys, rules, schedules, .. } = recovered.replay;
        let mut prepared = VecDeque::from(prepared);
        let last_number = prepared.back().copied().or(last.map(|header| header.number));
        let last_number = last_number.expect("there is a segment to continue in");
        let active = last.unwrap_or_else(|| {
            let number = prepared.pop_front().expect("a segment is prepared");
            let oldest = index.oldest().unwrap_or(number);
            let previous = index.newest().unwrap_or(SegmentNumber(0));
            let (format, next_id) = (config.format(), engine.upcoming_id());
            Header { format, log_id, number, first: end, next_id, oldest, previous }
        });
        let is_closed = match last {
            Some(_) => closed_end.is_some(),
            // There is no record before it that a closing record could protect.
            None => index.newest().is_none(),
        };
        let (segment, closed_end) = match (last, closed_end) {
            (Some(last), Some(end)) => (last.number, end),
            _ => (SegmentNumber(0), Lsn::default()),
        };
        let ends = EndMark { log_id, segment, end: closed_end };
        let mut wal = Self {
            config,
            index,
            pauses,
            kept_keys,
            rules,
            schedules,
            appender: Appender::new(&config, active, end),
            segments: SegmentAllocator {
                prepared,
                missing: VecDeque::new(),
                last_number,
                other_size_up_to,
                largest_record: largest,
                requested_bytes: 0,
                is_arranging: false,
            },
            space: DiskSpace::default(),
            compactor: Compactor::default(),
            retirement: Retirement::new(active.oldest, end),
            commits: CommitState::new(config.durability, end),
            rounds: Rounds::default(),
            closing: CloseSchedule::new(is_closed.then_some(end), ends, mark),
            counters: WalCounters::default(),
            sync_times: Histogram::new(&SYNC_BOUNDS),
            changes: Vec::new(),
            is_stopping: false,
            refuses_puts: false,
            is_out_of_ids: false,
            rewritten_up_to: None,
            is_held: false,
            failure: None,
        };
        if last.is_none() {
            wal.begin_segment(active);
        }
        wal.note_ids_left(engine);
        wal.end_pauses_without_tube(engine);
        // A crash came between the last deletion and this record. Later jobs of the group must not hold its jobs again.
        // mutant grp-end-not-logged-after-a-crash: removed
        engine.done_groups().for_each(|group| wal.append_change(&Record::GroupDone(group), engine));
        wal
    }

    /// Logs the end of pauses whose tubes did not survive the restart, so that a later tube of the same name is not
    /// paused.
    fn end_pauses_without_tube(&mut self, engine: &Engine) {
        let is_paused = |tube: TubeName<'_>| {
            engine.tubes().find(tube).is_some_and(|tube| engine.tubes().get(tube).pause.is_some())
        };
        let ended = self.pauses.records().filter(|pause| !is_paused(pause.tube));
        let ended: Vec<(Box<[u8]>, Time)> =
            ended.map(|pause| (pause.tube.as_bytes().into(), pause.until)).collect();
        for (name, until) in ended {
            let tube = TubeName::new(&name).expect("it is the name of a tube");
            self.append_pause(PauseRecord { tube, until, length: Span::ZERO }, engine);
        }
    }

    /// Makes everything go to disk as soon as it can.
    pub const fn stop(&mut self) {
        self.is_stopping = true;
    }

    /// Leaves the space that the destination has to changes other than puts, or no longer.
    pub const fn refuse_puts(&mut self, refuses: bool) {
        self.refuses_puts = refuses;
    }

    /// Has compaction copy everything out of the present segments, so that they can be removed.
    pub const fn rewrite(&mut self) {
        self.rewritten_up_to = Some(self.appender.active().number);
    }

    /// Whether [`stop`](Self::stop) was called.
    pub const fn is_stopping(&self) -> bool {
        self.is_stopping
    }

    /// The position behind the last record.
    pub const fn end(&self) -> record::Lsn {
        self.commits.end()
    }

    /// Returns whether a job of this size, its body with CR LF, can be logged. If not, space is made for one of that size
    /// where possible.
    pub fn space_for_put(&mut self, tube_bytes: usize, tags: Tags<'_>, body_bytes: usize) -> PutSpace {
        self.space_for_records(job_record_bytes(tube_bytes, tags, body_bytes) as u64)
    }

    /// Whether there is space for jobs whose records come to this size, and must fit into one segment.
    pub fn space_for_records(&mut self, bytes: u64) -> PutSpace {
        let capacity = self.capacity();
        if !capacity.fits_segment(bytes) {
            PutSpace::TooLarge
        } else if self.space.is_stalled || self.refuses_puts || self.is_out_of_ids {
            PutSpace::Unavailable
        } else if capacity.has_space_for_job(bytes) {
            PutSpace::Available
        } else {
            self.segments.requested_bytes = bytes;
            if capacity.is_full || !self.has_number() { PutSpace::Unavailable } else { PutSpace::Pending }
        }
    }

    /// Returns the room for jobs whose tube name becomes longer.
    pub const fn room(&self) -> LogRoom {
        LogRoom { job_bytes_max: job_bytes_max(self.config.segment_bytes), is_full: self.is_full() }
    }

    /// The ticket of a reply to what was recorded last.
    #[inline]
    pub fn ticket(&self) -> u64 {
        self.commits.closed() + u64::from(self.appender.is_gathering())
    }

    /// The ticket of a reply to what is recorded next.
    #[inline]
    pub const fn next_ticket(&self) -> u64 {
        self.commits.closed() + 1
    }

    /// The last ticket that is committed.
    #[inline]
    pub const fn committed(&self) -> u64 {
        self.commits.committed()
    }

    /// The last ticket whose replies may leave: none while they are [held](Self::hold), and 0 is before every ticket.
    #[inline]
    pub const fn released(&self) -> u64 {
        // mutant replica-lease-not-looked-at: self.is_held => false
        if self.is_held { 0 } else { self.commits.committed() }
    }

    /// The rounds that prove that the leader of a log in a database still leads.
    #[inline]
    pub const fn rounds(&self) -> &Rounds {
        &self.rounds
    }

    /// The same, to begin one, to end one, or to wait for one.
    #[inline]
    pub const fn rounds_mut(&mut self) -> &mut Rounds {
        &mut self.rounds
    }

    /// Holds all replies, and has commands wait, or no longer.
    pub const fn hold(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// Whether all replies are held.
    pub const fn is_held(&self) -> bool {
        self.is_held
    }

    /// Whether records gather for the next batch.
    pub fn is_gathering(&self) -> bool {
        self.appender.is_gathering()
    }

    /// Whether commands and timers must wait: replies are held, the backlog is too large, the server is stopping, or space must
    /// be made first.
    pub fn must_wait(&self) -> bool {
        self.is_stopping
            || self.is_held
            || self.appender.backlog_bytes() > BACKLOG_BYTES_MAX
            || self.may_be_short()
                && self.capacity().is_short(self.retirement.is_active())
                && self.has_number()
    }

    /// If false, so is [`Capacity::is_short`], which takes longer.
    fn may_be_short(&self) -> bool {
        let segments = &self.segments;
        segments.prepared.len() < PREPARED_MIN || segments.requested_bytes > 0 || segments.has_missing()
    }

    /// Whether a write has found no space on the disk and will be tried again.
    pub const fn is_stalled(&self) -> bool {
        self.space.is_stalled
    }

    /// Whether a new file, or a write, has found no space on the disk.
    pub const fn is_full(&self) -> bool {
        self.space.is_full() || self.refuses_puts
    }

    /// Whether the log is in a database.
    pub const fn is_in_database(&self) -> bool {
        matches!(self.config.destination, Destination::Network { .. })
    }

    /// Whether a change of the job waits for a stalled write.
    pub fn is_pending(&self, job: JobId) -> bool {
        self.space.is_pending(job)
    }

    /// Whether everything that was recorded is durable and, if possible, the log is closed; or it has failed.
    pub fn is_settled(&self) -> bool {
        let is_written = !self.appender.is_gathering() && self.appender.is_idle();
        self.failure.is_some()
            || is_written
                && self.commits.is_all_durable()
                && !self.can_close()
                && self.wanted_mark().is_none()
    }

    /// The error that has ended the WAL. Records that are not committed yet never will be.
    pub const fn failure(&self) -> Option<&io::Error> {
        self.failure.as_ref()
    }

    /// Whether reservations are logged.
    pub const fn keeps_reservations(&self) -> bool {
        self.config.keep_reservations
    }

    /// When a change becomes durable.
    pub const fn durability(&self) -> Durability {
        self.config.durability
    }

    /// Returns the numbers that `stats` reports.
    pub fn stats(&self) -> WalStats {
        let (capacity, used) = (self.capacity(), self.index.segments() as u64);
        let live_bytes = self.index.live_bytes;
        let (segments, disk_bytes) = match self.config.destination {
            Destination::Directory => (capacity.segments(), capacity.segments() * self.config.segment_bytes),
            Destination::Network { .. } => (used, used * HEADER_BYTES + live_bytes + self.index.garbage),
        };
        let WalCounters { records, compacted, syncs, synced_records, last_sync } = self.counters;
        WalStats {
            oldest: self.index.oldest().map_or(0, |number| number.0),
            current: self.appender.active().number.0,
            segment_bytes: self.config.segment_bytes,
            segments,
            live_bytes,
            disk_bytes,
            records_moved: compacted,
            records_written: records,
            syncs,
            records_per_sync: synced_records.checked_div(syncs).unwrap_or(0),
            last_sync,
        }
    }

    /// Durations of syncs, in nanoseconds.
    pub const fn sync_times(&self) -> &Histogram {
        &self.sync_times
    }

    /// The number of the segment that a job's record is in; 0 for none.
    pub fn file_of(&self, job: JobKey) -> u64 {
        self.index.segment_of(job).map_or(0, |number| number.0)
    }

    /// Memory of batches and of the index, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let changes = self.changes.capacity() * size_of::<Change>();
        let index = self.index.memory_bytes() + self.pauses.memory_bytes() + self.kept_keys.memory_bytes();
        let rules = self.rules.memory_bytes() + self.schedules.memory_bytes();
        self.appender.memory_bytes() + changes + self.space.memory_bytes() + index + rules
    }

    /// Checks the invariants of all parts.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn check(&self) {
        self.index.check();
        self.commits.check(self.appender.unwritten_batches());
    }

    fn oldest(&self) -> SegmentNumber {
        self.index.oldest().expect("there is an active segment")
    }

    /// Bytes left in the active segment.
    #[inline]
    fn bytes_left(&self) -> u64 {
        self.appender.bytes_left(self.commits.end())
    }

    #[inline]
    fn capacity(&self) -> Capacity {
        Capacity {
            pads: self.config.pads(),
            segment_bytes: self.config.segment_bytes,
            used: self.index.segments() as u64,
            prepared: self.segments.prepared.len(),
            has_missing: self.segments.has_missing(),
            left: self.bytes_left(),
            live_bytes: self.index.live_bytes,
            garbage_bytes: self.index.garbage,
            largest_record: self.segments.largest_record,
            requested_bytes: self.segments.requested_bytes,
            is_full: self.space.is_full(),
        }
    }
}
