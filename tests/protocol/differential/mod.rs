//! Random conversations with Debian's beanstalkd and with beanring at once: both receive the same bytes, and their
//! replies are compared.
//!
//! `BEANRING_TEST_SEEDS` and `BEANRING_TEST_STEPS` determine the length, `BEANRING_TEST_SEED` runs one seed.

mod deadlines;
mod effort;
mod generator;
mod pair;
mod reply;
mod run;

use std::fs;
use std::path::Path;

use beanring_testkit::beanstalkd::{installed, version};
use beanring_testkit::process::program;
use beanring_testkit::random::number;
use beanring_testkit::scratch::{Scratch, script};
use effort::compare;
use run::{Trouble, is_timed, run};

const SEEDS_DEFAULT: u64 = 60;
const STEPS_DEFAULT: u64 = 300;

/// Minimum percentage of the steps with deadlines that must be compared. An idle machine compares all of them. On a
/// busy one some runs end early.
const TIMED_PERCENT_MIN: usize = 20;

#[test]
fn beanring_replies_as_beanstalkd() {
    compare_with_beanstalkd(Path::new(program()), seeds_asked_for());
}

/// The protocol does not determine what differs here, so it must not be generated.
#[test]
fn beanstalkd_replies_as_itself() {
    if let Some(program) = installed() {
        compare_with_beanstalkd(&program, seeds_asked_for().div_ceil(6));
    }
}

/// Every second server that is started has a smaller job size limit.
#[test]
fn a_divergence_in_half_of_all_runs_is_found() {
    let Some(reference) = installed() else { return skip() };
    let scratch = Scratch::new("divergence");
    let (server, starts) = (scratch.0.join("server"), scratch.0.join("starts"));
    let lines = format!(
        "echo >> {0}\nif [ $(($(wc -l < {0}) % 2)) = 0 ]; then\n\
         for word; do shift; [ $word = {1} ] && word=100; set -- \"$@\" $word; done\nfi\nexec {2} \"$@\"\n",
        starts.display(),
        generator::MAX_JOB_SIZE,
        program()
    );
    script(&server, &lines);
    // One after the other, so that it is known which seeds differ.
    let differing: Vec<u64> = (0..4)
        .filter(|&seed| {
            let report = compare(&[seed], 100, |seed| run(&reference, &server, seed, 100));
            !report.differences.is_empty()
        })
        .collect();
    assert_eq!(differing, [1, 3]);
    assert_eq!(fs::read(starts).expect("servers were started").len(), 4, "no run is repeated");
}

fn compare_with_beanstalkd(program: &Path, seeds: u64) {
    let Some(reference) = installed() else { return skip() };
    println!("compared with beanstalkd {}", version(&reference));
    let steps = number("BEANRING_TEST_STEPS").unwrap_or(STEPS_DEFAULT) as usize;
    let seeds: Vec<u64> = number("BEANRING_TEST_SEED").map_or((0..seeds).collect(), |seed| vec![seed]);
    let report = compare(&seeds, steps, |seed| run(&reference, program, seed, steps));
    for (seed, trouble) in &report.differences {
        println!("\nBEANRING_TEST_SEED={seed} BEANRING_TEST_STEPS={steps}\n{trouble}");
    }
    println!("{report}");
    assert!(report.differences.is_empty(), "{} of {} seeds differ", report.differences.len(), seeds.len());
    let timed = seeds.iter().filter(|&&seed| is_timed(seed)).count();
    let untimed = (seeds.len() - timed) * steps;
    assert_eq!(report.untimed_steps, untimed, "each seed in which no time passes is compared");
    let timed_min = timed * steps * TIMED_PERCENT_MIN / 100;
    assert!(report.timed_steps >= timed_min, "{} of at least {timed_min} steps", report.timed_steps);
}

fn seeds_asked_for() -> u64 {
    number("BEANRING_TEST_SEEDS").unwrap_or(SEEDS_DEFAULT)
}

fn skip() {
    println!("skipped: differential test, because beanstalkd is not installed");
}
