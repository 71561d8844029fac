//! Large commands, and many events at one instant, are handled in bounded steps, and other clients are served between them.
//! The tests count steps and read no clock.

mod bench;
mod closing;
mod concurrency;
mod groups;
mod iteration;
mod job_waits;
mod kept_keys;
mod late;
mod put_batch;
mod rules;
mod shares;
mod weights;
mod wide;

use beanring::queue::{
    BACKGROUND_STEPS, BatchRoom, Begun, Change, JobMoved, JobState, LogRoom, MoveRefusal, Moved, Notice,
    PageQuery, Reserved,
};
use beanring::time::Span;
use beanring::values::ids::{ClientKey, JobId};
use beanring::values::limits::BATCH_BODY_BYTES_MAX;
use beanring::values::tube_name::TubeName;

use beanring_testkit::config::config;
use beanring_testkit::in_memory::{Cut, InMemoryServer};
use bench::{Bench, MOVED_MAX, START, URGENT, USUAL, assert_steps, named};

/// A server with very many clients, tubes or jobs.
fn in_memory() -> InMemoryServer {
    InMemoryServer::with(config(2 << 20), Cut::Whole).unchecked()
}

#[test]
fn a_kick_of_a_million_delayed_jobs() {
    const JOBS: u32 = 1_000_000;
    let mut bench = Bench::new();
    let kicker = bench.connect();
    bench.put_many(kicker, JOBS, 1000);
    assert_eq!(bench.engine.kick(kicker, u32::MAX, bench.now), Begun::Working);
    assert!(bench.ready() <= MOVED_MAX);
    bench.run_in_steps(JOBS, Bench::ready);
    assert_eq!(bench.ready(), JOBS);
    assert!(matches!(bench.only_notice(), Some(Notice::Kicked(_, JOBS))));
}

#[test]
fn a_flush_of_a_million_jobs_in_every_state() {
    const JOBS: u32 = 1_000_000;
    let mut bench = Bench::new();
    let (flusher, holder) = (bench.connect(), bench.connect());
    bench.put_many(flusher, JOBS / 2, 0);
    (0..10).for_each(|_| _ = bench.reserve_id(holder));
    bench.bury_many(holder, JOBS / 4 - 10);
    bench.put_many(flusher, JOBS / 2, 1000);
    let flushed = JOBS - 10;
    let deletes = |bench: &Bench| bench.engine.totals().deletes as u32;
    assert_eq!(bench.engine.flush(flusher, TubeName::DEFAULT, bench.now), Begun::Working);
    assert!(deletes(&bench) <= MOVED_MAX);
    let late: Vec<JobId> =
        [0, 500, 1500].into_iter().map(|delay| bench.put(bench.amid, URGENT + 1, delay)).collect();
    let steps = bench.run_all_steps(deletes);
    assert_steps(steps, flushed);
    // The two other clients delete a job each between the steps.
    assert_eq!(deletes(&bench), flushed + 2 * steps);
    assert!(matches!(bench.only_notice(), Some(Notice::Flushed(_, count)) if count == flushed));
    assert_eq!(bench.reserved(), 10);
    assert_eq!(bench.engine.jobs().len(), 10 + late.len());
    assert!(late.into_iter().all(|id| bench.engine.jobs().find(id).is_some()), "later jobs stay");
}

#[test]
fn a_move_of_a_million_jobs_in_every_state() {
    const JOBS: u32 = 1_000_000;
    let mut bench = Bench::new();
    let (mover, holder) = (bench.connect(), bench.connect());
    let to = named("to");
    bench.put_many(mover, JOBS / 2, 0);
    bench.bury_many(holder, JOBS / 4);
    bench.put_many(mover, JOBS / 2, 1000);
    // A ready or delayed job counts as several.
    for (state, count, each) in
        [(JobState::Ready, JOBS / 4, 8), (JobState::Buried, JOBS / 4, 1), (JobState::Delayed, JOBS / 2, 8)]
    {
        let there = |bench: &Bench| {
            let tube = bench.engine.tubes().find(to).map(|tube| bench.engine.tube_stats(tube, bench.now));
            tube.map_or(0, |stats| (stats.ready + stats.buried + stats.delayed) as u32)
        };
        let before = there(&bench);
        let tubes = [TubeName::DEFAULT, to];
        assert_eq!(bench.engine.move_jobs(mover, tubes, state, count, bench.now), Begun::Working);
        assert!(there(&bench) - before <= MOVED_MAX);
        bench.run_in_steps(count * each, there);
        assert_eq!(there(&bench) - before, count);
        assert!(
            matches!(bench.only_notice(), Some(Notice::Moved(_, Moved { count: moved, .. })) if moved == count)
        );
    }
}

#[test]
fn a_move_ends_where_the_job_log_has_no_room() {
    let mut bench = Bench::new();
    let mover = bench.connect();
    let (short, long) = (named("to"), named("the-longer-name"));
    let first = bench.put_job(mover, URGENT, 0, 10, "");
    let large = bench.put_job(mover, USUAL, 0, 1000, "");
    bench.engine.set_log_room(LogRoom { job_bytes_max: 500, is_full: false });
    let tubes = [TubeName::DEFAULT, long];
    let moved = Moved { count: 1, stop: Some((large, MoveRefusal::NoRoom)) };
    assert_eq!(bench.engine.move_jobs(mover, tubes, JobState::Ready, 9, bench.now), Begun::Done(moved));
    assert_eq!(bench.engine.move_job(large, long, bench.now), JobMoved::Refused(MoveRefusal::NoRoom));
    assert_eq!(bench.engine.move_job(large, short, bench.now), JobMoved::Done);
    bench.engine.set_log_room(LogRoom { job_bytes_max: 500, is_full: true });
    assert_eq!(bench.engine.move_job(first, TubeName::DEFAULT, bench.now), JobMoved::Done);
    assert_eq!(bench.engine.move_job(first, long, bench.now), JobMoved::Refused(MoveRefusal::NoRoom));
    assert!(bench.engine.tubes().find(long).is_none(), "no tube is created");
}

/// Lists all jobs of `default` in a state, page by page. Returns their ids and the number of steps per page.
fn list_all(bench: &mut Bench, client: ClientKey, state: JobState) -> (Vec<JobId>, u32) {
    let (mut ids, mut steps, mut pages) = (Vec::new(), 0, 0);
    loop {
        let query = PageQuery { state, after: ids.last().copied().unwrap_or(JobId(0)), limit: 1000 };
        let page = match bench.engine.list_jobs(client, TubeName::DEFAULT, query) {
            Begun::Done(page) => page,
            Begun::Working => {
                steps += bench.run_all_steps(|_| 0);
                let Some(Notice::Listed(_, page)) = bench.only_notice() else { panic!("there is a page") };
                *page
            }
            Begun::NoTube => panic!("there is a tube"),
        };
        pages += 1;
        if page.jobs.is_empty() {
            return (ids, steps / pages);
        }
        ids.extend(bench.ids_of(&page.jobs));
    }
}

#[test]
fn a_list_of_a_part_of_a_million_jobs() {
    const JOBS: u32 = 1_000_000;
    let mut bench = Bench::new();
    let (lister, holder) = (bench.connect(), bench.connect());
    bench.put_many(lister, JOBS, 0);
    (0..1500).for_each(|_| _ = bench.reserve_id(holder));
    bench.bury_many(holder, 1500);
    for state in [JobState::Reserved, JobState::Buried] {
        let (ids, steps) = list_all(&mut bench, lister, state);
        assert_eq!(ids.len(), 1500);
        assert!(ids.is_sorted_by(|one, other| one < other));
        assert!(ids.iter().all(|&id| bench.state_of(id) == state));
        // Sixteen slots take a step, and background work half of those of a call. The last pages have no job to visit.
        let expected = JOBS / 16 / (BACKGROUND_STEPS / 2);
        assert!((expected / 2..=expected + 2).contains(&steps), "{steps} calls per page");
    }
    assert!(bench.spent() > 0);
}

#[test]
fn a_page_is_empty_only_at_the_end() {
    let mut bench = Bench::new();
    let lister = bench.connect();
    bench.put_many(bench.amid, 5000, 0);
    let query = |after| PageQuery { state: JobState::Ready, after: JobId(after), limit: 10 };
    let first = bench.engine.jobs().iter().map(|(_, job)| job.id).min().expect("there are jobs");
    assert_eq!(bench.engine.list_jobs(lister, TubeName::DEFAULT, query(0)), Begun::Working);
    bench.step();
    // The jobs that are found first are deleted during the search.
    for id in first.0..first.0 + 3000 {
        assert!(bench.engine.delete(bench.amid, JobId(id), bench.now));
    }
    while bench.step() {}
    let Some(Notice::Listed(_, page)) = bench.engine.next_notice() else { panic!("there is a page") };
    let ids = bench.ids_of(&page.jobs);
    assert!(ids.iter().map(|id| id.0).eq((first.0 + 3000..).take(10)), "{ids:?}");
}

#[test]
fn a_list_ends_with_its_client() {
    let mut bench = Bench::new();
    let lister = bench.connect();
    let name = named("abandoned");
    bench.engine.use_tube(lister, name);
    bench.put_many(lister, 5000, 0);
    let memory = bench.engine.memory_bytes();
    let query = PageQuery { state: JobState::Ready, after: JobId(0), limit: 1000 };
    assert_eq!(bench.engine.list_jobs(lister, name, query), Begun::Working);
    assert!(bench.engine.memory_bytes() >= memory + 16_000, "the memory of the page is counted");
    bench.engine.disconnect(lister, bench.now);
    let other = bench.connect();
    assert!(matches!(bench.engine.flush(other, name, bench.now), Begun::Working));
    while bench.step() {}
    assert!(matches!(bench.only_notice(), Some(Notice::Flushed(_, 5000))), "no notice has the page");
    assert!(bench.engine.tubes().find(name).is_none());
}

/// Reserves a batch, and returns the ids.
fn batch(bench: &mut Bench, client: ClientKey, count: usize) -> Vec<JobId> {
    let Reserved::Job(first) = bench.reserve_now(client) else { return Vec::new() };
    let mut jobs = vec![first];
    bench.engine.reserve_more(client, BatchRoom::new(count), true, bench.now, &mut jobs);
    bench.ids_of(&jobs)
}

#[test]
fn a_batch_of_a_thousand_looks_at_each_watched_tube_once() {
    const TUBES: u32 = 500;
    let mut bench = Bench::new();
    let worker = bench.connect();
    for tube in 0..TUBES {
        bench.use_and_watch(worker, &format!("tube-{tube}"));
        for pri in [tube, TUBES - tube, 7] {
            bench.put(worker, pri, 0);
        }
    }
    let mut jobs: Vec<(u32, JobId)> = bench.engine.jobs().iter().map(|(_, job)| (job.pri, job.id)).collect();
    jobs.sort_unstable();
    bench.spent();
    let taken = batch(&mut bench, worker, 1000);
    let steps = bench.spent();
    assert!(taken.iter().eq(jobs[..1000].iter().map(|(_, id)| id)), "the most urgent jobs, in order");
    assert!((1000..=1000 + 2 * (TUBES + 2)).contains(&steps), "{steps} steps");
}

#[test]
fn the_bodies_of_a_batch_have_a_mebibyte_unless_the_first_is_larger() {
    let mut bench = Bench::new();
    let worker = bench.connect();
    let sizes = [BATCH_BODY_BYTES_MAX as u32 + 1, 600_000, BATCH_BODY_BYTES_MAX as u32 - 600_000, 1, 0];
    let ids = sizes.map(|body_bytes| bench.put_job(worker, USUAL, 0, body_bytes, ""));
    assert_eq!(batch(&mut bench, worker, 10), ids[..1]);
    assert_eq!(batch(&mut bench, worker, 10), ids[1..3]);
    assert_eq!(batch(&mut bench, worker, 10), ids[3..]);
    assert_eq!(batch(&mut bench, worker, 10), []);
}

#[test]
fn a_flush_of_a_disconnected_client_removes_the_tube() {
    let mut bench = Bench::new();
    let flusher = bench.connect();
    let name = named("abandoned");
    bench.engine.use_tube(flusher, name);
    bench.put_many(flusher, 10_000, 0);
    assert_eq!(bench.engine.flush(flusher, name, bench.now), Begun::Working);
    bench.engine.disconnect(flusher, bench.now);
    bench.run_all_steps(|_| 0);
    assert!(bench.engine.tubes().find(name).is_none());
    assert!(matches!(bench.only_notice(), Some(Notice::Flushed(_, 10_000))));
}

#[test]
fn a_flush_leaves_the_changes_of_a_step_to_the_job_log() {
    let mut bench = Bench::new();
    let (kicker, flusher) = (bench.connect(), bench.connect());
    bench.engine.record_changes(true);
    bench.put_many(kicker, 1000, 1000);
    assert_eq!(bench.engine.kick(kicker, 300, bench.now), Begun::Working);
    assert_eq!(bench.engine.flush(flusher, TubeName::DEFAULT, bench.now), Begun::Working);
    let mut changes = Vec::new();
    bench.engine.take_changes(&mut changes);
    while bench.is_due() {
        bench.step();
        changes.clear();
        bench.engine.take_changes(&mut changes);
        for change in &changes {
            if let Change::Kicked(job) = change {
                let found = bench.engine.jobs().find(bench.engine.jobs().get(*job).id);
                assert_eq!(found, Some(*job), "a kicked job is there until it is logged");
            }
        }
    }
    let notices = bench.notices();
    assert!(matches!(notices[..], [Notice::Kicked(_, 300), Notice::Flushed(_, 1000)]), "{notices:?}");
}

#[test]
fn a_kick_of_many_buried_jobs_leaves_jobs_that_are_buried_after_the_command() {
    const JOBS: u32 = 10_000;
    let mut bench = Bench::new();
    let kicker = bench.connect();
    bench.put_many(kicker, JOBS, 0);
    bench.bury_many(kicker, JOBS);
    assert_eq!(bench.engine.kick(kicker, u32::MAX, bench.now), Begun::Working);
    let id = bench.put(bench.amid, URGENT, 0);
    assert!(bench.engine.reserve_job(bench.amid, id, bench.now).is_some());
    assert!(bench.engine.bury(bench.amid, id, URGENT, bench.now));
    bench.run_all_steps(Bench::ready);
    assert!(matches!(bench.only_notice(), Some(Notice::Kicked(_, JOBS))));
    let left = bench.engine.peek_buried(kicker).expect("a job was buried after the command");
    assert_eq!(bench.engine.jobs().get(left).id, id);
}

#[test]
fn a_kick_of_a_disconnected_client_continues_in_a_tube_without_users() {
    const JOBS: u32 = 10_000;
    let mut bench = Bench::new();
    let kicker = bench.connect();
    bench.engine.use_tube(kicker, named("abandoned"));
    let first = bench.put(kicker, USUAL, 1000);
    bench.put_many(kicker, JOBS - 1, 1000);
    assert_eq!(bench.engine.kick(kicker, u32::MAX, bench.now), Begun::Working);
    bench.engine.disconnect(kicker, bench.now);
    for id in (first.0..).take(JOBS as usize) {
        assert!(bench.engine.delete(bench.amid, JobId(id), bench.now));
    }
    bench.run_all_steps(|_| 0);
    assert_eq!(bench.engine.tubes().len(), 2, "only default and the separate tube are left");
}

#[test]
fn a_disconnect_with_a_hundred_thousand_held_jobs() {
    const JOBS: u32 = 100_000;
    let mut bench = Bench::new();
    let holder = bench.connect();
    bench.put_many(holder, JOBS, 0);
    (0..JOBS).for_each(|_| _ = bench.reserve_id(holder));
    bench.engine.disconnect(holder, bench.now);
    assert!(bench.ready() <= MOVED_MAX);
    bench.run_in_steps(JOBS, Bench::ready);
    assert_eq!((bench.ready(), bench.reserved()), (JOBS, 0));
    assert!(bench.engine.jobs().iter().all(|(key, _)| {
        bench.engine.jobs().lifecycle(key).is_some_and(|lifecycle| lifecycle.counts.get().timeouts == 0)
    }));
}

#[test]
fn a_disconnect_with_ten_thousand_watches() {
    const TUBES: u32 = 10_000;
    let mut bench = Bench::new();
    let watcher = bench.connect();
    for tube in 0..TUBES {
        bench.engine.watch(watcher, named(&format!("tube-{tube}")));
    }
    assert_eq!(bench.engine.tubes().len() as u32, TUBES + 2);
    let gone = |bench: &Bench| TUBES + 2 - bench.engine.tubes().len() as u32;
    bench.engine.disconnect(watcher, bench.now);
    bench.run_in_steps(TUBES, gone);
    assert_eq!(gone(&bench), TUBES);
}

#[test]
fn a_million_delays_that_end_together() {
    const JOBS: u32 = 1_000_000;
    let mut bench = Bench::new();
    bench.put_many(bench.amid, JOBS, 10);
    assert_eq!(bench.engine.next_deadline(), Some(START + Span::from_secs(10)));
    bench.pass(Span::from_secs(10));
    bench.run_in_steps(JOBS, Bench::ready);
    assert_eq!(bench.ready(), JOBS);
}

#[test]
fn a_hundred_thousand_reservations_that_time_out_together() {
    const JOBS: u32 = 100_000;
    let mut bench = Bench::new();
    let holder = bench.connect();
    bench.put_many(holder, JOBS, 0);
    (0..JOBS).for_each(|_| _ = bench.reserve_id(holder));
    bench.pass(Span::from_secs(100));
    bench.run_in_steps(JOBS, Bench::ready);
    assert_eq!(bench.engine.totals().timeouts, u64::from(JOBS));
}

/// Adds many jobs to a paused tube, and as many workers that wait for them. Returns the client that has put the jobs.
fn crowd_a_paused_tube(bench: &mut Bench, tube: &str, jobs: u32) -> ClientKey {
    let boss = bench.connect();
    bench.engine.use_tube(boss, named(tube));
    assert!(bench.engine.pause(named(tube), Span::from_secs(10), bench.now));
    bench.put_many(boss, jobs, 0);
    for _ in 0..jobs {
        let worker = bench.connect_to(tube);
        assert_eq!(bench.reserve(worker), Reserved::Waiting);
    }
    boss
}

#[test]
fn a_pause_that_ends_for_ten_thousand_workers() {
    const JOBS: u32 = 10_000;
    let mut bench = Bench::new();
    crowd_a_paused_tube(&mut bench, "paused", JOBS);
    bench.engine.check();
    bench.pass(Span::from_secs(10));
    bench.run_in_steps(JOBS, Bench::reserved);
    assert_eq!((bench.ready(), bench.reserved()), (0, JOBS));
    let slots = bench.reserved_by();
    assert_eq!(slots.len() as u32, JOBS);
    assert!(slots.is_sorted(), "the longest wait ends first");
}

#[test]
fn delays_that_end_with_the_pause_add_no_work_to_a_step() {
    const JOBS: u32 = 20_000;
    let mut bench = Bench::new();
    let boss = crowd_a_paused_tube(&mut bench, "paused", JOBS);
    bench.put_many(boss, JOBS, 10);
    bench.pass(Span::from_secs(10));
    bench.run_all_steps(Bench::reserved);
    assert_eq!((bench.ready(), bench.reserved()), (JOBS, JOBS));
}

#[test]
fn a_put_during_background_assignment_does_none_of_that_work() {
    const JOBS: u32 = 10_000;
    let mut bench = Bench::new();
    let boss = crowd_a_paused_tube(&mut bench, "paused", JOBS);
    assert!(bench.engine.pause(named("paused"), Span::ZERO, bench.now));
    let held = bench.reserved();
    assert!(held <= MOVED_MAX);
    bench.put_many(boss, 10, 0);
    assert!(bench.reserved() <= held + 10, "ten puts handed out {} jobs", bench.reserved() - held);
    bench.run_all_steps(Bench::reserved);
    assert_eq!((bench.ready(), bench.reserved()), (10, JOBS));
}

#[test]
fn a_client_that_reserves_during_background_assignment_waits_its_turn() {
    const JOBS: u32 = 1000;
    let mut bench = Bench::new();
    let boss = crowd_a_paused_tube(&mut bench, "paused", JOBS);
    bench.put_many(boss, 2, 0);
    let (patient, hasty) = (bench.connect_to("paused"), bench.connect_to("paused"));
    assert!(bench.engine.pause(named("paused"), Span::ZERO, bench.now));
    assert_eq!(bench.reserve(patient), Reserved::Waiting);
    let at_once = bench.reserve_now(hasty);
    assert!(matches!(at_once, Reserved::Job(_)), "a client that cannot wait gets a job");
    bench.run_all_steps(Bench::reserved);
    assert_eq!(bench.reserved_by().last(), Some(&bench.slot(patient)));
}

#[test]
fn the_pauses_of_many_tubes_end_together() {
    const TUBES: u32 = 100;
    const JOBS: u32 = 200;
    let mut bench = Bench::new();
    for tube in 0..TUBES {
        crowd_a_paused_tube(&mut bench, &format!("tube-{tube}"), JOBS);
    }
    bench.pass(Span::from_secs(10));
    bench.run_all_steps(Bench::reserved);
    assert_eq!((bench.ready(), bench.reserved()), (0, TUBES * JOBS));
}
