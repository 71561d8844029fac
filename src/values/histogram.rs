//! Histograms with fixed bounds, in the form that Prometheus uses.

/// The most bounds that a histogram can have.
const BOUNDS_MAX: usize = 16;

/// Counts values by size.
#[derive(Clone, Debug)]
pub struct Histogram {
    bounds: &'static [u64],
    /// The number of bounds that are below every value of a length in bits: where the search for its bucket begins. With the
    /// usual bounds, it ends one or two places on.
    below: [u8; u64::BITS as usize + 1],
    /// The bucket at an index has the values up to the bound at that index. The bucket after the last bound has the rest.
    counts: [u64; BOUNDS_MAX + 1],
    /// Jobs that wait for weeks overflow 64 bits of nanoseconds.
    sum: u128,
}

impl Histogram {
    /// An empty histogram. A value that equals a bound belongs below it.
    ///
    /// # Panics
    /// If the bounds are not sorted, or if there are more than 16.
    pub const fn new(bounds: &'static [u64]) -> Self {
        assert!(bounds.len() <= BOUNDS_MAX, "a histogram has room for its bounds");
        let mut at = 1;
        while at < bounds.len() {
            assert!(bounds[at - 1] < bounds[at], "bounds are sorted");
            at += 1;
        }
        let mut below = [0; u64::BITS as usize + 1];
        let (mut bits, mut bucket) = (1, 0);
        while bits < below.len() {
            while bucket < bounds.len() && bounds[bucket] < 1 << (bits - 1) {
                bucket += 1;
            }
            below[bits] = bucket as u8;
            bits += 1;
        }
        Self { bounds, below, counts: [0; BOUNDS_MAX + 1], sum: 0 }
    }

    /// Counts a value.
    #[inline]
    pub fn add(&mut self, value: u64) {
        let bits = u64::BITS - value.leading_zeros();
        let mut bucket = usize::from(self.below[bits as usize]);
        while self.bounds.get(bucket).is_some_and(|&bound| bound < value) {
            bucket += 1;
        }
        self.add_to(bucket, value);
    }

    /// Counts a value that is above the first `below` bounds and at most one more. Spares the search of [`add`](Self::add).
    #[inline]
    pub fn add_above(&mut self, below: usize, value: u64) {
        let is_above = self.bounds.get(below).is_some_and(|&bound| value > bound);
        self.add_to(below + usize::from(is_above), value);
    }

    #[inline]
    fn add_to(&mut self, bucket: usize, value: u64) {
        self.counts[bucket] += 1;
        self.sum += u128::from(value);
    }

    /// Returns each bound with the number of values up to it.
    pub fn cumulative(&self) -> impl Iterator<Item = (u64, u64)> {
        let counts = self.counts.iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        });
        self.bounds.iter().copied().zip(counts)
    }

    /// Returns the least bound that this many percent of the values do not exceed: 0 without values, and the last bound if
    /// there is none.
    pub fn bound_of(&self, percent: u64) -> u64 {
        let count = self.count();
        let is_enough =
            |&(_, below): &(u64, u64)| u128::from(below) * 100 >= u128::from(count) * u128::from(percent);
        match count {
            0 => 0,
            _ => self
                .cumulative()
                .find(is_enough)
                .map_or(*self.bounds.last().unwrap_or(&0), |(bound, _)| bound),
        }
    }

    /// The number of values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of all values.
    pub const fn sum(&self) -> u128 {
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_equals_a_bound_belongs_below_it() {
        let mut histogram = Histogram::new(&[1, 10, 100]);
        [0, 1, 2, 10, 11, 100, 101, 1000].into_iter().for_each(|value| histogram.add(value));
        assert_eq!(histogram.cumulative().collect::<Vec<_>>(), [(1, 2), (10, 4), (100, 6)]);
        assert_eq!((histogram.count(), histogram.sum()), (8, 1225));
        assert_eq!(
            [0, 25, 26, 75, 76, 100].map(|percent| histogram.bound_of(percent)),
            [1, 1, 10, 100, 100, 100]
        );
        assert_eq!(Histogram::new(&[1]).bound_of(99), 0);
    }

    #[test]
    fn the_bucket_of_a_value_is_found_from_its_length() {
        const BOUNDS: [u64; 8] = [0, 1, 3, 4, 1000, 1001, 1 << 40, u64::MAX];
        let powers = (0..u64::BITS).map(|bit| 1 << bit);
        let values =
            powers.chain(BOUNDS).flat_map(|value| [value.saturating_sub(1), value, value.saturating_add(1)]);
        for value in values {
            let mut histogram = Histogram::new(&BOUNDS);
            histogram.add(value);
            let first = BOUNDS.iter().position(|&bound| value <= bound);
            assert_eq!(histogram.counts.iter().position(|&count| count == 1), first, "{value}");
        }
    }

    #[test]
    fn a_sum_does_not_overflow() {
        let mut histogram = Histogram::new(&[1]);
        [u64::MAX, u64::MAX].into_iter().for_each(|value| histogram.add(value));
        assert_eq!(histogram.sum(), 2 * u128::from(u64::MAX));
    }
}
