//! Measures how much of a completion repeats itself.

use std::collections::BTreeSet;

/// The number of tokens in an n-gram.
const NGRAM: usize = 4;
/// A completion with fewer n-grams is considered not repetitive.
const FEWEST_NGRAMS: usize = 8;

/// The share of the completion's n-grams that occurred earlier in it, from 0 to 1.
pub fn repetition(ids: &[u32]) -> f64 {
    let ngrams = ids.windows(NGRAM);
    let count = ngrams.len();
    if count < FEWEST_NGRAMS {
        return 0.0;
    }
    (count - ngrams.collect::<BTreeSet<_>>().len()) as f64 / count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_completions_count_as_not_repetitive() {
        assert_eq!(repetition(&[1; 10]), 0.0);
        assert_eq!(repetition(&[1; 11]), 7.0 / 8.0);
        // There are 9 n-grams, and 8 of them repeat the first one.
        assert_eq!(repetition(&[1; 12]), 8.0 / 9.0);
        assert_eq!(repetition(&(0..40).collect::<Vec<_>>()), 0.0);
    }
}
