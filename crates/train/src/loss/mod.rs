//! Losses: the value of each loss, and its gradient with respect to the log-probability of every completion token.
//!
//! A policy loss J is a sum over sequences s and tokens t of the optimizer batch, with a mask m of tokens in the loss:
//!
//! J = Σ_s w_s Σ_t m_{s,t} (k_{s,t} c_{s,t} L_{s,t} + β K_{s,t})
//!
//! - L: the policy term, a function of the importance ratio r and the advantage A: the clipped surrogate (`clip`), or
//!   the loss's own term (`cispo`, `sapo`, `vespo`);
//! - r = e^ρ: the importance ratio, with ρ = log π_θ − log π_old of the token or of the sequence (`ratio`);
//! - K: the KL divergence to the reference model (`kl`), with weight β;
//! - w_s: the weight of the sequence's tokens, in which `grpo`, `bnpo`, `dr_grpo`, `dapo` and `luspo` differ. It
//!   depends on the [`Normalizer`] of the whole optimizer batch, which is known before the first micro-batch, so that
//!   the split into micro-batches does not affect the result;
//! - k: 0 for tokens that `off_policy` or [`entropy`] leaves out of the policy term, else 1;
//! - c: the importance-sampling correction if the sampler was not the old policy ([`sampling`]), held constant.
//!
//! A new policy loss needs a file with a `PolicyLoss` and a line in [`policy`]. [`rloo`] is a sum over sequences
//! instead. [`entropy`] is a bonus that can be combined with any of them.

mod bnpo;
pub mod bradley_terry;
mod cispo;
mod clip;
mod config;
mod dapo;
pub mod dft;
pub mod dpo;
mod dr_grpo;
pub mod entropy;
mod grpo;
mod kl;
mod luspo;
mod off_policy;
pub mod ppo;
mod ratio;
pub mod rloo;
pub mod sampling;
mod sapo;
mod sums;
pub(crate) mod supervised;
mod vespo;

#[cfg(test)]
mod tests;

pub use config::{ImportanceSamplingLevel, LossConfig};
pub use sums::LossSums;

use crate::Advantage;
use kernels::check::Float;
use serde::{Deserialize, Serialize};

/// The counts by which losses divide. They cover the whole optimizer batch, and are known before its first part is
/// accumulated.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Normalizer {
    /// Number of groups: consecutive sequences with the same prompt. Needed only with several
    /// [shares](crate::TrainerConfig::gradient_shares).
    pub groups: usize,
    /// Number of sequences, including those without a token in the loss.
    pub sequences: usize,
    /// Number of tokens in the loss.
    pub tokens: usize,
    /// Tokens in the loss whose entropy is below this are left out of the policy term and of the entropy bonus.
    pub entropy_threshold: Option<f32>,
    /// Number of tokens in the loss that the entropy threshold keeps.
    pub entropy_tokens: usize,
    /// Coefficient of the entropy bonus in this step.
    pub entropy_coef: f64,
}

impl Normalizer {
    /// Counts the tokens of these masks, one mask per sequence, without entropy threshold and entropy bonus.
    pub fn of<'a>(masks: impl IntoIterator<Item = &'a Vec<bool>>) -> Normalizer {
        let (mut sequences, mut tokens) = (0, 0);
        for mask in masks {
            sequences += 1;
            tokens += mask.iter().filter(|&&m| m).count();
        }
        Normalizer { sequences, tokens, entropy_tokens: tokens, ..Normalizer::default() }
    }

    /// Whether the entropy threshold keeps a token with this entropy. NaN is kept, so that it makes the loss
    /// non-finite.
    pub fn keeps(&self, entropy: f64) -> bool {
        let keeps = |threshold: f64| entropy >= threshold || entropy.is_nan() || threshold.is_nan();
        self.entropy_threshold.is_none_or(|threshold| keeps(f64::from(threshold)))
    }
}

/// One completion as the input of a policy loss. Each slice has one element per completion token.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a, T> {
    /// Log-probabilities under the current policy, log π_θ.
    pub logps: &'a [T],
    /// Entropies under the current policy, which are read only if there is an entropy threshold.
    pub entropies: &'a [T],
    /// Log-probabilities under the old policy, log π_old.
    pub old_logps: &'a [T],
    /// Log-probabilities that the sampler recorded; equal to `old_logps` if the sampler was the old policy.
    pub sampler_logps: &'a [T],
    /// Log-probabilities under the reference model, log π_ref; required if β ≠ 0.
    pub ref_logps: Option<&'a [T]>,
    /// The tokens that the loss uses. Elements of the slices at other tokens are never read.
    pub mask: &'a [bool],
    /// The advantage A.
    pub advantage: &'a Advantage,
}

/// The inputs of the policy term of a token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Token {
    /// Importance ratio of the token or of the sequence.
    pub ratio: f64,
    /// Log-probability under the current policy, log π_θ.
    pub logp: f64,
    /// The advantage A.
    pub advantage: f64,
}

/// The policy term of one token, with its derivatives.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Term {
    /// Value of the policy term L.
    pub value: f64,
    /// Derivative ∂L/∂ρ with respect to the log-ratio of the token or the sequence.
    pub d_log_ratio: f64,
    /// Derivative ∂L/∂log π_θ of this token with the ratio held constant.
    pub d_logp: f64,
    /// Whether the ratio is below the clip range and clipping takes effect.
    pub low: bool,
    /// Whether the ratio is above the clip range and clipping takes effect.
    pub high: bool,
}

/// Totals of a whole sequence, from which a loss reports its metrics.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Whole<'a> {
    /// The advantage A.
    pub advantage: &'a Advantage,
    /// The tokens that the loss uses.
    pub mask: &'a [bool],
    /// Number of tokens that the loss uses.
    pub tokens: usize,
    /// Number of tokens with [`Term::low`]; 0 or 1 if ratios are per sequence.
    pub low: u64,
    /// Number of tokens with [`Term::high`]; 0 or 1 if ratios are per sequence.
    pub high: u64,
    /// The denominator for `low` and `high`: the number of tokens, or 1 if ratios are per sequence.
    pub counted: u64,
}

/// The policy losses: the policy term, and how tokens are averaged. The names are TRL's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossType {
    /// Mean over sequences of the mean over tokens.
    Grpo,
    /// Mean over all tokens of the optimizer batch.
    Bnpo,
    /// Sum over tokens, divided by sequences × `max_completion_length`.
    DrGrpo,
    /// Sum over tokens, divided by all tokens of the optimizer step.
    #[default]
    Dapo,
    /// log π_θ times the bounded ratio, so that no token loses its gradient.
    Cispo,
    /// A sigmoid of the ratio instead of clipping.
    Sapo,
    /// Mean over sequences of the sum over tokens; meant for per-sequence ratios.
    Luspo,
    /// log π_θ times a smooth weight of the whole sequence's ratio.
    Vespo,
}

impl LossType {
    /// All losses, with their names in TRL.
    pub const NAMES: [(&str, LossType); 8] = [
        ("grpo", LossType::Grpo),
        ("bnpo", LossType::Bnpo),
        ("dr_grpo", LossType::DrGrpo),
        ("dapo", LossType::Dapo),
        ("cispo", LossType::Cispo),
        ("sapo", LossType::Sapo),
        ("luspo", LossType::Luspo),
        ("vespo", LossType::Vespo),
    ];

    /// Whether tokens outside the clip range lose their gradient. Their fraction is then reported as `clip_ratio`.
    pub(crate) fn clips(self) -> bool {
        !matches!(self, LossType::Cispo | LossType::Sapo | LossType::Vespo)
    }
}

/// The parts in which the policy losses differ.
pub(crate) trait PolicyLoss {
    /// The weight w of each token of a sequence with `tokens` tokens in the loss.
    fn weight(&self, config: &LossConfig, tokens: usize, normalizer: &Normalizer) -> f64;

    /// The policy term L of one token: the clipped surrogate, unless the loss has its own term.
    fn term(&self, config: &LossConfig, token: &Token) -> Term {
        clip::surrogate(config, token.ratio, token.advantage)
    }

    /// Whether the loss applies the importance-sampling correction inside L.
    fn corrects_itself(&self) -> bool {
        false
    }

    /// Adds the loss's metrics of a sequence to `sums`. By default these are the clipping counts.
    fn report(&self, config: &LossConfig, whole: &Whole<'_>, sums: &mut LossSums) {
        let _ = config;
        sums.count_clipped(whole.low, whole.high, whole.counted);
    }
}

/// Adds one sequence's contribution to the loss J to `sums`, and overwrites `d_logps` with ∂J/∂log π_θ.
pub fn policy<T: Float>(
    config: &LossConfig,
    normalizer: &Normalizer,
    sequence: &Sequence<'_, T>,
    d_logps: &mut [T],
    sums: &mut LossSums,
) {
    let &Sequence { logps, old_logps, sampler_logps, mask, .. } = sequence;
    let correction = sampling::Weights::new(&config.importance_sampling, old_logps, sampler_logps, mask);
    if config.importance_sampling.enabled {
        sums.sampling.get_or_insert_default().add(&correction, old_logps, sampler_logps, mask);
    }
    let case = Case { config, normalizer, sequence, correction: &correction };
    match config.loss_type {
        LossType::Grpo => case.evaluate(&grpo::Grpo, d_logps, sums),
        LossType::Bnpo => case.evaluate(&bnpo::Bnpo, d_logps, sums),
        LossType::DrGrpo => case.evaluate(&dr_grpo::DrGrpo, d_logps, sums),
        LossType::Dapo => case.evaluate(&dapo::Dapo, d_logps, sums),
        LossType::Cispo => case.evaluate(&cispo::Cispo, d_logps, sums),
        LossType::Sapo => case.evaluate(&sapo::Sapo, d_logps, sums),
        LossType::Luspo => case.evaluate(&luspo::Luspo, d_logps, sums),
        LossType::Vespo => case.evaluate(&vespo::Vespo::new(logps, old_logps, mask, &correction), d_logps, sums),
    }
}

/// A sequence and the settings of its loss.
struct Case<'a, T> {
    config: &'a LossConfig,
    normalizer: &'a Normalizer,
    sequence: &'a Sequence<'a, T>,
    correction: &'a sampling::Weights,
}

impl<T: Float> Case<'_, T> {
    /// Evaluates [`policy`] for a given loss. Arithmetic is f64 for every `T`, since there are only a few numbers per
    /// token.
    fn evaluate(&self, loss: &impl PolicyLoss, d_logps: &mut [T], sums: &mut LossSums) {
        let (config, normalizer) = (self.config, self.normalizer);
        let Sequence { logps, entropies, old_logps, sampler_logps, ref_logps, mask, advantage } = *self.sequence;
        assert!(logps.len() == mask.len() && old_logps.len() == mask.len() && d_logps.len() == mask.len());
        let ratio = ratio::Ratio::new(config.importance_sampling_level, logps, old_logps, mask);
        let near = off_policy::is_near(config.off_policy_mask_threshold, logps, sampler_logps, mask);
        let tokens = ratio.tokens();
        let weight = loss.weight(config, tokens, normalizer);

        // A per-sequence ratio receives gradient from the terms of all tokens.
        let mut d_sequence_ratio = 0.0;
        let (mut low, mut high) = (0, 0);
        for t in 0..mask.len() {
            d_logps[t] = T::of(0.0);
            if !mask[t] {
                continue;
            }
            let token = Token { ratio: ratio.at(t), logp: logps[t].f64(), advantage: f64::from(advantage.at(t)) };
            let mut term = loss.term(config, &token);
            low += u64::from(term.low);
            high += u64::from(term.high);
            let kept = (near || token.advantage >= 0.0)
                && (normalizer.entropy_threshold.is_none() || normalizer.keeps(entropies[t].f64()));
            if !kept {
                term = Term::default();
            } else if !loss.corrects_itself() {
                term.scale(self.correction.at(t));
            }
            if config.beta != 0.0 {
                let ref_logp = ref_logps.expect("beta needs reference log-probabilities")[t].f64();
                let kl = kl::token(token.logp, ref_logp, config.use_bias_correction_kl.then_some(token.ratio));
                term.value += config.beta * kl.value;
                term.d_log_ratio += config.beta * kl.d_log_ratio;
                term.d_logp += config.beta * kl.d_logp;
                sums.kl += kl.value;
            }
            sums.loss += weight * term.value;
            match config.importance_sampling_level {
                ImportanceSamplingLevel::Token => d_logps[t] = T::of(weight * (term.d_logp + term.d_log_ratio)),
                ImportanceSamplingLevel::Sequence => {
                    d_logps[t] = T::of(weight * term.d_logp);
                    d_sequence_ratio += weight * term.d_log_ratio;
                }
            }
        }
        sums.tokens += tokens as u64;
        if config.importance_sampling_level == ImportanceSamplingLevel::Sequence {
            ratio::spread(d_sequence_ratio, mask, d_logps);
        }
        let (low, high, counted) = match (config.importance_sampling_level, advantage) {
            // A sequence with one ratio and one advantage is either clipped as a whole or not at all.
            (ImportanceSamplingLevel::Sequence, Advantage::Sequence(_)) => (u64::from(low > 0), u64::from(high > 0), 1),
            _ => (low, high, tokens as u64),
        };
        loss.report(config, &Whole { advantage, mask, tokens, low, high, counted }, sums);
    }
}

impl Term {
    /// Multiplies the term by a constant. With 0 the term becomes 0 even if it is not finite.
    fn scale(&mut self, by: f64) {
        if by == 0.0 {
            *self = Term { low: self.low, high: self.high, ..Term::default() };
        } else {
            self.value *= by;
            self.d_log_ratio *= by;
            self.d_logp *= by;
        }
    }
}
