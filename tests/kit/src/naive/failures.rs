//! Attempts that fail: what counts as one, and what follows.

use beanring::intrusive::mix_seeded;
use beanring::queue::{Failure, JobState, Released};
use beanring::time::{Seconds, Span};
use beanring::values::tube_rules::{NO, RuleKey};

use super::{Conn, Job, Model, Name, Place, RECOVERED};

/// What becomes of a job that has failed.
enum After {
    Ready,
    Delayed(Seconds),
    Final,
}

impl Model {
    /// Ends the reservation of a job that its holder has released, whose time is over, or whose holder was lost.
    pub(super) fn fail(&mut self, at: usize, failure: Failure) {
        self.count_failure(at, failure);
        match self.after_failure(at) {
            After::Ready => self.make_ready(at),
            After::Delayed(delay) => self.retry(at, delay),
            After::Final => self.retire(at),
        }
    }

    /// Ends a reservation of a client that leaves.
    pub(super) fn end_held(&mut self, at: usize, has_quit: bool) {
        let counts = self.number(self.jobs[at].tube, RuleKey::LostCounts) != Some(NO);
        if has_quit || !counts {
            return self.make_ready(at);
        }
        self.totals.losses += 1;
        self.fail(at, Failure::Loss);
    }

    pub fn release(&mut self, conn: Conn, id: u64, pri: u32, delay: Seconds) -> Released {
        let Some(at) = self.find_reserved(conn, id) else { return Released::NotFound };
        self.jobs[at].pri = pri;
        self.totals.releases += 1;
        self.count_failure(at, Failure::Release);
        match self.after_failure(at) {
            After::Final => {
                self.retire(at);
                let is_buried = self.find(id, |job| job.state() == JobState::Buried).is_some();
                return if is_buried { Released::Buried } else { Released::Done };
            }
            After::Delayed(retry) if delay == Seconds::ZERO => self.retry(at, retry),
            After::Ready | After::Delayed(_) => self.delay(at, delay),
        }
        Released::Done
    }

    /// Keeps a note of a reserved job. Three are kept.
    pub fn note(&mut self, conn: Conn, id: u64, text: &[u8]) -> bool {
        let Some(at) = self.find_reserved(conn, id) else { return false };
        let next_turn = self.next_turn();
        if let Place::Reserved { by, turn, .. } = &mut self.jobs[at].place
            && *by == RECOVERED
        {
            (*by, *turn) = (conn, next_turn);
        }
        let notes = &mut self.jobs[at].notes;
        notes.push((self.now, text.to_vec()));
        if notes.len() > 3 {
            notes.remove(0);
        }
        true
    }

    fn count_failure(&mut self, at: usize, failure: Failure) {
        let counts = &mut self.jobs[at].counts;
        match failure {
            Failure::Timeout => counts.timeouts += 1,
            Failure::Release => counts.releases += 1,
            Failure::Loss => counts.losses += 1,
        }
    }

    /// Whether a job is ready, or delayed by the rules, or has had all attempts.
    fn after_failure(&self, at: usize) -> After {
        let Job { tube, created, id, counts, .. } = self.jobs[at];
        let attempts = u64::from(counts.timeouts) + u64::from(counts.releases) + u64::from(counts.losses);
        let has_had_all = self.number(tube, RuleKey::MaxAttempts).is_some_and(|max| attempts >= max);
        let end = self.number(tube, RuleKey::RetryFor);
        let is_too_old = end.is_some_and(|end| created + Span::from_secs(end as u32) <= self.now);
        if has_had_all || is_too_old {
            return After::Final;
        }
        self.retry_delay(tube, id, attempts).map_or(After::Ready, After::Delayed)
    }

    fn retry_delay(&self, tube: Name, id: u64, attempts: u64) -> Option<Seconds> {
        let number = |key, default: u64| u128::from(self.number(tube, key).unwrap_or(default));
        let (factor, jitter) = (number(RuleKey::RetryFactor, 20), number(RuleKey::RetryJitter, 20));
        let longest = number(RuleKey::RetryMaxDelay, u32::MAX.into()) * 1000;
        let first = u128::from(self.number(tube, RuleKey::RetryDelay)?) * 1000;
        let grown = (1..attempts).fold(first, |millis, _| (millis * factor / 10).min(1 << 100)).min(longest);
        let chance = u128::from(mix_seeded(id, attempts) >> 44);
        let millis = (grown - grown * jitter / 100 * chance / (1 << 20)) as u64;
        Seconds::new((millis / 1000) as u32, (millis % 1000) as u16)
    }

    fn retry(&mut self, at: usize, delay: Seconds) {
        let tube = self.jobs[at].tube;
        self.count(tube, |counts| counts.retries += 1);
        self.delay(at, delay);
    }

    /// Makes a reserved job ready or delayed.
    fn delay(&mut self, at: usize, delay: Seconds) {
        self.note_lapse(at);
        let (place, turn) = (self.ready_or_delayed(delay), self.next_turn());
        let job = &mut self.jobs[at];
        (job.delay, job.place, job.since, job.entered) = (delay, place, self.now, turn);
        self.serve_after(at);
    }
}
