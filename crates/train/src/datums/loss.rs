//! Losses of token sums: the losses of Tinker's API, each with its gradient.
//!
//! All of them are sums over tokens t, never means: a client scales advantages and weights itself. With the
//! log-probability l_t of a target under the current weights, the sampler's log-probability q_t, the ratio
//! r_t = e^(l_t − q_t) and the advantage A_t:
//!
//! | loss | value | derivative by l_t |
//! |---|---|---|
//! | `cross_entropy` | −Σ w_t l_t | −w_t |
//! | `importance_sampling` | −Σ r_t A_t | −r_t A_t |
//! | `ppo` | −Σ min(r_t A_t, clip(r_t) A_t) | −r_t A_t, or 0 where clipping takes effect |
//! | `cispo` | −Σ sg(clip(r_t)) A_t l_t | −clip(r_t) A_t |
//! | `dro` | −Σ (A_t l_t − β/2 (l_t − q_t)²) | β (l_t − q_t) − A_t |
//! | `gspo` | as `ppo`, with one ratio s for the sequence | −s A_t, or 0 where clipping takes effect |
//!
//! sg holds a value constant. The ratio of `gspo` is s = exp(mean of l − q over the tokens of its mask), and the
//! gradient goes through the token itself: s_t = sg(s) · e^(l_t − sg(l_t)) (GSPO-token, arXiv:2507.18071, equation
//! 14). The formulas are those of Tinker's documentation; ranges of `clip` are the thresholds themselves, such as 0.8
//! and 1.2.
//!
//! A token with advantage (or weight) 0 adds nothing, whatever its ratio is.

use super::Datum;

/// A loss over the targets of a [`Datum`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TokenLoss {
    /// The weighted negative log-likelihood.
    CrossEntropy,
    /// The policy gradient with importance ratios.
    ImportanceSampling,
    /// PPO's clipped surrogate.
    Ppo(ClipRange),
    /// CISPO: the clipped ratio as a constant weight.
    Cispo(ClipRange),
    /// Direct reward optimisation: a quadratic penalty in place of clipping.
    Dro {
        /// The weight of the penalty.
        beta: f64,
    },
    /// GSPO: PPO's surrogate with one ratio for the sequence.
    Gspo(ClipRange),
}

/// The range to which ratios are clipped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClipRange {
    /// The lowest ratio.
    pub low: f64,
    /// The highest ratio.
    pub high: f64,
}

impl Default for ClipRange {
    /// Tinker's defaults.
    fn default() -> ClipRange {
        ClipRange { low: 0.8, high: 1.2 }
    }
}

impl ClipRange {
    fn clip(self, ratio: f64) -> f64 {
        // Not `clamp`, which would panic for a range that is empty.
        ratio.max(self.low).min(self.high)
    }

    /// −min(r A, clip(r) A), and its derivative by log r.
    fn surrogate(self, ratio: f64, advantage: f64) -> (f64, f64) {
        let (plain, clipped) = (ratio * advantage, self.clip(ratio) * advantage);
        if plain <= clipped { (-plain, -plain) } else { (-clipped, 0.0) }
    }
}

/// The names of inputs.
pub(super) const WEIGHTS: &str = "weights";
pub(super) const LOGPROBS: &str = "logprobs";
pub(super) const ADVANTAGES: &str = "advantages";
pub(super) const RATIO_MASK: &str = "sequence_ratio_mask";

impl TokenLoss {
    /// The inputs that the loss reads, one number for each target.
    pub fn inputs(self) -> &'static [&'static str] {
        match self {
            TokenLoss::CrossEntropy => &[WEIGHTS],
            TokenLoss::Gspo(_) => &[LOGPROBS, ADVANTAGES, RATIO_MASK],
            _ => &[LOGPROBS, ADVANTAGES],
        }
    }

    /// The loss of a datum whose targets have the log-probabilities `logps`. Overwrites `d_logps` by its gradient.
    pub fn evaluate(self, datum: &Datum, logps: &[f32], d_logps: &mut [f32]) -> f64 {
        let input = |name: &str| datum.input(name).expect("checked");
        let factors = input(if self == TokenLoss::CrossEntropy { WEIGHTS } else { ADVANTAGES });
        let sampled = datum.input(LOGPROBS).unwrap_or_default();
        let log_ratio = |t: usize| f64::from(logps[t]) - f64::from(sampled[t]);
        let sequence_ratio = match self {
            TokenLoss::Gspo(_) => sequence_ratio(input(RATIO_MASK), log_ratio),
            _ => 1.0,
        };
        let mut loss = 0.0;
        for (t, (&factor, d)) in factors.iter().zip(d_logps).enumerate() {
            let (a, l) = (f64::from(factor), f64::from(logps[t]));
            let (value, slope) = match self {
                _ if a == 0.0 => (0.0, 0.0),
                TokenLoss::CrossEntropy => (-a * l, -a),
                TokenLoss::ImportanceSampling => {
                    let term = -libm::exp(log_ratio(t)) * a;
                    (term, term)
                }
                TokenLoss::Ppo(range) => range.surrogate(libm::exp(log_ratio(t)), a),
                TokenLoss::Cispo(range) => {
                    let slope = -range.clip(libm::exp(log_ratio(t))) * a;
                    (slope * l, slope)
                }
                TokenLoss::Dro { beta } => {
                    let distance = log_ratio(t);
                    (0.5 * beta * distance * distance - a * l, beta * distance - a)
                }
                TokenLoss::Gspo(range) => range.surrogate(sequence_ratio, a),
            };
            loss += value;
            *d = slope as f32;
        }
        loss
    }
}

/// The geometric mean of the ratios of the tokens in `mask`; 1 if there are none.
fn sequence_ratio(mask: &[f32], log_ratio: impl Fn(usize) -> f64) -> f64 {
    let in_mask = || mask.iter().enumerate().filter(|(_, m)| **m != 0.0).map(|(t, _)| t);
    let tokens = in_mask().count().max(1) as f64;
    libm::exp(in_mask().map(log_ratio).sum::<f64>() / tokens)
}
