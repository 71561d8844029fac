//! What an event-loop iteration costs, in CPU time of the thread, whatever the server counts: every load beside everything that
//! one client can do, at two sizes, under each driver.
//!
//! CPU time has no time in which others had the core. It has the time of page faults and of a cache that others have filled.
//! So a scenario that is too expensive is repeated, and its smallest result counts.
//!
//! `BEANRING_TEST_ONLY_SCENARIOS=part` runs the loads whose names contain the part, `BEANRING_TEST_ALL_SCENARIOS=1` every pair under
//! every driver. `BEANRING_TEST_VERBOSE=1` prints all results with `--nocapture`. A build without optimization has smaller sizes,
//! and only growth fails it.

mod floods;
mod loads;
mod talk;
mod triggers;
mod world;

use std::env;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use beanring::io::driver::Driver;
use beanring::server::Token;
use beanring_testkit::driver;
use beanring_testkit::measured::Iterations;

use floods::{FLOODS, Flood, PROBES};
use loads::{BOMBS, LANES, LOADS, Load};
use triggers::{ENDS, TIME, TRIGGERS, Trigger};
use world::World;

/// Growth of the longest iteration when the load is four times as large. A cost in proportion to the load grows by 4.
const GROWTH_MAX: f64 = 2.0;

/// Growth counts only above this: what the budgets of an iteration add up to (docs/SECURITY.md), and what a build without
/// optimization makes of it. A cost below it may still grow, up to its budget.
const GROWTH_FLOOR: Duration =
    if IS_SHORT { Duration::from_micros(4000) } else { Duration::from_micros(1300) };

/// CPU time of an iteration at the documented limits.
const LONGEST_MAX: Duration = Duration::from_millis(2);

/// Runs of a scenario that is too expensive. The smallest result counts.
const ATTEMPTS: usize = 3;

/// Without `BEANRING_TEST_ALL_SCENARIOS`, further drivers run one trigger in this many. A load has all of them under the first.
const SHARE: usize = 12;

/// How much larger the second size of a load is.
const TIMES: usize = 4;

/// Tubes and jobs beside a flood in the long form, as multiples of the short one.
const LONG_SCALE: usize = 20;

/// Growth of the CPU time until a control client has its reply counts only above this.
const REPLY_FLOOR: Duration = Duration::from_millis(20);

const IS_SHORT: bool = cfg!(debug_assertions);

/// Tests that measure run one after another.
static ALONE: Mutex<()> = Mutex::new(());

struct Outcome {
    driver: Driver,
    load: &'static str,
    trigger: &'static str,
    sizes: [usize; 2],
    costs: [Iterations; 2],
}

fn is_good(costs: [Iterations; 2]) -> bool {
    let [small, large] = costs.map(|cost| cost.longest);
    let grows = large > GROWTH_FLOOR && large.as_secs_f64() > GROWTH_MAX * small.as_secs_f64();
    // Only optimized code has a time to keep.
    !grows && (IS_SHORT || large <= LONGEST_MAX)
}

impl Outcome {
    fn is_good(&self) -> bool {
        let is_judged = FLOODS.iter().any(|flood| flood.name == self.load && !flood.shares_turns);
        let [small, large] = self.costs.map(|cost| cost.total);
        let is_late = large > REPLY_FLOOR && large.as_secs_f64() > GROWTH_MAX * small.as_secs_f64();
        is_good(self.costs) && !(is_judged && is_late)
    }

    /// This one if it is good, or else the other.
    fn or(self, other: Self) -> Self {
        if self.is_good() { self } else { other }
    }

    /// Prints what fails, and with `BEANRING_TEST_VERBOSE` everything.
    fn shown(self) -> Self {
        if !self.is_good() || env::var_os("BEANRING_TEST_VERBOSE").is_some() {
            self.print();
        }
        self
    }

    fn print(&self) {
        let [small, large] = self.costs.map(|cost| cost.longest.as_secs_f64() * 1e6);
        println!(
            "{:<4} {:<12} {:<52} {:<42} {:>6} {:>9.0} us {:>7} {:>9.0} us {:>8} iterations, {:?}",
            if self.is_good() { "" } else { "RED" },
            self.driver.name(),
            self.load,
            self.trigger,
            self.sizes[0],
            small,
            self.sizes[1],
            large,
            self.costs[1].count,
            self.costs[1].total,
        );
    }
}

fn sizes(load: &Load) -> [usize; 2] {
    let small = load.sizes[usize::from(!IS_SHORT)];
    [small, TIMES * small]
}

fn is_wanted(name: &str) -> bool {
    env::var("BEANRING_TEST_ONLY_SCENARIOS").map_or(true, |part| name.contains(&part))
}

fn built(io: Driver, load: &Load, size: usize) -> World {
    let mut world = World::new(io);
    (load.build)(&mut world, size);
    world
}

fn runs_all() -> bool {
    env::var_os("BEANRING_TEST_ALL_SCENARIOS").is_some()
}

/// Runs the triggers beside a load that are the turn of this driver.
fn run(io: Driver, is_first: bool, at: usize, load: &'static Load) -> Vec<Outcome> {
    let sizes = sizes(load);
    let mut worlds = sizes.map(|size| built(io, load, size));
    let mut outcomes = Vec::new();
    for (number, trigger) in TRIGGERS.iter().enumerate() {
        if !is_first && !runs_all() && !(number + at).is_multiple_of(SHARE) {
            continue;
        }
        let costs = measured(|at| (trigger.run)(&mut worlds[at]));
        outcomes.push(Outcome { driver: io, load: load.name, trigger: trigger.name, sizes, costs }.shown());
    }
    drop(worlds);
    outcomes
}

/// Measures at both sizes, and again what is too expensive.
fn measured(mut once: impl FnMut(usize) -> Iterations) -> [Iterations; 2] {
    let [mut small, mut large] = [once(0), once(1)];
    for _ in 1..ATTEMPTS {
        if is_good([small, large]) {
            break;
        }
        let again = [once(0), once(1)];
        // A command that comes in two pieces has shorter iterations.
        small = if again[0].longest > small.longest { again[0] } else { small };
        large = if again[1].longest < large.longest { again[1] } else { large };
    }
    [small, large]
}

fn run_end(io: Driver, load: &'static Load, end: &'static Trigger) -> Outcome {
    let sizes = sizes(load);
    let costs = measured(|at| (end.run)(&mut built(io, load, sizes[at])));
    Outcome { driver: io, load: load.name, trigger: end.name, sizes, costs }.shown()
}

/// Runs what `outcomes` returns under each driver, and fails if an outcome is too expensive. It is told whether the driver is the
/// first one.
fn under_each(outcomes: impl Fn(Driver, bool) -> Vec<Outcome>) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut red, mut is_first) = (0, true);
    for &io in Driver::ALL {
        if driver::is_allowed(io, "the cost of iterations") {
            red += outcomes(io, is_first).iter().filter(|outcome| !outcome.is_good()).count();
            is_first = false;
        }
    }
    assert_eq!(red, 0, "scenarios are too expensive");
}

#[test]
fn iterations_beside_a_load() {
    under_each(|io, is_first| {
        let loads = LOADS.iter().enumerate().filter(|(_, load)| is_wanted(load.name));
        loads.flat_map(|(at, load)| run(io, is_first, at, load)).collect()
    });
}

#[test]
fn iterations_at_the_end_of_a_load() {
    under_each(|io, is_first| {
        let mut outcomes = Vec::new();
        for (at, load) in LOADS.iter().enumerate().filter(|(_, load)| is_wanted(load.name)) {
            // Each end takes a load of its own.
            let is_turn = |number: usize| load.name == LANES || number == at % ENDS.len();
            let turn = |number: usize| runs_all() || is_first && is_turn(number);
            let ends = ENDS.iter().enumerate().filter(|&(number, _)| turn(number));
            outcomes.extend(ends.map(|(_, end)| run_end(io, load, end)));
        }
        outcomes
    });
}

#[test]
fn iterations_when_a_load_ends_by_itself() {
    under_each(|io, is_first| {
        let loads = BOMBS.iter().filter(|load| (is_first || runs_all()) && is_wanted(load.name));
        loads.map(|load| run_end(io, load, &TIME)).collect()
    });
}

#[test]
fn iterations_beside_a_flood() {
    under_each(|io, is_first| {
        let floods = FLOODS.iter().filter(|flood| (is_first || runs_all()) && is_wanted(flood.name));
        floods.flat_map(|flood| beside_flood(io, flood)).collect()
    });
}

fn beside_flood(io: Driver, flood: &'static Flood) -> Vec<Outcome> {
    let small = flood.sizes[usize::from(!IS_SHORT)];
    let sizes = [small, TIMES * small];
    let once = || {
        let costs = sizes.map(|size| {
            let token = flood.has_token.then(|| Token::parse(b"0123456789abcdef").expect("a token"));
            let mut world = World::with_token(io, token);
            floods::measure(flood, &mut world, size, if IS_SHORT { 1 } else { LONG_SCALE })
        });
        let outcome = |(at, probe): (usize, &&'static str)| {
            let trigger = probe.split(' ').next().expect("a word");
            Outcome { driver: io, load: flood.name, trigger, sizes, costs: [costs[0][at], costs[1][at]] }
        };
        PROBES.iter().enumerate().map(outcome).collect::<Vec<_>>()
    };
    let mut outcomes = once();
    for _ in 1..ATTEMPTS {
        if outcomes.iter().all(Outcome::is_good) {
            break;
        }
        let again = once().into_iter();
        outcomes = outcomes.into_iter().zip(again).map(|(first, again)| first.or(again)).collect();
    }
    outcomes.into_iter().map(Outcome::shown).collect()
}
