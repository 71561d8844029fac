//! Every limit of the server, each with its reason.

use crate::time::Span;

/// A command line with its CR LF (protocol.txt).
pub const LINE_BYTES_MAX: usize = 224;

/// A tube name (protocol.txt).
pub const TUBE_NAME_BYTES_MAX: usize = 200;

/// The largest job body unless `-z` says otherwise: the reference's default.
pub const JOB_BYTES_DEFAULT: u32 = 65_535;

/// The largest value that `-z` accepts: the reference's.
pub const JOB_BYTES_MAX: u32 = 1_073_741_824;

/// The default of `-s`, the size of a file of the job log: that of beanstalkd.
pub const WAL_FILE_BYTES_DEFAULT: u64 = 10_485_760;

/// A ready job with a priority below this counts as urgent in the statistics (protocol.txt).
pub const URGENT_BELOW: u32 = 1024;

/// The last second of a reservation: a client that holds such a job is not made to wait for another
/// (protocol.txt, `DEADLINE_SOON`).
pub const SAFETY_MARGIN: Span = Span::from_secs(1);

/// A body that lacks at least this much is received directly in its slot. Below this, one copy is cheaper than a separate
/// receive.
pub const DIRECT_RECEIVE_BYTES_MIN: usize = 16 * 1024;

/// What the names of metrics begin with unless `--metrics-prefix` says otherwise.
pub const METRICS_PREFIX_DEFAULT: &str = "beanring";

/// What a request over HTTP may be long, and how much may come ahead of the answer before.
pub const HTTP_REQUEST_BYTES_MAX: usize = 8 * 1024;

/// A connection is not served while its unsent replies have passed this, until they fall below half of it. One reply may
/// overshoot it by its own size.
pub const OUTPUT_BYTES_PAUSE: usize = 64 * 1024;

/// A connection that cannot be served now (it waits, or does not read its replies) is read until this
/// much input is kept for it. One receive may overshoot it by its own size; under io_uring
/// [`RECEIVE_BUFFERS_EACH`] of them.
pub const INBOX_BYTES_PAUSE: usize = 16 * 1024;

/// Buffers for replies that are kept for the next connection that needs one. One is in use for each
/// connection with unsent replies; in the usual turn that is one after the other.
pub const SPARE_BUFFERS_MAX: usize = 64;

/// A buffer that has grown past this, by a list of many tubes say, is freed and not kept.
pub const SPARE_BUFFER_BYTES_MAX: usize = 2 * OUTPUT_BYTES_PAUSE;

/// Slices of output that one send is given: well below the kernel's 1024, and more than one send takes.
pub const SEND_SLICES_MAX: usize = 64;

/// Elementary steps (a tube or client looked at, a job moved, 64 bytes of a report) that one connection gets before the
/// others have their turn: some 100 us.
pub const TURN_STEPS: u32 = 1024;

/// What a command takes beyond what it looks at and moves: a `put` of 64 bytes takes some 300 ns.
pub const COMMAND_STEPS: u32 = 3;

/// Elementary steps that all events of an event-loop iteration share, and after them all connections with input in their
/// inboxes: some 400 us each. Events that come after this get one command each, up to [`RUN_STEPS_MAX`].
pub const RUN_STEPS: u32 = 4 * TURN_STEPS;

/// Elementary steps after which the commands of further events wait in inboxes for a later iteration. Enough for one
/// command from each of [`EVENTS_MAX`] clients, unless they are large ones such as `kick 256`.
pub const RUN_STEPS_MAX: u32 = 2 * RUN_STEPS;

/// Elementary steps of a piece of background work (large kicks, hang-ups with many jobs, timers, the search for a client
/// that watches many tubes) between other work: some 50 us. All hang-ups of an iteration get as many at once.
pub const BACKGROUND_STEPS: u32 = 256;

/// A client that watches up to this many tubes registers in the list of each while it waits; one that
/// watches more is found from the other side, through the list of such clients.
pub const NARROW_WATCH_MAX: usize = 16;

/// What one receive takes into the buffer that all connections share: large enough for a few hundred
/// small commands, small enough to stay in the first-level caches and to leave the others their turn.
pub const RECEIVE_BYTES_MAX: usize = 16 * 1024;

/// Receive buffers that io_uring chooses from. It needs one for each receive that is done and not taken in
/// yet, not one a connection; a receive that finds none is made again.
pub const RECEIVE_BUFFERS: u16 = 128;

/// How many of them one connection may have at a time. What it sends beyond what is kept of it cannot be left to the
/// kernel when it is in them already: they may be added to [`INBOX_BYTES_PAUSE`].
pub const RECEIVE_BUFFERS_EACH: u16 = 4;

/// Large bodies that are received at the same time with room for what follows them, of
/// [`RECEIVE_BYTES_MAX`] each; those above it take a receive more.
pub const TAIL_BUFFERS_MAX: u16 = 64;

/// Requests that io_uring is handed at once, and completions that it keeps ready: more are handed over in
/// the next call, or wait in the kernel.
pub const REQUESTS_QUEUED_MAX: u32 = 1024;
#[allow(missing_docs)]
pub const COMPLETIONS_QUEUED_MAX: u32 = 4096;

/// Memory of job bodies that may be registered with the kernel, unless said otherwise. Registered memory is
/// locked, and not given back.
pub const REGISTERED_BYTES_DEFAULT: u64 = 64 * 1024 * 1024;

/// Under `--max-memory`, one part in so many may be registered at most: it is not given back.
pub const REGISTERED_SHARE: u64 = 4;

/// Chunks of bodies that may be registered: of 2 MiB each, so at most 2 GiB.
pub const REGISTERED_CHUNKS_MAX: u16 = 1024;

/// A piece of output of at least this size is sent without a copy, if the network allows it. What that
/// costs more than it saves below: waiting for the network to be done with it.
pub const ZERO_COPY_BYTES_MIN: usize = 32 * 1024;

/// How long a send rests that found no room on a connection whose peer has ended its side: io_uring cannot
/// wait for room on such a socket.
pub const SEND_REST: Span = Span::from_millis(20);

/// The rest doubles up to this while there is still no room: ten thousand of such connections take 2 % of a core.
pub const SEND_REST_MAX: Span = Span::from_millis(1280);

/// How long a connection is quiet before the driver looks whether io_uring has left input of it unreported, and how
/// long until it looks again before it repairs that. A client whose wake-up the kernel has lost waits three times this
/// at most; ten thousand clients that send once in this time take 0.3 % of a core more.
pub const SELF_CHECK_INTERVAL: Span = Span::from_secs(1);

/// Connections that a self-check looks at in one iteration of the loop: some 100 us.
pub const SELF_CHECK_STEPS: usize = 256;

/// Completions taken before the server has its own turn.
pub const COMPLETIONS_MAX: usize = 1024;

/// What one receive takes straight into a body's slot: some 30 us of copying in the kernel.
pub const RECEIVE_DIRECT_BYTES_MAX: usize = 256 * 1024;

/// What one connection may send before the others have their turn. Reached only by replies far above
/// [`OUTPUT_BYTES_PAUSE`] to a peer that reads as fast as the server writes.
pub const SEND_BYTES_MAX: usize = 256 * 1024;

/// Readiness events taken from the kernel at once: 12 KiB of them, and one clock reading for all.
pub const EVENTS_MAX: usize = 1024;

/// Connections accepted from one listener before the established ones have their turn.
pub const ACCEPTS_MAX: usize = 64;

/// Pauses between attempts at something that the kernel may not have back yet from a program that has ended: an address,
/// or locked memory.
pub const TAKEN_PAUSES: [Span; 3] = [Span::from_millis(50), Span::from_millis(100), Span::from_millis(200)];

/// Rounds of the ring at the end, in which last answers are sent.
pub const LAST_ROUNDS_MAX: usize = 1000;

/// How long accepting rests when the process or the system has no descriptor left. A connection that
/// closes ends the rest at once; this is for descriptors that others give back.
pub const ACCEPT_REST: Span = Span::from_millis(100);

/// How often, at most, a shortage of descriptors is logged.
pub const ACCEPT_COMPLAINT_EVERY: Span = Span::from_secs(1);

/// How often, at most, a connection that broke without its peer's doing is logged as a warning.
pub const BREAK_COMPLAINT_EVERY: Span = Span::from_secs(10);

/// What an allocator adds to each piece of memory, and what it rounds it to.
pub const ALLOCATION_BYTES: usize = 16;

/// The least that `--max-memory` may say: what a server takes that has just started, with the buffers of the driver
/// that needs most, and some room for jobs.
pub const MEMORY_BYTES_MIN: u64 = 16 * 1024 * 1024;

/// The share of `--max-memory` that tubes, their names and watches may take: a quarter. The rest is left to jobs.
pub const TUBES_SHARE: u64 = 4;

/// Tubes unless `--max-tubes` says otherwise: far more than applications have, and some 50 MB.
pub const TUBES_DEFAULT: u32 = 100_000;

/// Tubes that a connection may watch unless `--max-watches` says otherwise: 2.5 MB.
pub const WATCHES_DEFAULT: u32 = 65_536;

/// Descriptors that a server has open besides those of connections and the reserve: the standard ones, listeners,
/// the loop's own, those of the log.
pub const DESCRIPTORS_OWN: u64 = 24;

/// Descriptors kept in reserve for the log, so that a process full of connections can go on with it: for two segments,
/// each open in two ways, and one of each of its threads; and some for those that a connection gets before they do.
pub const DESCRIPTORS_RESERVED: usize = 8;

/// How often a file of the log that found no descriptor all the same is tried again while the loop waits for it, and
/// with what pauses: for a second.
pub const DESCRIPTOR_TRIES: u32 = 200;
#[allow(missing_docs)]
pub const DESCRIPTOR_PAUSE: Span = Span::from_millis(5);

/// The buffer that a connection on tokio-uring's ring holds while it is idle: a request or two of the usual
/// size. One that fills it is given a larger one for its next receive.
pub const RING_RECEIVE_BYTES: usize = 1024;

/// Buffers that are registered with tokio-uring's ring.
pub const FIXED_BUFFERS: usize = 48;

/// One of them: a body of the usual largest size, and what follows it. All together are 3.8 MiB of the
/// 8 MiB that a process without rights may lock.
pub const FIXED_BUFFER_BYTES: usize = JOB_BYTES_DEFAULT as usize + 1 + RECEIVE_BYTES_MAX;

/// The default of `-f`, the interval between syncs of the job log: that of beanstalkd.
pub const SYNC_INTERVAL_MS_DEFAULT: u32 = 50;

const _: () = assert!(OUTPUT_BYTES_PAUSE <= SEND_BYTES_MAX);
const _: () = assert!(EVENTS_MAX as u32 * (COMMAND_STEPS + 1) <= RUN_STEPS_MAX - RUN_STEPS);
const _: () = assert!(TUBE_NAME_BYTES_MAX + "pause-tube  4294967295\r\n".len() <= LINE_BYTES_MAX);
