//! What the queue has beyond the protocol of beanstalkd. Each part owns its records. Its methods say in their arguments what else they
//! touch.

pub mod concurrency;
pub mod groups;
pub mod idempotency;
pub mod job_waits;
pub mod notes;
pub mod rules;
pub mod schedules;
