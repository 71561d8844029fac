//! From a request of the API to what is to be done: who may, with which body, and which arguments.

use std::fmt;
use std::sync::Arc;

use super::access::{HttpAccess, Peer, check_user};
use super::page::Page;
use super::refusals::too_large;
use super::request::Request;
use super::response::{ErrorKind, ErrorResponse, bad};
use super::schedules::{ScheduleTarget, SchedulesQuery};
use super::target::{ApiTarget, Name, PREFIX, PutTarget};
use super::tubes::TubeList;
use crate::queue::{JobState, PageQuery};
use crate::server::access::Permit;
use crate::server::put_refusals::PutReason;
use crate::server::rights::{Need, On};
use crate::server::{Config, Core, Rights, ServerRole, User};
use crate::values::ids::JobId;
use crate::values::limits::SCHEDULE_BYTES_MAX;
use crate::values::tube_name::TubeName;
use crate::values::tube_rules::RuleKey;
use crate::wal::replica::Member;

/// The longest JSON body: many times the arguments of any action.
pub(super) const JSON_BYTES_MAX: u64 = 4096;

/// What the API does in the place of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Operation {
    Tube(Name),
    Next(Name, JobState),
    Jobs(Name, PageQuery),
    Group(Name),
    Job(JobId),
    Body { id: JobId, limit: Option<u32> },
    Put(PutTarget),
    Pause { tube: Name, seconds: u32 },
    Kick { tube: Name, count: u32 },
    Flush(Name),
    Move { from: Name, state: JobState, to: Name, count: u32 },
    Config { tube: Name, key: RuleKey, value: Box<str> },
    KickJob(JobId),
    MoveJob { id: JobId, to: Name },
    Bury { id: JobId, priority: u32 },
    Release { id: JobId, priority: u32, delay: u32 },
    Delete(JobId),
    Schedules(SchedulesQuery),
    Schedule(Name),
    PutSchedule(Box<ScheduleTarget>),
    RunSchedule(Name),
    DeleteSchedule(Name),
    Drain,
    Undrain,
}

/// How a request is answered.
pub(super) enum Plan {
    Page(Page, Permit),
    Operation(Operation),
}

/// What the body of a request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BodyKind {
    /// There is none.
    Nothing,
    /// A small object, which must be complete before the request can be answered.
    Json,
    /// The body of a job, which is received as it comes.
    Job,
    /// The body of the jobs of a schedule, which is received in the same way.
    Schedule,
}

impl ApiTarget {
    /// What follows the head of a request for it.
    pub const fn body_kind(&self) -> BodyKind {
        match self {
            Self::Operation(Operation::Put(_)) => BodyKind::Job,
            Self::Operation(Operation::PutSchedule(_)) => BodyKind::Schedule,
            Self::Json => BodyKind::Json,
            _ => BodyKind::Nothing,
        }
    }
}

/// Checks the head of a request. Returns what it addresses, and with `--auth` the user.
pub(super) fn check(
    request: &Request,
    peer: &Peer,
    certified: Option<&User>,
    core: &mut Core,
) -> Result<(ApiTarget, Option<Arc<User>>), ErrorResponse> {
    HttpAccess::check_site(request)?;
    let access = &core.config.http_access;
    let user = core.access.users().map(|users| check_user(users, request, certified)).transpose()?;
    if user.is_none() {
        access.check_read(peer, request)?;
    }
    let target = find(request, None)?;
    if target != ApiTarget::Server {
        match core.log.role() {
            ServerRole::Standby(leader) => return Err(standby(leader.as_ref())),
            ServerRole::StandbyOfOwnAddress(_) => return Err(standby(None)),
            ServerRole::Serving | ServerRole::Ended(_) => {}
        }
    }
    if target.is_write() {
        match user {
            // The operation asks for the rights.
            Some(_) => HttpAccess::check_origin(request)?,
            None => access.check_write(request)?,
        }
    }
    check_body(request, target.body_kind(), core.config.max_job_bytes).inspect_err(|error| {
        if error.kind == ErrorKind::TooLarge && target.body_kind() == BodyKind::Job {
            core.puts.refusals.add(PutReason::TooBig);
        }
    })?;
    Ok((target, user))
}

/// Finds the target of a request, with its JSON body once that has come.
pub(super) fn find(request: &Request, json: Option<&[u8]>) -> Result<ApiTarget, ErrorResponse> {
    let path = request.path.strip_prefix(PREFIX).unwrap_or_default();
    // The limit of a body is checked next.
    let bytes = request.body_bytes.map_or(0, |bytes| u32::try_from(bytes).unwrap_or(u32::MAX));
    ApiTarget::find(&request.method, path, &request.query, bytes, json)
}

fn standby(leader: Option<&Member>) -> ErrorResponse {
    let message = match leader.map(|leader| (leader.http_url(), leader.address.rsplit_once(':'))) {
        Some((Some(url), _)) => format!("this server is a standby; ask the leader, {url}"),
        Some((None, Some((host, _)))) => format!(
            "this server is a standby; ask the leader, on the host {host} (with --advertise-http its URL is shown here)"
        ),
        _ => "this server is a standby; ask the leader".to_owned(),
    };
    ErrorResponse::new(ErrorKind::Standby, message)
}

fn check_body(request: &Request, kind: BodyKind, job_bytes_max: u32) -> Result<(), ErrorResponse> {
    let (media_type, bytes_max) = match kind {
        BodyKind::Nothing if request.body_bytes.unwrap_or(0) == 0 => return Ok(()),
        BodyKind::Nothing => {
            return Err(bad("this request takes no body: send none"));
        }
        BodyKind::Json => ("application/json", JSON_BYTES_MAX),
        BodyKind::Job => ("application/octet-stream", u64::from(job_bytes_max)),
        BodyKind::Schedule => ("application/octet-stream", u64::from(SCHEDULE_BYTES_MAX.min(job_bytes_max))),
    };
    let given = request.fields.content_type.as_deref().unwrap_or_default();
    let given = given.split(';').next().unwrap_or_default().trim_matches([' ', '\t']);
    if !given.eq_ignore_ascii_case(media_type) {
        let message = format!("set Content-Type: {media_type}");
        return Err(ErrorResponse::new(ErrorKind::UnsupportedMediaType, message));
    }
    match request.body_bytes {
        None => Err(ErrorResponse::new(
            ErrorKind::LengthRequired,
            "state the length of the body in Content-Length",
        )),
        Some(bytes) if bytes > bytes_max => {
            if kind == BodyKind::Job {
                return Err(too_large(job_bytes_max));
            }
            let message = format!("the body has at most {bytes_max} bytes");
            Err(ErrorResponse::new(ErrorKind::TooLarge, message))
        }
        Some(_) => Ok(()),
    }
}

impl Plan {
    /// What to do for a request whose JSON body has come, if it has one.
    pub fn new(target: ApiTarget, user: Option<&Arc<User>>, config: &Config) -> Result<Self, ErrorResponse> {
        let page = match target {
            ApiTarget::Server => Page::Server(user.cloned()),
            ApiTarget::Tubes(query) => Page::Tubes(Box::new(TubeList::new(query, user.cloned()))),
            ApiTarget::Operation(operation) => return Ok(Self::Operation(operation)),
            ApiTarget::Json => unreachable!("the body has come"),
        };
        match Permit::for_page(user.map(|user| &**user)) {
            Ok(permit) => Ok(Self::Page(page, permit)),
            Err(refusal) => Err(refusal.response(config)),
        }
    }
}

impl Operation {
    /// What a user needs for it. `admin` on its tube is enough to bury or release a job, since no client has reserved it.
    pub fn need(&self) -> Need<'_> {
        const ADMIN: Rights = Rights::ADMIN;
        match self {
            Self::Put(job) => Need::on(On::Tube(job.tube.get()), Rights::PRODUCE),
            Self::PutSchedule(schedule) => Need::schedule(schedule.name.get(), schedule.tube.get()),
            Self::Next(tube, _) => Need::on(On::Tube(tube.get()), Rights::INSPECT),
            Self::Kick { tube, .. } => Need::on(On::Tube(tube.get()), ADMIN),
            Self::Bury { id, .. } | Self::Release { id, .. } => {
                Need::on(On::Job(*id), Rights::CONSUME | ADMIN)
            }
            Self::Drain | Self::Undrain => Need::on(On::AllTubes, ADMIN),
            other => (&other.command().expect("the others execute a command")).into(),
        }
    }

    /// The memory of texts that its request has not.
    pub fn text_bytes(&self) -> usize {
        match self {
            Self::Move { to, .. } | Self::MoveJob { to, .. } => to.get().as_bytes().len(),
            Self::PutSchedule(schedule) => schedule.memory_bytes(),
            _ => 0,
        }
    }

    /// The word for it in log lines, if it changes something.
    pub const fn action(&self) -> Option<&'static str> {
        match self {
            Self::Tube(_)
            | Self::Next(..)
            | Self::Jobs(..)
            | Self::Group(_)
            | Self::Job(_)
            | Self::Body { .. }
            | Self::Schedules(_)
            | Self::Schedule(_) => None,
            Self::Put(_) => Some("put"),
            Self::Pause { .. } => Some("pause"),
            Self::Kick { .. } => Some("kick"),
            Self::Flush(_) => Some("flush"),
            Self::Move { .. } => Some("move"),
            Self::MoveJob { .. } => Some("move-job"),
            Self::Config { .. } => Some("config"),
            Self::KickJob(_) => Some("kick-job"),
            Self::Bury { .. } => Some("bury"),
            Self::Release { .. } => Some("release"),
            Self::Delete(_) => Some("delete"),
            Self::PutSchedule(_) => Some("schedule-put"),
            Self::RunSchedule(_) => Some("schedule-run"),
            Self::DeleteSchedule(_) => Some("schedule-delete"),
            Self::Drain => Some("drain"),
            Self::Undrain => Some("undrain"),
        }
    }

    pub fn tube(&self) -> Option<&str> {
        self.need().tubes()[0].map(TubeName::as_str)
    }

    pub fn schedule(&self) -> Option<&str> {
        self.need().0.into_iter().find_map(|(on, _)| match on {
            On::Schedule(name) => Some(name.as_str()),
            _ => None,
        })
    }

    pub fn job(&self) -> Option<u64> {
        self.need().0.into_iter().find_map(|(on, _)| match on {
            On::Job(JobId(id)) => Some(id),
            _ => None,
        })
    }

    /// The length of a body that is received as it comes.
    pub const fn body_bytes(&self) -> Option<u32> {
        match self {
            Self::Put(job) => Some(job.args.bytes),
            Self::PutSchedule(schedule) => Some(schedule.args.bytes),
            _ => None,
        }
    }
}

/// What it does, for log lines.
impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.action().unwrap_or("show"))?;
        match self {
            Self::Put(job) => {
                write!(f, " of {}", Count(job.args.bytes, "byte"))?;
                let tags = job.tags.get();
                if !tags.is_empty() {
                    write!(f, " with {}", tags.as_str())?;
                }
            }
            Self::PutSchedule(schedule) => write!(f, " of {}", Count(schedule.args.bytes, "byte"))?,
            Self::Move { state, to, count, .. } => {
                let what = format!("{} job", state.word());
                write!(f, " of at most {} to {}", Count(*count, &what), to.get().as_str())?;
            }
            Self::MoveJob { to, .. } => write!(f, " to {}", to.get().as_str())?,
            Self::Pause { seconds, .. } => write!(f, " for {seconds} s")?,
            Self::Kick { count, .. } => write!(f, " of at most {}", Count(*count, "job"))?,
            Self::Config { key, value, .. } => write!(f, " of {} {value}", key.word())?,
            Self::Bury { priority, .. } => write!(f, " with priority {priority}")?,
            Self::Release { priority, delay, .. } => {
                write!(f, " with priority {priority} and a delay of {delay} s")?;
            }
            _ => {}
        }
        if let Some(schedule) = self.schedule() {
            write!(f, ", schedule {schedule}")?;
        }
        if let Some(tube) = self.tube() {
            write!(f, ", tube {tube}")?;
        }
        self.job().map_or(Ok(()), |job| write!(f, ", job {job}"))
    }
}

/// A number of things: "1 job", "2 jobs".
struct Count<'a>(u32, &'a str);

impl fmt::Display for Count<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(number, thing) = self;
        write!(f, "{number} {thing}{}", if *number == 1 { "" } else { "s" })
    }
}
