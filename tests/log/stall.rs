//! A write to the job log stalls: it finds no space although its file was prepared, as on a copy-on-write file system. Shows,
//! in virtual time, which commands are answered until there is space.

use beanring::io::users_file;
use beanring::io::wal_files::recover;
use beanring::queue::Engine;
use beanring::server::{Config, Effect, Event, Protocol, Server, Service, Users};
use beanring::time::{Span, Time};
use beanring::values::ids::ConnId;
use beanring::wal::{Durability, Operation, WalConfig};

use beanring_testkit::config::config;
use beanring_testkit::connection::send_all;
use beanring_testkit::disk::{Crash, Disk};
use beanring_testkit::random::{Random, seeds};

const SEGMENT_BYTES: u64 = 64 * 1024;
const MODES: [Durability; 3] =
    [Durability::Always, Durability::Within(Span::from_millis(50)), Durability::Never];
const OUT_OF_MEMORY: &str = "OUT_OF_MEMORY\r\n";

/// A server on a disk that completes each operation at once, if it has space.
struct Stage {
    server: Server,
    disk: Disk,
    now: Time,
    random: Random,
    mode: Durability,
    has_failed: bool,
    /// Operations that the server gave to the disk.
    operations: usize,
    /// Event-loop iterations.
    turns: usize,
}

impl Stage {
    fn new(mode: Durability) -> Self {
        let now = Time::from_nanos(1_000_000_000_000);
        Self::on(Disk::new(100, true), mode, now)
    }

    fn on(disk: Disk, mode: Durability, now: Time) -> Self {
        Self::with_users(disk, mode, now, None)
    }

    fn with_users(disk: Disk, mode: Durability, now: Time, users: Option<Users>) -> Self {
        let mut engine = Engine::new(0);
        let log_config = WalConfig {
            durability: mode,
            segment_bytes: SEGMENT_BYTES,
            destination: disk.destination(),
            keep_reservations: false,
        };
        let log = recover(&disk, log_config, &mut engine, now).unwrap_or_else(|error| panic!("{error}"));
        let server = Server::with_wal(Config { users, ..config(65_535) }, engine, Some(log));
        let random = Random::new(1);
        let (has_failed, operations, turns) = (false, 0, 0);
        let mut stage = Self { server, disk, now, random, mode, has_failed, operations, turns };
        stage.pass(Span::from_secs(5));
        stage
    }

    /// Job 1 is on disk. Then the disk has no space, and another client's change of job 2 waits for it.
    fn stalled(mode: Durability) -> (Self, ConnId) {
        let mut stage = Self::new(mode);
        stage.expect_gauges(0);
        let client = stage.server.accept(Protocol::Beanstalk);
        stage.stall(client);
        (stage, client)
    }

    fn stall(&mut self, client: ConnId) {
        let mode = self.mode;
        assert_eq!(
            self.ask(client, "put 0 0 9 1\r\na\r\nput 0 0 9 1\r\nb\r\n"),
            "INSERTED 1\r\nINSERTED 2\r\n"
        );
        self.pass(Span::from_secs(5));
        self.disk.room = 0;
        assert_eq!(self.ask(client, "delete 2\r\n"), "", "{mode:?}: it waits");
        // The server has removed prepared files for their space.
        self.pass(Span::from_secs(5));
        assert!(self.disk.refused_writes > 1, "{mode:?}: it is tried again");
    }

    /// Runs the server until it has nothing to do.
    fn settle(&mut self) {
        for spin in 0.. {
            assert!(spin < 1000, "the server never becomes idle");
            self.turn();
            let mut is_idle = true;
            while let Some(outcome) = self.disk.finish_one(&mut self.random) {
                self.server.handle(self.now, Event::Disk(outcome));
                is_idle = false;
            }
            if is_idle && self.server.next_deadline().is_none_or(|at| at > self.now) {
                break;
            }
        }
    }

    /// One iteration of the event loop.
    fn turn(&mut self) {
        self.server.turn(self.now);
        self.turns += 1;
        while let Some(effect) = self.server.next_effect() {
            match effect {
                Effect::Disk => {
                    while let Some(operation) = self.server.disk(self.now) {
                        self.operations += usize::from(!matches!(operation, Operation::Sync(_)));
                        self.disk.begin(operation);
                    }
                }
                Effect::Fail => self.has_failed = true,
                Effect::Send(_)
                | Effect::Close(_)
                | Effect::Pause(_)
                | Effect::Resume(_)
                | Effect::LogClient(..) => {}
            }
        }
    }

    fn pass(&mut self, span: Span) {
        let until = self.now + span;
        self.settle();
        while let Some(at) = self.server.next_deadline().filter(|&at| at <= until && !self.has_failed) {
            self.now = self.now.max(at);
            self.settle();
        }
        self.now = until;
    }

    /// Sends commands and returns all replies to them so far.
    fn ask(&mut self, conn: ConnId, text: &str) -> String {
        self.server.handle(self.now, Event::Received { conn, bytes: text.as_bytes() });
        self.settle();
        self.replies(conn)
    }

    /// Checks the metrics that tell operators about the disk.
    fn expect_gauges(&mut self, value: u8) {
        let http = self.server.accept(Protocol::Http);
        let page = self.ask(http, "GET /metrics HTTP/1.0\r\n\r\n");
        for name in ["beanring_wal_disk_full", "beanring_wal_stalled"] {
            assert!(page.contains(&format!("\n{name} {value}\n")), "{name} is not {value}: {page}");
        }
    }

    fn replies(&mut self, conn: ConnId) -> String {
        String::from_utf8(send_all(&mut self.server, conn, self.now)).expect("replies are text")
    }

    /// A new server on the same disk.
    fn restarted(mut self, crash: Crash) -> Self {
        self.disk.room = 100;
        self.disk.crash(crash, &mut self.random);
        Self::on(self.disk, self.mode, self.now)
    }
}

#[test]
fn read_only_commands_are_answered_while_a_write_is_stalled() {
    for mode in MODES {
        let (mut stage, _) = Stage::stalled(mode);
        stage.expect_gauges(1);
        let other = stage.server.accept(Protocol::Beanstalk);
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
            let reply = stage.ask(other, command);
            assert!(reply.starts_with(answer), "{mode:?} {command:?}: {reply:?}");
        }
    }
}

/// A power failure could undo the deletion of job 2.
#[test]
fn no_reply_shows_a_stalled_change() {
    for mode in MODES {
        for command in ["peek 2\r\n", "stats-job 2\r\n", "reserve-with-timeout 0\r\n", "peek-delayed\r\n"] {
            let (mut stage, client) = Stage::stalled(mode);
            let other = stage.server.accept(Protocol::Beanstalk);
            assert_eq!(stage.ask(other, command), "", "{mode:?} {command:?}");
            // Replies keep their order.
            assert_eq!(stage.ask(other, "list-tube-used\r\n"), "", "{mode:?} {command:?}");
            stage.disk.room = 100;
            stage.pass(Span::from_secs(2));
            assert_eq!(stage.replies(client), "DELETED\r\n", "{mode:?}");
            let replies = stage.replies(other);
            assert!(replies.ends_with("USING default\r\n") && replies.len() > 20, "{mode:?} {replies:?}");
        }
        // A later change waits too.
        let (mut stage, client) = Stage::stalled(mode);
        let other = stage.server.accept(Protocol::Beanstalk);
        assert_eq!(stage.ask(client, "reserve-job 1\r\nbury 1 0\r\n"), "");
        assert_eq!(stage.ask(other, "peek 1\r\n"), "", "{mode:?}");
    }
}

#[test]
fn a_stalled_write_succeeds_once_there_is_space() {
    for mode in MODES {
        let (mut stage, client) = Stage::stalled(mode);
        stage.pass(Span::from_secs(100));
        assert_eq!(stage.replies(client), "", "{mode:?}: it still waits");
        stage.disk.room = 100;
        stage.pass(Span::from_secs(2));
        assert_eq!(stage.replies(client), "DELETED\r\n", "{mode:?}");
        assert_eq!(stage.ask(client, "put 0 0 9 1\r\nc\r\n"), "INSERTED 3\r\n", "{mode:?}");
        stage.pass(Span::from_secs(5));
        let mut stage =
            stage.restarted(if mode == Durability::Never { Crash::Killed } else { Crash::PowerLoss });
        let client = stage.server.accept(Protocol::Beanstalk);
        assert_eq!(
            stage.ask(client, "peek 1\r\npeek 2\r\npeek 3\r\n"),
            "FOUND 1 1\r\na\r\nNOT_FOUND\r\nFOUND 3 1\r\nc\r\n"
        );
    }
}

#[test]
fn a_batch_of_puts_beside_a_stalled_write() {
    const WHOLE: &str = "put-batch 2\r\nput 0 0 9 1\r\nc\r\nput 0 0 9 1\r\nd\r\n";
    let (begin, end) = WHOLE.split_at(WHOLE.len() - 3);
    for mode in MODES {
        let (mut stage, _) = Stage::stalled(mode);
        let other = stage.server.accept(Protocol::Beanstalk);
        assert_eq!(stage.ask(other, WHOLE), OUT_OF_MEMORY, "{mode:?}");
        // There is space by the time at which it is complete.
        assert_eq!(stage.ask(other, begin), "", "{mode:?}");
        stage.disk.room = 100;
        stage.pass(Span::from_secs(2));
        assert_eq!(stage.ask(other, end), "INSERTED_BATCH 2\r\nINSERTED 3\r\nINSERTED 4\r\n", "{mode:?}");
        // There is none any more.
        let (mut stage, client) = Stage::stalled(mode);
        let other = stage.server.accept(Protocol::Beanstalk);
        stage.disk.room = 100;
        stage.pass(Span::from_secs(2));
        assert_eq!(stage.replies(client), "DELETED\r\n", "{mode:?}");
        assert_eq!(stage.ask(other, begin), "", "{mode:?}");
        stage.disk.room = 0;
        assert_eq!(stage.ask(client, "bury 1 0\r\n"), "NOT_FOUND\r\n");
        stage.ask(client, "reserve-job 1\r\nbury 1 0\r\n");
        assert_eq!(stage.ask(other, end), OUT_OF_MEMORY, "{mode:?}");
    }
}

#[test]
fn a_stalled_server_retries_once_a_second() {
    for mode in MODES {
        let (mut stage, _) = Stage::stalled(mode);
        (stage.operations, stage.turns) = (0, 0);
        stage.pass(Span::from_secs(100));
        assert!((90..=110).contains(&stage.operations), "{mode:?}: {} operations", stage.operations);
        assert!(stage.turns <= 4 * 110, "{mode:?}: {} turns", stage.turns);
    }
}

/// A server that stops does not wait for space, and waiting clients get an error.
#[test]
fn a_stop_while_a_write_is_stalled() {
    for mode in MODES {
        let (mut stage, client) = Stage::stalled(mode);
        stage.server.handle(stage.now, Event::Stop);
        stage.pass(Span::from_secs(2));
        assert!(stage.has_failed, "{mode:?}");
        assert_eq!(stage.replies(client), "INTERNAL_ERROR\r\n", "{mode:?}");
        let message = stage.server.failure().expect("it has failed");
        let more = match mode {
            Durability::Always => "changes without a reply are lost",
            Durability::Within(_) => "with -f MS those since the last sync may be lost",
            Durability::Never => "with -F those that are not on disk yet may be lost",
        };
        assert!(
            message.contains("; changes without a reply are lost") && message.ends_with(more),
            "{mode:?}: {message}"
        );
        let mut stage = stage.restarted(Crash::Killed);
        let client = stage.server.accept(Protocol::Beanstalk);
        assert_eq!(stage.ask(client, "peek 1\r\n"), "FOUND 1 1\r\na\r\n", "{mode:?}");

        // A client whose earlier reply is still being sent when the write fails.
        let (mut stage, _) = Stage::stalled(mode);
        let busy = stage.server.accept(Protocol::Beanstalk);
        for command in ["use x\r\n", "delete 1\r\n"] {
            stage.server.handle(stage.now, Event::Received { conn: busy, bytes: command.as_bytes() });
            stage.settle();
        }
        stage.server.handle(stage.now, Event::Stop);
        stage.pass(Span::from_secs(2));
        assert_eq!(stage.replies(busy), "USING x\r\nINTERNAL_ERROR\r\n", "{mode:?}");

        // There is space again before the stop ends.
        let (mut stage, client) = Stage::stalled(mode);
        stage.server.handle(stage.now, Event::Stop);
        stage.disk.room = 100;
        stage.pass(Span::from_secs(2));
        assert!(!stage.has_failed && stage.server.is_settled(), "{mode:?}");
        assert_eq!(stage.replies(client), "DELETED\r\n", "{mode:?}");
    }
}

/// A start that has to rewrite the end of the log names how much, and a way out.
#[test]
fn a_start_without_space_for_the_end_of_the_log() {
    let (mut stage, _) = Stage::stalled(Durability::Never);
    stage.disk.crash(Crash::Killed, &mut stage.random);
    let config = WalConfig {
        durability: stage.mode,
        segment_bytes: SEGMENT_BYTES,
        destination: stage.disk.destination(),
        keep_reservations: false,
    };
    let refusal =
        recover(&stage.disk, config, &mut Engine::new(0), stage.now).map(|_| "no refusal".to_owned());
    let message = refusal.unwrap_or_else(|error| error.to_string());
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
        let mut stage = Stage::new(mode);
        let client = stage.server.accept(Protocol::Beanstalk);
        assert_eq!(stage.ask(client, "put 0 0 9 1\r\na\r\n"), "INSERTED 1\r\n");
        stage.pass(Span::from_secs(5));
        (stage.operations, stage.turns) = (0, 0);
        stage.pass(Span::from_secs(1000));
        assert_eq!(stage.operations, 0, "{mode:?}");
        assert!(stage.turns <= 2, "{mode:?}: {} turns", stage.turns);
    }
}

/// Two writes are in flight across a network, and neither finds space. The second is not back when the first is.
#[test]
fn no_reply_shows_a_change_whose_write_comes_back_later() {
    let mut stage =
        Stage::on(Disk::network(100, true), Durability::Always, Time::from_nanos(1_000_000_000_000));
    let [first, second, other] = [(); 3].map(|()| stage.server.accept(Protocol::Beanstalk));
    let puts = "put 0 0 9 1\r\na\r\nput 0 0 9 1\r\nb\r\n";
    assert_eq!(stage.ask(first, puts), "INSERTED 1\r\nINSERTED 2\r\n");
    stage.disk.room = 0;
    for (conn, text) in [(first, "delete 1\r\n"), (second, "delete 2\r\n")] {
        stage.server.handle(stage.now, Event::Received { conn, bytes: text.as_bytes() });
        stage.turn();
    }
    for refused in 1..=2 {
        let outcome = stage.disk.finish_one(&mut stage.random).expect("two writes are in flight");
        stage.server.handle(stage.now, Event::Disk(outcome));
        assert_eq!(stage.disk.refused_writes, refused);
        stage.server.handle(stage.now, Event::Received { conn: other, bytes: b"peek 2\r\n" });
        stage.turn();
        assert_eq!(stage.replies(other), "");
    }
    stage.disk.room = 100;
    stage.pass(Span::from_secs(2));
    assert_eq!(stage.replies(first) + &stage.replies(second), "DELETED\r\nDELETED\r\n");
    assert_eq!(stage.replies(other), "NOT_FOUND\r\nNOT_FOUND\r\n");
}

/// A batch gathers while another one is written. With `-f 0` the disk gets it before the replies of the first leave.
#[test]
fn the_next_write_begins_before_replies_leave() {
    let mut stage = Stage::new(Durability::Always);
    let clients = [(); 2].map(|()| stage.server.accept(Protocol::Beanstalk));
    let mut begun = 0;
    for conn in clients {
        stage.server.handle(stage.now, Event::Received { conn, bytes: b"put 0 0 9 1\r\na\r\n" });
        stage.server.turn(stage.now);
        while let Some(effect) = stage.server.next_effect() {
            assert!(matches!(effect, Effect::Disk), "no reply leaves: {effect:?}");
            while let Some(operation) = stage.server.disk(stage.now) {
                stage.disk.begin(operation);
                begun += 1;
            }
        }
        assert_eq!(begun, 1, "the second put waits for the write of the first");
    }
    let outcome = stage.disk.finish_one(&mut stage.random).expect("a write is in flight");
    stage.server.handle(stage.now, Event::Disk(outcome));
    assert!(matches!(stage.server.next_effect(), Some(Effect::Disk)));
    assert!(matches!(stage.server.disk(stage.now), Some(Operation::Write { .. })));
    assert!(matches!(stage.server.next_effect(), Some(Effect::Send(conn)) if conn == clients[0]));
}

/// The kernel accepts a write and finds no space for it later. It reports that once, and may drop the data, so a repeated sync
/// that succeeds would prove nothing.
#[test]
fn out_of_space_in_a_sync_is_a_failure_and_no_full_disk() {
    let mode = MODES[1];
    let seeds = 0..8;
    let mut causes = Vec::new();
    for seed in seeds {
        let mut stage = Stage::new(mode);
        stage.random = Random::new(seed);
        let client = stage.server.accept(Protocol::Beanstalk);
        assert_eq!(stage.ask(client, "put 0 0 9 1\r\na\r\n"), "INSERTED 1\r\n");
        // The next operation is the sync.
        stage.disk.fails_at = Some(stage.disk.ended);
        stage.pass(Span::from_millis(100));
        assert!(stage.has_failed, "{seed}: the server ends");
        assert_eq!(stage.disk.refused_writes, 0, "{seed}: no write was refused");
        causes.push(stage.server.failure().expect("it has failed").to_string());
    }
    for cause in ["No space left on device", "Input/output error"] {
        assert!(causes.iter().any(|text| text.contains(cause)), "{causes:?}");
    }
}

/// As `a_full_disk_refuses_large_puts_at_once` of `live`, with input and operations in any order: whatever the
/// full disk has made of the log, a put is accepted soon after another process has freed space.
#[test]
fn a_large_put_is_accepted_once_there_is_space() {
    let body = "l".repeat(30_000);
    let large = format!("put 0 0 9 {}\r\n{body}\r\n", body.len());
    for (seed, mode) in seeds(5).flat_map(|seed| MODES.map(|mode| (seed, mode))) {
        let now = Time::from_nanos(1_000_000_000_000);
        let mut stage = Stage::on(Disk::new(21, false), mode, now);
        stage.random = Random::new(seed);
        let client = stage.server.accept(Protocol::Beanstalk);
        let replies = stage.feed(client, &large.repeat(100), 100);
        let jobs = replies.matches("INSERTED ").count();
        assert!(jobs > 5 && replies.ends_with(OUT_OF_MEMORY), "{seed} {mode:?}: {jobs}, {replies}");
        for round in 0..30 {
            let id = 1 + round % jobs;
            assert!(stage.feed(client, &format!("reserve-job {id}\r\n"), 2).starts_with("RESERVED "));
            assert_eq!(stage.feed(client, &format!("bury {id} 3\r\n"), 1), "BURIED\r\n");
            assert_eq!(stage.feed(client, &format!("kick-job {id}\r\n"), 1), "KICKED\r\n");
        }
        assert_eq!(stage.feed(client, &large, 1), OUT_OF_MEMORY, "{seed} {mode:?}");
        stage.pass(Span::from_secs(3));

        stage.disk.room = 32;
        let freed = stage.now;
        while stage.feed(client, &large, 1) == OUT_OF_MEMORY {
            assert!(stage.now.since(freed) < Span::from_secs(3), "{seed} {mode:?}: there is space");
            stage.pass(Span::from_millis(20));
        }
    }
}

impl Stage {
    /// Hands over input in pieces, between operations of the disk that take a while. Returns the replies, up to this number of
    /// lines.
    fn feed(&mut self, conn: ConnId, text: &str, lines: usize) -> String {
        let (mut rest, mut replies) = (text.as_bytes(), String::new());
        for round in 0.. {
            assert!(round < 100_000, "the replies do not come: {replies}");
            let count = self.random.below(16 << 10).min(rest.len());
            let (piece, behind) = rest.split_at(count);
            rest = behind;
            if !piece.is_empty() {
                self.server.handle(self.now, Event::Received { conn, bytes: piece });
            }
            for _ in 0..self.random.below(4) {
                self.now = self.now + Span::from_nanos(self.random.below(300_000) as u64);
                if self.random.below(2) == 0 {
                    self.turn();
                } else if let Some(outcome) = self.disk.finish_one(&mut self.random) {
                    self.server.handle(self.now, Event::Disk(outcome));
                }
            }
            replies += &self.replies(conn);
            if rest.is_empty() && replies.matches("\r\n").count() >= lines {
                return replies;
            }
        }
        unreachable!("the rounds have no end")
    }
}

/// Users: root may do everything, and one only a little.
const USERS: &str = "[users.root]\ntoken = \"root-root-root-root\"\nproduce = [\"*\"]\nconsume = [\"*\"]\n\
                     inspect = [\"*\"]\nadmin = [\"*\"]\n[users.one]\ntoken = \"one-one-one-one-one\"\n\
                     produce = [\"mine\"]\ninspect = [\"mine\"]\n";

#[test]
fn what_a_user_may_not_do_is_refused_at_once_while_a_write_is_stalled() {
    for mode in MODES {
        let users = users_file::parse(USERS).expect("they are valid");
        let now = Time::from_nanos(1_000_000_000_000);
        let mut stage = Stage::with_users(Disk::new(100, true), mode, now, Some(users));
        let root = stage.server.accept(Protocol::Beanstalk);
        assert_eq!(stage.ask(root, "auth root-root-root-root\r\n"), "AUTHENTICATED\r\n");
        stage.stall(root);
        let one = stage.server.accept(Protocol::Beanstalk);
        assert_eq!(stage.ask(one, "auth one-one-one-one-one\r\n"), "AUTHENTICATED\r\n", "{mode:?}");
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
            assert_eq!(stage.ask(one, command), "FORBIDDEN\r\n", "{mode:?} {command:?}");
        }
        // Whether job 2 is there is not known yet, and neither is what job 1 will be.
        let authenticated = |stage: &mut Stage| {
            let conn = stage.server.accept(Protocol::Beanstalk);
            assert_eq!(stage.ask(conn, "auth one-one-one-one-one\r\n"), "AUTHENTICATED\r\n", "{mode:?}");
            conn
        };
        let (second, third) = (authenticated(&mut stage), authenticated(&mut stage));
        assert_eq!(stage.ask(second, "delete 2\r\n"), "", "{mode:?}");
        assert_eq!(stage.ask(root, "reserve-job 1\r\nbury 1 0\r\n"), "");
        assert_eq!(stage.ask(third, "delete 1\r\n"), "", "{mode:?}");
        stage.disk.room = 100;
        stage.pass(Span::from_secs(2));
        assert_eq!(stage.replies(root), "DELETED\r\nRESERVED 1 1\r\na\r\nBURIED\r\n", "{mode:?}");
        assert_eq!([stage.replies(second), stage.replies(third)], ["NOT_FOUND\r\n", "FORBIDDEN\r\n"]);
        let stats = stage.ask(root, "stats\r\n");
        for line in ["current-jobs-buried: 1", "total-jobs: 2", "current-tubes: 1", "draining: false"] {
            assert!(stats.contains(&format!("\n{line}\n")), "{mode:?} {line}: {stats}");
        }
    }
}

#[test]
fn a_connection_that_closes_waits_for_its_commit() {
    for mode in MODES {
        let (mut stage, client) = Stage::stalled(mode);
        assert_eq!(stage.ask(client, "quit\r\n"), "");
        stage.pass(Span::from_secs(200));
        stage.disk.room = 100;
        stage.pass(Span::from_secs(2));
        assert_eq!(stage.replies(client), "DELETED\r\n", "{mode:?}");
    }
}
