//! Recomputes every counter, link and index of the queue from the jobs and clients. For tests.
//!
//! Bounded by its caller: a test.

use std::collections::HashMap;

use super::Engine;
use crate::queue::long_work::work::Work;
use crate::queue::store::job::{JobState, Lifecycle, URGENT_BELOW};
use crate::queue::store::totals::JobTotals;
use crate::time::Time;
use crate::values::ids::{ClientSlot, JobKey, TubeSlot};

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
    let answering = engine.effects.work.iter().filter_map(|work| match work {
        Work::Answer { awaited } => Some(*awaited),
        _ => None,
    });
    engine.job_waits.check(&engine.store.clients, &answering.collect::<Vec<_>>());
    engine.bodies().check();
    engine.idps.check(&engine.store);
    engine.cons.check(&engine.store, &engine.effects.work);
    engine.groups.check(&engine.store, &engine.effects.work);
    engine.rules.check(&engine.store);
    engine.notes.check(&engine.store);
    engine.schedules.check();
    check_counts(engine);
    check_containers(engine);
    check_timers(engine);
    check_waiting_clients(engine);
}

fn check_counts(engine: &Engine) {
    // Nothing is left to count what has happened to jobs.
    let JobTotals { total_jobs, timeouts, losses, deletes, releases, buries, kicks, moves, repeats, .. } =
        engine.store.totals;
    let mut totals = JobTotals {
        total_jobs,
        timeouts,
        losses,
        deletes,
        releases,
        buries,
        kicks,
        moves,
        repeats,
        ..JobTotals::default()
    };
    let mut tallies: HashMap<TubeSlot, Tally> = HashMap::new();
    for (key, job) in engine.store.jobs.iter() {
        let tally = tallies.entry(job.tube).or_default();
        tally.body_bytes += engine.store.body_bytes(key);
        tally.jobs[job.state as usize] += 1;
        totals.jobs[job.state as usize] += 1;
        let is_urgent = job.state == JobState::Ready && job.pri < URGENT_BELOW;
        tally.urgent += u32::from(is_urgent);
        totals.urgent += u32::from(is_urgent);
    }
    for (key, client) in engine.store.clients.slab.iter() {
        if engine.recovered.client().is_some_and(|recovered| recovered.slot == ClientSlot(key)) {
            assert!(client.watches.is_empty() && !client.is_waiting(), "it only holds jobs");
            continue;
        }
        tallies.entry(client.used).or_default().using += 1;
        totals.waiting += u32::from(client.is_waiting());
        totals.producers += u32::from(client.is_producer && !client.is_disconnecting);
        totals.workers += u32::from(client.is_worker && !client.is_disconnecting);
        let lengths = engine
            .store
            .clients
            .watched(engine.store.clients.key(ClientSlot(key)))
            .map(|tube| engine.store.tubes[tube].name().as_bytes().len());
        assert_eq!(client.name_lengths, lengths.sum::<usize>(), "the length of watched names is counted");
        for tube in engine.store.clients.watched(engine.store.clients.key(ClientSlot(key))) {
            let tally = tallies.entry(tube).or_default();
            tally.watching += 1;
            tally.wide += usize::from(client.is_wide());
            tally.narrow_waiting += usize::from(!client.is_wide() && client.is_waiting());
        }
    }
    for work in engine.effects.work.iter() {
        match work {
            Work::Kick(kick) => tallies.entry(engine.store.tubes.slot(kick.tube)).or_default().pins += 1,
            Work::Flush(flush) => tallies.entry(engine.store.tubes.slot(flush.tube)).or_default().pins += 1,
            Work::Move(work) => {
                for tube in [work.from, work.to] {
                    tallies.entry(engine.store.tubes.slot(tube)).or_default().pins += 1;
                }
            }
            Work::List(search) => tallies.entry(engine.store.tubes.slot(search.tube)).or_default().pins += 1,
            Work::Assign { tube } | Work::Shut { tube } => {
                tallies.entry(engine.store.tubes.slot(*tube)).or_default().pins += 1;
            }
            Work::Disconnect { .. } | Work::Reopen { .. } | Work::FreeHeld { .. } => {}
            Work::FlushKeys(_) | Work::Answer { .. } | Work::Search { .. } => {}
            Work::PurgeTubeOrder => {}
        }
    }
    engine.effects.work.check();
    assert_eq!(engine.store.totals, totals, "the counts of the queue are right");
    for (key, tube) in engine.store.tubes.iter() {
        let reserved = tube.reserved.len() as usize;
        let counted = Tally {
            jobs: [tube.ready_jobs(), reserved, tube.delayed.len(), tube.buried.len(), tube.held.len()],
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
        let assigning =
            engine.effects.work.iter().any(|work| matches!(work, Work::Assign { tube } if *tube == key));
        assert_eq!(tube.assigning, assigning, "one piece of work assigns the jobs of a tube");
        let is_shut = |work: &&Work| matches!(work, Work::Shut { tube } if *tube == key);
        let shutting = engine.effects.work.iter().filter(is_shut).count();
        assert_eq!(usize::from(tube.shutting), shutting, "one piece of work shuts the lanes of a tube");
        let flags = [tube.assigning, tube.shutting];
        engine.store.tubes.heads.check(key.slot, tube.head(&engine.store.jobs), flags);
        assert!(
            tube.is_referenced() || key.slot == engine.store.default_tube,
            "an unreferenced tube is removed"
        );
    }
    assert!(tallies.is_empty(), "no job or client names a removed tube");
}

fn check_containers(engine: &Engine) {
    for (key, tube) in engine.store.tubes.iter() {
        tube.ready.check(&engine.store.jobs.slab);
        tube.ready_order.check(&engine.store.jobs, key.slot, tube.ready_jobs());
        assert_eq!(tube.parked as usize, engine.cons.count_parked(key.slot), "parked jobs are counted");
        tube.delayed.check(&engine.store.jobs.lifecycles);
        tube.buried.check(&engine.store.jobs.slab);
        tube.reserved.check(&engine.store.jobs, key.slot);
        tube.delayed_order.check(&engine.store.jobs.slab);
        tube.held.check(&engine.store.jobs.slab);
        assert_eq!(
            tube.delayed_order.len(),
            tube.delayed.len(),
            "delayed jobs are in the heap and in the list"
        );
        tube.narrow_waiters.check(&engine.store.clients.watches);
        tube.wide_watches.check(&engine.store.clients.watches);
        tube.ready.for_each(&engine.store.jobs.slab, |job| {
            check_place(engine, JobKey(job), JobState::Ready, key.slot)
        });
        for job in tube.buried.iter(&engine.store.jobs.slab) {
            check_place(engine, JobKey(job), JobState::Buried, key.slot);
        }
        for job in tube.held.iter(&engine.store.jobs.slab) {
            check_place(engine, JobKey(job), JobState::Held, key.slot);
        }
        tube.delayed.for_each(&engine.store.jobs.lifecycles, |lifecycle| {
            check_place(engine, engine.store.jobs.lifecycles[lifecycle].job, JobState::Delayed, key.slot);
        });
        let waiting = tube.narrow_waiters.iter(&engine.store.clients.watches);
        let seqs: Vec<u64> = waiting
            .map(|watch| engine.store.clients.wait_seq(engine.store.clients.watches[watch].client))
            .collect();
        assert!(seqs.is_sorted(), "the client that waits longest is first");
    }
    for (key, client) in engine.store.clients.slab.iter() {
        client.reserved.check(&engine.store.jobs.lifecycles);
        client.reserved_order.check(&engine.store.jobs.slab);
        assert_eq!(
            client.reserved.len(),
            client.reserved_order.len(),
            "reserved jobs are in the heap and in the list"
        );
        for job in client.reserved_order.iter(&engine.store.jobs.slab) {
            assert_eq!(
                engine.store.jobs.lifecycle(JobKey(job)).and_then(Lifecycle::holder),
                Some(ClientSlot(key))
            );
        }
        client.reserved.for_each(&engine.store.jobs.lifecycles, |lifecycle| {
            let lifecycle = &engine.store.jobs.lifecycles[lifecycle];
            assert_eq!(lifecycle.holder(), Some(ClientSlot(key)), "a reserved job names its holder");
            assert_eq!(engine.store.jobs.get(lifecycle.job).state, JobState::Reserved);
        });
    }
    let held: usize = engine.store.clients.slab.iter().map(|(_, client)| client.reserved.len()).sum();
    assert_eq!(
        held,
        engine.store.totals.in_state(JobState::Reserved) as usize,
        "every reserved job has a holder"
    );
}

fn check_place(engine: &Engine, job: JobKey, state: JobState, tube: TubeSlot) {
    let job = engine.store.jobs.get(job);
    assert_eq!((job.state, job.tube), (state, tube), "job {} is in the container of its state", job.id);
}

/// A timer may fire early, but not late.
fn check_timers(engine: &Engine) {
    for (key, client) in engine.store.clients.slab.iter() {
        let wait_end = client.wait.and_then(|wait| wait.until);
        let job_wait_end = client.job_wait.map(|wait| engine.job_waits.until(wait));
        for due in
            [engine.store.first_deadline(ClientSlot(key)), wait_end, job_wait_end].into_iter().flatten()
        {
            check_armed(engine.store.timers.armed(client.timer), due);
        }
    }
    for (key, tube) in engine.store.tubes.iter() {
        let delayed = tube.delayed.min().map(|lifecycle| engine.store.jobs.lifecycles[lifecycle].deadline);
        let rule_end =
            tube.rules().and_then(|rules| engine.rules.next_deadline(key.slot, rules, &engine.store));
        for due in [delayed, tube.pause.map(|pause| pause.until), rule_end].into_iter().flatten() {
            check_armed(engine.store.timers.armed(tube.timer), due);
        }
    }
}

fn check_armed(armed: Option<Time>, due: Time) {
    assert!(armed.is_some_and(|at| at <= due), "the deadline {due:?} has a timer, not one at {armed:?}");
}

/// No client waits for a job that could be assigned, unless work to assign it is queued.
fn check_waiting_clients(engine: &Engine) {
    for (key, client) in engine.store.clients.slab.iter().filter(|(_, client)| client.is_waiting()) {
        assert!(!client.is_disconnecting, "a disconnected client does not wait");
        if client.is_searching {
            assert!(client.has_search, "work searches for the client");
            continue;
        }
        for tube in engine.store.clients.watched(engine.store.clients.key(ClientSlot(key))) {
            let is_passed_over = client.is_wide()
                && engine.store.clients.wait_seq(ClientSlot(key))
                    <= engine.store.tubes[tube].searched_through;
            assert!(!is_passed_over, "a search does not pass over a client that waits for the tube");
            let queued =
                |work: &Work| matches!(work, Work::Assign { tube: assigning } if assigning.slot == tube);
            assert!(
                !engine.store.tubes[tube].in_reservable || engine.effects.work.iter().any(queued),
                "no client waits while there is a job for it"
            );
        }
    }
}
