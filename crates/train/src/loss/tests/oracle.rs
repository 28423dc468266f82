//! The policy losses as in their papers (and TRL 1.16), written as plainly as possible, without gradients. Factors that
//! a loss holds constant are evaluated at `frozen`, so that the derivative with respect to `x` is the gradient for
//! training.

use super::*;

/// Evaluates J at the log-probabilities `x` of all sequences, concatenated.
pub fn loss(case: &Case, config: &LossConfig, normalizer: &Normalizer, x: &[f64], frozen: &[f64]) -> f64 {
    let (mut sum, mut start) = (0.0, 0);
    for s in 0..case.masks.len() {
        let n = case.masks[s].len();
        sum += sequence(case, s, config, normalizer, &x[start..start + n], &frozen[start..start + n]);
        start += n;
    }
    sum
}

fn sequence(case: &Case, s: usize, config: &LossConfig, normalizer: &Normalizer, x: &[f64], frozen: &[f64]) -> f64 {
    let kept: Vec<usize> = (0..x.len()).filter(|&t| case.masks[s][t]).collect();
    let (old, sampler) = (&case.old[s], &case.sampler[s]);
    let divisor = kept.len().max(1) as f64;
    let mean = |f: &dyn Fn(usize) -> f64| kept.iter().map(|&t| f(t)).sum::<f64>() / divisor;
    let ratio = |x: &[f64], t: usize| match config.importance_sampling_level {
        ImportanceSamplingLevel::Token => (x[t] - old[t]).exp(),
        ImportanceSamplingLevel::Sequence => mean(&|t| x[t] - old[t]).exp(),
    };
    let distance = mean(&|t| sampler[t] - frozen[t]);
    let correction = |t: usize| {
        let Correction { enabled, mode, clip_max, clip_min } = config.importance_sampling;
        if !enabled {
            return 1.0;
        }
        let per_sequence = matches!(mode, CorrectionMode::SequenceMask | CorrectionMode::SequenceTruncate);
        let c = if per_sequence {
            kept.iter().map(|&t| old[t] - sampler[t]).sum::<f64>().exp()
        } else {
            (old[t] - sampler[t]).exp()
        };
        let (low, high) = (clip_min.unwrap_or(0.0), clip_max.unwrap_or(f64::INFINITY));
        let masks = matches!(mode, CorrectionMode::SequenceMask | CorrectionMode::TokenMask);
        if c >= low && c <= high {
            c
        } else if masks {
            0.0
        } else {
            c.max(low).min(high)
        }
    };
    // VESPO's weight of the sequence, as a logarithm.
    let bounded = |x: f64, low: f64| x.max(low).min(20.0);
    let log_w: f64 =
        kept.iter().map(|&t| bounded(frozen[t] - old[t], -20.0) + bounded(correction(t).ln(), 1e-8f64.ln())).sum();
    let w = bounded(log_w, 1e-8f64.ln()).exp();

    let weight = match config.loss_type {
        LossType::Grpo | LossType::Sapo => 1.0 / (normalizer.sequences as f64 * divisor),
        LossType::Bnpo | LossType::Dapo | LossType::Cispo | LossType::Vespo => 1.0 / normalizer.tokens as f64,
        LossType::DrGrpo => 1.0 / (normalizer.sequences as f64 * config.max_completion_length as f64),
        LossType::Luspo => 1.0 / normalizer.sequences as f64,
    };
    let mut sum = 0.0;
    for &t in &kept {
        let a = f64::from(case.advantages[s].at(t));
        let r = ratio(x, t);
        let high = config.epsilon_high();
        let mut term = match config.loss_type {
            LossType::Cispo => -ratio(frozen, t).min(high) * a * x[t],
            LossType::Sapo => {
                let tau = if a > 0.0 { config.sapo_temperature_pos } else { config.sapo_temperature_neg };
                -(4.0 / tau) / (1.0 + (-tau * (r - 1.0)).exp()) * a
            }
            LossType::Vespo => {
                let (k, lambda) = if a >= 0.0 {
                    (config.vespo_k_pos, config.vespo_lambda_pos)
                } else {
                    (config.vespo_k_neg, config.vespo_lambda_neg)
                };
                -lambda.exp() * w.powf(k) * (-lambda * w).exp() * a * x[t]
            }
            _ => {
                let bounded = r.min(config.delta.unwrap_or(f64::INFINITY));
                -(bounded * a).min(r.clamp(1.0 - config.epsilon, 1.0 + high) * a)
            }
        };
        if config.off_policy_mask_threshold.is_some_and(|limit| a < 0.0 && distance > limit) {
            term = 0.0;
        }
        if normalizer.entropy_threshold.is_some_and(|least| case.entropies[s][t] < f64::from(least)) {
            term = 0.0;
        }
        if config.loss_type != LossType::Vespo {
            term *= correction(t);
        }
        let d = case.reference[s][t] - x[t];
        let kl = (d.exp() - d - 1.0) * if config.use_bias_correction_kl { r } else { 1.0 };
        sum += weight * (term + config.beta * kl);
    }
    sum
}
