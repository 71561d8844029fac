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

/// A ready job with a priority below this counts as urgent in the statistics (protocol.txt).
pub const URGENT_BELOW: u32 = 1024;

/// The last second of a reservation: a client that holds such a job is not made to wait for another
/// (protocol.txt, `DEADLINE_SOON`).
pub const SAFETY_MARGIN: Span = Span::from_secs(1);

/// A body with at least this much still to come is received straight into its slot. Below it one copy
/// is cheaper than a receive of its own.
pub const DIRECT_RECEIVE_BYTES_MIN: usize = 8 * 1024;

/// A connection whose unsent replies pass this is not served until they are below
/// [`OUTPUT_BYTES_RESUME`]. One reply may overshoot it by its own size.
pub const OUTPUT_BYTES_PAUSE: usize = 64 * 1024;

/// See [`OUTPUT_BYTES_PAUSE`].
pub const OUTPUT_BYTES_RESUME: usize = OUTPUT_BYTES_PAUSE / 2;

/// A connection that cannot be served now (it waits, or does not read its replies) is read until this
/// much input is kept for it.
pub const INBOX_BYTES_PAUSE: usize = 64 * 1024;

/// Elementary steps (a command, a tube looked at, a job moved) that one connection gets before the
/// others have their turn: some 100 us.
pub const TURN_STEPS: u32 = 1024;

/// Elementary steps of a piece of background work (a large kick, a hang-up with many jobs, timers)
/// between other work: some 50 us.
pub const BACKGROUND_STEPS: u32 = 256;

/// A client that watches up to this many tubes registers in the list of each while it waits; one that
/// watches more is found from the other side, through the list of such clients.
pub const NARROW_WATCH_MAX: usize = 16;

const _: () = assert!(OUTPUT_BYTES_RESUME < OUTPUT_BYTES_PAUSE);
const _: () = assert!(TUBE_NAME_BYTES_MAX + "pause-tube  4294967295\r\n".len() <= LINE_BYTES_MAX);
