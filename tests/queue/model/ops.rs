//! Random operations that are mostly valid.

use std::collections::VecDeque;

use beanring::queue::{JobState, kept_key_bytes};
use beanring::time::{Seconds, Span, Time};
use beanring::values::reserve_mode::ReserveMode;
use beanring::values::tube_rules::{NO, RuleKey, YES};

use beanring_testkit::naive::{Client, Conn, Model, Name, Tags, Value};
use beanring_testkit::random::Random;

#[derive(Clone, Copy, Debug)]
pub enum Op {
    Connect { conn: Conn },
    Disconnect { conn: Conn, has_quit: bool },
    // The server ends the wait of a client, as when its input has ended.
    EndWait { conn: Conn },
    Use { conn: Conn, tube: Name },
    Watch { conn: Conn, tube: Name },
    // A watch with a weight.
    Weigh { conn: Conn, tube: Name, weight: u32 },
    Mode { conn: Conn, mode: ReserveMode },
    Ignore { conn: Conn, tube: Name },
    Put { conn: Conn, pri: u32, delay: Seconds, ttr: Seconds, tags: Tags },
    Reserve { conn: Conn, seconds: Option<Seconds> },
    // Reserves a job, and then further ones.
    ReserveBatch { conn: Conn, count: usize },
    ReserveJob { conn: Conn, id: u64 },
    WaitJob { conn: Conn, id: u64, seconds: Seconds },
    Delete { conn: Conn, id: u64 },
    DeleteBatch { conn: Conn, ids: [u64; 2] },
    Release { conn: Conn, id: u64, pri: u32, delay: Seconds },
    Bury { conn: Conn, id: u64, pri: u32 },
    Touch { conn: Conn, id: u64 },
    Kick { conn: Conn, bound: u32 },
    KickJob { id: u64 },
    Note { conn: Conn, id: u64, bytes: usize },
    Flush { conn: Conn, tube: Name },
    FlushKeys { conn: Conn, tube: Name },
    Pause { tube: Name, seconds: Seconds },
    // Sets a rule of a tube, or removes it.
    Rule { tube: Name, key: RuleKey, value: Option<Value> },
    MoveJob { id: u64, tube: Name },
    MoveJobs { conn: Conn, from: Name, state: JobState, to: Name, bound: u32 },
    // Lists jobs, across all pages.
    List { conn: Conn, tube: Name, state: JobState, limit: u32 },
    // All four peeks.
    Peek { conn: Conn },
    // Calls the engine at every deadline up to this time.
    Pass { to: Time },
    // Calls the engine only at this time.
    Jump { to: Time },
}

/// The properties of a run, from its seed.
struct Profile {
    clients_max: usize,
    tubes: u64,
    ttr_max: u64,
    delay_max: u64,
    pri_max: u64,
    /// One put in this many has tags.
    tagged_one_in: u64,
    /// Jobs of a concurrency key have different limits.
    has_mixed_limits: bool,
    groups: u64,
    /// Clients set rules of tubes.
    has_rules: bool,
    /// Idempotency keys have room for this many, or any number.
    keys_max: Option<usize>,
    /// Times have fractions of a second.
    has_millis: bool,
    /// The run has a flood of more jobs than the engine moves in one step.
    flood: bool,
}

pub struct Generator {
    random: Random,
    profile: Profile,
    /// Operations of one client.
    planned: VecDeque<Op>,
    planner: Conn,
    flood_left: usize,
    conns: Conn,
}

impl Generator {
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let profile = Profile {
            clients_max: 2 + random.below_u64(14) as usize,
            tubes: random.pick(&[1, 2, 4, 24, 40]),
            ttr_max: random.pick(&[1, 3, 8, 100]),
            delay_max: random.pick(&[2, 5, 50]),
            pri_max: random.pick(&[1, 3, 2000, u64::from(u32::MAX)]),
            tagged_one_in: random.pick(&[1, 4, u64::MAX]),
            has_mixed_limits: random.one_in(3),
            groups: random.pick(&[0, 1, 3]),
            has_millis: random.one_in(2),
            flood: random.one_in(20),
            has_rules: random.one_in(2),
            keys_max: random.pick(&[None, None, Some(3), Some(8)]),
        };
        Self { random, profile, planned: VecDeque::new(), planner: 0, flood_left: 0, conns: 0 }
    }

    /// The size of the share of idempotency keys.
    pub fn key_bytes_max(&self) -> Option<usize> {
        self.profile.keys_max.map(|count| count * kept_key_bytes(10, 2))
    }

    /// During a flood only answers are compared, to save time.
    pub fn is_amid_a_flood(&self) -> bool {
        self.flood_left > 0
    }

    pub fn next(&mut self, model: &Model) -> Op {
        self.flood_left = self.flood_left.saturating_sub(1);
        let can_send = |client: &Client| client.conn == self.planner && !client.is_blocked();
        if model.clients.iter().any(can_send)
            && let Some(op) = self.planned.pop_front()
        {
            return op;
        }
        self.planned.clear();
        self.invent(model)
    }

    fn invent(&mut self, model: &Model) -> Op {
        let idle: Vec<Conn> =
            model.clients.iter().filter(|client| !client.is_blocked()).map(|client| client.conn).collect();
        if idle.is_empty() || (model.clients.len() < self.profile.clients_max && self.random.one_in(12)) {
            if model.clients.len() < 2 * self.profile.clients_max {
                self.conns += 1;
                return Op::Connect { conn: self.conns };
            }
            return self.pass(model);
        }
        let conn = self.random.pick(&idle);
        let tube = self.random.below_u64(self.profile.tubes) as Name;
        match self.random.below_u64(100) {
            0..3 => self.leave(model),
            3..8 => Op::Use { conn, tube },
            8..11 => Op::Watch { conn, tube },
            11 => Op::Weigh { conn, tube, weight: self.random.pick(&[1, 5, u32::MAX]) },
            12 => Op::Mode { conn, mode: self.mode() },
            13..16 => Op::Ignore { conn, tube: self.random.pick(&[0, tube]) },
            16..18 => self.plan_watches(model, conn),
            18..36 => self.put(conn),
            36..52 => Op::Reserve { conn, seconds: self.timeout() },
            52 => Op::ReserveBatch { conn, count: self.random.pick(&[1, 2, 5, 400]) },
            53 => Op::ReserveJob { conn, id: self.job(model) },
            54 => Op::WaitJob { conn, id: self.awaited(model), seconds: self.seconds(&[0, 1, 3, 3000]) },
            55 => {
                let ids = [self.held_or_any(model, conn), self.held_or_any(model, conn)];
                Op::DeleteBatch { conn, ids }
            }
            56..60 => Op::Delete { conn, id: self.held_or_any(model, conn) },
            60..66 => {
                Op::Release { conn, id: self.held_or_any(model, conn), pri: self.pri(), delay: self.delay() }
            }
            66..71 => Op::Bury { conn, id: self.held_or_any(model, conn), pri: self.pri() },
            71..75 => Op::Touch { conn, id: self.held_or_any(model, conn) },
            75..78 => Op::Kick { conn, bound: self.random.pick(&[0, 1, 2, 5, u64::from(u32::MAX)]) as u32 },
            78 => Op::KickJob { id: self.job(model) },
            79 => {
                let bytes = self.random.pick(&[0, 1, 100, 1024]);
                Op::Note { conn, id: self.held_or_any(model, conn), bytes }
            }
            80 if self.random.one_in(2) => Op::Flush { conn, tube },
            80 if self.random.one_in(4) => Op::FlushKeys { conn, tube },
            80..84 => Op::Pause { tube, seconds: self.seconds(&[0, 1, 2, 5]) },
            84 if self.profile.has_rules && self.random.one_in(2) => self.rule(tube),
            84 => Op::Peek { conn },
            85 if self.random.one_in(2) => Op::MoveJob { id: self.job(model), tube },
            85 => self.move_jobs(conn, tube),
            86 => {
                let (state, limit) = (self.random.pick(&JobState::ALL), self.random.pick(&[1, 3, 1000]));
                Op::List { conn, tube, state, limit }
            }
            87..90 if self.profile.flood && model.jobs.len() < 200 => self.plan_flood(conn),
            _ => self.pass(model),
        }
    }

    fn leave(&mut self, model: &Model) -> Op {
        let client = &model.clients[self.random.below_u64(model.clients.len() as u64) as usize];
        let conn = client.conn;
        if client.is_blocked() && self.random.one_in(2) {
            Op::EndWait { conn }
        } else {
            Op::Disconnect { conn, has_quit: self.random.one_in(3) }
        }
    }

    /// Watches many tubes, so that the client becomes wide, or ignores them.
    fn plan_watches(&mut self, model: &Model, conn: Conn) -> Op {
        self.planner = conn;
        let watched = &model.get(conn).watched;
        if watched.len() > 8 {
            self.planned.extend(watched.iter().map(|&tube| Op::Ignore { conn, tube }));
        } else {
            let first = self.random.below_u64(4) as Name;
            let tubes = (first..self.profile.tubes as Name).take(20);
            self.planned.extend(tubes.map(|tube| Op::Watch { conn, tube }));
        }
        Op::Peek { conn }
    }

    fn move_jobs(&mut self, conn: Conn, from: Name) -> Op {
        let state = self.random.pick(&[JobState::Ready, JobState::Delayed, JobState::Buried]);
        let to = (from + 1 + self.random.below_u64(3) as Name) % self.profile.tubes.max(2) as Name;
        let to = if to == from { from + 1 } else { to };
        Op::MoveJobs { conn, from, state, to, bound: self.random.pick(&[0, 1, 2, u32::MAX]) }
    }

    /// Some hundred jobs that are all delayed, ready, held by one client, or buried, and an operation that moves all of them.
    fn plan_flood(&mut self, conn: Conn) -> Op {
        self.planner = conn;
        let kind = self.random.below_u64(6);
        let (pri, ttr) = (self.pri(), Seconds::whole(100 + 100 * self.random.below_u64(3) as u32));
        let delay = Seconds::whole(2 * u32::from(kind == 0 || kind == 4));
        let count = 300 + self.random.below_u64(500);
        let (kick, stay) = (Op::Kick { conn, bound: u32::MAX }, Op::Peek { conn });
        let flush = Op::Flush { conn, tube: 0 };
        let moved = |state| Op::MoveJobs { conn, from: 0, state, to: 1, bound: u32::MAX };
        let plan = &mut self.planned;
        plan.push_back(Op::Use { conn, tube: 0 });
        plan.push_back(Op::Watch { conn, tube: 0 });
        plan.extend((0..count).map(|_| Op::Put { conn, pri, delay, ttr, tags: Tags::default() }));
        if (1..4).contains(&kind) {
            plan.extend((0..count).map(|_| Op::Reserve { conn, seconds: Some(Seconds::ZERO) }));
        }
        self.flood_left = plan.len();
        plan.push_back(match kind {
            0 => self.random.pick(&[kick, stay, moved(JobState::Delayed)]),
            1 => Op::Disconnect { conn, has_quit: self.random.one_in(2) },
            2 => self.random.pick(&[kick, flush, moved(JobState::Ready)]),
            3 => kick,
            4 => flush,
            _ => self.random.pick(&[flush, moved(JobState::Ready)]),
        });
        Op::Peek { conn }
    }

    fn put(&mut self, conn: Conn) -> Op {
        let whole = self.random.below_u64(self.profile.ttr_max + 1) as u32;
        let ttr = self.with_millis(whole);
        let tags = self.tags();
        Op::Put { conn, pri: self.pri(), delay: self.delay(), ttr, tags }
    }

    fn tags(&mut self) -> Tags {
        let is_tagged = self.random.one_in(self.profile.tagged_one_in);
        let idp = (self.random.below_u64(4) as u8, self.random.pick(&[0, 1, 3, 100, 3601]));
        let has_idp = is_tagged && self.random.one_in(2);
        let key = self.random.below_u64(3) as u8;
        let limit =
            if self.profile.has_mixed_limits { self.random.pick(&[1, 2, 5]) } else { 1 + u32::from(key) };
        let has_con = is_tagged && self.random.one_in(2);
        let [grp, aft] = [(); 2].map(|()| {
            let is_in = is_tagged && self.profile.groups > 0 && self.random.one_in(2);
            is_in.then(|| self.random.below_u64(self.profile.groups) as u8)
        });
        let (idp, con) = (has_idp.then_some(idp), has_con.then_some((key, limit)));
        Tags { idp, con, grp, aft: aft.filter(|_| aft != grp) }
    }

    fn rule(&mut self, tube: Name) -> Op {
        let key = self.random.pick(&RuleKey::ALL);
        let number = match key {
            RuleKey::MaxAttempts | RuleKey::DefaultTtr | RuleKey::Retention => self.random.pick(&[1, 2, 5]),
            RuleKey::RetryFor => self.random.pick(&[1, 3, 10]),
            RuleKey::RetryDelay | RuleKey::RetryMaxDelay => self.random.pick(&[1, 2, 7]),
            RuleKey::RetryFactor => self.random.pick(&[10, 11, 15, 30, 1000]),
            RuleKey::RetryJitter => self.random.pick(&[1, 50, 100]),
            RuleKey::LostCounts => self.random.pick(&[NO, YES]),
            RuleKey::MaxJobs => self.random.pick(&[1, 5, 20]),
            RuleKey::MaxBytes => self.random.pick(&[10, 100, 1000]),
            RuleKey::Rate => self.random.pick(&[1, 2, 25, 1000]),
            RuleKey::DeadLetter => 0,
        };
        let other = self.random.below_u64(self.profile.tubes + 1) as Name;
        let value = match key {
            _ if self.random.one_in(4) => None,
            RuleKey::DeadLetter if other == tube => None,
            RuleKey::DeadLetter => Some(Value::Tube(other)),
            _ => Some(Value::Number(number)),
        };
        Op::Rule { tube, key, value }
    }

    fn mode(&mut self) -> ReserveMode {
        let weighted = self.random.pick(&[ReserveMode::Weighted, ReserveMode::WeightedFair]);
        self.random.pick(&[ReserveMode::Default, ReserveMode::Fifo, weighted])
    }

    fn pri(&mut self) -> u32 {
        self.random.below_u64(self.profile.pri_max) as u32
    }

    fn delay(&mut self) -> Seconds {
        if self.random.one_in(2) {
            return Seconds::ZERO;
        }
        let whole = self.random.below_u64(self.profile.delay_max) as u32;
        self.with_millis(whole)
    }

    fn timeout(&mut self) -> Option<Seconds> {
        if self.random.one_in(4) { None } else { Some(self.seconds(&[0, 1, 3])) }
    }

    fn seconds(&mut self, choices: &[u32]) -> Seconds {
        let whole = self.random.pick(choices);
        self.with_millis(whole)
    }

    /// Seconds, often with a fraction if the run has them.
    fn with_millis(&mut self, whole: u32) -> Seconds {
        if !self.profile.has_millis || self.random.one_in(2) {
            return Seconds::whole(whole);
        }
        let millis = self.random.pick(&[1, 63, 64, 500, 999]);
        Seconds::new(whole, millis).expect("it is below a second")
    }

    fn job(&mut self, model: &Model) -> u64 {
        match model.jobs.len() as u64 {
            0 => 1,
            _ if self.random.one_in(20) => 1 + self.random.below_u64(1000),
            count => model.jobs[self.random.below_u64(count) as usize].id,
        }
    }

    /// Often a job that another client waits for.
    fn awaited(&mut self, model: &Model) -> u64 {
        let awaited = model.clients.iter().find_map(|client| client.job_wait);
        awaited.filter(|_| self.random.one_in(2)).map_or_else(|| self.job(model), |wait| wait.id)
    }

    fn held_or_any(&mut self, model: &Model, conn: Conn) -> u64 {
        let held: Vec<u64> = model.jobs.iter().filter(|job| job.is_held_by(conn)).map(|job| job.id).collect();
        if held.is_empty() || self.random.one_in(5) { self.job(model) } else { self.random.pick(&held) }
    }

    /// Advances to the next deadline, just before it, just after it, or to any time.
    fn pass(&mut self, model: &Model) -> Op {
        let anywhere = model.now + Span::from_nanos(self.random.below_u64(3_000_000_000));
        let to = match (model.next_due(), self.random.below_u64(8)) {
            (Some(due), 0..4) => due,
            (Some(due), 4) => due.back(Span::from_nanos(1)).max(model.now),
            (Some(due), 5) => due + Span::from_nanos(1),
            _ => anywhere,
        };
        let is_late = self.random.one_in(3) && model.is_calm(to);
        if is_late { Op::Jump { to } } else { Op::Pass { to } }
    }
}
