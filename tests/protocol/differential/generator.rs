//! Random commands, mostly valid, with the number of replies that each must have.

use std::collections::BTreeSet;

use beanring_testkit::random::Random;

/// The job size limit of both servers, so that it is cheap to exceed.
pub const MAX_JOB_SIZE: usize = 10_000;

/// A command for both servers.
#[derive(Clone, Debug)]
pub struct Command {
    parts: Vec<Part>,
    /// The replies that it must have.
    pub awaited: Vec<Awaited>,
    /// It sets a deadline a second or two from now.
    pub short: bool,
}

#[derive(Clone, Debug)]
enum Part {
    Bytes(Vec<u8>),
    /// The id of a job, which may differ between the servers.
    Job(usize),
}

/// An expected reply, and what it means.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Awaited {
    Reply,
    /// The reply to a `put` of a job whose reservations are short, or not.
    Inserted {
        short_ttr: bool,
    },
    Watching(String),
    Ignoring(String),
    Touched,
    /// The reply to a reserve that may wait until there is a job.
    Reservation,
    /// The end of the connection.
    End,
}

/// The kind of deadlines that end in a run in which time passes. Each run has only one kind: a continued server finds
/// several deadlines over at once. beanstalkd then ends all delays, all pauses and all reservations in turn; beanring
/// ends the earliest first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    Delays,
    Pauses,
    Reservations,
}

/// The context in which a command is generated.
pub struct Situation<'a> {
    /// Jobs have numbers below this, by age.
    pub jobs: usize,
    /// The jobs that the connection has reserved.
    pub held: &'a [usize],
    /// Time passes, and deadlines of this kind may be short.
    pub ending: Option<Ending>,
    /// Other commands follow in the same write.
    pub burst: bool,
}

impl Command {
    /// Returns the bytes for a server with these job ids.
    pub fn bytes(&self, id: impl Fn(usize) -> u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        for part in &self.parts {
            match part {
                Part::Bytes(part) => bytes.extend_from_slice(part),
                Part::Job(order) => bytes.extend_from_slice(id(*order).to_string().as_bytes()),
            }
        }
        bytes
    }

    fn line(text: &str, awaited: Awaited) -> Self {
        Self {
            parts: vec![Part::Bytes(format!("{text}\r\n").into_bytes())],
            awaited: vec![awaited],
            short: false,
        }
    }

    fn raw(bytes: Vec<u8>, replies: usize) -> Self {
        Self { parts: vec![Part::Bytes(bytes)], awaited: vec![Awaited::Reply; replies], short: false }
    }

    /// Returns `quit`, which ends the connection.
    pub fn quit(random: &mut Random) -> Self {
        Self::line(random.pick(&["quit", "quit", "quitx", "quit now"]), Awaited::End)
    }

    /// Returns a reserve that waits if there is no job.
    pub fn waiting_reserve(random: &mut Random, ending: Option<Ending>) -> Self {
        let short = ending == Some(Ending::Reservations) && random.chance(40);
        let text = match () {
            () if short => "reserve-with-timeout 1",
            () if random.chance(30) => "reserve-with-timeout 1000",
            () => "reserve",
        };
        Self { short, ..Self::line(text, Awaited::Reservation) }
    }

    /// Returns any command that is answered at once.
    pub fn immediate(random: &mut Random, situation: &Situation) -> Self {
        match random.below(100) {
            0..26 => put(random, situation),
            26..38 => Self::line("reserve-with-timeout 0", Awaited::Reply),
            38..70 => about_a_job(random, situation),
            70..84 => about_a_tube(random, situation),
            84..94 => {
                let text = random.pick(&[
                    "peek-ready",
                    "peek-delayed",
                    "peek-buried",
                    "stats",
                    "list-tubes",
                    "list-tube-used",
                    "list-tubes-watched",
                    "kick 0",
                    "kick 1",
                    "kick  3",
                    "kick 4294967295",
                ]);
                Self::line(text, Awaited::Reply)
            }
            _ => malformed(random),
        }
    }
}

fn put(random: &mut Random, situation: &Situation) -> Command {
    let short_delay = situation.ending == Some(Ending::Delays) && random.chance(20);
    let short_ttr = situation.ending == Some(Ending::Reservations) && random.chance(40);
    let pri = pri(random);
    let delay = match () {
        () if short_delay => 1,
        () if random.chance(25) => long_span(random),
        () => 0,
    };
    let ttr = if short_ttr { random.pick(&[0, 1, 2]) } else { long_span(random) };
    let size = body_size(random);
    let fill = random.below(256) as u8;
    let body: Vec<u8> = (0..size).map(|i| fill.wrapping_add((i / 7) as u8)).collect();
    let with = |size: usize, rest: &[u8]| {
        let mut bytes = format!("put {pri} {delay} {ttr} {size}\r\n").into_bytes();
        bytes.extend_from_slice(rest);
        bytes
    };
    match random.below(100) {
        // A body that looks like commands.
        0..3 => Command {
            awaited: vec![Awaited::Inserted { short_ttr }],
            short: short_delay,
            ..Command::raw(with(14, b"list-tube-used\r\n"), 1)
        },
        3..6 => {
            let size = MAX_JOB_SIZE + 1 + random.below(300);
            Command::raw(with(size, &vec![b'b'; size + 2]), 1)
        }
        6..10 => {
            let size = MAX_JOB_SIZE + 1;
            let mut bytes = format!("put {pri} {delay} {ttr} {size} trailing\r\n").into_bytes();
            bytes.extend_from_slice(&vec![b'c'; size + 2]);
            Command::raw(bytes, 1)
        }
        10..13 => {
            let mut rest = body;
            rest.extend_from_slice(random.pick(&[b"XY", b"\rY", b"X\n", b"\n\r"]).as_slice());
            Command::raw(with(size, &rest), 1)
        }
        // Two or more bytes too long: the rest is a line.
        13..15 => {
            Command::raw(with(size, format!("{}\r\n", "z".repeat(size + 2 + random.below(9))).as_bytes()), 2)
        }
        _ => {
            let mut rest = body;
            rest.extend_from_slice(b"\r\n");
            Command {
                awaited: vec![Awaited::Inserted { short_ttr }],
                short: short_delay,
                ..Command::raw(with(size, &rest), 1)
            }
        }
    }
}

fn about_a_job(random: &mut Random, situation: &Situation) -> Command {
    let job = match () {
        () if !situation.held.is_empty() && random.chance(70) => {
            let recent = situation.held.len().min(6);
            Part::Job(situation.held[situation.held.len() - 1 - random.below(recent)])
        }
        () if situation.jobs > 0 && random.chance(94) => {
            let recent = if random.chance(80) { situation.jobs.min(12) } else { situation.jobs };
            Part::Job(situation.jobs - 1 - random.below(recent))
        }
        () => Part::Bytes(
            random
                .pick(&["0", "4000000000", "18446744073709551615", "18446744073709551616", "-1", "x", ""])
                .as_bytes()
                .to_vec(),
        ),
    };
    let mut short = false;
    let mut awaited = Awaited::Reply;
    let (before, after) = match random.below(20) {
        0..4 => ("delete ", String::new()),
        4..8 => {
            short = situation.ending == Some(Ending::Delays) && random.chance(30);
            let delay = match () {
                () if short => 1,
                () if random.chance(30) => long_span(random),
                () => 0,
            };
            ("release ", format!(" {} {delay}", pri(random)))
        }
        8..11 => ("bury ", format!(" {}", pri(random))),
        11..13 => {
            awaited = Awaited::Touched;
            ("touch ", String::new())
        }
        13..15 => ("kick-job ", String::new()),
        // beanstalkd does not time out such a reservation (docs/MIGRATING.md).
        15..17 if situation.ending != Some(Ending::Reservations) => ("reserve-job ", String::new()),
        17 => ("peek ", String::new()),
        _ => ("stats-job ", String::new()),
    };
    let suffix = if random.chance(2) { random.pick(&["x", " ", " 1"]) } else { "" };
    Command {
        parts: vec![
            Part::Bytes(before.as_bytes().to_vec()),
            job,
            Part::Bytes(format!("{after}{suffix}\r\n").into_bytes()),
        ],
        awaited: vec![awaited],
        short,
    }
}

fn about_a_tube(random: &mut Random, situation: &Situation) -> Command {
    let tube = tube(random);
    match random.below(14) {
        0..3 => Command::line(&format!("use {tube}"), Awaited::Reply),
        3..7 => Command::line(&format!("watch {tube}"), Awaited::Watching(tube)),
        7..10 => Command::line(&format!("ignore {tube}"), Awaited::Ignoring(tube)),
        10..12 => Command::line(&format!("stats-tube {tube}"), Awaited::Reply),
        _ => {
            let short = situation.ending == Some(Ending::Pauses) && random.chance(50);
            let seconds = match () {
                () if short => 1,
                // A pause of zero lasts a nanosecond: the next command may find the tube paused or not.
                () if situation.burst || random.chance(25) => long_span(random),
                () => 0,
            };
            Command { short, ..Command::line(&format!("pause-tube {tube} {seconds}"), Awaited::Reply) }
        }
    }
}

/// Returns lines that each have one error as their reply, without those in docs/MIGRATING.md: no wrong `put` announces a body.
fn malformed(random: &mut Random) -> Command {
    const LINES: &str = concat!(
        "| |put|put |put 1|put 1 2|put 1 2 3|put x 0 0|put -1 0 0|put 0 0 1 -1|put 0 0 1 x|",
        "put x 0 0 x|put 0 -1 0 -1|put 0 0 x|peek|peek x|peek-|",
        "peek-readyx|reserve |reservex|reserve-job|reserve-x|reserve-with-timeout|delete|",
        "delete 1x2|release 1|release 1 4294967296 0|release 1 0 4294967296|bury|bury 1|kick|",
        "kick |kick x|kick-job|touch|stats |stats-tube|stats-tube -x|use|use -a|watch a*|",
        "ignore  a|list-tubes |pause-tube -x 5|pause-tube a",
    );
    let lines: Vec<&str> = LINES.split('|').collect();
    match random.below(10) {
        0 => {
            let line: Vec<u8> = (0..random.below(40))
                .map(|_| random.below(256) as u8)
                // docs/MIGRATING.md covers a CR within a line, and the start of a TLS handshake.
                .filter(|&byte| byte != b'\r' && byte != 0x16)
                .chain(*b"\r\n")
                .collect();
            Command::raw(line, 1)
        }
        1 => {
            // beanstalkd loses its place if the CR is the last byte of its buffer of 224.
            let length = random.pick(&[222, 223, 224, 226, 300, 447, 448, 450, 3000]);
            let mut line = random.pick(&["x", "stats ", "1 "]).repeat(length).into_bytes();
            line.truncate(length - 2);
            line.extend_from_slice(b"\r\n");
            Command::raw(line, 1)
        }
        2 => Command::raw(b"stats\0\r\n".to_vec(), 1),
        3 => {
            Command::line(&format!("{} {}", random.pick(&["use", "watch"]), "n".repeat(201)), Awaited::Reply)
        }
        _ => Command::line(random.pick(&lines), Awaited::Reply),
    }
}

fn tube(random: &mut Random) -> String {
    match random.below(12) {
        0..4 => "default".to_owned(),
        4..6 => "a".to_owned(),
        6..8 => "b".to_owned(),
        8..10 => "c".to_owned(),
        10 => "A+/;.$_()-9".to_owned(),
        _ => "n".repeat(200),
    }
}

fn pri(random: &mut Random) -> u32 {
    match random.below(4) {
        0 => random.pick(&[0, 1, 1023, 1024, 4_294_967_295]),
        _ => random.below(4) as u32,
    }
}

/// Returns a time longer than a run. Rarely the same twice: commands of one burst may or may not share a moment.
fn long_span(random: &mut Random) -> u32 {
    match random.below(8) {
        0 => 4_294_967_295 - random.below(1_000_000) as u32,
        _ => 1_000 + random.below(1_000_000) as u32,
    }
}

fn body_size(random: &mut Random) -> usize {
    match random.below(12) {
        0 => 0,
        1 => 1,
        2 => random.below(500),
        3 => random.pick(&[222, 223, 224, 225, 4096, 8190, 8191, 8192, MAX_JOB_SIZE - 1, MAX_JOB_SIZE]),
        _ => random.below(20),
    }
}

/// Returns the tubes that a new connection watches.
pub fn default_watch() -> BTreeSet<String> {
    BTreeSet::from(["default".to_owned()])
}
