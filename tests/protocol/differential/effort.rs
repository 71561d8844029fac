//! Runs many seeds, and counts the steps that were compared and the seeds that differ.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::{Trouble, is_timed};

/// Some seeds keep a core busy, others mostly sleep.
const AT_ONCE: usize = 12;

/// How often a run that was late is repeated beside others, and then alone. A difference is never repeated.
const TRIES_AMONG_OTHERS: usize = 3;
const TRIES_ALONE: usize = 3;

/// The result of many seeds.
#[derive(Default)]
pub struct Report {
    /// The report of each seed that differs.
    pub differences: Vec<(u64, Trouble)>,
    /// Steps that were compared, in conversations without and with deadlines.
    pub untimed_steps: usize,
    pub timed_steps: usize,
    /// Runs that lateness has ended.
    late: usize,
    /// Seeds without a complete run.
    unfinished: Vec<u64>,
}

/// Compares the seeds. `run` runs a conversation of `steps` and ends at the first difference.
pub fn compare(seeds: &[u64], steps: usize, run: impl Fn(u64) -> Result<(), Trouble> + Sync) -> Report {
    let report = Mutex::new(Report::default());
    let next = AtomicUsize::new(0);
    let best = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(&seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let compared = try_seed(seed, steps, TRIES_AMONG_OTHERS, &run, &report);
                    best.lock().expect("no thread panicked with it").push((seed, compared));
                }
            });
        }
    });
    for (seed, mut compared) in best.into_inner().expect("no thread panicked with it") {
        if compared < steps {
            compared = compared.max(try_seed(seed, steps, TRIES_ALONE, &run, &report));
        }
        let mut report = report.lock().expect("no thread panicked with it");
        if compared < steps {
            report.unfinished.push(seed);
        }
        *(if is_timed(seed) { &mut report.timed_steps } else { &mut report.untimed_steps }) += compared;
    }
    let mut report = report.into_inner().expect("no thread panicked with it");
    report.differences.sort_by_key(|&(seed, _)| seed);
    report.unfinished.sort_unstable();
    report
}

/// Runs a seed until nothing is late. Returns the largest number of compared steps. A difference counts as compared.
fn try_seed(
    seed: u64,
    steps: usize,
    tries: usize,
    run: impl Fn(u64) -> Result<(), Trouble>,
    report: &Mutex<Report>,
) -> usize {
    let mut most = 0;
    for _ in 0..tries {
        let trouble = match run(seed) {
            Ok(()) => return steps,
            Err(trouble) => trouble,
        };
        let mut report = report.lock().expect("no thread panicked with it");
        match trouble {
            Trouble::Late { steps: compared, .. } => {
                println!("seed {seed}: {trouble}");
                report.late += 1;
                most = most.max(compared);
            }
            Trouble::Difference { .. } => {
                report.differences.push((seed, trouble));
                return steps;
            }
        }
    }
    most
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { differences, untimed_steps, timed_steps, late, unfinished } = self;
        write!(
            f,
            "compared {untimed_steps} steps without and {timed_steps} steps with deadlines, {} seeds differ; {late} runs \
             were late; never whole: {unfinished:?}",
            differences.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::deadlines::Lateness;
    use super::*;

    fn difference() -> Result<(), Trouble> {
        Err(Trouble::Difference { story: Vec::new(), what: "planted".to_owned() })
    }

    fn late(steps: usize) -> Result<(), Trouble> {
        Err(Trouble::Late { steps, why: Lateness::NotAsleep })
    }

    #[test]
    fn a_difference_in_every_second_run_counts_each_time() {
        let runs = AtomicUsize::new(0);
        let seeds: Vec<u64> = (0..10).collect();
        let report = compare(&seeds, 300, |_| match runs.fetch_add(1, Ordering::Relaxed) % 2 {
            0 => difference(),
            _ => Ok(()),
        });
        assert_eq!(report.differences.len(), 5, "{report}");
        assert_eq!(runs.into_inner(), 10, "neither is repeated");
    }

    #[test]
    fn a_difference_after_late_runs_counts() {
        let runs = AtomicUsize::new(0);
        let report = compare(&[4], 300, |_| match runs.fetch_add(1, Ordering::Relaxed) {
            0..4 => late(100),
            _ => difference(),
        });
        assert_eq!(report.differences.len(), 1, "{report}");
    }

    #[test]
    fn what_is_late_is_compared_as_far_as_it_came() {
        let runs = AtomicUsize::new(0);
        let report = compare(&[3, 4], 300, |seed| match seed {
            3 => Ok(()),
            _ => late(10 * runs.fetch_add(1, Ordering::Relaxed)),
        });
        assert_eq!((report.untimed_steps, report.timed_steps, report.late), (300, 50, 6), "{report}");
        assert_eq!(report.unfinished, [4]);
        assert!(report.differences.is_empty());
    }
}
