//! How well a reward model ranks pairs that it has not seen, and whether its probabilities can be believed.
//!
//! P(chosen ≻ rejected) = p = σ(r_c − r_r). Brier score (Brier 1950): the mean of (1 − p)². Expected calibration error (Naeini
//! et al. 2015; Guo et al. 2017, arXiv:1706.04599): pairs in ten equal bins of the confidence max(p, 1 − p) ∈ [½, 1];
//! the mean over pairs of |share of right pairs in the bin − mean confidence in the bin|.

use crate::trainers::offline::Row;
use kernels::Context;
use model::{AdaptedWeights, Scorer};
use train::loss::LossSums;
use train::loss::bradley_terry::{ranking, sigmoid};
use train::{PreferencePair, RankingConfig};

/// Bins of confidence.
const BINS: usize = 10;

/// The loss and what TRL reports of training, each with `eval_` before it, and the calibration.
pub(super) fn evaluate(
    ctx: &Context,
    model: &AdaptedWeights,
    scorer: &mut Scorer,
    config: &RankingConfig,
    pairs: &[PreferencePair],
) -> anyhow::Result<Vec<(String, f64)>> {
    let mut scores = scorer.sequence_scores(ctx, model, &PreferencePair::sequences(pairs))?.into_iter().map(f64::from);
    let mut next = || scores.next().unwrap_or(f64::NAN);
    let rewards: Vec<[f64; 2]> = pairs.iter().map(|_| [next(), next()]).collect();
    let mut sums = LossSums::default();
    for (&rewards, pair) in rewards.iter().zip(pairs) {
        ranking(config, pairs.len(), rewards, f64::from(pair.margin), &mut sums);
    }
    let mut metrics = vec![("eval_loss".to_owned(), sums.loss)];
    metrics.extend(sums.means.entries().map(|(name, value)| (format!("eval_{name}"), value)));
    let differences: Vec<f64> = rewards.iter().map(|[chosen, rejected]| chosen - rejected).collect();
    metrics.push(("eval_brier_score".to_owned(), brier(&differences)));
    metrics.push(("eval_calibration_error".to_owned(), calibration_error(&differences)));
    Ok(metrics)
}

fn brier(differences: &[f64]) -> f64 {
    differences.iter().map(|d| sigmoid(-d).powi(2)).sum::<f64>() / differences.len().max(1) as f64
}

fn calibration_error(differences: &[f64]) -> f64 {
    // Of each bin: right pairs (a draw is half right) minus the sum of confidences.
    let mut bins = [0.0; BINS];
    for &d in differences {
        let confidence = sigmoid(d.abs());
        let bin = (((confidence - 0.5) * 2.0 * BINS as f64) as usize).min(BINS - 1);
        let right = if d == 0.0 { 0.5 } else { f64::from(u8::from(d > 0.0)) };
        bins[bin] += right - confidence;
    }
    bins.iter().map(|gap| gap.abs()).sum::<f64>() / differences.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The difference at which the model gives this probability.
    fn logit(p: f64) -> f64 {
        (p / (1.0 - p)).ln()
    }

    #[test]
    fn hand_computed() {
        // Nine of ten right at 0.9 is calibrated; nine of ten right at 0.6 is 0.3 too timid.
        let nine = |p: f64| -> Vec<f64> { (0..10).map(|i| if i == 0 { -logit(p) } else { logit(p) }).collect() };
        assert!(calibration_error(&nine(0.92)).abs() - 0.02 < 1e-12);
        assert!((calibration_error(&nine(0.6)) - 0.3).abs() < 1e-12);
        let both = [nine(0.92), nine(0.62)].concat();
        assert!((calibration_error(&both) - (0.02 + 0.28) / 2.0).abs() < 1e-12);
        assert!((brier(&nine(0.6)) - (9.0 * 0.16 + 0.36) / 10.0).abs() < 1e-12);
        // A model that knows nothing.
        assert_eq!((calibration_error(&[0.0; 7]), brier(&[0.0; 7])), (0.0, 0.25));
        assert_eq!(calibration_error(&[1e4, 1e4]), 0.0);
    }
}
