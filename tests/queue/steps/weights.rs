//! The modes of reserve in which chance decides: proportions, and the cost of many tubes. A failure names the seed.

use std::num::NonZeroU32;

use beanring::queue::{BatchRoom, Engine, NewJob, Reserved};
use beanring::time::{Seconds, Span, Time};
use beanring::values::ids::{ClientKey, ConnId, JobId};
use beanring::values::reserve_mode::ReserveMode;
use beanring::values::tube_name::TubeName;

const SEEDS: u64 = 5;
const DRAWS: u32 = 20_000;

struct Weighted {
    engine: Engine,
    now: Time,
    producer: ClientKey,
    worker: ClientKey,
}

impl Weighted {
    fn new(seed: u64, mode: ReserveMode) -> Self {
        let mut engine = Engine::new(seed);
        let mut connect = |slot| engine.connect(ConnId { slot, generation: 0 });
        let (producer, worker) = (connect(0), connect(1));
        engine.set_reserve_mode(worker, mode);
        Self { engine, now: Time::from_nanos(1_000_000_000_000), producer, worker }
    }

    /// Watches a tube, and puts jobs there.
    fn add(&mut self, number: u32, weight: u32, jobs: u32) {
        let name = format!("tube-{number}");
        let name = TubeName::new(name.as_bytes()).expect("a valid name");
        self.engine.use_tube(self.producer, name);
        self.engine.watch(self.worker, name);
        self.engine.set_weight(self.worker, name, NonZeroU32::new(weight).expect("it is positive"));
        for _ in 0..jobs {
            let id = self.engine.next_id();
            let body = self.engine.bodies_mut().allocate(2).expect("there is memory");
            let new = NewJob {
                id,
                pri: 0,
                delay: Seconds::ZERO,
                ttr: Seconds::whole(1_000_000),
                body,
                tags_key: None,
            };
            self.engine.put(self.producer, new, self.now);
        }
    }

    fn draw(&mut self) -> (JobId, usize) {
        let reserved = self.engine.reserve(self.worker, Some(Span::ZERO), self.now);
        let Reserved::Drawn(job) = reserved else { panic!("there is a job, not {reserved:?}") };
        self.tube_of(job)
    }

    fn tube_of(&self, job: beanring::values::ids::JobKey) -> (JobId, usize) {
        let number = self.engine.tube_of(job).as_str().rsplit('-').next().map(str::parse);
        (self.engine.jobs().get(job).id, number.expect("a name has a number").expect("it is one"))
    }
}

/// Asserts shares of draws, within five standard deviations.
fn assert_shares(seed: u64, counts: &[u32], shares: &[f64]) {
    let draws: u32 = counts.iter().sum();
    for (&count, share) in counts.iter().zip(shares) {
        let (expected, spread) =
            (f64::from(draws) * share, (f64::from(draws) * share * (1.0 - share)).sqrt());
        let distance = (f64::from(count) - expected).abs();
        assert!(
            distance <= 5.0 * spread + 1.0,
            "seed {seed}: {counts:?} are not in proportion to {shares:?}"
        );
    }
}

#[test]
fn weights_decide_how_often_a_tube_is_drawn() {
    for seed in 0..SEEDS {
        let mut queue = Weighted::new(seed, ReserveMode::Weighted);
        for (number, weight) in [(0, 1), (1, 3), (2, 6)] {
            queue.add(number, weight, DRAWS);
        }
        let mut counts = [0; 3];
        for _ in 0..DRAWS {
            counts[queue.draw().1] += 1;
        }
        assert_shares(seed, &counts, &[0.1, 0.3, 0.6]);
        queue.engine.check();
    }
}

#[test]
fn a_batch_is_drawn_like_as_many_reserves() {
    for seed in 0..SEEDS {
        let mut queue = Weighted::new(seed, ReserveMode::Weighted);
        for (number, weight) in [(0, 1), (1, 3), (2, 6)] {
            queue.add(number, weight, DRAWS);
        }
        let (mut counts, mut second) = ([0; 3], [0; 3]);
        for _ in 0..DRAWS / 20 {
            counts[queue.draw().1] += 1;
            let mut jobs = Vec::new();
            queue.engine.reserve_more(queue.worker, BatchRoom::new(19), true, queue.now, &mut jobs);
            assert_eq!(jobs.len(), 19);
            let tubes: Vec<usize> = jobs.into_iter().map(|job| queue.tube_of(job).1).collect();
            tubes.iter().for_each(|&tube| counts[tube] += 1);
            // Choices are independent: after the first tube, each other one is as probable as always.
            tubes.windows(2).filter(|pair| pair[0] == 0).for_each(|pair| second[pair[1]] += 1);
        }
        assert_shares(seed, &counts, &[0.1, 0.3, 0.6]);
        assert_shares(seed, &second, &[0.1, 0.3, 0.6]);
        queue.engine.check();
    }
}

/// The chances of a batch are added up once; those of a tube go with its last job.
#[test]
fn a_tube_whose_jobs_a_batch_has_taken_has_no_chance_in_it_any_more() {
    for seed in 0..SEEDS {
        let mut queue = Weighted::new(seed, ReserveMode::Weighted);
        for (number, weight, jobs) in [(0, 6, 3), (1, 1, 2000), (2, 1, 2000)] {
            queue.add(number, weight, jobs);
        }
        let mut jobs = Vec::new();
        queue.engine.reserve_more(queue.worker, BatchRoom::new(1000), true, queue.now, &mut jobs);
        let mut counts = [0; 3];
        jobs.into_iter().for_each(|job| counts[queue.tube_of(job).1] += 1);
        assert_eq!(counts[0], 3, "seed {seed}: it is drawn soon");
        assert_shares(seed, &counts[1..], &[0.5, 0.5]);
    }
}

#[test]
fn the_time_of_workers_is_shared_in_proportion_to_the_weights() {
    for seed in 0..SEEDS {
        let mut queue = Weighted::new(seed, ReserveMode::WeightedFair);
        // Jobs of the tubes take 1, 4 and 5 ms.
        for (number, weight) in [(0, 1), (1, 1), (2, 2)] {
            queue.add(number, weight, DRAWS);
        }
        let spans = [1, 4, 5].map(Span::from_millis);
        let mut counts = [0; 3];
        for draw in 0..DRAWS {
            let (id, tube) = queue.draw();
            queue.now = queue.now + spans[tube];
            assert!(queue.engine.delete(queue.worker, id, queue.now));
            // The first jobs show how long those of each tube take.
            counts[tube] += u32::from(draw >= 100);
        }
        // Weights over times: 1, 1/4 and 2/5. Of the time of workers, the tubes have 1, 1 and 2 parts.
        assert_shares(seed, &counts, &[1.0 / 1.65, 0.25 / 1.65, 0.4 / 1.65]);
        queue.engine.check();
    }
}

/// Tubes 0 and 2 have jobs that take 3 ms, and one that took a week. No job of tube 1 has ended.
#[test]
fn a_tube_without_finished_jobs_counts_as_the_fastest() {
    for seed in 0..SEEDS {
        let mut queue = Weighted::new(seed, ReserveMode::WeightedFair);
        for (number, span) in [(0, Span::from_millis(3)), (2, Span::from_secs(604_800))] {
            queue.add(number, 1, 1);
            let (id, _) = queue.draw();
            queue.now = queue.now + span;
            assert!(queue.engine.delete(queue.worker, id, queue.now));
        }
        for (number, weight) in [(0, 1), (1, 3), (2, 1)] {
            queue.add(number, weight, DRAWS);
        }
        let mut counts = [0; 3];
        for _ in 0..DRAWS / 20 {
            counts[queue.draw().1] += 1;
            let mut jobs = Vec::new();
            queue.engine.reserve_more(queue.worker, BatchRoom::new(9), true, queue.now, &mut jobs);
            jobs.into_iter().for_each(|job| counts[queue.tube_of(job).1] += 1);
        }
        assert_shares(seed, &counts, &[0.25, 0.75, 0.0]);
    }
}

/// Nothing is known of any tube.
#[test]
fn weights_alone_decide_until_a_job_is_finished() {
    for seed in 0..SEEDS {
        let mut queue = Weighted::new(seed, ReserveMode::WeightedFair);
        queue.add(0, 1, DRAWS);
        queue.add(1, 3, DRAWS);
        let mut counts = [0; 2];
        for _ in 0..DRAWS / 2 {
            counts[queue.draw().1] += 1;
        }
        assert_shares(seed, &counts, &[0.25, 0.75]);
    }
}

#[test]
fn a_draw_looks_at_the_watched_tubes_or_at_those_with_jobs() {
    const TUBES: u32 = 10_000;
    let mut queue = Weighted::new(0, ReserveMode::Weighted);
    for number in 0..TUBES {
        queue.add(number, 1 + number % 7, u32::from(number % 1000 == 0));
    }
    for left in (0..TUBES / 1000).rev() {
        queue.engine.take_steps();
        queue.draw();
        let steps = queue.engine.take_steps();
        // It adds up the chances, and looks again for the tube that is drawn.
        assert!(steps <= 2 * (left + 1) + 1, "{steps} steps for {} tubes with a job", left + 1);
    }
    assert_eq!(queue.engine.reserve(queue.worker, Some(Span::ZERO), queue.now), Reserved::TimedOut);
    queue.engine.check();
}
