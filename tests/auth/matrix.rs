//! Every command against every right. The table has a row for each kind of command: without one, it does not compile.

use beanring::protocol::command::CommandKind;
use beanring::server::Rights;
use beanring_testkit::in_memory::InMemoryServer;
use beanring_testkit::peer::Peer;

use super::{Authenticate, one, server};

const PRODUCE: Rights = Rights::PRODUCE;
const CONSUME: Rights = Rights::CONSUME;
const INSPECT: Rights = Rights::INSPECT;
const ADMIN: Rights = Rights::ADMIN;
const ANY: Rights = PRODUCE.or(CONSUME).or(INSPECT).or(ADMIN);

/// Whether a right on one tube is enough.
#[derive(Clone, Copy, PartialEq, Eq)]
enum On {
    Tube,
    AllTubes,
    /// No right is needed.
    Nothing,
}

/// The lines of a command, and the rights of which one is enough. The tube is `a`, with the ready job 1, the buried job 2, the
/// delayed job 3, and job 4, which the client has reserved if it may.
fn rows(kind: CommandKind) -> Vec<(&'static str, Rights, On)> {
    use CommandKind as Kind;
    vec![match kind {
        Kind::Put => ("put 0 0 9 1\r\nx\r\n", PRODUCE, On::Tube),
        Kind::PutBatch => ("put-batch 2\r\nput 0 0 9 1\r\nx\r\nput 0 0 9 1\r\ny\r\n", PRODUCE, On::Tube),
        Kind::Peek => ("peek 1\r\n", INSPECT, On::Tube),
        Kind::PeekReady => ("peek-ready\r\n", INSPECT, On::Tube),
        Kind::PeekDelayed => ("peek-delayed\r\n", INSPECT, On::Tube),
        Kind::PeekBuried => ("peek-buried\r\n", INSPECT, On::Tube),
        Kind::PeekReserved => ("peek-reserved\r\n", INSPECT, On::Tube),
        Kind::Reserve => ("reserve\r\n", CONSUME, On::Tube),
        Kind::ReserveWithTimeout => ("reserve-with-timeout 0\r\n", CONSUME, On::Tube),
        Kind::ReserveBatch => ("reserve-batch 2\r\n", CONSUME, On::Tube),
        Kind::ReserveJob => ("reserve-job 2\r\n", CONSUME, On::Tube),
        Kind::Delete => {
            return ["delete 1\r\n", "delete 2\r\n"].map(|line| (line, CONSUME | ADMIN, On::Tube)).into();
        }
        Kind::DeleteBatch => ("delete-batch 99 1 2\r\n", CONSUME | ADMIN, On::Tube),
        Kind::Release => ("release 4 0 0\r\n", CONSUME, On::Tube),
        Kind::Bury => ("bury 4 0\r\n", CONSUME, On::Tube),
        Kind::Touch => ("touch 4\r\n", CONSUME, On::Tube),
        Kind::JobNote => ("job-note 4 1\r\nx\r\n", CONSUME, On::Tube),
        Kind::Use => ("use a\r\n", PRODUCE | INSPECT | ADMIN, On::Tube),
        Kind::Watch => {
            return vec![("watch a\r\n", CONSUME, On::Tube), ("watch a 7\r\n", CONSUME, On::Tube)];
        }
        Kind::Ignore => ("ignore other\r\n", ANY, On::Nothing),
        Kind::Kick => ("kick 9\r\n", ADMIN, On::Tube),
        Kind::KickJob => ("kick-job 2\r\n", ADMIN, On::Tube),
        Kind::Stats => ("stats\r\n", INSPECT, On::Tube),
        Kind::StatsJob => ("stats-job 1\r\n", INSPECT | CONSUME | ADMIN, On::Tube),
        Kind::StatsTube => ("stats-tube a\r\n", INSPECT, On::Tube),
        Kind::StatsGroup => ("stats-group g\r\n", INSPECT, On::AllTubes),
        Kind::ListTubes => ("list-tubes\r\n", INSPECT, On::Tube),
        Kind::ListTubeUsed => ("list-tube-used\r\n", ANY, On::Nothing),
        Kind::ListTubesWatched => ("list-tubes-watched\r\n", ANY, On::Nothing),
        Kind::ListJobs => ("list-jobs a ready\r\n", INSPECT, On::Tube),
        Kind::PauseTube => ("pause-tube a 9\r\n", ADMIN, On::Tube),
        Kind::FlushTube => ("flush-tube a\r\n", ADMIN, On::Tube),
        Kind::FlushKeys => ("flush-keys a\r\n", ADMIN, On::Tube),
        Kind::ReserveMode => ("reserve-mode weighted\r\n", ANY, On::Nothing),
        Kind::WaitJob => ("wait-job 2 0\r\n", PRODUCE | INSPECT, On::Tube),
        Kind::SchedulePut => {
            return vec![
                ("schedule-put new 1 0 9 1 ab every:60\r\nx\r\n", PRODUCE, On::Tube),
                ("schedule-put nightly 1 0 9 1 ab every:60\r\nx\r\n", PRODUCE, On::Tube),
                ("schedule-put nightly 1 0 9 1 elsewhere every:60\r\nx\r\n", PRODUCE, On::AllTubes),
                ("schedule-put other 1 0 9 1 ab every:60\r\nx\r\n", PRODUCE, On::AllTubes),
            ];
        }
        Kind::ScheduleDelete => ("schedule-delete nightly\r\n", PRODUCE | ADMIN, On::Tube),
        Kind::ScheduleRun => ("schedule-run nightly\r\n", PRODUCE | ADMIN, On::Tube),
        Kind::ScheduleStats => ("schedule-stats nightly\r\n", PRODUCE | INSPECT | ADMIN, On::Tube),
        Kind::ListSchedules => ("list-schedules\r\n", PRODUCE | INSPECT | ADMIN, On::Tube),
        Kind::CancelReserve => ("cancel-reserve\r\n", ANY, On::Nothing),
        Kind::MoveJob => {
            return vec![
                ("move-job 2 ab\r\n", ADMIN, On::Tube),
                ("move-job 2 elsewhere\r\n", ADMIN, On::AllTubes),
            ];
        }
        Kind::MoveJobs => {
            return vec![
                ("move-jobs a buried ab 9\r\n", ADMIN, On::Tube),
                ("move-jobs a buried elsewhere 9\r\n", ADMIN, On::AllTubes),
            ];
        }
        Kind::TubeConfig => {
            return vec![
                ("tube-config a\r\n", INSPECT | ADMIN, On::Tube),
                ("tube-config a rate 9\r\n", ADMIN, On::Tube),
                ("tube-config a dead-letter ab\r\n", ADMIN, On::Tube),
                ("tube-config a dead-letter elsewhere\r\n", ADMIN, On::AllTubes),
            ];
        }
        Kind::Drain => ("drain\r\n", ADMIN, On::AllTubes),
        Kind::Undrain => ("undrain\r\n", ADMIN, On::AllTubes),
        Kind::Quit => ("quit\r\n", ANY, On::Nothing),
    }]
}

/// What a reader of everything sees of the server, without the counts of commands.
fn state(bench: &mut InMemoryServer, root: usize) -> String {
    let jobs = "stats-job 1\r\nstats-job 2\r\nstats-job 3\r\nstats-job 4\r\n";
    let schedules = "list-schedules\r\nschedule-stats nightly\r\nschedule-stats other\r\n";
    bench.ask(root, &format!("stats-tube a\r\n{jobs}{schedules}list-tubes\r\ntube-config a\r\n"))
}

fn check(command: &str, rights: &[(Rights, &str)], tube: &str, may: bool) {
    let lists: String = rights.iter().map(|(_, word)| format!("{word} = [{tube}]\n")).collect();
    let mut bench = server(&one(&lists));
    let root = bench.root();
    let puts = "put 0 0 99 1\r\n1\r\nput 0 0 99 1\r\n2\r\nput 0 99 99 1\r\n3\r\nput 0 0 99 1\r\n4\r\n";
    bench.ask(root, &format!("use a\r\n{puts}reserve-job 2\r\nbury 2 0\r\nuse ab\r\n"));
    let schedules = [("nightly", "a"), ("other", "elsewhere")]
        .map(|(name, tube)| format!("schedule-put {name} 1 0 9 1 {tube} every:1d\r\nx\r\n"));
    bench.ask(root, &schedules.concat());
    let one = bench.one();
    for line in ["use a", "watch a"] {
        if !command.starts_with(line) {
            bench.ask(one, &format!("{line}\r\n"));
        }
    }
    bench.ask(one, "ignore default\r\nreserve-job 4\r\n");
    let before = state(&mut bench, root);
    let reply = bench.ask(one, command);
    let has = rights.iter().map(|(_, word)| *word).collect::<Vec<_>>().join(", ");
    let what = format!("{command:?} with {has} on {tube}: {reply:?}");
    assert_eq!(reply != "FORBIDDEN\r\n", may, "{what}");
    if !may {
        assert_eq!(state(&mut bench, root), before, "{what} has changed nothing");
        assert!(bench.ask(one, "list-tube-used\r\n").starts_with("USING "), "{what}: the connection goes on");
    } else if command.starts_with("quit") {
        assert_eq!(reply, "closed");
    } else {
        assert!(!reply.is_empty() && reply != "closed", "{what}");
    }
}

#[test]
fn every_command_needs_its_right() {
    for kind in CommandKind::ALL {
        for (command, needed, on) in rows(kind) {
            let word = command.split(['\r', ' ']).next();
            assert_eq!(word, Some(kind.word()), "the row of a kind has its command");
            check(command, &[], "\"a\", \"ab\"", on == On::Nothing);
            for right in Rights::ALL {
                let has = on == On::Nothing || right.0.has_any(needed);
                check(command, &[right], "\"a\", \"ab\"", has && on != On::AllTubes);
                check(command, &[right], "\"*\"", has);
                let is_of_server =
                    matches!(kind, CommandKind::Stats | CommandKind::ListTubes | CommandKind::ListSchedules);
                check(command, &[right], "\"b*\"", on == On::Nothing || is_of_server && has);
            }
        }
    }
}

#[test]
fn lists_show_what_may_be_seen() {
    let mut bench = server(&one("inspect = [\"a*\", \"c\"]"));
    let root = bench.root();
    bench.ask(root, "watch a\r\nwatch ab\r\nwatch b\r\nwatch c\r\nwatch cd\r\n");
    let one = bench.one();
    bench.expect(one, "list-tubes\r\n", "OK 17\r\n---\n- a\n- ab\n- c\n\r\n");
    assert!(bench.ask(root, "list-tubes\r\n").contains("- cd\n"));
    bench.expect(one, "list-tubes-watched\r\n", "OK 4\r\n---\n\r\n");
}

#[test]
fn schedules_are_listed_by_the_rights_on_their_tubes() {
    let mut bench = server(&one("produce = [\"a\"]\ninspect = [\"b\"]\nconsume = [\"c\"]"));
    let root = bench.root();
    let put = |name: &str, tube: &str| format!("schedule-put {name} 1 0 9 1 {tube} every:1d\r\nx\r\n");
    let puts = [put("s1", "a"), put("s2", "b"), put("s3", "c"), put("s4", "d"), put("s5", "a")].concat();
    bench.expect(root, &puts, &"SCHEDULED\r\n".repeat(5));
    let one = bench.one();
    bench.expect(one, "list-schedules\r\n", "OK 34\r\n---\nschedules: [\"s1\", \"s2\", \"s5\"]\n\r\n");
    bench.expect(one, "list-schedules 2 s2\r\n", "OK 29\r\n---\nschedules: []\nnext: \"s4\"\n\r\n");
    bench.expect(
        one,
        "schedule-stats s3\r\nschedule-delete s4\r\nschedule-run s2\r\n",
        &"FORBIDDEN\r\n".repeat(3),
    );
}

#[test]
fn a_long_list_is_counted_and_rendered_in_pieces() {
    let mut bench = server(&one("inspect = [\"x*\"]"));
    let root = bench.root();
    let watches: String = (0..3000).map(|number| format!("watch x{number}\r\nwatch y{number}\r\n")).collect();
    bench.load(root, &watches);
    let one = bench.one();
    let mut reply = bench.ask(one, "list-tubes\r\nlist-tube-used\r\n");
    while !reply.ends_with("USING default\r\n") {
        let more = bench.reply(one);
        assert!(!more.is_empty(), "the list is complete");
        reply += &more;
    }
    assert_eq!(reply.lines().filter(|line| line.starts_with("- x")).count(), 3000);
    assert!(!reply.contains("- y"));
    let bytes: usize = reply.lines().next().unwrap().strip_prefix("OK ").unwrap().parse().unwrap();
    let data = reply.split_once("\r\n").unwrap().1.strip_suffix("\r\nUSING default\r\n").unwrap();
    assert_eq!(data.len(), bytes);
}

#[test]
fn the_default_tube_is_watched_only_by_its_consumers() {
    let mut bench = server(&one("consume = [\"a\"]"));
    let root = bench.root();
    bench.ask(root, "put 0 0 9 1\r\nx\r\n");
    bench.expect(root, "list-tubes-watched\r\n", "OK 14\r\n---\n- default\n\r\n");
    let one = bench.one();
    bench.expect(one, "list-tubes-watched\r\n", "OK 4\r\n---\n\r\n");
    for command in ["reserve\r\n", "reserve-with-timeout 0\r\n", "reserve-batch 3\r\n", "watch default\r\n"] {
        bench.expect(one, command, "FORBIDDEN\r\n");
    }
    // What every library sends.
    bench.expect(one, "watch a\r\nignore default\r\n", "WATCHING 1\r\nWATCHING 1\r\n");
    bench.expect(one, "reserve-with-timeout 0\r\n", "TIMED_OUT\r\n");
    bench.expect(one, "ignore a\r\n", "NOT_IGNORED\r\n");
    bench.expect(one, "reserve-job 1\r\npeek 1\r\ndelete 1\r\ntouch 1\r\n", &"FORBIDDEN\r\n".repeat(4));
    bench.expect(one, "delete 99\r\n", "NOT_FOUND\r\n");
}

#[test]
fn a_refused_body_is_skipped() {
    let mut bench = server("");
    let one = bench.open();
    bench.expect(one, "put 0 0 9 6\r\nquit\r\n\r\nlist-tube-used\r\n", "FORBIDDEN\r\nUSING default\r\n");
    bench.expect(one, "put 0 0 9 6\r\nqu", "");
    bench.expect(one, "it\r\n\r\n", "FORBIDDEN\r\n");
    bench.expect(one, "put 0 0 9 65536\r\n", "");
    bench.expect(one, &format!("{}\r\n", "x".repeat(65_536)), "JOB_TOO_BIG\r\n");
    bench.expect(one, "put 0 0 9 6 no tag\r\nquit\r\n\r\n", "BAD_FORMAT\r\n");
    bench.expect(
        one,
        "put-batch 2\r\nput 0 0 9 1\r\nx\r\nput 0 0 9 1\r\ny\r\nlist-tube-used\r\n",
        "FORBIDDEN\r\nUSING default\r\n",
    );
    let root = bench.root();
    assert!(bench.ask(root, "stats\r\n").contains("\ntotal-jobs: 0\n"));
}
