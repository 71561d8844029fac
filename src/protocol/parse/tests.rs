//! Parsed lines: every command, and every limit.

mod naive;

use super::*;
use crate::values::tube_rules::RuleValue;

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

fn move_jobs(state: JobState, bound: u32) -> Command<'static> {
    Command::MoveJobs { from: tube("t"), state, to: tube("u"), bound }
}

#[test]
fn every_command_is_parsed() {
    let args = PutArgs { pri: 1, delay: Seconds::whole(2), ttr: Seconds::whole(3), bytes: 4 };
    check("put 1 2 3 4", Command::Put { args, tags: Some(Tags::NONE) });
    check("put 1 2 3 4 idp:k:5", Command::Put { args, tags: Some(Tags::new(b"idp:k:5").unwrap()) });
    check("peek 7", Command::Peek(JobId(7)));
    check("peek-ready", Command::PeekReady);
    check("peek-delayed", Command::PeekDelayed);
    check("peek-buried", Command::PeekBuried);
    check("reserve", Command::Reserve);
    check("reserve-with-timeout 5", Command::ReserveWithTimeout { seconds: Seconds::whole(5) });
    check("reserve-job 7", Command::ReserveJob(JobId(7)));
    check("delete 7", Command::Delete(JobId(7)));
    check("release 7 1 2", Command::Release { id: JobId(7), pri: 1, delay: Seconds::whole(2) });
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
    check("pause-tube t 8", Command::PauseTube { tube: Some(tube("t")), seconds: Seconds::whole(8) });
    check("peek-reserved", Command::PeekReserved);
    let list = |state, after, limit| Command::ListJobs { tube: tube("t"), state, after: JobId(after), limit };
    check("list-jobs t ready", list(JobState::Ready, 0, 100));
    check("list-jobs t reserved 7", list(JobState::Reserved, 7, 100));
    check("list-jobs t delayed 7 8", list(JobState::Delayed, 7, 8));
    check("list-jobs t buried 0 1000", list(JobState::Buried, 0, 1000));
    check("list-jobs t held", list(JobState::Held, 0, 100));
    check("move-job 7 t", Command::MoveJob { id: JobId(7), tube: tube("t") });
    check("move-jobs t delayed u 9", move_jobs(JobState::Delayed, 9));
    check("flush-tube t", Command::FlushTube(tube("t")));
    check("flush-keys t", Command::FlushKeys(tube("t")));
    check("delete-batch 7 8", Command::DeleteBatch(Ids::new(b"7 8")));
    check("put-batch 5", Command::PutBatch { count: Some(5) });
    check("reserve-batch 5", Command::ReserveBatch { count: 5, seconds: None });
    check("reserve-batch 5 6", Command::ReserveBatch { count: 5, seconds: Some(Seconds::whole(6)) });
    check("stats-group t", Command::StatsGroup(tube("t")));
    check("wait-job 7 5", Command::WaitJob { id: JobId(7), seconds: Seconds::whole(5) });
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
    check_unknown(&[
        "put",
        "peek",
        "delete",
        "release",
        "bury",
        "kick",
        "kick-job",
        "touch",
        "flush-tube",
        "flush-keys",
    ]);
    check_unknown(&["delete-batch"]);
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
    check_bad(&[
        "use ",
        "watch ",
        "ignore ",
        "reserve-job ",
        "stats-job ",
        "stats-tube ",
        "flush-tube ",
        "flush-keys ",
    ]);
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

    let longest = Seconds::whole(2_147_483_647);
    check("reserve-with-timeout 2147483647", Command::ReserveWithTimeout { seconds: longest });
    check_bad(&["reserve-with-timeout 2147483648", "reserve-with-timeout -1"]);
    check_bad(&["reserve-with-timeout x", "reserve-with-timeout 0x", "reserve-with-timeout 1 "]);

    check("wait-job  7  2147483647", Command::WaitJob { id: JobId(7), seconds: longest });
    check_bad(&["wait-job 7", "wait-job 7 ", "wait-job 7 x", "wait-job 7 -1", "wait-job 7 2147483648"]);
    check_bad(&["wait-job ", "wait-job x 1", "wait-job 7 1 ", "wait-job 7 1 2", "cancel-reserve "]);

    let release = Command::Release { id: JobId(7), pri: u32::MAX, delay: Seconds::whole(u32::MAX) };
    check("release  7  4294967295  4294967295", release);
    check_bad(&["release 7", "release 7 1", "release 7 4294967296 0", "release 7 0 4294967296"]);
    check_bad(&["release 7-1 0", "release 7 1 2 3", "bury 7", "bury 7 1x", "bury 7 4294967296"]);
}

#[test]
fn a_batch_has_one_to_a_thousand_jobs() {
    check("reserve-batch 1", Command::ReserveBatch { count: 1, seconds: None });
    check("reserve-batch 1000 0", Command::ReserveBatch { count: 1000, seconds: Some(Seconds::ZERO) });
    let seconds = Some(Seconds::whole(2_147_483_647));
    check("reserve-batch  7  2147483647", Command::ReserveBatch { count: 7, seconds });
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
    // Jobs may follow: no such line is refused as others are.
    for line in
        ["put-batch", "put-batch1", "put-batches 1", "put-batch\t1", "put-batch 1\0", "put-batch x\0y"]
    {
        check(line, Command::PutBatch { count: None });
    }
}

#[test]
fn a_page_has_one_to_a_thousand_jobs() {
    let list = |after, limit| Command::ListJobs { tube: tube("t"), state: JobState::Ready, after, limit };
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
    check("move-jobs   t   ready   u   0", move_jobs(JobState::Ready, 0));
    check("move-jobs t buried u 18446744073709551615", move_jobs(JobState::Buried, u32::MAX));
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
    let put = PutArgs { pri: 0, delay: Seconds::ZERO, ttr: Seconds::ZERO, bytes };
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
    check_bad(&["put 0 0 0 5 idp:k\0", "put 0 0 0 5\0"]);
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
    check_put(&put(usual - 7, " idp:k ")[4..], 5, None);
    check_bad(&[&put(usual - 6, " idp:k ")]);
}

#[test]
fn tube_names_are_checked() {
    let (longest, too_long) = ("t".repeat(200), "t".repeat(201));
    check(&format!("use {longest}"), Command::Use(tube(&longest)));
    check_bad(&[&format!("use {too_long}"), "use  t", "use t ", "use t u", "use -t", "stats-tube  t"]);

    let pause = |name| Command::PauseTube { tube: Some(tube(name)), seconds: Seconds::ZERO };
    check(&format!("pause-tube {longest} 0"), pause(&longest));
    check("pause-tube   t   0", pause("t"));
    check("pause-tubet 0", pause("t"));
    check("pause-tube 5 0", pause("5"));
    for bad_name in [&*too_long, "-t"] {
        check(&format!("pause-tube {bad_name} 0"), Command::PauseTube { tube: None, seconds: Seconds::ZERO });
    }
    check_bad(&["pause-tube t\t0", "pause-tube * 0"]);
    check_bad(&["pause-tube t0", "pause-tube t, 0", "pause-tube t 0 ", "pause-tube t 4294967296"]);
}

/// Parses a line as a server with `--sub-second` does.
fn parse_with_decimals(line: &[u8]) -> Result<Command<'_>, ParseError> {
    match parse(line) {
        Err(ParseError::BadFormat) => parse_decimals(line),
        parsed => parsed,
    }
}

#[test]
fn decimals_are_parsed_where_a_time_is() {
    let millis = |whole, millis| Seconds::new(whole, millis).unwrap();
    let check = |line: &str, expect: Command<'_>| {
        assert_eq!(parse(line.as_bytes()), Err(ParseError::BadFormat), "{line:?} without decimals");
        assert_eq!(parse_with_decimals(line.as_bytes()), Ok(expect), "{line:?}");
    };
    let args = PutArgs { pri: 0, delay: millis(0, 250), ttr: millis(1, 500), bytes: 3 };
    check("put 0 0.25 1.5 3", Command::Put { args, tags: Some(Tags::NONE) });
    check("put  0   00.250  1.500 3 idp:k", Command::Put { args, tags: Some(Tags::new(b"idp:k").unwrap()) });
    check("put 0 0.25 1.5 3 x", Command::Put { args, tags: None });
    check("put 0 0.25 1.5 3.0", Command::Put { args, tags: None });
    check("release 7 1 0.001", Command::Release { id: JobId(7), pri: 1, delay: millis(0, 1) });
    let longest = millis(u32::MAX, 999);
    check("release 7 1 4294967295.999", Command::Release { id: JobId(7), pri: 1, delay: longest });
    check("reserve-with-timeout 0.5", Command::ReserveWithTimeout { seconds: millis(0, 500) });
    let seconds = millis(i32::MAX as u32, 999);
    check("reserve-with-timeout 2147483647.999", Command::ReserveWithTimeout { seconds });
    check("reserve-batch 5 0.0", Command::ReserveBatch { count: 5, seconds: Some(Seconds::ZERO) });
    check("pause-tube t.5 0.5", Command::PauseTube { tube: Some(tube("t.5")), seconds: millis(0, 500) });
    check("wait-job 7 1.05", Command::WaitJob { id: JobId(7), seconds: millis(1, 50) });
    for line in [
        "put 0 .5 1 3",
        "put 0 1. 1 3",
        "put 0 1.2345 1 3",
        "put 0 1.5.5 1 3",
        "put 0 1e3 1 3",
        "put 0 1,5 1 3",
        "put 0.5 1 1 3",
        "put 0 4294967296.0 1 3",
        "put 0 1.5 1 3\0",
        "release 7.5 1 2",
        "release 7 1 -0.5",
        "reserve-with-timeout 2147483648.0",
        "reserve-with-timeout 1.5 ",
        "reserve-batch 1.5 1",
        "pause-tube t .5",
        "wait-job 1.5 1",
        "kick 1.5",
        "watch t 1.5",
    ] {
        assert_eq!(parse_with_decimals(line.as_bytes()), Err(ParseError::BadFormat), "{line:?}");
    }
}

#[test]
fn a_nul_is_an_error_anywhere() {
    check_bad(&["\0", "stat\0", "stats\0", "x\0y", "use t\0", "delete 1\0", "quit\0", "quit x\0"]);
    check_bad(&["put 0 0 0 5\0", "put 0 0 0 5 x\0y", "put\0", "pause-tube t\0 0"]);
}

/// A browser may send any method, but its target begins with `/`, and that of other programs with `/`, `*` or `http`.
#[test]
fn no_request_line_is_a_command_that_does_something() {
    let parsed = |line: String| match parse(line.as_bytes()) {
        Ok(Command::Quit | Command::PutBatch { count: None }) | Err(_) => None,
        Ok(command) => Some(format!("{command:?}")),
    };
    assert!(parsed("move-job 3 HTTP/1.1".to_owned()).is_some());
    for word in naive::WORDS.map(str::trim_end) {
        for target in ["/", "/1", "/a?b=1", "*", "http://a/", "https://a:1/b"] {
            for version in ["HTTP/1.1", "HTTP/1.0", "HTTP/2.0"] {
                assert_eq!(parsed(format!("{word} {target} {version}")), None, "{word}");
            }
        }
    }
}
