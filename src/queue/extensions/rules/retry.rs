//! What follows a failed attempt, by `max-attempts`, `retry-for`, `lost-counts` and the rules of the delay.

use super::Rules;
use crate::intrusive::mix_seeded;
use crate::queue::store::Store;
use crate::time::{Seconds, Span, Time};
use crate::values::ids::{JobId, JobKey, RulesSlot, TubeSlot};
use crate::values::tube_rules::{NO, RuleKey, TubeRules};

/// Without `retry-factor`, each failure doubles the delay.
const FACTOR_DEFAULT_TENTHS: u64 = 20;

/// Without `retry-jitter`, a fifth of a delay is left to chance.
const JITTER_DEFAULT_HUNDREDTHS: u64 = 20;

/// The smallest factor, 1.1, reaches the longest delay from the shortest in fewer steps.
const GROWTH_STEPS_MAX: u64 = 240;

/// What becomes of a job whose reservation has failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterFailure {
    /// No rule delays it.
    Ready,
    /// It is ready again after this time.
    Delayed(Seconds),
    /// It has had its last attempt.
    Final,
}

impl Rules {
    /// What follows a failure of a job, which is counted.
    #[inline]
    pub fn after_failure(&self, job: JobKey, now: Time, store: &Store) -> AfterFailure {
        match store.tubes[store.jobs.get(job).tube].rules() {
            None => AfterFailure::Ready,
            Some(rules) => self.after_failure_by(job, rules, now, store),
        }
    }

    #[cold]
    fn after_failure_by(&self, job: JobKey, rules: RulesSlot, now: Time, store: &Store) -> AfterFailure {
        let counts = store.jobs.lifecycle(job).expect("it was reserved").counts.get();
        let record = store.jobs.get(job);
        let rules = &self.table[rules.0].rules;
        // mutant rule-attempts-without-releases: counts.attempts() => counts.attempts() - u64::from(counts.releases)
        let attempts = counts.attempts();
        let is_last = rules.number(RuleKey::MaxAttempts).is_some_and(|max| attempts >= max);
        let end =
            rules.number_u32(RuleKey::RetryFor).map(|seconds| record.created + Span::from_secs(seconds));
        if is_last || end.is_some_and(|end| end <= now) {
            return AfterFailure::Final;
        }
        delay(rules, attempts, record.id).map_or(AfterFailure::Ready, AfterFailure::Delayed)
    }

    /// Whether the loss of a connection is a failure of the jobs of a tube.
    pub fn counts_losses(&self, tube: TubeSlot, store: &Store) -> bool {
        let rules = store.tubes[tube].rules().map(|rules| &self.table[rules.0].rules);
        rules.and_then(|rules| rules.number(RuleKey::LostCounts)) != Some(NO)
    }

    /// Counts a job of a tube that a rule has delayed.
    #[cold]
    pub fn count_retry(&mut self, tube: TubeSlot, store: &Store) {
        let RulesSlot(rules) = store.tubes[tube].rules().expect("the tube has a rule");
        self.table[rules].counts.retries += 1;
        self.totals.retries += 1;
    }
}

/// The delay after this many failures, if the rules have one. Jobs that fail together are spread by their ids, so that no two
/// machines differ.
fn delay(rules: &TubeRules, attempts: u64, id: JobId) -> Option<Seconds> {
    let number = |key, default| rules.number(key).unwrap_or(default);
    let base = rules.number(RuleKey::RetryDelay)?;
    let max = number(RuleKey::RetryMaxDelay, u32::MAX.into()) * 1000;
    let factor = number(RuleKey::RetryFactor, FACTOR_DEFAULT_TENTHS);
    let mut millis = (base * 1000).min(max);
    // Bounded by GROWTH_STEPS_MAX: then the delay is the longest, or the factor is 1.
    for _ in 1..attempts.min(GROWTH_STEPS_MAX) {
        millis = (millis * factor / 10).min(max);
    }
    let jitter = number(RuleKey::RetryJitter, JITTER_DEFAULT_HUNDREDTHS);
    // mutant retry-without-jitter: mix_seeded(id.0, attempts) >> 32 => 0
    let chance = mix_seeded(id.0, attempts) >> 32;
    let millis = millis - (millis * jitter / 100 * (chance >> 12)) / (1 << 20);
    let (whole, rest) = (millis / 1000, millis % 1000);
    let whole = u32::try_from(whole).expect("the longest delay has 32 bits");
    Seconds::new(whole, rest as u16).filter(|&delay| delay > Seconds::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::tube_name::TubeName;
    use crate::values::tube_rules::Rule;

    fn rules(texts: &[(&str, &str)]) -> TubeRules {
        let mut rules = TubeRules::default();
        for (key, text) in texts {
            let key = RuleKey::named(key.as_bytes()).expect("a key");
            rules.set(Rule::parse(TubeName::DEFAULT, key, text.as_bytes()).expect("a rule"));
        }
        rules
    }

    /// The delay in milliseconds.
    fn millis(rules: &TubeRules, attempts: u64, id: u64) -> u64 {
        delay(rules, attempts, JobId(id)).map_or(0, |delay| delay.span().as_nanos() / 1_000_000)
    }

    #[test]
    fn the_curve_grows_up_to_its_longest_delay() {
        let check = |texts: &[(&str, &str)], expect: &[u64]| {
            let with_jitter = [texts, &[("retry-jitter", "0.01")]].concat();
            for (attempts, &longest) in (1..).zip(expect) {
                let delay = millis(&rules(&with_jitter), attempts, 7);
                let shortest = longest * 1000 - longest * 10;
                assert!((shortest..=longest * 1000).contains(&delay), "{texts:?} {attempts}: {delay}");
            }
        };
        check(&[("retry-delay", "5")], &[5, 10, 20, 40, 80]);
        check(&[("retry-delay", "5"), ("retry-factor", "1")], &[5, 5, 5]);
        check(&[("retry-delay", "10"), ("retry-factor", "1.5")], &[10, 15]);
        check(&[("retry-delay", "5"), ("retry-max-delay", "15")], &[5, 10, 15, 15]);
        check(&[("retry-delay", "60"), ("retry-max-delay", "15")], &[15, 15]);
        assert_eq!(millis(&rules(&[("retry-max-delay", "15"), ("retry-factor", "3")]), 1, 7), 0, "no delay");
    }

    #[test]
    fn very_many_failures_delay_no_longer_than_the_longest_delay() {
        let longest = u64::from(u32::MAX) * 1000;
        for factor in ["1.1", "2", "100"] {
            let rules = rules(&[("retry-delay", "1"), ("retry-factor", factor), ("retry-jitter", "0.01")]);
            for attempts in [1_000, u64::from(u32::MAX) * 3] {
                assert!((longest / 100 * 99..=longest).contains(&millis(&rules, attempts, 1)), "{factor}");
            }
        }
    }

    #[test]
    fn jobs_that_fail_together_are_spread() {
        let rules = rules(&[("retry-delay", "100")]);
        let mut delays: Vec<u64> = (1..=1000).map(|id| millis(&rules, 1, id)).collect();
        delays.sort_unstable();
        assert!(delays[0] < 81_000 && delays[999] > 99_000, "{} {}", delays[0], delays[999]);
        let widest = delays.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert!(widest < Some(250), "{widest:?}");
        let again: Vec<u64> = (1..=8).map(|attempts| millis(&rules, attempts, 1)).collect();
        assert!(again.windows(2).any(|pair| pair[0] * 2 != pair[1]), "{again:?}");
    }
}
