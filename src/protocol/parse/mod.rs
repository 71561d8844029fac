//! Parses a command line into a [`Command`].

use std::num::NonZeroU32;

use memchr::memchr;

use crate::protocol::announced::BATCH_WORD;
use crate::protocol::command::{Command, Ids, PutArgs, ScheduleArgs, ScheduleLine};
use crate::time::Seconds;
use crate::values::ids::JobId;
use crate::values::job_state::JobState;
use crate::values::limits::{
    BATCH_JOBS_MAX, LINE_BYTES_MAX, PAGE_JOBS_DEFAULT, PAGE_JOBS_MAX, PAGE_SCHEDULES_DEFAULT,
    PAGE_SCHEDULES_MAX,
};
use crate::values::reserve_mode::ReserveMode;
use crate::values::schedules::Missed;
use crate::values::tags::Tags;
use crate::values::tube_name::TubeName;
use crate::values::tube_rules::{Rule, RuleKey};

/// The reason why a line is not a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParseError {
    /// A known command with wrong arguments, or a NUL in the line.
    BadFormat,
    /// Not a command of the protocol.
    UnknownCommand,
}

/// The longest timeout: beanstalkd keeps that of `reserve-with-timeout` in an `int`.
const TIMEOUT_SECONDS_MAX: u32 = i32::MAX as u32;

/// Any number with at most this many digits fits in 64 bits.
const DIGITS_SAFE: usize = u64::MAX.ilog10() as usize;

/// Parses one command line without its CR LF. Times are whole seconds.
pub fn parse(line: &[u8]) -> Result<Command<'_>, ParseError> {
    refuse_nul(line, parse_words(line))
}

/// Parses a line that [`parse`] refuses with [`ParseError::BadFormat`]. Times may have a decimal part.
// A line of whole numbers never comes here, so that it costs the same as without decimals.
#[cold]
pub fn parse_decimals(line: &[u8]) -> Result<Command<'_>, ParseError> {
    refuse_nul(line, parse_words_with_decimals(line))
}

fn refuse_nul<'a>(line: &[u8], verdict: Result<Command<'a>, ParseError>) -> Result<Command<'a>, ParseError> {
    // A NUL is an error anywhere. In a name, a number or at the end it has failed already, but these lines have parts that were
    // not read.
    let has_unread_part = matches!(
        verdict,
        Err(ParseError::UnknownCommand) | Ok(Command::Quit | Command::Put { tags: None, .. })
    );
    if has_unread_part && memchr(0, line).is_some() { Err(ParseError::BadFormat) } else { verdict }
}

/// Words are matched as prefixes, so a longer word precedes its own prefix. Otherwise frequent words come first: each test is
/// one comparison with a constant.
#[inline]
fn parse_words(line: &[u8]) -> Result<Command<'_>, ParseError> {
    let after = |word: &[u8]| line.strip_prefix(word).map(Args);

    if let Some(args) = after(b"put ") {
        put::<false>(args, line.len())
    } else if let Some(args) = after(b"delete ") {
        args.only_id().map(Command::Delete)
    } else if let Some(args) = after(b"reserve-with-timeout ") {
        reserve_with_timeout::<false>(args)
    } else if let Some(args) = after(b"reserve-job ") {
        args.only_id().map(Command::ReserveJob)
    } else if let Some(args) = after(b"reserve") {
        reserve(args)
    } else if let Some(args) = after(b"release ") {
        release::<false>(args)
    } else if let Some(args) = after(b"bury ") {
        bury(args)
    } else if let Some(args) = after(b"touch ") {
        args.only_id().map(Command::Touch)
    } else if let Some(args) = after(b"use ") {
        args.only_name().map(Command::Use)
    } else if let Some(args) = after(b"watch ") {
        watch(args)
    } else if let Some(args) = after(b"ignore ") {
        args.only_name().map(Command::Ignore)
    } else if let Some(args) = after(b"peek ") {
        args.only_id().map(Command::Peek)
    } else if let Some(args) = after(b"peek-ready") {
        args.end(Command::PeekReady)
    } else if let Some(args) = after(b"peek-delayed") {
        args.end(Command::PeekDelayed)
    } else if let Some(args) = after(b"peek-buried") {
        args.end(Command::PeekBuried)
    } else if let Some(args) = after(b"peek-reserved") {
        args.end(Command::PeekReserved)
    } else if let Some(args) = after(b"kick ") {
        kick(args)
    } else if let Some(args) = after(b"kick-job ") {
        args.only_id().map(Command::KickJob)
    } else if let Some(args) = after(b"stats-job ") {
        args.only_id().map(Command::StatsJob)
    } else if let Some(args) = after(b"stats-tube ") {
        args.only_name().map(Command::StatsTube)
    } else if let Some(args) = after(b"stats-group ") {
        args.only_name().map(Command::StatsGroup)
    } else if let Some(args) = after(b"stats") {
        args.end(Command::Stats)
    } else if let Some(args) = after(b"list-tubes-watched") {
        args.end(Command::ListTubesWatched)
    } else if let Some(args) = after(b"list-tube-used") {
        args.end(Command::ListTubeUsed)
    } else if let Some(args) = after(b"list-tubes") {
        args.end(Command::ListTubes)
    } else if let Some(args) = after(b"list-jobs ") {
        list_jobs(args)
    } else if let Some(args) = after(b"list-schedules") {
        list_schedules(args)
    } else if let Some(args) = after(b"schedule-put ") {
        schedule_put::<false>(args)
    } else if let Some(args) = after(b"schedule-delete ") {
        args.only_name().map(Command::ScheduleDelete)
    } else if let Some(args) = after(b"schedule-run ") {
        args.only_name().map(Command::ScheduleRun)
    } else if let Some(args) = after(b"schedule-stats ") {
        args.only_name().map(Command::ScheduleStats)
    } else if let Some(args) = after(b"move-job ") {
        move_job(args)
    } else if let Some(args) = after(b"move-jobs ") {
        move_jobs(args)
    } else if let Some(args) = after(b"pause-tube") {
        pause_tube::<false>(args)
    } else if let Some(args) = after(b"tube-config ") {
        tube_config(args)
    } else if let Some(args) = after(b"flush-tube ") {
        args.only_name().map(Command::FlushTube)
    } else if let Some(args) = after(b"flush-keys ") {
        args.only_name().map(Command::FlushKeys)
    } else if let Some(args) = after(BATCH_WORD) {
        Ok(Command::PutBatch { count: put_batch(args) })
    } else if let Some(args) = after(b"delete-batch ") {
        delete_batch(args)
    } else if let Some(args) = after(b"wait-job ") {
        wait_job::<false>(args)
    } else if let Some(args) = after(b"job-note ") {
        job_note(args)
    } else if let Some(args) = after(b"cancel-reserve") {
        args.end(Command::CancelReserve)
    } else if let Some(args) = after(b"drain") {
        args.end(Command::Drain)
    } else if let Some(args) = after(b"undrain") {
        args.end(Command::Undrain)
    } else if after(b"quit").is_some() {
        // beanstalkd ignores whatever follows the word.
        Ok(Command::Quit)
    } else {
        Err(ParseError::UnknownCommand)
    }
}

/// Matches the words of the commands with times.
fn parse_words_with_decimals(line: &[u8]) -> Result<Command<'_>, ParseError> {
    let after = |word: &[u8]| line.strip_prefix(word).map(Args);

    if let Some(args) = after(b"put ") {
        put::<true>(args, line.len())
    } else if let Some(args) = after(b"reserve-with-timeout ") {
        reserve_with_timeout::<true>(args)
    } else if let Some(args) = after(b"reserve-batch ") {
        reserve_batch::<true>(args)
    } else if let Some(args) = after(b"release ") {
        release::<true>(args)
    } else if let Some(args) = after(b"pause-tube") {
        pause_tube::<true>(args)
    } else if let Some(args) = after(b"wait-job ") {
        wait_job::<true>(args)
    } else if let Some(args) = after(b"schedule-put ") {
        schedule_put::<true>(args)
    } else {
        Err(ParseError::BadFormat)
    }
}

fn put<const DECIMALS: bool>(mut args: Args<'_>, line_bytes: usize) -> Result<Command<'_>, ParseError> {
    let pri = args.u32()?;
    let (delay, ttr) = (args.seconds::<DECIMALS>()?, args.seconds::<DECIMALS>()?);
    let numbers = PutArgs { pri, delay, ttr, bytes: args.u32()? };
    let tags = Tags::of_put(args.0);
    // Only tags make a line longer than others.
    let has_tags = tags.is_some_and(|tags| !tags.is_empty());
    if line_bytes > LINE_BYTES_MAX - 2 && !has_tags {
        return Err(ParseError::BadFormat);
    }
    Ok(Command::Put { args: numbers, tags })
}

fn put_batch(args: Args<'_>) -> Option<u32> {
    let mut args = Args(args.0.strip_prefix(b" ")?);
    let count = args.up_to(BATCH_JOBS_MAX).ok()?;
    args.end(count).ok()
}

fn reserve(args: Args<'_>) -> Result<Command<'_>, ParseError> {
    if let Some(rest) = args.0.strip_prefix(b"-batch ") {
        reserve_batch::<false>(Args(rest))
    } else if let Some(word) = args.0.strip_prefix(b"-mode ") {
        ReserveMode::named(word).map(Command::ReserveMode).ok_or(ParseError::BadFormat)
    } else {
        args.end(Command::Reserve)
    }
}

fn reserve_batch<const DECIMALS: bool>(mut args: Args<'_>) -> Result<Command<'_>, ParseError> {
    let count = args.up_to(BATCH_JOBS_MAX)?;
    let seconds = if args.0.is_empty() { None } else { Some(args.timeout::<DECIMALS>()?) };
    args.end(Command::ReserveBatch { count, seconds })
}

fn reserve_with_timeout<const DECIMALS: bool>(mut args: Args<'_>) -> Result<Command<'_>, ParseError> {
    let command = Command::ReserveWithTimeout { seconds: args.timeout::<DECIMALS>()? };
    args.end(command)
}

fn wait_job<const DECIMALS: bool>(mut args: Args<'_>) -> Result<Command<'_>, ParseError> {
    let command = Command::WaitJob { id: args.id()?, seconds: args.timeout::<DECIMALS>()? };
    args.end(command)
}

fn job_note(mut args: Args<'_>) -> Result<Command<'_>, ParseError> {
    let command = Command::JobNote { id: args.id()?, bytes: args.u32()? };
    args.end(command)
}

fn watch(args: Args<'_>) -> Result<Command<'_>, ParseError> {
    let (name, rest) = TubeName::split_alphabet(args.0);
    let tube = TubeName::new(name).ok_or(ParseError::BadFormat)?;
    if rest.is_empty() {
        return Ok(Command::Watch(tube));
    }
    let mut args = Args(rest);
    let weight = NonZeroU32::new(args.u32()?).ok_or(ParseError::BadFormat)?;
    args.end(Command::WatchWeighted { tube, weight })
}

fn release<const DECIMALS: bool>(mut args: Args<'_>) -> Result<Command<'_>, ParseError> {
    let (id, pri) = (args.id()?, args.u32()?);
    let command = Command::Release { id, pri, delay: args.seconds::<DECIMALS>()? };
    args.end(command)
}

fn bury(mut args: Args<'_>) -> Result<Command<'_>, ParseError> {
    let command = Command::Bury { id: args.id()?, pri: args.u32()? };
    args.end(command)
}

fn kick(mut args: Args<'_>) -> Result<Command<'_>, ParseError> {
    let bound = args.bound()?;
    args.end(Command::Kick { bound })
}

fn move_job(mut args: Args<'_>) -> Result<Command<'_>, ParseError> {
    let id = args.id()?;
    args.gap()?;
    let tube = args.name()?;
    args.end(Command::MoveJob { id, tube })
}

fn move_jobs(mut args: Args<'_>) -> Result<Command<'_>, ParseError> {
    let (from, state, to, bound) = (args.name()?, args.state()?, args.name()?, args.bound()?);
    if !state.can_move() || from == to {
        return Err(ParseError::BadFormat);
    }
    args.end(Command::MoveJobs { from, state, to, bound })
}

fn list_jobs(mut args: Args<'_>) -> Result<Command<'_>, ParseError> {
    let (tube, state) = (args.name()?, args.state()?);
    let after = if args.0.is_empty() { JobId(0) } else { args.id()? };
    let limit = if args.0.is_empty() { PAGE_JOBS_DEFAULT } else { args.up_to(PAGE_JOBS_MAX)? };
    args.end(Command::ListJobs { tube, state, after, limit })
}

fn tube_config(mut args: Args<'_>) -> Result<Command<'_>, ParseError> {
    let tube = args.name()?;
    if args.0.is_empty() {
        return Ok(Command::TubeConfig { tube, rule: None });
    }
    let key = RuleKey::named(args.word()).ok_or(ParseError::BadFormat)?;
    let rule = Rule::parse(tube, key, args.word()).ok_or(ParseError::BadFormat)?;
    args.end(Command::TubeConfig { tube, rule: Some(rule) })
}

fn list_schedules(mut args: Args<'_>) -> Result<Command<'_>, ParseError> {
    let (mut limit, mut after) = (PAGE_SCHEDULES_DEFAULT, None);
    if !args.0.is_empty() {
        args.gap()?;
        limit = args.up_to(PAGE_SCHEDULES_MAX)?;
    }
    if !args.0.is_empty() {
        args.gap()?;
        after = Some(args.name()?);
    }
    args.end(Command::ListSchedules { after, limit })
}

fn schedule_put<const DECIMALS: bool>(args: Args<'_>) -> Result<Command<'_>, ParseError> {
    let line = ScheduleLine(args.0);
    schedule_args::<DECIMALS>(args).map(|_| Command::SchedulePut(line))
}

impl<'a> ScheduleLine<'a> {
    /// Returns its arguments.
    pub fn args(self) -> ScheduleArgs<'a> {
        schedule_args::<true>(Args(self.0)).expect("the line was checked")
    }
}

fn schedule_args<const DECIMALS: bool>(mut args: Args<'_>) -> Result<ScheduleArgs<'_>, ParseError> {
    let name = args.name()?;
    let pri = args.u32()?;
    let (delay, ttr) = (args.seconds::<DECIMALS>()?, args.seconds::<DECIMALS>()?);
    let put = PutArgs { pri, delay, ttr, bytes: args.u32()? };
    args.gap()?;
    let tube = args.name()?;
    let is_text = args.0.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ');
    let text = str::from_utf8(args.0).ok().filter(|_| is_text).ok_or(ParseError::BadFormat)?;
    let mut when = text.trim_matches(' ');
    let (mut missed, mut overlaps) = (None, None);
    while let Some((rest, word)) = when.rsplit_once(' ') {
        if let Some(policy) = word.strip_prefix("missed:").filter(|_| missed.is_none()) {
            missed = Some(Missed::named(policy.as_bytes()).ok_or(ParseError::BadFormat)?);
        } else if let Some(text) = word.strip_prefix("overlap:").filter(|_| overlaps.is_none()) {
            overlaps = Some(match text {
                "yes" => true,
                "no" => false,
                _ => return Err(ParseError::BadFormat),
            });
        } else {
            break;
        }
        when = rest.trim_end_matches(' ');
    }
    let (missed, overlaps) = (missed.unwrap_or_default(), overlaps.unwrap_or(true));
    let args = ScheduleArgs { name, put, tube, when, missed, overlaps };
    if when.is_empty() { Err(ParseError::BadFormat) } else { Ok(args) }
}

fn delete_batch(mut args: Args<'_>) -> Result<Command<'_>, ParseError> {
    let ids = Ids::new(args.0);
    args.id()?;
    for _ in 1..BATCH_JOBS_MAX {
        if args.0.is_empty() {
            break;
        }
        args.id()?;
    }
    args.end(Command::DeleteBatch(ids))
}

/// The only command with any number of spaces before the tube name, even none: beanstalkd's word for it does not end in a
/// space.
fn pause_tube<const DECIMALS: bool>(mut args: Args<'_>) -> Result<Command<'_>, ParseError> {
    args.skip_spaces();
    let (name, rest) = TubeName::split_alphabet(args.0);
    if name.is_empty() {
        return Err(ParseError::BadFormat);
    }
    let mut args = Args(rest);
    let seconds = args.seconds::<DECIMALS>()?;
    args.end(Command::PauseTube { tube: TubeName::new(name), seconds })
}

/// The rest of a line behind the command word.
struct Args<'a>(&'a [u8]);

impl<'a> Args<'a> {
    /// Takes the next decimal number. It needs no space before or after it: the first byte that is not a digit ends it, and
    /// fails whatever is parsed next.
    #[inline]
    fn u64(&mut self) -> Result<u64, ParseError> {
        self.skip_spaces();
        let mut value = 0u64;
        let mut length = 0;
        while let Some(digit) = self.0.get(length).and_then(|&byte| digit(byte)) {
            value = value.wrapping_mul(10).wrapping_add(digit);
            length += 1;
        }
        let (digits, rest) = self.0.split_at(length);
        self.0 = rest;
        match length {
            0 => Err(ParseError::BadFormat),
            1..=DIGITS_SAFE => Ok(value),
            _ => checked_u64(digits).ok_or(ParseError::BadFormat),
        }
    }

    #[inline]
    fn u32(&mut self) -> Result<u32, ParseError> {
        self.u64()?.try_into().map_err(|_| ParseError::BadFormat)
    }

    /// Takes a number from 1 up to this one.
    fn up_to(&mut self, max: u32) -> Result<u32, ParseError> {
        let number = self.u32()?;
        if (1..=max).contains(&number) { Ok(number) } else { Err(ParseError::BadFormat) }
    }

    /// Checks that a space is next.
    fn gap(&self) -> Result<(), ParseError> {
        if self.0.starts_with(b" ") { Ok(()) } else { Err(ParseError::BadFormat) }
    }

    /// Takes a number of seconds, which may have a decimal part if `DECIMALS`.
    #[inline]
    fn seconds<const DECIMALS: bool>(&mut self) -> Result<Seconds, ParseError> {
        let whole = self.u32()?;
        let millis = if DECIMALS { self.millis()? } else { 0 };
        Seconds::new(whole, millis).ok_or(ParseError::BadFormat)
    }

    /// Takes the decimal part of a number, if a point follows it.
    fn millis(&mut self) -> Result<u16, ParseError> {
        let [b'.', rest @ ..] = self.0 else { return Ok(0) };
        let length = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (decimals, rest) = rest.split_at(length);
        self.0 = rest;
        Seconds::millis_of(decimals).ok_or(ParseError::BadFormat)
    }

    #[inline]
    fn timeout<const DECIMALS: bool>(&mut self) -> Result<Seconds, ParseError> {
        let seconds = self.seconds::<DECIMALS>()?;
        if seconds.as_whole() <= TIMEOUT_SECONDS_MAX { Ok(seconds) } else { Err(ParseError::BadFormat) }
    }

    #[inline]
    fn id(&mut self) -> Result<JobId, ParseError> {
        self.u64().map(JobId)
    }

    #[inline]
    fn skip_spaces(&mut self) {
        while let [b' ', rest @ ..] = self.0 {
            self.0 = rest;
        }
    }

    /// Takes the largest number of jobs to do something with. The number of jobs always fits in 32 bits. Clients send the
    /// largest integer of their language for all jobs.
    fn bound(&mut self) -> Result<u32, ParseError> {
        Ok(self.u64()?.try_into().unwrap_or(u32::MAX))
    }

    /// Takes the bytes up to the next space.
    fn word(&mut self) -> &'a [u8] {
        self.skip_spaces();
        let length = memchr(b' ', self.0).unwrap_or(self.0.len());
        let (word, rest) = self.0.split_at(length);
        self.0 = rest;
        word
    }

    /// Takes the next word as a name.
    fn name(&mut self) -> Result<TubeName<'a>, ParseError> {
        TubeName::new(self.word()).ok_or(ParseError::BadFormat)
    }

    /// Takes the next word as the state of a job.
    fn state(&mut self) -> Result<JobState, ParseError> {
        JobState::named(self.word()).ok_or(ParseError::BadFormat)
    }

    fn only_id(mut self) -> Result<JobId, ParseError> {
        let id = self.id()?;
        self.end(id)
    }

    /// Takes the rest of the line as a name. Unlike a number, it must not have a space before it.
    fn only_name(self) -> Result<TubeName<'a>, ParseError> {
        TubeName::new(self.0).ok_or(ParseError::BadFormat)
    }

    /// Returns `value` if nothing is left of the line.
    fn end<T>(self, value: T) -> Result<T, ParseError> {
        if self.0.is_empty() { Ok(value) } else { Err(ParseError::BadFormat) }
    }
}

#[inline]
fn digit(byte: u8) -> Option<u64> {
    byte.is_ascii_digit().then(|| u64::from(byte - b'0'))
}

/// Returns the value of `digits` if it fits. They may have any number of leading zeros.
#[cold]
fn checked_u64(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0u64, |value, &byte| value.checked_mul(10)?.checked_add(digit(byte)?))
}

#[cfg(test)]
mod tests;
