//! Limits that several layers share, each with its reason. Any other limit stands beside its use.

use super::budget::{Cost, RUN_STEPS, RUN_STEPS_MAX};

/// A command line with its CR LF (protocol.txt).
pub const LINE_BYTES_MAX: usize = 224;

/// A command line with its CR LF, for commands with many arguments or long ones, such as `put` with tags.
pub const LINE_BYTES_LONG_MAX: usize = 2048;

/// Jobs that one command of a batch names or takes.
pub const BATCH_JOBS_MAX: u32 = 1000;

/// A `reserve-batch` of a client that watches more tubes than this takes at most [`WIDE_BATCH_JOBS_MAX`] jobs.
pub const WIDE_BATCH_WATCHES: usize = 1000;

/// Jobs of a batch from very many tubes: each is in another place of memory, and takes some 2.5 us.
pub const WIDE_BATCH_JOBS_MAX: u32 = 250;

/// Bodies of one batch together, without their CR LF. A client that does not read the reply to a `reserve-batch`, or does not
/// end its `put-batch`, keeps at most this much, and the server copies it within the time of some thousand steps. The first job
/// of a `reserve-batch` and the only one of a `put-batch` may be larger.
pub const BATCH_BODY_BYTES_MAX: usize = 1024 * 1024;

/// Jobs that one `list-jobs` shows at most: some 80 KiB.
pub const PAGE_JOBS_MAX: u32 = 1000;

/// Jobs that a `list-jobs` without a limit shows.
pub const PAGE_JOBS_DEFAULT: u32 = 100;

/// The largest number of a burial, which is its time in nanoseconds since 1970: in the year 2116. At the limit all burials have the same
/// number, and after a restart such jobs are in the order of their ids.
pub const BURIALS_MAX: u64 = 1 << 62;

/// The priority of a job that the client, the HTTP API or the console puts without one: that of greenstalk and beaneater. It
/// leaves room for more urgent jobs, and such a job does not count as urgent.
pub const PRIORITY_DEFAULT: u32 = 65_536;

/// The time to run of such a job, in seconds.
pub const TTR_SECONDS_DEFAULT: u32 = 60;

/// A tube name (protocol.txt).
pub const TUBE_NAME_BYTES_MAX: usize = 200;

/// Tubes with rules: far more than applications have. The rules of a tube stay while the tube does not exist. Each tube takes some
/// 200 bytes, with the longest names 600, and as much in the job log for each rule.
pub const RULED_TUBES_MAX: usize = 1000;

/// Schedules of clients, and those of the configuration file: each far more than applications have. Each takes some 500 bytes, with the longest names and a cron line 1.5 KiB, besides its body.
pub const SCHEDULES_MAX: usize = 10_000;

/// The body of the jobs of a schedule. It is copied at each run, so it is not as large as `-z` may permit.
pub const SCHEDULE_BYTES_MAX: u32 = JOB_BYTES_DEFAULT;

/// Names that one `list-schedules` shows at most.
pub const PAGE_SCHEDULES_MAX: u32 = 1000;

/// Names that a `list-schedules` without a limit shows.
pub const PAGE_SCHEDULES_DEFAULT: u32 = 100;

/// The default of `-z`, the largest job body: that of beanstalkd.
pub const JOB_BYTES_DEFAULT: u32 = 65_535;

/// The largest value of `-z`: that of beanstalkd.
pub const JOB_BYTES_MAX: u32 = 1_073_741_824;

/// The default of `-s`, the size of a file of the job log: that of beanstalkd.
pub const WAL_FILE_BYTES_DEFAULT: u64 = 10_485_760;

/// A body that lacks at least this much is received directly in its slot. Below this, one copy is cheaper than a separate
/// receive.
pub const DIRECT_RECEIVE_BYTES_MIN: usize = 16 * 1024;

/// The default of `--metrics-prefix`.
pub const METRICS_PREFIX_DEFAULT: &str = "beanring";

/// The default of `--metrics-tubes`: some 20,000 series.
pub const METRICS_TUBES_DEFAULT: u32 = 1000;

/// The longest head of an HTTP request.
pub const HTTP_HEAD_BYTES_MAX: usize = 8 * 1024;

/// A connection is not served while its unsent replies have passed this, until they fall below half of it. One reply may
/// overshoot it by its own size. Over HTTP no further response is made, and no page is rendered, while this much is unsent.
pub const OUTPUT_BYTES_PAUSE: usize = 64 * 1024;

/// Input kept for a connection that cannot be served now, because it waits or does not read its replies. With more, the
/// connection is paused. One receive may overshoot this by its own size, under io_uring [`RECEIVE_BUFFERS_EACH`] of them.
pub const INBOX_BYTES_PAUSE: usize = 16 * 1024;

/// Reply buffers kept for reuse. Each connection with unsent replies uses one. In most iterations the connections use the
/// same one in turn.
pub const SPARE_BUFFERS_MAX: usize = 64;

/// A larger reply buffer is freed instead of kept for reuse.
pub const SPARE_BUFFER_BYTES_MAX: usize = 2 * OUTPUT_BYTES_PAUSE;

/// Slices of output in one send: well below the kernel's limit of 1024.
pub const SEND_SLICES_MAX: usize = 64;

/// The groups that `stats-group` shows behind `waits-for`, at most.
pub const GROUPS_SHOWN_MAX: usize = 100;

/// The size of a receive buffer: large enough for a few hundred small commands, small enough to stay in the first-level cache
/// and to leave the other connections their turn.
pub const RECEIVE_BYTES_MAX: usize = 16 * 1024;

/// Receive buffers that io_uring chooses from. It needs one per completed receive that the driver has not processed, not one
/// per connection. A receive that finds none is repeated.
pub const RECEIVE_BUFFERS: u16 = 128;

/// Receive buffers that one connection has at most. Input in them cannot be left to the kernel, so a paused connection may
/// exceed [`INBOX_BYTES_PAUSE`] by their size.
pub const RECEIVE_BUFFERS_EACH: u16 = 4;

/// Large bodies that are received at the same time with a tail buffer of [`RECEIVE_BYTES_MAX`] each for what follows them.
/// Further ones take one more receive.
pub const TAIL_BUFFERS_MAX: u16 = 64;

/// Entries of the submission queue of io_uring. Further requests wait for the next `io_uring_enter` call.
pub const REQUESTS_QUEUED_MAX: u32 = 1024;

/// The most that one receive takes straight to the place of a body. The kernel copies it before its price is known, so the receives of
/// 64 clients that one call of io_uring makes have the bytes of an event-loop iteration.
pub const RECEIVE_DIRECT_BYTES_MAX: usize = 64 * 1024;

/// Readiness events or completions that a driver takes before the server has its turn. With 512 busy clients their system calls take
/// some 1.5 ms.
pub const EVENTS_MAX: usize = 512;

/// The overhead of an allocation in the allocator, and the unit to which it rounds.
pub const ALLOCATION_BYTES: usize = 16;

/// HTTP connections at a time: more than scrapers and probes need, and little memory.
pub const HTTP_CONNECTIONS_MAX: usize = 64;

/// The smallest `--max-memory`: the memory of a new server with the buffers of the driver that needs most, and some room for
/// jobs.
pub const MEMORY_BYTES_MIN: u64 = 16 * 1024 * 1024;

/// The part of `--max-memory` that tubes, their names and watches may take: a quarter. The rest is left to jobs.
pub const TUBES_SHARE: u64 = 4;

/// The part of `--max-memory` that kept idempotency keys may take, with those that jobs promise to keep: a quarter.
pub const KEYS_SHARE: u64 = 4;

/// The longest time to live in seconds of keys that may use the whole share, an hour. Longer ones get the first half, so keys
/// that are kept for years leave room to producers that need theirs for minutes.
pub const KEY_TTL_SHORT_SECONDS: u32 = 3600;

/// Buffers that are registered with the ring of tokio-uring.
pub const FIXED_BUFFERS: usize = 48;

/// The size of such a buffer: a body of the default maximum, and a receive buffer behind it. All 48 take 3.8 MiB of the 8 MiB
/// that an unprivileged process may lock.
pub const FIXED_BUFFER_BYTES: usize = JOB_BYTES_DEFAULT as usize + 1 + RECEIVE_BYTES_MAX;

const _: () = assert!(EVENTS_MAX as u32 * (Cost::COMMAND.steps() + 1) <= RUN_STEPS_MAX - RUN_STEPS);
const _: () = assert!(TUBE_NAME_BYTES_MAX + "pause-tube  4294967295\r\n".len() <= LINE_BYTES_MAX);
