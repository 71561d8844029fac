//! What became of the jobs of `beanring put`.

use std::fmt;
use std::time::Duration;

use beanring::replies::integer;
use beanring::replies::units::jobs;
use serde::Serialize;

use super::super::failure::JsonFailure;
use super::super::{ClientError, Output, Refusal, Reply, Untrusted, say};
use super::bodies::InputPlace;
use crate::cli::verbs::Put;

/// Counts of replies.
pub(super) struct Tally {
    tube: String,
    prints_ids: bool,
    prints_summary: bool,
    put: u64,
    refused: u64,
    first_id: Option<u64>,
    last_id: Option<u64>,
    first_refusal: Option<Refusal>,
    is_out_of_memory: bool,
    /// The job of which the reply is awaited.
    awaited: Option<InputPlace>,
}

#[derive(Serialize)]
struct JsonPut<'a> {
    id: u64,
    tube: &'a str,
    #[serde(flatten)]
    first: Option<First>,
}

/// The job that had the idempotency key first, after a put that has added none.
#[derive(Serialize)]
struct First {
    state: Untrusted,
    /// Its new priority, if this put has made it more urgent.
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<u64>,
}

#[derive(Serialize)]
struct JsonRefused<'a> {
    input: &'a str,
    reply: String,
    #[serde(flatten)]
    failure: JsonFailure,
}

#[derive(Serialize)]
struct JsonSummary<'a> {
    tube: &'a str,
    put: u64,
    refused: u64,
    first_id: Option<u64>,
    last_id: Option<u64>,
    first_refusal: Option<JsonFailure>,
    elapsed_seconds: f64,
}

impl Tally {
    pub(super) fn new(verb: &Put) -> Self {
        Self {
            tube: verb.tube().to_owned(),
            prints_ids: !verb.lines && !verb.quiet,
            prints_summary: verb.lines && !verb.quiet,
            put: 0,
            refused: 0,
            first_id: None,
            last_id: None,
            first_refusal: None,
            is_out_of_memory: false,
            awaited: None,
        }
    }

    /// A reply is awaited for this job.
    pub(super) fn in_flight(&mut self, place: InputPlace) {
        self.awaited = Some(place);
    }

    /// Counts the reply for the awaited job, and prints its id.
    pub(super) fn add(&mut self, reply: Reply, output: &mut Output) -> Result<(), ClientError> {
        let place = self.awaited.take().expect("a reply is awaited");
        if reply.word() != "INSERTED" {
            self.refused += 1;
            let refusal = || reply.refusal(place.to_string());
            if self.prints_ids && output.is_json() {
                let refusal = refusal();
                let (input, reply) = (&*refusal.subject, refusal.reply.to_string());
                output.json(&JsonRefused { input, reply, failure: JsonFailure::from(&refusal) })?;
            }
            self.is_out_of_memory |= reply.word() == "OUT_OF_MEMORY";
            self.first_refusal.get_or_insert_with(refusal);
            return Ok(());
        }
        let id = reply.count()?;
        self.put += 1;
        self.last_id = Some(id);
        self.first_id = self.first_id.or(self.last_id);
        if !self.prints_ids {
            return Ok(());
        }
        let first = First::of(&reply);
        if output.is_json() {
            return Ok(output.json(&JsonPut { id, tube: &self.tube, first })?);
        }
        output.line(&id.to_string())?;
        if let Some(first) = first {
            say(format_args!("beanring: no job is added: job {id} {first}"));
        }
        Ok(())
    }

    /// Whether a limit has refused a job whose name the reply does not say.
    pub(super) const fn is_out_of_memory(&self) -> bool {
        self.is_out_of_memory
    }

    /// Whether every job was put.
    pub(super) const fn is_complete(&self) -> bool {
        self.refused == 0
    }

    /// Prints the counts of many jobs, and the first refusal. After a signal, a line on stderr has the count.
    pub(super) fn report(
        &self,
        output: &mut Output,
        elapsed: Duration,
        is_interrupted: bool,
    ) -> Result<(), ClientError> {
        if self.prints_summary && output.is_json() {
            output.json(&JsonSummary {
                tube: &self.tube,
                put: self.put,
                refused: self.refused,
                first_id: self.first_id,
                last_id: self.last_id,
                first_refusal: self.first_refusal.as_ref().map(JsonFailure::from),
                elapsed_seconds: elapsed.as_secs_f64(),
            })?;
        } else if self.prints_summary && !is_interrupted {
            let (tube, seconds) = (&self.tube, elapsed.as_secs_f64());
            output.line(&format!("put {} into {tube} in {seconds:.2} s", jobs(self.put)))?;
        }
        if let Some(refusal) = &self.first_refusal
            && output.is_json()
            && !self.prints_ids
            && !self.prints_summary
        {
            output.json(&JsonFailure::from(refusal))?;
        }
        output.flush()?;
        if let Some(refusal) = &self.first_refusal {
            match self.put + self.refused {
                1 => say(format_args!("beanring: {refusal}")),
                all => say(format_args!(
                    "beanring: {} of {all} jobs were refused; the first: {refusal}",
                    self.refused
                )),
            }
        }
        Ok(())
    }

    /// The counts so far, for the message after a signal.
    pub(super) fn done(&self) -> String {
        format!("put {}", jobs(self.put))
    }

    /// Prints what is known of the jobs before an error.
    pub(super) fn report_rest(&self) {
        if self.put == 0 && self.awaited.is_none() {
            return;
        }
        let unknown = if self.awaited.is_some() { "; the server may have jobs beyond these" } else { "" };
        say(format_args!("beanring: put {} before the error{unknown}", jobs(self.put)));
    }
}

impl First {
    /// Reads `INSERTED <id> <state> [<pri>]`. A reply without a state is that to a new job.
    fn of(reply: &Reply) -> Option<Self> {
        let mut words = reply.line().bytes().split(|&byte| byte == b' ').skip(2);
        let state = Untrusted::from(words.next()?).to_lowercase();
        Some(Self { state, priority: words.next().and_then(integer) })
    }
}

/// Completes the sentence "job 7 ...".
impl fmt::Display for First {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "has this key and is {}", self.state)?;
        self.priority.map_or(Ok(()), |pri| write!(f, "; its priority is {pri} now"))
    }
}
