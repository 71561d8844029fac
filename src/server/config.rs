//! The configuration of a server, and what its driver reports for `stats`.

use super::http::Hosts;
use crate::limits::{MEMORY_BYTES_MIN, TUBES_SHARE};
use crate::queue::Bounds;
use crate::time::Time;

/// What the server is told at its start.
#[derive(Clone, Debug)]
pub struct Config {
    /// The largest job body, without its CR LF.
    pub max_job_bytes: u32,
    /// How much memory jobs and buffers may take before a `put` is refused, in bytes; none: any amount.
    pub max_memory_bytes: Option<u64>,
    /// How many connections the driver accepts at once, for `stats`; none: any number.
    pub max_connections: Option<u32>,
    /// How many tubes there may be before `use` and `watch` of a new one are refused; none: any number.
    pub max_tubes: Option<u32>,
    /// How many tubes one connection may watch; none: any number.
    pub max_watches: Option<u32>,
    /// The size of a log file (`-s`), for `stats`.
    pub log_file_bytes: u64,
    /// Connections that begin with a request of another protocol are served as any other.
    pub allow_foreign_requests: bool,
    /// Host names that HTTP requests may have.
    pub http_hosts: Hosts,
    /// What the names of metrics begin with: letters, digits and `_`, the first no digit.
    pub metrics_prefix: String,
    /// When it was started.
    pub started: Time,
    /// Keeps clients from choosing names, ids and watches whose hashes collide; it changes nothing else.
    pub seed: u64,
    /// What `stats` tells about the host.
    pub host: HostFacts,
}

impl Config {
    /// What tubes and watches are bound by.
    pub(super) fn bounds(&self) -> Bounds {
        let number = |max: Option<u32>| max.map_or(usize::MAX, |max| max as usize);
        Bounds {
            tubes: number(self.max_tubes),
            watches: number(self.max_watches),
            bytes: self
                .max_memory_bytes
                .map_or(usize::MAX, |max| (max.max(MEMORY_BYTES_MIN) / TUBES_SHARE) as usize),
        }
    }
}

/// What `stats` tells about the host.
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
    /// ([`Event::DriverMemory`](super::Event::DriverMemory)).
    pub memory_bytes: u64,
}

/// What a driver counts for `stats` and `/metrics`, all since its start but `registered_bytes`.
#[derive(Clone, Copy, Default, Debug)]
pub struct DriverStats {
    /// Waits for events.
    pub enters: u64,
    /// Memory registered with the kernel, in bytes.
    pub registered_bytes: u64,
    /// Zero-copy sends.
    pub zero_copy_sends: u64,
    /// How often accept was paused, for want of descriptors or at the maximum number of connections.
    pub accept_pauses: u64,
    /// Repairs of the self-check: requests that were missing, and input that the kernel did not report.
    pub self_check_repairs: u64,
    /// CPU time of the process.
    pub cpu: CpuUsage,
}

/// CPU time in microseconds.
#[derive(Clone, Copy, Default, Debug)]
#[allow(missing_docs)]
pub struct CpuUsage {
    pub user_us: u64,
    pub system_us: u64,
}
