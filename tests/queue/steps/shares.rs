//! What commands set off for other clients is shared out, however many of them come at once.

use beanring::queue::{BACKGROUND_STEPS, BatchRoom, Begun, JobState, Notice, PageQuery, Reserved};
use beanring::values::budget::{Cost, RUN_STEPS};
use beanring::values::ids::JobId;
use beanring::values::reserve_mode::ReserveMode;
use beanring::values::tube_name::TubeName;

use super::bench::{Bench, MOVED_MAX, USUAL, named};
use super::iteration::run_iterations;
use super::{batch, in_memory};
use beanring_testkit::peer::Peer;

#[test]
fn waiting_batches_of_many_watches_take_turns() {
    const CLIENTS: usize = 200;
    const WATCHED: usize = 3000;
    // Heads that a step looks at.
    const HEADS_PER_STEP: u32 = 32;
    let mut bench = in_memory();
    let producer = bench.open();
    for number in 0..WATCHED {
        bench.ask(producer, &format!("use other-{number}\r\nput 0 0 60 1\r\nx\r\n"));
    }
    bench.ask(producer, &format!("use own-0\r\n{}", "put 0 3600 60 1\r\nx\r\n".repeat(CLIENTS)));
    let watches: String = (0..WATCHED).map(|number| format!("watch own-{number}\r\n")).collect();
    for number in 0..CLIENTS {
        let worker = bench.open();
        let mode = if number % 2 == 0 { "" } else { "reserve-mode weighted-fair\r\n" };
        bench.ask(worker, &format!("{mode}{watches}ignore default\r\nreserve-batch 2 600\r\n"));
    }
    bench.receive_at_once(producer, &format!("kick {CLIENTS}\r\n"));
    let each = WATCHED as u32 / HEADS_PER_STEP;
    let (most, other) = ((RUN_STEPS / each) as usize + 1, bench.open());
    let answered = run_iterations(&mut bench, other, most, |bench| bench.received("RESERVED_BATCH"));
    assert_eq!(answered, CLIENTS, "every client has its job");
}

/// More tubes have a job than the batch takes, and jobs of one key come first.
#[test]
fn a_batch_goes_on_to_tubes_behind_those_of_a_full_key() {
    let mut bench = Bench::new();
    let worker = bench.connect();
    let mut plain = Vec::new();
    for number in 0..60 {
        bench.use_and_watch(worker, &format!("tube-{number}"));
        if number < 40 {
            bench.put_tagged(worker, number, "con:key");
        } else {
            plain.push(bench.put(worker, USUAL + number, 0));
        }
    }
    assert_eq!(batch(&mut bench, worker, 10)[1..], plain[..9]);
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
            bench.use_and_watch(worker, &format!("tube-{number}"));
            bench.put(worker, number % 977, 0);
        }
        bench.engine.set_reserve_mode(worker, mode);
        bench.spent();
        let reserved = bench.reserve_now(worker);
        bench.take_steps(TUBES / 32 + 2 + each);
        let (Reserved::Job(first) | Reserved::Drawn(first)) = reserved else { panic!("there is a job") };
        let mut jobs = vec![first];
        bench.engine.reserve_more(worker, BatchRoom::new(1000), true, bench.now, &mut jobs);
        assert_eq!(jobs.len(), 1000);
        bench.take_steps(TUBES / 32 + 2 + each * 1000);
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
        bench.put_tagged(producer, USUAL, &format!("con:key-{key}"));
        bench.reserve_id(holder);
    }
    for number in 0..TUBES {
        bench.engine.use_tube(producer, named(&format!("tube-{number}")));
        for key in 0..KEYS {
            bench.put_tagged(producer, USUAL, &format!("con:key-{key}"));
        }
    }
    bench.spent();
    while bench.step() {}
    bench.spent();
    for key in 0..KEYS {
        bench.put_tagged(producer, USUAL, &format!("con:key-{key}:1000"));
    }
    bench.take_steps(BACKGROUND_STEPS + (2 + Cost::TAGS.steps()) * KEYS);
    bench.finish(MOVED_MAX);
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
    let is_kicked =
        |bench: &mut Bench| bench.notices().iter().any(|notice| matches!(notice, Notice::Kicked(_, KICKED)));
    while !is_kicked(&mut bench) {
        bench.step();
        bench.spent();
        turns += 1;
    }
    assert!(turns <= KICKED / (BACKGROUND_STEPS / 4) + 2, "the kick takes {turns} turns");
}
