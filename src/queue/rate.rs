//! `rate`: how many jobs of a tube reserves get per second.
//!
//! A token bucket. Tokens come at even intervals, and a tenth of a second's worth is kept, but at least one. Each job that is
//! handed out takes one. The bucket is one time, at which it would be full (the generic cell rate algorithm). A tube without a
//! token is *throttled*: like a paused tube it is not reservable, so no search meets it. Its timer ends that when the next token
//! comes.

use super::engine::Engine;
use crate::time::{Span, Time};
use crate::values::budget::Limit;
use crate::values::ids::{ClientSlot, JobKey, RulesSlot, TubeSlot};
use crate::values::tube_rules::RuleKey;

/// The part of the tokens of a second that is kept for a burst.
const BURST_SHARE: u64 = 10;

/// The tokens of one tube.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    /// When it would be full, if no token was taken before.
    full_at: Time,
}

impl Bucket {
    pub const FULL: Self = Self { full_at: Time::ZERO };

    /// Takes a token.
    fn take(&mut self, rate: u64, now: Time) {
        // mutant rule-rate-saves-up-idle-time: now => now.back(Span::from_secs(1))
        self.full_at = self.full_at.max(now) + interval(rate);
    }

    /// When there is a token.
    fn has_token_at(self, rate: u64) -> Time {
        let burst = (rate / BURST_SHARE).max(1);
        self.full_at.back(Span::from_nanos(interval(rate).as_nanos() * (burst - 1)))
    }
}

fn interval(rate: u64) -> Span {
    Span::from_nanos(1_000_000_000_u64.div_ceil(rate))
}

impl Engine {
    /// Gives a ready job to a client that has asked for any job of its tubes.
    #[inline]
    pub(super) fn hand_out(&mut self, job: JobKey, client: ClientSlot, now: Time) {
        self.reserve_ready(job, client, now);
        let tube = self.store.jobs.get(job).tube;
        if let Some(rules) = self.store.tubes[tube].rules() {
            self.take_token(tube, rules, now);
        }
    }

    /// Takes a token, if the tube has a rate. Throttles the tube if there is no other.
    #[cold]
    fn take_token(&mut self, tube: TubeSlot, rules: RulesSlot, now: Time) {
        let ruled = &mut self.rules.table[rules.0];
        let Some(rate) = ruled.rules.number(RuleKey::Rate) else { return };
        ruled.bucket.take(rate, now);
        let until = ruled.bucket.has_token_at(rate);
        if until > now {
            ruled.counts.rate_waits += 1;
            self.rules.totals.rate_waits += 1;
            self.set_throttled(tube, true);
            self.store.timers.arm(self.store.tubes[tube].timer, until);
        }
    }

    /// Hands out jobs of a tube again if there is a token.
    pub(super) fn end_throttle(&mut self, tube: TubeSlot, limit: Limit, now: Time) {
        let end = self.store.tubes[tube].rules().and_then(|rules| self.throttle_end(tube, rules));
        if end.is_some_and(|end| end <= now) {
            self.set_throttled(tube, false);
            self.assign_jobs(tube, limit, now);
        }
    }

    /// Begins with a full bucket: the rate has changed.
    pub(super) fn restart_rate(&mut self, rules: RulesSlot, tube: Option<TubeSlot>, limit: Limit, now: Time) {
        self.rules.table[rules.0].bucket = Bucket::FULL;
        if let Some(tube) = tube.filter(|&tube| self.store.tubes[tube].is_throttled) {
            self.set_throttled(tube, false);
            self.assign_jobs(tube, limit, now);
        }
    }

    /// When a throttled tube has a token.
    pub(super) fn throttle_end(&self, tube: TubeSlot, rules: RulesSlot) -> Option<Time> {
        let ruled = &self.rules.table[rules.0];
        let rate = ruled.rules.number(RuleKey::Rate).filter(|_| self.store.tubes[tube].is_throttled)?;
        Some(ruled.bucket.has_token_at(rate))
    }

    fn set_throttled(&mut self, tube: TubeSlot, is_throttled: bool) {
        self.store.tubes[tube].is_throttled = is_throttled;
        self.store.refresh(tube);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes every token that there is until the end, and returns how many.
    fn count(rate: u64, end: Time) -> u64 {
        let (mut bucket, mut now, mut taken) = (Bucket::FULL, Time::from_nanos(5_000_000_000), 0);
        while now < end {
            bucket.take(rate, now);
            taken += 1;
            now = now.max(bucket.has_token_at(rate));
        }
        taken
    }

    #[test]
    fn a_second_has_its_tokens_and_a_burst() {
        let second = Time::from_nanos(6_000_000_000);
        for (rate, expect) in [(1, 1), (3, 3), (10, 10), (20, 21), (1000, 1099), (1_000_000, 1_099_999)] {
            assert_eq!(count(rate, second), expect, "{rate} per second");
        }
    }

    #[test]
    fn tokens_of_idle_time_are_not_kept_beyond_a_burst() {
        let mut bucket = Bucket::FULL;
        let later = Time::from_nanos(1_000_000_000_000);
        for _ in 0..10 {
            assert!(bucket.has_token_at(100) <= later);
            bucket.take(100, later);
        }
        assert_eq!(bucket.has_token_at(100), later + Span::from_millis(10));
    }
}
