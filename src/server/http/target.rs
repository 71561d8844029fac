//! What a request of the API addresses: its path and its query, and which methods the path has.
//!
//! Bounded by HTTP_HEAD_BYTES_MAX: the head of one request.

use std::ops::RangeInclusive;

use super::api::Operation;
use super::arguments::{self, Members};
use super::response::{ErrorKind, ErrorResponse, bad};
use super::schedules::{ScheduleTarget, SchedulesQuery};
use super::selection::LIMIT_MAX;
use super::tubes::{Order, Query, SortKey};
use crate::protocol::command::PutArgs;
use crate::queue::{JobState, PageQuery};
use crate::time::Seconds;
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

/// What a request wants.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum ApiTarget {
    Server,
    Tubes(Query),
    Operation(Operation),
    /// An operation whose arguments are the members of the JSON body, which is still to come.
    Json,
}

/// Why no target is found.
enum Miss {
    /// No path is the one of the request, or none with this method.
    NoPath,
    /// The JSON body is needed.
    NoJson,
    Refused(ErrorResponse),
}

/// A request whose target is looked for.
struct Lookup<'a> {
    is_get: bool,
    is_post: bool,
    method: &'a str,
    parameters: Parameters,
    json: Option<&'a [u8]>,
    /// The length of any body.
    bytes: u32,
}

/// The job of a put, but its body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct PutTarget {
    pub tube: Name,
    pub args: PutArgs,
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

impl From<ErrorResponse> for Miss {
    fn from(refusal: ErrorResponse) -> Self {
        Self::Refused(refusal)
    }
}

impl ApiTarget {
    /// Finds the target of a path below [`PREFIX`], for a body of this length, and for its JSON once that has come.
    pub fn find(
        method: &str,
        path: &str,
        query: &str,
        bytes: u32,
        json: Option<&[u8]>,
    ) -> Result<Self, ErrorResponse> {
        let segments: Option<Vec<Vec<u8>>> = path.split('/').map(|segment| decode(segment, false)).collect();
        let segments = segments.ok_or_else(|| bad("the path has a % without two hexadecimal digits"))?;
        let words: Vec<&[u8]> = segments.iter().map(Vec::as_slice).collect();
        let mut lookup = Lookup::new(method, Parameters::parse(query)?, bytes, json);
        let target = match lookup.find(&words) {
            Ok(target) => target,
            Err(Miss::NoJson) => Self::Json,
            Err(Miss::NoPath) => return Err(miss(&words)),
            Err(Miss::Refused(refusal)) => return Err(refusal),
        };
        lookup.parameters.end()?;
        Ok(target)
    }

    /// Whether it changes something.
    pub const fn is_write(&self) -> bool {
        match self {
            Self::Server | Self::Tubes(_) => false,
            Self::Operation(operation) => operation.action().is_some(),
            Self::Json => true,
        }
    }
}

impl<'a> Lookup<'a> {
    fn new(method: &'a str, parameters: Parameters, bytes: u32, json: Option<&'a [u8]>) -> Self {
        let (is_get, is_post) = (matches!(method, "GET" | "HEAD"), method == "POST");
        Self { is_get, is_post, method, parameters, json, bytes }
    }

    fn json(&self) -> Result<&'a [u8], Miss> {
        self.json.ok_or(Miss::NoJson)
    }

    /// Checks that the JSON body has no members.
    fn no_arguments(&self) -> Result<(), Miss> {
        let [] = arguments::read(self.json()?, [])?;
        Ok(())
    }

    fn find(&mut self, words: &[&[u8]]) -> Result<ApiTarget, Miss> {
        let operation = match *words {
            [b"server"] if self.is_get => return Ok(ApiTarget::Server),
            [b"tubes"] if self.is_get => return Ok(ApiTarget::Tubes(tubes_query(&mut self.parameters)?)),
            [b"tubes", tube] if self.is_get => Operation::Tube(name(tube)?),
            [b"tubes", tube, ref rest @ ..] => self.of_tube(tube, rest)?,
            [b"groups", group] if self.is_get => Operation::Group(name_of("group", group)?),
            [b"jobs", job, ref rest @ ..] => self.of_job(job, rest)?,
            [b"schedules"] if self.is_get => {
                Operation::Schedules(SchedulesQuery::read(&mut self.parameters)?)
            }
            [b"schedules", schedule, ref rest @ ..] => self.of_schedule(schedule, rest)?,
            [b"drain"] if self.is_post => self.no_arguments().map(|()| Operation::Drain)?,
            [b"undrain"] if self.is_post => self.no_arguments().map(|()| Operation::Undrain)?,
            _ => return Err(Miss::NoPath),
        };
        Ok(ApiTarget::Operation(operation))
    }

    fn of_tube(&mut self, tube: &[u8], rest: &[&[u8]]) -> Result<Operation, Miss> {
        Ok(match *rest {
            [b"next", state] => {
                let Some(state) = next_state(state) else {
                    let message = "next has the states ready, reserved, delayed and buried: list held jobs with jobs?state=held";
                    return Err(ErrorResponse::new(ErrorKind::NotFound, message).into());
                };
                if !self.is_get {
                    return Err(Miss::NoPath);
                }
                Operation::Next(name(tube)?, state)
            }
            [b"jobs"] if self.is_get => Operation::Jobs(name(tube)?, jobs_query(&mut self.parameters)?),
            [b"jobs"] if self.is_post => {
                let (tube, args) = (name(tube)?, put_args(&mut self.parameters, self.bytes)?);
                Operation::Put(PutTarget { tube, args, tags: PutTags::read(&mut self.parameters)? })
            }
            [b"pause"] if self.is_post => {
                let tube = name(tube)?;
                let [seconds] = arguments::read(self.json()?, ["seconds"])?;
                Operation::Pause { tube, seconds }
            }
            [b"kick"] if self.is_post => Operation::Kick {
                tube: name(tube)?,
                count: Members::read(self.json()?, &["count"])?.count()?,
            },
            [b"flush"] if self.is_post => {
                let tube = name(tube)?;
                self.no_arguments().map(|()| Operation::Flush(tube))?
            }
            [b"move"] if self.is_post => move_of(name(tube)?, self.json()?)?,
            [b"config"] if self.is_post => {
                let tube = name(tube)?;
                let (key, value) = arguments::rule(self.json()?, tube.get())?;
                Operation::Config { tube, key, value }
            }
            _ => return Err(Miss::NoPath),
        })
    }

    fn of_job(&mut self, job: &[u8], rest: &[&[u8]]) -> Result<Operation, Miss> {
        Ok(match *rest {
            [] if self.is_get => Operation::Job(id(job)?),
            [] if self.method == "DELETE" => Operation::Delete(id(job)?),
            [b"body"] if self.is_get => {
                let limit = self.parameters.optional("limit", 0..=u32::MAX)?;
                Operation::Body { id: id(job)?, limit }
            }
            [b"kick"] if self.is_post => {
                let id = id(job)?;
                self.no_arguments().map(|()| Operation::KickJob(id))?
            }
            [b"move"] if self.is_post => {
                let id = id(job)?;
                let members = Members::read(self.json()?, &["to"])?;
                Operation::MoveJob { id, to: Name::new(members.text("to")?.as_bytes())? }
            }
            [b"bury"] if self.is_post => {
                let id = id(job)?;
                let [priority] = arguments::read(self.json()?, ["priority"])?;
                Operation::Bury { id, priority }
            }
            [b"release"] if self.is_post => {
                let id = id(job)?;
                let [priority, delay] = arguments::read(self.json()?, ["priority", "delay"])?;
                Operation::Release { id, priority, delay }
            }
            _ => return Err(Miss::NoPath),
        })
    }

    fn of_schedule(&mut self, schedule: &[u8], rest: &[&[u8]]) -> Result<Operation, Miss> {
        let name = || name_of("schedule", schedule);
        Ok(match *rest {
            [] if self.is_get => Operation::Schedule(name()?),
            [] if self.method == "PUT" => {
                let schedule = ScheduleTarget::read(name()?, &mut self.parameters, self.bytes)?;
                Operation::PutSchedule(Box::new(schedule))
            }
            [] if self.method == "DELETE" => Operation::DeleteSchedule(name()?),
            [b"run"] if self.is_post => {
                let name = name()?;
                self.no_arguments().map(|()| Operation::RunSchedule(name))?
            }
            _ => return Err(Miss::NoPath),
        })
    }
}

/// Reads the arguments of a move of several jobs.
fn move_of(from: Name, json: &[u8]) -> Result<Operation, ErrorResponse> {
    let members = Members::read(json, &["state", "to", "count"])?;
    let state = JobState::named(members.text("state")?.as_bytes()).filter(|state| state.can_move());
    let state = state.ok_or_else(|| bad("state must be ready, delayed or buried"))?;
    let to = Name::new(members.text("to")?.as_bytes())?;
    let count = members.count()?;
    if from == to {
        return Err(ErrorResponse::new(ErrorKind::Conflict, "the jobs are in this tube: name another tube"));
    }
    Ok(Operation::Move { from, state, to, count })
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
    let has = |method: &&str| {
        let mut lookup = Lookup::new(method, Parameters(Vec::new()), 0, None);
        !matches!(lookup.find(words), Err(Miss::NoPath))
    };
    let methods: Vec<&str> = ["GET", "HEAD", "POST", "PUT", "DELETE"].into_iter().filter(has).collect();
    if methods.is_empty() {
        return no_such_path();
    }
    let allow = methods.join(", ");
    let message = format!("this path has only {allow}");
    ErrorResponse { allow: Some(allow), ..ErrorResponse::new(ErrorKind::MethodNotAllowed, message) }
}

/// The message about an argument that is no number, or not in its range.
pub(super) fn must_be_whole(name: &str, range: &RangeInclusive<u32>) -> String {
    format!("{name} must be a whole number from {} to {}", range.start(), range.end())
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

/// Reads the numbers of a put with a body of this many bytes.
pub(super) fn put_args(parameters: &mut Parameters, bytes: u32) -> Result<PutArgs, ErrorResponse> {
    Ok(PutArgs {
        pri: parameters.number("priority", PRIORITY_DEFAULT, 0..=u32::MAX)?,
        delay: Seconds::whole(parameters.number("delay", 0, 0..=u32::MAX)?),
        ttr: Seconds::whole(parameters.number("ttr", TTR_SECONDS_DEFAULT, 0..=u32::MAX)?),
        bytes,
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

    fn find(method: &str, target: &str) -> Result<ApiTarget, ErrorKind> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        ApiTarget::find(method, path, query, 3, None).map_err(|refusal| refusal.kind)
    }

    // tests/http/sessions shows what each of them does.
    #[test]
    fn each_path_has_its_methods() {
        for (path, allow) in [
            ("server", "GET, HEAD"),
            ("tubes", "GET, HEAD"),
            ("tubes/a", "GET, HEAD"),
            ("tubes/a/next/reserved", "GET, HEAD"),
            ("tubes/a/jobs", "GET, HEAD, POST"),
            ("tubes/a/pause", "POST"),
            ("tubes/a/kick", "POST"),
            ("tubes/a/flush", "POST"),
            ("tubes/a/move", "POST"),
            ("tubes/a/config", "POST"),
            ("groups/a", "GET, HEAD"),
            ("jobs/7", "GET, HEAD, DELETE"),
            ("jobs/7/body", "GET, HEAD"),
            ("jobs/7/kick", "POST"),
            ("jobs/7/move", "POST"),
            ("jobs/7/bury", "POST"),
            ("jobs/7/release", "POST"),
            ("schedules", "GET, HEAD"),
            ("schedules/a", "GET, HEAD, PUT, DELETE"),
            ("schedules/a/run", "POST"),
            ("drain", "POST"),
            ("undrain", "POST"),
        ] {
            for method in ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE"] {
                let query = if method == "PUT" { "tube=a&when=1h" } else { "" };
                let is_allowed = allow.split(", ").any(|allowed| allowed == method);
                match ApiTarget::find(method, path, query, 3, None) {
                    Ok(target) => {
                        assert!(is_allowed, "{method} {path}");
                        assert_eq!(target.is_write(), !matches!(method, "GET" | "HEAD"), "{method} {path}");
                    }
                    Err(refusal) => {
                        assert!(!is_allowed, "{method} {path}");
                        assert_eq!(refusal.kind, ErrorKind::MethodNotAllowed, "{method} {path}");
                        assert_eq!(refusal.allow.as_deref(), Some(allow), "{method} {path}");
                    }
                }
            }
        }
    }

    #[test]
    fn names_and_parameters_are_decoded() {
        let tube = || name(b"a/b").expect("the name is valid");
        let tags = PutTags(b"idp:a/b:60 con:c:2 grp:y aft:x"[..].into());
        let [delay, ttr] = [1, 9].map(Seconds::whole);
        let args = PutArgs { pri: PRIORITY_DEFAULT, delay, ttr, bytes: 3 };
        let job = PutTarget { tube: tube(), args, tags };
        let query = PageQuery { state: JobState::Buried, after: JobId(u64::MAX), limit: 500 };
        for (method, target, operation) in [
            ("GET", "tubes/a%2fb", Operation::Tube(tube())),
            ("HEAD", "tubes/a%252Fb", Operation::Tube(tube())),
            ("POST", "tubes/a%2Fb/jobs?ttr=9&aft=x&delay=1&idp=a%2Fb:60&grp=y&con=c:2", Operation::Put(job)),
            (
                "GET",
                "tubes/a%2Fb/jobs?state=buried&after=18446744073709551615&limit=500",
                Operation::Jobs(tube(), query),
            ),
            ("GET", "jobs/7/body?limit=9", Operation::Body { id: JobId(7), limit: Some(9) }),
        ] {
            assert_eq!(find(method, target), Ok(ApiTarget::Operation(operation)), "{method} {target}");
        }
    }

    #[test]
    fn a_wrong_parameter_is_named() {
        let message = |query: &str| ApiTarget::find("GET", "tubes", query, 0, None).unwrap_err().message;
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
            ("jobs/-1", ErrorKind::BadRequest),
            ("jobs/+1", ErrorKind::BadRequest),
            ("jobs/18446744073709551616", ErrorKind::BadRequest),
            ("server?a=1", ErrorKind::BadRequest),
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
        assert!(matches!(plus, Ok(ApiTarget::Tubes(Query { filter, .. })) if filter == "a b+"));
    }
}
