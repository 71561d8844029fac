//! What an event-loop iteration costs, in CPU time of the thread, whatever the server counts: every load, while it is built and
//! beside everything that one client can do, and floods of clients and of peers that never finish, at two sizes, under each
//! driver, by every door.
//! [`prices`] compares what the server counts with the cost.
//!
//! CPU time has no time in which others had the core. It has the time of page faults and of a cache that others have filled.
//! So a scenario that is too expensive is repeated, and its smallest result counts. If that is too large too, the bounds follow the
//! [`pace`] of the machine.
//!
//! Each test has as many scenarios as fit into some seconds, or into `BEANRING_TEST_SECONDS`, in an order of `BEANRING_TEST_SEED`.
//! `BEANRING_TEST_ALL_SCENARIOS=1` runs all, `BEANRING_TEST_ONLY_SCENARIOS=part` the loads whose names contain the part.
//! `BEANRING_TEST_VERBOSE=1` prints all results with `--nocapture`. A build without optimization has smaller sizes, and other limits.

mod doors;
mod floods;
mod loads;
mod pace;
mod peers;
mod prices;
mod scenarios;
mod senders;
mod talk;
mod triggers;
mod world;

use std::env;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use beanring::server::Token;
use beanring_testkit::measured::Iterations;

use doors::Door;
use floods::{FLOODS, Flood};
use loads::{BOMBS, LANES, LISTS, LOADS, Load};
use scenarios::{Place, drawn, is_wanted, runs_all};
use triggers::{ENDS, TIME, TRIGGERS, Trigger};
use world::World;

/// Growth of the longest iteration when the load is four times as large. A cost in proportion to the load grows by 4.
const GROWTH_MAX: f64 = 2.0;

/// Growth counts only above this: what the budgets of an iteration add up to (docs/SECURITY.md), and what a build without
/// optimization makes of it, where a step takes up to 0.35 us. A cost below it may still grow, up to its budget.
const GROWTH_FLOOR: Duration = Duration::from_micros(if IS_SHORT { 6000 } else { 1300 });

/// CPU time of an iteration (docs/SECURITY.md): beside a load, and beside a flood of 2,000 clients, whose packets the kernel handles in
/// the time of the thread too. A build without optimization takes some times as long, at smaller sizes. Under tokio-uring all connections that
/// are ready have their turn in the runtime, whatever the server keeps.
fn longest_max(place: Place, is_flood: bool) -> Duration {
    Duration::from_millis(match (place.io.name(), is_flood) {
        _ if IS_SHORT => 8,
        ("tokio-uring", false) => 4,
        ("tokio-uring", true) => 16,
        (_, false) => 2,
        ("epoll", true) => 5,
        (_, true) => 3,
    })
}

/// Runs of a scenario that is too expensive. The smallest result counts.
const ATTEMPTS: usize = 3;

/// One trigger in this many has its turn where not all run.
const SHARE: usize = 12;

/// How much larger the second size of a load is.
const TIMES: usize = 4;

/// Tubes and jobs beside a flood in the long form, as multiples of the short one.
const LONG_SCALE: usize = 20;

/// Growth of the CPU time until a control client has its reply counts only above this: what a client may wait beside a flood. A large
/// `kick` takes some 40 iterations, each of which may use up its budgets.
const REPLY_FLOOR: Duration = Duration::from_millis(if IS_SHORT { 80 } else { 50 });

const IS_SHORT: bool = cfg!(debug_assertions);

/// Tests that measure run one after another.
static ALONE: Mutex<()> = Mutex::new(());

struct Outcome {
    place: Place,
    load: &'static str,
    trigger: &'static str,
    sizes: [usize; 2],
    bounds: Bounds,
    /// The time until a reply counts too.
    is_judged: bool,
    costs: [Iterations; 2],
    /// How slow the machine is. Known if the costs are too high for one that is not.
    slowness: Option<f64>,
}

/// Which costs are too high.
#[derive(Clone, Copy)]
struct Bounds {
    longest: Duration,
    /// See [`GROWTH_FLOOR`].
    growth_floor: Duration,
}

impl Bounds {
    fn of_load(place: Place) -> Self {
        Self { longest: longest_max(place, false), growth_floor: GROWTH_FLOOR }
    }

    /// The longest of hundreds of batches counts, with the page faults of new memory.
    fn of_build(place: Place) -> Self {
        Self { longest: longest_max(place, true), growth_floor: GROWTH_FLOOR }
    }

    /// Four times as many clients may use up budgets that fewer leave, so the longest iteration alone counts.
    fn of_flood(place: Place) -> Self {
        let longest = longest_max(place, true);
        Self { longest, growth_floor: longest }
    }

    /// The bounds on a machine that is as many times as slow.
    fn slower(self, times: f64) -> Self {
        let [longest, growth_floor] = [self.longest, self.growth_floor].map(|bound| bound.mul_f64(times));
        Self { longest, growth_floor }
    }

    fn admit(self, costs: [Iterations; 2]) -> bool {
        let [small, large] = costs.map(|cost| cost.longest);
        let grows = large > self.growth_floor && large.as_secs_f64() > GROWTH_MAX * small.as_secs_f64();
        !grows && large <= self.longest
    }
}

impl Outcome {
    fn is_good(&self) -> bool {
        let [small, large] = self.costs.map(|cost| cost.total);
        let slowness = self.slowness.unwrap_or(1.0);
        let is_late =
            large > REPLY_FLOOR.mul_f64(slowness) && large.as_secs_f64() > GROWTH_MAX * small.as_secs_f64();
        self.bounds.slower(slowness).admit(self.costs) && !(self.is_judged && is_late)
    }

    /// This one if it is good, or else the other.
    fn or(self, other: Self) -> Self {
        if self.is_good() { self } else { other }
    }

    /// Judges by the pace of the machine, and prints what fails, and with `BEANRING_TEST_VERBOSE` everything.
    fn shown(mut self) -> Self {
        if !self.is_good() {
            self.slowness = Some(pace::slowness());
        }
        if !self.is_good() || env::var_os("BEANRING_TEST_VERBOSE").is_some() {
            self.print();
        }
        self
    }

    fn print(&self) {
        let [small, large] = self.costs.map(|cost| cost.longest.as_secs_f64() * 1e6);
        println!(
            "{:<4} {:<12} {:<10} {:<52} {:<42} {:>6} {:>9.0} us {:>7} {:>9.0} us {:>8} iterations, {:?}, slowness {:.2}",
            if self.is_good() { "" } else { "RED" },
            self.place.io.name(),
            self.place.door.name(),
            self.load,
            self.trigger,
            self.sizes[0],
            small,
            self.sizes[1],
            large,
            self.costs[1].count,
            self.costs[1].total,
            self.slowness.unwrap_or(1.0),
        );
    }
}

fn sizes(load: &Load) -> [usize; 2] {
    let small = load.sizes[usize::from(!IS_SHORT)];
    [small, TIMES * small]
}

fn built(place: Place, load: &Load, size: usize) -> World {
    let mut world = World::new(place);
    (load.build)(&mut world, size);
    world
}

/// Measures at both sizes, and again what is too expensive.
fn measured(bounds: Bounds, mut once: impl FnMut(usize) -> Iterations) -> [Iterations; 2] {
    let [mut small, mut large] = [once(0), once(1)];
    for _ in 1..ATTEMPTS {
        if bounds.admit([small, large]) {
            break;
        }
        let again = [once(0), once(1)];
        // A command that comes in two pieces has shorter iterations.
        small = if again[0].longest > small.longest { again[0] } else { small };
        large = if again[1].longest < large.longest { again[1] } else { large };
    }
    [small, large]
}

/// Runs the triggers beside a load that have their turn.
fn run(number: usize, load: &'static Load, place: Place) -> Vec<Outcome> {
    let sizes = sizes(load);
    let mut worlds = sizes.map(|size| built(place, load, size));
    let is_turn = |at: usize| runs_all() && place.is_thorough() || (number + at).is_multiple_of(SHARE);
    let triggers = TRIGGERS.iter().enumerate().filter(|&(at, _)| is_turn(at));
    let outcome = |(_, trigger): (usize, &Trigger)| {
        let bounds = Bounds::of_load(place);
        let costs = measured(bounds, |at| (trigger.run)(&mut worlds[at]));
        Outcome {
            place,
            load: load.name,
            trigger: trigger.name,
            sizes,
            bounds,
            is_judged: false,
            costs,
            slowness: None,
        }
        .shown()
    };
    triggers.map(outcome).collect()
}

/// Runs what ends a load and has its turn. Each end takes a load of its own.
fn run_ends(number: usize, load: &'static Load, place: Place) -> Vec<Outcome> {
    let is_thorough = load.name == LANES || runs_all() && place.door == Door::Clear;
    let is_turn = |at: usize| is_thorough || at == number % ENDS.len();
    let ends = ENDS.iter().enumerate().filter(|&(at, _)| is_turn(at));
    ends.map(|(_, end)| run_end(load, end, place)).collect()
}

fn run_end(load: &'static Load, end: &'static Trigger, place: Place) -> Outcome {
    run_anew(load, end.name, place, Bounds::of_load(place), |size| (end.run)(&mut built(place, load, size)))
}

/// Measures how a load comes about. A container that copies itself when it grows would make an iteration grow with the load.
fn run_build(load: &'static Load, place: Place) -> Outcome {
    run_anew(load, "its build", place, Bounds::of_build(place), |size| {
        World::new(place).measure(|world| (load.build)(world, size))
    })
}

/// Measures something that has a server of its own for each size.
fn run_anew(
    load: &Load,
    trigger: &'static str,
    place: Place,
    bounds: Bounds,
    once: impl Fn(usize) -> Iterations,
) -> Outcome {
    let sizes = sizes(load);
    let costs = measured(bounds, |at| once(sizes[at]));
    Outcome { place, load: load.name, trigger, sizes, bounds, is_judged: false, costs, slowness: None }
        .shown()
}

/// Says where a panic was.
struct Here {
    number: usize,
    place: Place,
}

impl Drop for Here {
    fn drop(&mut self) {
        if thread::panicking() {
            let Place { io, door, .. } = self.place;
            println!("item {} under {} by the door {}", self.number, io.name(), door.name());
        }
    }
}

/// Runs scenarios of these items, and fails if one is too expensive.
fn each<T: Copy>(
    what: &str,
    items: impl IntoIterator<Item = T>,
    outcomes: impl Fn(usize, T, Place) -> Vec<Outcome>,
) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut count, mut red) = (0, 0);
    for (number, item, place) in drawn(what, items) {
        let _here = Here { number, place };
        for outcome in outcomes(number, item, place) {
            count += 1;
            red += usize::from(!outcome.is_good());
        }
    }
    println!("{what}: {count} scenarios, the machine takes {:.2} times as long", pace::slowness());
    assert_eq!(red, 0, "scenarios are too expensive");
}

fn wanted(loads: &[Load]) -> impl Iterator<Item = &Load> {
    loads.iter().filter(|load| is_wanted(load.name))
}

#[test]
fn iterations_while_a_load_is_built() {
    let loads = wanted(LOADS).filter(|load| load.name != LISTS);
    each("iterations while a load is built", loads, |_, load, place| vec![run_build(load, place)]);
}

#[test]
fn iterations_beside_a_load() {
    each("iterations beside a load", wanted(LOADS), run);
}

#[test]
fn iterations_at_the_end_of_a_load() {
    each("iterations at the end of a load", wanted(LOADS), run_ends);
}

#[test]
fn iterations_when_a_load_ends_by_itself() {
    let end = |_, load, place| vec![run_end(load, &TIME, place)];
    each("iterations when a load ends by itself", wanted(BOMBS), end);
}

#[test]
fn iterations_beside_a_flood() {
    let floods: Vec<Flood> = FLOODS.iter().copied().filter(|flood| is_wanted(flood.name)).collect();
    each("iterations beside a flood", floods, |_, flood, place| beside_flood(flood, place));
}

#[test]
fn iterations_beside_peers_that_do_not_finish() {
    let floods: Vec<Flood> = peers::floods().into_iter().filter(|flood| is_wanted(flood.name)).collect();
    each("iterations beside peers that do not finish", floods, |_, flood, place| beside_flood(flood, place));
}

fn beside_flood(flood: Flood, place: Place) -> Vec<Outcome> {
    if !flood.exists_at(place.door) {
        return Vec::new();
    }
    let small = flood.sizes[usize::from(!IS_SHORT)];
    let sizes = [small, TIMES * small];
    let once = || {
        let costs = sizes.map(|size| {
            let token = flood.has_token.then(|| Token::parse(b"0123456789abcdef").expect("a token"));
            let mut world = World::with_token(place, token);
            floods::measure(&flood, &mut world, size, if IS_SHORT { 1 } else { LONG_SCALE })
        });
        let outcome = |(at, trigger): (usize, &'static str)| {
            let is_judged = flood.judges(trigger);
            let costs = [costs[0][at], costs[1][at]];
            let bounds = Bounds::of_flood(place);
            Outcome { place, load: flood.name, trigger, sizes, bounds, is_judged, costs, slowness: None }
        };
        floods::measurements().enumerate().map(outcome).collect::<Vec<_>>()
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
