//! What the API shows of a tube.

use super::object::Object;
use crate::queue::{LatencyKind, RuleCounts, TubeStats};
use crate::server::Core;
use crate::time::{Span, Time};
use crate::values::ids::TubeKey;
use crate::values::tube_rules::RuleValue;

/// A tube in the list.
pub(super) fn listed_tube(core: &Core, key: TubeKey, now: Time, object: &mut Object<'_>) {
    let stats = core.engine.tube_stats(key, now);
    object.member("name", stats.name.as_str());
    object.member("ready", stats.ready);
    object.member("reserved", stats.reserved);
    object.member("delayed", stats.delayed);
    object.member("buried", stats.buried);
    object.member("held", stats.held);
    object.member("urgent", stats.urgent);
    object.member("waiting", core.engine.tube_waiting(key));
    object.member("watching", stats.watching);
    object.member("using", stats.using);
    object.member("puts", stats.total_jobs);
    object.member("deletes", stats.deletes);
    object.member("timeouts", stats.timeouts);
    object.member("paused_seconds", core.config.shown_rounded_up(stats.pause_left));
    object.member("oldest_ready_seconds", (stats.ready > 0).then(|| stats.oldest_ready.as_secs()));
}

/// A tube by itself.
pub(super) fn tube(core: &Core, key: TubeKey, now: Time, object: &mut Object<'_>) {
    listed_tube(core, key, now, object);
    let TubeStats { name, pause, pauses, buries, .. } = core.engine.tube_stats(key, now);
    object.member("pause_seconds", core.config.shown(pause));
    object.member("pauses", pauses);
    object.member("buries", buries);
    object.object("percentiles", |object| {
        let kinds = [("queue_time", LatencyKind::Queue), ("reserved_time", LatencyKind::Reserved)];
        // Bounded by the two kinds of times.
        for (name, kind) in kinds {
            object.object(name, |object| {
                let times = core.engine.tube_times(key, kind, now);
                let seconds = |span: Span| span.as_nanos() as f64 / 1e9;
                object.member("p50_seconds", seconds(times.p50));
                object.member("p95_seconds", seconds(times.p95));
                object.member("p99_seconds", seconds(times.p99));
            });
        }
    });
    if let Some((rules, _)) = core.engine.rules_of(name) {
        object.object("rules", |object| {
            // Bounded by RuleKey::COUNT: the rules of one tube.
            for (key, value) in rules.iter() {
                match value {
                    RuleValue::None => {}
                    RuleValue::Number(number) => object.member(key.word(), key.shown(number)),
                    RuleValue::Tube(tube) => object.member(key.word(), tube.as_str()),
                }
            }
        });
    }
    if let Some(counts) = core.engine.rule_counts(key) {
        rule_counts(counts, object);
    }
}

/// What the rules of a tube, or of all tubes, have done.
pub(super) fn rule_counts(counts: RuleCounts, object: &mut Object<'_>) {
    let RuleCounts { refusals, dead_letters, retries, expiries, rate_waits } = counts;
    object.object("rule_counts", |object| {
        object.member("refusals", refusals);
        object.member("dead_letters", dead_letters);
        object.member("retries", retries);
        object.member("expiries", expiries);
        object.member("rate_waits", rate_waits);
    });
}
