//! Histograms with fixed bounds, as Prometheus has them.

/// Counts values by how large they are.
#[derive(Clone, Debug)]
pub struct Histogram {
    bounds: &'static [u64],
    /// One more than there are bounds, for what is beyond the last.
    counts: Box<[u64]>,
    sum: u64,
}

impl Histogram {
    /// Nothing is counted yet. Bounds are inclusive, and in order.
    pub fn new(bounds: &'static [u64]) -> Self {
        assert!(bounds.is_sorted(), "bounds come in order");
        Self { bounds, counts: vec![0; bounds.len() + 1].into(), sum: 0 }
    }

    /// Counts a value.
    #[inline]
    pub fn add(&mut self, value: u64) {
        self.counts[self.bounds.partition_point(|&bound| bound < value)] += 1;
        self.sum = self.sum.saturating_add(value);
    }

    /// Each bound, with how many values were no larger.
    pub fn cumulative(&self) -> impl Iterator<Item = (u64, u64)> {
        let counts = self.counts.iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        });
        self.bounds.iter().copied().zip(counts)
    }

    /// How many values there were.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// What they add up to.
    pub const fn sum(&self) -> u64 {
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_belong_to_what_is_below_them() {
        let mut buckets = Histogram::new(&[1, 10, 100]);
        [0, 1, 2, 10, 11, 100, 101, 1000].into_iter().for_each(|value| buckets.add(value));
        assert_eq!(buckets.cumulative().collect::<Vec<_>>(), [(1, 2), (10, 4), (100, 6)]);
        assert_eq!((buckets.count(), buckets.sum()), (8, 1225));
    }
}
