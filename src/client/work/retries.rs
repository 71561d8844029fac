//! Whether the rules of a tube delay jobs that have failed.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::super::connection::Connection;
use super::super::error::ClientError;
use super::super::tube_config;
use crate::values::tube_rules::RuleKey;

/// How long an answer is kept. A rule that changes in between applies after this time.
const KEPT: Duration = Duration::from_secs(10);

/// The answers of the server, for all slots.
#[derive(Debug, Default)]
pub(super) struct Retries(Mutex<HashMap<String, (Instant, bool)>>);

impl Retries {
    /// Whether the tube has the rule `retry-delay`. A server without rules has none, and so has a tube whose rules the user of
    /// the client may not see.
    ///
    /// # Errors
    /// If the connection broke.
    pub(super) fn are_delayed(&self, connection: &mut Connection, tube: &str) -> Result<bool, ClientError> {
        let known = self.0.lock().expect("no slot panics").get(tube).copied();
        if let Some((asked, answer)) = known
            && asked.elapsed() < KEPT
        {
            return Ok(answer);
        }
        let answer = match tube_config::rules(connection, tube) {
            Ok(rules) => rules.get(RuleKey::RetryDelay.word()).is_some(),
            Err(ClientError::Refused(_)) => false,
            Err(error) => return Err(error),
        };
        self.0.lock().expect("no slot panics").insert(tube.to_owned(), (Instant::now(), answer));
        Ok(answer)
    }
}
