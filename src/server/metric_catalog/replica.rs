//! The values of a job log in a database. Shown only with `--replicate`.

use super::{Catalog, Value, counter, gauge};
use crate::server::ReplicaState;
use crate::time::Time;

pub(super) fn replica(state: &ReplicaState<'_>, now: Time, catalog: &mut Catalog<'_>) {
    let leading = gauge("replication_leader", "1 while this server leads, else 0.");
    let role = if state.is_leader { "leader" } else { "standby" };
    catalog.key("replication-role", Value::Word(role));
    catalog.metric(leading, state.is_leader);
    let epoch = gauge("replication_epoch", "The number of the leader's term that this server knows.");
    catalog.both("replication-epoch", epoch, state.epoch.0);
    let lease =
        gauge("replication_lease_seconds", "Time until the lease of this leader ends; 0 for a standby.");
    catalog.both(
        "replication-lease",
        lease,
        state.lease_end.map_or(crate::time::Span::ZERO, |end| end.since(now)),
    );
    let lag =
        gauge("replication_lag_seconds", "Time since this standby has last seen the end of the job log.");
    catalog.both("replication-lag", lag, state.lag);
    let in_flight = gauge("replication_appends_in_flight", "Number of appends that are not acknowledged.");
    catalog.both("replication-appends-in-flight", in_flight, state.appends_in_flight as u64);
    let damaged = gauge("replication_damaged", "1 while this standby cannot follow the job log, else 0.");
    catalog.both("replication-damaged", damaged, state.damage.is_some());
    let takeovers = counter("replication_takeovers_total", "Number of times that this server began to lead.");
    catalog.both("replication-takeovers", takeovers, state.counts.takeovers);
    let restarts = counter(
        "replication_restarts_total",
        "Number of times that this standby read the job log again from its beginning.",
    );
    catalog.both("replication-restarts", restarts, state.counts.restarts);
}
