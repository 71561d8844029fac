//! How long jobs wait and how long they are reserved: percentiles per tube, histograms for the whole queue.
//!
//! A tube keeps its samples in 128 bins: three per octave from 1 us to 65 days, each 1.26 times as wide as the one below.
//! A percentile is within 12 % (and half a microsecond) of the sample at that rank. Jobs of one tube take similar times,
//! so memory is allocated only for the bins around a sample: a block of eight counters for each of two windows, or 64 bytes.
//!
//! Percentiles tell what is the case now: they cover the current window of five minutes, and the one before it.
//!
//! The whole queue has a [`Histogram`] per kind, which is exact.

use crate::time::{Span, Time};
use crate::values::histogram::Histogram;
use crate::values::limits::ALLOCATION_BYTES;

/// The two times that are measured per reservation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LatencyKind {
    /// From ready to reserved. Includes pauses of the tube.
    Queue,
    /// From reserved to deleted, released, buried, timed out or returned by a disconnect.
    Reserved,
}

const LATENCY_KINDS: usize = 2;

/// The length of a window. Percentiles are those of the last 5 to 10 minutes.
const WINDOW: Span = Span::from_secs(300);

/// The samples of one tube, in some 250 bytes as a rule and 2.2 KiB at most.
pub struct TubeLatency {
    /// One more than the index into `blocks` for each group of eight bins. Zero while the group has no samples.
    block_of: [[u8; GROUPS]; LATENCY_KINDS],
    blocks: Vec<BinBlock>,
    /// The end of the current window.
    window_end: Time,
    sums: [TimeSum; LATENCY_KINDS],
}

/// The number and the sum of all samples since the tube exists.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct TimeSum {
    /// Number of samples.
    pub count: u64,
    /// A floating-point number, because jobs that wait for weeks overflow 64 bits of nanoseconds.
    pub ns: f64,
}

/// The numbers of samples in eight adjacent bins: of the current window, and of the one before it.
type BinBlock = [[u32; BLOCK_BINS]; 2];

/// Percentiles of one kind. Zero without samples, otherwise at least 1 us.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[allow(missing_docs)]
pub struct Percentiles {
    pub p50: Span,
    pub p95: Span,
    pub p99: Span,
}

/// The samples of the whole queue since the start.
pub struct QueueLatency([Histogram; LATENCY_KINDS]);

/// Bounds of the histograms, in nanoseconds: from 100 us to an hour.
const BOUNDS_NS: [u64; 13] = [
    100_000,
    1_000_000,
    5_000_000,
    10_000_000,
    50_000_000,
    100_000_000,
    500_000_000,
    1_000_000_000,
    5_000_000_000,
    10_000_000_000,
    60_000_000_000,
    600_000_000_000,
    3_600_000_000_000,
];

/// A measured time and its bin.
#[derive(Clone, Copy)]
pub(in crate::queue) struct Sample {
    ns: u64,
    bin: u8,
}

const BINS: usize = 128;
const BLOCK_BINS: usize = 8;
const GROUPS: usize = BINS / BLOCK_BINS;
/// The lower edge of the second octave, 1.024 us. The first bin also has everything below its own edge.
const LOWEST_NS: u64 = 1 << LOWEST_SHIFT;
const LOWEST_SHIFT: u32 = 10;
/// 2^(1/3) and 2^(2/3), shifted to the top bit: they cut an octave into three parts of equal ratio.
const CUTS: [u64; 2] = [0xa145_17cc_6b94_5711, 0xcb2f_f529_eb71_e416];

/// For each bin, the number of [`BOUNDS_NS`] below it. One more may lie in the bin.
const BOUNDS_BELOW: [u8; BINS] = {
    let mut below = [0; BINS];
    let mut bin = 1;
    while bin < BINS {
        let mut bound = below[bin - 1];
        while (bound as usize) < BOUNDS_NS.len() && BOUNDS_NS[bound as usize] < edge_ns(bin) {
            bound += 1;
        }
        assert!(bound - below[bin - 1] <= 1, "no two bounds lie in one bin");
        below[bin] = bound;
        bin += 1;
    }
    assert!(below[BINS - 1] as usize == BOUNDS_NS.len(), "all bounds lie below the last bin");
    below
};

const _: () = assert!(LATENCY_KINDS * GROUPS < u8::MAX as usize, "a byte can index every block");

impl Percentiles {
    /// The percentiles, smallest first.
    pub const fn in_order(&self) -> [Span; 3] {
        [self.p50, self.p95, self.p99]
    }
}

impl TubeLatency {
    /// Memory with one block of counters. Each further block adds [`Self::BLOCK_BYTES`].
    pub(in crate::queue) const BYTES_MIN: usize =
        size_of::<Self>() + ALLOCATION_BYTES + ALLOCATION_BYTES + Self::BLOCK_BYTES;
    pub(in crate::queue) const BLOCK_BYTES: usize = size_of::<BinBlock>();

    /// Counters whose first window begins now.
    pub(in crate::queue) fn new(now: Time) -> Box<Self> {
        Box::new(Self {
            block_of: [[0; GROUPS]; LATENCY_KINDS],
            blocks: Vec::new(),
            window_end: now + WINDOW,
            sums: Default::default(),
        })
    }

    pub(in crate::queue) fn bytes(&self) -> usize {
        size_of::<Self>() + ALLOCATION_BYTES + ALLOCATION_BYTES + self.blocks.capacity() * Self::BLOCK_BYTES
    }

    /// Counts a sample. Returns false if its block is [not allocated](Self::add_block).
    #[inline]
    pub(in crate::queue) fn add(&mut self, kind: LatencyKind, sample: Sample, now: Time) -> bool {
        if now >= self.window_end {
            self.begin_window(now);
        }
        let bin = usize::from(sample.bin);
        let block = usize::from(self.block_of[kind as usize][bin / BLOCK_BINS]);
        let Some(block) = self.blocks.get_mut(block.wrapping_sub(1)) else { return false };
        let sum = &mut self.sums[kind as usize];
        sum.count += 1;
        sum.ns += sample.ns as f64;
        let count = &mut block[0][bin % BLOCK_BINS];
        // No server takes 14 million jobs per second.
        *count = count.saturating_add(1);
        true
    }

    /// Allocates the block of counters that a sample needs.
    #[cold]
    pub(in crate::queue) fn add_block(&mut self, kind: LatencyKind, sample: Sample) {
        let block = &mut self.block_of[kind as usize][usize::from(sample.bin) / BLOCK_BINS];
        assert_eq!(*block, 0, "a block is allocated once");
        // A tube rarely has more than a few blocks: exact growth costs less memory than doubling.
        self.blocks.reserve_exact(1);
        self.blocks.push([[0; BLOCK_BINS]; 2]);
        *block = self.blocks.len() as u8;
    }

    /// Computes the percentiles of one kind for the current window and the one before it. Looks at every bin.
    // Bounded by BINS: the bins of one histogram.
    pub fn percentiles(&self, kind: LatencyKind, now: Time) -> Percentiles {
        // The windows that are not over for longer than one.
        let windows = match now {
            _ if now < self.window_end => 2,
            _ if now < self.window_end + WINDOW => 1,
            _ => 0,
        };
        let counts = || {
            let blocks = self.block_of[kind as usize].iter().map(move |&block| match block {
                0 => [0; BLOCK_BINS],
                block => {
                    let counts = &self.blocks[usize::from(block) - 1][..windows];
                    std::array::from_fn(|bin| counts.iter().map(|window| u64::from(window[bin])).sum())
                }
            });
            blocks.flatten()
        };
        let total: u64 = counts().sum();
        if total == 0 {
            return Percentiles::default();
        }
        let percentile = |percent: u64| {
            let mut left = (total * percent).div_ceil(100);
            let bin = counts().position(|count| {
                let is_here = count >= left;
                left = left.saturating_sub(count);
                is_here
            });
            middle(bin.expect("the ranks end at the total"))
        };
        Percentiles { p50: percentile(50), p95: percentile(95), p99: percentile(99) }
    }

    /// The number and the sum of the samples of one kind.
    pub const fn sum(&self, kind: LatencyKind) -> TimeSum {
        self.sums[kind as usize]
    }

    #[cold]
    fn begin_window(&mut self, now: Time) {
        let next_end = self.window_end + WINDOW;
        let follows = now < next_end;
        // Bounded by BINS: the bins of two histograms.
        for [current, before] in &mut self.blocks {
            *before = if follows { *current } else { [0; BLOCK_BINS] };
            *current = [0; BLOCK_BINS];
        }
        self.window_end = if follows { next_end } else { now + WINDOW };
    }
}

impl QueueLatency {
    pub(in crate::queue) const fn new() -> Self {
        Self([const { Histogram::new(&BOUNDS_NS) }; LATENCY_KINDS])
    }

    pub(in crate::queue) const fn get(&self, kind: LatencyKind) -> &Histogram {
        &self.0[kind as usize]
    }

    /// Counts a time. Returns it as a sample for the percentiles of the tube.
    #[inline]
    pub(in crate::queue) fn add(&mut self, kind: LatencyKind, span: Span) -> Sample {
        let sample = Sample::new(span);
        let below = usize::from(BOUNDS_BELOW[usize::from(sample.bin)]);
        self.0[kind as usize].add_above(below, sample.ns);
        sample
    }
}

impl Sample {
    #[inline]
    pub(in crate::queue) fn new(span: Span) -> Self {
        let ns = span.as_nanos();
        let binned = ns.max(LOWEST_NS);
        let zeros = binned.leading_zeros();
        let octave = 63 - LOWEST_SHIFT - zeros;
        let scaled = binned << zeros;
        let part = u32::from(scaled >= CUTS[0]) + u32::from(scaled >= CUTS[1]);
        Self { ns, bin: (3 * octave + part).min(BINS as u32 - 1) as u8 }
    }
}

/// The lower edge of a bin, in nanoseconds.
const fn edge_ns(bin: usize) -> u64 {
    let shift = bin as u32 / 3 + LOWEST_SHIFT;
    match bin % 3 {
        0 => 1 << shift,
        part => CUTS[part - 1].div_ceil(1 << (63 - shift)),
    }
}

/// The time at equal ratio to both edges of a bin, in whole microseconds.
fn middle(bin: usize) -> Span {
    let (low, high) = (u128::from(edge_ns(bin)), u128::from(edge_ns(bin + 1)));
    let middle_ns = 2 * low * high / (low + high);
    Span::from_nanos(((middle_ns + 500) / 1000 * 1000) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intrusive::mix;

    #[test]
    fn a_sample_belongs_to_the_bin_whose_edges_enclose_it() {
        for bin in 1..BINS {
            let edge = edge_ns(bin);
            let bin_of = |ns| usize::from(Sample::new(Span::from_nanos(ns)).bin);
            assert_eq!((bin_of(edge - 1), bin_of(edge)), (bin - 1, bin), "{edge} ns");
        }
        assert_eq!(Sample::new(Span::ZERO).bin, 0);
        assert_eq!(usize::from(Sample::new(Span::from_nanos(u64::MAX)).bin), BINS - 1);
    }

    #[test]
    fn the_middle_of_a_bin_is_within_12_percent_of_every_sample_in_it() {
        for bin in 0..BINS - 1 {
            let middle = middle(bin).as_nanos() as f64;
            for sample in [edge_ns(bin), edge_ns(bin + 1) - 1] {
                let error = (middle - sample as f64).abs();
                assert!(error <= 0.12 * sample as f64 + 500.0, "{sample} ns is reported as {middle}");
            }
        }
        assert!(edge_ns(BINS - 1) > 60 * 24 * 3600 * 1_000_000_000, "the last bin begins at two months");
    }

    #[test]
    fn percentiles_are_zero_without_samples_and_at_least_a_microsecond_with_them() {
        let mut times = TubeLatency::new(Time::ZERO);
        assert_eq!(times.percentiles(LatencyKind::Queue, Time::ZERO), Percentiles::default());
        add(&mut times, LatencyKind::Queue, Sample::new(Span::ZERO));
        assert_eq!(times.percentiles(LatencyKind::Queue, Time::ZERO).in_order(), [Span::from_nanos(1000); 3]);
        assert_eq!(times.percentiles(LatencyKind::Reserved, Time::ZERO), Percentiles::default());
    }

    #[test]
    fn percentiles_are_near_those_of_the_sorted_samples() {
        for seed in 0..200_u64 {
            println!("seed {seed}");
            let mut state = mix(seed);
            let mut random = || {
                state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                mix(state)
            };
            let (count, octaves) = (1 + random() % 3000, 1 + random() % 40);
            // Of any magnitude, from 1 us on: each octave as often.
            let mut draw = || 1000 + (random() >> (63 - random() % octaves - 10));
            let mut samples: Vec<u64> = (0..count).map(|_| draw()).collect();
            let mut times = TubeLatency::new(Time::ZERO);
            for &ns in &samples {
                add(&mut times, LatencyKind::Reserved, Sample::new(Span::from_nanos(ns)));
            }
            samples.sort_unstable();
            let reported = times.percentiles(LatencyKind::Reserved, Time::ZERO).in_order();
            for (percent, span) in [50, 95, 99].into_iter().zip(reported) {
                let sample = samples[(samples.len() * percent).div_ceil(100) - 1] as f64;
                let error = (span.as_nanos() as f64 - sample).abs();
                assert!(error <= 0.12 * sample + 500.0, "p{percent} of {count}: {sample} ns, not {span:?}");
            }
        }
    }

    #[test]
    fn a_histogram_is_exact_at_its_bounds() {
        let mut latency = QueueLatency::new();
        let mut samples = vec![0, 1, u64::MAX];
        for bound in BOUNDS_NS {
            samples.extend([bound - 1, bound, bound + 1]);
        }
        samples.extend((0..10_000).map(|n| mix(n) >> (n % 60)));
        for &ns in &samples {
            latency.add(LatencyKind::Queue, Span::from_nanos(ns));
        }
        let histogram = latency.get(LatencyKind::Queue);
        for (bound, count) in histogram.cumulative() {
            let expected = samples.iter().filter(|&&ns| ns <= bound).count();
            assert_eq!(count, expected as u64, "{bound} ns");
        }
        assert_eq!(histogram.count(), samples.len() as u64);
        assert_eq!(latency.get(LatencyKind::Reserved).count(), 0);
        assert_eq!(histogram.sum(), samples.iter().map(|&ns| u128::from(ns)).sum());
    }

    #[test]
    fn percentiles_are_those_of_the_last_minutes() {
        let mut times = TubeLatency::new(Time::ZERO);
        let [short, long] = [2000, 1_000_000_000].map(|ns| Sample::new(Span::from_nanos(ns)));
        let at = |seconds| Time::ZERO + Span::from_secs(seconds);
        let p50 = |times: &TubeLatency, seconds| {
            let percentiles = times.percentiles(LatencyKind::Queue, at(seconds));
            percentiles.p50.as_nanos() / 1_000_000
        };
        add_at(&mut times, LatencyKind::Queue, long, at(10));
        for second in [11, 200, 299, 300, 599] {
            assert!(p50(&times, second) > 900, "{second}");
        }
        assert_eq!(times.percentiles(LatencyKind::Queue, at(600)), Percentiles::default());
        // Three short ones in the next window are more than the one before.
        for second in [310, 320, 599] {
            add_at(&mut times, LatencyKind::Queue, short, at(second));
        }
        assert_eq!(p50(&times, 599), 0);
        assert!(times.percentiles(LatencyKind::Queue, at(599)).p99.as_nanos() > 900_000_000);
        // The long one is over.
        add_at(&mut times, LatencyKind::Queue, short, at(600));
        assert!(times.percentiles(LatencyKind::Queue, at(600)).p99.as_nanos() < 10_000);
        // After a pause of more than a window nothing is left of either.
        add_at(&mut times, LatencyKind::Queue, long, at(5000));
        assert!(p50(&times, 5000) > 900);
        assert_eq!(times.sum(LatencyKind::Queue).count, 6);
    }

    #[test]
    fn usual_latencies_take_little_memory() {
        let mut times = TubeLatency::new(Time::ZERO);
        for us in 0..1000 {
            add(&mut times, LatencyKind::Queue, Sample::new(Span::from_nanos(20_000 + us * 50)));
            add(&mut times, LatencyKind::Reserved, Sample::new(Span::from_nanos(2_000_000 + us * 5000)));
        }
        assert!(times.bytes() <= 380, "{} bytes", times.bytes());
        for kind in [LatencyKind::Queue, LatencyKind::Reserved] {
            (0..64).for_each(|shift| add(&mut times, kind, Sample::new(Span::from_nanos(1 << shift))));
        }
        let most = TubeLatency::BYTES_MIN + (LATENCY_KINDS * GROUPS - 1) * TubeLatency::BLOCK_BYTES;
        assert_eq!(times.bytes(), most);
        assert!(most < 2270, "{most} bytes at most");
    }

    fn add(times: &mut TubeLatency, kind: LatencyKind, sample: Sample) {
        add_at(times, kind, sample, Time::ZERO);
    }

    fn add_at(times: &mut TubeLatency, kind: LatencyKind, sample: Sample, now: Time) {
        if !times.add(kind, sample, now) {
            times.add_block(kind, sample);
            assert!(times.add(kind, sample, now), "the block is allocated");
        }
    }
}
