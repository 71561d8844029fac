//! What the API says of a refused operation.

use std::borrow::Cow;

use super::response::{ErrorKind, ErrorResponse};
use crate::queue::{FullBy, JobState};
use crate::server::Config;
use crate::server::outcome::{Refusal, Shortage};
use crate::server::rights::{Lacking, Missing};
use crate::values::tube_name::TubeName;

const NO_TUBE: &str = "there is no such tube: look at /api/v1/tubes";

/// The response to a job body that is too large.
pub(super) fn too_large(max_job_bytes: u32) -> ErrorResponse {
    let message = format!("a job body has at most {max_job_bytes} bytes (-z/--max-job-size)");
    ErrorResponse::new(ErrorKind::TooLarge, message)
}

impl Refusal {
    /// The response of the API, with the number of a limit that is reached.
    pub(super) fn response(self, config: &Config) -> ErrorResponse {
        self.response_to([None; 2], config)
    }

    /// The same for a request that names a tube, and one that gets its jobs.
    pub(super) fn response_to(self, tubes: [Option<TubeName<'_>>; 2], config: &Config) -> ErrorResponse {
        let (kind, message) = match self {
            Self::OutOfMemory(shortage) => return shortage.response(config),
            Self::Forbidden(missing) => return missing.response(tubes),
            Self::UserGone => (
                ErrorKind::Unauthorized,
                "this user is no longer in the file of --auth: send the token of another one",
            ),
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
            Self::NoSchedule => {
                (ErrorKind::NotFound, "there is no schedule of this name: look at /api/v1/schedules")
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
            Self::JobTooBig => return too_large(config.max_job_bytes),
            Self::NoCrlf | Self::BadFormat | Self::LastTube => {
                unreachable!("an operation is well-formed, and ignores no tube")
            }
        };
        ErrorResponse::new(kind, message)
    }
}

impl Missing {
    fn response(self, tubes: [Option<TubeName<'_>>; 2]) -> ErrorResponse {
        if self.on == Lacking::Key {
            return ErrorResponse::new(
                ErrorKind::Forbidden,
                "this user may not name the key or group of a tag: its name must match one of produce, consume or keys: see the \
                 file of --auth",
            );
        }
        let place = self.on.place(tubes);
        let message = format!("this user lacks the right {} {place}: see the file of --auth", self.rights);
        ErrorResponse { missing: self.rights, ..ErrorResponse::new(ErrorKind::Forbidden, message) }
    }
}

impl Shortage {
    pub(super) fn response(self, config: &Config) -> ErrorResponse {
        let message: Cow<'static, str> = match self {
            Self::Tubes => {
                let max = config.max_tubes.unwrap_or_default();
                format!("there are as many tubes as --max-tubes {max} permits: use another tube, or raise the limit").into()
            }
            Self::Rule(FullBy { rule, limit }) => {
                let rule = rule.word();
                format!("the tube is full by its rule {rule} {limit}: delete jobs, or raise the rule").into()
            }
            Self::Schedules => "there are 10,000 schedules: delete another one".into(),
            Self::RuledTubes => "1,000 tubes have rules: remove those of another one".into(),
            Self::JobLog => "the disk of the job log is full: make room on it".into(),
            Self::Record => {
                "the body of the job leaves no room for this tube name: use a shorter one".into()
            }
            Self::Keys => {
                "idempotency keys take their share of --max-memory: use a shorter time to live, or flush kept keys (flush-keys)"
                    .into()
            }
            Self::Memory => {
                let max = config.max_memory_bytes.unwrap_or_default();
                format!("the server is at its memory limit, --max-memory {max}: delete jobs, or raise the limit")
                    .into()
            }
        };
        ErrorResponse::new(ErrorKind::OutOfMemory, message)
    }
}
