//! The queue itself: jobs, tubes, clients, and every transition between them. Plain state: time comes in
//! as an argument, what a log must record and whom to tell come out as values.

mod background;
mod bounds;
mod change;
mod check;
mod client;
mod directory;
mod engine;
mod job;
mod kept;
mod line;
mod lists;
mod matching;
mod memory;
mod order;
mod roll;
mod stats;
mod timers;
mod times;
mod transitions;
mod tube;

pub use bounds::Bounds;
pub use change::Change;
pub use client::{Client, Clients};
pub use engine::{Engine, Ignored, Kicked, Notice, Reserved};
pub use job::{Activity, Counts, Job, Jobs, NewJob, State};
pub use kept::{Kept, Restored, Standing};
pub use lists::{List, Listed};
pub use stats::{Census, JobStats, QueueStats, TubeStats};
pub use times::{BOUNDS, Lapse, Percentiles, Times};
pub use tube::{Pause, Tube, TubeCounts, Tubes};
