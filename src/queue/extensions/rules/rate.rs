//! `rate`: how many jobs of a tube reserves get per second.
//!
//! A token bucket. Tokens come at even intervals, and a tenth of a second's worth is kept, but at least one. Each job that is
//! handed out takes one. The bucket is one time, at which it would be full (the generic cell rate algorithm). A tube without a
//! token is *throttled*: like a paused tube it is not reservable, so no search meets it. Its timer ends that when the next token
//! comes.

use super::Rules;
use crate::queue::store::Store;
use crate::time::{Span, Time};
use crate::values::ids::{RulesSlot, TubeSlot};
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

impl Rules {
    /// Takes a token, if the tube has a rate. Throttles the tube if there is no other.
    #[cold]
    pub fn take_token(&mut self, tube: TubeSlot, rules: RulesSlot, now: Time, store: &mut Store) {
        let ruled = &mut self.table[rules.0];
        let Some(rate) = ruled.rules.number(RuleKey::Rate) else { return };
        ruled.bucket.take(rate, now);
        let until = ruled.bucket.has_token_at(rate);
        if until > now {
            ruled.counts.rate_waits += 1;
            self.totals.rate_waits += 1;
            set_throttled(tube, true, store);
            store.timers.arm(store.tubes[tube].timer, until);
        }
    }

    /// Ends the throttling of a tube if there is a token. Returns true if its jobs are to be assigned to clients that wait.
    #[must_use]
    pub fn end_throttle(&self, tube: TubeSlot, now: Time, store: &mut Store) -> bool {
        let end = store.tubes[tube].rules().and_then(|rules| self.throttle_end(tube, rules, store));
        let is_over = end.is_some_and(|end| end <= now);
        if is_over {
            set_throttled(tube, false, store);
        }
        is_over
    }

    /// Begins with a full bucket: the rate has changed. Returns whether that ends the throttling of the tube.
    pub(super) fn restart_rate(
        &mut self,
        rules: RulesSlot,
        tube: Option<TubeSlot>,
        store: &mut Store,
    ) -> bool {
        self.table[rules.0].bucket = Bucket::FULL;
        let throttled = tube.filter(|&tube| store.tubes[tube].is_throttled);
        if let Some(tube) = throttled {
            set_throttled(tube, false, store);
        }
        throttled.is_some()
    }

    /// When a throttled tube has a token.
    pub(super) fn throttle_end(&self, tube: TubeSlot, rules: RulesSlot, store: &Store) -> Option<Time> {
        let ruled = &self.table[rules.0];
        let rate = ruled.rules.number(RuleKey::Rate).filter(|_| store.tubes[tube].is_throttled)?;
        Some(ruled.bucket.has_token_at(rate))
    }
}

fn set_throttled(tube: TubeSlot, is_throttled: bool, store: &mut Store) {
    store.tubes[tube].is_throttled = is_throttled;
    store.refresh(tube);
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
