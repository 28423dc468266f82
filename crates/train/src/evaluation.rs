//! Metrics on held-out data: pass@k of completions, and the calibration of a reward model's preference probabilities.
//!
//! For a preference pair whose rewards differ by d = r_chosen − r_rejected, the model's probability of the preference
//! is p = σ(d). The Brier score (Brier 1950) is the mean of (1 − p)². The expected calibration error (Naeini et al.
//! 2015; Guo et al. 2017, arXiv:1706.04599) sorts pairs into ten equal bins of the confidence max(p, 1 − p) ∈ [½, 1],
//! and averages over pairs |fraction of correctly ordered pairs in the bin − mean confidence in the bin|.

use crate::loss::bradley_terry::sigmoid;
use kernels::mean::{mean, over};

/// Number of bins of confidence.
const BINS: usize = 10;

/// pass@k: the unbiased estimate 1 − C(n − c, k) / C(n, k) for a prompt with c correct completions among n scored ones,
/// averaged over the prompts with at least k scored completions (Chen et al. 2021, arXiv:2107.03374). `None` if
/// every prompt has fewer than k.
pub fn pass_at_k(groups: &[Vec<bool>], k: usize) -> Option<f64> {
    let estimate = |group: &Vec<bool>| {
        let n = group.len();
        let wrong = group.iter().filter(|right| !**right).count();
        if wrong < k {
            return 1.0;
        }
        1.0 - ((wrong + 1)..=n).map(|i| 1.0 - k as f64 / i as f64).product::<f64>()
    };
    mean(groups.iter().filter(|group| group.len() >= k).map(estimate))
}

/// The Brier score of preference pairs, given the difference r_chosen − r_rejected of each pair; `None` without pairs.
pub fn brier_score(differences: &[f64]) -> Option<f64> {
    mean(differences.iter().map(|d| sigmoid(-d).powi(2)))
}

/// The expected calibration error of preference pairs, given the difference r_chosen − r_rejected of each pair; `None`
/// without pairs.
pub fn calibration_error(differences: &[f64]) -> Option<f64> {
    // Per bin: the number of correctly ordered pairs (a tie counts ½) minus the sum of confidences.
    let mut bins = [0.0; BINS];
    for &d in differences {
        let confidence = sigmoid(d.abs());
        let bin = (((confidence - 0.5) * 2.0 * BINS as f64) as usize).min(BINS - 1);
        let right = if d == 0.0 { 0.5 } else { f64::from(u8::from(d > 0.0)) };
        bins[bin] += right - confidence;
    }
    over(bins.iter().map(|gap| gap.abs()).sum(), differences.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pass_at_k_matches_known_values() {
        let one_of_four = vec![true, false, false, false];
        let of = |k| pass_at_k(std::slice::from_ref(&one_of_four), k).unwrap();
        assert!((of(1) - 0.25).abs() < 1e-12 && (of(2) - 0.5).abs() < 1e-12);
        assert_eq!(of(4), 1.0);
        assert_eq!(pass_at_k(&[vec![false; 2], vec![false; 2]], 2), Some(0.0));
    }

    /// A completion without a score, such as after a failed reward function, does not count as wrong.
    #[test]
    fn unscored_completions_do_not_count_in_pass_at_k() {
        assert_eq!(pass_at_k(&[vec![], vec![]], 1), None);
        assert_eq!(pass_at_k(&[vec![true], vec![]], 1), Some(1.0));
        let few = pass_at_k(&[vec![true], vec![false, true]], 2);
        assert_eq!(few, Some(1.0), "the first prompt has too few scored completions");
        assert_eq!(
            pass_at_k(&[vec![true], vec![false; 2]], 2),
            Some(0.0),
            "a prompt with too few scored completions is not averaged"
        );
    }

    /// The reward difference at which the model's probability of the preference is p.
    fn logit(p: f64) -> f64 {
        (p / (1.0 - p)).ln()
    }

    #[test]
    fn calibration_metrics_match_hand_computed_values() {
        // A model that is right in nine of ten pairs is calibrated at confidence 0.9, and 0.3 underconfident at
        // confidence 0.6.
        let nine = |p: f64| -> Vec<f64> { (0..10).map(|i| if i == 0 { -logit(p) } else { logit(p) }).collect() };
        let error = |differences: &[f64]| calibration_error(differences).unwrap();
        let brier = |differences: &[f64]| brier_score(differences).unwrap();
        assert!((error(&nine(0.92)).abs() - 0.02).abs() < 1e-12);
        assert!((error(&nine(0.6)) - 0.3).abs() < 1e-12);
        let both = [nine(0.92), nine(0.62)].concat();
        assert!((error(&both) - (0.02 + 0.28) / 2.0).abs() < 1e-12);
        assert!((brier(&nine(0.6)) - (9.0 * 0.16 + 0.36) / 10.0).abs() < 1e-12);
        // This model gives probability ½ to every pair.
        assert_eq!((error(&[0.0; 7]), brier(&[0.0; 7])), (0.0, 0.25));
        assert_eq!(error(&[1e4, 1e4]), 0.0);
    }

    /// pass@k is the fraction of the ways to choose k of n completions that contain a correct completion.
    #[test]
    fn pass_at_k_equals_the_share_of_subsets_with_a_correct_completion() {
        for n in 1..=6_usize {
            for correct in 0..=n {
                let group: Vec<bool> = (0..n).map(|i| i < correct).collect();
                for k in 1..=n {
                    let choices = (0..1_u32 << n).filter(|set| set.count_ones() as usize == k);
                    let (mut all, mut passed) = (0.0, 0.0);
                    for set in choices {
                        all += 1.0;
                        passed += f64::from(u8::from((0..correct).any(|i| set >> i & 1 == 1)));
                    }
                    let found = pass_at_k(std::slice::from_ref(&group), k).unwrap();
                    assert!((found - passed / all).abs() < 1e-12, "{correct} of {n}, k = {k}: {found}");
                }
                assert_eq!(pass_at_k(std::slice::from_ref(&group), n + 1), None);
            }
        }
    }

    #[test]
    fn calibration_uses_ten_bins_and_a_tie_counts_half() {
        // Two pairs fall into one bin (right at 0.52, wrong at 0.54), and a third pair falls into the last bin.
        let found = calibration_error(&[logit(0.52), -logit(0.54), logit(0.97)]).unwrap();
        assert!((found - ((1.0 - 0.52 - 0.54f64).abs() + 0.03) / 3.0).abs() < 1e-12, "{found}");
        // Errors in different bins must not cancel.
        let found = calibration_error(&[logit(0.52), -logit(0.58)]).unwrap();
        assert!((found - (0.48 + 0.58) / 2.0).abs() < 1e-12, "{found}");
        assert_eq!((calibration_error(&[]), brier_score(&[])), (None, None));
        assert!((brier_score(&[logit(0.75), -logit(0.75)]).unwrap() - (0.0625 + 0.5625) / 2.0).abs() < 1e-12);
        assert_eq!(calibration_error(&[0.0, 0.0]), Some(0.0));
    }
}
