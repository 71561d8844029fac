//! Which scenarios a run has: all of them, or a part that another seed changes.

use std::env;
use std::time::{Duration, Instant};

use beanring::io::driver::Driver;
use beanring_testkit::driver;
use beanring_testkit::random::{Random, number};

use crate::doors::Door;

/// How long a test begins further scenarios, unless it runs all.
const SECONDS: u64 = 8;

/// A server under a driver, and the door of its clients.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub io: Driver,
    pub door: Door,
    /// The driver is the first one that the kernel allows.
    pub is_first: bool,
}

impl Place {
    fn all() -> Vec<Self> {
        let places = |(at, io): (usize, Driver)| Door::ALL.map(|door| Self { io, door, is_first: at == 0 });
        driver::allowed("the cost of iterations").enumerate().flat_map(places).collect()
    }

    /// Whether a run of all scenarios has everything here. Elsewhere it has a part.
    pub fn is_thorough(self) -> bool {
        self.is_first || self.door == Door::Clear
    }
}

pub fn runs_all() -> bool {
    env::var_os("BEANRING_TEST_ALL_SCENARIOS").is_some()
}

pub fn is_wanted(name: &str) -> bool {
    env::var("BEANRING_TEST_ONLY_SCENARIOS").map_or(true, |part| name.contains(&part))
}

/// Returns each item at each place, in an order of the seed in which neighbors are at different places. Ends after some seconds,
/// unless all are to run.
pub fn drawn<T>(what: &str, items: impl IntoIterator<Item = T>) -> impl Iterator<Item = (usize, T, Place)>
where
    T: Copy,
{
    let seed = number("BEANRING_TEST_SEED").unwrap_or(0);
    let seconds = number("BEANRING_TEST_SECONDS").unwrap_or(SECONDS);
    println!("{what}: BEANRING_TEST_SEED={seed}");
    let mut random = Random::new(seed);
    let items: Vec<(usize, T)> = shuffled(items.into_iter().enumerate().collect(), &mut random);
    let places = shuffled(Place::all(), &mut random);
    let (count, until) = (items.len() * places.len(), Instant::now() + Duration::from_secs(seconds));
    let pairs = (0..count).map(move |number| {
        let (round, at) = (number / places.len(), number % places.len());
        let (item, content) = items[(round + at) % items.len()];
        (item + at, content, places[at])
    });
    pairs.take_while(move |_| runs_all() || Instant::now() < until)
}

fn shuffled<T>(mut items: Vec<T>, random: &mut Random) -> Vec<T> {
    for end in (1..items.len()).rev() {
        items.swap(end, random.below(end + 1));
    }
    items
}
