//! What the API says of a refused operation.

use super::response::{ErrorKind, ErrorResponse};
use crate::queue::JobState;
use crate::server::outcome::{Refusal, Shortage};

const NO_TUBE: &str = "there is no such tube: look at /api/v1/tubes";

impl Refusal {
    /// The response of the API.
    pub(super) fn response(self) -> ErrorResponse {
        let (kind, message) = match self {
            Self::OutOfMemory(shortage) => return shortage.response(),
            Self::JobReserved { seconds_left } => {
                let message = format!(
                    "a client has reserved the job, and its TTR ends in {seconds_left} s: wait, or stop that worker"
                );
                return ErrorResponse::new(ErrorKind::Conflict, message);
            }
            Self::NoJob => (ErrorKind::NotFound, "there is no such job: it may have been deleted"),
            Self::NoJobInState => (ErrorKind::NotFound, "the tube has no job in this state at the moment"),
            Self::NoTube => (ErrorKind::NotFound, NO_TUBE),
            Self::NoGroup => {
                (ErrorKind::NotFound, "there is no such group: a group exists while it has a job")
            }
            Self::JobState(JobState::Held) => {
                (ErrorKind::Conflict, "the job waits for a group: kick it first")
            }
            Self::JobState(JobState::Ready) => {
                (ErrorKind::Conflict, "the job is ready: only a buried, delayed or held job can be kicked")
            }
            Self::JobState(state) => unreachable!("a {} job permits every operation", state.word()),
            Self::SameTube => (ErrorKind::Conflict, "the job is in this tube: name another tube"),
            Self::KeyExists => (
                ErrorKind::Conflict,
                "the other tube has a job with the same idempotency key: delete one of the jobs",
            ),
            Self::Draining => (
                ErrorKind::Draining,
                "the server is in drain mode and accepts no new jobs: use another server, or end drain mode",
            ),
            Self::JobTooBig => (ErrorKind::TooLarge, "the job body is too large (-z/--max-job-size)"),
            Self::NoCrlf | Self::BadFormat | Self::LastTube => {
                unreachable!("an operation is well-formed, and ignores no tube")
            }
        };
        ErrorResponse::new(kind, message)
    }
}

impl Shortage {
    pub(super) fn response(self) -> ErrorResponse {
        let message = match self {
            Self::Tubes => {
                "there are as many tubes as --max-tubes permits: use another tube, or raise the limit"
            }
            Self::Rule(key) => {
                let key = key.word();
                let message = format!("the tube is full by its rule {key}: delete jobs, or raise the rule");
                return ErrorResponse::new(ErrorKind::OutOfMemory, message);
            }
            Self::RuledTubes => "1,000 tubes have rules: remove those of another one",
            Self::JobLog => "the disk of the job log is full: make room on it",
            Self::Record => "the body of the job leaves no room for this tube name: use a shorter one",
            Self::Keys => {
                "idempotency keys take their share of --max-memory: use a shorter time to live, or flush kept keys (flush-keys)"
            }
            Self::Memory => {
                "the server is at its memory limit (--max-memory): delete jobs, or raise the limit"
            }
        };
        ErrorResponse::new(ErrorKind::OutOfMemory, message)
    }
}
