//! Many clients and one server. Everything between them happens in any order. Replies answer commands one by one, the
//! queue stays consistent, and nothing is left after all clients have disconnected.

use beanring::server::Service;
use beanring::time::Span;
use beanring::values::tube_rules::RuleKey;
use beanring::wal::Durability;

use super::driver::Driver;
use super::input::{Input, filler};

const TUBES: [&str; 8] = ["default", "a", "b", "c", "d/e", "(f)", "g$h;i", "-j"];
const CONNECTIONS_MAX: usize = 24;
/// Bytes that all clients together send at most, so that an input takes milliseconds.
const SENT_BYTES_MAX: usize = 1 << 20;

struct Conversation<'a> {
    input: Input<'a>,
    driver: Driver,
    sent_bytes: usize,
    /// Number of bodies so far: bodies of more than a few bytes are all different.
    bodies: u64,
}

/// Runs an input. The first byte selects the job size limit, the second whether there is a job log. Each further byte
/// is an action.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let max_job_bytes = input.pick(&[65_535, 0, 100, 300_000]);
    let within = Durability::Within(Span::from_millis(50));
    let durability =
        input.pick(&[None, None, Some(Durability::Always), Some(within), Some(Durability::Never)]);
    let driver = Driver::new(max_job_bytes, durability);
    let mut conversation = Conversation { input, driver, sent_bytes: 0, bodies: 0 };
    conversation.driver.connect();
    let mut steps = 0;
    while !conversation.input.is_empty() {
        conversation.step();
        steps += 1;
        let engine = conversation.driver.server.engine();
        if engine.jobs().len() < 50 || steps % 32 == 0 {
            engine.check();
        }
    }
    conversation.end();
}

impl Conversation<'_> {
    fn step(&mut self) {
        let what = self.input.byte();
        let at = self.input.below(self.driver.ends.len());
        let Self { input, driver, .. } = self;
        match what & 0x1f {
            0 if driver.ends.len() < CONNECTIONS_MAX => _ = driver.connect(),
            1 => {
                let length = input.below(256);
                driver.send(at, input.bytes(length));
            }
            2 => {
                let count = usize::from(input.half());
                driver.receive(at, count, what & 0x20 > 0);
            }
            3 => _ = driver.begin_send(at),
            4 => {
                let count = usize::from(input.half());
                driver.end_send(at, count);
            }
            5 => driver.iterate(),
            6 | 7 => self.pass(),
            8 => driver.half_close(at),
            9 => driver.hang_up(at),
            10 => _ = driver.close(at),
            11 => driver.ends[at].reads ^= true,
            12 if input.byte() == 0 => driver.drain(),
            13 => self.flood(at),
            14 => driver.check_files(),
            15 => _ = driver.end_disk(at),
            _ => self.command(at),
        }
        if what & 0x40 == 0 {
            self.driver.settle();
        }
    }

    /// Advances the clock: to the next deadline, close to it, or by any time.
    fn pass(&mut self) {
        let due = self.driver.server.next_deadline().map_or(Span::ZERO, |due| due.since(self.driver.now));
        let nanos = due.as_nanos();
        let span = match self.input.below(8) {
            0..3 => due,
            3 => Span::from_nanos(nanos.saturating_sub(1)),
            4 => Span::from_nanos(nanos + 1),
            5 => Span::from_nanos(self.input.word() % 4_000_000_000),
            6 => Span::from_secs(u32::from(self.input.half())),
            _ => Span::from_secs(u32::MAX),
        };
        // Some hundred years are enough: `Time` has an end.
        if self.driver.now.as_nanos() < i64::MAX as u64 {
            self.driver.pass(span);
        }
    }

    /// Sends the same command many times, with increasing numbers.
    fn flood(&mut self, at: usize) {
        let what = self.input.below(5);
        let first = self.input.below(64);
        let mut bytes = Vec::new();
        for number in first..first + 300 {
            let line = match what {
                0 => format!("put {number} 0 100 0\r\n\r\n"),
                1 => format!("put {number} 3 100 0\r\n\r\n"),
                2 => "reserve-with-timeout 0\r\n".to_owned(),
                3 => format!("bury {number} 1\r\n"),
                _ => format!("watch tube-{number}\r\n"),
            };
            bytes.extend_from_slice(line.as_bytes());
        }
        self.send(at, &bytes);
    }

    fn send(&mut self, at: usize, bytes: &[u8]) {
        self.sent_bytes += bytes.len();
        if self.sent_bytes <= SENT_BYTES_MAX {
            self.driver.send(at, bytes);
        }
    }

    fn command(&mut self, at: usize) {
        let what = self.input.below(45);
        let line = match what {
            0..4 => return self.put(at),
            4 | 5 => "reserve".to_owned(),
            6 => format!(
                "reserve-with-timeout {}",
                self.input.pick(&["0", "1", "2", "0.5", "60", "2147483647"])
            ),
            7 => format!("reserve-job {}", self.id()),
            8 => format!("peek {}", self.id()),
            9 => {
                ["peek-ready", "peek-delayed", "peek-buried", "peek-reserved"][self.input.below(4)].to_owned()
            }
            10 => format!("delete {}", self.id()),
            11 | 12 => format!("release {} {} {}", self.id(), self.pri(), self.delay()),
            13 | 14 => format!("bury {} {}", self.id(), self.pri()),
            15 => format!("kick {}", self.input.pick(&[0, 1, 2, 300, u64::MAX])),
            16 => format!("kick-job {}", self.id()),
            17 => format!("touch {}", self.id()),
            18 => "stats".to_owned(),
            19 => format!("stats-job {}", self.id()),
            20 => format!("stats-tube {}", self.tube()),
            21 => format!("use {}", self.tube()),
            22 | 23 => format!("watch {}", self.tube()),
            24 => format!("ignore {}", self.tube()),
            25 => ["list-tubes", "list-tube-used", "list-tubes-watched"][self.input.below(3)].to_owned(),
            29 => {
                let timeout = self.input.pick(&["", " 0", " 1", " 0.75", " 60"]);
                format!("reserve-batch {}{timeout}", self.input.pick(&[1, 2, 5, 1000, 1001]))
            }
            31 | 32 => format!(
                "wait-job {} {}",
                self.id(),
                self.input.pick(&["0", "1", "0.001", "60", "2147483647"])
            ),
            33 => "cancel-reserve".to_owned(),
            34 => format!("watch {} {}", self.tube(), self.input.pick(&[1, 2, 1000, u32::MAX])),
            35 => {
                let mode = self.input.pick(&["default", "fifo", "weighted", "weighted-fair"]);
                format!("reserve-mode {mode}")
            }
            36 => return self.put_batch(at),
            42 => return self.note(at),
            43 => return self.schedule(at),
            44 => {
                let word = self.input.pick(&["schedule-delete", "schedule-stats", "list-schedules 7"]);
                format!("{word} {}", self.tube())
            }
            37 => self.list_jobs(),
            38 => format!("move-job {} {}", self.id(), self.tube()),
            39 => {
                let state = self.input.pick(&["ready", "delayed", "buried", "reserved"]);
                let (from, to) = (self.tube(), self.tube());
                format!("move-jobs {from} {state} {to} {}", self.input.pick(&[0, 1, 300, u64::MAX]))
            }
            40 | 41 => self.tube_config(),
            28 => self.delete_batch(),
            27 => format!("{} {}", self.input.pick(&["flush-tube", "flush-keys"]), self.tube()),
            26 => format!("pause-tube {} {}", self.tube(), self.delay()),
            _ if self.input.below(8) == 0 => "quit".to_owned(),
            _ => "reserve".to_owned(),
        };
        self.send(at, format!("{line}\r\n").as_bytes());
    }

    fn note(&mut self, at: usize) {
        let bytes = self.input.pick(&[0, 1, 40, 1024, 1025, 70_000]);
        let end = self.input.pick(&["\r\n", "\r\n", "\r\n", "xx"]);
        let line = format!("job-note {} {bytes}\r\n", self.id());
        self.send(at, &[line.as_bytes(), &vec![b'n'; bytes], end.as_bytes()].concat());
    }

    /// A schedule that does not run for as long as the conversation lasts.
    fn schedule(&mut self, at: usize) {
        let bytes = self.input.pick(&[0, 1, 40, 65_535, 65_536]);
        let end = self.input.pick(&["\r\n", "\r\n", "\r\n", "xx"]);
        let when = self.input.pick(&[
            "every:366d",
            "every:0",
            "0 0 1 1 *",
            "0 0 31 2 *",
            "0 0 1 1 * Europe/Nowhere",
        ]);
        let line = format!("schedule-put {} 1 0 60 {bytes} {} {when}\r\n", self.tube(), self.tube());
        self.send(at, &[line.as_bytes(), &vec![b's'; bytes], end.as_bytes()].concat());
    }

    fn put(&mut self, at: usize) {
        let bytes = self.put_bytes();
        self.send(at, &bytes);
    }

    /// Sends a batch, sometimes with a put too few or too many.
    fn put_batch(&mut self, at: usize) {
        let count = self.input.pick(&[1, 2, 3, 7, 60]);
        let puts = self.input.pick(&[count, count, count, count - 1, count + 1]);
        let mut bytes = format!("put-batch {count}\r\n").into_bytes();
        (0..puts).for_each(|_| bytes.extend(self.put_bytes()));
        self.send(at, &bytes);
    }

    fn put_bytes(&mut self) -> Vec<u8> {
        let sizes = [0, 1, 7, 60, 100, 100, 500, 2_000, 2_000, 8_190, 8_191, 16_400, 20_000, 65_535, 65_536];
        let bytes = match self.input.below(256) {
            255 => 270_000,
            at => sizes[at % sizes.len()],
        };
        let (pri, delay) = (self.pri(), self.delay());
        let ttr = self.input.pick(&["60", "0", "1", "2", "0.001", "1.5", "4294967295"]);
        let ending: &[u8] =
            self.input.pick(&[b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\n\n", b"", b"\r\nstats\r\n"]);
        self.bodies += 1;
        let body = filler(self.bodies, bytes);
        let tags = match self.bodies % 8 {
            0 => " idp:k:2",
            1 => " idp:k",
            2 => " idp:other:60 con:k:2",
            3 => " con:k grp:a",
            4 => " aft:a grp:b con:k",
            5 => " aft:b idp:k",
            6 => " grp:a aft:b",
            _ if self.bodies.is_multiple_of(3) => " x",
            _ => "",
        };
        // The body is skipped then.
        let pri = if self.bodies.is_multiple_of(31) { "-1".to_owned() } else { pri.to_string() };
        let line = format!("put {pri} {delay} {ttr} {bytes}{tags}\r\n");
        [line.as_bytes(), &body, ending].concat()
    }

    fn delete_batch(&mut self) -> String {
        let count = self.input.pick(&[1, 2, 3, 100, 700, 1001]);
        let step = self.input.below(3) as u64;
        let first = self.id();
        (0..count)
            .fold("delete-batch".to_owned(), |line, at| format!("{line} {}", first.saturating_add(at * step)))
    }

    fn list_jobs(&mut self) -> String {
        let state = self.input.pick(&["ready", "reserved", "delayed", "buried", "ready"]);
        let page = self.input.pick(&["", " 0 1", " 5", " 2 1000", " 0 1001"]);
        format!("list-jobs {} {state}{page}", self.tube())
    }

    fn tube_config(&mut self) -> String {
        let tube = self.tube();
        let key = self.input.pick(&RuleKey::ALL).word();
        match self.input.pick(&[0, 1, 2, 3, 100, u64::MAX]) {
            u64::MAX => format!("tube-config {tube}"),
            _ if key == "dead-letter" => format!("tube-config {tube} {key} {}", self.tube()),
            number => format!("tube-config {tube} {key} {number}"),
        }
    }

    fn id(&mut self) -> u64 {
        match self.input.byte() {
            0xff => self.input.word(),
            byte => 1 + u64::from(byte % 32),
        }
    }

    fn pri(&mut self) -> u32 {
        self.input.pick(&[0, 1, 1023, 1024, u32::MAX])
    }

    fn delay(&mut self) -> &'static str {
        self.input.pick(&["0", "0", "0", "1", "2", "100", "0.5", "4294967295.999"])
    }

    fn tube(&mut self) -> String {
        match self.input.below(TUBES.len() + 2) {
            at if at < TUBES.len() => TUBES[at].to_owned(),
            at => "x".repeat(200 + at - TUBES.len()),
        }
    }

    /// Disconnects all clients, and deletes the remaining jobs.
    fn end(mut self) {
        self.driver.finish();
        self.driver.server.engine().check();
        let sweeper = self.driver.connect();
        let ids: Vec<u64> = self.driver.server.engine().jobs().iter().map(|(_, job)| job.id.0).collect();
        for id in ids {
            self.driver.send(sweeper, format!("delete {id}\r\n").as_bytes());
        }
        self.driver.settle();
        self.driver.finish();
        // A tube with a rate stays until its next token.
        self.driver.pass(Span::from_secs(2));
        let engine = self.driver.server.engine();
        engine.check();
        assert!(engine.jobs().is_empty(), "jobs without a holder can be deleted");
        assert_eq!(engine.tubes().len(), 1, "unused tubes disappear");
        assert_eq!(engine.body_count(), 0, "every body is given back");
    }
}
