//! Means of sets that may be empty: the mean, extreme or share of an empty set is missing, never 0.
//!
//! If the mean of an empty set were logged as 0, it would look like a measurement: an entropy of 0 like a collapse, a
//! clip fraction of 0 like a small update, a loss of 0 like a perfect evaluation. So every reported mean goes through
//! [`Mean`], [`mean`] or [`share`], whose result is `None` if nothing was measured. (Losses divide by max(1, N),
//! because they are objectives and not reported means.)

/// A running mean: a sum and its number of terms.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mean {
    sum: f64,
    count: u64,
}

impl Mean {
    /// Adds a value.
    pub fn add(&mut self, value: f64) {
        self.add_sum(value, 1);
    }

    /// Adds `count` values, given their sum.
    pub fn add_sum(&mut self, sum: f64, count: u64) {
        self.sum += sum;
        self.count += count;
    }

    /// The mean; `None` if no value was added.
    pub fn get(&self) -> Option<f64> {
        over(self.sum, self.count)
    }
}

/// The mean of values, summed in their order; `None` if there are no values.
pub fn mean(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    // The sum starts at -0.0, as in `Iterator::sum`, because 0.0 + -0.0 would lose the sign.
    let (sum, count) = values.into_iter().fold((-0.0, 0), |(sum, count), value| (sum + value, count + 1));
    over(sum, count)
}

/// The fraction `part` / `of`; `None` if `of` is 0.
pub fn share(part: usize, of: usize) -> Option<f64> {
    over(part as f64, of as u64)
}

/// `sum` / `count`; `None` if `count` is 0.
pub fn over(sum: f64, count: u64) -> Option<f64> {
    (count > 0).then(|| sum / count as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_over_no_values_is_none() {
        let mut sums = Mean::default();
        sums.add_sum(0.0, 0);
        assert_eq!([sums.get(), mean([]), share(0, 0), over(3.0, 0)], [None; 4]);
        assert_eq!(sums.count, 0);
    }

    #[test]
    fn a_mean_has_the_bits_of_the_sum_divided_by_the_count() {
        let values = [0.1, 0.2, 0.7, -0.3];
        let mut sums = Mean::default();
        for &value in &values {
            sums.add(value);
        }
        let expected = values.iter().sum::<f64>() / 4.0;
        assert_eq!((sums.get(), mean(values), sums.count), (Some(expected), Some(expected), 4));
        assert_eq!(mean([-0.0, -0.0]).map(f64::to_bits), Some((-0.0f64).to_bits()));
        assert_eq!([share(0, 3), share(1, 4), share(2, 2)], [Some(0.0), Some(0.25), Some(1.0)]);
        assert!(mean([1.0, f64::NAN]).is_some_and(f64::is_nan), "a NaN must not be hidden");
        sums.add_sum(1.3, 2);
        assert_eq!(sums.get(), Some((expected * 4.0 + 1.3) / 6.0));
    }
}
