//! Groups of very many jobs, and jobs that wait for them.

use beanring::queue::{BACKGROUND_STEPS, Change, JobState, LoggedState};
use beanring::values::budget::Cost;
use beanring::values::ids::{ClientKey, JobId};

use super::bench::{Bench, USUAL, named};

fn put(bench: &mut Bench, client: ClientKey, delay: u32, tags: &str) -> JobId {
    bench.put_job(client, USUAL, delay, 0, tags)
}

fn held(bench: &Bench) -> u32 {
    bench.in_state(JobState::Held)
}

/// A batch deletes up to 1,000 jobs. With tags each took ten times as long as without.
#[test]
fn the_tags_of_a_deleted_job_are_paid_for() {
    let mut bench = Bench::new();
    let boss = bench.connect();
    for tags in ["grp:parts", "aft:parts", "con:key", "idp:key"] {
        let job = put(&mut bench, boss, 0, tags);
        bench.spent();
        assert!(bench.engine.delete(boss, job, bench.now));
        assert!(bench.spent() >= Cost::TAGS_GONE.steps(), "the job with {tags}");
    }
}

#[test]
fn a_group_that_holds_a_million_jobs() {
    const JOBS: u32 = 1_000_000;
    let mut bench = Bench::new();
    let boss = bench.connect();
    let member = put(&mut bench, boss, 0, "grp:parts");
    for at in 0..JOBS {
        put(&mut bench, boss, 1000 * (at % 2), "aft:parts");
    }
    assert_eq!(held(&bench), JOBS);
    bench.spent();
    assert!(bench.engine.delete(boss, member, bench.now));
    bench.take_steps(BACKGROUND_STEPS + 1 + Cost::TAGS_GONE.steps());
    assert!(held(&bench) >= JOBS - BACKGROUND_STEPS - 1);
    // A later group of the same name holds only later jobs.
    let name = named("parts");
    assert!(bench.engine.group_stats(name).is_none());
    let amid = bench.amid;
    let next = put(&mut bench, amid, 1000, "grp:parts");
    let late = put(&mut bench, amid, 0, "aft:parts");
    bench.run_in_steps(JOBS, |bench| JOBS + 1 - held(bench));
    assert_eq!(held(&bench), 1);
    assert_eq!(bench.engine.group_stats(name).map(|stats| stats.waiting_jobs), Some(1));
    assert!(bench.engine.delete(amid, next, bench.now));
    assert_eq!(held(&bench), 0);
    assert!(bench.engine.delete(amid, late, bench.now));
    assert_eq!(bench.ready(), JOBS / 2);
}

#[test]
fn a_batch_that_ends_many_groups_releases_a_bounded_number_at_once() {
    const GROUPS: u32 = 500;
    const EACH: u32 = 20;
    let mut bench = Bench::new();
    let boss = bench.connect();
    let members: Vec<JobId> =
        (0..GROUPS).map(|group| put(&mut bench, boss, 0, &format!("grp:g{group}"))).collect();
    for at in 0..GROUPS * EACH {
        put(&mut bench, boss, 0, &format!("aft:g{}", at % GROUPS));
    }
    bench.spent();
    let (deleted, _) = bench.engine.delete_batch(boss, members.into_iter(), bench.now);
    assert_eq!(deleted, GROUPS);
    assert!(GROUPS * EACH - held(&bench) <= BACKGROUND_STEPS + GROUPS);
    bench.engine.check();
    bench.run_all_steps(|bench| GROUPS * EACH - held(bench));
    assert_eq!((held(&bench), bench.ready()), (0, GROUPS * EACH));
}

#[test]
fn jobs_of_a_group_that_is_done_can_be_kicked_and_deleted_before_their_turn() {
    const JOBS: u32 = 1000;
    let mut bench = Bench::new();
    let boss = bench.connect();
    bench.engine.record_changes(true);
    let member = put(&mut bench, boss, 0, "grp:parts");
    let ids: Vec<JobId> = (0..JOBS).map(|_| put(&mut bench, boss, 0, "grp:next aft:parts")).collect();
    let mut changes = Vec::new();
    bench.engine.take_changes(&mut changes);
    assert!(bench.engine.delete(boss, member, bench.now));
    changes.clear();
    bench.engine.take_changes(&mut changes);
    let done =
        changes.iter().filter(|change| matches!(change, Change::GroupDone(name) if **name == *b"parts"));
    assert_eq!(done.count(), 1, "one record releases all jobs");
    let [first, .., kicked, deleted] = ids[..] else { panic!("there are many jobs") };
    assert_eq!((bench.state_of(first), bench.state_of(kicked)), (JobState::Ready, JobState::Held));
    let last = bench.engine.jobs().find(kicked).expect("the job is there");
    let kept = bench.engine.persisted_state(last);
    assert!(matches!(kept.state, LoggedState::Delayed(until) if until <= bench.now));
    assert!(bench.engine.kick_job(kicked, bench.now));
    assert!(bench.engine.delete(boss, deleted, bench.now));
    bench.engine.check();
    bench.run_all_steps(|bench| JOBS - held(bench));
    assert_eq!((held(&bench), bench.ready()), (0, JOBS - 1));
}
