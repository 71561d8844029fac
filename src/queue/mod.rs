//! The queue itself: jobs, tubes, clients, and every transition between them. Plain state: time comes in
//! as an argument, what a log must record and whom to tell come out as values.

mod background;
mod bounds;
mod change;
mod check;
mod client;
mod engine;
mod job;
mod job_index;
mod latency;
mod line;
mod lists;
mod matching;
mod memory;
mod order;
mod persisted;
mod roll;
mod stats;
mod timers;
mod transitions;
mod tube;

pub use bounds::Bounds;
pub use change::Change;
pub use client::{Client, Clients};
pub use engine::{Engine, Ignored, Kicked, Notice, Reserved};
pub use job::{Activity, Counts, Job, Jobs, NewJob, State};
pub use latency::{LatencyKind, Percentiles};
pub use lists::{List, Listed};
pub use persisted::{PersistedState, Restored, Standing};
pub use stats::{JobStats, JobTotals, QueueStats, TubeStats};
pub use tube::{Pause, Tube, TubeCounts, Tubes};
