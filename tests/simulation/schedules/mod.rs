//! A deterministic simulation of a hundred schedules: their times around changes of the local clock, a server that crashes, restarts and
//! is taken over, and a system clock that is set. Beside it runs a model that looks at each minute.
//!
//! With `BEANRING_TEST_TRACE` a seed prints what happens.

mod actions;
mod history;
mod local_time;
mod model;
mod stats;
mod times;
mod world;

use beanring::time::Span;
use beanring::wal::Durability;
use beanring_testkit::random::{Random, number};

use self::local_time::{ZONES, Zone};
use self::times::SECOND;
use self::world::{Done, Setting, World};
use super::seeds::{caught, run_seeds};

const SEEDS_DEFAULT: u64 = 100;
const YEARS_DEFAULT: u64 = 1;

/// The largest body of a job.
const BODY_BYTES_MAX: u32 = 30_000;

/// How far the model looks for the next time of a schedule, in nanoseconds.
const LOOK_AHEAD: u64 = 24 * 3600 * SECOND;

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;
/// 2026-01-01 00:00 UTC.
const YEAR_BEGIN: u64 = 1_767_225_600;

/// The begin and the length of a run: often the local clock of some zone changes in it.
fn span(random: &mut Random) -> (u64, u64) {
    let span = random.pick(&[HOUR / 2, 6 * HOUR, 12 * HOUR, DAY, DAY, 2 * DAY, 4 * DAY]);
    let zone = Zone::get(random.below(ZONES.len()));
    let within = YEAR_BEGIN..YEAR_BEGIN + 730 * DAY;
    let changes = zone.changes.iter().map(|change| change.at as u64 * 60).filter(|at| within.contains(at));
    let changes: Vec<u64> = changes.collect();
    let begin = if changes.is_empty() || random.chance(30) {
        YEAR_BEGIN + random.below_u64(700 * DAY)
    } else {
        random.pick(&changes) - random.below_u64(span)
    };
    (begin, span)
}

fn setting(random: &mut Random) -> Setting {
    let (begin, span) = span(random);
    let durability = match random.below(4) {
        0 => Durability::Within(Span::from_millis(50)),
        1 => Durability::Never,
        _ => Durability::Always,
    };
    Setting {
        begin,
        span,
        schedules: random.pick(&[5, 20, 50, 100]),
        actions: random.pick(&[5, 20, 40, 40, 80]),
        durability,
        network: durability == Durability::Always && random.chance(50),
        memory: random.one_in(8).then_some(3_000_000),
        jobs_max: random.pick(&[0, 10, 100, 200]),
        crashes: random.chance(80),
        clock_jumps: random.chance(60),
    }
}

fn run(setting: Setting, random: Random) -> Result<Done, String> {
    caught(|| {
        let mut world = World::new(setting, random);
        world.log(|| format!("{setting:?}"));
        for _ in 0..setting.schedules {
            world.put_schedule(true);
        }
        let between = world.end() / setting.actions as u64;
        while world.elapsed < world.end() {
            let span = if world.random.chance(40) { 2 * SECOND } else { 3 * between };
            let span = world.random.below_u64(span);
            world.pass(span);
            world.act();
        }
        world.end_well();
        world.done
    })
}

/// Runs seeds, and prints what they have seen.
fn run_all(seeds: u64, setting: impl Fn(&mut Random) -> Setting) {
    let mut all = Done::default();
    let run = |seed| {
        let mut random = Random::new(seed);
        let Done { runs, others, starts, lost } = run(setting(&mut random), random)?;
        (all.runs, all.others) = (all.runs + runs, all.others + others);
        (all.starts, all.lost) = (all.starts + starts, all.lost + lost);
        Ok(())
    };
    run_seeds(seeds, run, |_| println!("BEANRING_TEST_TRACE=1 prints what happens"));
    let Done { runs, others, starts, lost } = all;
    println!(
        "{runs} runs, {others} refused or left out, {starts} starts after which {lost} changes were lost"
    );
}

#[test]
fn seeds_are_clean() {
    run_all(SEEDS_DEFAULT, setting);
}

/// Each of a hundred schedules for a year: `BEANRING_TEST_YEARS` runs more of them.
#[test]
fn a_year_is_clean() {
    let years = number("BEANRING_TEST_YEARS").unwrap_or(YEARS_DEFAULT);
    for seed in number("BEANRING_TEST_SEED").map_or(0..years, |seed| seed..seed + 1) {
        let mut random = Random::new(seed);
        let setting = Setting {
            begin: YEAR_BEGIN + random.below_u64(300 * DAY),
            span: 365 * DAY,
            schedules: 100,
            actions: 300,
            jobs_max: 20,
            memory: None,
            crashes: true,
            clock_jumps: true,
            ..setting(&mut random)
        };
        let done =
            run(setting, random).unwrap_or_else(|message| panic!("BEANRING_TEST_SEED={seed}: {message}"));
        println!("year {seed}: {done:?}");
    }
}
