//! What commands set off for other clients is shared out, however many of them come at once.

use beanring::queue::{BACKGROUND_STEPS, BatchRoom, Begun, JobState, NewJob, Notice, PageQuery, Reserved};
use beanring::time::{Seconds, Span};
use beanring::values::ids::{ClientKey, JobId};
use beanring::values::limits::RUN_STEPS;
use beanring::values::reserve_mode::ReserveMode;
use beanring::values::tags::Tags;
use beanring::values::tube_name::TubeName;

use super::iteration::Loop;
use super::{Bench, USUAL};

fn name(text: &str) -> TubeName<'_> {
    TubeName::new(text.as_bytes()).expect("a valid name")
}

fn put_tagged(bench: &mut Bench, client: ClientKey, pri: u32, tags: &str) -> JobId {
    let tags = Tags::new(tags.as_bytes()).expect("the tags are valid");
    let body = bench.engine.bodies_mut().allocate(2).expect("there is memory");
    let (id, tags_key) = (bench.engine.next_id(), bench.engine.store_tags(tags));
    let new = NewJob { id, pri, delay: Seconds::ZERO, ttr: Seconds::whole(1000), body, tags_key };
    bench.engine.put(client, new, bench.now);
    id
}

#[test]
fn waiting_batches_of_many_watches_take_turns() {
    const CLIENTS: usize = 200;
    const WATCHED: usize = 3000;
    // Heads that a step looks at.
    const HEADS_PER_STEP: u32 = 32;
    let mut bench = Loop::new();
    let producer = bench.connect();
    for number in 0..WATCHED {
        bench.settle(producer, &format!("use other-{number}\r\nput 0 0 60 1\r\nx\r\n"));
    }
    bench.settle(producer, "use own-0\r\n");
    for _ in 0..CLIENTS {
        bench.settle(producer, "put 0 3600 60 1\r\nx\r\n");
    }
    let watches: String = (0..WATCHED).map(|number| format!("watch own-{number}\r\n")).collect();
    for number in 0..CLIENTS {
        let worker = bench.connect();
        let mode = if number % 2 == 0 { "" } else { "reserve-mode weighted-fair\r\n" };
        bench.settle(worker, &format!("{mode}{watches}ignore default\r\nreserve-batch 2 600\r\n"));
    }
    bench.sent.clear();
    bench.receive(producer, &format!("kick {CLIENTS}\r\n"));
    let each = WATCHED as u32 / HEADS_PER_STEP;
    let (mut answered, mut turns) = (0, 0);
    while bench.is_busy() {
        bench.turn();
        let replies = bench.replies("RESERVED_BATCH");
        assert!(replies - answered <= (RUN_STEPS / each) as usize + 1, "{} in a turn", replies - answered);
        (answered, turns) = (replies, turns + 1);
    }
    assert_eq!(answered, CLIENTS, "every client has its job after {turns} turns");
    bench.server.check();
}

/// More tubes have a job than the batch takes, and jobs of one key come first.
#[test]
fn a_batch_goes_on_to_tubes_behind_those_of_a_full_key() {
    let mut bench = Bench::new();
    let worker = bench.connect();
    let mut plain = Vec::new();
    for number in 0..60 {
        let tube = format!("tube-{number}");
        bench.engine.use_tube(worker, name(&tube));
        bench.engine.watch(worker, name(&tube));
        if number < 40 {
            put_tagged(&mut bench, worker, number, "con:key");
        } else {
            plain.push(bench.put(worker, USUAL + number, 0));
        }
    }
    let Reserved::Job(first) = bench.engine.reserve(worker, Some(Span::ZERO), bench.now) else {
        panic!("there is a job");
    };
    let mut jobs = vec![first];
    bench.engine.reserve_more(worker, BatchRoom::new(10), true, bench.now, &mut jobs);
    let ids: Vec<JobId> = jobs[1..].iter().map(|&job| bench.engine.jobs().get(job).id).collect();
    assert_eq!(ids, plain[..9]);
    bench.engine.check();
}

#[test]
fn a_reserve_of_sixty_thousand_ready_tubes_takes_few_steps() {
    const TUBES: u32 = 60_000;
    // A draw looks at one block of 64 tubes, and adds it up again.
    for (mode, each) in
        [(ReserveMode::Default, 1), (ReserveMode::Weighted, 5), (ReserveMode::WeightedFair, 5)]
    {
        let mut bench = Bench::new();
        let worker = bench.connect();
        for number in 0..TUBES {
            let tube = format!("tube-{number}");
            bench.engine.use_tube(worker, name(&tube));
            bench.engine.watch(worker, name(&tube));
            bench.put(worker, number % 977, 0);
        }
        bench.engine.set_reserve_mode(worker, mode);
        bench.engine.take_steps();
        let reserved = bench.engine.reserve(worker, Some(Span::ZERO), bench.now);
        let steps = bench.engine.take_steps();
        assert!(steps <= TUBES / 32 + 2 + each, "{steps} steps in {mode:?}");
        let (Reserved::Job(first) | Reserved::Drawn(first)) = reserved else { panic!("there is a job") };
        let mut jobs = vec![first];
        bench.engine.reserve_more(worker, BatchRoom::new(1000), true, bench.now, &mut jobs);
        assert_eq!(jobs.len(), 1000);
        let steps = bench.engine.take_steps();
        assert!(steps <= TUBES / 32 + 2 + each * 1000, "{steps} steps for a batch in {mode:?}");
    }
}

/// Each job raises the limit of a key with jobs in very many tubes.
#[test]
fn puts_of_one_iteration_share_the_steps_of_lanes() {
    const KEYS: u32 = 300;
    const TUBES: u32 = 100;
    let mut bench = Bench::new();
    let (producer, holder) = (bench.connect(), bench.connect());
    for key in 0..KEYS {
        put_tagged(&mut bench, producer, USUAL, &format!("con:key-{key}"));
        assert!(matches!(bench.reserve(holder), Reserved::Job(_)));
    }
    for number in 0..TUBES {
        let tube = format!("tube-{number}");
        bench.engine.use_tube(producer, name(&tube));
        for key in 0..KEYS {
            put_tagged(&mut bench, producer, USUAL, &format!("con:key-{key}"));
        }
    }
    bench.engine.take_steps();
    while bench.engine.step(bench.now) {}
    bench.engine.take_steps();
    for key in 0..KEYS {
        put_tagged(&mut bench, producer, USUAL, &format!("con:key-{key}:1000"));
    }
    let steps = bench.engine.take_steps();
    assert!(steps <= BACKGROUND_STEPS + 2 * KEYS, "{KEYS} puts take {steps} steps");
    while bench.engine.next_deadline().is_some_and(|at| at <= bench.now) {
        bench.engine.step(bench.now);
        let steps = bench.engine.take_steps();
        assert!(steps <= 2 * BACKGROUND_STEPS, "a step takes {steps} steps");
    }
    bench.engine.check();
}

#[test]
fn a_kick_beside_very_many_lists_of_jobs_takes_every_other_turn() {
    const JOBS: u32 = 100_000;
    const KICKED: u32 = 5000;
    let mut bench = Bench::new();
    let kicker = bench.connect();
    bench.put_many(kicker, JOBS, 1000);
    let query = PageQuery { state: JobState::Delayed, after: JobId(0), limit: 1000 };
    for _ in 0..500 {
        let reader = bench.connect();
        assert_eq!(bench.engine.list_jobs(reader, TubeName::DEFAULT, query), Begun::Working);
    }
    assert_eq!(bench.engine.kick(kicker, KICKED, bench.now), Begun::Working);
    let mut turns = 0;
    loop {
        bench.engine.step(bench.now);
        bench.engine.take_steps();
        turns += 1;
        let kicked = |notice| matches!(notice, Notice::Kicked(_, KICKED));
        if std::iter::from_fn(|| bench.engine.next_notice()).any(kicked) {
            break;
        }
    }
    assert!(turns <= KICKED / (BACKGROUND_STEPS / 4) + 2, "the kick takes {turns} turns");
}
