//! The project's targets, and whether they were met. A missed target is a line of a table and no failure, since
//! machines differ.

use clap::ValueEnum;
use serde::Serialize;

use crate::measure::{Metric, Outcome, bytes_per_job, cpu, rate, restart_ms};
use crate::servers::{Kind, Peers};
use beanring_testkit::bench::process::Driver;
use beanring_testkit::bench::table::{ratio, rounded};

/// The other side of a ratio.
#[derive(Clone, Copy)]
enum Side {
    Ours,
    Bare,
    Beanstalkd,
    Redis,
}

impl Side {
    /// Returns the server of this side, for a target of `driver`.
    fn of(self, driver: Driver) -> Kind {
        match self {
            Side::Ours => Kind::Ours(driver),
            Side::Bare => Kind::Bare(driver),
            Side::Beanstalkd => Kind::Beanstalkd,
            Side::Redis => Kind::Redis,
        }
    }
}

/// How two results must relate.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Maximum of their ratio.
    AtMost(f64),
    /// Minimum of their ratio.
    AtLeast(f64),
    /// Maximum of their difference.
    MoreUs(f64),
    /// Maximum of the result itself.
    Bytes(f64),
}

impl Limit {
    /// Relates one result to another.
    fn measure(self, figure: f64, base: f64) -> f64 {
        match self {
            Limit::AtMost(_) | Limit::AtLeast(_) => figure / base,
            Limit::MoreUs(_) => figure - base,
            Limit::Bytes(_) => figure,
        }
    }

    /// Returns whether the relation is within the limit.
    pub fn is_met(self, measured: f64) -> bool {
        match self {
            Limit::AtMost(most) | Limit::MoreUs(most) | Limit::Bytes(most) => measured <= most,
            Limit::AtLeast(least) => measured >= least,
        }
    }

    /// Renders the relation.
    pub fn show(self, measured: f64) -> String {
        match self {
            Limit::AtMost(_) | Limit::AtLeast(_) => ratio(measured),
            Limit::MoreUs(_) => format!("{measured:+.0} µs"),
            Limit::Bytes(_) => format!("{measured:.0} bytes"),
        }
    }

    /// Renders the limit.
    pub fn title(self) -> String {
        match self {
            Limit::AtMost(most) => format!("≤ {}", ratio(most)),
            Limit::AtLeast(least) => format!("≥ {}x", rounded(least)),
            Limit::MoreUs(most) => format!("≤ {most:+.0} µs"),
            Limit::Bytes(most) => format!("≤ {most:.0} bytes"),
        }
    }
}

/// What a result is compared with.
#[derive(Clone, Copy)]
enum Base {
    /// A result of a server in a row.
    Result(Side, &'static str, Metric),
    /// How much the cost of the no-op baseline has grown since this row. Our own growth is compared with it.
    GrowthOfBare(&'static str),
}

/// A target: two results and how they must relate.
struct Bound {
    driver: Driver,
    row: &'static str,
    metric: Metric,
    base: Base,
    of: &'static str,
    limit: Limit,
}

/// A target and its measurement.
#[derive(Serialize)]
pub struct Verdict {
    pub driver: &'static str,
    pub row: String,
    pub of: &'static str,
    #[serde(flatten)]
    pub limit: Limit,
    /// None if a side was not measured.
    pub measured: Option<f64>,
}

/// Compares our server with another one in the same row.
const fn other(driver: Driver, row: &'static str, side: Side, at_most: f64) -> Bound {
    let of = match side {
        Side::Ours => "CPU, relative to its own",
        Side::Bare => "CPU, relative to the no-op baseline",
        Side::Beanstalkd => "CPU, relative to beanstalkd",
        Side::Redis => "CPU, relative to redis",
    };
    Bound { driver, row, metric: cpu, base: Base::Result(side, row, cpu), of, limit: Limit::AtMost(at_most) }
}

/// Limits the resident memory per job, in bytes.
const fn small(driver: Driver, row: &'static str, at_most: f64) -> Bound {
    Bound {
        driver,
        row,
        metric: bytes_per_job,
        base: Base::Result(Side::Ours, row, bytes_per_job),
        of: "resident memory per job",
        limit: Limit::Bytes(at_most),
    }
}

/// Compares our operations per second with beanstalkd's.
const fn faster(driver: Driver, row: &'static str, at_least: f64) -> Bound {
    Bound {
        driver,
        row,
        metric: rate,
        base: Base::Result(Side::Beanstalkd, row, rate),
        of: "puts per second, relative to beanstalkd",
        limit: Limit::AtLeast(at_least),
    }
}

/// Limits the CPU time of puts over TLS, relative to plaintext.
const fn over_tls(driver: Driver) -> [Bound; 2] {
    const fn bound(driver: Driver, row: &'static str, plaintext: &'static str, at_most: f64) -> Bound {
        Bound {
            driver,
            row,
            metric: cpu,
            base: Base::Result(Side::Ours, plaintext, cpu),
            of: "CPU, relative to plaintext",
            limit: Limit::AtMost(at_most),
        }
    }
    [
        bound(driver, "tls-put-64x1", "clear-put-64x1", 1.25),
        bound(driver, "tls-put-16x32", "clear-put-16x32", 1.5),
    ]
}

/// Compares many connections on as many tubes with few connections on one, for every driver that is made for them.
const fn many(driver: Driver) -> [Bound; 2] {
    const ROW: &str = "own-tubes-9000";
    [
        Bound {
            driver,
            row: ROW,
            metric: cpu,
            base: Base::GrowthOfBare("one-tube-64"),
            of: "growth of CPU from 64 connections on one tube, relative to that of the no-op baseline",
            limit: Limit::AtMost(1.05),
        },
        Bound {
            driver,
            row: ROW,
            metric: |figures| figures.latency_us.max,
            base: Base::Result(Side::Ours, ROW, |figures| figures.latency_us.p50),
            of: "slowest reply, relative to the median",
            limit: Limit::AtMost(2.0),
        },
    ]
}

/// Targets for the job log.
const fn logged(driver: Driver) -> [Bound; 9] {
    const RESTART: &str = "wal-restart";
    // Rows that have not run as intended cannot be compared.
    let moving: Metric = |figures| match figures.moved_records {
        Some(1.0..) => figures.latency_us.p999,
        _ => f64::NAN,
    };
    let still: Metric = |figures| match figures.moved_records {
        Some(0.0) => figures.latency_us.p999,
        _ => f64::NAN,
    };
    [
        faster(driver, "wal-f0-64x1", 20.0),
        faster(driver, "wal-f0-16x32", 100.0),
        faster(driver, "wal-f0-1x1", if matches!(driver, Driver::Uring) { 1.1 } else { 1.0 }),
        other(driver, "wal-f50-64x1", Side::Beanstalkd, 0.6),
        other(driver, "wal-f50-16x32", Side::Beanstalkd, 1.0 / 12.0),
        other(driver, "wal-nosync-64x1", Side::Beanstalkd, 0.6),
        other(driver, "wal-nosync-16x32", Side::Beanstalkd, 1.0 / 12.0),
        Bound {
            driver,
            row: RESTART,
            metric: restart_ms,
            base: Base::Result(Side::Beanstalkd, RESTART, restart_ms),
            of: "time to first reply, relative to beanstalkd",
            limit: Limit::AtMost(0.25),
        },
        Bound {
            driver,
            row: "wal-moving",
            metric: moving,
            base: Base::Result(Side::Ours, "wal-still", still),
            of: "p99.9, compared with no compaction",
            limit: Limit::MoreUs(1000.0),
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
        small(Epoll, "put-16x32", 128.0),
        other(Epoll, "cycle-64x1", Side::Beanstalkd, 0.75),
        other(Epoll, "cycle-16x16", Side::Beanstalkd, 1.0 / 15.0),
    ];
    bounds.extend(many(Epoll));
    bounds.extend(over_tls(Epoll));
    bounds.extend([
        other(Uring, "put-64x1", Side::Bare, 1.08),
        other(Uring, "put-64x1", Side::Beanstalkd, 0.70),
        other(Uring, "put-256x1", Side::Bare, 1.08),
        other(Uring, "put-256x1", Side::Beanstalkd, 0.70),
        other(Uring, "put-16x32", Side::Bare, 1.3),
        other(Uring, "put-16x32", Side::Beanstalkd, 1.0 / 22.0),
        other(Uring, "put-16x32", Side::Redis, 0.5),
        small(Uring, "put-16x32", 128.0),
        other(Uring, "cycle-16x16", Side::Beanstalkd, 1.0 / 20.0),
        other(Uring, "put-60000", Side::Beanstalkd, 0.75),
        other(Uring, "cycle-60000", Side::Bare, 1.05),
        other(Uring, "cycle-60000-unix", Side::Bare, 1.05),
        other(Uring, "cycle-60000-veth", Side::Bare, 1.05),
    ]);
    bounds.extend(many(Uring));
    bounds.extend(over_tls(Uring));
    bounds.extend(Driver::value_variants().iter().flat_map(|&driver| logged(driver)));
    bounds
}

/// Returns the targets of the drivers and rows that were run.
pub fn verdicts(peers: &Peers, outcomes: &[Outcome]) -> Vec<Verdict> {
    let find = |id: &str| outcomes.iter().find(|outcome| outcome.row.id == id);
    let median = |row: &str, kind, metric| find(row).and_then(|outcome| outcome.median(kind, metric));
    let judge = |bound: Bound| {
        let (ours, bare) = (Kind::Ours(bound.driver), Kind::Bare(bound.driver));
        find(bound.row).filter(|_| peers.kinds.contains(&ours))?;
        let figure = median(bound.row, ours, bound.metric);
        let (figure, base) = match bound.base {
            Base::Result(side, row, metric) => (figure, median(row, side.of(bound.driver), metric)),
            Base::GrowthOfBare(from) => {
                let growth =
                    |kind| Some(median(bound.row, kind, bound.metric)? / median(from, kind, bound.metric)?);
                (growth(ours), growth(bare))
            }
        };
        Some(Verdict {
            driver: bound.driver.name(),
            row: bound.row.to_owned(),
            of: bound.of,
            limit: bound.limit,
            measured: figure.zip(base).map(|(figure, base)| bound.limit.measure(figure, base)),
        })
    };
    all().into_iter().filter_map(judge).collect()
}
