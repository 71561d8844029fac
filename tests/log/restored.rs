//! Jobs and pauses that recovery restores when the wall clock was changed since they were logged.

use beanring::queue::{
    Begun, Change, Counts, Engine, JobState, LoggedState, Notice, PersistedState, Reserved, Restored,
};
use beanring::time::{Seconds, Span, Time};
use beanring::values::ids::{ClientKey, ConnId, JobId};
use beanring::values::notes::Notes;
use beanring::values::tags::Tags;
use beanring::values::tube_name::TubeName;
use beanring::values::tube_rules::{Rule, RuleKey, RuleValue};

use super::common::put_job;

const WRITTEN: Time = Time::from_nanos(1_000_000_000_000_000);
const HOUR: Span = Span::from_secs(3600);
const DELAY: u32 = 100;
const TUBE: TubeName<'_> = TubeName::DEFAULT;

/// What the log has of a job that is in this state and was never changed.
fn kept(state: LoggedState) -> PersistedState {
    PersistedState { pri: 0, delay: Seconds::ZERO, state, counts: Counts::default() }
}

/// A queue that recovery fills with jobs of 60 seconds: their ids, the times of their puts, and their states.
fn restored(
    jobs: impl IntoIterator<Item = (u64, Time, PersistedState)>,
    tags: Tags<'_>,
    now: Time,
) -> Engine {
    let mut engine = Engine::new(1);
    let tube = engine.restore_tube(TUBE);
    for (id, created, state) in jobs {
        let (id, ttr) = (JobId(id), Seconds::whole(60));
        let body = engine.bodies_mut().allocate(3).expect("there is memory");
        engine.restore(Restored { id, created, ttr, tube, tags, notes: Notes::NONE, state, body });
    }
    engine.settle_restored(now);
    engine.check();
    engine
}

fn connect(engine: &mut Engine, slot: u32) -> ClientKey {
    engine.connect(ConnId { slot, generation: 0 })
}

/// When a job and the pause of its tube end, both of [`DELAY`] seconds.
fn ends(now: Time) -> Option<Time> {
    let delay = Span::from_secs(DELAY);
    let delayed = PersistedState { delay: DELAY.into(), ..kept(LoggedState::Delayed(WRITTEN + delay)) };
    let mut engine = restored([(1, WRITTEN, delayed)], Tags::NONE, now);
    engine.restore_pause(TUBE, WRITTEN + delay, delay, now);
    engine.check();
    engine.next_deadline()
}

#[test]
fn no_delay_or_pause_becomes_longer() {
    let delay = Span::from_secs(DELAY);
    let back = WRITTEN.back(HOUR);
    assert_eq!(ends(back), Some(back + delay), "the clock went back by an hour");
    assert_eq!(ends(WRITTEN), Some(WRITTEN + delay), "no time has passed");
    let soon = WRITTEN + Span::from_secs(40);
    assert_eq!(ends(soon), Some(WRITTEN + delay), "less than half has passed");
}

#[test]
fn delays_and_pauses_end_while_the_server_is_down() {
    assert_eq!(ends(WRITTEN + HOUR), None);
}

/// How long a job that was restored at `now` counts as ready.
fn ready_for(state: PersistedState, now: Time) -> Span {
    let mut engine = restored([(1, WRITTEN, state)], Tags::NONE, now);
    // A job that is put later has been ready for a shorter time, whatever the clock was before.
    let client = connect(&mut engine, 0);
    let later = now + Span::from_secs(1);
    put_job(&mut engine, client, b"x\r\n", "", later);
    engine.check();
    oldest_ready(&mut engine, later)
}

fn oldest_ready(engine: &mut Engine, now: Time) -> Span {
    let tube = engine.restore_tube(TUBE);
    engine.tube_stats(tube, now).oldest_ready
}

#[test]
fn a_job_has_been_ready_since_it_was_put_or_its_delay_ended_or_else_the_start() {
    let second = Span::from_secs(1);
    let plain = kept(LoggedState::Ready);
    assert_eq!(ready_for(plain, WRITTEN + HOUR), Span::from_secs(3601), "since it was put");
    let ended = WRITTEN + Span::from_secs(DELAY);
    let delayed = PersistedState { delay: DELAY.into(), ..kept(LoggedState::Delayed(ended)) };
    assert_eq!(ready_for(delayed, WRITTEN + HOUR), Span::from_secs(3501), "since the delay ended");
    let reserved = PersistedState { counts: Counts { reserves: 1, ..Counts::default() }, ..plain };
    assert_eq!(ready_for(reserved, WRITTEN + HOUR), second, "since the start");
    assert_eq!(ready_for(plain, WRITTEN.back(HOUR)), second, "the clock went back by an hour");
}

#[test]
fn restored_jobs_keep_the_order_in_which_they_became_ready() {
    // After compaction old jobs come behind new ones in the log.
    let jobs = [(3, 10), (1, 30), (4, 5), (2, 20)];
    let jobs = jobs.map(|(id, age)| (id, WRITTEN.back(Span::from_secs(age)), kept(LoggedState::Ready)));
    let mut engine = restored(jobs, Tags::NONE, WRITTEN);
    let client = connect(&mut engine, 0);
    for age in [30, 20, 10, 5] {
        assert_eq!(oldest_ready(&mut engine, WRITTEN), Span::from_secs(age));
        engine.reserve(client, None, WRITTEN);
        engine.check();
    }
    assert_eq!(oldest_ready(&mut engine, WRITTEN), Span::ZERO);
}

/// When a job with this burial expires that is restored at `now` and kept for [`DELAY`] seconds.
fn expires(burials: [u64; 2], now: Time) -> Option<Time> {
    let jobs = (1..).zip(burials).map(|(id, burial)| (id, WRITTEN, kept(LoggedState::Buried(burial))));
    let mut engine = restored(jobs, Tags::NONE, now);
    let rule = Rule::new(TUBE, RuleKey::Retention, RuleValue::Number(DELAY.into()));
    engine.restore_rule(TUBE, rule.expect("a valid rule"), now);
    engine.check();
    engine.next_deadline()
}

#[test]
fn a_buried_job_is_kept_for_the_same_time_across_a_restart() {
    let (delay, at) = (Span::from_secs(DELAY), WRITTEN.as_nanos());
    let soon = WRITTEN + Span::from_secs(40);
    assert_eq!(expires([at, at + 1], soon), Some(WRITTEN + delay), "the time since the burial counts");
    let back = WRITTEN.back(HOUR);
    assert_eq!(expires([at, at + 1], back), Some(back + delay), "the clock went back by an hour");
    assert_eq!(expires([7, at], soon), Some(WRITTEN + delay), "the first was buried before the second");
    assert_eq!(expires([7, 8], soon), Some(soon + delay), "the log has no times");
}

/// Compaction leaves old jobs behind new ones in the job log.
#[test]
fn restored_jobs_of_a_finished_group_are_released_in_the_order_of_their_puts() {
    let jobs = [3, 1, 4, 2].map(|id| (id, WRITTEN, kept(LoggedState::Held(WRITTEN))));
    let mut engine = restored(jobs, Tags::new(b"aft:parts").expect("a valid tag"), WRITTEN);
    for slot in 0..4 {
        let client = connect(&mut engine, slot);
        assert_eq!(engine.reserve(client, None, WRITTEN), Reserved::Waiting);
    }
    engine.step(WRITTEN);
    engine.check();
    let notices: Vec<Notice> = std::iter::from_fn(|| engine.next_notice()).collect();
    let served = notices.iter().map(|notice| match *notice {
        Notice::Reserved(conn, job) => (conn.slot, engine.jobs().get(job).id.0),
        ref other => panic!("{other:?}"),
    });
    assert!(served.eq([(0, 1), (1, 2), (2, 3), (3, 4)]), "{notices:?}");
}

/// Equal times are usual after a clock step, and for jobs of one batch.
#[test]
fn restored_jobs_of_one_moment_become_ready_in_the_order_of_their_puts() {
    for (delay, state) in [(0_u32, LoggedState::Ready), (9, LoggedState::Delayed(WRITTEN))] {
        let created = WRITTEN.back(Span::from_secs(delay));
        let state = PersistedState { delay: delay.into(), ..kept(state) };
        let mut engine = restored([3, 1, 4, 2].map(|id| (id, created, state)), Tags::NONE, WRITTEN);
        engine.record_changes(true);
        let client = connect(&mut engine, 0);
        assert_eq!(engine.flush(client, TUBE, WRITTEN), Begun::Done(4));
        let mut changes = Vec::new();
        engine.take_changes(&mut changes);
        let deleted = changes.iter().filter_map(|change| match change {
            Change::Deleted(_, id) => Some(id.0),
            _ => None,
        });
        assert!(deleted.eq(1..=4), "{changes:?}");
    }
}

/// Restores jobs that are reserved until these times.
fn restored_reservations(until: &[Time], now: Time) -> Engine {
    let counts = Counts { reserves: 1, ..Counts::default() };
    let state = |&until| PersistedState { counts, ..kept(LoggedState::Reserved(until)) };
    let jobs = (1..).zip(until).map(|(id, until)| (id, WRITTEN, state(until)));
    let mut engine = restored(jobs, Tags::NONE, now);
    engine.keep_reservations(true);
    engine.settle_reservations();
    engine.check();
    engine
}

#[test]
fn no_restored_reservation_is_longer_than_the_time_to_run() {
    let second = Span::from_secs(1);
    let until = WRITTEN + Span::from_secs(60);
    for (now, left) in [
        (WRITTEN + Span::from_secs(59), second),
        (WRITTEN.back(HOUR), Span::from_secs(60)),
        (until, Span::ZERO),
        (until + HOUR, Span::ZERO),
    ] {
        let mut engine = restored_reservations(&[until], now);
        let job = engine.jobs().find(JobId(1)).expect("it is restored");
        let stats = engine.job_stats(job, now);
        assert_eq!((stats.state, stats.time_left), (JobState::Reserved, left));
        assert_eq!((engine.holder(job), engine.is_recovered(job)), (None, true));
        engine.step(now + left);
        engine.check();
        let stats = engine.job_stats(job, now);
        assert_eq!((stats.state, stats.counts.timeouts), (JobState::Ready, 1));
    }
}

#[test]
fn restored_reservations_keep_their_order() {
    let later = |seconds| WRITTEN + Span::from_secs(seconds);
    let mut engine = restored_reservations(&[later(40), later(30), later(50)], WRITTEN);
    let client = connect(&mut engine, 0);
    let first = |engine: &Engine| engine.peek_reserved(client).map(|job| engine.jobs().get(job).id.0);
    assert_eq!(first(&engine), Some(2), "its reservation began first");
    assert!(engine.touch(client, JobId(2), WRITTEN), "any client may take it over");
    engine.check();
    assert_eq!(first(&engine), Some(1));
    let other = connect(&mut engine, 1);
    assert!(!engine.touch(other, JobId(2), WRITTEN) && !engine.delete(other, JobId(2), WRITTEN));
    assert!(engine.delete(other, JobId(1), WRITTEN) && engine.bury(other, JobId(3), 0, WRITTEN));
    engine.disconnect(client, WRITTEN);
    engine.check();
    let job = engine.jobs().find(JobId(2)).expect("a job");
    assert_eq!(engine.reserve(other, None, WRITTEN), Reserved::Job(job));
}
