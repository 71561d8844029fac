//! The modes of reserve in which chance decides: proportions, and the cost of many tubes. A failure names the seed.

use std::num::NonZeroU32;

use beanring::queue::{BatchRoom, Reserved};
use beanring::time::Span;
use beanring::values::ids::{JobId, JobKey};
use beanring::values::reserve_mode::ReserveMode;

use super::bench::{Bench, USUAL, named};

const SEEDS: u64 = 5;
const DRAWS: u32 = 20_000;

/// A client puts jobs, and one apart from it draws them.
struct Weighted(Bench);

impl Weighted {
    /// Adds tubes with these weights and numbers of jobs.
    fn new(seed: u64, mode: ReserveMode, tubes: &[(u32, u32)]) -> Self {
        let mut bench = Bench::seeded(seed);
        bench.engine.set_reserve_mode(bench.apart, mode);
        let mut queue = Self(bench);
        for (number, &(weight, jobs)) in (0..).zip(tubes) {
            queue.add(number, weight, jobs);
        }
        queue
    }

    /// Watches a tube, and puts jobs there.
    fn add(&mut self, number: u32, weight: u32, jobs: u32) {
        let Self(bench) = self;
        let (name, weight) = (format!("tube-{number}"), NonZeroU32::new(weight));
        bench.engine.use_tube(bench.amid, named(&name));
        bench.engine.watch(bench.apart, named(&name));
        bench.engine.set_weight(bench.apart, named(&name), weight.expect("it is positive"));
        bench.put_many(bench.amid, jobs, 0);
    }

    /// Draws a job. Returns its id and the number of its tube.
    fn draw(&mut self) -> (JobId, usize) {
        let reserved = self.0.reserve_now(self.0.apart);
        let Reserved::Drawn(job) = reserved else { panic!("there is a job, not {reserved:?}") };
        (self.0.ids_of(&[job])[0], self.tube_of(job))
    }

    /// Draws up to this many jobs. Returns the numbers of their tubes.
    fn draw_batch(&mut self, count: usize) -> Vec<usize> {
        let Self(bench) = self;
        let mut jobs = Vec::new();
        bench.engine.reserve_more(bench.apart, BatchRoom::new(count), true, bench.now, &mut jobs);
        jobs.into_iter().map(|job| self.tube_of(job)).collect()
    }

    fn tube_of(&self, job: JobKey) -> usize {
        let number = self.0.engine.tube_of(job).as_str().rsplit('-').next().map(str::parse);
        number.expect("a name has a number").expect("it is one")
    }

    /// Deletes a job that was reserved for this time.
    fn finish(&mut self, id: JobId, span: Span) {
        self.0.pass(span);
        assert!(self.0.engine.delete(self.0.apart, id, self.0.now));
    }
}

/// Asserts shares of draws, within five standard deviations.
fn assert_shares(seed: u64, counts: &[u32], shares: &[f64]) {
    let draws = f64::from(counts.iter().sum::<u32>());
    for (&count, share) in counts.iter().zip(shares) {
        let (expected, spread) = (draws * share, (draws * share * (1.0 - share)).sqrt());
        let is_near = (f64::from(count) - expected).abs() <= 5.0 * spread + 1.0;
        assert!(is_near, "seed {seed}: {counts:?} are not in proportion to {shares:?}");
    }
}

#[test]
fn weights_decide_how_often_a_tube_is_drawn() {
    for seed in 0..SEEDS {
        let tubes = [(1, DRAWS), (3, DRAWS), (6, DRAWS)];
        let mut queue = Weighted::new(seed, ReserveMode::Weighted, &tubes);
        let mut counts = [0; 3];
        (0..DRAWS).for_each(|_| counts[queue.draw().1] += 1);
        assert_shares(seed, &counts, &[0.1, 0.3, 0.6]);
    }
}

#[test]
fn a_batch_is_drawn_like_as_many_reserves() {
    for seed in 0..SEEDS {
        let tubes = [(1, DRAWS), (3, DRAWS), (6, DRAWS)];
        let mut queue = Weighted::new(seed, ReserveMode::Weighted, &tubes);
        let (mut counts, mut second) = ([0; 3], [0; 3]);
        for _ in 0..DRAWS / 20 {
            counts[queue.draw().1] += 1;
            let tubes = queue.draw_batch(19);
            assert_eq!(tubes.len(), 19);
            tubes.iter().for_each(|&tube| counts[tube] += 1);
            // Choices are independent: after the first tube, each other one is as probable as always.
            tubes.windows(2).filter(|pair| pair[0] == 0).for_each(|pair| second[pair[1]] += 1);
        }
        assert_shares(seed, &counts, &[0.1, 0.3, 0.6]);
        assert_shares(seed, &second, &[0.1, 0.3, 0.6]);
    }
}

/// The chances of a batch are added up once; those of a tube go with its last job.
#[test]
fn a_tube_whose_jobs_a_batch_has_taken_has_no_chance_in_it_any_more() {
    for seed in 0..SEEDS {
        let mut queue = Weighted::new(seed, ReserveMode::Weighted, &[(6, 3), (1, 2000), (1, 2000)]);
        let mut counts = [0; 3];
        queue.draw_batch(1000).into_iter().for_each(|tube| counts[tube] += 1);
        assert_eq!(counts[0], 3, "seed {seed}: it is drawn soon");
        assert_shares(seed, &counts[1..], &[0.5, 0.5]);
    }
}

/// In each tube the batch takes the only place of a key whose next job is then in its way.
#[test]
fn a_large_batch_passes_over_the_jobs_of_full_keys() {
    const TUBES: u32 = 64;
    for seed in 0..SEEDS {
        let mut queue = Weighted::new(seed, ReserveMode::Weighted, &[]);
        for number in 0..TUBES {
            queue.add(number, 1, 6);
            for _ in 0..2 {
                queue.0.put_tagged(queue.0.amid, USUAL, &format!("con:key-{number}"));
            }
            queue.0.put_many(queue.0.amid, 6, 0);
        }
        assert_eq!(queue.draw_batch(1000).len() as u32, TUBES * 13, "seed {seed}");
    }
}

#[test]
fn the_time_of_workers_is_shared_in_proportion_to_the_weights() {
    for seed in 0..SEEDS {
        // Jobs of the tubes take 1, 4 and 5 ms.
        let spans = [1, 4, 5].map(Span::from_millis);
        let tubes = [(1, DRAWS), (1, DRAWS), (2, DRAWS)];
        let mut queue = Weighted::new(seed, ReserveMode::WeightedFair, &tubes);
        let mut counts = [0; 3];
        for draw in 0..DRAWS {
            let (id, tube) = queue.draw();
            queue.finish(id, spans[tube]);
            // The first jobs show how long those of each tube take.
            counts[tube] += u32::from(draw >= 100);
        }
        // Weights over times: 1, 1/4 and 2/5. Of the time of workers, the tubes have 1, 1 and 2 parts.
        assert_shares(seed, &counts, &[1.0 / 1.65, 0.25 / 1.65, 0.4 / 1.65]);
    }
}

/// Tubes 0 and 2 have jobs that take 3 ms, and one that took a week. No job of tube 1 has ended.
#[test]
fn a_tube_without_finished_jobs_counts_as_the_fastest() {
    for seed in 0..SEEDS {
        let mut queue = Weighted::new(seed, ReserveMode::WeightedFair, &[]);
        for (number, span) in [(0, Span::from_millis(3)), (2, Span::from_secs(604_800))] {
            queue.add(number, 1, 1);
            let (id, _) = queue.draw();
            queue.finish(id, span);
        }
        for (number, weight) in [(0, 1), (1, 3), (2, 1)] {
            queue.add(number, weight, DRAWS);
        }
        let mut counts = [0; 3];
        for _ in 0..DRAWS / 20 {
            counts[queue.draw().1] += 1;
            queue.draw_batch(9).into_iter().for_each(|tube| counts[tube] += 1);
        }
        assert_shares(seed, &counts, &[0.25, 0.75, 0.0]);
    }
}

/// Nothing is known of any tube.
#[test]
fn weights_alone_decide_until_a_job_is_finished() {
    for seed in 0..SEEDS {
        let mut queue = Weighted::new(seed, ReserveMode::WeightedFair, &[(1, DRAWS), (3, DRAWS)]);
        let mut counts = [0; 2];
        (0..DRAWS / 2).for_each(|_| counts[queue.draw().1] += 1);
        assert_shares(seed, &counts, &[0.25, 0.75]);
    }
}

#[test]
fn a_draw_looks_at_the_watched_tubes_or_at_those_with_jobs() {
    const TUBES: u32 = 10_000;
    let tubes: Vec<_> = (0..TUBES).map(|number| (1 + number % 7, u32::from(number % 1000 == 0))).collect();
    let mut queue = Weighted::new(0, ReserveMode::Weighted, &tubes);
    for left in (0..TUBES / 1000).rev() {
        queue.0.spent();
        queue.draw();
        // It adds up the chances, and looks again for the tube that is drawn.
        queue.0.take_steps(2 * (left + 1) + 1);
    }
    assert_eq!(queue.0.reserve_now(queue.0.apart), Reserved::TimedOut);
}
