//! A naive parser to compare with, on random lines.

use std::mem;

use super::super::*;
use super::parse_with_decimals;
use crate::protocol::command::CommandKind;
use crate::protocol::random::Random;
use crate::values::tube_rules::RuleValue;

/// Returns the tags if they are well-formed.
fn naive_tags(rest: &[u8]) -> Option<Tags<'_>> {
    if rest.is_empty() {
        return Some(Tags::NONE);
    }
    let text = rest.strip_prefix(b" ")?;
    let words: Vec<Vec<&[u8]>> =
        text.split(|&byte| byte == b' ').map(|word| word.split(|&byte| byte == b':').collect()).collect();
    let is_number = |number: &[u8]| {
        !number.is_empty()
            && number.iter().all(u8::is_ascii_digit)
            && std::str::from_utf8(number).unwrap().parse::<u32>().is_ok()
    };
    let is_tag = |word: &Vec<&[u8]>| match word[..] {
        [b"idp", key] => TubeName::new(key).is_some(),
        [b"idp", key, ttl] => TubeName::new(key).is_some() && is_number(ttl),
        [b"grp" | b"aft", name] => TubeName::new(name).is_some(),
        _ => false,
    };
    let has_doubles = (1..words.len()).any(|at| words[..at].iter().any(|word| word[0] == words[at][0]));
    let named = |kind: &[u8]| words.iter().find(|word| word[0] == kind).map(|word| word[1..].to_vec());
    let is_circle = named(b"grp").is_some() && named(b"grp") == named(b"aft");
    let are_tags = words.iter().all(is_tag) && !has_doubles && !is_circle;
    are_tags.then(|| Tags::new(text).unwrap())
}

/// The words in the order in which beanstalkd tries them.
pub(super) const WORDS: [&str; 47] = [
    "put ",
    "put-batch",
    "peek ",
    "peek-ready",
    "peek-delayed",
    "peek-buried",
    "peek-reserved",
    "reserve-with-timeout ",
    "reserve-job ",
    "reserve-batch ",
    "reserve-mode ",
    "reserve",
    "delete ",
    "release ",
    "bury ",
    "kick ",
    "kick-job ",
    "touch ",
    "stats-job ",
    "stats-tube ",
    "stats-group ",
    "stats",
    "use ",
    "watch ",
    "ignore ",
    "list-tubes-watched",
    "list-tube-used",
    "list-tubes",
    "list-jobs ",
    "move-job ",
    "move-jobs ",
    "tube-config ",
    "flush-tube ",
    "flush-keys ",
    "delete-batch ",
    "wait-job ",
    "job-note ",
    "schedule-put ",
    "schedule-delete ",
    "schedule-run ",
    "schedule-stats ",
    "list-schedules",
    "cancel-reserve",
    "drain",
    "undrain",
    "quit",
    "pause-tube",
];

/// Applies the rules as beanstalkd does: it tries the words in its order, then parses the arguments one by one.
fn naive_parse(line: &[u8], has_decimals: bool) -> Result<Command<'_>, ParseError> {
    use ParseError::{BadFormat, UnknownCommand};

    fn number(rest: &mut &[u8], max: u64) -> Result<u64, ParseError> {
        let digits_start = rest.iter().position(|&byte| byte != b' ').ok_or(BadFormat)?;
        let digits = &rest[digits_start..];
        let digits_end = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
        *rest = &digits[digits_end..];
        let value: u64 = std::str::from_utf8(&digits[..digits_end])
            .expect("digits are ASCII")
            .parse()
            .map_err(|_| BadFormat)?;
        if value <= max { Ok(value) } else { Err(BadFormat) }
    }
    let time = |rest: &mut &[u8], max: u64| {
        let whole = number(rest, max)? as u32;
        let Some(decimals) = rest.strip_prefix(b".").filter(|_| has_decimals) else {
            return Ok(Seconds::whole(whole));
        };
        let end = decimals.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(decimals.len());
        *rest = &decimals[end..];
        let text = std::str::from_utf8(&decimals[..end]).expect("digits are ASCII");
        let millis = if end <= 3 { format!("{text:0<3}").parse().unwrap() } else { 1000 };
        if end > 0 { Seconds::new(whole, millis).ok_or(BadFormat) } else { Err(BadFormat) }
    };
    fn word_of<'a>(rest: &mut &'a [u8]) -> &'a [u8] {
        let begin = rest.iter().position(|&byte| byte != b' ').unwrap_or(rest.len());
        let word = rest[begin..].split(|&byte| byte == b' ').next().unwrap_or_default();
        *rest = &rest[begin + word.len()..];
        word
    }
    fn state_of(word: &[u8]) -> Option<JobState> {
        Some(match word {
            b"ready" => JobState::Ready,
            b"reserved" => JobState::Reserved,
            b"delayed" => JobState::Delayed,
            b"buried" => JobState::Buried,
            b"held" => JobState::Held,
            _ => return None,
        })
    }
    const U32: u64 = u32::MAX as u64;

    let has_nul = line.contains(&0);
    if has_nul && !line.starts_with(b"put-batch") {
        return Err(BadFormat);
    }
    let word = *WORDS.iter().find(|word| line.starts_with(word.as_bytes())).ok_or(UnknownCommand)?;
    let mut rest = &line[word.len()..];
    let name = TubeName::new(rest).ok_or(BadFormat);
    let command = match word {
        "put " => {
            let pri = number(&mut rest, U32)? as u32;
            let (delay, ttr) = (time(&mut rest, U32)?, time(&mut rest, U32)?);
            let bytes = number(&mut rest, U32)? as u32;
            let tags = naive_tags(rest);
            let has_tags = tags.is_some_and(|tags| tags != Tags::NONE);
            if !has_tags && line.len() + 2 > 224 {
                return Err(BadFormat);
            }
            return Ok(Command::Put { args: PutArgs { pri, delay, ttr, bytes }, tags });
        }
        "put-batch" => {
            let is_word = rest.starts_with(b" ");
            let count = number(&mut rest, 1000).ok().filter(|&count| is_word && count > 0 && rest.is_empty());
            return Ok(Command::PutBatch { count: count.map(|count| count as u32) });
        }
        "quit" => return Ok(Command::Quit),
        "use " => return name.map(Command::Use),
        "watch " => match rest.iter().position(|&byte| byte == b' ') {
            None => return name.map(Command::Watch),
            Some(end) => {
                let tube = TubeName::new(&rest[..end]).ok_or(BadFormat)?;
                rest = &rest[end..];
                let weight = NonZeroU32::new(number(&mut rest, U32)? as u32).ok_or(BadFormat)?;
                Command::WatchWeighted { tube, weight }
            }
        },
        "ignore " => return name.map(Command::Ignore),
        "stats-tube " => return name.map(Command::StatsTube),
        "stats-group " => return name.map(Command::StatsGroup),
        "flush-tube " => return name.map(Command::FlushTube),
        "flush-keys " => return name.map(Command::FlushKeys),
        "peek " => Command::Peek(JobId(number(&mut rest, u64::MAX)?)),
        "peek-ready" => Command::PeekReady,
        "peek-delayed" => Command::PeekDelayed,
        "peek-buried" => Command::PeekBuried,
        "peek-reserved" => Command::PeekReserved,
        "reserve-with-timeout " => Command::ReserveWithTimeout { seconds: time(&mut rest, 2_147_483_647)? },
        "reserve-job " => Command::ReserveJob(JobId(number(&mut rest, u64::MAX)?)),
        "reserve-batch " => {
            let count = number(&mut rest, 1000)? as u32;
            let seconds = if rest.is_empty() { None } else { Some(time(&mut rest, 2_147_483_647)?) };
            if count == 0 {
                return Err(BadFormat);
            }
            Command::ReserveBatch { count, seconds }
        }
        "reserve-mode " => Command::ReserveMode(match mem::take(&mut rest) {
            b"default" => ReserveMode::Default,
            b"fifo" => ReserveMode::Fifo,
            b"weighted" => ReserveMode::Weighted,
            b"weighted-fair" => ReserveMode::WeightedFair,
            _ => return Err(BadFormat),
        }),
        "reserve" => Command::Reserve,
        "delete " => Command::Delete(JobId(number(&mut rest, u64::MAX)?)),
        "release " => Command::Release {
            id: JobId(number(&mut rest, u64::MAX)?),
            pri: number(&mut rest, U32)? as u32,
            delay: time(&mut rest, U32)?,
        },
        "bury " => {
            Command::Bury { id: JobId(number(&mut rest, u64::MAX)?), pri: number(&mut rest, U32)? as u32 }
        }
        "kick " => Command::Kick { bound: number(&mut rest, u64::MAX)?.min(U32) as u32 },
        "kick-job " => Command::KickJob(JobId(number(&mut rest, u64::MAX)?)),
        "touch " => Command::Touch(JobId(number(&mut rest, u64::MAX)?)),
        "stats-job " => Command::StatsJob(JobId(number(&mut rest, u64::MAX)?)),
        "stats" => Command::Stats,
        "list-jobs " => {
            let name = TubeName::new(word_of(&mut rest)).ok_or(BadFormat)?;
            let state = state_of(word_of(&mut rest)).ok_or(BadFormat)?;
            let after = if rest.is_empty() { 0 } else { number(&mut rest, u64::MAX)? };
            let limit = if rest.is_empty() { 100 } else { number(&mut rest, 1000)? as u32 };
            if limit == 0 {
                return Err(BadFormat);
            }
            Command::ListJobs { tube: name, state, after: JobId(after), limit }
        }
        "move-job " => {
            let id = JobId(number(&mut rest, u64::MAX)?);
            if rest.first() != Some(&b' ') {
                return Err(BadFormat);
            }
            Command::MoveJob { id, tube: TubeName::new(word_of(&mut rest)).ok_or(BadFormat)? }
        }
        "move-jobs " => {
            let from = TubeName::new(word_of(&mut rest)).ok_or(BadFormat)?;
            let state = state_of(word_of(&mut rest)).ok_or(BadFormat)?;
            let to = TubeName::new(word_of(&mut rest)).ok_or(BadFormat)?;
            let bound = number(&mut rest, u64::MAX)?.min(U32) as u32;
            if state == JobState::Reserved || state == JobState::Held || from == to {
                return Err(BadFormat);
            }
            Command::MoveJobs { from, state, to, bound }
        }
        "tube-config " => {
            let tube = TubeName::new(word_of(&mut rest)).ok_or(BadFormat)?;
            if rest.is_empty() {
                return Ok(Command::TubeConfig { tube, rule: None });
            }
            let (key, value) = (word_of(&mut rest), word_of(&mut rest));
            let key =
                RuleKey::ALL.into_iter().find(|known| known.word().as_bytes() == key).ok_or(BadFormat)?;
            let value = match key {
                _ if value == b"0" => RuleValue::None,
                RuleKey::DeadLetter => RuleValue::Tube(TubeName::new(value).ok_or(BadFormat)?),
                _ if value.is_empty() => return Err(BadFormat),
                RuleKey::LostCounts if value == b"no" => RuleValue::Number(1),
                RuleKey::LostCounts if value == b"yes" => RuleValue::Number(2),
                RuleKey::LostCounts => return Err(BadFormat),
                RuleKey::RetryFactor => RuleValue::Number(decimal(value, 1)?),
                RuleKey::RetryJitter => RuleValue::Number(decimal(value, 2)?),
                _ => {
                    let mut digits = value;
                    let value = number(&mut digits, u64::MAX)?;
                    if !digits.is_empty() {
                        return Err(BadFormat);
                    }
                    RuleValue::Number(value)
                }
            };
            Command::TubeConfig { tube, rule: Some(Rule::new(tube, key, value).ok_or(BadFormat)?) }
        }
        "delete-batch " => {
            let ids = Ids::new(rest);
            let mut count = 0;
            while count == 0 || !rest.is_empty() {
                number(&mut rest, u64::MAX)?;
                count += 1;
            }
            if count > 1000 {
                return Err(BadFormat);
            }
            Command::DeleteBatch(ids)
        }
        "wait-job " => Command::WaitJob {
            id: JobId(number(&mut rest, u64::MAX)?),
            seconds: time(&mut rest, 2_147_483_647)?,
        },
        "job-note " => {
            let id = JobId(number(&mut rest, u64::MAX)?);
            Command::JobNote { id, bytes: number(&mut rest, u32::MAX.into())? as u32 }
        }
        "schedule-put " => {
            let name = TubeName::new(word_of(&mut rest)).ok_or(BadFormat)?;
            let pri = number(&mut rest, U32)? as u32;
            let (delay, ttr) = (time(&mut rest, U32)?, time(&mut rest, U32)?);
            let put = PutArgs { pri, delay, ttr, bytes: number(&mut rest, U32)? as u32 };
            if rest.first() != Some(&b' ') {
                return Err(BadFormat);
            }
            let tube = TubeName::new(word_of(&mut rest)).ok_or(BadFormat)?;
            let text = std::str::from_utf8(mem::take(&mut rest)).map_err(|_| BadFormat)?;
            if !text.chars().all(|char| (' '..='~').contains(&char)) {
                return Err(BadFormat);
            }
            let words: Vec<&str> = text.split(' ').filter(|word| !word.is_empty()).collect();
            // Each option once, behind the times, which are at least one word.
            let kind = |word: &str| ["missed:", "overlap:"].into_iter().find(|kind| word.starts_with(kind));
            let mut options: Vec<&str> = Vec::new();
            for &word in words.iter().skip(1).rev() {
                match kind(word) {
                    Some(new) if options.iter().all(|option| kind(option) != Some(new)) => options.push(word),
                    _ => break,
                }
            }
            let value = |kind| options.iter().find_map(|option| option.strip_prefix(kind));
            let missed = match value("missed:").unwrap_or("once") {
                "skip" => Missed::Skip,
                "once" => Missed::Once,
                "all" => Missed::All,
                _ => return Err(BadFormat),
            };
            let overlaps = match value("overlap:").unwrap_or("yes") {
                "yes" => true,
                "no" => false,
                _ => return Err(BadFormat),
            };
            let last = words.len().checked_sub(1 + options.len()).map(|at| words[at]).ok_or(BadFormat)?;
            let begin = text.find(words[0]).expect("it has this word");
            let end = last.as_ptr() as usize - text.as_ptr() as usize + last.len();
            let when = &text[begin..end];
            let args = ScheduleArgs { name, put, tube, when, missed, overlaps };
            let line = ScheduleLine(&line[word.len()..]);
            assert_eq!(line.args(), args, "{}", line.0.escape_ascii());
            Command::SchedulePut(line)
        }
        "schedule-delete " => return name.map(Command::ScheduleDelete),
        "schedule-run " => return name.map(Command::ScheduleRun),
        "schedule-stats " => return name.map(Command::ScheduleStats),
        "list-schedules" => {
            let is_word = |rest: &[u8]| rest.is_empty() || rest.starts_with(b" ");
            if !is_word(rest) {
                return Err(BadFormat);
            }
            let limit = if rest.is_empty() { 100 } else { number(&mut rest, 1000)? as u32 };
            if !is_word(rest) || limit == 0 {
                return Err(BadFormat);
            }
            let after = if rest.is_empty() {
                None
            } else {
                Some(TubeName::new(word_of(&mut rest)).ok_or(BadFormat)?)
            };
            Command::ListSchedules { after, limit }
        }
        "cancel-reserve" => Command::CancelReserve,
        "drain" => Command::Drain,
        "undrain" => Command::Undrain,
        "list-tubes-watched" => Command::ListTubesWatched,
        "list-tube-used" => Command::ListTubeUsed,
        "list-tubes" => Command::ListTubes,
        "pause-tube" => {
            let name_start = rest.iter().position(|&byte| byte != b' ').ok_or(BadFormat)?;
            let name = &rest[name_start..];
            let name_length =
                (0..name.len()).take_while(|&at| TubeName::new(&[b'a', name[at]]).is_some()).count();
            rest = &name[name_length..];
            Command::PauseTube { tube: TubeName::new(&name[..name_length]), seconds: time(&mut rest, U32)? }
        }
        _ => unreachable!("{word} is not in the table"),
    };
    if rest.is_empty() { Ok(command) } else { Err(BadFormat) }
}

fn mutate(line: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(line.len() + 1);
    match random.below(6) {
        0 => line.truncate(at),
        1 => line.insert(at, random.pick(b" 0159-+aput:\0\r\n\t\x80..,")),
        2 => drop(line.splice(at..at, b" ".repeat(random.below(3)))),
        3 => {
            let number = random.pick(&[
                "2147483647",
                "2147483648",
                "4294967295",
                "4294967296",
                "18446744073709551615",
                "18446744073709551616",
                "99999999999999999999",
                "000000000000000000000000001",
            ]);
            let start = line.iter().rposition(|byte| !byte.is_ascii_digit()).map_or(0, |at| at + 1);
            line.truncate(start);
            line.extend(number.bytes());
        }
        _ if at < line.len() => _ = line.remove(at),
        _ => {}
    }
}

/// What random lines are made from.
const LINES: [&str; 64] = [
    "put 1 2 3 4",
    "put 1 2.5 3.25 4",
    "put 1 2.5 3.025 4 idp:k:9",
    "put 1 2 3 4 idp:k:9",
    "put-batch 5",
    "peek 7",
    "peek-ready",
    "peek-delayed",
    "peek-buried",
    "peek-reserved",
    "reserve",
    "reserve-with-timeout 5",
    "reserve-with-timeout 0.5",
    "reserve-job 7",
    "delete 7",
    "release 7 1 2",
    "release 7 1 2.5",
    "bury 7 1",
    "kick 9",
    "kick-job 7",
    "touch 7",
    "stats",
    "stats-job 7",
    "stats-tube t1",
    "stats-group t1",
    "use t1",
    "watch t1",
    "ignore t1",
    "list-tubes",
    "list-tube-used",
    "list-tubes-watched",
    "pause-tube t1 8",
    "pause-tube t1 8.5",
    "list-jobs t1 buried 7 8",
    "move-job 7 t1",
    "move-jobs t1 ready t2 9",
    "tube-config t1",
    "tube-config t1 max-jobs 7",
    "tube-config t1 dead-letter t2",
    "tube-config t1 retry-factor 2.5",
    "tube-config t1 retry-jitter 0.25",
    "tube-config t1 lost-counts no",
    "flush-tube t1",
    "flush-keys t1",
    "delete-batch 7 8",
    "reserve-batch 5 6",
    "reserve-batch 5 6.5",
    "reserve-mode weighted",
    "watch t1 5",
    "wait-job 7 5",
    "job-note 7 5",
    "schedule-put s1 1 2 3 4 t1 * * * * *",
    "schedule-put s1 1 2.5 3 4 t1 every:5 missed:all overlap:no",
    "schedule-put s1 1 2 3 4 t1 0 3 * * 1-5 Europe/Berlin overlap:yes missed:skip",
    "schedule-delete s1",
    "schedule-run s1",
    "schedule-stats s1",
    "list-schedules",
    "list-schedules 7",
    "list-schedules 7 s1",
    "cancel-reserve",
    "drain",
    "undrain",
    "quit",
];

/// Reads a number with up to this many decimals, in units of the last one.
fn decimal(text: &[u8], decimals: usize) -> Result<u64, ParseError> {
    let text = std::str::from_utf8(text).map_err(|_| ParseError::BadFormat)?;
    let (whole, rest) = text.split_once('.').map_or((text, None), |(whole, rest)| (whole, Some(rest)));
    let rest = rest.unwrap_or("0");
    let all = [whole, rest].concat();
    if whole.is_empty()
        || rest.is_empty()
        || rest.len() > decimals
        || !all.bytes().all(|byte| byte.is_ascii_digit())
    {
        return Err(ParseError::BadFormat);
    }
    format!("{whole}{rest:0<decimals$}").parse().map_err(|_| ParseError::BadFormat)
}

#[test]
fn each_command_has_its_word_and_a_line() {
    for word in CommandKind::ALL.map(CommandKind::word) {
        assert!(WORDS.iter().any(|known| known.trim_end() == word), "WORDS lacks {word}");
        assert!(LINES.iter().any(|line| line.split(' ').next() == Some(word)), "LINES lacks {word}");
    }
}

#[test]
fn random_lines_agree_with_the_naive_parser() {
    let mut random = Random::new();
    for _ in 0..200_000 {
        let mut line = random.pick(&LINES).as_bytes().to_vec();
        for _ in 0..random.below(4) {
            mutate(&mut line, &mut random);
        }
        let shown = line.escape_ascii().to_string();
        assert_eq!(parse(&line), naive_parse(&line, false), "{shown:?}");
        assert_eq!(parse_with_decimals(&line), naive_parse(&line, true), "{shown:?} with decimals");
    }
}
