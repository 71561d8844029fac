//! Jobs and pauses that recovery restores when the wall clock was changed since they were logged.

use beanring::queue::{
    Begun, Change, Counts, Engine, JobState, LoggedState, NewJob, Notice, PersistedState, Reserved, Restored,
};
use beanring::time::{Seconds, Span, Time};
use beanring::values::ids::{ConnId, JobId};
use beanring::values::tags::Tags;
use beanring::values::tube_name::TubeName;
use beanring::values::tube_rules::{Rule, RuleKey, RuleValue};

const WRITTEN: Time = Time::from_nanos(1_000_000_000_000_000);
const HOUR: Span = Span::from_secs(3600);
const DELAY: u32 = 100;

/// A queue with a job that was delayed, in a tube that was paused, both for [`DELAY`] seconds.
fn restored(now: Time) -> Engine {
    let mut engine = Engine::new(1);
    let name = TubeName::new(b"tube").expect("a name");
    let tube = engine.restore_tube(name);
    let body = engine.bodies_mut().allocate(3).expect("there is memory");
    let delay = Span::from_secs(DELAY);
    let state = LoggedState::Delayed(WRITTEN + delay);
    let kept = PersistedState { pri: 0, delay: DELAY.into(), state, counts: Counts::default() };
    engine.restore(Restored {
        id: JobId(1),
        created: WRITTEN,
        ttr: Seconds::whole(60),
        tube,
        tags: Tags::NONE,
        state: kept,
        body,
    });
    engine.settle_restored(now);
    engine.restore_pause(name, WRITTEN + delay, delay, now);
    engine.check();
    engine
}

#[test]
fn no_delay_or_pause_becomes_longer() {
    let delay = Span::from_secs(DELAY);
    let back = WRITTEN.back(HOUR);
    assert_eq!(restored(back).next_deadline(), Some(back + delay), "the clock went back by an hour");
    assert_eq!(restored(WRITTEN).next_deadline(), Some(WRITTEN + delay), "no time has passed");
    let soon = WRITTEN + Span::from_secs(40);
    assert_eq!(restored(soon).next_deadline(), Some(WRITTEN + delay), "less than half has passed");
}

#[test]
fn delays_and_pauses_end_while_the_server_is_down() {
    assert_eq!(restored(WRITTEN + HOUR).next_deadline(), None);
}

/// How long a job that was restored at `now` counts as ready.
fn ready_for(created: Time, kept: PersistedState, now: Time) -> Span {
    let mut engine = Engine::new(1);
    let tube = engine.restore_tube(TubeName::DEFAULT);
    let body = engine.bodies_mut().allocate(3).expect("there is memory");
    engine.restore(Restored {
        id: JobId(1),
        created,
        ttr: Seconds::whole(60),
        tube,
        tags: Tags::NONE,
        state: kept,
        body,
    });
    engine.settle_restored(now);
    // A job that is put later has been ready for a shorter time, whatever the clock was before.
    let client = engine.connect(ConnId { slot: 0, generation: 0 });
    let later = now + Span::from_secs(1);
    let body = engine.bodies_mut().allocate(3).expect("there is memory");
    let id = engine.next_id();
    engine.put(
        client,
        NewJob { id, pri: 0, delay: Seconds::ZERO, ttr: Seconds::whole(60), body, tags_key: None },
        later,
    );
    engine.check();
    engine.tube_stats(tube, later).oldest_ready
}

#[test]
fn a_job_has_been_ready_since_it_was_put_or_its_delay_ended_or_else_the_start() {
    let second = Span::from_secs(1);
    let plain =
        PersistedState { pri: 0, delay: Seconds::ZERO, state: LoggedState::Ready, counts: Counts::default() };
    assert_eq!(ready_for(WRITTEN, plain, WRITTEN + HOUR), Span::from_secs(3601), "since it was put");
    let ended = WRITTEN + Span::from_secs(DELAY);
    let delayed = PersistedState { delay: DELAY.into(), state: LoggedState::Delayed(ended), ..plain };
    assert_eq!(ready_for(WRITTEN, delayed, WRITTEN + HOUR), Span::from_secs(3501), "since the delay ended");
    let reserved = PersistedState { counts: Counts { reserves: 1, ..Counts::default() }, ..plain };
    assert_eq!(ready_for(WRITTEN, reserved, WRITTEN + HOUR), second, "since the start");
    assert_eq!(ready_for(WRITTEN, plain, WRITTEN.back(HOUR)), second, "the clock went back by an hour");
}

#[test]
fn restored_jobs_keep_the_order_in_which_they_became_ready() {
    let mut engine = Engine::new(1);
    let tube = engine.restore_tube(TubeName::DEFAULT);
    let plain =
        PersistedState { pri: 0, delay: Seconds::ZERO, state: LoggedState::Ready, counts: Counts::default() };
    // After compaction old jobs come behind new ones in the log.
    for (id, age) in [(3, 10), (1, 30), (4, 5), (2, 20)] {
        let body = engine.bodies_mut().allocate(3).expect("there is memory");
        let created = WRITTEN.back(Span::from_secs(age));
        engine.restore(Restored {
            id: JobId(id),
            created,
            ttr: Seconds::whole(60),
            tube,
            tags: Tags::NONE,
            state: plain,
            body,
        });
    }
    engine.settle_restored(WRITTEN);
    engine.check();
    let client = engine.connect(ConnId { slot: 0, generation: 0 });
    for age in [30, 20, 10, 5] {
        assert_eq!(engine.tube_stats(tube, WRITTEN).oldest_ready, Span::from_secs(age));
        engine.reserve(client, None, WRITTEN);
        engine.check();
    }
    assert_eq!(engine.tube_stats(tube, WRITTEN).oldest_ready, Span::ZERO);
}

/// When a job with this burial expires that is restored at `now` and kept for [`DELAY`] seconds.
fn expires(burials: [u64; 2], now: Time) -> Option<Time> {
    let mut engine = Engine::new(1);
    let name = TubeName::new(b"tube").expect("a name");
    let tube = engine.restore_tube(name);
    for (id, burial) in (1..).map(JobId).zip(burials) {
        let body = engine.bodies_mut().allocate(3).expect("there is memory");
        let state = PersistedState {
            pri: 0,
            delay: Seconds::ZERO,
            state: LoggedState::Buried(burial),
            counts: Counts::default(),
        };
        engine.restore(Restored {
            id,
            created: WRITTEN,
            ttr: Seconds::whole(60),
            tube,
            tags: Tags::NONE,
            state,
            body,
        });
    }
    engine.settle_restored(now);
    let rule = Rule::new(name, RuleKey::Retention, RuleValue::Number(DELAY.into()));
    engine.restore_rule(name, rule.expect("a valid rule"), now);
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
    let mut engine = Engine::new(1);
    let tube = engine.restore_tube(TubeName::DEFAULT);
    let state = LoggedState::Held(WRITTEN);
    let held = PersistedState { pri: 0, delay: Seconds::ZERO, state, counts: Counts::default() };
    let tags = Tags::new(b"aft:parts").expect("a valid tag");
    for id in [3, 1, 4, 2] {
        let body = engine.bodies_mut().allocate(3).expect("there is memory");
        let ttr = Seconds::whole(60);
        let job = Restored { id: JobId(id), created: WRITTEN, ttr, tube, tags, state: held, body };
        engine.restore(job);
    }
    engine.settle_restored(WRITTEN);
    engine.check();
    for slot in 0..4 {
        let client = engine.connect(ConnId { slot, generation: 0 });
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
        let mut engine = Engine::new(1);
        let tube = engine.restore_tube(TubeName::DEFAULT);
        let kept = PersistedState { pri: 0, delay: delay.into(), state, counts: Counts::default() };
        for id in [3, 1, 4, 2] {
            let body = engine.bodies_mut().allocate(3).expect("there is memory");
            let created = WRITTEN.back(Span::from_secs(delay));
            let ttr = Seconds::whole(60);
            let job = Restored { id: JobId(id), created, ttr, tube, tags: Tags::NONE, state: kept, body };
            engine.restore(job);
        }
        engine.settle_restored(WRITTEN);
        engine.record_changes(true);
        let client = engine.connect(ConnId { slot: 0, generation: 0 });
        assert_eq!(engine.flush(client, TubeName::DEFAULT, WRITTEN), Begun::Done(4));
        let mut changes = Vec::new();
        engine.take_changes(&mut changes);
        let deleted = changes.iter().filter_map(|change| match change {
            Change::Deleted(_, id) => Some(id.0),
            _ => None,
        });
        assert!(deleted.eq(1..=4), "{changes:?}");
    }
}

/// Restores jobs of 60 seconds that are reserved until these times.
fn restored_reservations(until: &[Time], now: Time) -> Engine {
    let mut engine = Engine::new(1);
    let tube = engine.restore_tube(TubeName::DEFAULT);
    for (id, &until) in (1..).map(JobId).zip(until) {
        let body = engine.bodies_mut().allocate(3).expect("there is memory");
        let counts = Counts { reserves: 1, ..Counts::default() };
        let state = LoggedState::Reserved(until);
        let kept = PersistedState { pri: 0, delay: Seconds::ZERO, state, counts };
        let (created, ttr, tags) = (WRITTEN, Seconds::whole(60), Tags::NONE);
        engine.restore(Restored { id, created, ttr, tube, tags, state: kept, body });
    }
    engine.settle_restored(now);
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
    let client = engine.connect(ConnId { slot: 0, generation: 0 });
    let first = |engine: &Engine| engine.peek_reserved(client).map(|job| engine.jobs().get(job).id.0);
    assert_eq!(first(&engine), Some(2), "its reservation began first");
    assert!(engine.touch(client, JobId(2), WRITTEN), "any client may take it over");
    engine.check();
    assert_eq!(first(&engine), Some(1));
    let other = engine.connect(ConnId { slot: 1, generation: 0 });
    assert!(!engine.touch(other, JobId(2), WRITTEN) && !engine.delete(other, JobId(2), WRITTEN));
    assert!(engine.delete(other, JobId(1), WRITTEN) && engine.bury(other, JobId(3), 0, WRITTEN));
    engine.disconnect(client, WRITTEN);
    engine.check();
    assert_eq!(
        engine.reserve(other, None, WRITTEN),
        Reserved::Job(engine.jobs().find(JobId(2)).expect("a job"))
    );
}
