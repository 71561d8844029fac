//! A confidence interval for the ratio of two series.
//!
//! The interval is that of Hodges and Lehmann, from the exact distribution of the rank sum (Mann and Whitney). It needs no
//! normal distribution, and a few outliers do not move it: times on a shared machine have many.

/// By how much the second series differs from the first, as a factor.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ratio {
    /// The median of the ratios of all pairs.
    pub middle: f64,
    pub low: f64,
    pub high: f64,
}

impl Ratio {
    /// Estimates how many times the values of `before` the values of `after` are. All must be positive. The true ratio is
    /// outside the interval with the probability `error` at most. Returns `None` if the series are too short for that.
    pub fn estimate(before: &[f64], after: &[f64], error: f64) -> Option<Ratio> {
        let chances = rank_sum_chances(before.len(), after.len());
        let mut sum = 0.0;
        let left_out = chances.iter().take_while(|&chance| {
            sum += chance;
            sum <= error / 2.0
        });
        let first = left_out.count().checked_sub(1)?;
        let mut ratios: Vec<f64> = after.iter().flat_map(|b| before.iter().map(move |a| b / a)).collect();
        ratios.sort_by(f64::total_cmp);
        let (middle, last) = (ratios.len() / 2, ratios.len() - 1);
        let middle =
            if ratios.len() % 2 == 1 { ratios[middle] } else { (ratios[middle - 1] * ratios[middle]).sqrt() };
        Some(Ratio { middle, low: ratios[first], high: ratios[last - first] })
    }
}

/// Returns how many values each of two series must have for an interval with this error.
pub fn values_needed(error: f64) -> usize {
    // The chance that all values of one series precede those of the other: 1 in (2n choose n).
    let mut chance = 1.0;
    (1..)
        .find(|&n| {
            let n = n as f64;
            chance *= n / (2.0 * (2.0 * n - 1.0));
            chance <= error / 2.0
        })
        .expect("the chance falls below any error")
}

/// Returns the chance of each number of pairs in which the value of the second series is the smaller one, if the series have
/// these lengths and do not differ.
fn rank_sum_chances(m: usize, n: usize) -> Vec<f64> {
    // Of j values of the second series and i of the first, for the current i and each j.
    let mut by_j: Vec<Vec<f64>> = vec![vec![1.0]; n + 1];
    for i in 1..=m {
        let mut fewer: Vec<f64> = vec![1.0];
        for j in 1..=n {
            let mut chances = vec![0.0; i * j + 1];
            // The largest value is of the first series, and all j are smaller, or it is of the second.
            let share = i as f64 / (i + j) as f64;
            for (u, chance) in by_j[j].iter().enumerate() {
                chances[u + j] += share * chance;
            }
            for (u, chance) in fewer.iter().enumerate() {
                chances[u] += (1.0 - share) * chance;
            }
            by_j[j].clone_from(&chances);
            fewer = chances;
        }
    }
    by_j.swap_remove(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From tables of the test: the largest rank sum at which a two-sided test with an error of 5 % finds a difference.
    #[test]
    fn the_distribution_is_that_of_the_tables() {
        for (m, n, critical) in [(4, 4, 0), (5, 5, 2), (5, 8, 6), (10, 10, 23), (20, 20, 127)] {
            let chances = rank_sum_chances(m, n);
            assert!((chances.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            let up_to = |u: usize| chances[..=u].iter().sum::<f64>();
            assert!(up_to(critical) <= 0.025 && up_to(critical + 1) > 0.025, "{m}, {n}");
        }
    }

    #[test]
    fn short_series_have_no_interval() {
        assert_eq!([0.2, 0.05, 0.01, 0.001].map(values_needed), [3, 4, 5, 7]);
        for error in [0.2, 0.05, 0.01, 0.001] {
            let enough = vec![1.0; values_needed(error)];
            assert!(Ratio::estimate(&enough, &enough, error).is_some());
            assert_eq!(Ratio::estimate(&enough[1..], &enough[1..], error), None);
        }
        assert_eq!(Ratio::estimate(&[], &[], 0.5), None);
    }

    #[test]
    fn an_outlier_moves_nothing() {
        let before: Vec<f64> = (0..10).map(|i| 100.0 + f64::from(i)).collect();
        let mut after: Vec<f64> = before.iter().map(|value| value * 1.1).collect();
        let clean = Ratio::estimate(&before, &after, 0.05).unwrap();
        assert!((clean.middle - 1.1).abs() < 1e-9 && clean.low > 1.05 && clean.high < 1.15, "{clean:?}");
        after[9] = 1e9;
        let with_outlier = Ratio::estimate(&before, &after, 0.05).unwrap();
        assert!(
            (with_outlier.middle - clean.middle).abs() < 0.02 && with_outlier.high < 1.16,
            "{with_outlier:?}"
        );
    }

    /// Of many pairs of series that do not differ, at most the promised share has an interval without 1, and not far fewer.
    #[test]
    fn the_interval_errs_as_often_as_it_says() {
        let mut state = 1_u64;
        let mut random = || {
            // Middle bits of a linear congruential generator.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            1.0 + (state >> 33) as f64 / f64::from(1_u32 << 31)
        };
        let mut wrong = 0;
        for _ in 0..4000 {
            let [before, after] = [(); 2].map(|()| (0..8).map(|_| random()).collect::<Vec<f64>>());
            let ratio = Ratio::estimate(&before, &after, 0.05).unwrap();
            wrong += u32::from(ratio.low > 1.0 || ratio.high < 1.0);
        }
        assert!((150..=240).contains(&wrong), "{wrong} of 4000");
    }
}
