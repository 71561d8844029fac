//! Clients that use the commands of docs/EXTENSIONS.md against the server: they repeat them without an end, and every second one
//! never reads. Memory stays below the limit, and another client is served at once.

use std::time::{Duration, Instant};

use beanring_testkit::peer::Received;
use beanring_testkit::stream::Stream;

use super::{MIB, start};

const CLIENTS: usize = 20;
const ROUNDS: usize = 8;
/// Commands that a client sends at once.
const PIECE: usize = 50;
/// Pieces that a client sends in one round at most.
const PIECES: usize = 20;
const LIMIT_BYTES: usize = 40 * MIB;
/// Memory that is not counted, and what replies and input of the clients may take beyond the limit.
const BEYOND_BYTES: usize = 8 * MIB;
/// How long the other client waits for a job at most. Usually it is a millisecond, and much more only on a busy machine.
const PATIENCE: Duration = Duration::from_secs(2);

struct Attacker {
    stream: Stream,
    number: usize,
    unsent: Vec<u8>,
    reads: bool,
}

impl Attacker {
    fn new(stream: Stream, number: usize) -> Self {
        Self { stream, number: number * 10_000_000, unsent: Vec::new(), reads: number.is_multiple_of(2) }
    }

    /// Sends commands until the server receives no more of them.
    fn send(&mut self, commands: impl Fn(usize) -> String) {
        for _ in 0..PIECES {
            if self.unsent.is_empty() {
                let piece = self.number..self.number + PIECE;
                self.number = piece.end;
                self.unsent = piece.map(&commands).collect::<String>().into_bytes();
            }
            let sent = self.stream.send_now(&self.unsent);
            self.unsent.drain(..sent);
            if self.reads {
                self.discard_replies();
            }
        }
    }

    fn discard_replies(&mut self) {
        loop {
            match self.stream.receive_now() {
                Received::Bytes(_) => {}
                Received::Silence => return,
                Received::Closed => panic!("the server ends a connection"),
            }
        }
    }
}

/// Has clients send `commands` after `beginning`: a command for each number.
fn attack(beginning: &str, commands: impl Fn(usize) -> String) {
    let (server, mut control) = start(&["--max-memory", "40m"]);
    control.expect("use honest\r\n", "USING honest");
    control.expect("watch honest\r\n", "WATCHING 2");
    control.expect("ignore default\r\n", "WATCHING 1");
    control.expect("put 0 0 3600 2\r\nhi\r\n", "INSERTED 1");
    let mut attackers: Vec<Attacker> =
        (0..CLIENTS).map(|number| Attacker::new(server.connect(), number)).collect();
    for attacker in &mut attackers {
        attacker.unsent = beginning.as_bytes().to_vec();
    }
    for round in 0..ROUNDS {
        attackers.iter_mut().for_each(|attacker| attacker.send(&commands));
        let started = Instant::now();
        control.expect("reserve\r\n", "RESERVED 1 2");
        control.expect("release 1 0 0\r\n", "RELEASED");
        let waited = started.elapsed();
        assert!(waited < PATIENCE, "round {round}: another client waits for {waited:?}");
        let resident = server.resident_bytes();
        assert!(resident < LIMIT_BYTES + BEYOND_BYTES, "round {round}: {resident} bytes");
    }
    drop(attackers);
    assert_eq!(control.ask("reserve\r\n"), ("RESERVED 1 2".to_owned(), "hi\r\n".to_owned()));
    control.expect("delete 1\r\n", "DELETED");
}

/// The keys of deleted jobs are kept for 136 years.
#[test]
fn idempotency_keys_that_are_kept_for_ever() {
    attack("use flood\r\n", |number| {
        let put = format!("put 0 0 60 1 idp:{number:0>180}:4294967295\r\nx\r\n");
        if number.is_multiple_of(PIECE) { put + "flush-tube flood\r\n" } else { put }
    });
}

#[test]
fn concurrency_keys_without_number() {
    attack("watch flood\r\nuse flood\r\n", |number| {
        let put = format!("put 0 0 60 1 con:{number:0>180}:{}\r\nx\r\n", 1 + number % 3);
        if number.is_multiple_of(PIECE) { put + "reserve-batch 1000\r\n" } else { put }
    });
}

/// One key in many tubes: the end of each reservation opens their lanes.
#[test]
fn one_concurrency_key_in_many_tubes() {
    attack("watch flood\r\n", |number| match number % PIECE {
        0 => "use flood\r\nput 0 0 60 1 con:one\r\nx\r\nreserve-with-timeout 0\r\nkick-job 2\r\n".to_owned(),
        1 => "flush-tube flood\r\n".to_owned(),
        _ => format!("use t{}\r\nput 5 0 60 1 con:one\r\nx\r\n", number % 3000),
    });
}

/// Each job is a member of a group, and waits for the one before: all of them wait in a circle.
#[test]
fn groups_in_long_circles() {
    attack("", |number| {
        let (group, ahead) = (number % 5000, (number + 1) % 5000);
        let put = format!("put 0 0 60 1 grp:g{group} aft:g{ahead}\r\nx\r\n");
        if number.is_multiple_of(PIECE) { put + &format!("stats-group g{group}\r\n") } else { put }
    });
}

/// Each round ends a group that many jobs wait for.
#[test]
fn groups_that_end_again_and_again() {
    attack("use flood\r\n", |number| match number % PIECE {
        0 => "put 0 0 60 1 grp:all\r\nx\r\n".to_owned(),
        49 => "flush-tube flood\r\n".to_owned(),
        _ => "put 0 0 60 1 aft:all\r\nx\r\n".to_owned(),
    });
}

#[test]
fn batches_without_number() {
    attack("use flood\r\nwatch flood\r\n", |number| {
        let puts = "put 0 0 60 100 idp:a con:b\r\n".to_owned() + &"x".repeat(100) + "\r\n";
        match number % 3 {
            0 => format!("put-batch 20\r\n{}", puts.replace(" idp:a", "").repeat(20)),
            1 => "reserve-batch 1000\r\n".to_owned(),
            _ => "flush-tube flood\r\n".to_owned(),
        }
    });
}

#[test]
fn long_lines_of_ids_that_do_not_exist() {
    let line = |number: usize| {
        let ids = (number..number + 168).map(|id| format!(" {}", 10_000_000_000 + id as u64));
        format!("delete-batch{}\r\n", ids.collect::<String>())
    };
    let lines: Vec<String> = (0..PIECE).map(line).collect();
    attack("", |number| lines[number % PIECE].clone());
}

#[test]
fn waits_that_end_at_once_or_never() {
    attack("", |_| "wait-job 1 4294967295\r\ncancel-reserve\r\nreserve\r\ncancel-reserve\r\n".to_owned());
}

#[test]
fn pages_of_jobs_that_no_client_reads() {
    attack("use flood\r\n", |number| match number % PIECE {
        0..40 => format!("put 0 {} 60 1\r\nx\r\n", number % 2),
        40..45 => "list-jobs flood ready 0 1000\r\n".to_owned(),
        _ => "list-jobs flood delayed 7 1000\r\n".to_owned(),
    });
}

#[test]
fn jobs_that_are_moved_to_and_fro() {
    attack("use flood\r\n", |number| match number % PIECE {
        0..40 => "put 0 0 60 1\r\nx\r\n".to_owned(),
        even if even.is_multiple_of(2) => "move-jobs flood ready back 4294967295\r\n".to_owned(),
        _ => format!("move-jobs back ready flood 4294967295\r\nmove-job {number} {:0>200}\r\n", number % 7),
    });
}

#[test]
fn modes_and_weights_that_change_all_the_time() {
    attack("use flood\r\nput 0 0 60 1\r\nx\r\n", |number| {
        let mode = ["weighted", "weighted-fair", "default"][number % 3];
        let weight = 1 + number % 4_294_967_295;
        format!(
            "watch t{} {weight}\r\nreserve-mode {mode}\r\nreserve-with-timeout 0\r\npeek-reserved\r\n",
            number % 900
        )
    });
}
