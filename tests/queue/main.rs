//! The queue without connections: the naive model, bounded steps, tubes, rules and idempotency keys.

mod kept_keys;
mod model;
mod rules;
mod steps;
mod tubes;
