//! How slow the machine is at the moment, beside the one for which the bounds hold. Virtual machines change their pace with their
//! neighbors, and CPU time shows it.

use std::hash::{DefaultHasher, Hasher};
use std::hint::black_box;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::time::Duration;

use beanring_testkit::measured::thread_cpu_time;

/// CPU time of [`work`] on the machine of docs/SECURITY.md: 4.3 to 5.8 ms when the handshakes took 1.3 to 1.5 times what its table
/// has, in the median of ten kinds of keys (`prices::a_handshake`).
const REFERENCE: Duration = Duration::from_micros(3500);

/// A machine that is slower still has the bounds of this one.
const SLOWNESS_MAX: f64 = 2.0;

/// The smallest result counts.
const ATTEMPTS: usize = 5;

/// Larger than the caches.
const MEMORY_WORDS: u32 = 8 << 20;

/// Returns how many times as much CPU time the same work takes here, between 1 and [`SLOWNESS_MAX`].
pub fn slowness() -> f64 {
    let mut memory = Memory::shared();
    let took = (0..ATTEMPTS).map(|_| timed(|| work(&mut memory))).min().expect("there is an attempt");
    (took.as_secs_f64() / REFERENCE.as_secs_f64()).clamp(1.0, SLOWNESS_MAX)
}

fn timed(work: impl FnOnce()) -> Duration {
    let begun = thread_cpu_time();
    work();
    thread_cpu_time() - begun
}

/// A path through memory whose steps depend on each other, and are in no cache.
struct Memory {
    next: &'static [u32],
    at: u32,
}

impl Memory {
    fn shared() -> Self {
        static NEXT: OnceLock<Vec<u32>> = OnceLock::new();
        // A generator with a full period, so the path visits every word.
        let next = |at: u32| at.wrapping_mul(1_664_525).wrapping_add(1_013_904_223) % MEMORY_WORDS;
        Self { next: NEXT.get_or_init(|| (0..MEMORY_WORDS).map(next).collect()), at: 0 }
    }
}

/// What an iteration consists of: computing, memory in no cache, system calls, and new pages.
fn work(memory: &mut Memory) {
    let mut hasher = DefaultHasher::new();
    for word in 0..200_000 {
        hasher.write_u64(word);
    }
    black_box(hasher.finish());
    for _ in 0..10_000 {
        memory.at = memory.next[memory.at as usize];
    }
    black_box(memory.at);
    let (mut near, mut far) = UnixStream::pair().expect("there are descriptors");
    let mut bytes = [0; 64];
    for _ in 0..500 {
        near.write_all(&bytes).expect("there is room");
        far.read_exact(&mut bytes).expect("the bytes are there");
    }
    let mut pages = vec![0_u8; 1 << 20];
    pages.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    black_box(&pages);
}
