//! From the WAL to the database: what a leader appends, and how long it may answer.

use std::collections::VecDeque;

use bytes::Bytes;

use super::chunk::{ChunkHeader, Kind, PAYLOAD_BYTES_MAX};
use super::follower::SegmentStarts;
use super::request::{
    APPENDS_MAX, DatabaseReply, Epoch, Failure, Hazards, Position, Renewal, Request, Reserve, Term,
};
use crate::time::{Span, Time};
use crate::values::histogram::Histogram;
use crate::wal::record::Lsn;
use crate::wal::stats::SYNC_BOUNDS;
use crate::wal::{Arrangement, Batch, DiskOperation, DiskOutcome, Round, SegmentNumber, Wal};

/// The pause before a request is repeated whose outcome is unknown. Each further pause is twice as long.
const REPEAT_AFTER: Span = Span::from_millis(20);

/// The longest pause between repetitions.
const REPEAT_AFTER_MAX: Span = Span::from_millis(1000);

/// The pause before the leader tries again to reserve space in the database.
const KEEP_AGAIN_AFTER: Span = Span::from_millis(1000);

/// The shortest time for which a server that stops waits for the database.
const PATIENCE_OF_STOP_MIN: Span = Span::from_millis(5000);

/// The leader of an epoch: makes requests of the batches of the WAL.
///
/// Replies of the server may leave until [`lease_end`](Self::lease_end): a standby sees the last change of the log, and takes over no
/// earlier than 1.25 leases later.
pub struct Leader {
    term: Term,
    log_id: u64,
    lease: Span,
    /// The position of the next chunk.
    next: Position,
    lease_end: Time,
    /// When the last request was sent whose acknowledgement proves that the epoch has not ended.
    sent_at: Time,
    /// The chunks from the first one on that is not acknowledged, in the order of their positions.
    window: VecDeque<Append>,
    /// The batch that is being split into chunks.
    splitting: Option<Split>,
    /// Batches whose last chunk is in the window, the oldest first.
    batches: VecDeque<Batch>,
    starts: SegmentStarts,
    renewal: Step,
    /// When the renewal in flight was sent, and its round.
    renewal_sent_at: Time,
    renewal_round: Round,
    trim: Option<Trim>,
    reserve: ReserveState,
    /// The hazards that the last renewal has reported.
    hazards: Hazards,
    /// The [requests](Renewal::rewrites) to write the log again that the WAL knows of.
    rewrites: u64,
    /// When the server began to stop or, if that was later, when an append or a trim was last acknowledged.
    stop_progress_at: Option<Time>,
    /// Nanoseconds from the first request to append a chunk until it is acknowledged.
    append_times: Histogram,
    /// The WAL has settled at the end, and the last chunk says so.
    has_left: bool,
}

/// How long a server that stops waits for an acknowledgement: a lease, and no less than 5 s, because a slow disk may delay a commit
/// for seconds.
pub fn patience_of_stop(lease: Span) -> Span {
    lease.max(PATIENCE_OF_STOP_MIN)
}

/// A chunk in flight.
struct Append {
    position: Position,
    chunk: Bytes,
    ends_batch: bool,
    /// When it was first sent.
    began_at: Time,
    sent_at: Time,
    round: Round,
    step: Step,
}

/// How far a request is.
#[derive(Clone, Copy)]
enum Step {
    /// No request is wanted, or it is acknowledged.
    Done,
    InFlight {
        /// The pause before the next repetition.
        repeat_after: Span,
    },
    /// The request is sent at this time.
    Waiting { until: Time, repeat_after: Span },
}

/// A batch of which some parts are in the window.
struct Split {
    batch: Batch,
    segment: SegmentNumber,
    /// The batch begins the segment.
    begins: bool,
    lsn: Lsn,
    part: u32,
}

/// The space that the database has in reserve.
///
/// ```text
///           an append finds no space            freed
///   kept ------------------------------> to free ----> to keep again, and puts are refused until it is
///    ^                                                   |
///    +---------------------------------------------------+
/// ```
struct ReserveState {
    wanted: Reserve,
    step: Step,
    /// The space was freed, or never reserved.
    is_free: bool,
}

/// Chunks of a segment that is not needed.
struct Trim {
    arrangement: Arrangement,
    before: Position,
    step: Step,
}

/// Why a leader cannot go on.
// docs/RUNBOOK.md lists these messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LeaderEnd {
    /// Another server leads.
    #[error("another server leads now")]
    Fenced,
    /// Another chunk is at a position that belongs to this leader: the database was changed or restored.
    #[error(
        "the database has another chunk at position {0}, where this leader writes; if it was restored from a backup, changes \
        may be missing"
    )]
    Overwritten(Position),
}

impl Step {
    const SENT: Self = Self::InFlight { repeat_after: REPEAT_AFTER };

    /// A request to be sent at this time.
    const fn at(until: Time) -> Self {
        Self::Waiting { until, repeat_after: REPEAT_AFTER }
    }

    fn is_due(self, now: Time) -> bool {
        matches!(self, Self::Waiting { until, .. } if until <= now)
    }

    /// Notes that the request is sent, for the first time or again.
    const fn send(&mut self) {
        *self = match *self {
            Self::Waiting { repeat_after, .. } => Self::InFlight { repeat_after },
            Self::Done | Self::InFlight { .. } => Self::SENT,
        };
    }

    /// Waits before the request is repeated.
    fn wait(&mut self, now: Time) {
        if let Self::InFlight { repeat_after } = *self {
            let doubled = Span::from_nanos(2 * repeat_after.as_nanos()).min(REPEAT_AFTER_MAX);
            *self = Self::Waiting { until: now + repeat_after, repeat_after: doubled };
        }
    }

    const fn until(self) -> Option<Time> {
        if let Self::Waiting { until, .. } = self { Some(until) } else { None }
    }
}

impl Split {
    fn parts(&self) -> u32 {
        self.batch.len().div_ceil(PAYLOAD_BYTES_MAX) as u32
    }
}

impl Leader {
    /// Begins to lead. `next` is the position after the chunk that began the epoch, and `claimed_at` is when that chunk was sent.
    pub fn new(
        term: Term,
        log_id: u64,
        next: Position,
        starts: SegmentStarts,
        lease: Span,
        claimed_at: Time,
    ) -> Self {
        Self {
            term,
            log_id,
            lease,
            next,
            lease_end: claimed_at + lease,
            sent_at: claimed_at,
            window: VecDeque::with_capacity(APPENDS_MAX),
            splitting: None,
            batches: VecDeque::new(),
            starts,
            renewal: Step::Done,
            renewal_sent_at: claimed_at,
            renewal_round: 0,
            trim: None,
            reserve: ReserveState { wanted: Reserve::Keep, step: Step::at(claimed_at), is_free: false },
            hazards: Hazards::default(),
            rewrites: 0,
            stop_progress_at: None,
            append_times: Histogram::new(&SYNC_BOUNDS),
            has_left: false,
        }
    }

    /// The end of the lease, until which replies may leave.
    pub const fn lease_end(&self) -> Time {
        self.lease_end
    }

    /// The term of the leader.
    pub const fn term(&self) -> Term {
        self.term
    }

    /// The epoch of the term.
    pub const fn epoch(&self) -> Epoch {
        self.term.epoch
    }

    /// The hazards that the last renewal has reported.
    pub const fn hazards(&self) -> Hazards {
        self.hazards
    }

    /// Appends in flight.
    pub fn in_flight(&self) -> usize {
        self.window.len()
    }

    /// The times that appends have taken with their repetitions, in nanoseconds.
    pub const fn append_times(&self) -> &Histogram {
        &self.append_times
    }

    /// Whether nothing is in flight and the farewell is acknowledged.
    pub fn has_left(&self) -> bool {
        self.has_left && self.window.is_empty()
    }

    /// When a server that stops ends without the database: [some time](patience_of_stop) after the last acknowledgement.
    pub fn gives_up_at(&self) -> Option<Time> {
        Some(self.stop_progress_at? + patience_of_stop(self.lease)).filter(|_| !self.has_left())
    }

    /// Memory of chunks in flight, in bytes. The WAL counts their batches.
    pub fn memory_bytes(&self) -> usize {
        let chunks: usize = self.window.iter().map(|append| append.chunk.len()).sum();
        chunks + self.starts.capacity() * size_of::<(SegmentNumber, Position)>()
    }

    /// Returns the next request that can start now, if there is one.
    pub fn next_request(&mut self, wal: &mut Wal, now: Time) -> Option<Request> {
        if wal.is_stopping() {
            self.stop_progress_at.get_or_insert(now);
        }
        if let Some(request) = self.repeated(wal, now) {
            return Some(request);
        }
        if self.polls() {
            self.poll(wal, now);
        }
        if self.window.len() < APPENDS_MAX
            && let Some(request) = self.next_append(wal, now)
        {
            return Some(request);
        }
        let request = self.next_trim(now).or_else(|| self.next_renewal(wal, now));
        request.or_else(|| self.next_reserve(wal, now))
    }

    fn next_reserve(&mut self, wal: &Wal, now: Time) -> Option<Request> {
        let ReserveState { wanted, step, .. } = &mut self.reserve;
        let may_ask = step.is_due(now) && !self.has_left && (*wanted == Reserve::Free || !wal.is_stopping());
        may_ask.then(|| {
            step.send();
            Request::Reserve(*wanted)
        })
    }

    /// Frees the reserved space, because an append has found none.
    fn free_reserve(&mut self, wal: &mut Wal, now: Time) {
        if !self.reserve.is_free {
            self.reserve = ReserveState { wanted: Reserve::Free, step: Step::at(now), is_free: true };
            wal.refuse_puts(true);
        }
    }

    fn reserved(&mut self, wanted: Reserve, result: Result<(), Failure>, wal: &mut Wal, now: Time) {
        if wanted != self.reserve.wanted {
            // The request that is wanted now is sent later.
            return;
        }
        let again = Step::at(now + KEEP_AGAIN_AFTER);
        self.reserve = match (wanted, result) {
            (Reserve::Keep, Ok(())) => {
                wal.refuse_puts(false);
                ReserveState { wanted, step: Step::Done, is_free: false }
            }
            (Reserve::Keep, Err(Failure::Full)) => {
                wal.refuse_puts(true);
                ReserveState { wanted, step: again, is_free: true }
            }
            (Reserve::Free, Ok(())) => ReserveState { wanted: Reserve::Keep, step: again, is_free: true },
            (_, Err(_)) => {
                self.reserve.step.wait(now);
                return;
            }
        };
    }

    fn repeated(&mut self, wal: &mut Wal, now: Time) -> Option<Request> {
        let append = self.window.iter_mut().find(|append| append.step.is_due(now))?;
        append.step.send();
        (append.sent_at, append.round) = (now, wal.rounds_mut().begin());
        self.sent_at = now;
        let (position, chunk) = (append.position, append.chunk.clone());
        Some(Request::Append { term: self.term, position, chunk, is_repeated: true })
    }

    /// Whether the leader takes operations of the WAL. Nothing may follow the farewell in this epoch, not even changes by clients that
    /// disconnect.
    pub const fn polls(&self) -> bool {
        // mutant replica-record-after-the-farewell: !self.has_left => true
        self.splitting.is_none() && !self.has_left
    }

    /// Takes operations of the WAL, up to the next batch. A full window does not prevent this: the WAL may have to free space first.
    fn poll(&mut self, wal: &mut Wal, now: Time) {
        while self.splitting.is_none()
            && let Some(operation) = wal.next_operation(now)
        {
            match operation {
                DiskOperation::Write { segment, offset, first, batch, .. } => {
                    self.splitting = Some(Split { batch, segment, begins: offset == 0, lsn: first, part: 0 });
                }
                DiskOperation::Arrange(arrangement) => self.arrange(arrangement, wal, now),
                DiskOperation::Sync(_) => unreachable!("every write is durable"),
            }
        }
    }

    fn next_append(&mut self, wal: &mut Wal, now: Time) -> Option<Request> {
        let Some(split) = self.splitting.take() else {
            let leaves = wal.is_stopping() && wal.is_settled() && self.trim.is_none();
            if self.has_left || !leaves {
                return None;
            }
            self.has_left = true;
            let header = ChunkHeader { lsn: wal.end(), ..self.header(Kind::Farewell) };
            return Some(self.append(&header, &[], false, wal, now));
        };
        if split.begins && split.part == 0 {
            self.starts.push_back((split.segment, self.next));
        }
        let begin = split.part as usize * PAYLOAD_BYTES_MAX;
        let end = (begin + PAYLOAD_BYTES_MAX).min(split.batch.len());
        let header = ChunkHeader {
            lsn: split.lsn,
            segment: split.segment,
            part: split.part,
            parts: split.parts(),
            ..self.header(Kind::Data)
        };
        let is_last = split.part + 1 == split.parts();
        let request = self.append(&header, &split.batch.bytes()[begin..end], is_last, wal, now);
        if is_last {
            self.batches.push_back(split.batch);
        } else {
            self.splitting = Some(Split { part: split.part + 1, ..split });
        }
        Some(request)
    }

    const fn header(&self, kind: Kind) -> ChunkHeader {
        ChunkHeader::alone(kind, self.term.epoch, self.log_id, self.next)
    }

    fn append(
        &mut self,
        header: &ChunkHeader,
        payload: &[u8],
        ends_batch: bool,
        wal: &mut Wal,
        now: Time,
    ) -> Request {
        let (position, chunk) = (self.next, header.encode(payload));
        self.next = position.next();
        self.sent_at = now;
        let append = Append {
            position,
            chunk: chunk.clone(),
            ends_batch,
            began_at: now,
            sent_at: now,
            round: wal.rounds_mut().begin(),
            step: Step::SENT,
        };
        self.window.push_back(append);
        Request::Append { term: self.term, position, chunk, is_repeated: false }
    }

    /// Trims a segment that is not needed. The database needs no preparation for a new one.
    fn arrange(&mut self, arrangement: Arrangement, wal: &mut Wal, now: Time) {
        let from = match arrangement {
            Arrangement::Create { .. } | Arrangement::MarkEnd(_) => None,
            Arrangement::Recycle { from, .. } | Arrangement::Remove(from) => Some(from),
        };
        let is_oldest = self.starts.front().is_some_and(|&(oldest, _)| Some(oldest) == from);
        // mutant replica-trim-of-a-segment-too-many: self.starts.get(1) => self.starts.get(2).or(self.starts.get(1))
        match self.starts.get(1) {
            Some(&(_, before)) if is_oldest => {
                self.trim = Some(Trim { arrangement, before, step: Step::at(now) });
            }
            _ => wal.complete(DiskOutcome::Arranged(arrangement, Ok(())), now),
        }
    }

    fn next_trim(&mut self, now: Time) -> Option<Request> {
        let trim = self.trim.as_mut().filter(|trim| trim.step.is_due(now))?;
        trim.step.send();
        Some(Request::Trim { term: self.term, before: trim.before })
    }

    fn next_renewal(&mut self, wal: &mut Wal, now: Time) -> Option<Request> {
        // With a full window, and with records that gather beside an append in flight, the next append begins the round.
        let is_in_flight = |append: &Append| matches!(append.step, Step::InFlight { .. });
        let appends_next =
            self.window.len() == APPENDS_MAX || wal.is_gathering() && self.window.iter().any(is_in_flight);
        let is_wanted = wal.rounds().is_wanted() && !appends_next;
        let is_due = match self.renewal {
            Step::Done => (is_wanted || self.renewal_due() <= now) && !self.has_left,
            waiting => waiting.is_due(now),
        };
        if !is_due {
            return None;
        }
        self.renewal.send();
        (self.sent_at, self.renewal_sent_at) = (now, now);
        self.renewal_round = wal.rounds_mut().begin();
        Some(Request::Renew(self.term))
    }

    /// When to renew although no reply waits for it: after a quarter of the lease without a request, and at least once in a lease, because
    /// only renewals tell what operators ask for.
    fn renewal_due(&self) -> Time {
        let since_any = self.sent_at + Span::from_nanos(self.lease.as_nanos() / 4);
        since_any.min(self.renewal_sent_at + self.lease)
    }

    /// When a request can start, if nothing else happens.
    pub fn next_deadline(&self) -> Option<Time> {
        let repeats = self.window.iter().filter_map(|append| append.step.until());
        let trim = self.trim.as_ref().and_then(|trim| trim.step.until());
        let renewal = match self.renewal {
            Step::Done => Some(self.renewal_due()).filter(|_| !self.has_left),
            waiting => waiting.until(),
        };
        let reserve = self.reserve.step.until().filter(|_| !self.has_left && self.stop_progress_at.is_none());
        repeats.chain(trim).chain(renewal).chain(reserve).min()
    }

    /// Takes a reply to a request of this leader.
    ///
    /// # Errors
    /// If the epoch has ended.
    pub fn complete(&mut self, reply: DatabaseReply, wal: &mut Wal, now: Time) -> Result<(), LeaderEnd> {
        match reply {
            DatabaseReply::Appended { position, result } => self.appended(position, result, wal, now)?,
            DatabaseReply::Renewed(Ok(Renewal { rewrites, hazards })) => {
                self.hazards = hazards;
                self.renewal = Step::Done;
                self.prolong(self.renewal_sent_at);
                wal.rounds_mut().prove(self.renewal_round);
                if rewrites > self.rewrites {
                    self.rewrites = rewrites;
                    wal.rewrite();
                }
            }
            DatabaseReply::Renewed(Err(Failure::Fenced)) | DatabaseReply::Trimmed(Err(Failure::Fenced)) => {
                return Err(LeaderEnd::Fenced);
            }
            DatabaseReply::Renewed(Err(_)) => self.renewal.wait(now),
            DatabaseReply::Trimmed(Ok(())) => {
                self.note_progress(now);
                if let Some(Trim { arrangement, .. }) = self.trim.take() {
                    self.starts.pop_front();
                    wal.complete(DiskOutcome::Arranged(arrangement, Ok(())), now);
                }
            }
            DatabaseReply::Trimmed(Err(_)) => {
                if let Some(trim) = &mut self.trim {
                    trim.step.wait(now);
                }
            }
            DatabaseReply::Reserved { wanted, result } => self.reserved(wanted, result, wal, now),
            // Replies to requests of the standby that has become this leader.
            DatabaseReply::Read(_) | DatabaseReply::Watched { .. } | DatabaseReply::Claimed(_) => {}
        }
        Ok(())
    }

    fn appended(
        &mut self,
        position: Position,
        result: Result<(), Failure>,
        wal: &mut Wal,
        now: Time,
    ) -> Result<(), LeaderEnd> {
        let Some(append) = self.window.iter_mut().find(|append| append.position == position) else {
            return Ok(());
        };
        // mutant replica-unknown-append-acknowledged: result => match result { Err(Failure::Unknown) => Ok(()), other => other }
        match result {
            Ok(()) => {
                append.step = Step::Done;
                self.append_times.add(now.since(append.began_at).as_nanos());
                let Append { sent_at, round, .. } = *append;
                self.prolong(sent_at);
                wal.rounds_mut().prove(round);
                self.note_progress(now);
                self.advance(wal, now);
            }
            // mutant replica-fence-not-checked: return Err(LeaderEnd::Fenced) =>
            //     append.step = Step::Done; self.advance(wal, now)
            Err(Failure::Fenced) => return Err(LeaderEnd::Fenced),
            Err(Failure::Taken) => return Err(LeaderEnd::Overwritten(position)),
            Err(Failure::Full) => {
                append.step.wait(now);
                wal.stall(self.batches.iter().chain(self.splitting.as_ref().map(|split| &split.batch)), now);
                self.free_reserve(wal, now);
            }
            Err(Failure::Unknown) => append.step.wait(now),
        }
        Ok(())
    }

    fn note_progress(&mut self, now: Time) {
        self.stop_progress_at = self.stop_progress_at.map(|_| now);
    }

    /// Prolongs the lease by a request that was acknowledged: when it was sent, the epoch had not ended.
    fn prolong(&mut self, sent_at: Time) {
        self.lease_end = self.lease_end.max(sent_at + self.lease);
    }

    /// Tells the WAL about the batches whose chunks are all acknowledged.
    fn advance(&mut self, wal: &mut Wal, now: Time) {
        while let Some(append) = self.window.pop_front_if(|append| matches!(append.step, Step::Done)) {
            if append.ends_batch {
                let batch = self.batches.pop_front().expect("its last chunk was in the window");
                wal.complete(DiskOutcome::Written(batch, Ok(())), now);
            }
        }
    }

    /// Drops what is in flight, because the epoch has ended.
    pub fn end(&mut self) {
        self.window.clear();
        self.batches.clear();
        self.splitting = None;
    }
}
