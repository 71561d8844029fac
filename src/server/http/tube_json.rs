//! What the API shows of a tube.

use serde::{Serialize, Serializer};

use crate::queue::{LatencyKind, Percentiles, RuleCounts, TubeStats};
use crate::server::Core;
use crate::time::{Seconds, Span, Time};
use crate::values::ids::TubeKey;
use crate::values::tube_rules::{RuleNumber, RuleValue, TubeRules};

/// A tube in the list.
#[derive(Serialize)]
pub(super) struct TubeJson<'a> {
    name: &'a str,
    ready: usize,
    reserved: u32,
    delayed: usize,
    buried: usize,
    held: usize,
    urgent: u32,
    waiting: usize,
    watching: u32,
    using: u32,
    puts: u64,
    deletes: u64,
    timeouts: u64,
    paused_seconds: Seconds,
    oldest_ready_seconds: Option<u64>,
}

/// A tube by itself.
#[derive(Serialize)]
pub(super) struct TubeDetailJson<'a> {
    #[serde(flatten)]
    tube: TubeJson<'a>,
    pause_seconds: Seconds,
    pauses: u64,
    buries: u64,
    percentiles: PercentilesJson,
    /// Of a tube with rules.
    #[serde(skip_serializing_if = "Option::is_none")]
    rules: Option<RulesJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule_counts: Option<RuleCountsJson>,
}

/// Counts of what the rules of a tube, or of all tubes, have done.
#[derive(Serialize)]
pub(super) struct RuleCountsJson {
    refusals: u64,
    dead_letters: u64,
    retries: u64,
    expiries: u64,
    rate_waits: u64,
}

/// The rules that are set, by the words of `tube-config`.
struct RulesJson<'a>(&'a TubeRules);

/// A number, or the name of a tube.
#[derive(Serialize)]
#[serde(untagged)]
enum RuleJson<'a> {
    Number(RuleNumber),
    Tube(&'a str),
}

#[derive(Serialize)]
struct PercentilesJson {
    queue_time: TimesJson,
    reserved_time: TimesJson,
}

#[derive(Serialize)]
struct TimesJson {
    p50_seconds: f64,
    p95_seconds: f64,
    p99_seconds: f64,
}

impl<'a> TubeJson<'a> {
    pub fn of(core: &'a Core, key: TubeKey, now: Time) -> Self {
        let TubeStats {
            name,
            urgent,
            ready,
            reserved,
            delayed,
            buried,
            held,
            total_jobs,
            using,
            watching,
            deletes,
            timeouts,
            pause_left,
            oldest_ready,
            ..
        } = core.engine.tube_stats(key, now);
        Self {
            name: name.as_str(),
            ready,
            reserved,
            delayed,
            buried,
            held,
            urgent,
            waiting: core.engine.tube_waiting(key),
            watching,
            using,
            puts: total_jobs,
            deletes,
            timeouts,
            paused_seconds: core.config.shown_rounded_up(pause_left),
            oldest_ready_seconds: (ready > 0).then(|| oldest_ready.as_secs()),
        }
    }
}

impl<'a> TubeDetailJson<'a> {
    pub fn of(core: &'a Core, key: TubeKey, now: Time) -> Self {
        let stats = core.engine.tube_stats(key, now);
        let times = |kind| TimesJson::of(&core.engine.tube_times(key, kind, now));
        Self {
            tube: TubeJson::of(core, key, now),
            pause_seconds: core.config.shown(stats.pause),
            pauses: stats.pauses,
            buries: stats.buries,
            percentiles: PercentilesJson {
                queue_time: times(LatencyKind::Queue),
                reserved_time: times(LatencyKind::Reserved),
            },
            rules: core.engine.rules_of(stats.name).map(|(rules, _)| RulesJson(rules)),
            rule_counts: core.engine.rule_counts(key).map(RuleCountsJson::from),
        }
    }
}

impl From<RuleCounts> for RuleCountsJson {
    fn from(counts: RuleCounts) -> Self {
        let RuleCounts { refusals, dead_letters, retries, expiries, rate_waits } = counts;
        Self { refusals, dead_letters, retries, expiries, rate_waits }
    }
}

impl Serialize for RulesJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Bounded by RuleKey::COUNT: the rules of one tube.
        serializer.collect_map(self.0.iter().filter_map(|(key, value)| {
            let value = match value {
                RuleValue::None => return None,
                RuleValue::Number(number) => RuleJson::Number(key.shown(number)),
                RuleValue::Tube(tube) => RuleJson::Tube(tube.as_str()),
            };
            Some((key.word(), value))
        }))
    }
}

impl TimesJson {
    fn of(times: &Percentiles) -> Self {
        let seconds = |span: Span| span.as_nanos() as f64 / 1e9;
        Self {
            p50_seconds: seconds(times.p50),
            p95_seconds: seconds(times.p95),
            p99_seconds: seconds(times.p99),
        }
    }
}
