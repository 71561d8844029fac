//! How long jobs wait and how long they are held: distributions of the times of one tube, and of the whole queue.
//!
//! A tube's are kept in 128 bins, three an octave from 1 us to 65 days, each 1.26 times as wide as the one before: a
//! percentile is told within 12 % (and half a microsecond) of the sample that it stands for. Jobs of one tube take similar
//! times, so only the bins around a sample get memory: eight counters, or 32 bytes, for each part of the range.
//!
//! The whole queue's are counted at fixed bounds, exactly.

use crate::limits::ALLOCATION_BYTES;
use crate::time::Span;

/// What is measured of each job, again and again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LatencyKind {
    /// From when it became ready to when it was reserved, pauses of its tube included.
    Queue,
    /// From when it was reserved to when its holder deleted, released or buried it, was out of time, or had gone.
    Held,
}

/// The samples of one tube.
pub struct TubeTimes {
    /// For each part of the range of each [`LatencyKind`] where its counters are: an index into `blocks` plus one, or zero where
    /// there have been no samples.
    places: [[u8; PARTS]; LATENCY_KINDS],
    blocks: Vec<Block>,
}

/// How many samples there are in each of eight bins in a row.
type Block = [u32; BLOCK_BINS];

/// Percentiles of a time; zero while there are no samples, and at least 1 us else.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[allow(missing_docs)]
pub struct Percentiles {
    pub p50: Span,
    pub p95: Span,
    pub p99: Span,
}

/// The samples of one time over the whole queue, since the start.
#[derive(Default)]
pub struct Times {
    counts: [u64; BOUNDS.len() + 1],
    sum_ns: u128,
}

/// The times of the whole queue.
#[derive(Default)]
pub struct QueueTimes([Times; LATENCY_KINDS]);

/// Where [`Times`] are counted.
pub const BOUNDS: [Span; 13] = [
    Span::from_nanos(100_000),
    Span::from_millis(1),
    Span::from_millis(5),
    Span::from_millis(10),
    Span::from_millis(50),
    Span::from_millis(100),
    Span::from_millis(500),
    Span::from_secs(1),
    Span::from_secs(5),
    Span::from_secs(10),
    Span::from_secs(60),
    Span::from_secs(600),
    Span::from_secs(3600),
];

/// A sample, and the bin that it belongs into.
#[derive(Clone, Copy)]
pub(super) struct Sample {
    ns: u64,
    bin: u8,
}

const LATENCY_KINDS: usize = 2;
const BINS: usize = 128;
const BLOCK_BINS: usize = 8;
const PARTS: usize = BINS / BLOCK_BINS;
/// Of the first bin, which has everything below it too: 1.024 us.
const LOWEST_NS: u64 = 1 << LOWEST_SHIFT;
const LOWEST_SHIFT: u32 = 10;
/// 2^(1/3) and 2^(2/3), shifted to the top bit: they cut an octave into three parts of equal ratio.
const CUTS: [u64; 2] = [0xa145_17cc_6b94_5711, 0xcb2f_f529_eb71_e416];

/// For each bin how many bounds lie below it. One more may lie in it.
const BOUNDS_BELOW: [u8; BINS] = {
    let mut below = [0; BINS];
    let mut bin = 1;
    while bin < BINS {
        let mut bound = below[bin - 1];
        while (bound as usize) < BOUNDS.len() && BOUNDS[bound as usize].as_nanos() < edge_ns(bin) {
            bound += 1;
        }
        assert!(bound - below[bin - 1] <= 1, "no two bounds lie in one bin");
        below[bin] = bound;
        bin += 1;
    }
    assert!(below[BINS - 1] as usize == BOUNDS.len(), "all bounds lie below the last bin");
    below
};

const _: () = assert!(LATENCY_KINDS * PARTS < u8::MAX as usize, "the places of all blocks fit");

impl Percentiles {
    /// The smallest first.
    pub const fn in_order(&self) -> [Span; 3] {
        [self.p50, self.p95, self.p99]
    }
}

impl TubeTimes {
    /// What one takes that has counters for one part of a range; each further part adds [`Self::PART_BYTES`].
    pub(super) const BYTES_MIN: usize =
        size_of::<Self>() + ALLOCATION_BYTES + ALLOCATION_BYTES + Self::PART_BYTES;
    pub(super) const PART_BYTES: usize = size_of::<Block>();

    /// Without any counters.
    pub(super) fn new() -> Box<Self> {
        Box::new(Self { places: [[0; PARTS]; LATENCY_KINDS], blocks: Vec::new() })
    }

    /// The memory that it takes.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + ALLOCATION_BYTES + ALLOCATION_BYTES + self.blocks.capacity() * Self::PART_BYTES
    }

    /// Counts a sample. False if there are no counters for it yet.
    #[inline]
    pub(super) fn note(&mut self, lapse: LatencyKind, sample: Sample) -> bool {
        let bin = usize::from(sample.bin);
        let place = usize::from(self.places[lapse as usize][bin / BLOCK_BINS]);
        let Some(block) = self.blocks.get_mut(place.wrapping_sub(1)) else { return false };
        let count = &mut block[bin % BLOCK_BINS];
        *count += 1;
        if *count == u32::MAX {
            self.halve(lapse);
        }
        true
    }

    /// Makes the counters that a sample needs and that there are none of yet.
    #[cold]
    pub(super) fn make_room(&mut self, lapse: LatencyKind, sample: Sample) {
        let place = &mut self.places[lapse as usize][usize::from(sample.bin) / BLOCK_BINS];
        assert_eq!(*place, 0, "counters are made once");
        // Rarely more than a few: memory matters more than growing at once.
        self.blocks.reserve_exact(1);
        self.blocks.push([0; BLOCK_BINS]);
        *place = self.blocks.len() as u8;
    }

    /// The percentiles of one of the times.
    pub fn percentiles(&self, lapse: LatencyKind) -> Percentiles {
        let counts = || {
            let blocks = self.places[lapse as usize].iter().map(|&place| match place {
                0 => [0; BLOCK_BINS],
                place => self.blocks[usize::from(place) - 1],
            });
            blocks.flatten().map(u64::from)
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

    /// Every four thousand million samples the earlier ones come to count half.
    #[cold]
    fn halve(&mut self, lapse: LatencyKind) {
        for &place in self.places[lapse as usize].iter().filter(|&&place| place > 0) {
            self.blocks[usize::from(place) - 1].iter_mut().for_each(|count| *count /= 2);
        }
    }
}

impl Times {
    #[inline]
    pub(super) fn note(&mut self, sample: Sample) {
        let below = usize::from(BOUNDS_BELOW[usize::from(sample.bin)]);
        let is_above = BOUNDS.get(below).is_some_and(|bound| sample.ns > bound.as_nanos());
        self.counts[below + usize::from(is_above)] += 1;
        self.sum_ns += u128::from(sample.ns);
    }

    /// Each of the [`BOUNDS`] with how many samples are not above it.
    pub fn cumulative(&self) -> impl ExactSizeIterator<Item = (Span, u64)> {
        let mut sum = 0;
        BOUNDS.iter().zip(&self.counts).map(move |(&bound, count)| {
            sum += count;
            (bound, sum)
        })
    }

    /// How many samples there are.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// All of them together, in nanoseconds.
    pub const fn sum_ns(&self) -> u128 {
        self.sum_ns
    }
}

impl QueueTimes {
    pub(super) const fn get(&self, lapse: LatencyKind) -> &Times {
        &self.0[lapse as usize]
    }

    /// Takes note of a sample, and returns it for the tube to do so too.
    #[inline]
    pub(super) fn note(&mut self, lapse: LatencyKind, span: Span) -> Sample {
        let sample = Sample::new(span);
        self.0[lapse as usize].note(sample);
        sample
    }
}

impl Sample {
    #[inline]
    pub(super) fn new(span: Span) -> Self {
        let ns = span.as_nanos();
        let binned = ns.max(LOWEST_NS);
        let zeros = binned.leading_zeros();
        let octave = 63 - LOWEST_SHIFT - zeros;
        let scaled = binned << zeros;
        let part = u32::from(scaled >= CUTS[0]) + u32::from(scaled >= CUTS[1]);
        Self { ns, bin: (3 * octave + part).min(BINS as u32 - 1) as u8 }
    }
}

/// The least that belongs into a bin.
const fn edge_ns(bin: usize) -> u64 {
    let shift = bin as u32 / 3 + LOWEST_SHIFT;
    match bin % 3 {
        0 => 1 << shift,
        part => CUTS[part - 1].div_ceil(1 << (63 - shift)),
    }
}

/// What is equally far, as a ratio, from the least and the most in a bin, in whole microseconds.
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
    fn every_time_is_in_the_bin_whose_edges_enclose_it() {
        for bin in 1..BINS {
            let edge = edge_ns(bin);
            let bin_of = |ns| usize::from(Sample::new(Span::from_nanos(ns)).bin);
            assert_eq!((bin_of(edge - 1), bin_of(edge)), (bin - 1, bin), "{edge} ns");
        }
        assert_eq!(Sample::new(Span::ZERO).bin, 0);
        assert_eq!(usize::from(Sample::new(Span::from_nanos(u64::MAX)).bin), BINS - 1);
    }

    #[test]
    fn the_middle_of_a_bin_is_within_12_percent_of_all_in_it() {
        for bin in 0..BINS - 1 {
            let middle = middle(bin).as_nanos() as f64;
            for sample in [edge_ns(bin), edge_ns(bin + 1) - 1] {
                let error = (middle - sample as f64).abs();
                assert!(error <= 0.12 * sample as f64 + 500.0, "{sample} ns is told as {middle}");
            }
        }
        assert!(edge_ns(BINS - 1) > 60 * 24 * 3600 * 1_000_000_000, "the last bin begins at two months");
    }

    #[test]
    fn without_samples_there_are_no_percentiles_and_the_shortest_is_a_microsecond() {
        let mut times = TubeTimes::new();
        assert_eq!(times.percentiles(LatencyKind::Queue), Percentiles::default());
        note(&mut times, LatencyKind::Queue, Sample::new(Span::ZERO));
        assert_eq!(times.percentiles(LatencyKind::Queue).in_order(), [Span::from_nanos(1000); 3]);
        assert_eq!(times.percentiles(LatencyKind::Held), Percentiles::default());
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
            let mut times = TubeTimes::new();
            for &ns in &samples {
                note(&mut times, LatencyKind::Held, Sample::new(Span::from_nanos(ns)));
            }
            samples.sort_unstable();
            let told = times.percentiles(LatencyKind::Held).in_order();
            for (percent, span) in [50, 95, 99].into_iter().zip(told) {
                let sample = samples[(samples.len() * percent).div_ceil(100) - 1] as f64;
                let error = (span.as_nanos() as f64 - sample).abs();
                assert!(error <= 0.12 * sample + 500.0, "p{percent} of {count}: {sample} ns, not {span:?}");
            }
        }
    }

    #[test]
    fn counts_at_the_bounds_are_exact() {
        let mut times = Times::default();
        let mut samples = vec![0, 1, u64::MAX];
        for bound in BOUNDS {
            samples.extend([bound.as_nanos() - 1, bound.as_nanos(), bound.as_nanos() + 1]);
        }
        samples.extend((0..10_000).map(|n| mix(n) >> (n % 60)));
        for &ns in &samples {
            times.note(Sample::new(Span::from_nanos(ns)));
        }
        for (bound, count) in times.cumulative() {
            let expected = samples.iter().filter(|&&ns| ns <= bound.as_nanos()).count();
            assert_eq!(count, expected as u64, "{bound:?}");
        }
        assert_eq!(times.count(), samples.len() as u64);
        assert_eq!(times.sum_ns(), samples.iter().map(|&ns| u128::from(ns)).sum());
    }

    #[test]
    fn a_count_that_is_full_is_halved_with_its_neighbours() {
        let mut times = TubeTimes::new();
        let [short, long] = [1000, 1_000_000].map(|ns| Sample::new(Span::from_nanos(ns)));
        let samples = [
            (LatencyKind::Queue, short),
            (LatencyKind::Queue, long),
            (LatencyKind::Held, short),
            (LatencyKind::Held, long),
        ];
        for ((lapse, sample), count) in samples.into_iter().zip([u32::MAX - 1, 1000, 7, 7]) {
            times.make_room(lapse, sample);
            *count_mut(&mut times, lapse, sample) = count;
        }
        assert!(times.note(LatencyKind::Queue, short));
        for ((lapse, sample), count) in samples.into_iter().zip([u32::MAX / 2, 500, 7, 7]) {
            assert_eq!(*count_mut(&mut times, lapse, sample), count, "{lapse:?}");
        }
    }

    #[test]
    fn a_tube_with_usual_times_takes_a_small_part_of_what_all_times_take() {
        let mut times = TubeTimes::new();
        for us in 0..1000 {
            note(&mut times, LatencyKind::Queue, Sample::new(Span::from_nanos(20_000 + us * 50)));
            note(&mut times, LatencyKind::Held, Sample::new(Span::from_nanos(2_000_000 + us * 5000)));
        }
        assert!(times.bytes() <= 250, "{} bytes", times.bytes());
        for lapse in [LatencyKind::Queue, LatencyKind::Held] {
            (0..64).for_each(|shift| note(&mut times, lapse, Sample::new(Span::from_nanos(1 << shift))));
        }
        let most = TubeTimes::BYTES_MIN + (LATENCY_KINDS * PARTS - 1) * TubeTimes::PART_BYTES;
        assert_eq!(times.bytes(), most);
        assert!(most < 1200, "{most} bytes at most");
    }

    fn note(times: &mut TubeTimes, lapse: LatencyKind, sample: Sample) {
        if !times.note(lapse, sample) {
            times.make_room(lapse, sample);
            assert!(times.note(lapse, sample), "there is room by now");
        }
    }

    fn count_mut(times: &mut TubeTimes, lapse: LatencyKind, sample: Sample) -> &mut u32 {
        let bin = usize::from(sample.bin);
        let place = times.places[lapse as usize][bin / BLOCK_BINS];
        &mut times.blocks[usize::from(place) - 1][bin % BLOCK_BINS]
    }
}
