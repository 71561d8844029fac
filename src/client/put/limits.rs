//! Which limits may have refused a job with OUT_OF_MEMORY, with their numbers. The reply itself does not say.

use super::super::connection::Connection;
use super::super::error::ClientError;
use super::super::inspect;
use super::super::tube_config;
use super::super::units;
use crate::values::tube_rules::RuleKey;

/// Returns the limits that have refused jobs on this server since its start, and that this tube has. Nothing if the server
/// does not count them.
///
/// # Errors
/// If the connection breaks.
pub(super) fn found(connection: &mut Connection, tube: &str) -> Result<Option<String>, ClientError> {
    let Some(server) = inspect::if_permitted(inspect::of_server(connection))? else { return Ok(None) };
    let has_refused = |reason: &str| server.number(&format!("put-refusals-{reason}")) > 0;
    let mut limits = Vec::new();
    if has_refused("tube-rule")
        && let Ok(rules) = tube_config::rules(connection, tube)
    {
        for (key, shown) in [
            (RuleKey::MaxJobs, u64::to_string as fn(&u64) -> String),
            (RuleKey::MaxBytes, |bytes| units::whole_size(*bytes)),
        ] {
            let limit = rules.number(key.word());
            if limit > 0 {
                limits.push(format!("rule {} {} of {tube}", key.word(), shown(&limit)));
            }
        }
    }
    let memory = server.number("max-memory");
    if has_refused("memory") && memory > 0 {
        limits.push(format!("--max-memory {}", units::whole_size(memory)));
    }
    if has_refused("keys") {
        limits.push("the share of idempotency keys, a quarter of --max-memory".to_owned());
    }
    if has_refused("disk") {
        limits.push("the disk of the job log".to_owned());
    }
    Ok((!limits.is_empty()).then(|| limits.join(", ")))
}
