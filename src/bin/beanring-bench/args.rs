//! The command line: raw options, and the checked plan made of them.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use beanring::io::driver::Choice;
use clap::{Args as Options, Parser, Subcommand, ValueEnum};

use crate::body::STAMP_BYTES;
use crate::compare::Comparison;
use crate::failure::Failure;

/// The most rounds of a workload. Their comparison takes the fourth power of this.
pub const ROUNDS_MAX: u32 = 100;

/// Upper bound of the server's memory per job besides the body, for `--queue-max`.
const JOB_OVERHEAD_BYTES: u64 = 320;

const ABOUT: &str = "Loads a beanstalk server and measures it.

Workloads: what one operation is, and which latency is measured
  put         one put, from its write until INSERTED is read. The jobs stay in
              the server until the end (see --queue-max).
  cycle       one put, reserve and delete of a job on one connection, each after
              the reply to the one before; from the write of the put until
              DELETED is read. A connection has --depth cycles in flight.
  delivery    one job from a producer to a consumer; from the write of its put
              until the consumer has read its body. A consumer reserves one job
              at a time, and sends its delete and the next reserve together.
              Closed loop: a producer has at most --depth jobs in flight.
  fill-drain  --count jobs (default 100000) are put, then reserved and deleted.
              It has two rows: one put is an operation of the first, one reserve
              and delete of the second.
  handshake, resume
              to measure TLS (--tls): one connection, its handshake, and a quit,
              until the server has closed it. With resume, all but the first
              connections resume a session.
  redis-push, redis-cycle
              to compare with redis: one LPUSH; one LPUSH and BRPOP.
Commands are counted too: a cycle or a delivery is 3, a drain 2, a put 1. With
--tube-by job, a put has a use before it and is 2.";

const NOTES: &str = "\
Latency in an open loop (--rate) counts from the scheduled time of an operation,
so it includes the wait for a slow server. Percentiles are accurate to 0.1 %.
CPU times are those of the server and of the generator during the measured
operations. The server's total is exact to a scheduler tick. Its parts in user
mode and in the kernel are only in the JSON (/proc/PID/stat) and come in ticks
of 10 ms: measure for some seconds.

Every reply is checked, and so are length and content of every body. Wrong
replies are counted as errors, and the first is shown. If the server is missing,
closes a connection or sends nonsense, the run ends with one line and no
results.

The generator uses tubes of its own (beanring-bench.*). At the end it reserves
and deletes the jobs that are left in them, and unlinks its redis lists. After a
failure, or with --no-cleanup, they stay.

Exit code: 0 success, 1 errors or failure, 2 invalid options, 130 interrupted by
Ctrl-C or SIGTERM (the results so far are shown; a second signal ends the run at
once).";

/// The command line.
#[derive(Parser, Debug)]
#[command(name = "beanring-bench", version, about = ABOUT, after_help = NOTES)]
#[command(
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true,
    subcommand_value_name = "COMMAND"
)]
pub struct CommandLine {
    /// The load.
    #[command(flatten)]
    pub load: Args,
    /// Something other than a load.
    #[command(subcommand)]
    pub tool: Option<Tool>,
}

/// What else the program does.
#[derive(Subcommand, Debug)]
pub enum Tool {
    /// Tell whether two files of --json differ by more than chance explains
    Compare(Comparison),
}

/// The raw options of a load.
#[derive(Options, Clone, Debug)]
pub struct Args {
    /// Workloads, one after the other
    #[arg(value_enum, hide_possible_values = true, default_values = ["put", "cycle"])]
    pub workloads: Vec<Workload>,
    /// HOST:PORT or unix:PATH [default: 127.0.0.1:11300, redis 127.0.0.1:6379]
    #[arg(short, long)]
    pub addr: Option<String>,
    /// Speak TLS; the default port is 11400
    #[arg(long)]
    pub tls: bool,
    /// Trust this CA instead of those of the system (PEM)
    #[arg(long, value_name = "FILE", requires = "tls")]
    pub tls_ca: Option<PathBuf>,
    /// Name in the server's certificate, if it differs from the host
    #[arg(long, value_name = "NAME", requires = "tls")]
    pub tls_name: Option<String>,
    /// Connections, or producers of delivery
    #[arg(short, long, default_value_t = 16, value_parser = number::<u32>(1..=100_000), value_name = "NUMBER")]
    pub connections: u32,
    /// Consumers of delivery [default: as many as producers]
    #[arg(long, value_parser = number::<u32>(1..=100_000), value_name = "NUMBER")]
    pub consumers: Option<u32>,
    /// Operations in flight on each connection
    #[arg(short, long, default_value_t = 1, value_parser = number::<u32>(1..=65_536), value_name = "NUMBER")]
    pub depth: u32,
    /// Bytes of a job's body
    #[arg(short, long, default_value_t = 64, value_parser = number::<u32>(0..=0x4000_0000), value_name = "BYTES")]
    pub body: u32,
    /// Operations to measure
    #[arg(short = 'n', long, conflicts_with = "duration", value_parser = number(1..=u64::MAX), value_name = "NUMBER")]
    pub count: Option<u64>,
    /// Time to measure, such as 10s or 500ms [default: 5s]
    #[arg(short = 't', long, value_parser = duration, value_name = "TIME")]
    pub duration: Option<Duration>,
    /// Repeat all workloads, one row each time: for compare
    #[arg(long, default_value_t = 1, value_parser = number(1..=ROUNDS_MAX), value_name = "NUMBER")]
    pub rounds: u32,
    /// Load before the measurement [default: 500ms, or none with --count]
    #[arg(long, value_parser = duration, value_name = "TIME")]
    pub warm_up: Option<Duration>,
    /// Open loop: scheduled operations per second of all connections together
    #[arg(short, long, value_parser = number::<u64>(1..=100_000_000), value_name = "NUMBER")]
    pub rate: Option<u64>,
    /// Number of tubes
    #[arg(long, default_value_t = 1, value_parser = number::<u32>(1..=1_000_000), value_name = "NUMBER")]
    pub tubes: u32,
    /// One tube per connection, or a random one per job, with a use before each put: connection or job
    #[arg(long, value_enum, hide_possible_values = true, value_name = "WORD", default_value_t = TubeBy::Connection)]
    pub tube_by: TubeBy,
    /// Additional connections that do nothing
    #[arg(long, default_value_t = 0, value_parser = number::<u32>(0..=1_000_000), value_name = "NUMBER")]
    pub idle: u32,
    /// Process of the server, to report its CPU per operation and its memory
    #[arg(long, value_parser = number(0..=u32::MAX))]
    pub pid: Option<u32>,
    /// Write all results as JSON; with - to stdout, and the table to stderr
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// I/O of the generator: tokio-uring, epoll, or auto, which is epoll where io_uring is refused
    #[arg(long, value_enum, hide_possible_values = true, value_name = "WORD", default_value_t = Io::Auto)]
    pub io: Io,
    /// A server without a reply for this time has failed
    #[arg(long, default_value = "10s", value_parser = duration, value_name = "TIME")]
    pub timeout: Duration,
    /// Stop put early when the jobs in the server may take this memory
    #[arg(long, default_value_t = 1024, value_name = "MIB", value_parser = number(0..=QUEUE_MIB_MAX))]
    pub queue_max: u64,
    /// Leave jobs and tubes as they are
    #[arg(long)]
    pub no_cleanup: bool,
    /// Serve the no-op baseline at --addr with this driver of the server
    #[arg(long, value_enum, value_name = "DRIVER", hide = true, requires = "addr")]
    pub baseline: Option<Choice>,
}

/// A workload.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Workload {
    Put,
    Cycle,
    Delivery,
    FillDrain,
    Handshake,
    Resume,
    RedisPush,
    RedisCycle,
}

/// How jobs are distributed over tubes.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum TubeBy {
    /// Connection i uses tube i modulo the number of tubes.
    Connection,
    /// A use before every put.
    Job,
}

/// The generator's own I/O.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Io {
    /// tokio-uring, or epoll where io_uring is refused.
    Auto,
    /// tokio-uring or nothing.
    TokioUring,
    /// tokio's epoll runtime.
    Epoll,
}

impl Workload {
    /// Returns the name for the command line.
    pub fn name(self) -> String {
        self.to_possible_value().expect("none is hidden").get_name().to_owned()
    }

    /// Returns whether the server is redis.
    pub fn is_redis(self) -> bool {
        matches!(self, Workload::RedisPush | Workload::RedisCycle)
    }

    /// Returns whether the jobs stay in the server.
    pub fn piles_up(self) -> bool {
        matches!(self, Workload::Put | Workload::RedisPush)
    }
}

/// How much is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Amount {
    /// This many operations.
    Count(u64),
    /// As many operations as are done in this time.
    For(Duration),
}

impl Args {
    /// Checks combinations of options.
    pub fn check(&self) -> Result<(), Failure> {
        let has = |workload| self.workloads.contains(&workload);
        let is_redis = self.workloads.iter().any(|workload| workload.is_redis());
        let connects = has(Workload::Handshake) || has(Workload::Resume);
        Err(Failure::Usage(if has(Workload::Delivery) && (self.body as usize) < STAMP_BYTES {
            "delivery needs bodies of at least 16 bytes, which carry the time of the put"
        } else if is_redis && !self.workloads.iter().all(|workload| workload.is_redis()) {
            "workloads for redis and for beanstalk cannot be combined"
        } else if has(Workload::FillDrain) && self.duration.is_some() {
            "fill-drain takes --count, not --duration"
        } else if has(Workload::FillDrain) && self.rate.is_some() {
            "fill-drain has no schedule: remove --rate"
        } else if connects && (!self.tls || self.rate.is_some() || self.depth > 1) {
            "handshake and resume need --tls, and have neither --rate nor --depth"
        } else if self.tls && cfg!(not(feature = "tls")) {
            "this build has no TLS"
        } else if self.duration == Some(Duration::ZERO) {
            "--duration must be longer than 0"
        } else {
            return Ok(());
        }))
    }

    /// Returns the address of the server of such a workload.
    pub fn addr_for(&self, workload: Workload) -> &str {
        let default = match (workload.is_redis(), self.tls) {
            (true, _) => "127.0.0.1:6379",
            (false, true) => "127.0.0.1:11400",
            (false, false) => "127.0.0.1:11300",
        };
        self.addr.as_deref().unwrap_or(default)
    }

    /// Returns the name that the server's certificate must have.
    #[cfg(feature = "tls")]
    pub fn server_name(&self) -> &str {
        let addr = self.addr_for(self.workloads[0]);
        let host = addr.rsplit_once(':').map_or(addr, |(host, _)| host);
        self.tls_name.as_deref().unwrap_or(host.trim_matches(['[', ']']))
    }

    /// Returns how much of `workload` is measured.
    pub fn amount(&self, workload: Workload) -> Amount {
        match (self.count, workload) {
            (Some(count), _) => Amount::Count(count),
            (None, Workload::FillDrain) => Amount::Count(100_000),
            (None, _) => Amount::For(self.duration.unwrap_or(Duration::from_secs(5))),
        }
    }

    /// Returns the duration of the warm-up.
    pub fn warm_up(&self, workload: Workload) -> Duration {
        match (workload, self.warm_up, self.count) {
            (Workload::FillDrain, ..) => Duration::ZERO,
            (_, Some(warm_up), _) => warm_up,
            (_, None, Some(_)) => Duration::ZERO,
            (_, None, None) => Duration::from_millis(500),
        }
    }

    /// Returns the largest number of connections at once.
    pub fn connections_max(&self) -> u32 {
        self.connections + self.consumers.unwrap_or(self.connections) + self.idle
    }

    /// Returns how many jobs may be left in the server.
    pub fn queue_jobs_max(&self) -> u64 {
        (self.queue_max << 20) / (u64::from(self.body) + JOB_OVERHEAD_BYTES)
    }
}

/// The largest `--queue-max`: its bytes fit into 64 bits.
const QUEUE_MIB_MAX: u64 = u64::MAX >> 20;

/// What a time must be.
const TIME: &str = "must be a time such as 10s, 0.5s or 500ms";

/// Returns a parser of numbers in a range.
pub fn number<T>(
    range: RangeInclusive<T>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("must be a number from {} to {}", range.start(), range.end()))
    }
}

/// Parses `10`, `10s`, `0.5s` or `500ms`.
fn duration(text: &str) -> Result<Duration, String> {
    let (number, scale) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(ms), _) => (ms, 1e-3),
        (None, Some(s)) => (s, 1.0),
        (None, None) => (text, 1.0),
    };
    let number: f64 = number.parse().map_err(|_| TIME.to_owned())?;
    Duration::try_from_secs_f64(number * scale).map_err(|_| TIME.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Args, String> {
        let line = CommandLine::try_parse_from(line.split(' ')).map_err(|error| error.to_string())?;
        let args = line.load;
        args.check().map_err(|failure| failure.to_string())?;
        Ok(args)
    }

    #[test]
    fn durations() {
        assert_eq!(duration("10"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("0.5s"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert!(duration("-1").is_err() && duration("1h").is_err() && duration("").is_err());
    }

    #[test]
    fn a_wrong_number_has_its_range() {
        for (line, range) in [
            ("bench -c x", "1 to 100000"),
            ("bench -c 100001", "1 to 100000"),
            ("bench --idle 1000001", "0 to 1000000"),
            ("bench --queue-max 99999999999999", "0 to 17592186044415"),
            ("bench --pid 4294967296", "0 to 4294967295"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(&format!("must be a number from {range}")), "{error}");
        }
    }

    #[test]
    fn defaults() {
        let args = parse("bench").unwrap();
        assert_eq!(args.workloads, [Workload::Put, Workload::Cycle]);
        assert_eq!(args.amount(Workload::Put), Amount::For(Duration::from_secs(5)));
        assert_eq!(args.amount(Workload::FillDrain), Amount::Count(100_000));
        assert_eq!(args.queue_jobs_max(), (1 << 30) / 384);
    }

    #[test]
    fn options_that_do_not_fit_together() {
        for line in [
            "bench put redis-push",
            "bench fill-drain -t 1s",
            "bench put -n 0",
            "bench put -t 0s",
            "bench put -c 0",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
