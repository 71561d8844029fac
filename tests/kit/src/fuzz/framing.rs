//! The same bytes in other pieces are the same lines. Parsed commands are within the protocol's limits.

use beanring::protocol::announced::Follows;
use beanring::protocol::command::{Command, PutArgs, ScheduleArgs};
use beanring::protocol::framing::{Line, LineReader};
use beanring::protocol::parse::{ParseError, parse, parse_decimals};
use beanring::values::ids::JobId;
use beanring::values::limits::{LINE_BYTES_LONG_MAX, LINE_BYTES_MAX};
use beanring::values::tube_name::TubeName;
use beanring::values::tube_rules::RuleValue;

use super::input::Input;

/// A line, or what follows it if it is too long.
type Read = Result<Vec<u8>, Follows>;

/// Runs an input. The first byte is the number of bytes that follow as lengths of pieces. The rest is what a client
/// sends.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let count = input.below(16);
    let lengths: Vec<usize> = input.bytes(count).iter().map(|&byte| 1 + usize::from(byte)).collect();
    let sent = input.bytes(usize::MAX);

    let expected = by_definition(sent);
    assert_eq!(read(sent, [sent.len().max(1)].iter()), expected, "in one piece");
    assert_eq!(read(sent, [1].iter().cycle()), expected, "byte by byte");
    if !lengths.is_empty() {
        assert_eq!(read(sent, lengths.iter().cycle()), expected, "in pieces of {lengths:?}");
    }
    expected.0.iter().flatten().for_each(|line| check(line));
}

/// Returns the lines, and whether the last byte ended one.
fn read<'a>(mut sent: &[u8], mut lengths: impl Iterator<Item = &'a usize>) -> (Vec<Read>, bool) {
    let mut reader = LineReader::new();
    let mut lines = Vec::new();
    while !sent.is_empty() {
        let length = *lengths.next().expect("they are enough");
        let (mut piece, rest) = sent.split_at(length.min(sent.len()));
        while let Some(line) = reader.next(&mut piece) {
            lines.push(match line {
                Line::Command(line) => Ok(line.to_vec()),
                Line::TooLong { follows } => Err(follows),
            });
        }
        assert!(piece.is_empty(), "all input is taken");
        sent = rest;
    }
    (lines, reader.is_empty())
}

/// Finds the lines in the simplest way.
fn by_definition(mut sent: &[u8]) -> (Vec<Read>, bool) {
    let mut lines = Vec::new();
    while let Some(end) = sent.windows(2).position(|pair| pair == b"\r\n") {
        let (line, is_short) = (&sent[..end], end + 2 <= bytes_max(sent));
        lines.push(if is_short { Ok(line.to_vec()) } else { Err(follows(line)) });
        sent = &sent[end + 2..];
    }
    (lines, sent.is_empty())
}

/// Returns the length that a line may have, with its CR LF.
pub(super) fn bytes_max(line: &[u8]) -> usize {
    let is_long = "put |delete-batch |list-jobs |move-job |move-jobs |tube-config |schedule-put "
        .split('|')
        .any(|word| line.starts_with(word.as_bytes()));
    if is_long { LINE_BYTES_LONG_MAX } else { LINE_BYTES_MAX }
}

/// Returns what follows a refused line.
pub(super) fn follows(line: &[u8]) -> Follows {
    let nth = |word: &[u8], place| {
        let arguments = line.strip_prefix(word)?;
        arguments.split(|&byte| byte == b' ').filter(|word| !word.is_empty()).nth(place)
    };
    let number = nth(b"put ", 3).or_else(|| nth(b"job-note ", 1)).or_else(|| nth(b"schedule-put ", 4));
    let digits: Vec<u8> = number.unwrap_or_default().iter().copied().take_while(u8::is_ascii_digit).collect();
    match String::from_utf8(digits).expect("digits are ASCII") {
        _ if line.starts_with(b"put-batch") => Follows::Unknown,
        digits if digits.is_empty() => Follows::Commands,
        digits => digits.parse().map_or(Follows::Unknown, Follows::Body),
    }
}

fn check(line: &[u8]) {
    check_parsed(line, parse);
    check_parsed(line, parse_decimals);
}

fn check_parsed(line: &[u8], parse: impl Fn(&[u8]) -> Result<Command<'_>, ParseError>) {
    let Ok(command) = parse(line) else { return };
    // Whatever follows the word `put-batch`, a batch begins: its end is unknown.
    let is_lost_batch = command == Command::PutBatch { count: None };
    assert!(is_lost_batch || !line.contains(&0), "a NUL is no part of a command");
    if let Command::ReserveWithTimeout { seconds }
    | Command::ReserveBatch { seconds: Some(seconds), .. }
    | Command::WaitJob { seconds, .. } = command
    {
        assert!(i32::try_from(seconds.as_whole()).is_ok(), "{seconds}");
    }
    if let Some(plain) = plainly(&command) {
        assert!(plain.len() + 2 <= bytes_max(plain.as_bytes()), "{command:?}");
        assert_eq!(parse(plain.as_bytes()), Ok(command), "{plain}");
    }
}

/// Returns the command as protocol.txt spells it, or none for commands that only this server and beanstalkd accept.
fn plainly(command: &Command<'_>) -> Option<String> {
    let with_id = |word: &str, id: JobId| format!("{word} {id}");
    let with_name = |word: &str, tube: TubeName<'_>| {
        assert_eq!(TubeName::new(tube.as_bytes()), Some(tube));
        format!("{word} {}", tube.as_str())
    };
    Some(match *command {
        Command::Put { tags: None, .. } | Command::PauseTube { tube: None, .. } => return None,
        Command::Put { args: PutArgs { pri, delay, ttr, bytes }, tags: Some(tags) } => {
            let space = if tags.is_empty() { "" } else { " " };
            format!("put {pri} {delay} {ttr} {bytes}{space}{}", tags.as_str())
        }
        Command::Peek(id) => with_id("peek", id),
        Command::PeekReady => "peek-ready".to_owned(),
        Command::PeekDelayed => "peek-delayed".to_owned(),
        Command::PeekBuried => "peek-buried".to_owned(),
        Command::Reserve => "reserve".to_owned(),
        Command::ReserveWithTimeout { seconds } => format!("reserve-with-timeout {seconds}"),
        Command::ReserveJob(id) => with_id("reserve-job", id),
        Command::Delete(id) => with_id("delete", id),
        Command::Release { id, pri, delay } => format!("release {id} {pri} {delay}"),
        Command::Bury { id, pri } => format!("bury {id} {pri}"),
        Command::Kick { bound } => format!("kick {bound}"),
        Command::KickJob(id) => with_id("kick-job", id),
        Command::Touch(id) => with_id("touch", id),
        Command::Stats => "stats".to_owned(),
        Command::StatsJob(id) => with_id("stats-job", id),
        Command::StatsTube(tube) => with_name("stats-tube", tube),
        Command::Use(tube) => with_name("use", tube),
        Command::Watch(tube) => with_name("watch", tube),
        Command::WatchWeighted { tube, weight } => format!("{} {weight}", with_name("watch", tube)),
        Command::ReserveMode(mode) => format!("reserve-mode {}", mode.word()),
        Command::Ignore(tube) => with_name("ignore", tube),
        Command::ListTubes => "list-tubes".to_owned(),
        Command::ListTubeUsed => "list-tube-used".to_owned(),
        Command::ListTubesWatched => "list-tubes-watched".to_owned(),
        Command::PauseTube { tube: Some(tube), seconds } => {
            format!("{} {seconds}", with_name("pause-tube", tube))
        }
        Command::PeekReserved => "peek-reserved".to_owned(),
        Command::ListJobs { tube, state, after, limit } => {
            format!("{} {} {after} {limit}", with_name("list-jobs", tube), state.word())
        }
        Command::MoveJob { id, tube } => with_name(&with_id("move-job", id), tube),
        Command::MoveJobs { from, state, to, bound } => {
            let from = with_name("move-jobs", from);
            format!("{from} {} {bound}", with_name(state.word(), to))
        }
        Command::TubeConfig { tube, rule: None } => with_name("tube-config", tube),
        Command::TubeConfig { tube, rule: Some(rule) } => {
            let line = format!("{} {}", with_name("tube-config", tube), rule.key().word());
            match rule.value() {
                RuleValue::None => format!("{line} 0"),
                RuleValue::Number(number) => format!("{line} {}", rule.key().shown(number)),
                RuleValue::Tube(other) => with_name(&line, other),
            }
        }
        Command::FlushTube(tube) => with_name("flush-tube", tube),
        Command::FlushKeys(tube) => with_name("flush-keys", tube),
        Command::PutBatch { count } => format!("put-batch {}", count?),
        Command::DeleteBatch(ids) => {
            ids.iter().fold("delete-batch".to_owned(), |line, id| format!("{line} {id}"))
        }
        Command::ReserveBatch { count, seconds: None } => format!("reserve-batch {count}"),
        Command::ReserveBatch { count, seconds: Some(seconds) } => format!("reserve-batch {count} {seconds}"),
        Command::StatsGroup(name) => with_name("stats-group", name),
        Command::WaitJob { id, seconds } => format!("{} {seconds}", with_id("wait-job", id)),
        Command::JobNote { id, bytes } => format!("{} {bytes}", with_id("job-note", id)),
        Command::SchedulePut(line) => {
            let ScheduleArgs { name, put, tube, when, missed, overlaps } = line.args();
            let PutArgs { pri, delay, ttr, bytes } = put;
            let numbers = format!("{} {pri} {delay} {ttr} {bytes}", with_name("schedule-put", name));
            let overlap = if overlaps { "yes" } else { "no" };
            format!("{} {when} missed:{} overlap:{overlap}", with_name(&numbers, tube), missed.word())
        }
        Command::ScheduleDelete(name) => with_name("schedule-delete", name),
        Command::ScheduleRun(name) => with_name("schedule-run", name),
        Command::ScheduleStats(name) => with_name("schedule-stats", name),
        Command::ListSchedules { after: None, limit } => format!("list-schedules {limit}"),
        Command::ListSchedules { after: Some(name), limit } => {
            with_name(&format!("list-schedules {limit}"), name)
        }
        Command::CancelReserve => "cancel-reserve".to_owned(),
        Command::Drain => "drain".to_owned(),
        Command::Undrain => "undrain".to_owned(),
        Command::Quit => "quit".to_owned(),
    })
}
