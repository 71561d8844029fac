//! Parsed lines: every command, every limit, and a naive parser to compare with.

use std::mem;

use super::*;
use crate::protocol::random::Random;
use crate::tube_rules::RuleValue;

fn check(line: &str, expect: Command<'_>) {
    assert_eq!(parse(line.as_bytes()), Ok(expect), "{line:?}");
}

fn check_bad(lines: &[&str]) {
    for line in lines {
        assert_eq!(parse(line.as_bytes()), Err(ParseError::BadFormat), "{line:?}");
    }
}

fn check_unknown(lines: &[&str]) {
    for line in lines {
        assert_eq!(parse(line.as_bytes()), Err(ParseError::UnknownCommand), "{line:?}");
    }
}

fn tube(name: &str) -> TubeName<'_> {
    TubeName::new(name.as_bytes()).unwrap()
}

fn move_jobs(state: JobStateWord, bound: u32) -> Command<'static> {
    Command::MoveJobs { from: tube("t"), state, to: tube("u"), bound }
}

#[test]
fn every_command_is_parsed() {
    let args = PutArgs { pri: 1, delay: 2, ttr: 3, bytes: 4 };
    check("put 1 2 3 4", Command::Put { args, tags: Some(Tags::NONE) });
    check("put 1 2 3 4 idp:k:5", Command::Put { args, tags: Tags::new(b"idp:k:5") });
    check("peek 7", Command::Peek(JobId(7)));
    check("peek-ready", Command::PeekReady);
    check("peek-delayed", Command::PeekDelayed);
    check("peek-buried", Command::PeekBuried);
    check("reserve", Command::Reserve);
    check("reserve-with-timeout 5", Command::ReserveWithTimeout { seconds: 5 });
    check("reserve-job 7", Command::ReserveJob(JobId(7)));
    check("delete 7", Command::Delete(JobId(7)));
    check("release 7 1 2", Command::Release { id: JobId(7), pri: 1, delay: 2 });
    check("bury 7 1", Command::Bury { id: JobId(7), pri: 1 });
    check("kick 9", Command::Kick { bound: 9 });
    check("kick-job 7", Command::KickJob(JobId(7)));
    check("touch 7", Command::Touch(JobId(7)));
    check("stats", Command::Stats);
    check("stats-job 7", Command::StatsJob(JobId(7)));
    check("stats-tube t", Command::StatsTube(tube("t")));
    check("use t", Command::Use(tube("t")));
    check("watch t", Command::Watch(tube("t")));
    check("watch t 5", Command::WatchWeighted { tube: tube("t"), weight: NonZeroU32::new(5).unwrap() });
    check("reserve-mode weighted", Command::ReserveMode(ReserveMode::Weighted));
    check("ignore t", Command::Ignore(tube("t")));
    check("list-tubes", Command::ListTubes);
    check("list-tube-used", Command::ListTubeUsed);
    check("list-tubes-watched", Command::ListTubesWatched);
    check("pause-tube t 8", Command::PauseTube { tube: Some(tube("t")), seconds: 8 });
    check("peek-reserved", Command::PeekReserved);
    let list = |state, after, limit| Command::ListJobs { tube: tube("t"), state, after: JobId(after), limit };
    check("list-jobs t ready", list(JobStateWord::Ready, 0, 100));
    check("list-jobs t reserved 7", list(JobStateWord::Reserved, 7, 100));
    check("list-jobs t delayed 7 8", list(JobStateWord::Delayed, 7, 8));
    check("list-jobs t buried 0 1000", list(JobStateWord::Buried, 0, 1000));
    check("list-jobs t held", list(JobStateWord::Held, 0, 100));
    check("move-job 7 t", Command::MoveJob { id: JobId(7), tube: tube("t") });
    check("move-jobs t delayed u 9", move_jobs(JobStateWord::Delayed, 9));
    check("flush-tube t", Command::FlushTube(tube("t")));
    check("delete-batch 7 8", Command::DeleteBatch(Ids::new(b"7 8")));
    check("put-batch 5", Command::PutBatch { count: Some(5) });
    check("reserve-batch 5", Command::ReserveBatch { count: 5, seconds: None });
    check("reserve-batch 5 6", Command::ReserveBatch { count: 5, seconds: Some(6) });
    check("stats-group t", Command::StatsGroup(tube("t")));
    check("wait-job 7 5", Command::WaitJob { id: JobId(7), seconds: 5 });
    check("cancel-reserve", Command::CancelReserve);
    check("tube-config t", Command::TubeConfig { tube: tube("t"), rule: None });
    let rule = Rule::new(tube("t"), RuleKey::Rate, RuleValue::Number(5));
    check("tube-config t rate 5", Command::TubeConfig { tube: tube("t"), rule });
    check("drain", Command::Drain);
    check("undrain", Command::Undrain);
    check("quit", Command::Quit);
}

#[test]
fn a_missing_argument_is_an_error() {
    check_unknown(&["put", "peek", "delete", "release", "bury", "kick", "kick-job", "touch", "flush-tube"]);
    check_unknown(&["delete-batch", "put-batch"]);
    check_unknown(&[
        "delete-batch",
        "list-jobs",
        "list-job t ready",
        "move-job",
        "move-jobs",
        "move-jobsx t",
    ]);
    check_bad(&[
        "move-job ",
        "move-job 7",
        "move-job 7 ",
        "move-jobs t",
        "move-jobs t ready",
        "move-jobs t ready u",
    ]);
    check_bad(&["list-jobs ", "list-jobs t", "list-jobs t "]);
    check_unknown(&["tube-config", "tube-confi t"]);
    check_bad(&["tube-config ", "tube-config t ", "tube-config t rate", "tube-config t rate "]);
    check_unknown(&["use", "watch", "ignore", "use\tt", "deletex 7", "peek-", "peek-read"]);
    check_bad(&["put ", "peek ", "delete ", "release ", "bury ", "kick ", "kick-job ", "touch "]);
    check_bad(&["use ", "watch ", "ignore ", "reserve-job ", "stats-job ", "stats-tube ", "flush-tube "]);
    check_bad(&["reserve-with-timeout ", "pause-tube ", "pause-tube t", "pause-tube t "]);
}

#[test]
fn an_unexpected_argument_is_an_error() {
    check_bad(&["reserve ", "stats ", "peek-ready ", "peek-delayedx", "peek-buried 1", "peek-reserved "]);
    check_bad(&["list-tubes ", "list-tubesx", "list-tube-usedx", "list-tubes-watched "]);
    check_bad(&["list-tubes-watche", "reserve-x", "reserve-with-timeout", "reserve-job", "reserve-job1"]);
    check_bad(&["stats-job", "stats-tube", "stats-jobs 1", "pause-tube"]);
    check("quitx", Command::Quit);
    check("quit now", Command::Quit);
}

#[test]
fn other_words_are_unknown() {
    check_unknown(&["", " ", " stats", "STATS", "stat", "qui", "list-tube", "list-tube-use", "pause"]);
}

#[test]
fn the_limits_of_numbers_are_exact() {
    check("delete 0", Command::Delete(JobId(0)));
    check("delete   7", Command::Delete(JobId(7)));
    check("delete 9999999999999999999", Command::Delete(JobId(9_999_999_999_999_999_999)));
    check("delete 18446744073709551615", Command::Delete(JobId(u64::MAX)));
    check("delete 0000000000000000000000018446744073709551615", Command::Delete(JobId(u64::MAX)));
    check_bad(&["delete 18446744073709551616", "delete 99999999999999999999"]);
    check_bad(&["delete 000018446744073709551616", "delete 36893488147419103232"]);
    check_bad(&["delete -1", "delete +1", "delete \t1", "delete x", "delete 0x1", "delete ٣"]);
    check_bad(&["delete 1 ", "delete 1x", "delete 1 2", "delete 1\r", "delete 1\n"]);

    check("kick 4294967295", Command::Kick { bound: u32::MAX });
    check("kick 4294967296", Command::Kick { bound: u32::MAX });
    check("kick 18446744073709551615", Command::Kick { bound: u32::MAX });
    check_bad(&["kick 18446744073709551616", "kick 5x", "kick 5 ", "kick -1", "kick +1", "kick \t1"]);

    check("reserve-with-timeout 2147483647", Command::ReserveWithTimeout { seconds: 2_147_483_647 });
    check_bad(&["reserve-with-timeout 2147483648", "reserve-with-timeout -1"]);
    check_bad(&["reserve-with-timeout x", "reserve-with-timeout 0x", "reserve-with-timeout 1 "]);

    check("wait-job  7  2147483647", Command::WaitJob { id: JobId(7), seconds: i32::MAX as u32 });
    check_bad(&["wait-job 7", "wait-job 7 ", "wait-job 7 x", "wait-job 7 -1", "wait-job 7 2147483648"]);
    check_bad(&["wait-job ", "wait-job x 1", "wait-job 7 1 ", "wait-job 7 1 2", "cancel-reserve "]);

    let release = Command::Release { id: JobId(7), pri: u32::MAX, delay: u32::MAX };
    check("release  7  4294967295  4294967295", release);
    check_bad(&["release 7", "release 7 1", "release 7 4294967296 0", "release 7 0 4294967296"]);
    check_bad(&["release 7-1 0", "release 7 1 2 3", "bury 7", "bury 7 1x", "bury 7 4294967296"]);
}

#[test]
fn a_batch_has_one_to_a_thousand_jobs() {
    check("reserve-batch 1", Command::ReserveBatch { count: 1, seconds: None });
    check("reserve-batch 1000 0", Command::ReserveBatch { count: 1000, seconds: Some(0) });
    check("reserve-batch  7  2147483647", Command::ReserveBatch { count: 7, seconds: Some(i32::MAX as u32) });
    check_bad(&["reserve-batch", "reserve-batch ", "reserve-batch 0", "reserve-batch 1001"]);
    check_bad(&["reserve-batch 1 ", "reserve-batch 1 x", "reserve-batch 1 2 3", "reserve-batch 1x"]);
    check_bad(&["reserve-batch 1 -1", "reserve-batch 1 2147483648", "reserve-batchx 1", "reserve-batch -1"]);
}

#[test]
fn a_batch_has_one_to_a_thousand_puts() {
    check("put-batch 1", Command::PutBatch { count: Some(1) });
    check("put-batch   1000", Command::PutBatch { count: Some(1000) });
    for line in ["put-batch ", "put-batch 0", "put-batch 1001", "put-batch 4294967297", "put-batch x"] {
        check(line, Command::PutBatch { count: None });
    }
    for line in ["put-batch 1 ", "put-batch 1x", "put-batch 1 2", "put-batch -1"] {
        check(line, Command::PutBatch { count: None });
    }
    check_bad(&["put-batch 1\0", "put-batch x\0y"]);
}

#[test]
fn a_page_has_one_to_a_thousand_jobs() {
    let list = |after, limit| Command::ListJobs { tube: tube("t"), state: JobStateWord::Ready, after, limit };
    check("list-jobs   t   ready", list(JobId(0), 100));
    check("list-jobs t ready 18446744073709551615 1", list(JobId(u64::MAX), 1));
    check_bad(&[
        "list-jobs t ready 0 0",
        "list-jobs t ready 0 1001",
        "list-jobs t ready 18446744073709551616",
    ]);
    check_bad(&[
        "list-jobs t ready ",
        "list-jobs t ready 0 ",
        "list-jobs t ready 0 1 2",
        "list-jobs t ready x",
    ]);
    check_bad(&["list-jobs t Ready", "list-jobs t urgent", "list-jobs t readyx", "list-jobs -t ready"]);
    check_bad(&["list-jobs ready", &format!("list-jobs {} ready", "t".repeat(201)), "list-jobs t\tready"]);
}

#[test]
fn jobs_of_three_states_move_to_another_tube() {
    check("move-jobs   t   ready   u   0", move_jobs(JobStateWord::Ready, 0));
    check("move-jobs t buried u 18446744073709551615", move_jobs(JobStateWord::Buried, u32::MAX));
    check_bad(&["move-jobs t reserved u 1", "move-jobs t ready t 1", "move-jobs t ready u -1"]);
    check_bad(&[
        "move-jobs t ready u 1 ",
        "move-jobs t ready u 1x",
        "move-jobs -t ready u 1",
        "move-jobs t ready -u 1",
    ]);
    check("move-job  7  t", Command::MoveJob { id: JobId(7), tube: tube("t") });
    check_bad(&["move-job 7 t ", "move-job x t", "move-job 7 -t", "move-job 7 t u", "move-job 7t"]);
    check_bad(&[&format!("move-job 7 {}", "t".repeat(201))]);
}

#[test]
fn a_rule_has_a_key_and_a_value() {
    let rule = |key, value| {
        let rule = Rule::new(tube("t"), key, value);
        Command::TubeConfig { tube: tube("t"), rule: Some(rule.expect("a valid rule")) }
    };
    check("tube-config   t   max-jobs   7", rule(RuleKey::MaxJobs, RuleValue::Number(7)));
    check("tube-config t dead-letter u", rule(RuleKey::DeadLetter, RuleValue::Tube(tube("u"))));
    for key in RuleKey::ALL {
        check(&format!("tube-config t {} 0", key.word()), rule(key, RuleValue::None));
    }
    let longest = "t".repeat(200);
    let rule = Rule::new(tube(&longest), RuleKey::DeadLetter, RuleValue::Tube(tube("u")));
    check(
        &format!("tube-config {longest} dead-letter u"),
        Command::TubeConfig { tube: tube(&longest), rule },
    );
    check_bad(&[
        "tube-config t dead-letter t",
        "tube-config t max-jobs 1 ",
        "tube-config t max-jobs 1 2",
        "tube-config t max-jobs 1\0",
        "tube-config t max-jobs -1",
        "tube-config t max-jobs 4294967296",
        "tube-config t rate 0.5",
        "tube-config t rate 1000001",
        "tube-config t max-jobs none",
        "tube-config t dead-letter -u",
        "tube-config t MAX-JOBS 1",
        "tube-config t max-job 1",
        "tube-config t 1",
        "tube-config -t rate 1",
        &format!("tube-config {longest}t rate 1"),
        &format!("tube-config t dead-letter {longest}u"),
    ]);
}

#[test]
fn a_batch_has_one_to_a_thousand_ids() {
    let ids = |text: &str| match parse(text.as_bytes()) {
        Ok(Command::DeleteBatch(ids)) => ids.iter().map(|id| id.0).collect::<Vec<_>>(),
        other => panic!("{text:?} is {other:?}"),
    };
    assert_eq!(ids("delete-batch 7"), [7]);
    assert_eq!(ids("delete-batch  7   007 7"), [7, 7, 7]);
    assert_eq!(ids("delete-batch 018446744073709551615 0"), [u64::MAX, 0]);
    assert_eq!(ids(&format!("delete-batch{}", " 1".repeat(1000))).len(), 1000);
    check_bad(&[&format!("delete-batch{}", " 1".repeat(1001)), "delete-batch ", "delete-batch 1 "]);
    check_bad(&["delete-batch x", "delete-batch 1 x", "delete-batch 1x2", "delete-batch 1\t2"]);
    check_bad(&["delete-batch -1", "delete-batch 1,2", "delete-batch 1 18446744073709551616"]);
}

#[test]
fn a_weight_is_positive() {
    let weighted = |name, weight| Command::WatchWeighted { tube: tube(name), weight };
    check("watch t 1", weighted("t", NonZeroU32::MIN));
    check("watch 7   4294967295", weighted("7", NonZeroU32::MAX));
    let longest = "t".repeat(200);
    check(&format!("watch {longest} 4294967295"), weighted(&longest, NonZeroU32::MAX));
    check_bad(&["watch t 0", "watch t 4294967296", "watch t -1", "watch t x", "watch t 1x", "watch t 1 2"]);
    check_bad(&[
        "watch t ",
        "watch  t 1",
        "watch t 1 ",
        "watch -t 1",
        "watch t,1",
        "watch t\t1",
        "watch 1.5 1.5",
    ]);
}

#[test]
fn a_mode_has_its_exact_word() {
    check("reserve-mode default", Command::ReserveMode(ReserveMode::Default));
    check("reserve-mode fifo", Command::ReserveMode(ReserveMode::Fifo));
    check("reserve-mode weighted-fair", Command::ReserveMode(ReserveMode::WeightedFair));
    check_bad(&[
        "reserve-mode",
        "reserve-mode ",
        "reserve-mode  fifo",
        "reserve-mode fifo ",
        "reserve-mode Fifo",
    ]);
    check_bad(&[
        "reserve-mode weight",
        "reserve-mode weighted-",
        "reserve-mode weighted 1",
        "reserve-modefifo",
    ]);
}

fn check_put(args: &str, bytes: u32, tags: Option<&str>) {
    let put = PutArgs { pri: 0, delay: 0, ttr: 0, bytes };
    let tags =
        tags.map(|tags| if tags.is_empty() { Tags::NONE } else { Tags::new(tags.as_bytes()).unwrap() });
    check(&format!("put {args}"), Command::Put { args: put, tags });
}

#[test]
fn put_takes_tags_and_notes_other_arguments() {
    check_put("0 0 0 4294967295", u32::MAX, Some(""));
    check_put("  0   0 0    5", 5, Some(""));
    check_put("0 0 0 5 ", 5, None);
    check_put("0 0 0 5x", 5, None);
    check_put("0 0 0 5 6", 5, None);
    check_put("0 0 0 5 idp:k", 5, Some("idp:k"));
    check_put("0 0 0 5 idp:k:60", 5, Some("idp:k:60"));
    check_put("0 0 0 5  idp:k", 5, None);
    check_put("0 0 0 5idp:k", 5, None);
    check_bad(&["put 0 0 0", "put 0 0 0 ", "put 0 0 0x 5", "put 0 0 0 -5", "put 0 0 0 4294967296"]);
    check_bad(&["put 4294967296 0 0 0", "put 0 4294967296 0 0", "put 0 0 4294967296 0"]);
}

#[test]
fn only_tags_make_a_put_longer() {
    let put = |zeros: usize, rest: &str| format!("put {}0 0 0 5{rest}", "0".repeat(zeros));
    let usual = LINE_BYTES_MAX - 2 - put(0, "").len();
    check_put(&put(usual, "")[4..], 5, Some(""));
    check_bad(&[&put(usual + 1, "")]);
    check_put(&put(usual - 2, " x")[4..], 5, None);
    check_bad(&[&put(usual - 1, " x")]);
    check_put(&put(usual, " idp:k")[4..], 5, Some("idp:k"));
}

#[test]
fn tube_names_are_checked() {
    let (longest, too_long) = ("t".repeat(200), "t".repeat(201));
    check(&format!("use {longest}"), Command::Use(tube(&longest)));
    check_bad(&[&format!("use {too_long}"), "use  t", "use t ", "use t u", "use -t", "stats-tube  t"]);

    let pause = |name| Command::PauseTube { tube: Some(tube(name)), seconds: 0 };
    check(&format!("pause-tube {longest} 0"), pause(&longest));
    check("pause-tube   t   0", pause("t"));
    check("pause-tubet 0", pause("t"));
    check("pause-tube 5 0", pause("5"));
    for bad_name in [&*too_long, "-t"] {
        check(&format!("pause-tube {bad_name} 0"), Command::PauseTube { tube: None, seconds: 0 });
    }
    check_bad(&["pause-tube t\t0", "pause-tube * 0"]);
    check_bad(&["pause-tube t0", "pause-tube t, 0", "pause-tube t 0 ", "pause-tube t 4294967296"]);
}

#[test]
fn a_nul_is_an_error_anywhere() {
    check_bad(&["\0", "stat\0", "stats\0", "x\0y", "use t\0", "delete 1\0", "quit\0", "quit x\0"]);
    check_bad(&["put 0 0 0 5\0", "put 0 0 0 5 x\0y", "put\0", "pause-tube t\0 0"]);
}

/// Returns the tags if they are well-formed.
fn naive_tags(rest: &[u8]) -> Option<Tags<'_>> {
    let Some(text) = rest.strip_prefix(b" ") else { return rest.is_empty().then_some(Tags::NONE) };
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
    (words.iter().all(is_tag) && !has_doubles && !is_circle).then(|| Tags::new(text).unwrap())
}

/// Applies the rules as beanstalkd does: it tries the words in its order, then parses the arguments one by one.
fn naive_parse(line: &[u8]) -> Result<Command<'_>, ParseError> {
    use ParseError::{BadFormat, UnknownCommand};

    const WORDS: [&str; 40] = [
        "put ",
        "put-batch ",
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
        "delete-batch ",
        "wait-job ",
        "cancel-reserve",
        "drain",
        "undrain",
        "quit",
        "pause-tube",
    ];
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
    fn word_of<'a>(rest: &mut &'a [u8]) -> &'a [u8] {
        let begin = rest.iter().position(|&byte| byte != b' ').unwrap_or(rest.len());
        let word = rest[begin..].split(|&byte| byte == b' ').next().unwrap_or_default();
        *rest = &rest[begin + word.len()..];
        word
    }
    fn state_of(word: &[u8]) -> Option<JobStateWord> {
        Some(match word {
            b"ready" => JobStateWord::Ready,
            b"reserved" => JobStateWord::Reserved,
            b"delayed" => JobStateWord::Delayed,
            b"buried" => JobStateWord::Buried,
            b"held" => JobStateWord::Held,
            _ => return None,
        })
    }
    const U32: u64 = u32::MAX as u64;

    if line.contains(&0) {
        return Err(BadFormat);
    }
    let word = *WORDS.iter().find(|word| line.starts_with(word.as_bytes())).ok_or(UnknownCommand)?;
    let mut rest = &line[word.len()..];
    let name = TubeName::new(rest).ok_or(BadFormat);
    let command = match word {
        "put " => {
            let [pri, delay, ttr, bytes] = [(); 4].map(|()| number(&mut rest, U32));
            let (pri, delay, ttr, bytes) = (pri? as u32, delay? as u32, ttr? as u32, bytes? as u32);
            let tags = naive_tags(rest);
            let is_long = line.len() + 2 > 224;
            if is_long && tags.is_none_or(|tags| tags == Tags::NONE) {
                return Err(BadFormat);
            }
            return Ok(Command::Put { args: PutArgs { pri, delay, ttr, bytes }, tags });
        }
        "put-batch " => {
            let count = number(&mut rest, 1000).ok().filter(|&count| count > 0 && rest.is_empty());
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
        "peek " => Command::Peek(JobId(number(&mut rest, u64::MAX)?)),
        "peek-ready" => Command::PeekReady,
        "peek-delayed" => Command::PeekDelayed,
        "peek-buried" => Command::PeekBuried,
        "peek-reserved" => Command::PeekReserved,
        "reserve-with-timeout " => {
            Command::ReserveWithTimeout { seconds: number(&mut rest, 2_147_483_647)? as u32 }
        }
        "reserve-job " => Command::ReserveJob(JobId(number(&mut rest, u64::MAX)?)),
        "reserve-batch " => {
            let count = number(&mut rest, 1000)? as u32;
            let seconds = if rest.is_empty() { None } else { Some(number(&mut rest, 2_147_483_647)? as u32) };
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
            delay: number(&mut rest, U32)? as u32,
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
            if state == JobStateWord::Reserved || state == JobStateWord::Held || from == to {
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
            seconds: number(&mut rest, 2_147_483_647)? as u32,
        },
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
            Command::PauseTube {
                tube: TubeName::new(&name[..name_length]),
                seconds: number(&mut rest, U32)? as u32,
            }
        }
        _ => unreachable!("{word} is not in the table"),
    };
    if rest.is_empty() { Ok(command) } else { Err(BadFormat) }
}

fn mutate(line: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(line.len() + 1);
    match random.below(6) {
        0 => line.truncate(at),
        1 => line.insert(at, random.pick(b" 0159-+aput:\0\r\n\t\x80.,")),
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

#[test]
fn random_lines_agree_with_the_naive_parser() {
    const LINES: [&str; 44] = [
        "put 1 2 3 4",
        "put 1 2 3 4 idp:k:9",
        "put-batch 5",
        "peek 7",
        "peek-ready",
        "peek-delayed",
        "peek-buried",
        "peek-reserved",
        "reserve",
        "reserve-with-timeout 5",
        "reserve-job 7",
        "delete 7",
        "release 7 1 2",
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
        "list-jobs t1 buried 7 8",
        "move-job 7 t1",
        "move-jobs t1 ready t2 9",
        "tube-config t1",
        "tube-config t1 max-jobs 7",
        "tube-config t1 dead-letter t2",
        "flush-tube t1",
        "delete-batch 7 8",
        "reserve-batch 5 6",
        "reserve-mode weighted",
        "watch t1 5",
        "wait-job 7 5",
        "cancel-reserve",
        "drain",
        "undrain",
        "quit",
    ];
    let mut random = Random::new();
    for _ in 0..200_000 {
        let mut line = random.pick(&LINES).as_bytes().to_vec();
        for _ in 0..random.below(4) {
            mutate(&mut line, &mut random);
        }
        assert_eq!(parse(&line), naive_parse(&line), "{:?}", line.escape_ascii().to_string());
    }
}
