//! The values of a job log in a database. Shown only with `--replicate`.

use super::{Catalog, Value, counter, gauge};
use crate::server::ForwardCounts;
use crate::server::replica::ReplicaState;

pub(super) fn replica(state: &ReplicaState<'_>, catalog: &mut Catalog<'_>) {
    let leading = gauge("replication_leader", "1 while this server leads, else 0.");
    catalog.key("replication-role", Value::Word(state.role()));
    catalog.metric(leading, state.is_leader);
    let epoch = gauge("replication_epoch", "Number of the leader's term that this server knows.");
    catalog.both("replication-epoch", epoch, state.epoch.0);
    let lease =
        gauge("replication_lease_seconds", "Time until the lease of this leader ends; 0 for a standby.");
    catalog.both("replication-lease", lease, state.lease);
    let lag =
        gauge("replication_lag_seconds", "Time since this standby has last seen the end of the job log.");
    catalog.both("replication-lag", lag, state.lag);
    let positions = gauge(
        "replication_lag_positions",
        "Number of chunks of the job log that this standby had not applied when it last read.",
    );
    catalog.both("replication-lag-positions", positions, state.lag_positions);
    let in_flight = gauge("replication_appends_in_flight", "Number of appends that are not acknowledged.");
    catalog.both("replication-appends-in-flight", in_flight, state.appends_in_flight as u64);
    let local =
        gauge("replication_unreplicated", "1 while commits of this leader wait for no standby, else 0.");
    catalog.both("replication-unreplicated", local, state.hazards.is_local);
    let read_only = gauge(
        "replication_read_only_role",
        "1 while default_transaction_read_only is set for the role of this leader, else 0.",
    );
    catalog.both("replication-read-only-role", read_only, state.hazards.is_read_only);
    let damaged = gauge("replication_damaged", "1 while this standby cannot follow the job log, else 0.");
    catalog.both("replication-damaged", damaged, state.damage.is_some());
    let takeovers = counter("replication_takeovers_total", "Number of times that this server began to lead.");
    catalog.both("replication-takeovers", takeovers, state.counts.takeovers);
    let fences = counter(
        "replication_fences_total",
        "Number of times that the term of this process ended because another server led or the job log was changed.",
    );
    catalog.both("replication-fences", fences, state.counts.fences);
    let restarts = counter(
        "replication_restarts_total",
        "Number of times that this standby read the job log again from its beginning.",
    );
    catalog.both("replication-restarts", restarts, state.counts.restarts);
    if let Some(counts) = state.forwarded {
        forwarded(counts, catalog);
    }
}

/// Shown only without `--no-forward`.
fn forwarded(counts: &ForwardCounts, catalog: &mut Catalog<'_>) {
    let open = gauge(
        "replication_forwarded_connections",
        "Number of client connections that are forwarded or wait for a leader.",
    );
    catalog.both("current-forwarded-connections", open, counts.open.get());
    let waiting = gauge(
        "replication_forwarded_waiting_connections",
        "Number of client connections that wait for a leader.",
    );
    catalog.both("current-forwarded-waiting", waiting, counts.waiting.get());
    let total = counter(
        "replication_forwarded_connections_total",
        "Number of connections made to a leader for a client.",
    );
    catalog.both("forwarded-connections", total, counts.total.get());
    let refused = counter(
        "replication_forwarded_refusals_total",
        "Number of client connections closed because too many were open or waited, or because they waited too long.",
    );
    catalog.both("forwarded-refusals", refused, counts.refused.get());
    let lost = counter(
        "replication_forwarded_lost_clients_total",
        "Number of client connections closed because the machine of the client did not answer (--tcp-keepalive).",
    );
    catalog.both("forwarded-lost-clients", lost, counts.lost.get());
    let bytes = counter("replication_forwarded_bytes_total", "Number of bytes passed on, by direction.");
    let to_leader = bytes.label("direction", "to_leader");
    catalog.both("forwarded-to-leader-bytes", to_leader, counts.to_leader.get());
    let to_clients = bytes.label("direction", "to_clients");
    catalog.both("forwarded-to-clients-bytes", to_clients, counts.to_clients.get());
}

#[cfg(test)]
mod tests {
    use super::super::{Entry, MetricKind};
    use super::*;

    #[test]
    fn docs_metrics_has_a_row_for_each_value() {
        let page = include_str!("../../../docs/METRICS.md");
        let forwarded = ForwardCounts::default();
        let state = ReplicaState { forwarded: Some(&forwarded), ..ReplicaState::default() };
        let mut shown = vec!["| `beanring_replication_append_seconds` | histogram | | |".to_owned()];
        let mut visit = |Entry { key, metric }: Entry<'_>, _: Value<'_>| {
            let Some(metric) = metric else { return };
            let kind = if metric.kind == MetricKind::Counter { "counter" } else { "gauge" };
            let [(label, value), _] = metric.labels;
            let key = key.map(|key| match label {
                "" => key.to_owned(),
                _ => key.replace(&value.replace('_', "-"), &label.to_uppercase()),
            });
            let cells = [
                format!("`beanring_{}`", metric.name),
                kind.to_owned(),
                if label.is_empty() { String::new() } else { format!("`{label}`") },
                key.map(|key| format!("`{key}`")).unwrap_or_default(),
            ];
            let row = cells.iter().fold("|".to_owned(), |row, cell| match &**cell {
                "" => row + " |",
                cell => row + &format!(" {cell} |"),
            });
            shown.push(row);
        };
        replica(&state, &mut Catalog { visit: &mut visit });
        shown.sort();
        shown.dedup();
        let rows = page.lines().filter(|line| line.starts_with("| `beanring_replication_"));
        let mut rows: Vec<String> = rows
            .map(|line| line.splitn(6, '|').take(5).map(|cell| format!("{cell}|")).collect::<String>())
            .collect();
        rows.sort();
        assert_eq!(shown, rows);
    }
}
