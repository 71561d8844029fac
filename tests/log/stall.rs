//! A write to the job log stalls: it finds no space although its file was prepared, as on a copy-on-write file system. Shows,
//! in virtual time, which commands are answered until there is space.

use beanring::io::users_file;
use beanring::io::wal_files::recover;
use beanring::queue::Engine;
use beanring::server::{Config, Effect, Event, Service};
use beanring::time::{Seconds, Span, Time};
use beanring::values::schedules::{ConfiguredSchedule, Missed, Plan};
use beanring::values::when::When;
use beanring::wal::{DiskOperation, Durability, LogReply, LogRequest, WalConfig};
use beanring_testkit::client::put;
use beanring_testkit::config::config;
use beanring_testkit::disk::{Crash, Disk};
use beanring_testkit::http_client::page;
use beanring_testkit::random::{Random, seeds};
use beanring_testkit::stepped::Stepped;

const SEGMENT_BYTES: u64 = 64 * 1024;
const MODES: [Durability; 3] =
    [Durability::Always, Durability::Within(Span::from_millis(50)), Durability::Never];
const OUT_OF_MEMORY: &str = "OUT_OF_MEMORY\r\n";
const BEGIN: Time = Time::from_nanos(1_000_000_000_000);

fn on(disk: Disk, mode: Durability, now: Time) -> Stepped {
    let mut server = Stepped::recovered(config(65_535), mode, SEGMENT_BYTES, disk, now);
    server.pass(Span::from_secs(5));
    server
}

fn begin(mode: Durability) -> Stepped {
    on(Disk::new(100, true), mode, BEGIN)
}

/// Job 1 is on disk. Then the disk has no space, and a client's change of job 2 waits for it.
fn stalled(mode: Durability) -> (Stepped, usize) {
    let mut server = begin(mode);
    expect_gauges(&mut server, 0);
    let client = server.open();
    stall(&mut server, client);
    (server, client)
}

fn stall(server: &mut Stepped, client: usize) {
    let puts = put(0, 0, "a") + &put(0, 0, "b");
    assert_eq!(server.command(client, &puts), "INSERTED 1\r\nINSERTED 2\r\n");
    server.pass(Span::from_secs(5));
    server.disk.room = 0;
    assert_eq!(server.command(client, "delete 2\r\n"), "", "it waits");
    // The server has removed prepared files for their space.
    server.pass(Span::from_secs(5));
    assert!(server.disk.refused_writes > 1, "it is tried again");
}

/// Another process frees space, which the server uses.
fn free_space(server: &mut Stepped) {
    server.disk.room = 100;
    server.pass(Span::from_secs(2));
}

/// Checks the metrics that tell operators about the disk.
fn expect_gauges(server: &mut Stepped, value: u8) {
    let http = server.open_http();
    let response = server.ask(http, &page("/metrics")).expect("a page");
    for name in ["beanring_wal_disk_full", "beanring_wal_stalled"] {
        let line = format!("\n{name} {value}\n");
        assert!(response.text().contains(&line), "{name} is not {value}: {}", response.text());
    }
}

/// A new server on the same disk.
fn restarted(mut server: Stepped, mode: Durability, crash: Crash) -> Stepped {
    server.disk.room = 100;
    server.disk.crash(crash, &mut server.random);
    on(server.disk, mode, server.now)
}

#[test]
fn read_only_commands_are_answered_while_a_write_is_stalled() {
    for mode in MODES {
        let (mut server, _) = stalled(mode);
        expect_gauges(&mut server, 1);
        let other = server.open();
        for (command, answer) in [
            ("stats\r\n", "OK "),
            ("stats-tube default\r\n", "OK "),
            ("stats-job 1\r\n", "OK "),
            ("list-tubes\r\n", "OK "),
            ("list-tube-used\r\n", "USING default\r\n"),
            ("peek 1\r\n", "FOUND 1 1\r\na\r\n"),
            ("peek-ready\r\n", "FOUND 1 1\r\na\r\n"),
            ("peek 7\r\n", "NOT_FOUND\r\n"),
            ("use other\r\n", "USING other\r\n"),
            ("watch other\r\n", "WATCHING 2\r\n"),
            ("put 0 0 9 1\r\nc\r\n", OUT_OF_MEMORY),
            ("nonsense\r\n", "UNKNOWN_COMMAND\r\n"),
        ] {
            let reply = server.command(other, command);
            assert!(reply.starts_with(answer), "{mode:?} {command:?}: {reply:?}");
        }
    }
}

/// A power failure could undo the deletion of job 2.
#[test]
fn no_reply_shows_a_stalled_change() {
    for mode in MODES {
        for command in ["peek 2\r\n", "stats-job 2\r\n", "reserve-with-timeout 0\r\n", "peek-delayed\r\n"] {
            let (mut server, client) = stalled(mode);
            let other = server.open();
            assert_eq!(server.command(other, command), "", "{mode:?} {command:?}");
            // Replies keep their order.
            assert_eq!(server.command(other, "list-tube-used\r\n"), "", "{mode:?} {command:?}");
            free_space(&mut server);
            assert_eq!(server.replies(client), "DELETED\r\n", "{mode:?}");
            let replies = server.replies(other);
            assert!(replies.ends_with("USING default\r\n") && replies.len() > 20, "{mode:?} {replies:?}");
        }
        // A later change waits too.
        let (mut server, client) = stalled(mode);
        let other = server.open();
        assert_eq!(server.command(client, "reserve-job 1\r\nbury 1 0\r\n"), "");
        assert_eq!(server.command(other, "peek 1\r\n"), "", "{mode:?}");
    }
}

#[test]
fn a_stalled_write_succeeds_once_there_is_space() {
    for mode in MODES {
        let (mut server, client) = stalled(mode);
        server.pass(Span::from_secs(100));
        assert_eq!(server.replies(client), "", "{mode:?}: it still waits");
        free_space(&mut server);
        assert_eq!(server.replies(client), "DELETED\r\n", "{mode:?}");
        assert_eq!(server.command(client, &put(0, 0, "c")), "INSERTED 3\r\n", "{mode:?}");
        server.pass(Span::from_secs(5));
        let crash = if mode == Durability::Never { Crash::Killed } else { Crash::PowerLoss };
        let mut server = restarted(server, mode, crash);
        let client = server.open();
        assert_eq!(
            server.command(client, "peek 1\r\npeek 2\r\npeek 3\r\n"),
            "FOUND 1 1\r\na\r\nNOT_FOUND\r\nFOUND 3 1\r\nc\r\n"
        );
    }
}

#[test]
fn a_batch_of_puts_beside_a_stalled_write() {
    const WHOLE: &str = "put-batch 2\r\nput 0 0 9 1\r\nc\r\nput 0 0 9 1\r\nd\r\n";
    let (first, last) = WHOLE.split_at(WHOLE.len() - 3);
    for mode in MODES {
        let (mut server, _) = stalled(mode);
        let other = server.open();
        assert_eq!(server.command(other, WHOLE), OUT_OF_MEMORY, "{mode:?}");
        // There is space by the time at which it is complete.
        assert_eq!(server.command(other, first), "", "{mode:?}");
        free_space(&mut server);
        let inserted = "INSERTED_BATCH 2\r\nINSERTED 3\r\nINSERTED 4\r\n";
        assert_eq!(server.command(other, last), inserted, "{mode:?}");
        // There is none any more.
        let (mut server, client) = stalled(mode);
        let other = server.open();
        free_space(&mut server);
        assert_eq!(server.replies(client), "DELETED\r\n", "{mode:?}");
        assert_eq!(server.command(other, first), "", "{mode:?}");
        server.disk.room = 0;
        assert_eq!(server.command(client, "bury 1 0\r\n"), "NOT_FOUND\r\n");
        server.command(client, "reserve-job 1\r\nbury 1 0\r\n");
        assert_eq!(server.command(other, last), OUT_OF_MEMORY, "{mode:?}");
    }
}

#[test]
fn a_stalled_server_retries_once_a_second() {
    for mode in MODES {
        let (mut server, _) = stalled(mode);
        let (ended, turns) = (server.disk.ended, server.turns);
        server.pass(Span::from_secs(100));
        let (operations, turns) = (server.disk.ended - ended, server.turns - turns);
        assert!((90..=110).contains(&operations), "{mode:?}: {operations} operations");
        assert!(turns <= 4 * 110, "{mode:?}: {turns} turns");
    }
}

/// A server that stops does not wait for space, and waiting clients get an error.
#[test]
fn a_stop_while_a_write_is_stalled() {
    let stop = |server: &mut Stepped| {
        server.server.handle(server.now, Event::Stop);
        server.pass(Span::from_secs(2));
    };
    for mode in MODES {
        let (mut server, client) = stalled(mode);
        stop(&mut server);
        assert!(server.has_failed, "{mode:?}");
        assert_eq!(server.replies(client), "INTERNAL_ERROR\r\n", "{mode:?}");
        let message = server.server.status().failure.expect("it has failed");
        let more = match mode {
            Durability::Always => "changes without a reply are lost",
            Durability::Within(_) => "with -f MS those since the last sync may be lost",
            Durability::Never => "with -F those that are not on disk yet may be lost",
        };
        let is_clear = message.contains("; changes without a reply are lost") && message.ends_with(more);
        assert!(is_clear, "{mode:?}: {message}");
        let mut server = restarted(server, mode, Crash::Killed);
        let client = server.open();
        assert_eq!(server.command(client, "peek 1\r\n"), "FOUND 1 1\r\na\r\n", "{mode:?}");

        // A client whose earlier reply is still being sent when the write fails.
        let (mut server, _) = stalled(mode);
        let busy = server.open();
        server.piece_bytes = 0;
        for command in ["use x\r\n", "delete 1\r\n"] {
            assert_eq!(server.command(busy, command), "");
        }
        stop(&mut server);
        server.piece_bytes = usize::MAX;
        while server.send_some(busy) {}
        assert_eq!(server.replies(busy), "USING x\r\nINTERNAL_ERROR\r\n", "{mode:?}");

        // There is space again before the stop ends.
        let (mut server, client) = stalled(mode);
        server.server.handle(server.now, Event::Stop);
        free_space(&mut server);
        assert!(!server.has_failed && server.server.status().is_settled, "{mode:?}");
        assert_eq!(server.replies(client), "DELETED\r\n", "{mode:?}");
    }
}

/// A start that has to rewrite the end of the log names how much, and a way out.
#[test]
fn a_start_without_space_for_the_end_of_the_log() {
    let (mut server, _) = stalled(Durability::Never);
    server.disk.crash(Crash::Killed, &mut server.random);
    let config = WalConfig {
        durability: Durability::Never,
        segment_bytes: SEGMENT_BYTES,
        destination: server.disk.destination(),
        keep_reservations: false,
    };
    let refusal = recover(&server.disk, config, &mut Engine::new(0), server.now).err();
    let message = refusal.expect("there is no space").to_string();
    let bytes = message
        .split_once("must be rewritten; free ")
        .and_then(|(_, rest)| rest.split(' ').next()?.parse::<u64>().ok());
    assert!(bytes.is_some_and(|bytes| (100..=2 * 4096).contains(&bytes)), "{message}");
    assert!(message.contains("beanring wal salvage"), "{message}");
}

/// An idle server has no deadline.
#[test]
fn an_idle_server_goes_quiet() {
    for mode in MODES {
        let mut server = begin(mode);
        let client = server.open();
        assert_eq!(server.command(client, &put(0, 0, "a")), "INSERTED 1\r\n");
        server.pass(Span::from_secs(5));
        let (ended, turns) = (server.disk.ended, server.turns);
        server.pass(Span::from_secs(1000));
        assert_eq!(server.disk.ended, ended, "{mode:?}");
        assert!(server.turns - turns <= 2, "{mode:?}: {} turns", server.turns - turns);
    }
}

/// Ends the first operation of the disk, without an iteration.
fn end_operation(server: &mut Stepped) {
    let outcome = server.disk.finish_one(&mut server.random).expect("a write is in flight");
    server.server.handle(server.now, Event::Log(LogReply::Files(outcome)));
}

/// Two writes are in flight across a network, and neither finds space. The second is not back when the first is.
#[test]
fn no_reply_shows_a_change_whose_write_comes_back_later() {
    let mut server = on(Disk::network(100, true), Durability::Always, BEGIN);
    let [first, second, other] = [(); 3].map(|()| server.open());
    let puts = put(0, 0, "a") + &put(0, 0, "b");
    assert_eq!(server.command(first, &puts), "INSERTED 1\r\nINSERTED 2\r\n");
    server.disk.room = 0;
    for (conn, text) in [(first, "delete 1\r\n"), (second, "delete 2\r\n")] {
        server.send(conn, text.as_bytes());
        server.turn();
    }
    for refused in 1..=2 {
        end_operation(&mut server);
        assert_eq!(server.disk.refused_writes, refused);
        server.send(other, b"peek 2\r\n");
        server.turn();
        assert_eq!(server.replies(other), "");
    }
    free_space(&mut server);
    assert_eq!(server.replies(first) + &server.replies(second), "DELETED\r\nDELETED\r\n");
    assert_eq!(server.replies(other), "NOT_FOUND\r\nNOT_FOUND\r\n");
}

/// A batch gathers while another one is written. With `-f 0` the disk gets it before the replies of the first leave.
#[test]
fn the_next_write_begins_before_replies_leave() {
    let mut server = begin(Durability::Always);
    let clients = [(); 2].map(|()| server.open());
    for client in clients {
        server.send(client, put(0, 0, "a").as_bytes());
        server.turn();
        assert_eq!(server.replies(client), "", "no reply leaves");
    }
    end_operation(&mut server);
    assert!(!server.disk.is_busy(), "the second put waits for the write of the first");
    let (now, server) = (server.now, &mut server.server);
    assert!(matches!(server.poll_effect(), Some(Effect::Log)));
    assert!(matches!(server.poll_log_request(now), Some(LogRequest::Files(DiskOperation::Write { .. }))));
    let Some(Effect::Send(conn)) = server.poll_effect() else { panic!("no reply") };
    assert_eq!(server.names(conn).number, 1, "the first client gets it");
}

/// The kernel accepts a write and finds no space for it later. It reports that once, and may drop the data, so a repeated sync
/// that succeeds would prove nothing.
#[test]
fn out_of_space_in_a_sync_is_a_failure_and_no_full_disk() {
    let mut causes = Vec::new();
    for seed in 0..8 {
        let mut server = begin(MODES[1]);
        server.random = Random::new(seed);
        let client = server.open();
        assert_eq!(server.command(client, &put(0, 0, "a")), "INSERTED 1\r\n");
        // The next operation is the sync.
        server.disk.fails_at = Some(server.disk.ended);
        server.pass(Span::from_millis(100));
        assert!(server.has_failed, "{seed}: the server ends");
        assert_eq!(server.disk.refused_writes, 0, "{seed}: no write was refused");
        causes.push(server.server.status().failure.expect("it has failed"));
    }
    for cause in ["No space left on device", "Input/output error"] {
        assert!(causes.iter().any(|text| text.contains(cause)), "{causes:?}");
    }
}

/// As `live::a_full_disk_refuses_large_puts_at_once`, with input and operations in any order: whatever the full disk has made of
/// the log, a put is accepted soon after another process has freed space.
#[test]
fn a_large_put_is_accepted_once_there_is_space() {
    let large = put(0, 0, &"l".repeat(30_000));
    for (seed, mode) in seeds(5).flat_map(|seed| MODES.map(|mode| (seed, mode))) {
        let mut server = on(Disk::new(21, false), mode, BEGIN);
        server.random = Random::new(seed);
        let client = server.open();
        let replies = feed(&mut server, client, &large.repeat(100), 100);
        let jobs = replies.matches("INSERTED ").count();
        assert!(jobs > 5 && replies.ends_with(OUT_OF_MEMORY), "{seed} {mode:?}: {jobs}, {replies}");
        for round in 0..30 {
            let id = 1 + round % jobs;
            let reserved = feed(&mut server, client, &format!("reserve-job {id}\r\n"), 2);
            assert!(reserved.starts_with("RESERVED "), "{reserved}");
            assert_eq!(feed(&mut server, client, &format!("bury {id} 3\r\n"), 1), "BURIED\r\n");
            assert_eq!(feed(&mut server, client, &format!("kick-job {id}\r\n"), 1), "KICKED\r\n");
        }
        assert_eq!(feed(&mut server, client, &large, 1), OUT_OF_MEMORY, "{seed} {mode:?}");
        server.pass(Span::from_secs(3));

        server.disk.room = 32;
        let freed = server.now;
        while feed(&mut server, client, &large, 1) == OUT_OF_MEMORY {
            assert!(server.now.since(freed) < Span::from_secs(3), "{seed} {mode:?}: there is space");
            server.pass(Span::from_millis(20));
        }
    }
}

/// Hands over input in pieces, between operations of the disk that take a while. Returns the replies, up to this number of
/// lines.
fn feed(server: &mut Stepped, client: usize, text: &str, lines: usize) -> String {
    let (mut rest, mut replies) = (text.as_bytes(), String::new());
    for _ in 0..100_000 {
        let (piece, behind) = rest.split_at(server.random.below(16 << 10).min(rest.len()));
        rest = behind;
        if !piece.is_empty() {
            server.send(client, piece);
        }
        for _ in 0..server.random.below(4) {
            server.now = server.now + Span::from_nanos(server.random.below(300_000) as u64);
            if server.random.below(2) == 0 {
                server.turn();
            } else if let Some(outcome) = server.disk.finish_one(&mut server.random) {
                server.server.handle(server.now, Event::Log(LogReply::Files(outcome)));
            }
        }
        replies += &server.replies(client);
        if rest.is_empty() && replies.matches("\r\n").count() >= lines {
            return replies;
        }
    }
    panic!("the replies do not come: {replies}");
}

/// Users: root may do everything, and one only a little.
const USERS: &str = "[users.root]\ntoken = \"root-root-root-root\"\nproduce = [\"*\"]\nconsume = [\"*\"]\n\
                     inspect = [\"*\"]\nadmin = [\"*\"]\n[users.one]\ntoken = \"one-one-one-one-one\"\n\
                     produce = [\"mine\"]\ninspect = [\"mine\"]\n";

#[test]
fn what_a_user_may_not_do_is_refused_at_once_while_a_write_is_stalled() {
    for mode in MODES {
        let users = Some(users_file::parse(USERS).expect("they are valid"));
        let config = Config { users, ..config(65_535) };
        let mut server = Stepped::with_log(config, mode, SEGMENT_BYTES);
        let open = |server: &mut Stepped, token: &str| {
            let end = server.open();
            assert_eq!(server.command(end, &format!("auth {token}\r\n")), "AUTHENTICATED\r\n", "{mode:?}");
            end
        };
        let root = open(&mut server, "root-root-root-root");
        stall(&mut server, root);
        let [one, second, third] = [(); 3].map(|()| open(&mut server, "one-one-one-one-one"));
        for command in [
            "put 0 0 9 1\r\nc\r\n",
            "put-batch 1\r\nput 0 0 9 1\r\nc\r\n",
            "use other\r\n",
            "watch other\r\n",
            "reserve\r\n",
            "peek 1\r\n",
            "peek-ready\r\n",
            "stats-job 1\r\n",
            "stats-tube default\r\n",
            "stats-group g\r\n",
            "list-jobs default ready\r\n",
            "delete 1\r\n",
            "delete-batch 1 7\r\n",
            "kick 9\r\n",
            "kick-job 1\r\n",
            "move-job 1 mine\r\n",
            "pause-tube default 9\r\n",
            "flush-tube default\r\n",
            "tube-config default rate 9\r\n",
            "drain\r\n",
        ] {
            assert_eq!(server.command(one, command), "FORBIDDEN\r\n", "{mode:?} {command:?}");
        }
        // Whether job 2 is there is not known yet, and neither is what job 1 will be.
        assert_eq!(server.command(second, "delete 2\r\n"), "", "{mode:?}");
        assert_eq!(server.command(root, "reserve-job 1\r\nbury 1 0\r\n"), "");
        assert_eq!(server.command(third, "delete 1\r\n"), "", "{mode:?}");
        free_space(&mut server);
        assert_eq!(server.replies(root), "DELETED\r\nRESERVED 1 1\r\na\r\nBURIED\r\n", "{mode:?}");
        assert_eq!([server.replies(second), server.replies(third)], ["NOT_FOUND\r\n", "FORBIDDEN\r\n"]);
        let stats = server.command(root, "stats\r\n");
        for line in ["current-jobs-buried: 1", "total-jobs: 2", "current-tubes: 1", "draining: false"] {
            assert!(stats.contains(&format!("\n{line}\n")), "{mode:?} {line}: {stats}");
        }
    }
}

#[test]
fn a_connection_that_closes_waits_for_its_commit() {
    for mode in MODES {
        let (mut server, client) = stalled(mode);
        assert_eq!(server.command(client, "quit\r\n"), "");
        server.pass(Span::from_secs(200));
        free_space(&mut server);
        assert_eq!(server.replies(client), "DELETED\r\n", "{mode:?}");
    }
}

/// A schedule of the last configuration, which this one lacks, cannot be deleted for want of space when a client puts it again.
#[test]
fn a_schedule_that_a_client_has_put_again_is_not_deleted_for_the_configuration() {
    for mode in MODES {
        let with = |schedules, disk, now| {
            Stepped::recovered(Config { schedules, ..config(65_535) }, mode, SEGMENT_BYTES, disk, now)
        };
        let mut server = with(vec![nightly()], Disk::new(100, false), BEGIN);
        server.pass(Span::from_secs(5));
        let client = server.open();
        server.disk.room = 3;
        for bytes in [30_000, 1000, 1] {
            while server.command(client, &put(0, 0, &"x".repeat(bytes))) != OUT_OF_MEMORY {}
        }
        server.disk.crash(Crash::Killed, &mut server.random);
        let mut server = with(Vec::new(), server.disk, server.now);
        server.pass(Span::from_secs(5));
        let client = server.open();
        let configured = |server: &mut Stepped| {
            let stats = server.command(client, "schedule-stats nightly\r\n");
            stats.lines().find_map(|line| line.strip_prefix("configured: ")).map(str::to_owned)
        };
        assert_eq!(configured(&mut server).as_deref(), Some("true"), "there is no space for its deletion");
        server.disk.room = 200;
        let put = "schedule-put nightly 0 0 60 1 mail every:2h\r\nx\r\n";
        let mut reply = String::new();
        while reply != "SCHEDULED\r\n" {
            reply = server.command(client, put);
            server.pass(Span::from_millis(1));
        }
        server.pass(Span::from_secs(5));
        assert_eq!(configured(&mut server).as_deref(), Some("false"));
    }
}

fn nightly() -> ConfiguredSchedule {
    let when = When::parse("every:1h", Time::ZERO).expect("a time");
    let (delay, ttr) = (Seconds::ZERO, Seconds::whole(60));
    let plan = Plan { when, pri: 0, delay, ttr, missed: Missed::Once, overlaps: true };
    let [name, tube] = ["nightly", "mail"].map(str::to_owned);
    ConfiguredSchedule { name, tube, plan, body: b"x\r\n".to_vec() }
}
