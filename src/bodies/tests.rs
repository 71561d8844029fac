use std::collections::VecDeque;

use super::chunk_table::CHUNK_PAGES;
use super::*;

/// The memory that an empty arena may keep mapped: its spare chunks.
const KEPT_BYTES_MAX: usize = 4 * CHUNK_BYTES;

/// xorshift64*, which is enough for tests that a seed must reproduce.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("there is /proc");
    let pages: usize = statm.split(' ').nth(1).expect("its second field").parse().expect("a number");
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).expect("a page size");
    pages * page.expect("a page size") as usize
}

fn reclaim_all(bodies: &mut Bodies) {
    while bodies.reclaim() {}
    bodies.check();
}

/// Fills both ends of a body, where an overlap with a neighbour would show, and some bytes between.
fn fill(bytes: &mut [u8], seed: u64) {
    for at in pattern_places(bytes.len()) {
        bytes[at] = pattern(seed, at);
    }
}

fn verify(bytes: &[u8], seed: u64) {
    for at in pattern_places(bytes.len()) {
        assert_eq!(bytes[at], pattern(seed, at), "byte {at} of {}", bytes.len());
    }
}

fn pattern_places(len: usize) -> impl Iterator<Item = usize> {
    let edge = len.min(128);
    (0..edge).chain((edge..len - edge).step_by(499)).chain(len - edge..len)
}

fn pattern(seed: u64, at: usize) -> u8 {
    ((seed ^ at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

#[test]
fn a_body_of_each_boundary_size() {
    let mut bodies = Bodies::new();
    let check = |bodies: &mut Bodies, bytes: usize, takes: usize| {
        let mut slot = bodies.allocate(bytes as u32).expect("memory");
        assert_eq!(slot.len(), bytes);
        assert_eq!(bodies.usage().slot_bytes, takes, "{bytes}");
        fill(bodies.bytes_mut(&mut slot), bytes as u64);
        verify(bodies.bytes(&slot), bytes as u64);
        let address = bodies.bytes(&slot).as_ptr().addr();
        assert_eq!(bodies.chunk_at(address).is_some(), bytes <= RUN_BYTES_MAX);
        match bodies.pin(&slot) {
            None => assert!(bytes <= SMALL_BYTES_MAX),
            Some(pin) => bodies.unpin(pin),
        }
        bodies.check();
        bodies.free(slot);
        bodies.check();
    };
    check(&mut bodies, 2, 8);
    check(&mut bodies, 8, 8);
    check(&mut bodies, 9, 16);
    check(&mut bodies, 66, 72);
    check(&mut bodies, 128, 128);
    check(&mut bodies, 129, 144);
    check(&mut bodies, 257, 288);
    check(&mut bodies, 8192, 8192);
    check(&mut bodies, 8193, 3 * PAGE_BYTES);
    check(&mut bodies, 3 * PAGE_BYTES, 3 * PAGE_BYTES);
    check(&mut bodies, 60_002, 15 * PAGE_BYTES);
    check(&mut bodies, RUN_BYTES_MAX, RUN_BYTES_MAX);
    check(&mut bodies, RUN_BYTES_MAX + 1, RUN_BYTES_MAX + PAGE_BYTES);
    check(&mut bodies, 5_000_000, 5_001_216);
    reclaim_all(&mut bodies);
    assert_eq!(bodies.usage(), Usage { mapped_bytes: CHUNK_BYTES, ..Usage::default() });
}

/// Random operations. Each body is verified when it is freed or unpinned.
fn run_random(seed: u64, steps: usize, slots_max: usize) {
    println!("seed {seed}");
    let mut random = Random(seed | 1);
    let mut bodies = Bodies::new();
    let mut slots: Vec<(Slot, u64)> = Vec::new();
    let mut pins: Vec<(PinnedBody, u64)> = Vec::new();
    let mut held: Vec<ChunkId> = Vec::new();
    let mut growing = true;
    for step in 0..steps {
        let choice = random.below(100);
        if choice < if growing { 60 } else { 30 } {
            let bytes_max = [128, 128, 1024, 8 << 10, 64 << 10, 300 << 10, 2 << 20][random.below(7)];
            let mut slot = bodies.allocate(2 + random.below(bytes_max - 1) as u32).expect("memory");
            fill(bodies.bytes_mut(&mut slot), step as u64);
            slots.push((slot, step as u64));
        } else if choice < 90 {
            if !slots.is_empty() {
                let (slot, seed) = slots.swap_remove(random.below(slots.len()));
                verify(bodies.bytes(&slot), seed);
                bodies.free(slot);
            }
        } else if choice < 93 {
            if !slots.is_empty() {
                let (slot, seed) = &slots[random.below(slots.len())];
                let pin = bodies.pin(slot);
                assert_eq!(pin.is_some(), slot.len() > SMALL_BYTES_MAX);
                pins.extend(pin.map(|pin| (pin, *seed)));
            }
        } else if choice < 96 {
            if !pins.is_empty() {
                let (pin, seed) = pins.swap_remove(random.below(pins.len()));
                verify(bodies.pinned_bytes(&pin), seed);
                bodies.unpin(pin);
            }
        } else if choice < 98 {
            bodies.reclaim();
        } else if choice < 99 {
            let chunk = bodies.chunks.numbers().map(ChunkId).nth(random.below(8));
            if let Some(chunk) = chunk.filter(|chunk| !held.contains(chunk)) {
                bodies.hold_chunk(chunk);
                held.push(chunk);
            }
        } else if !held.is_empty() {
            bodies.release_chunk(held.swap_remove(random.below(held.len())));
        }
        if slots.len() >= slots_max {
            growing = false;
        } else if slots.is_empty() {
            growing = true;
        }
        if step % 128 == 0 {
            bodies.check();
        }
    }
    let asked: usize = slots.iter().map(|(slot, _)| slot.len()).sum();
    assert!(asked <= bodies.usage().asked_bytes);
    held.into_iter().for_each(|chunk| bodies.release_chunk(chunk));
    for (slot, seed) in slots {
        verify(bodies.bytes(&slot), seed);
        bodies.free(slot);
    }
    for (pin, seed) in pins {
        verify(bodies.pinned_bytes(&pin), seed);
        bodies.unpin(pin);
    }
    reclaim_all(&mut bodies);
    let usage = bodies.usage();
    assert_eq!((usage.slots, usage.asked_bytes, usage.slot_bytes), (0, 0, 0));
    assert!(usage.mapped_bytes <= KEPT_BYTES_MAX, "{usage:?}");
}

#[test]
fn random_operations() {
    for seed in 1..=20 {
        run_random(seed * 0x9e37_79b9, 3_000, 100);
    }
    run_random(7, 20_000, 1_000);
}

#[test]
fn a_drained_flood_gives_its_memory_back() {
    let mut bodies = Bodies::new();
    let mut slots = VecDeque::new();
    for n in 0..200_000 {
        slots.push_back(bodies.allocate([66, 300, 1_000][n % 3]).expect("memory"));
    }
    bodies.check();
    let full = bodies.usage();
    assert!(full.mapped_bytes < full.slot_bytes + full.slot_bytes / 40 + CHUNK_BYTES, "{full:?}");
    for slot in slots {
        bodies.free(slot);
    }
    reclaim_all(&mut bodies);
    assert!(bodies.usage().mapped_bytes <= KEPT_BYTES_MAX);
}

#[test]
fn survivors_of_a_flood_keep_little_else() {
    let mut bodies = Bodies::new();
    let slots: Vec<_> = (0..2_000).map(|_| bodies.allocate(60_002).expect("memory")).collect();
    let mut survivors = Vec::new();
    for (n, mut slot) in slots.into_iter().enumerate() {
        fill(bodies.bytes_mut(&mut slot), n as u64);
        match n % 34 {
            0 => survivors.push((slot, n as u64)),
            _ => bodies.free(slot),
        }
    }
    let warm_before = bodies.chunks.warm_pages();
    reclaim_all(&mut bodies);
    let warm_bytes = bodies.chunks.warm_pages() * PAGE_BYTES;
    assert!(warm_before * PAGE_BYTES > 100 << 20);
    assert!(warm_bytes < 24 << 20, "{warm_bytes} bytes behind {} bodies", survivors.len());
    for (slot, seed) in survivors {
        verify(bodies.bytes(&slot), seed);
        bodies.free(slot);
    }
    reclaim_all(&mut bodies);
}

#[test]
fn a_cycle_reuses_the_same_memory() {
    for bytes in [66, 60_002] {
        let mut bodies = Bodies::new();
        let slot = bodies.allocate(bytes).expect("memory");
        let address = bodies.bytes(&slot).as_ptr();
        bodies.free(slot);
        let slot = bodies.allocate(bytes).expect("memory");
        assert_eq!(bodies.bytes(&slot).as_ptr(), address);
        bodies.free(slot);
    }
}

#[test]
fn announced_bodies_take_no_memory() {
    let mut bodies = Bodies::new();
    let before = resident_bytes();
    let slots: Vec<_> =
        (0..1_000).map(|_| bodies.allocate_unwritten(1_000_000_002).expect("memory")).collect();
    assert!(bodies.usage().mapped_bytes > 1_000_000_000_000);
    assert!(bodies.resident_bytes() < 1_000_000, "none is counted");
    // Other tests run in this process at the same time. A thousandth of the announced bytes would be 1 GB.
    assert!(resident_bytes() < before + (512 << 20));
    slots.into_iter().for_each(|slot| bodies.free(slot));
    reclaim_all(&mut bodies);
    assert_eq!(bodies.usage().mapped_bytes, 0);
}

#[test]
fn memory_that_is_expected_counts_and_is_there() {
    for bytes in [60_002, 1_000_002] {
        let mut bodies = Bodies::new();
        let mut slot = bodies.allocate_unwritten(bytes).expect("memory");
        let before = bodies.resident_bytes();
        assert_eq!(bodies.expect(&slot, 1, 10 * PAGE_BYTES + 1), 11 * PAGE_BYTES);
        assert_eq!(bodies.expect(&slot, 5 * PAGE_BYTES, 11 * PAGE_BYTES), 0);
        assert_eq!(bodies.resident_bytes(), before + 11 * PAGE_BYTES);
        assert_eq!(
            bodies.expect(&slot, 11 * PAGE_BYTES, bytes as usize),
            bytes as usize / PAGE_BYTES * PAGE_BYTES - 10 * PAGE_BYTES
        );
        assert_eq!(bodies.wrote(&slot, bytes as usize), 0);
        bodies.bytes_mut(&mut slot).fill(1);
        bodies.check();
        bodies.free(slot);
    }
}

#[test]
fn a_body_on_its_way_counts_as_far_as_it_has_come() {
    for bytes in [60_002, 1_000_002] {
        let mut bodies = Bodies::new();
        // This place was not used before.
        let slot = bodies.allocate_unwritten(bytes).expect("memory");
        let before = bodies.resident_bytes();
        assert_eq!(bodies.wrote(&slot, 1), PAGE_BYTES);
        assert_eq!(bodies.wrote(&slot, PAGE_BYTES), 0);
        assert_eq!(bodies.wrote(&slot, 5 * PAGE_BYTES + 1), 5 * PAGE_BYTES);
        assert_eq!(bodies.resident_bytes(), before + 6 * PAGE_BYTES);
        bodies.check();
        bodies.free(slot);
        reclaim_all(&mut bodies);
        bodies.want(usize::MAX);
        reclaim_all(&mut bodies);
        assert_eq!((bodies.idle_bytes(), bodies.usage().slots), (0, 0));
        let left = bodies.resident_bytes().saturating_sub(before);
        assert!(left < PAGE_BYTES, "of {bytes} bytes {left} are left");
    }
}

#[test]
fn growth_is_what_an_allocation_adds() {
    let mut random = Random(7);
    let mut bodies = Bodies::new();
    let mut slots = VecDeque::new();
    for _ in 0..5_000 {
        let most = [100, 8_000, 60_000, 300_000][random.below(4)];
        let bytes = 1 + random.below(most) as u32;
        let (before, growth) = (bodies.resident_bytes(), bodies.growth(bytes));
        slots.push_back(bodies.allocate(bytes).expect("memory"));
        // The table of a chunk's spans may double, and so may that of the mappings.
        let upkeep = bodies.resident_bytes() - before - growth;
        assert!(upkeep <= 64 * 1024, "{bytes} bytes add {growth} and {upkeep}");
        while slots.len() > 300 {
            bodies.free(slots.pop_front().expect("there are some"));
        }
    }
    slots.into_iter().for_each(|slot| bodies.free(slot));
    reclaim_all(&mut bodies);
}

#[test]
fn what_is_kept_is_bounded_and_given_back_when_wanted() {
    let mut bodies = Bodies::new();
    let flood = |bodies: &mut Bodies| {
        let slots: Vec<_> = (0..300).map(|_| bodies.allocate(60_002).expect("memory")).collect();
        slots.into_iter().for_each(|slot| bodies.free(slot));
    };
    flood(&mut bodies);
    reclaim_all(&mut bodies);
    let kept = bodies.idle_bytes();
    assert!((4 << 20..=17 << 20).contains(&kept), "{kept} bytes are kept");
    bodies.want(1 << 20);
    reclaim_all(&mut bodies);
    assert!(bodies.idle_bytes() <= kept - (1 << 20), "a wanted piece is given back");
    bodies.keep_at_most(1 << 20);
    flood(&mut bodies);
    reclaim_all(&mut bodies);
    assert!(bodies.idle_bytes() <= 1 << 20);
}

#[test]
fn a_pinned_body_outlives_its_slot() {
    for bytes in [60_002, 1_000_002] {
        let mut bodies = Bodies::new();
        let mut slot = bodies.allocate(bytes).expect("memory");
        fill(bodies.bytes_mut(&mut slot), 1);
        let pins = [bodies.pin(&slot).expect("large"), bodies.pin(&slot).expect("large")];
        bodies.free(slot);
        let mut others: Vec<_> = (0..50).map(|_| bodies.allocate(bytes).expect("memory")).collect();
        others.iter_mut().for_each(|slot| bodies.bytes_mut(slot).fill(0));
        for pin in pins {
            bodies.reclaim();
            bodies.check();
            assert_eq!(bodies.usage().slots, 51);
            verify(bodies.pinned_bytes(&pin), 1);
            bodies.unpin(pin);
        }
        assert_eq!(bodies.usage().slots, 50);
        others.into_iter().for_each(|slot| bodies.free(slot));
        reclaim_all(&mut bodies);
    }
}

#[test]
fn a_gigabyte_goes_back_in_pieces() {
    let mut bodies = Bodies::new();
    let mut slot = bodies.allocate(BODY_BYTES_MAX).expect("memory");
    bodies.bytes_mut(&mut slot)[..64 << 20].fill(1);
    bodies.free(slot);
    assert_eq!(bodies.usage().slots, 0);
    assert!(bodies.usage().mapped_bytes > 1 << 30);
    let mut pieces = 1;
    while bodies.reclaim() {
        pieces += 1;
    }
    assert_eq!(pieces, 257);
    assert_eq!(bodies.usage().mapped_bytes, 0);
    bodies.check();
}

/// The memory of a held chunk cannot be returned, so the next bodies use it first, at no cost.
#[test]
fn room_in_a_held_chunk_is_taken_first() {
    const PAGES: u32 = 23;
    let mut bodies = Bodies::new();
    let each = CHUNK_PAGES / PAGES as usize;
    let slots: Vec<_> =
        (0..2 * each).map(|_| bodies.allocate(PAGES * PAGE_BYTES as u32).expect("memory")).collect();
    let rest = ((CHUNK_PAGES - each * PAGES as usize) * PAGE_BYTES) as u32;
    assert_eq!(bodies.growth(rest), rest as usize, "the ends of both chunks were never used");
    let held = bodies.chunk_at(bodies.bytes(&slots[0]).as_ptr().addr()).expect("it lies in a chunk");
    bodies.hold_chunk(held);
    bodies.check();
    assert_eq!(bodies.growth(rest), 0);
    let slot = bodies.allocate(rest).expect("memory");
    assert_eq!(bodies.chunk_at(bodies.bytes(&slot).as_ptr().addr()), Some(held));
    bodies.check();
    bodies.free(slot);
    bodies.release_chunk(held);
    bodies.check();
}

#[test]
fn a_held_chunk_stays_where_it_is() {
    let mut bodies = Bodies::new();
    let slots: Vec<_> = (0..340).map(|_| bodies.allocate(60_002).expect("memory")).collect();
    let mapped = |bodies: &Bodies| -> Vec<_> {
        let numbers = bodies.chunks.numbers().map(ChunkId);
        numbers.map(|chunk| (chunk, bodies.chunk(chunk))).collect()
    };
    let chunks = mapped(&bodies);
    assert_eq!(chunks.len(), 10);
    for (number, &(chunk, memory)) in chunks.iter().enumerate() {
        assert_eq!((chunk.0 as usize, memory.len()), (number, CHUNK_PAGES * PAGE_BYTES));
        let start = memory.addr().get();
        for address in [start, start + memory.len() - 1] {
            assert_eq!(bodies.chunk_at(address), Some(chunk));
        }
    }
    assert_eq!(bodies.chunk_at(0), None);
    chunks.iter().for_each(|&(chunk, _)| bodies.hold_chunk(chunk));
    slots.into_iter().for_each(|slot| bodies.free(slot));
    reclaim_all(&mut bodies);
    assert_eq!(mapped(&bodies), chunks);
    chunks.iter().for_each(|&(chunk, _)| bodies.release_chunk(chunk));
    reclaim_all(&mut bodies);
    assert!(bodies.usage().mapped_bytes <= KEPT_BYTES_MAX);
}

/// Runs in a process of its own, because the limit applies to the whole process.
#[test]
fn too_much_is_an_error() {
    const ALONE: &str = "BEANRING_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let this = std::env::current_exe().expect("a test has a program");
        let arguments = ["--exact", "bodies::tests::too_much_is_an_error"];
        let status = std::process::Command::new(this).args(arguments).env(ALONE, "1").status();
        return assert!(status.expect("it runs").success());
    }
    let limit_bytes = 1 << 30;
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_AS, limit_bytes, limit_bytes)
        .expect("a limit can be lowered");
    let mut bodies = Bodies::new();
    for bytes in [2_000, 8_192, 60_002, 10_000_000, BODY_BYTES_MAX] {
        let mut slots = Vec::new();
        let refused = loop {
            match bodies.allocate(bytes) {
                Ok(slot) => slots.push(slot),
                Err(error) => break error,
            }
        };
        assert_eq!(refused, OutOfMemory);
        assert_eq!(bodies.usage().slots, slots.len());
        assert_eq!(slots.is_empty(), bytes == BODY_BYTES_MAX);
        bodies.check();
        slots.into_iter().for_each(|slot| bodies.free(slot));
        reclaim_all(&mut bodies);
    }
}

#[test]
#[should_panic(expected = "a pinned body is not written")]
fn a_pinned_body_is_not_written() {
    let mut bodies = Bodies::new();
    let mut slot = bodies.allocate(60_002).expect("memory");
    let _pin = bodies.pin(&slot);
    bodies.bytes_mut(&mut slot);
}

/// The kernel's flags of the mapping at an address.
fn mapping_flags(address: usize) -> String {
    let smaps = std::fs::read_to_string("/proc/self/smaps").expect("there is /proc");
    let range = |line: &str| {
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
    };
    let is_head = |line: &&str| range(line).is_some_and(|range| range.contains(&address));
    let flags =
        smaps.lines().skip_while(|line| !is_head(line)).find_map(|line| line.strip_prefix("VmFlags:"));
    flags.expect("the address is mapped").to_owned()
}

/// A byte must not cost 2 MiB even if the system uses huge pages for all memory.
#[test]
fn no_memory_of_bodies_is_in_huge_pages() {
    if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        return println!("skipped: this kernel has no huge pages to refuse");
    }
    let mut bodies = Bodies::new();
    for len in [10, 5_000, 60_000, 1_500_000, 3_000_000] {
        let mut slot = bodies.allocate_unwritten(len).expect("there is memory");
        let address = bodies.bytes_mut(&mut slot).as_ptr().addr();
        let flags = mapping_flags(address);
        assert!(
            flags.split(' ').any(|flag| flag == "nh"),
            "a body of {len} bytes lies in memory with{flags}"
        );
        bodies.free(slot);
    }
}
