//! Random commands of many clients, run by the engine and by a naive model of the queue. Every answer, every notice and all
//! visible state must agree, and the changes must be sufficient to rebuild the persistent state.
//!
//! `BEANRING_TEST_SEEDS` is the number of seeds, `BEANRING_TEST_SEED` replays one seed.

mod ops;
mod segment_index;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use beanring::queue::{
    BatchRoom, Begun, Engine, Ignored, JobPage, JobState, KeyStats, LatencyKind, Moved, NewJob, Notice,
    PageQuery, Percentiles, Reserved, TimeSum,
};
use beanring::time::{Seconds, Span, Time};
use beanring::values::ids::{ClientKey, ConnId, JobId, JobKey};
use beanring::values::tube_name::TubeName;
use beanring::values::tube_rules::Rule;
use beanring_testkit::naive::{
    Conn, KeyShare, Model, Name, Reserve, Stored, Told, Value, number_of_key, number_of_tube,
};
use beanring_testkit::random::seeds;
use ops::{Generator, Op};
use segment_index::SegmentIndex;

const SEEDS_DEFAULT: u64 = 300;
const STEPS: usize = 300;
/// Number of operations that a failure prints.
const TAIL: usize = 40;

#[test]
fn the_engine_agrees_with_the_model() {
    seeds(SEEDS_DEFAULT).for_each(run);
}

fn run(seed: u64) {
    let mut generator = Generator::new(seed);
    let mut pair = Pair::new(seed, generator.key_bytes_max());
    let mut done = Vec::new();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut compared = 0;
        while compared < STEPS {
            let op = generator.next(&pair.model);
            done.push(op);
            pair.apply(op);
            if !generator.is_amid_a_flood() {
                pair.compare();
                compared += 1;
            }
        }
    }));
    if let Err(panic) = outcome {
        eprintln!("seed {seed}, step {}: the last operations:", done.len() - 1);
        for (step, op) in done.iter().enumerate().skip(done.len().saturating_sub(TAIL)) {
            eprintln!("{step:5} {op:?}");
        }
        eprintln!("replay with BEANRING_TEST_SEED={seed}");
        resume_unwind(panic);
    }
}

/// The engine and the model.
struct Pair {
    engine: Engine,
    model: Model,
    ledger: SegmentIndex,
    keys: BTreeMap<Conn, ClientKey>,
    /// Notices of the engine since the last comparison.
    told: Vec<(Conn, Told)>,
    /// The late answer to a kick, a flush or a move.
    moved: Option<(Conn, u32)>,
    /// The late answer to a list.
    page: Option<Vec<u64>>,
}

impl Pair {
    fn new(seed: u64, key_bytes_max: Option<usize>) -> Self {
        let mut engine = Engine::new(seed);
        engine.record_changes(true);
        engine.keep_reservations(true);
        engine.set_key_bytes_max(key_bytes_max.unwrap_or(usize::MAX));
        let bytes_max = key_bytes_max.unwrap_or(usize::MAX);
        let key_share = Some(KeyShare { bytes_max, name_bytes: |tube| name_of(tube).len() });
        Self {
            engine,
            model: Model { key_share, ..Model::new() },
            ledger: SegmentIndex::default(),
            keys: BTreeMap::new(),
            told: Vec::new(),
            moved: None,
            page: None,
        }
    }

    fn apply(&mut self, op: Op) {
        self.command(op);
        self.settle(self.model.now);
        if let Op::Jump { .. } = op {
            // A late call may report what is due in any order.
            self.told.sort();
            self.model.told.sort();
        }
        assert_eq!(
            std::mem::take(&mut self.told),
            std::mem::take(&mut self.model.told),
            "what clients are told"
        );
    }

    /// Runs the operation on both and compares the answers.
    fn command(&mut self, op: Op) {
        let Self { engine, model, keys, .. } = self;
        let now = model.now;
        match op {
            Op::Connect { conn } => {
                let key = engine.connect(ConnId { slot: conn, generation: 0 });
                keys.insert(conn, key);
                model.connect(conn, key);
            }
            Op::Disconnect { conn, has_quit } => {
                let client = keys.remove(&conn).expect("it is connected");
                if has_quit {
                    engine.quit(client);
                }
                engine.disconnect(client, now);
                model.disconnect(conn, has_quit);
            }
            Op::EndWait { conn } => {
                engine.end_wait(keys[&conn]);
                model.end_wait(conn);
            }
            Op::Use { conn, tube } => {
                named(tube, |name| engine.use_tube(keys[&conn], name));
                model.use_tube(conn, tube);
            }
            Op::Watch { conn, tube } => {
                let count = named(tube, |name| engine.watch(keys[&conn], name));
                assert_eq!(count, model.watch(conn, tube));
            }
            Op::Weigh { conn, tube, weight } => {
                let weight = NonZeroU32::new(weight).expect("a weight is positive");
                let count = named(tube, |name| {
                    let count = engine.watch(keys[&conn], name);
                    engine.set_weight(keys[&conn], name, weight);
                    count
                });
                assert_eq!(count, model.watch(conn, tube));
            }
            Op::Mode { conn, mode } => {
                engine.set_reserve_mode(keys[&conn], mode);
                model.set_mode(conn, mode);
            }
            Op::Ignore { conn, tube } => {
                let answer = named(tube, |name| engine.ignore(keys[&conn], name));
                let expected = model.ignore(conn, tube).map_or(Ignored::Last, Ignored::Watching);
                assert_eq!(answer, expected);
            }
            Op::Put { conn, pri, delay, ttr, tags } => {
                let client = keys[&conn];
                engine.mark_producer(client);
                let id = engine.next_id();
                assert_eq!(id.0, model.take_id(conn));
                let text = tags.text();
                let tags_key = beanring::values::tags::Tags::new(text.as_bytes())
                    .and_then(|tags| engine.store_tags(tags));
                let bytes = body(id.0);
                let body_bytes = bytes.len() as u64 - 2;
                let stored = match tags_key.and_then(|tags_key| engine.repeat(client, tags_key, pri, now)) {
                    Some(repeated) => Stored::Repeated(repeated),
                    None if !tags_key.is_none_or(|tags_key| engine.admits_key(client, tags_key)) => {
                        Stored::Refused
                    }
                    None if engine.admits(client, 1, body_bytes).is_err() => Stored::Refused,
                    None => Stored::Job,
                };
                assert_eq!(stored, model.store(conn, id.0, pri, [delay, ttr], tags, body_bytes));
                if stored != Stored::Job {
                    engine.free_tags(tags_key);
                } else {
                    let ttr = engine.ttr_of_put(client, ttr);
                    let mut slot = engine.bodies_mut().allocate(bytes.len() as u32).expect("there is memory");
                    engine.bodies_mut().bytes_mut(&mut slot).copy_from_slice(&bytes);
                    engine.put(client, NewJob { id, pri, delay, ttr, body: slot, tags_key }, now);
                }
            }
            Op::Reserve { conn, seconds } => {
                let patience = seconds.map(Seconds::span);
                let answer = match engine.reserve(keys[&conn], patience, now) {
                    Reserved::Job(job) => Reserve::Job(id_of(engine, job)),
                    Reserved::Drawn(job) => {
                        assert_eq!(model.reserve(conn, patience), Reserve::Draw);
                        return model.draw(conn, id_of(engine, job));
                    }
                    Reserved::DeadlineSoon => Reserve::DeadlineSoon,
                    Reserved::TimedOut => Reserve::TimedOut,
                    Reserved::Waiting => Reserve::Waiting,
                };
                assert_eq!(answer, model.reserve(conn, patience));
            }
            Op::ReserveBatch { conn, count } => {
                let at_once = Some(Span::ZERO);
                let expected = model.reserve(conn, at_once);
                let first = match engine.reserve(keys[&conn], at_once, now) {
                    Reserved::Job(job) | Reserved::Drawn(job) => job,
                    _ => return assert!(matches!(expected, Reserve::TimedOut | Reserve::DeadlineSoon)),
                };
                let mut jobs = vec![first];
                engine.reserve_more(keys[&conn], BatchRoom::new(count + 1), true, now, &mut jobs);
                let ids: Vec<u64> = jobs.into_iter().map(|job| id_of(engine, job)).collect();
                if expected == Reserve::Draw {
                    return model.draw_batch(conn, &ids, count + 1, |_| true);
                }
                assert_eq!(Reserve::Job(ids[0]), expected);
                assert_eq!(ids[1..], model.reserve_more(conn, count, |_| true));
            }
            Op::ReserveJob { conn, id } => {
                let answer = engine.reserve_job(keys[&conn], JobId(id), now).map(|job| id_of(engine, job));
                assert_eq!(answer, model.reserve_job(conn, id).then_some(id));
            }
            Op::WaitJob { conn, id, seconds } => {
                let patience = seconds.span();
                let answer = engine.wait_job(keys[&conn], JobId(id), patience, now);
                assert_eq!(answer, model.wait_job(conn, id, patience));
            }
            Op::Delete { conn, id } => {
                assert_eq!(engine.delete(keys[&conn], JobId(id), now), model.delete(conn, id));
            }
            Op::DeleteBatch { conn, ids } => {
                let answer = engine.delete_batch(keys[&conn], ids.into_iter().map(JobId), now);
                assert_eq!(answer, model.delete_batch(conn, &ids));
            }
            Op::Release { conn, id, pri, delay } => {
                let answer = engine.release(keys[&conn], JobId(id), pri, delay, now);
                assert_eq!(answer, model.release(conn, id, pri, delay));
            }
            Op::Bury { conn, id, pri } => {
                assert_eq!(engine.bury(keys[&conn], JobId(id), pri, now), model.bury(conn, id, pri));
            }
            Op::Touch { conn, id } => {
                assert_eq!(engine.touch(keys[&conn], JobId(id), now), model.touch(conn, id));
            }
            Op::Kick { conn, bound } => {
                let answer = engine.kick(keys[&conn], bound, now);
                let expected = Some(model.kick(conn, bound));
                self.expect_moved(conn, answer, |count| count, expected);
            }
            Op::Flush { conn, tube } => {
                let answer = named(tube, |name| engine.flush(keys[&conn], name, now));
                let expected = model.flush(tube);
                self.expect_moved(conn, answer, |count| count, expected);
            }
            Op::FlushKeys { conn, tube } => {
                let answer = named(tube, |name| engine.flush_keys(keys[&conn], name));
                assert_eq!(answer, Begun::Done(model.flush_keys(tube)));
            }
            Op::MoveJob { id, tube } => {
                let answer = named(tube, |name| engine.move_job(JobId(id), name, now));
                assert_eq!(answer, model.move_job(id, tube));
            }
            Op::MoveJobs { conn, from, state, to, bound } => {
                let answer = named(from, |from| {
                    named(to, |to| engine.move_jobs(keys[&conn], [from, to], state, bound, now))
                });
                let expected = model.move_jobs(from, state, to, bound);
                self.expect_moved(conn, answer, |moved: Moved| moved.count, expected);
            }
            Op::Note { conn, id, bytes } => {
                let text = [vec![b'n'; bytes], b"\r\n".to_vec()].concat();
                let slot = engine.bodies_mut().store(&text).expect("there is memory");
                let is_noted = engine.note(keys[&conn], JobId(id), slot, now).is_ok();
                assert_eq!(is_noted, model.note(conn, id, &text[..bytes]));
            }
            Op::KickJob { id } => assert_eq!(engine.kick_job(JobId(id), now), model.kick_job(id)),
            Op::Rule { tube, key, value } => {
                let value = value.map(|value| value.text(key, name_of)).unwrap_or_else(|| "0".to_owned());
                let rule = named(tube, |name| {
                    let rule = Rule::parse(name, key, value.as_bytes()).expect("a valid rule");
                    engine.set_rule(name, rule, now);
                    Value::of(rule.value(), number_of_tube)
                });
                model.set_rule(tube, key, rule);
                // Jobs that have expired by the new rule are deleted at once.
                model.pass(now);
            }
            Op::Pause { tube, seconds } => {
                let length = seconds.span();
                let answer = named(tube, |name| engine.pause(name, length, now));
                assert_eq!(answer, model.pause(tube, length));
            }
            Op::Peek { conn } => {
                let client = keys[&conn];
                let ready = engine.peek_ready(client);
                let id = |job: JobKey| id_of(engine, job);
                assert_eq!(ready.map(id), model.peek_ready(conn));
                assert_eq!(engine.peek_delayed(client).map(id), model.peek_delayed(conn));
                assert_eq!(engine.peek_buried(client).map(id), model.peek_buried(conn));
                assert_eq!(engine.peek_reserved(client).map(id), model.peek_reserved(conn));
            }
            Op::List { conn, tube, state, limit } => self.list(conn, tube, state, limit),
            Op::Pass { to } => {
                while let Some(at) = self.engine.next_deadline().filter(|&at| at <= to) {
                    self.settle(at.max(self.model.now));
                }
                self.settle(to);
                self.model.pass(to);
            }
            Op::Jump { to } => {
                self.settle(to);
                // The engine now handles what was due since then.
                self.model.now = to;
                self.model.pass(to);
            }
        }
    }

    /// Asserts how many jobs a command has moved. The answer may come late.
    fn expect_moved<T>(&mut self, conn: Conn, answer: Begun<T>, count: fn(T) -> u32, expected: Option<u32>) {
        match answer {
            Begun::Done(moved) => assert_eq!(Some(count(moved)), expected),
            Begun::NoTube => assert_eq!(expected, None),
            Begun::Working => {
                self.settle(self.model.now);
                assert_eq!(self.moved.take(), Some((conn, expected.expect("there are jobs"))));
            }
        }
    }

    /// Lists the jobs of a tube page by page.
    fn list(&mut self, conn: Conn, tube: Name, state: JobState, limit: u32) {
        let mut after = 0;
        loop {
            let query = PageQuery { state, after: JobId(after), limit };
            let answer = named(tube, |name| self.engine.list_jobs(self.keys[&conn], name, query));
            let expected = self.model.list_jobs(tube, state, after, limit);
            let page = match answer {
                Begun::NoTube => return assert_eq!(expected, None),
                Begun::Done(page) => self.ids_of(&page),
                Begun::Working => {
                    self.settle(self.model.now);
                    self.page.take().expect("a list has an end")
                }
            };
            assert_eq!(Some(&page), expected.as_ref(), "jobs after {after}");
            match page.last() {
                Some(&last) => after = last,
                None => return,
            }
        }
    }

    fn ids_of(&self, page: &JobPage) -> Vec<u64> {
        page.jobs.iter().map(|&job| id_of(&self.engine, job)).collect()
    }

    /// Runs all steps of the engine that are due. Collects notices and changes after each.
    fn settle(&mut self, now: Time) {
        self.gather();
        while self.engine.next_deadline().is_some_and(|at| at <= now) {
            let is_done = !self.engine.step(now);
            self.gather();
            let is_due = self.engine.next_deadline().is_some_and(|at| at <= now);
            assert!(!(is_done && is_due), "nothing is due after the last step");
        }
    }

    fn gather(&mut self) {
        self.ledger.fold(&mut self.engine);
        while let Some(notice) = self.engine.next_notice() {
            let (conn, told) = match notice {
                Notice::Reserved(conn, job) => (conn, Told::Reserved(id_of(&self.engine, job))),
                Notice::TimedOut(conn) => (conn, Told::TimedOut),
                Notice::DeadlineSoon(conn) => (conn, Told::DeadlineSoon),
                Notice::JobEnded(conn, end) => (conn, Told::JobEnded(end)),
                Notice::Listed(_, page) => {
                    let page = self.ids_of(&page);
                    assert!(self.page.replace(page).is_none(), "one at a time");
                    continue;
                }
                Notice::Kicked(conn, count)
                | Notice::Flushed(conn, count)
                | Notice::Moved(conn, Moved { count, .. }) => {
                    assert!(self.moved.replace((conn.slot, count)).is_none(), "one at a time");
                    continue;
                }
            };
            self.told.push((conn.slot, told));
        }
    }

    fn compare(&mut self) {
        self.engine.check();
        self.compare_tubes();
        self.compare_clients();
        self.model.compare(&self.engine, name_of);
        for job in &self.model.jobs {
            let key = self.engine.jobs().find(JobId(job.id)).expect("the engine has the jobs of the model");
            assert_eq!(self.engine.body(key), body(job.id), "job {}", job.id);
        }
        assert!(self.moved.is_none(), "a kick or a flush has one notice");
        for group in 0..4 {
            let name = format!("g{group}");
            let name = TubeName::new(name.as_bytes()).expect("a valid name");
            let mut ahead: Vec<u8> = self.engine.groups_ahead(name).map(number_of_key).collect();
            ahead.sort();
            let found = self.engine.group_stats(name).map(|stats| (stats.members, stats.waiting_jobs, ahead));
            assert_eq!(found, self.model.group(group), "group {group}");
        }
        let KeyStats { kept, kept_bytes, promised_bytes, refusals, drops } = self.engine.key_stats();
        assert_eq!(kept, self.model.kept_keys().len());
        assert_eq!((kept_bytes, promised_bytes), self.model.keys_bytes(), "the memory of keys");
        assert_eq!((refusals, drops), (self.model.key_refusals, 0), "a promised key is kept");
        assert_eq!(self.engine.rule_totals(), self.model.rule_totals, "what rules have led to");
        for (&tube, ruled) in &self.model.rules {
            let counts = named(tube, |name| self.engine.rules_of(name).map(|(_, counts)| counts));
            assert_eq!(counts, Some(ruled.counts), "the rules of tube {tube}");
        }
        assert_eq!(self.engine.ruled_tubes().count(), self.model.rules.len());
        assert_eq!(self.engine.tags_to_come(), 0, "every job with tags is put");
        let (deadline, due) = (self.engine.next_deadline(), self.model.next_due());
        assert!(due.is_none() || deadline.is_some_and(|at| Some(at) <= due), "{deadline:?} is after {due:?}");
        self.ledger.check(&self.model, name_of, body);
    }

    fn compare_tubes(&mut self) {
        for at in 0..self.model.tubes.len() {
            let (key, _) = self.engine.tubes().iter().nth(at).expect("the engine has the tubes of the model");
            self.model.tubes[at].key = key;
            let tube = &self.model.tubes[at];
            let now = self.model.now;
            let stats = self.engine.tube_stats(key, now);
            let jobs = [stats.ready, stats.reserved as usize, stats.delayed, stats.buried, stats.held];
            let clients = [stats.using as usize, stats.watching as usize, self.engine.tube_waiting(key)];
            let figures = (jobs, stats.urgent as usize, clients);
            assert_eq!(figures, self.model.tube_figures(tube.name), "{}", stats.name.as_str());
            let totals = [stats.total_jobs, stats.deletes, stats.pauses, stats.timeouts, stats.buries];
            let expected = [tube.total_jobs, tube.deletes, tube.pauses, tube.timeouts, tube.buries];
            assert_eq!(totals, expected, "{}", stats.name.as_str());
            let pause =
                tube.pause.map_or((Span::ZERO, Span::ZERO), |(until, length)| (length, until.since(now)));
            assert_eq!((stats.pause, stats.pause_left), pause, "{}", stats.name.as_str());
            assert_eq!(stats.oldest_ready, self.model.oldest_ready(tube.name), "{}", stats.name.as_str());
            let recent = tube.lapses.recent(now);
            for (kind, samples) in [LatencyKind::Queue, LatencyKind::Reserved].into_iter().zip(recent) {
                compare_percentiles(self.engine.tube_times(key, kind, now), &samples);
            }
            compare_sums(self.engine.tube_time_sum(key, LatencyKind::Queue), &tube.lapses.queue);
            compare_sums(self.engine.tube_time_sum(key, LatencyKind::Reserved), &tube.lapses.reserved);
        }
    }

    fn compare_clients(&self) {
        let name = |tube| self.engine.tubes()[tube].name().as_str().to_owned();
        for client in &self.model.clients {
            let key = self.keys[&client.conn];
            let record = self.engine.clients().get(key);
            assert_eq!(record.is_waiting(), client.wait.is_some(), "client {}", client.conn);
            assert_eq!(name(record.used), name_of(client.used), "client {}", client.conn);
            let watched = self.engine.clients().watched(key).map(name);
            let expected = client.watched.iter().map(|&tube| name_of(tube));
            assert!(watched.eq(expected), "the order of list-tubes-watched of client {}", client.conn);
        }
    }
}

/// Percentiles are within 12 % and half a microsecond, and at least 1 us.
fn compare_percentiles(percentiles: Percentiles, samples: &[u64]) {
    let mut sorted = samples.to_vec();
    sorted.sort();
    for (percent, span) in [50, 95, 99].into_iter().zip(percentiles.in_order()) {
        let rank = (sorted.len() * percent).div_ceil(100);
        let Some(&sample) = rank.checked_sub(1).and_then(|at| sorted.get(at)) else {
            assert_eq!(span, Span::ZERO, "there are no samples");
            continue;
        };
        let (reported, sample) = (span.as_nanos() as f64, sample as f64);
        let is_near =
            (reported - sample).abs() <= 0.12 * sample + 500.0 || (reported == 1000.0 && sample < 1000.0);
        assert!(is_near, "p{percent} is {sample} ns, not {reported}");
    }
}

fn compare_sums(sum: TimeSum, samples: &[u64]) {
    let exact = samples.iter().map(|&sample| u128::from(sample)).sum::<u128>() as f64;
    assert_eq!(sum.count, samples.len() as u64);
    assert!((sum.ns - exact).abs() <= exact * 1e-9, "{} ns, not {exact}", sum.ns);
}

fn id_of(engine: &Engine, job: JobKey) -> u64 {
    engine.jobs().get(job).id.0
}

/// Every other name is longer, so that keys grow with some moves.
fn name_of(tube: Name) -> String {
    match tube {
        0 => "default".into(),
        _ if tube.is_multiple_of(2) => format!("tube-{tube}"),
        _ => format!("tube-{tube:030}"),
    }
}

fn named<R>(tube: Name, call: impl FnOnce(TubeName<'_>) -> R) -> R {
    call(TubeName::new(name_of(tube).as_bytes()).expect("the names are valid"))
}

fn body(id: u64) -> Vec<u8> {
    format!("{}\r\n", "x".repeat((id % 40) as usize)).into_bytes()
}
