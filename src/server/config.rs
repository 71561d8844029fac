//! The configuration of a server, and what its driver reports for `stats`.

use std::collections::BTreeMap;

use super::http::{Hosts, HttpAccess};
use super::users::Users;
use crate::queue::TubeLimits;
use crate::time::{Seconds, Span, Time};
use crate::values::limits::{MEMORY_BYTES_MIN, TUBES_SHARE};
use crate::values::schedules::ConfiguredSchedule;
use crate::values::tube_rules::TubeRules;

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct Config {
    /// The maximum size of a job body without its CR LF, in bytes.
    pub max_job_bytes: u32,
    /// The memory limit of jobs and buffers above which a `put` is refused, in bytes. `None`: unlimited.
    pub max_memory_bytes: Option<u64>,
    /// The maximum number of client connections, for `stats`. `None`: unlimited.
    pub max_connections: Option<u32>,
    /// The maximum number of HTTP connections, at most [`HTTP_CONNECTIONS_MAX`](crate::values::limits::HTTP_CONNECTIONS_MAX).
    pub http_connections_max: usize,
    /// The number of tubes from which on `use` and `watch` of a new one are refused. `None`: unlimited.
    pub max_tubes: Option<u32>,
    /// The maximum number of tubes that one connection watches. `None`: unlimited.
    pub max_watches: Option<u32>,
    /// The size of a new segment of the job log (`-s`) in bytes, for `stats`.
    pub wal_segment_bytes: u64,
    /// Does not close connections that begin with a request of another protocol.
    pub allow_foreign_protocols: bool,
    /// Accepts and shows thousandths of a second in times of jobs and waits.
    pub sub_second: bool,
    /// The host names that HTTP requests may contain.
    pub http_hosts: Hosts,
    /// Who may use the API over HTTP.
    pub http_access: HttpAccess,
    /// The users (`--auth`). `None`: every client may do everything.
    pub users: Option<Users>,
    /// Rules of tubes by their names. They replace those of the job log, which keeps its own.
    pub tube_rules: BTreeMap<String, TubeRules>,
    /// Schedules. Those that an earlier file had are deleted.
    pub schedules: Vec<ConfiguredSchedule>,
    /// The directory of the job log, for display.
    pub wal_dir: Option<String>,
    /// The prefix of metric names: letters, digits and `_`, the first no digit.
    pub metrics_prefix: String,
    /// The maximum number of tubes that `/metrics` shows.
    pub metrics_tubes: u32,
    /// The start of the server, for `stats`.
    pub started: Time,
    /// How long the recovery of the job log took. Zero without a job log.
    pub recovery: Span,
    /// The seed of hashes, so that clients cannot choose names, ids and watches that collide. It changes nothing else.
    pub seed: u64,
    /// What `stats` shows of the host.
    pub host: HostFacts,
}

impl Config {
    /// What `stats` and the API show of a span: whole seconds, unless thousandths are accepted.
    pub(super) const fn shown(&self, span: Span) -> Seconds {
        let seconds = Seconds::of(span);
        if self.sub_second { seconds } else { seconds.floor() }
    }

    /// A span as replies show it, rounded up.
    pub(super) fn shown_rounded_up(&self, span: Span) -> Seconds {
        let unit = if self.sub_second { Span::from_millis(1) } else { Span::from_secs(1) };
        self.shown((Time::ZERO + span).round_up(unit).since(Time::ZERO))
    }

    /// The limits of tubes and watches.
    pub(super) fn tube_limits(&self) -> TubeLimits {
        let number = |max: Option<u32>| max.map_or(usize::MAX, |max| max as usize);
        TubeLimits {
            tubes: number(self.max_tubes),
            watches: number(self.max_watches),
            bytes: self
                .max_memory_bytes
                .map_or(usize::MAX, |max| (max.max(MEMORY_BYTES_MIN) / TUBES_SHARE) as usize),
        }
    }
}

/// What `stats` shows of the host.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct HostFacts {
    pub pid: u32,
    pub version: String,
    /// 16 hexadecimal digits, different for each run.
    pub id: String,
    pub hostname: String,
    pub os: String,
    pub platform: String,
    /// The name of the driver.
    pub driver: &'static str,
    /// Memory of the process before it has connections or jobs, in bytes. A driver reports what it allocates itself
    /// ([`Event::OuterMemory`](super::Event::OuterMemory)).
    pub memory_bytes: u64,
}

/// What a driver counts, for the server to read when a reply shows it.
pub trait DriverCounts {
    /// Returns the counts as they are now, by a few system calls.
    fn read(&self) -> DriverStats;
}

/// What `stats` and `/metrics` show of a driver. Counts are since its start.
#[derive(Clone, Copy, Default, Debug)]
pub struct DriverStats {
    /// Waits for events.
    pub waits: u64,
    /// Memory registered with the kernel, in bytes.
    pub registered_bytes: u64,
    /// Zero-copy sends.
    pub zero_copy_sends: u64,
    /// Those of them that the kernel has copied after all.
    pub zero_copy_copies: u64,
    /// Connections that were closed because the machine of the peer did not answer (`--tcp-keepalive`).
    pub lost_peers: u64,
    /// How often accept was paused, for want of descriptors or at the maximum number of connections.
    pub accept_pauses: u64,
    /// Client connections are not accepted now.
    pub is_accept_paused: bool,
    /// Repairs of the self-check: requests that were missing, and input that the kernel did not report.
    pub self_check_repairs: u64,
    /// Log lines that were not written, because nothing read them in time.
    pub lost_log_lines: u64,
    /// CPU time of the process.
    pub cpu: CpuUsage,
    /// Other resources of the process.
    pub process: ProcessUsage,
}

/// CPU time in microseconds.
#[derive(Clone, Copy, Default, Debug)]
#[allow(missing_docs)]
pub struct CpuUsage {
    pub user_us: u64,
    pub system_us: u64,
}

/// What the process uses. `None`: the kernel does not tell.
#[derive(Clone, Copy, Default, Debug)]
#[allow(missing_docs)]
pub struct ProcessUsage {
    pub resident_bytes: Option<u64>,
    pub virtual_bytes: Option<u64>,
    pub open_descriptors: Option<u64>,
    pub descriptors_max: Option<u64>,
}
