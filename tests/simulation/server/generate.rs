//! Chooses the next action from a seed.

use std::collections::VecDeque;

use beanring::time::{Span, Time};
use beanring::values::limits::LINE_BYTES_LONG_MAX;
use beanring::values::tube_rules::RuleKey;
use beanring::wal::Durability;

use super::action::Action;
use super::names::name_of;
use super::world::{INTERVAL, MAX_JOB_BYTES, Setting, World};
use beanring_testkit::forged_head;
use beanring_testkit::naive::{Conn, Model};
use beanring_testkit::random::Random;

/// The traits of a run, chosen by its seed.
struct Profile {
    clients_max: usize,
    tubes: usize,
    ttr_max: usize,
    delay_max: usize,
    pri_max: usize,
    /// Maximum number of commands that a client sends at once.
    pipeline_max: usize,
    body_max: usize,
    /// One put in this many has tags.
    tagged_one_in: usize,
    /// Jobs of a concurrency key have different limits.
    has_mixed_limits: bool,
    groups: usize,
    /// Clients set rules of tubes.
    has_rules: bool,
    /// Weights of the kinds of actions.
    weights: [usize; KINDS],
    /// One client in this many rarely reads.
    lazy_one_in: usize,
    has_troubles: bool,
}

const KINDS: usize = 9;

/// One seed in this many whose replies wait for the job log has it across a network.
const NETWORK_ONE_IN: u64 = 3;

/// One seed in this many has TLS between clients and server.
const TLS_ONE_IN: u64 = 4;

/// One seed in this many has clients whose bodies look like records of the job log.
const FORGED_ONE_IN: u64 = 5;

pub struct Generator {
    random: Random,
    profile: Profile,
    planned: VecDeque<Action>,
    bodies: u64,
    /// The server accepts fractions of a second.
    has_decimals: bool,
    /// Bodies look like records of the job log.
    forges: bool,
    /// The end of the job log.
    log_end: u64,
}

impl Generator {
    pub fn new(seed: u64) -> (Self, Setting) {
        let mut random = Random::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let durability = match random.below(6) {
            0 | 1 => None,
            2 | 3 => Some(Durability::Always),
            4 => Some(Durability::Within(INTERVAL)),
            _ => Some(Durability::Never),
        };
        let is_small = random.below(3) == 0;
        let memory = (random.below(5) == 0).then(|| 300_000 + random.below(700_000) as u64);
        let (space, sub_second) = (if is_small { 5 } else { 100 }, random.below(2) == 0);
        let tls = cfg!(feature = "tls") && seed % TLS_ONE_IN == TLS_ONE_IN - 1;
        let keep_reservations = durability.is_some() && seed / TLS_ONE_IN % 2 == 1;
        let network = durability == Some(Durability::Always) && seed.is_multiple_of(NETWORK_ONE_IN);
        let setting = Setting {
            durability,
            network,
            space,
            memory,
            sub_second,
            tls,
            keep_reservations,
            ..Setting::WITHOUT_LOG
        };
        let mut pick = |choices: &[usize]| choices[random.below(choices.len())];
        let profile = Profile {
            clients_max: pick(&[2, 4, 8, 16]),
            tubes: pick(&[1, 2, 4, 24]),
            ttr_max: pick(&[1, 3, 8, 100]),
            delay_max: pick(&[2, 5, 50]),
            pri_max: pick(&[1, 3, 2000, u32::MAX as usize]),
            pipeline_max: pick(&[1, 1, 3, 12]),
            body_max: pick(&[10, 200, 3_000, MAX_JOB_BYTES as usize + 100]),
            tagged_one_in: pick(&[1, 4, 1_000]),
            has_mixed_limits: pick(&[0, 1]) == 1,
            groups: pick(&[0, 1, 3]),
            has_rules: pick(&[0, 1]) == 1,
            weights: std::array::from_fn(|_| pick(&[1, 2, 5, 10])),
            lazy_one_in: pick(&[3, 1_000]),
            has_troubles: pick(&[0, 1]) == 1,
        };
        let forges = seed % FORGED_ONE_IN == 1;
        let has_decimals = sub_second;
        (
            Self { random, profile, planned: VecDeque::new(), bodies: 0, has_decimals, forges, log_end: 0 },
            setting,
        )
    }

    pub fn next(&mut self, world: &World) -> Action {
        self.has_decimals = world.setting.sub_second;
        self.log_end = world.server.server().wal().map_or(0, |wal| wal.end().0);
        if world.has_failed && self.one_in(3) && !world.links.is_empty() {
            return Action::Transmit { client: self.random.below(world.links.len()), bytes: 1 << 20 };
        } else if world.has_failed {
            return Action::Kill { seed: self.random.next() };
        }
        self.planned.pop_front().unwrap_or_else(|| self.choose(world))
    }

    fn choose(&mut self, world: &World) -> Action {
        let open: Vec<usize> =
            (0..world.links.len()).filter(|&client| world.links[client].is_open()).collect();
        if open.is_empty() || open.len() < self.profile.clients_max && self.one_in(12) {
            return Action::Connect;
        }
        let client = open[self.random.below(open.len())];
        let is_lazy = client % self.profile.lazy_one_in == 1 && !self.one_in(20);
        let mut at = self.random.below(self.profile.weights.iter().sum());
        let kind = self.profile.weights.iter().position(|&weight| {
            let is_it = at < weight;
            at = at.wrapping_sub(weight);
            is_it
        });
        match kind.expect("the weights cover the number") {
            0 | 1 => self.send(world, client),
            2 | 3 => self.deliver(world, client),
            4 if is_lazy => Action::Turn,
            4 => self.transmit(world, client),
            5 => Action::Turn,
            6 => Action::Disk { seed: self.random.next() },
            7 => self.pass(&world.checker.model),
            _ => self.rare_action(world, client),
        }
    }

    fn rare_action(&mut self, world: &World, client: usize) -> Action {
        match self.random.below(60) {
            0..20 => Action::Settle,
            20..24 => Action::HalfClose { client },
            24..29 => Action::Break { client },
            29..31 if self.profile.has_troubles => Action::Kill { seed: self.random.next() },
            31..33 if self.profile.has_troubles => Action::PowerCut { seed: self.random.next() },
            33 if self.profile.has_troubles => Action::Fail,
            34 if self.profile.has_troubles => Action::Drain,
            35 => Action::Stop,
            36..38 => Action::Space { segments: self.pick(&[2, 4, 5, 6, 100]) },
            _ => self.pass(&world.checker.model),
        }
    }

    /// Delivers part of the bytes in transit, and often all of them.
    fn deliver(&mut self, world: &World, client: usize) -> Action {
        let there = world.links[client].unreceived.len();
        let bytes = match self.random.below(4) {
            0 => 1 + self.random.below(20),
            1 => 1 + self.random.below(there.max(1)),
            _ => there.max(1),
        };
        Action::Deliver { client, bytes, direct: self.one_in(2) }
    }

    fn transmit(&mut self, world: &World, client: usize) -> Action {
        // A closing connection still has a send to end.
        let sending = (0..world.links.len()).find(|&client| world.links[client].is_sending());
        let client = sending.filter(|_| self.one_in(2)).unwrap_or(client);
        let bytes = if self.one_in(3) { 1 + self.random.below(2_000) } else { 1 << 20 };
        Action::Transmit { client, bytes }
    }

    /// Passes time to the next deadline, to just before or after it, or at random.
    fn pass(&mut self, model: &Model) -> Action {
        let anywhere = self.pick(&[1_000_000, 30_000_000, 3_000_000_000]);
        let anywhere = Span::from_nanos(self.random.below(anywhere) as u64);
        let until = |due: Time| due.since(model.now);
        let span = match (model.next_due(), self.random.below(8)) {
            (Some(due), 0..3) => until(due),
            (Some(due), 3) => until(due.back(Span::from_nanos(1))),
            (Some(due), 4) => until(due + Span::from_nanos(1)),
            _ => anywhere,
        };
        Action::Pass { ns: span.as_nanos().min(100_000_000_000) }
    }

    fn send(&mut self, world: &World, client: usize) -> Action {
        let model = &world.checker.model;
        let is_deaf = !world.checker.clients[client].is_active();
        if is_deaf || world.links[client].is_half_closed || world.links[client].unreceived.len() > 100_000 {
            return Action::Turn;
        }
        let mut bytes = Vec::new();
        for _ in 0..1 + self.random.below(self.profile.pipeline_max) {
            self.command(model, client as Conn, &mut bytes);
        }
        if self.one_in(2) {
            self.planned.push_back(Action::Deliver { client, bytes: usize::MAX, direct: true });
        }
        Action::Send { client, bytes }
    }

    fn command(&mut self, model: &Model, conn: Conn, out: &mut Vec<u8>) {
        let tube = name_of(self.random.below(self.profile.tubes) as u16);
        let line = match self.random.below(100) {
            0..5 => format!("use {tube}"),
            5..9 => format!("watch {tube}"),
            9 => format!("watch {tube} {}", self.pick(&[1, 2, 100, u32::MAX])),
            10 => {
                let mode = self.pick(&["default", "fifo", "weighted", "weighted-fair"]);
                format!("reserve-mode {mode}")
            }
            11..14 => format!("ignore {tube}"),
            14..16 => return self.put_batch(out),
            16..34 => return self.put(out),
            34 => "reserve\r\ncancel-reserve".to_owned(),
            35..44 => "reserve".to_owned(),
            44..46 => {
                let (count, seconds) =
                    (self.pick(&[1, 2, 3, 10, 1000]), self.pick(&[None, Some(0), Some(1), Some(3)]));
                let timeout = seconds.map_or_else(String::new, |seconds| format!(" {}", self.time(seconds)));
                format!("reserve-batch {count}{timeout}")
            }
            46..52 => {
                let seconds = self.pick(&[0, 0, 1, 3]);
                format!("reserve-with-timeout {}", self.time(seconds))
            }
            52..54 => format!("reserve-job {}", self.job(model)),
            54 if self.one_in(2) => {
                let seconds = self.pick(&[0, 1, 3, 1000]);
                format!("wait-job {} {}", self.awaited(model), self.time(seconds))
            }
            54 => "cancel-reserve".to_owned(),
            55 => self.delete_batch(model, conn),
            56..62 => format!("delete {}", self.reserved_or_any(model, conn)),
            62..68 => {
                let (id, pri, delay) = (self.reserved_or_any(model, conn), self.pri(), self.delay());
                format!("release {id} {pri} {delay}")
            }
            68..73 => format!("bury {} {}", self.reserved_or_any(model, conn), self.pri()),
            73..76 => format!("touch {}", self.reserved_or_any(model, conn)),
            76..79 => format!("kick {}", self.pick(&[0, 1, 2, 5, u32::MAX as usize])),
            79 => format!("kick-job {}", self.job(model)),
            80 => {
                let bytes = self.pick(&[0, 1, 60, 60, 1024, 1025]);
                let end = self.pick(&["", "", "", "x"]);
                let id = self.reserved_or_any(model, conn);
                format!("job-note {id} {bytes}\r\n{}{end}", "n".repeat(bytes))
            }
            81 if self.one_in(3) => format!("{} {tube}", self.pick(&["flush-tube", "flush-keys"])),
            81..84 => {
                let seconds = self.pick(&[0, 1, 2, 5]);
                format!("pause-tube {tube} {}", self.time(seconds))
            }
            84 if self.profile.has_rules && self.one_in(2) => self.tube_config(&tube),
            84 if self.one_in(3) => format!("stats-group g{}", self.random.below(3)),
            84 if self.one_in(2) => format!("move-job {} {tube}", self.job(model)),
            84 if self.one_in(2) => {
                let to = name_of(self.random.below(self.profile.tubes) as u16);
                let state = self.pick(&["ready", "delayed", "buried"]);
                format!("move-jobs {tube} {state} {to} {}", self.pick(&[0, 1, 2, u32::MAX as usize]))
            }
            84 => format!("peek {}", self.job(model)),
            85..88 => self.pick(&["peek-ready", "peek-delayed", "peek-buried", "peek-reserved"]).to_owned(),
            88..90 => "stats".to_owned(),
            90..92 => format!("stats-job {}", self.job(model)),
            92 if self.one_in(2) => {
                let state = self.pick(&["ready", "reserved", "delayed", "buried", "held"]);
                format!("list-jobs {tube} {state}{}", self.pick(&["", " 3", " 0 1", " 0 2", " 9 1000"]))
            }
            92..94 => format!("stats-tube {tube}"),
            // Often ended, since most of what clients do needs jobs.
            96 if self.one_in(3) => {
                self.pick(&["drain", "undrain", "undrain", "undrain", "undrain"]).to_owned()
            }
            94..97 => self.pick(&["list-tubes", "list-tube-used", "list-tubes-watched"]).to_owned(),
            97 if self.one_in(20) => self.pick(&["put-batch 0", "put-batch", "put-batches 2"]).to_owned(),
            97 => self
                .pick(&[
                    "what",
                    "",
                    "put 1",
                    "delete x",
                    "use -x",
                    "pause-tube -x 1",
                    "reserve now",
                    "wait-job 1 0.5",
                ])
                .to_owned(),
            98 if self.one_in(4) => "quit".to_owned(),
            98 => "x".repeat(200 + self.random.below(60)),
            _ => {
                // More tubes than the engine registers a waiting client with one by one.
                (0..self.profile.tubes).for_each(|tube| {
                    out.extend_from_slice(format!("watch {}\r\n", name_of(tube as u16)).as_bytes());
                });
                return;
            }
        };
        out.extend_from_slice(line.as_bytes());
        out.extend_from_slice(b"\r\n");
    }

    /// A rule, its removal, or a look at the rules.
    fn tube_config(&mut self, tube: &str) -> String {
        let key = self.pick(&RuleKey::ALL);
        let value = match key {
            _ if self.one_in(8) => return format!("tube-config {tube}"),
            _ if self.one_in(4) => "0".to_owned(),
            RuleKey::DeadLetter => name_of(self.random.below(self.profile.tubes + 1) as u16),
            RuleKey::MaxJobs => self.pick(&[1, 5, 20]).to_string(),
            RuleKey::MaxBytes => self.pick(&[10, 1_000, 20_000]).to_string(),
            RuleKey::Rate => self.pick(&[1, 2, 25, 1_000]).to_string(),
            RuleKey::MaxAttempts
            | RuleKey::DefaultTtr
            | RuleKey::Retention
            | RuleKey::RetryFor
            | RuleKey::RetryDelay
            | RuleKey::RetryMaxDelay => self.pick(&[1, 2, 5]).to_string(),
            RuleKey::RetryFactor => self.pick(&["1", "1.1", "3", "100"]).to_owned(),
            RuleKey::RetryJitter => self.pick(&["0.01", "0.5", "1"]).to_owned(),
            RuleKey::LostCounts => self.pick(&["no", "yes"]).to_owned(),
        };
        format!("tube-config {tube} {} {value}", key.word())
    }

    /// Some ids, or as many as fill a line of about the maximum length.
    fn delete_batch(&mut self, model: &Model, conn: Conn) -> String {
        let bytes = self.pick(&[20, 20, 40, 40, 300, 2_030]) + self.random.below(30);
        let mut line = "delete-batch".to_owned();
        while line.len() < bytes {
            line.push_str(&format!(" {}", self.reserved_or_any(model, conn)));
        }
        line
    }

    /// Sometimes with a put too few or too many.
    fn put_batch(&mut self, out: &mut Vec<u8>) {
        let count = self.pick(&[1, 2, 3, 5, 40]);
        let puts = if self.one_in(20) { count - 1 + 2 * self.random.below(2) } else { count };
        out.extend_from_slice(format!("put-batch {count}\r\n").as_bytes());
        (0..puts).for_each(|_| self.put(out));
    }

    /// A put, with its body even if the line is wrong.
    fn put(&mut self, out: &mut Vec<u8>) {
        let (pri, delay, ttr) = (self.pri(), self.delay(), self.ttr());
        let pri =
            if self.one_in(60) { self.pick(&["-1", "x", "4294967296"]).to_owned() } else { pri.to_string() };
        self.bodies += 1;
        let mut body = self.bodies.to_string().into_bytes();
        let length = 1 + self.random.below(self.profile.body_max);
        let fill = b'a' + self.random.below(26) as u8;
        body.resize(length.max(body.len()), fill);
        if self.forges {
            self.forge(&mut body);
        }
        let bytes = body.len();
        let end = if self.one_in(40) { "xx" } else { "\r\n" };
        let trailing = match () {
            () if self.one_in(60) => " x".to_owned(),
            () if self.one_in(400) => format!(" idp:{}", "k".repeat(LINE_BYTES_LONG_MAX)),
            () => String::new(),
        };
        let tags = if self.one_in(self.profile.tagged_one_in) { self.tags() } else { String::new() };
        out.extend_from_slice(format!("put {pri} {delay} {ttr} {bytes}{tags}{trailing}\r\n").as_bytes());
        out.extend_from_slice(&body);
        out.extend_from_slice(end.as_bytes());
    }

    /// Fills a body with heads of records by docs/internals/LOG.md: at positions that the log reaches in this use of the file or a later one,
    /// and with lengths up to that of a segment. Only the seed of their checks is not that of the segment, which no client knows.
    fn forge(&mut self, body: &mut [u8]) {
        let first = body.len().min(8 + self.random.below(8));
        let later = self.random.below(4) as u64 * self.random.below(100_000) as u64 / 8 * 8;
        let (payload, kind) = (self.pick(&[0_u32, 8, 100, 20_000]), self.pick(&[1_u8, 3, 6, 7]));
        for (number, head) in (0..).zip(body[first..].as_chunks_mut::<32>().0) {
            let at = self.log_end / 8 * 8 + later + 32 * number;
            head.fill(0);
            head[4..8].copy_from_slice(&payload.to_le_bytes());
            head[8..16].copy_from_slice(&at.to_le_bytes());
            head[16..24].copy_from_slice(&at.to_le_bytes());
            head[24] = kind;
            forged_head::check(head, 0);
            let crc = crc32c::crc32c(&head[4..]);
            head[..4].copy_from_slice(&crc.to_le_bytes());
        }
    }

    fn tags(&mut self) -> String {
        let idp = format!(" idp:k{}:{}", self.random.below(4), self.pick(&[0, 1, 3, 100]));
        let key = self.random.below(3);
        let limit = if self.profile.has_mixed_limits { self.pick(&[1, 2, 5]) } else { key + 1 };
        let con = format!(" con:c{key}:{limit}");
        let mut tags = match self.random.below(4) {
            0 => idp,
            1 => con,
            2 => idp + &con,
            _ if self.profile.groups > 0 => String::new(),
            _ => idp,
        };
        let groups = self.profile.groups;
        if groups > 0 {
            // Of one group, a job is a member or waits for it.
            let (grp, aft) = (self.random.below(groups), self.random.below(groups));
            let may_have_both = grp != aft;
            let has_grp = self.one_in(2);
            if has_grp {
                tags.push_str(&format!(" grp:g{grp}"));
            }
            if !has_grp || may_have_both && self.one_in(2) {
                tags.push_str(&format!(" aft:g{aft}"));
            }
        }
        tags
    }

    fn pri(&mut self) -> usize {
        self.random.below(self.profile.pri_max)
    }

    fn delay(&mut self) -> String {
        let seconds = if self.one_in(2) { 0 } else { self.random.below(self.profile.delay_max) };
        self.time(seconds)
    }

    fn ttr(&mut self) -> String {
        let seconds = self.random.below(self.profile.ttr_max + 1);
        self.time(seconds)
    }

    /// A number of seconds. If the server accepts it, often with a fraction.
    fn time(&mut self, seconds: usize) -> String {
        let is_whole = !self.has_decimals || self.one_in(2);
        let decimals = if is_whole { "" } else { self.pick(&[".0", ".001", ".063", ".5", ".75", ".999"]) };
        format!("{seconds}{decimals}")
    }

    fn job(&mut self, model: &Model) -> u64 {
        match model.jobs.len() {
            0 => 1,
            _ if self.one_in(20) => 1 + self.random.below(1000) as u64,
            count => model.jobs[self.random.below(count)].id,
        }
    }

    /// Often a job that another client waits for.
    fn awaited(&mut self, model: &Model) -> u64 {
        let awaited = model.clients.iter().find_map(|client| client.job_wait);
        awaited.filter(|_| self.one_in(2)).map_or_else(|| self.job(model), |wait| wait.id)
    }

    fn reserved_or_any(&mut self, model: &Model, conn: Conn) -> u64 {
        let held: Vec<u64> = model.jobs.iter().filter(|job| job.is_held_by(conn)).map(|job| job.id).collect();
        if held.is_empty() || self.one_in(5) { self.job(model) } else { self.pick(&held) }
    }

    fn one_in(&mut self, bound: usize) -> bool {
        self.random.below(bound) == 0
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.random.below(choices.len())]
    }
}
