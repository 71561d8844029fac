//! What a request of the API addresses: its path and its query, and which methods the path has.
//!
//! Bounded by HTTP_REQUEST_BYTES_MAX: the head of one request.

use std::ops::RangeInclusive;

use super::response::{ErrorKind, ErrorResponse};
use super::schedules::{ScheduleTarget, SchedulesQuery};
use super::selection::LIMIT_MAX;
use super::tubes::{Order, Query, SortKey};
use crate::queue::{JobState, PageQuery};
use crate::values::ids::JobId;
use crate::values::limits::{PRIORITY_DEFAULT, TTR_SECONDS_DEFAULT, TUBE_NAME_BYTES_MAX};
use crate::values::tags::Tags;
use crate::values::tube_name::TubeName;

/// What every path of an API begins with, of whatever version.
const ROOT: &str = "/api";

/// Every path of this version of the API begins with it.
pub(super) const PREFIX: &str = "/api/v1/";

/// Tubes, jobs or schedules in one response, if the request does not say.
pub(super) const LIMIT_DEFAULT: u32 = 100;

/// How much of the name of an unknown parameter its refusal shows.
const PARAMETER_CHARS_SHOWN: usize = 40;

/// The name of a tube, a group or a schedule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Name(Box<[u8]>);

/// What the request wants, as far as its head says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Target {
    Server,
    Tubes(Query),
    Tube(Name),
    /// Not `Held`.
    Next(Name, JobState),
    Jobs(Name, PageQuery),
    Group(Name),
    Job(JobId),
    Body {
        id: JobId,
        limit: Option<u32>,
    },
    Put(PutTarget),
    Pause(Name),
    Kick(Name),
    Flush(Name),
    Move(Name),
    Config(Name),
    KickJob(JobId),
    MoveJob(JobId),
    Bury(JobId),
    Release(JobId),
    Delete(JobId),
    Schedules(SchedulesQuery),
    Schedule(Name),
    PutSchedule(Box<ScheduleTarget>),
    RunSchedule(Name),
    DeleteSchedule(Name),
    Drain,
    Undrain,
}

/// The job of a put, but its body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct PutTarget {
    pub tube: Name,
    pub priority: u32,
    pub delay: u32,
    pub ttr: u32,
    pub tags: PutTags,
}

/// The tags of a put.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct PutTags(Box<[u8]>);

impl PutTags {
    /// Takes the tags, each of which is a parameter with the name of its kind.
    fn read(parameters: &mut Parameters) -> Result<Self, ErrorResponse> {
        let mut words = Vec::new();
        for kind in ["idp", "con", "grp", "aft"] {
            let Some(value) = parameters.take(kind) else { continue };
            let word = format!("{kind}:{value}");
            // A space would begin another tag.
            if value.contains(' ') || Tags::new(word.as_bytes()).is_none() {
                return Err(bad(format!("{kind} is no valid tag: docs/PROTOCOL.md, Put")));
            }
            words.push(word);
        }
        let text = words.join(" ").into_bytes().into_boxed_slice();
        if !text.is_empty() && Tags::new(&text).is_none() {
            let message = "a job cannot wait for its own group: give different names in grp and aft";
            return Err(ErrorResponse::new(ErrorKind::Conflict, message));
        }
        Ok(Self(text))
    }

    pub fn get(&self) -> Tags<'_> {
        if self.0.is_empty() { Tags::NONE } else { Tags::new(&self.0).expect("the tags were checked") }
    }
}

impl Name {
    /// Checks the name of a tube.
    pub fn new(name: &[u8]) -> Result<Self, ErrorResponse> {
        Self::of("tube", name)
    }

    /// Checks the name of a tube, a group or a schedule.
    pub fn of(kind: &str, name: &[u8]) -> Result<Self, ErrorResponse> {
        let rule = "name has 1 to 200 bytes of A-Z a-z 0-9 - + / ; . $ _ ( ), and does not begin with -";
        TubeName::new(name)
            .map(|name| Self(name.as_bytes().into()))
            .ok_or_else(|| bad(format!("a {kind} {rule}")))
    }

    pub fn get(&self) -> TubeName<'_> {
        TubeName::new(&self.0).expect("the name was checked")
    }
}

impl Target {
    /// Finds the target of a path below [`PREFIX`].
    pub fn find(method: &str, path: &str, query: &str) -> Result<Self, ErrorResponse> {
        let segments: Option<Vec<Vec<u8>>> = path.split('/').map(|segment| decode(segment, false)).collect();
        let segments = segments.ok_or_else(|| bad("the path has a % without two hexadecimal digits"))?;
        let words: Vec<&[u8]> = segments.iter().map(Vec::as_slice).collect();
        let mut parameters = Parameters::parse(query)?;
        let get = matches!(method, "GET" | "HEAD");
        let (post, delete) = (method == "POST", method == "DELETE");
        let target = match *words {
            [b"server"] if get => Self::Server,
            [b"tubes"] if get => Self::Tubes(tubes_query(&mut parameters)?),
            [b"tubes", tube] if get => Self::Tube(name(tube)?),
            [b"tubes", tube, b"next", state] if get && next_state(state).is_some() => {
                Self::Next(name(tube)?, next_state(state).expect("the guard has found it"))
            }
            [b"tubes", tube, b"jobs"] if get => Self::Jobs(name(tube)?, jobs_query(&mut parameters)?),
            [b"tubes", tube, b"jobs"] if post => Self::Put(put_target(tube, &mut parameters)?),
            [b"tubes", tube, b"pause"] if post => Self::Pause(name(tube)?),
            [b"tubes", tube, b"kick"] if post => Self::Kick(name(tube)?),
            [b"tubes", tube, b"flush"] if post => Self::Flush(name(tube)?),
            [b"tubes", tube, b"move"] if post => Self::Move(name(tube)?),
            [b"groups", group] if get => Self::Group(name_of("group", group)?),
            [b"tubes", tube, b"config"] if post => Self::Config(name(tube)?),
            [b"jobs", job] if get => Self::Job(id(job)?),
            [b"jobs", job] if delete => Self::Delete(id(job)?),
            [b"jobs", job, b"body"] if get => {
                let limit = parameters.optional("limit", 0..=u32::MAX)?;
                Self::Body { id: id(job)?, limit }
            }
            [b"jobs", job, b"kick"] if post => Self::KickJob(id(job)?),
            [b"jobs", job, b"move"] if post => Self::MoveJob(id(job)?),
            [b"jobs", job, b"bury"] if post => Self::Bury(id(job)?),
            [b"jobs", job, b"release"] if post => Self::Release(id(job)?),
            [b"schedules"] if get => Self::Schedules(SchedulesQuery::read(&mut parameters)?),
            [b"schedules", schedule] => {
                let name = || name_of("schedule", schedule);
                match method {
                    _ if get => Self::Schedule(name()?),
                    "PUT" => Self::PutSchedule(Box::new(ScheduleTarget::read(name()?, &mut parameters)?)),
                    "DELETE" => Self::DeleteSchedule(name()?),
                    _ => return Err(miss(&words)),
                }
            }
            [b"schedules", schedule, b"run"] if post => Self::RunSchedule(name_of("schedule", schedule)?),
            [b"drain"] if post => Self::Drain,
            [b"undrain"] if post => Self::Undrain,
            _ => return Err(miss(&words)),
        };
        parameters.end()?;
        Ok(target)
    }

    /// Whether it changes something.
    pub const fn is_write(&self) -> bool {
        !matches!(
            self,
            Self::Server
                | Self::Tubes(_)
                | Self::Tube(_)
                | Self::Next(..)
                | Self::Jobs(..)
                | Self::Group(_)
                | Self::Job(_)
                | Self::Body { .. }
                | Self::Schedules(_)
                | Self::Schedule(_)
        )
    }
}

/// Whether a path is one of the API, of whatever version.
pub(super) fn is_of_api(path: &str) -> bool {
    path.strip_prefix(ROOT).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The answer to a path that the API does not have.
pub(super) fn no_such_path() -> ErrorResponse {
    ErrorResponse::new(ErrorKind::NotFound, "the API has no such path: docs/HTTP-API.md lists them")
}

/// Why no target has the path, or none with the method.
fn miss(words: &[&[u8]]) -> ErrorResponse {
    let allow = match *words {
        [b"server" | b"tubes"] | [b"tubes", _] => "GET, HEAD",
        [b"tubes", _, b"next", state] if next_state(state).is_some() => "GET, HEAD",
        [b"groups", _] | [b"schedules"] => "GET, HEAD",
        [b"schedules", _] => "GET, HEAD, PUT, DELETE",
        [b"jobs", _] => "GET, HEAD, DELETE",
        [b"jobs", _, b"body"] => "GET, HEAD",
        [b"tubes", _, b"jobs"] => "GET, HEAD, POST",
        [b"tubes", _, b"pause" | b"kick" | b"flush" | b"move" | b"config"] | [b"drain" | b"undrain"] => {
            "POST"
        }
        [b"jobs", _, b"kick" | b"move" | b"bury" | b"release"] | [b"schedules", _, b"run"] => "POST",
        [b"tubes", _, b"next", _] => {
            let message = "next has the states ready, reserved, delayed and buried: list held jobs with jobs?state=held";
            return ErrorResponse::new(ErrorKind::NotFound, message);
        }
        _ => return no_such_path(),
    };
    let message = format!("this path has only {allow}");
    ErrorResponse { allow: Some(allow), ..ErrorResponse::new(ErrorKind::MethodNotAllowed, message) }
}

/// The message about an argument that is no number, or not in its range.
pub(super) fn must_be_whole(name: &str, range: &RangeInclusive<u32>) -> String {
    format!("{name} must be a whole number from {} to {}", range.start(), range.end())
}

fn bad(message: impl Into<String>) -> ErrorResponse {
    ErrorResponse::new(ErrorKind::BadRequest, message.into())
}

fn name(segment: &[u8]) -> Result<Name, ErrorResponse> {
    name_of("tube", segment)
}

/// Reads the name of a tube, a group or a schedule. It may be encoded twice, which is unambiguous since no name contains `%`: a browser resolves the
/// segments `.` and `..` even where they are encoded, so it cannot name these tubes in another way.
fn name_of(kind: &str, segment: &[u8]) -> Result<Name, ErrorResponse> {
    let decoded = str::from_utf8(segment).ok().and_then(|text| decode(text, false));
    Name::of(kind, decoded.as_deref().unwrap_or(segment))
}

fn id(segment: &[u8]) -> Result<JobId, ErrorResponse> {
    let text = str::from_utf8(segment).ok();
    let digits = text.filter(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()));
    digits.and_then(|text| text.parse().ok()).map(JobId).ok_or_else(|| bad("a job id is a decimal number"))
}

/// The state of the job that `next` shows.
fn next_state(word: &[u8]) -> Option<JobState> {
    JobState::named(word).filter(|&state| state != JobState::Held)
}

fn tubes_query(parameters: &mut Parameters) -> Result<Query, ErrorResponse> {
    let sort = match parameters.take("sort").as_deref() {
        None => SortKey::Name,
        Some(word) => SortKey::find(word).ok_or_else(|| {
            bad("sort must be name, ready, reserved, delayed, buried, held, waiting, puts, deletes, oldest or paused")
        })?,
    };
    let order = match parameters.take("order").as_deref() {
        None | Some("asc") => Order::Ascending,
        Some("desc") => Order::Descending,
        Some(_) => return Err(bad("order must be asc or desc")),
    };
    let after = parameters.take("after").map(|text| Name::new(text.as_bytes())).transpose()?;
    if after.is_some() && sort != SortKey::Name {
        let message = "after needs the order of names: leave out sort";
        return Err(ErrorResponse::new(ErrorKind::Conflict, message));
    }
    let offset = parameters.number("offset", 0, 0..=u32::MAX)?;
    let limit = parameters.number("limit", LIMIT_DEFAULT, 1..=LIMIT_MAX)?;
    let filter = parameters.take("filter").unwrap_or_default();
    if filter.chars().count() > TUBE_NAME_BYTES_MAX {
        return Err(bad(format!("filter has at most {TUBE_NAME_BYTES_MAX} characters")));
    }
    Ok(Query { filter, sort, order, after, offset, limit })
}

fn put_target(tube: &[u8], parameters: &mut Parameters) -> Result<PutTarget, ErrorResponse> {
    Ok(PutTarget {
        tube: name(tube)?,
        priority: parameters.number("priority", PRIORITY_DEFAULT, 0..=u32::MAX)?,
        delay: parameters.number("delay", 0, 0..=u32::MAX)?,
        ttr: parameters.number("ttr", TTR_SECONDS_DEFAULT, 0..=u32::MAX)?,
        tags: PutTags::read(parameters)?,
    })
}

fn jobs_query(parameters: &mut Parameters) -> Result<PageQuery, ErrorResponse> {
    let state = match parameters.take("state") {
        None => JobState::Ready,
        Some(word) => JobState::named(word.as_bytes())
            .ok_or_else(|| bad("state must be ready, reserved, delayed, buried or held"))?,
    };
    let after = parameters
        .take("after")
        .map(|text| id(text.as_bytes()).map_err(|_| bad("after must be the id of a job, a decimal number")));
    let after = after.transpose()?.unwrap_or(JobId(0));
    let limit = parameters.number("limit", LIMIT_DEFAULT, 1..=LIMIT_MAX)?;
    Ok(PageQuery { state, after, limit })
}

/// The parameters of a query that no target has taken yet.
pub(super) struct Parameters(Vec<(String, String)>);

impl Parameters {
    fn parse(query: &str) -> Result<Self, ErrorResponse> {
        let mut all: Vec<(String, String)> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let text = |part| decode(part, true).and_then(|bytes| String::from_utf8(bytes).ok());
            let (Some(name), Some(value)) = (text(name), text(value)) else {
                return Err(bad("the query must be UTF-8, with % before two hexadecimal digits"));
            };
            if all.iter().any(|(known, _)| *known == name) {
                return Err(bad(format!("the query has the parameter {} twice", shown(&name))));
            }
            all.push((name, value));
        }
        Ok(Self(all))
    }

    pub fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.swap_remove(at).1)
    }

    pub fn number(
        &mut self,
        name: &str,
        default: u32,
        range: RangeInclusive<u32>,
    ) -> Result<u32, ErrorResponse> {
        Ok(self.optional(name, range)?.unwrap_or(default))
    }

    fn optional(&mut self, name: &str, range: RangeInclusive<u32>) -> Result<Option<u32>, ErrorResponse> {
        let Some(text) = self.take(name) else { return Ok(None) };
        let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse() {
            Ok(number) if is_plain && range.contains(&number) => Ok(Some(number)),
            _ => Err(bad(must_be_whole(name, &range))),
        }
    }

    /// Refuses parameters that the target does not have.
    fn end(self) -> Result<(), ErrorResponse> {
        match self.0.first() {
            None => Ok(()),
            Some((name, _)) => Err(bad(format!(
                "this path has no parameter {}: docs/HTTP-API.md lists those of each path",
                shown(name)
            ))),
        }
    }
}

/// The name of a parameter in a message: its beginning, if it is long.
fn shown(name: &str) -> String {
    let short: String = name.chars().take(PARAMETER_CHARS_SHOWN).collect();
    format!("\"{}{}\"", short.escape_debug(), if short.len() < name.len() { "..." } else { "" })
}

/// Decodes percent-encoded text. In a query, `+` stands for a space. Returns `None` for a `%` without two hexadecimal digits.
fn decode(text: &str, is_query: bool) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        match first {
            b'%' => {
                let (digits, tail) = rest.split_at_checked(2)?;
                let digit = |byte: u8| char::from(byte).to_digit(16);
                bytes.push((digit(digits[0])? << 4 | digit(digits[1])?) as u8);
                rest = tail;
            }
            b'+' if is_query => bytes.push(b' '),
            other => bytes.push(*other),
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(method: &str, target: &str) -> Result<Target, ErrorKind> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        Target::find(method, path, query).map_err(|refusal| refusal.kind)
    }

    #[test]
    fn each_path_has_its_methods() {
        let tube = || name(b"a/b").expect("the name is valid");
        let jobs =
            |state, after, limit| Target::Jobs(tube(), PageQuery { state, after: JobId(after), limit });
        let put = |tags: &[u8]| {
            let tags = PutTags(tags.into());
            Target::Put(PutTarget { tube: tube(), priority: PRIORITY_DEFAULT, delay: 1, ttr: 9, tags })
        };
        for (method, path, target) in [
            ("GET", "server", Target::Server),
            ("HEAD", "server", Target::Server),
            ("GET", "tubes/a%2fb", Target::Tube(tube())),
            ("GET", "tubes/a%252Fb", Target::Tube(tube())),
            ("GET", "tubes/a%2Fb/next/buried", Target::Next(tube(), JobState::Buried)),
            ("GET", "tubes/a%2Fb/jobs", jobs(JobState::Ready, 0, 100)),
            (
                "GET",
                "tubes/a%2Fb/jobs?state=buried&after=18446744073709551615&limit=500",
                jobs(JobState::Buried, u64::MAX, 500),
            ),
            ("GET", "jobs/7", Target::Job(JobId(7))),
            ("DELETE", "jobs/7", Target::Delete(JobId(7))),
            ("GET", "jobs/7/body?limit=9", Target::Body { id: JobId(7), limit: Some(9) }),
            ("GET", "tubes/a%2Fb/next/reserved", Target::Next(tube(), JobState::Reserved)),
            ("GET", "tubes/a%2Fb/jobs?state=held", jobs(JobState::Held, 0, 100)),
            ("GET", "groups/a%2fb", Target::Group(tube())),
            ("POST", "tubes/a%2Fb/jobs?ttr=9&delay=1", put(b"")),
            (
                "POST",
                "tubes/a%2Fb/jobs?ttr=9&aft=x&delay=1&idp=a%2Fb:60&grp=y&con=c:2",
                put(b"idp:a/b:60 con:c:2 grp:y aft:x"),
            ),
            ("POST", "tubes/a%2Fb/move", Target::Move(tube())),
            ("POST", "jobs/7/move", Target::MoveJob(JobId(7))),
            ("POST", "tubes/a%2Fb/pause", Target::Pause(tube())),
            ("POST", "tubes/a%2Fb/kick", Target::Kick(tube())),
            ("POST", "tubes/a%2Fb/flush", Target::Flush(tube())),
            ("POST", "tubes/a%2Fb/config", Target::Config(tube())),
            ("POST", "jobs/7/kick", Target::KickJob(JobId(7))),
            ("POST", "jobs/7/bury", Target::Bury(JobId(7))),
            ("POST", "jobs/7/release", Target::Release(JobId(7))),
            (
                "GET",
                "schedules?after=a/b&limit=9",
                Target::Schedules(SchedulesQuery { after: Some(tube()), limit: 9 }),
            ),
            ("HEAD", "schedules/a%252Fb", Target::Schedule(tube())),
            ("DELETE", "schedules/a%2Fb", Target::DeleteSchedule(tube())),
            ("POST", "schedules/a%2Fb/run", Target::RunSchedule(tube())),
            ("POST", "drain", Target::Drain),
            ("POST", "undrain", Target::Undrain),
        ] {
            let is_write = !matches!(method, "GET" | "HEAD");
            let found = find(method, path).expect(path);
            assert_eq!((found.is_write(), found), (is_write, target), "{method} {path}");
            for other in ["GET", "POST", "DELETE", "PUT", "OPTIONS", "TRACE"] {
                let is_other = !(method == "HEAD" && other == "GET") && other != method;
                let has_several = path.starts_with("jobs/7")
                    || path.starts_with("tubes/a%2Fb/jobs")
                    || path.starts_with("schedules/");
                if is_other && !has_several {
                    assert_eq!(find(other, path), Err(ErrorKind::MethodNotAllowed), "{other} {path}");
                }
            }
        }
    }

    #[test]
    fn a_wrong_parameter_is_named() {
        let message = |query: &str| Target::find("GET", "tubes", query).unwrap_err().message;
        assert_eq!(
            message("limt=5"),
            "this path has no parameter \"limt\": docs/HTTP-API.md lists those of each path"
        );
        assert_eq!(message("limit=5&limit=6"), "the query has the parameter \"limit\" twice");
        let long = message(&format!("%0A{}=5", "a".repeat(3000)));
        assert!(
            long.starts_with(&format!("this path has no parameter \"\\n{}...\"", "a".repeat(39))),
            "{long}"
        );
    }

    #[test]
    fn malformed_targets_are_refused() {
        for (target, kind) in [
            ("", ErrorKind::NotFound),
            ("nothing", ErrorKind::NotFound),
            ("server/", ErrorKind::NotFound),
            ("tubes/a/next/held", ErrorKind::NotFound),
            ("groups", ErrorKind::NotFound),
            ("groups/-a", ErrorKind::BadRequest),
            ("tubes/", ErrorKind::BadRequest),
            ("tubes/-a", ErrorKind::BadRequest),
            ("tubes/a%", ErrorKind::BadRequest),
            ("tubes/a%0", ErrorKind::BadRequest),
            ("tubes/%00", ErrorKind::BadRequest),
            ("tubes/a%20b", ErrorKind::BadRequest),
            ("tubes/a%25252Fb", ErrorKind::BadRequest),
            ("tubes/a%2500", ErrorKind::BadRequest),
            ("jobs/a", ErrorKind::BadRequest),
            ("jobs/-1", ErrorKind::BadRequest),
            ("jobs/+1", ErrorKind::BadRequest),
            ("jobs/18446744073709551616", ErrorKind::BadRequest),
            ("server?a=1", ErrorKind::BadRequest),
            ("tubes?limit=0", ErrorKind::BadRequest),
            ("tubes?limit=501", ErrorKind::BadRequest),
            ("tubes?limit=1&limit=1", ErrorKind::BadRequest),
            ("tubes?offset=4294967296", ErrorKind::BadRequest),
            ("tubes?sort=color", ErrorKind::BadRequest),
            ("tubes?order=up", ErrorKind::BadRequest),
            ("tubes?after=-a", ErrorKind::BadRequest),
            ("tubes?after=a&sort=ready", ErrorKind::Conflict),
            ("tubes?filter=%ff", ErrorKind::BadRequest),
            ("jobs/1/body?limit=x", ErrorKind::BadRequest),
            ("tubes/a/jobs?state=deleted", ErrorKind::BadRequest),
            ("tubes/a/jobs?idp=a", ErrorKind::BadRequest),
            ("tubes/a/jobs?after=-1", ErrorKind::BadRequest),
            ("tubes/a/jobs?after=18446744073709551616", ErrorKind::BadRequest),
            ("tubes/a/jobs?limit=0", ErrorKind::BadRequest),
            ("tubes/a/jobs?limit=501", ErrorKind::BadRequest),
            ("tubes/a/jobs?ttr=1", ErrorKind::BadRequest),
            ("jobs/1/body?limit=4294967296", ErrorKind::BadRequest),
            ("schedules?after=-a", ErrorKind::BadRequest),
            ("schedules?limit=501", ErrorKind::BadRequest),
            ("schedules?offset=1", ErrorKind::BadRequest),
            ("schedules/-a", ErrorKind::BadRequest),
            ("schedules/a?limit=1", ErrorKind::BadRequest),
            ("schedules/a/run", ErrorKind::MethodNotAllowed),
            ("schedules/a/body", ErrorKind::NotFound),
        ] {
            assert_eq!(find("GET", target), Err(kind), "{target}");
        }
        for tags in ["idp=", "idp=a:b", "con=a:0", "grp=a:1", "aft=-a", "idp=a+con:b", "idp=a&idp=b"] {
            let target = format!("tubes/a/jobs?{tags}");
            assert_eq!(find("POST", &target), Err(ErrorKind::BadRequest), "{target}");
        }
        assert_eq!(find("POST", "tubes/a/jobs?grp=a&aft=a"), Err(ErrorKind::Conflict));
        let long = format!("tubes?filter={}", "a".repeat(201));
        assert_eq!(find("GET", &long), Err(ErrorKind::BadRequest));
        let plus = find("GET", "tubes?filter=a+b%2B");
        assert!(matches!(plus, Ok(Target::Tubes(Query { filter, .. })) if filter == "a b+"));
    }
}
