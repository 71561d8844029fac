//! The project's targets, and how they were met. A target that is missed is a line of a table, no failure:
//! machines differ.

use serde::Serialize;

use crate::measure::{Metric, Outcome};
use crate::servers::{Driver, Kind, Peers};

/// One side of a ratio.
#[derive(Clone, Copy)]
enum Side {
    Ours,
    Bare,
    Beanstalkd,
    Redis,
}

/// A target: the ratio of two figures, and what it may be at most.
struct Bound {
    driver: Driver,
    row: &'static str,
    metric: Metric,
    to: (Side, &'static str, Metric),
    of: &'static str,
    at_most: f64,
}

/// A target with what was measured.
#[derive(Serialize)]
pub struct Verdict {
    pub driver: &'static str,
    pub row: String,
    pub of: &'static str,
    pub at_most: f64,
    /// None where a side was not measured.
    pub measured: Option<f64>,
}

fn cpu(figures: &crate::measure::Figures) -> f64 {
    figures.server.cpu_us_per_operation
}

/// Ours to the same row of another.
const fn other(driver: Driver, row: &'static str, side: Side, at_most: f64) -> Bound {
    let of = match side {
        Side::Ours => "CPU to its own",
        Side::Bare => "CPU to the bare loop",
        Side::Beanstalkd => "CPU to beanstalkd",
        Side::Redis => "CPU to redis",
    };
    Bound { driver, row, metric: cpu, to: (side, row, cpu), of, at_most }
}

/// Many connections on as many tubes, to a few on one: for every driver that is meant for them.
const fn many(driver: Driver) -> [Bound; 2] {
    const ROW: &str = "own-tubes-9000";
    let few = (Side::Ours, "one-tube-64", cpu as Metric);
    let median = (Side::Ours, ROW, (|figures| figures.latency_us.p50) as Metric);
    [
        Bound {
            driver,
            row: ROW,
            metric: cpu,
            to: few,
            of: "CPU to 64 connections on one tube",
            at_most: 1.5,
        },
        Bound {
            driver,
            row: ROW,
            metric: |figures| figures.latency_us.max,
            to: median,
            of: "slowest reply to the median",
            at_most: 50.0,
        },
    ]
}

fn all() -> Vec<Bound> {
    use Driver::{Epoll, Uring};
    let mut bounds = vec![
        other(Epoll, "put-64x1", Side::Bare, 1.10),
        other(Epoll, "put-64x1", Side::Beanstalkd, 0.75),
        other(Epoll, "put-16x32", Side::Bare, 2.0),
        other(Epoll, "put-16x32", Side::Beanstalkd, 1.0 / 20.0),
        other(Epoll, "put-16x32", Side::Redis, 1.0),
        other(Epoll, "cycle-64x1", Side::Beanstalkd, 0.75),
        other(Epoll, "cycle-16x16", Side::Beanstalkd, 1.0 / 15.0),
    ];
    bounds.extend(many(Epoll));
    bounds.extend([
        other(Uring, "put-64x1", Side::Bare, 1.08),
        other(Uring, "put-64x1", Side::Beanstalkd, 0.70),
        other(Uring, "put-256x1", Side::Bare, 1.08),
        other(Uring, "put-256x1", Side::Beanstalkd, 0.70),
        other(Uring, "put-16x32", Side::Bare, 2.0),
        other(Uring, "put-16x32", Side::Beanstalkd, 1.0 / 22.0),
        other(Uring, "put-16x32", Side::Redis, 0.5),
        other(Uring, "put-60000", Side::Beanstalkd, 0.1),
        other(Uring, "cycle-60000", Side::Beanstalkd, 0.2),
    ]);
    bounds.extend(many(Uring));
    bounds
}

/// The targets of the drivers that were run, in rows that were.
pub fn verdicts(peers: &Peers, outcomes: &[Outcome]) -> Vec<Verdict> {
    let find = |id: &str| outcomes.iter().find(|outcome| outcome.row.id == id);
    let judge = |bound: Bound| {
        let ours = Kind::Ours(bound.driver);
        let outcome = find(bound.row).filter(|_| peers.kinds.contains(&ours))?;
        let (side, to_row, to_metric) = bound.to;
        let to_kind = match side {
            Side::Ours => ours,
            Side::Bare => Kind::Bare(bound.driver),
            Side::Beanstalkd => Kind::Beanstalkd,
            Side::Redis => Kind::Redis,
        };
        let figure = outcome.median(ours, bound.metric);
        let base = find(to_row).and_then(|outcome| outcome.median(to_kind, to_metric));
        Some(Verdict {
            driver: bound.driver.name(),
            row: bound.row.to_owned(),
            of: bound.of,
            at_most: bound.at_most,
            measured: figure.zip(base).map(|(figure, base)| figure / base),
        })
    };
    all().into_iter().filter_map(judge).collect()
}
