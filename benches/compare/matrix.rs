//! The rows of the comparison.

use serde::Serialize;

use crate::failure::Failure;
use crate::options::Options;
use crate::servers::Kind;
use crate::transport::Transport;
use beanring_testkit::bench::logs::{Log, Sync};
use beanring_testkit::bench::machine::Machine;

/// Rows that are shown together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Group {
    Puts,
    Cycles,
    Tubes,
    LargeBodies,
    /// Large bodies by other ways than loopback.
    Transports,
    Delivery,
    Idle,
    /// With and without TLS, in turn.
    Tls,
    /// Connections that begin with a handshake and end.
    Handshakes,
    /// With a job log that is synced before each reply.
    Durable,
    /// With a job log that is synced later, or never.
    Logged,
    Restart,
    /// During compaction of the job log.
    Moving,
}

impl Group {
    /// All groups, in the order of the report.
    pub const ALL: [Group; 13] = [
        Group::Puts,
        Group::Cycles,
        Group::Tubes,
        Group::LargeBodies,
        Group::Transports,
        Group::Delivery,
        Group::Idle,
        Group::Tls,
        Group::Handshakes,
        Group::Durable,
        Group::Logged,
        Group::Restart,
        Group::Moving,
    ];

    /// Returns the heading.
    pub fn title(self) -> &'static str {
        match self {
            Group::Puts => "Put",
            Group::Cycles => "Cycle: put, reserve, delete",
            Group::Tubes => "Cycles on many tubes",
            Group::LargeBodies => "Bodies of 60,000 bytes",
            Group::Transports => "Bodies of 60,000 bytes over other transports",
            Group::Delivery => "Delivery latency at a fixed rate",
            Group::Idle => "Idle connections",
            Group::Tls => "TLS beside plaintext",
            Group::Handshakes => "TLS handshakes",
            Group::Durable => "Put with a job log, fsync before reply",
            Group::Logged => "Put with a job log, fsync later",
            Group::Restart => "Restart with a job log",
            Group::Moving => "Compaction of the job log",
        }
    }
}

/// The workload of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    Put,
    Cycle,
    Delivery,
    /// Connects, and leaves.
    Handshake,
    /// Connects with a ticket of an earlier connection, and leaves.
    Resume,
    /// Puts jobs into a server that is then stopped and started again.
    Restart,
}

/// When a measurement ends.
#[derive(Clone, Copy, Debug)]
enum Amount {
    /// After this number of operations.
    Count(u64),
    /// After this number of operations for each second of `--seconds`, so that every server stores the same amount.
    CountPerSecond(f64),
    /// After `--seconds`.
    Time,
}

/// A row of the comparison.
#[derive(Clone, Debug)]
pub struct Row {
    /// The name for `--only`.
    pub id: String,
    pub group: Group,
    pub work: Work,
    pub transport: Transport,
    pub connections: u32,
    pub depth: u32,
    pub body_bytes: u32,
    pub tubes: u32,
    /// Every job goes to a random tube, and every connection watches all tubes.
    pub tube_by_job: bool,
    /// Operations per second, started by schedule.
    pub rate: Option<u32>,
    pub idle: u32,
    pub log: Option<Log>,
    /// Clients speak TLS.
    pub tls: bool,
    /// Jobs that are put before the measurement.
    pub old_jobs: u32,
    /// Run only once for beanstalkd, which takes very long, and not at all with `--short`.
    pub long: bool,
    amount: Amount,
    short: bool,
}

/// Small puts: enough that no server is done in a moment, few enough for its memory.
const PUTS_PER_S: f64 = 150_000.0;
/// Pipelined puts are several times as fast.
const DEEP_PUTS_PER_S: f64 = 450_000.0;
const LARGE_BODY_BYTES: u32 = 60_000;
/// Large bodies: 0.3 GB for each second.
const LARGE_PUTS_PER_S: f64 = 5_000.0;
/// Operations of each connection where the slowest server needs seconds for one operation of each.
const LONG_OPERATIONS: u64 = 2;
/// A rate far below what every server can do.
const HAND_OVERS_PER_S: u32 = 10_000;
/// Puts with a job log that is synced later: beanstalkd does some 30,000 per second.
const LOGGED_PUTS_PER_S: f64 = 75_000.0;
/// Jobs in the job log of a restart.
const RESTART_JOBS: u64 = 1_000_000;
/// A modest rate: about 1.3 MB of records per second.
const MOVING_CYCLES_PER_S: u32 = 5000;
/// One and a half files of the size below, so that compaction runs whenever the load has written about as much.
const MOVING_JOBS: u32 = 2000;
const MOVING_FILE_BYTES: u32 = 256 * 1024;
/// How the names of two rows begin, one without TLS and one with it.
const CLEAR: &str = "clear-";
const TLS: &str = "tls-";

impl Row {
    fn new(id: impl Into<String>, group: Group, work: Work, connections: u32, depth: u32) -> Row {
        let amount = match (work, depth) {
            (Work::Put, ..4) => Amount::CountPerSecond(PUTS_PER_S),
            (Work::Put, _) => Amount::CountPerSecond(DEEP_PUTS_PER_S),
            _ => Amount::Time,
        };
        Row {
            id: id.into(),
            group,
            work,
            transport: Transport::Loopback,
            connections,
            depth,
            body_bytes: 64,
            tubes: 1,
            tube_by_job: false,
            rate: None,
            idle: 0,
            log: None,
            tls: false,
            old_jobs: 0,
            long: false,
            amount,
            short: false,
        }
    }

    fn short(self, short: bool) -> Row {
        Row { short, ..self }
    }

    /// Returns the title.
    pub fn title(&self) -> String {
        let Row { connections, depth, .. } = self;
        let what = match self.work {
            Work::Restart => return format!("{RESTART_JOBS} jobs{}", self.log_title()),
            Work::Put => "put",
            Work::Cycle => "cycle",
            Work::Delivery => "delivery",
            Work::Handshake => "handshake",
            Work::Resume => "resumption",
        };
        let mut title = format!("{what} {connections}×{depth}");
        if self.tube_by_job {
            title +=
                &format!(", {} {} at random", self.tubes, if self.tubes == 1 { "tube" } else { "tubes" });
        } else if self.group == Group::Tubes {
            title += if self.tubes == 1 { ", one tube" } else { ", a tube each" };
        }
        if let Some(rate) = self.rate {
            title += &format!(", {rate}/s");
        }
        if self.idle > 0 {
            title += &format!(", {} idle", self.idle);
        }
        if self.body_bytes == LARGE_BODY_BYTES {
            title += ", 60,000 bytes";
        }
        title += match self.transport {
            Transport::Loopback => "",
            Transport::Unix => ", UNIX socket",
            Transport::Veth => ", veth pair",
        };
        if self.group == Group::Tls {
            title += if self.tls { ", TLS" } else { ", plaintext" };
        }
        title + &self.log_title()
    }

    fn log_title(&self) -> String {
        self.log.map_or(String::new(), |log| format!(", {}", log.flags().join(" ")))
    }

    /// Returns whether `kind` can run the workload. beanstalkd and the no-op baseline have no TLS. beanstalkd-rs and Redis
    /// run over loopback only, and Redis has no tubes. The no-op baseline takes any tube name, as long as no connection
    /// watches all tubes, and delivers no jobs. Neither keeps a job log here. The cost of compaction is measured for our
    /// server only.
    pub fn suits(&self, kind: Kind) -> bool {
        match kind {
            Kind::Beanstalkd | Kind::Bare(_) if self.is_about_tls() => false,
            Kind::Beanstalkd if self.group == Group::Moving => false,
            Kind::BeanstalkdRs => {
                self.transport == Transport::Loopback && self.group != Group::Moving && !self.long
            }
            Kind::Bare(_) | Kind::Redis if self.log.is_some() => false,
            Kind::Ours(_) | Kind::Beanstalkd => true,
            Kind::Bare(_) => self.work != Work::Delivery && !self.tube_by_job,
            Kind::Redis if self.transport != Transport::Loopback => false,
            Kind::Redis => self.work != Work::Delivery && self.group != Group::Tubes,
        }
    }

    /// Returns whether this row and the next are compared, and so are measured in turn.
    pub fn is_beside(&self, next: &Row) -> bool {
        self.group == next.group && matches!(self.group, Group::Moving | Group::Tls)
    }

    /// Returns whether this row is the same load as `other`, which is over TLS, in plaintext.
    pub fn is_plaintext_of(&self, other: &Row) -> bool {
        let (name, of) = (self.id.strip_prefix(CLEAR), other.id.strip_prefix(TLS));
        name.is_some() && name == of
    }

    const fn is_about_tls(&self) -> bool {
        matches!(self.group, Group::Tls | Group::Handshakes)
    }

    /// Returns the arguments for `beanring-bench`.
    pub fn arguments(&self, kind: Kind, seconds: f64) -> Vec<String> {
        let workload = match (self.work, kind) {
            (Work::Put, Kind::Redis) => "redis-push",
            (Work::Cycle, Kind::Redis) => "redis-cycle",
            (Work::Put | Work::Restart, _) => "put",
            (Work::Cycle, _) => "cycle",
            (Work::Delivery, _) => "delivery",
            (Work::Handshake, _) => "handshake",
            (Work::Resume, _) => "resume",
        };
        let mut arguments = vec![workload.to_owned()];
        let mut push = |option: &str, value: String| arguments.extend([option.to_owned(), value]);
        push("-c", self.connections.to_string());
        push("-d", self.depth.to_string());
        push("-b", self.body_bytes.to_string());
        push("--tubes", self.tubes.to_string());
        push("--idle", self.idle.to_string());
        push("--timeout", "60s".to_owned());
        if let Some(rate) = self.rate {
            push("-r", rate.to_string());
        }
        if self.tube_by_job {
            push("--tube-by", "job".to_owned());
        }
        match self.amount {
            Amount::Time if self.connections > 1000 && kind == Kind::Beanstalkd => {
                push("-n", (LONG_OPERATIONS * u64::from(self.connections)).to_string());
            }
            Amount::Count(count) => push("-n", count.to_string()),
            Amount::CountPerSecond(rate) => push("-n", ((rate * seconds) as u64).to_string()),
            Amount::Time => {
                push("-t", seconds.to_string());
                push("--warm-up", if self.connections > 1000 { "1s" } else { "300ms" }.to_owned());
            }
        }
        // The server is stopped afterwards, with all its jobs.
        arguments.push("--no-cleanup".to_owned());
        arguments
    }

    /// Returns the arguments for `beanring-bench` that put jobs before the measurement, if there are any.
    pub fn preparing(&self) -> Option<Vec<String>> {
        let (jobs, body_bytes) = (self.old_jobs.to_string(), self.body_bytes.to_string());
        let arguments = ["put", "-c", "16", "-d", "32", "-n", &jobs, "-b", &body_bytes, "--no-cleanup"];
        (self.old_jobs > 0).then(|| arguments.map(str::to_owned).to_vec())
    }
}

/// A row in the JSON report.
#[derive(Serialize)]
pub struct RowFacts<'a> {
    id: &'a str,
    group: &'a str,
    title: String,
}

impl<'a> From<&'a Row> for RowFacts<'a> {
    fn from(row: &'a Row) -> RowFacts<'a> {
        RowFacts { id: &row.id, group: row.group.title(), title: row.title() }
    }
}

/// Returns the selected rows that fit the machine.
pub fn rows(options: &Options, machine: &Machine) -> Result<Vec<Row>, Failure> {
    let few = options.short || machine.pins.is_none();
    let wanted = |row: &Row| options.wants(&row.id) && (row.short || !few || !options.only.is_empty());
    let rows: Vec<Row> = all().into_iter().filter(wanted).collect();
    if rows.is_empty() { Err(Failure::NoRows) } else { Ok(rows) }
}

fn all() -> Vec<Row> {
    let mut rows = Vec::new();
    rows.extend([(64, true), (256, false)].map(|(connections, short)| {
        Row::new(format!("put-{connections}x1"), Group::Puts, Work::Put, connections, 1).short(short)
    }));
    rows.extend([1, 2, 4, 8, 16, 32, 64].map(|depth| {
        let row = Row::new(format!("put-16x{depth}"), Group::Puts, Work::Put, 16, depth);
        row.short(matches!(depth, 1 | 8 | 32))
    }));
    rows.push(Row::new("cycle-64x1", Group::Cycles, Work::Cycle, 64, 1).short(true));
    rows.extend([1, 4, 16].map(|depth| {
        let row = Row::new(format!("cycle-16x{depth}"), Group::Cycles, Work::Cycle, 16, depth);
        row.short(depth == 16)
    }));
    rows.extend([1, 10, 100, 1000, 10_000].map(|tubes| Row {
        tubes,
        tube_by_job: true,
        long: tubes > 1000,
        ..Row::new(format!("tubes-{tubes}"), Group::Tubes, Work::Cycle, 64, 1).short(tubes == 100)
    }));
    rows.push(Row::new("one-tube-64", Group::Tubes, Work::Cycle, 64, 1).short(true));
    rows.push(Row {
        tubes: 9000,
        long: true,
        ..Row::new("own-tubes-9000", Group::Tubes, Work::Cycle, 9000, 1).short(true)
    });
    rows.push(Row {
        body_bytes: LARGE_BODY_BYTES,
        amount: Amount::CountPerSecond(LARGE_PUTS_PER_S),
        ..Row::new("put-60000", Group::LargeBodies, Work::Put, 16, 8)
    });
    rows.extend(
        [
            ("cycle-60000", Group::LargeBodies, Transport::Loopback),
            ("cycle-60000-unix", Group::Transports, Transport::Unix),
            ("cycle-60000-veth", Group::Transports, Transport::Veth),
        ]
        .map(|(id, group, transport)| Row {
            body_bytes: LARGE_BODY_BYTES,
            transport,
            ..Row::new(id, group, Work::Cycle, 16, 8)
        }),
    );
    rows.push(Row {
        rate: Some(HAND_OVERS_PER_S),
        ..Row::new("delivery", Group::Delivery, Work::Delivery, 16, 1).short(true)
    });
    rows.push(Row {
        rate: Some(1000),
        idle: 10_000,
        ..Row::new("idle-10000", Group::Idle, Work::Cycle, 16, 1)
    });
    rows.extend(with_tls());
    rows.extend(with_a_log());
    rows
}

fn with_tls() -> Vec<Row> {
    let mut rows = Vec::new();
    for (prefix, tls) in [(CLEAR, false), (TLS, true)] {
        let row = |id: &str, work, connections, depth| Row {
            tls,
            ..Row::new(format!("{prefix}{id}"), Group::Tls, work, connections, depth)
        };
        rows.push(row("put-64x1", Work::Put, 64, 1).short(true));
        rows.push(row("put-16x32", Work::Put, 16, 32).short(true));
        rows.push(row("cycle-64x1", Work::Cycle, 64, 1));
        rows.push(Row { body_bytes: LARGE_BODY_BYTES, ..row("cycle-60000", Work::Cycle, 16, 8) });
        rows.push(Row { rate: Some(1000), idle: 9000, ..row("idle-9000", Work::Cycle, 16, 1) });
    }
    // Each row beside its partner.
    rows.sort_by_key(|row| row.id.split_once('-').map(|(_, rest)| rest.to_owned()));
    rows.extend([("handshake", Work::Handshake), ("resume", Work::Resume)].map(|(id, work)| Row {
        tls: true,
        amount: Amount::Time,
        ..Row::new(id, Group::Handshakes, work, 16, 1)
    }));
    rows
}

fn with_a_log() -> Vec<Row> {
    let log = |sync| Some(Log { sync, file_bytes: None });
    let mut rows = Vec::new();
    rows.extend([(64, 1), (16, 32), (1, 1)].map(|(connections, depth)| Row {
        log: log(Sync::Always),
        // beanstalkd waits for the disk so often that no count suits both servers.
        amount: Amount::Time,
        short: depth > 1,
        ..Row::new(format!("wal-f0-{connections}x{depth}"), Group::Durable, Work::Put, connections, depth)
    }));
    for (name, sync) in [("f50", Sync::Often), ("nosync", Sync::Never)] {
        rows.extend([(64, 1), (16, 32)].map(|(connections, depth)| Row {
            log: log(sync),
            amount: Amount::CountPerSecond(LOGGED_PUTS_PER_S),
            short: depth > 1 && sync == Sync::Often,
            ..Row::new(
                format!("wal-{name}-{connections}x{depth}"),
                Group::Logged,
                Work::Put,
                connections,
                depth,
            )
        }));
    }
    rows.push(Row {
        log: log(Sync::Never),
        amount: Amount::Count(RESTART_JOBS),
        ..Row::new("wal-restart", Group::Restart, Work::Restart, 16, 32)
    });
    // The first row never starts a compaction.
    rows.extend([("still", None), ("moving", Some(MOVING_FILE_BYTES))].map(|(name, file_bytes)| Row {
        log: Some(Log { sync: Sync::Often, file_bytes }),
        old_jobs: MOVING_JOBS,
        rate: Some(MOVING_CYCLES_PER_S),
        ..Row::new(format!("wal-{name}"), Group::Moving, Work::Cycle, 8, 1)
    }));
    rows
}
