//! What a client reads of a server, and why a verb fails. A terminal may be shown all of it.

mod error;
mod escape;
mod reply;
mod stats;
mod tls_problem;
pub mod units;
mod untrusted;

pub use self::error::{ClientError, Refusal, UNAUTHORIZED};
pub use self::escape::{escaped, escaped_lines, json};
pub use self::reply::{Follows, ReadError, Reply, items, split, unquoted};
pub use self::stats::{Kind, Stats, Value};
pub use self::tls_problem::TlsProblem;
pub use self::untrusted::{Untrusted, integer};
