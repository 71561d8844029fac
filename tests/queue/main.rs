//! The queue without connections: the naive model, bounded steps, tubes, rules, idempotency keys and the times of schedules.

mod kept_keys;
mod model;
mod rules;
mod schedules;
mod steps;
mod tubes;
mod when;
