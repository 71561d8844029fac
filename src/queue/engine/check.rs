//! Recomputes every counter, link and index of the queue from the jobs and clients. For tests.
//!
//! Bounded by its caller: a test.

use std::collections::HashMap;

use super::Engine;
use crate::queue::long_work::Work;
use crate::queue::store::job::{JobState, Lifecycle, URGENT_BELOW};
use crate::queue::store::{JobTotals, Store};
use crate::time::Time;
use crate::values::ids::{JobKey, TubeSlot};

/// The counts of one tube, recomputed from the jobs and clients.
#[derive(Default, PartialEq, Eq, Debug)]
struct Tally {
    jobs: [usize; JobState::COUNT],
    urgent: u32,
    using: u32,
    watching: u32,
    narrow_waiting: usize,
    wide: usize,
    pins: u32,
    body_bytes: u64,
}

/// Asserts all invariants that hold between two calls.
pub(super) fn check(engine: &Engine) {
    engine.store.jobs.check();
    engine.store.tubes.check();
    engine.store.clients.check();
    engine.waits.check(&engine.store);
    engine.store.timers.check();
    engine.job_waits.check(&engine.store, &engine.effects);
    engine.bodies().check();
    engine.idps.check(&engine.store);
    engine.cons.check(&engine.store, &engine.effects);
    engine.groups.check(&engine.store, &engine.effects);
    engine.rules.check(&engine.store);
    engine.notes.check(&engine.store);
    engine.schedules.check();
    check_counts(engine);
    check_containers(engine);
    check_timers(engine);
    check_waiting_clients(engine);
}

fn check_counts(engine: &Engine) {
    let (Store { jobs, tubes, clients, .. }, work) = (&engine.store, &engine.effects.work);
    // Nothing is left to count what has happened to jobs.
    let mut totals = JobTotals {
        jobs: [0; JobState::COUNT],
        urgent: 0,
        waiting: 0,
        producers: 0,
        workers: 0,
        ..engine.store.totals
    };
    let mut tallies: HashMap<TubeSlot, Tally> = HashMap::new();
    for (key, job) in jobs.iter() {
        let tally = tallies.entry(job.tube).or_default();
        tally.body_bytes += engine.store.body_bytes(key);
        tally.jobs[job.state as usize] += 1;
        totals.jobs[job.state as usize] += 1;
        let is_urgent = job.state == JobState::Ready && job.pri < URGENT_BELOW;
        tally.urgent += u32::from(is_urgent);
        totals.urgent += u32::from(is_urgent);
    }
    for (key, client) in clients.iter() {
        if engine.recovered.client == Some(key) {
            assert!(client.watches.is_empty() && !client.is_waiting(), "it only holds jobs");
            continue;
        }
        tallies.entry(client.used).or_default().using += 1;
        totals.waiting += u32::from(client.is_waiting());
        totals.producers += u32::from(client.is_producer && !client.is_disconnecting);
        totals.workers += u32::from(client.is_worker && !client.is_disconnecting);
        let lengths = clients.watched(key).map(|tube| tubes[tube].name().as_bytes().len());
        assert_eq!(client.name_lengths, lengths.sum::<usize>(), "the length of watched names is counted");
        for tube in clients.watched(key) {
            let tally = tallies.entry(tube).or_default();
            tally.watching += 1;
            tally.wide += usize::from(client.is_wide());
            tally.narrow_waiting += usize::from(!client.is_wide() && client.is_waiting());
        }
    }
    for work in work.iter() {
        let pinned = match work {
            Work::Kick(kick) => vec![kick.tube],
            Work::Flush(flush) => vec![flush.tube],
            Work::Move(work) => vec![work.from, work.to],
            Work::List(search) => vec![search.tube],
            Work::Assign { tube } | Work::Shut { tube } => vec![*tube],
            Work::Disconnect { .. } | Work::Reopen { .. } | Work::FreeHeld { .. } => vec![],
            Work::FlushKeys(_) | Work::Answer { .. } | Work::Search { .. } | Work::PurgeTubeOrder => vec![],
        };
        for tube in pinned {
            tallies.entry(tubes.slot(tube)).or_default().pins += 1;
        }
    }
    work.check();
    assert_eq!(engine.store.totals, totals, "the counts of the queue are right");
    for (key, tube) in tubes.iter() {
        let counted = Tally {
            jobs: JobState::ALL.map(|state| tube.jobs_in(state)),
            urgent: tube.urgent,
            using: tube.using,
            watching: tube.watching,
            narrow_waiting: tube.narrow_waiters.len(),
            wide: tube.wide_watches.len(),
            pins: tube.pins,
            body_bytes: tube.body_bytes,
        };
        let expected = tallies.remove(&key.slot).unwrap_or_default();
        assert_eq!(counted, expected, "the counts of tube {} are right", tube.name().as_str());
        let assigning = work.iter().any(|work| matches!(work, Work::Assign { tube } if *tube == key));
        assert_eq!(tube.assigning, assigning, "one piece of work assigns the jobs of a tube");
        let is_shut = |work: &&Work| matches!(work, Work::Shut { tube } if *tube == key);
        let shutting = work.iter().filter(is_shut).count();
        assert_eq!(usize::from(tube.shutting), shutting, "one piece of work shuts the lanes of a tube");
        tubes.heads.check(key.slot, tube.head(jobs), [tube.assigning, tube.shutting]);
        let is_default = key.slot == engine.store.default_tube;
        assert!(tube.is_referenced() || is_default, "an unreferenced tube is removed");
    }
    assert!(tallies.is_empty(), "no job or client names a removed tube");
}

fn check_containers(engine: &Engine) {
    let Store { jobs, tubes, clients, .. } = &engine.store;
    for (key, tube) in tubes.iter() {
        let check_place = |job: JobKey, state: JobState| {
            let job = jobs.get(job);
            let is_there = (job.state, job.tube) == (state, key.slot);
            assert!(is_there, "job {} is in the container of its state", job.id);
        };
        tube.ready.check(&jobs.slab);
        tube.ready_order.check(jobs, key.slot, tube.ready_jobs());
        assert_eq!(tube.parked as usize, engine.cons.count_parked(key.slot), "parked jobs are counted");
        tube.delayed.check(&jobs.lifecycles);
        tube.buried.check(&jobs.slab);
        tube.reserved.check(jobs, key.slot);
        tube.delayed_order.check(&jobs.slab);
        tube.held.check(&jobs.slab);
        let delayed = [tube.delayed_order.len(), tube.delayed.len()];
        assert_eq!(delayed[0], delayed[1], "delayed jobs are in the heap and in the list");
        tube.narrow_waiters.check(&clients.watches);
        tube.wide_watches.check(&clients.watches);
        tube.ready.for_each(&jobs.slab, |job| check_place(JobKey(job), JobState::Ready));
        tube.buried.iter(&jobs.slab).for_each(|job| check_place(JobKey(job), JobState::Buried));
        tube.held.iter(&jobs.slab).for_each(|job| check_place(JobKey(job), JobState::Held));
        let delayed = |lifecycle| check_place(jobs.lifecycles[lifecycle].job, JobState::Delayed);
        tube.delayed.for_each(&jobs.lifecycles, delayed);
        let waiting = tube.narrow_waiters.iter(&clients.watches);
        let seqs = waiting.map(|watch| clients.wait_seq(clients.watches[watch].client));
        assert!(seqs.is_sorted(), "the client that waits longest is first");
    }
    for (key, client) in clients.iter() {
        client.reserved.check(&jobs.lifecycles);
        client.reserved_order.check(&jobs.slab);
        let reserved = [client.reserved.len(), client.reserved_order.len()];
        assert_eq!(reserved[0], reserved[1], "reserved jobs are in the heap and in the list");
        for job in client.reserved_order.iter(&jobs.slab) {
            assert_eq!(jobs.lifecycle(JobKey(job)).and_then(Lifecycle::holder), Some(key.slot));
        }
        client.reserved.for_each(&jobs.lifecycles, |lifecycle| {
            let lifecycle = &jobs.lifecycles[lifecycle];
            assert_eq!(lifecycle.holder(), Some(key.slot), "a reserved job names its holder");
            assert_eq!(jobs.get(lifecycle.job).state, JobState::Reserved);
        });
    }
    let held: usize = clients.iter().map(|(_, client)| client.reserved.len()).sum();
    let reserved = engine.store.totals.in_state(JobState::Reserved) as usize;
    assert_eq!(held, reserved, "every reserved job has a holder");
}

/// A timer may fire early, but not late.
fn check_timers(engine: &Engine) {
    let Store { jobs, tubes, clients, timers, .. } = &engine.store;
    for (key, client) in clients.iter() {
        let wait_end = client.wait.and_then(|wait| wait.until);
        let job_wait_end = client.job_wait.map(|wait| engine.job_waits.until(wait));
        for due in [engine.store.first_deadline(key.slot), wait_end, job_wait_end].into_iter().flatten() {
            check_armed(timers.armed(client.timer), due);
        }
    }
    for (key, tube) in tubes.iter() {
        let delayed = tube.delayed.min().map(|lifecycle| jobs.lifecycles[lifecycle].deadline);
        let rule_end =
            tube.rules().and_then(|rules| engine.rules.next_deadline(key.slot, rules, &engine.store));
        for due in [delayed, tube.pause.map(|pause| pause.until), rule_end].into_iter().flatten() {
            check_armed(timers.armed(tube.timer), due);
        }
    }
}

fn check_armed(armed: Option<Time>, due: Time) {
    assert!(armed.is_some_and(|at| at <= due), "the deadline {due:?} has a timer, not one at {armed:?}");
}

/// No client waits for a job that could be assigned, unless work to assign it is queued.
fn check_waiting_clients(engine: &Engine) {
    let (Store { tubes, clients, .. }, work) = (&engine.store, &engine.effects.work);
    for (key, client) in clients.iter().filter(|(_, client)| client.is_waiting()) {
        assert!(!client.is_disconnecting, "a disconnected client does not wait");
        if client.is_searching {
            assert!(client.has_search, "work searches for the client");
            continue;
        }
        for tube in clients.watched(key) {
            let is_passed_over =
                client.is_wide() && clients.wait_seq(key.slot) <= tubes[tube].searched_through;
            assert!(!is_passed_over, "a search does not pass over a client that waits for the tube");
            let is_queued = work
                .iter()
                .any(|work| matches!(work, Work::Assign { tube: assigning } if assigning.slot == tube));
            assert!(!tubes[tube].in_reservable || is_queued, "no client waits while there is a job for it");
        }
    }
}
