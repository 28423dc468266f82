//! Losses: the value, and its gradient with respect to the log-probability of every completion token.
//!
//! A policy loss is a sum over the tokens of the optimizer batch that the mask keeps:
//!
//! J = Σ_s w_s Σ_t m_{s,t} (k_{s,t} c_{s,t} L_{s,t} + β K_{s,t})
//!
//! - L: the policy term of the importance ratio r and the advantage A: the clipped surrogate (`clip`), or the loss's
//!   own (`cispo`, `sapo`, `vespo`);
//! - r = e^ρ, ρ = log π_θ − log π_old, of the token or of the sequence (`ratio`);
//! - K: the KL divergence to the reference (`kl`);
//! - w_s: the weight of the sequence's tokens, which is what tells `grpo`, `bnpo`, `dr_grpo`, `dapo` and `luspo` apart.
//!   It depends on [`Normalizer`] of the whole optimizer batch, known before the first micro-batch, so that cutting the
//!   batch changes nothing;
//! - k: 0 for tokens that `off_policy` or [`entropy`] leave out of the policy term, else 1;
//! - c: the correction for a sampler that was not the old policy ([`sampling`]); a constant.
//!
//! A further loss is another file with a `PolicyLoss` and a line in [`policy`]. [`rloo`] is a sum over sequences
//! instead, [`entropy`] a bonus beside any of them. Knows no model.

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

/// What losses divide by: counts of the whole optimizer batch, known before its first part is accumulated.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Normalizer {
    /// Sequences, those without a token in the loss included.
    pub sequences: usize,
    /// Tokens in the loss.
    pub tokens: usize,
    /// Tokens in the loss whose entropy is below this are left out of the policy term and the entropy bonus.
    pub entropy_threshold: Option<f32>,
    /// Tokens that this leaves.
    pub entropy_tokens: usize,
    /// The entropy bonus's weight in this step.
    pub entropy_coef: f64,
}

impl Normalizer {
    /// The counts of these masks, one per sequence; all tokens' entropies count, and there is no entropy bonus.
    pub fn of<'a>(masks: impl IntoIterator<Item = &'a Vec<bool>>) -> Normalizer {
        let (mut sequences, mut tokens) = (0, 0);
        for mask in masks {
            sequences += 1;
            tokens += mask.iter().filter(|&&m| m).count();
        }
        Normalizer { sequences, tokens, entropy_threshold: None, entropy_tokens: tokens, entropy_coef: 0.0 }
    }

    /// Whether a token of this entropy is among those that the threshold leaves. What is not a number stays, so that it
    /// shows.
    pub fn keeps(&self, entropy: f64) -> bool {
        let keeps = |threshold: f64| entropy >= threshold || entropy.is_nan() || threshold.is_nan();
        self.entropy_threshold.is_none_or(|threshold| keeps(f64::from(threshold)))
    }
}

/// One completion; the slices have one element per completion token.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a, T> {
    /// log π_θ
    pub logps: &'a [T],
    /// Entropy of π_θ; needed (and read) only if there is an entropy threshold.
    pub entropies: &'a [T],
    /// log π_old
    pub old_logps: &'a [T],
    /// What the sampler recorded; equal to `old_logps` where it was the old policy.
    pub sampler_logps: &'a [T],
    /// log π_ref; needed if β ≠ 0.
    pub ref_logps: Option<&'a [T]>,
    /// Which tokens the loss uses. The values of the others are never read.
    pub mask: &'a [bool],
    /// A
    pub advantage: &'a Advantage,
}

/// What the policy term of a token depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Token {
    /// r, of the token or the sequence.
    pub ratio: f64,
    /// log π_θ
    pub logp: f64,
    /// A
    pub advantage: f64,
}

/// The policy term of one token.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Term {
    /// L
    pub value: f64,
    /// ∂L/∂ρ, through the ratio (of the token or the sequence).
    pub d_log_ratio: f64,
    /// ∂L/∂log π_θ of this token where the ratio is held constant.
    pub d_logp: f64,
    /// The ratio is below the clip range, and the clip acts.
    pub low: bool,
    /// The ratio is above the clip range, and the clip acts.
    pub high: bool,
}

/// A sequence after its last token, for what a loss reports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Whole<'a> {
    /// A
    pub advantage: &'a Advantage,
    /// Which tokens the loss uses.
    pub mask: &'a [bool],
    /// How many.
    pub tokens: usize,
    /// Tokens with [`Term::low`], or 1 for the sequence at sequence level.
    pub low: u64,
    /// Tokens with [`Term::high`], or 1 for the sequence at sequence level.
    pub high: u64,
    /// What they are counted of: tokens, or 1.
    pub counted: u64,
}

/// The policy term and how it is averaged; the names are TRL's.
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
    /// The clipped ratio weighs log π_θ, so that no token loses its gradient.
    Cispo,
    /// A sigmoid of the ratio in the place of the clip.
    Sapo,
    /// Mean over sequences of the sum over tokens; meant for the sequence's ratio.
    Luspo,
    /// A smooth weight of the whole sequence's ratio weighs log π_θ.
    Vespo,
}

impl LossType {
    /// All, with their names in TRL.
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

    /// Whether tokens outside the clip range lose their gradient, and their share is reported as `clip_ratio`.
    pub(crate) fn clips(self) -> bool {
        !matches!(self, LossType::Cispo | LossType::Sapo | LossType::Vespo)
    }
}

/// What tells one policy loss from another.
pub(crate) trait PolicyLoss {
    /// w: what each token of a sequence with `tokens` tokens in the loss counts.
    fn weight(&self, config: &LossConfig, tokens: usize, normalizer: &Normalizer) -> f64;

    /// L of one token: the clipped surrogate, unless the loss has its own.
    fn term(&self, config: &LossConfig, token: &Token) -> Term {
        clip::surrogate(config, token.ratio, token.advantage)
    }

    /// Whether the loss has the importance-sampling correction inside L.
    fn corrects_itself(&self) -> bool {
        false
    }

    /// Adds what the loss reports of a sequence: how much was clipped, unless it has its own.
    fn report(&self, config: &LossConfig, whole: &Whole<'_>, sums: &mut LossSums) {
        let _ = config;
        sums.count_clipped(whole.low, whole.high, whole.counted);
    }
}

/// Adds one sequence's part of J to `sums`, and overwrites `d_logps` with ∂J/∂log π_θ.
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

/// A sequence and what it is evaluated with.
struct Case<'a, T> {
    config: &'a LossConfig,
    normalizer: &'a Normalizer,
    sequence: &'a Sequence<'a, T>,
    correction: &'a sampling::Weights,
}

impl<T: Float> Case<'_, T> {
    /// [`policy`] of a given loss. Arithmetic is f64 whatever `T` is: these are a few numbers per token.
    fn evaluate(&self, loss: &impl PolicyLoss, d_logps: &mut [T], sums: &mut LossSums) {
        let (config, normalizer) = (self.config, self.normalizer);
        let Sequence { logps, entropies, old_logps, sampler_logps, ref_logps, mask, advantage } = *self.sequence;
        assert!(logps.len() == mask.len() && old_logps.len() == mask.len() && d_logps.len() == mask.len());
        let ratio = ratio::Ratio::new(config.importance_sampling_level, logps, old_logps, mask);
        let near = off_policy::is_near(config.off_policy_mask_threshold, logps, sampler_logps, mask);
        let tokens = ratio.tokens();
        let weight = loss.weight(config, tokens, normalizer);

        // At sequence level every token's term pulls at the one ratio.
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
            // One ratio, one advantage: the sequence is clipped or not.
            (ImportanceSamplingLevel::Sequence, Advantage::Sequence(_)) => (u64::from(low > 0), u64::from(high > 0), 1),
            _ => (low, high, tokens as u64),
        };
        loss.report(config, &Whole { advantage, mask, tokens, low, high, counted }, sums);
    }
}

impl Term {
    /// Times a constant; a term that is left out is 0 even where it was not finite.
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
