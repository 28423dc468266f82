//! Losses: the value, and its gradient with respect to the log-probability of every completion token.
//!
//! A policy loss is a sum over the tokens of the optimizer batch that the mask keeps:
//!
//! J = Σ_s w_s Σ_t m_{s,t} (L_{s,t} + β K_{s,t})
//!
//! - L: the policy term of the importance ratio r and the advantage A ([`clip`], shared by the losses here);
//! - r = e^ρ, ρ = log π_θ − log π_old, of the token or of the sequence ([`ratio`]);
//! - K: the KL divergence to the reference ([`kl`]);
//! - w_s: the weight of the sequence's tokens, which is what tells [`grpo`], [`bnpo`], [`dr_grpo`] and [`dapo`] apart. It
//!   depends on [`Totals`] of the whole optimizer batch, known before the first micro-batch, so that cutting the batch
//!   changes nothing.
//!
//! A further loss is another file with a [`PolicyLoss`] and a line in [`policy`]. Knows no model.

pub mod bnpo;
pub mod clip;
pub mod dapo;
pub mod dr_grpo;
pub mod grpo;
pub mod kl;
pub mod ppo;
pub mod ratio;
pub mod supervised;

#[cfg(test)]
mod tests;

use crate::{Advantage, ClipRatios, Means, Sample};
use kernels::check::Float;
use serde::{Deserialize, Serialize};

/// How the policy term is averaged; the names are TRL's.
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
}

/// What the importance ratio is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImportanceSamplingLevel {
    /// Each token has its own.
    #[default]
    Token,
    /// The geometric mean over the sequence (GSPO, Zheng et al. 2025, arXiv:2507.18071).
    Sequence,
}

/// The policy loss; names, meanings and defaults are TRL's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossConfig {
    /// How tokens are averaged.
    pub loss_type: LossType,
    /// What the ratio is of.
    pub importance_sampling_level: ImportanceSamplingLevel,
    /// The clip range below 1.
    pub epsilon: f64,
    /// The clip range above 1; `None`: as below.
    pub epsilon_high: Option<f64>,
    /// Upper bound of the unclipped ratio (two-sided clipping, INTELLECT-2, arXiv:2505.07291).
    pub delta: Option<f64>,
    /// Weight of the KL divergence to the reference; 0 for none.
    pub beta: f64,
    /// Multiply the KL estimate by the ratio (DeepSeek-V3.2, arXiv:2512.02556). TRL's default: its gradient is
    /// unbiased, and on policy it is log π_θ − log π_ref.
    pub use_bias_correction_kl: bool,
    /// Leave completions that the length limit cut out of the loss.
    pub mask_truncated_completions: bool,
    /// The constant of `dr_grpo`.
    pub max_completion_length: usize,
}

impl Default for LossConfig {
    fn default() -> Self {
        LossConfig {
            loss_type: LossType::default(),
            importance_sampling_level: ImportanceSamplingLevel::default(),
            epsilon: 0.2,
            epsilon_high: None,
            delta: None,
            beta: 0.0,
            use_bias_correction_kl: true,
            mask_truncated_completions: false,
            max_completion_length: 512,
        }
    }
}

impl LossConfig {
    /// The clip range above 1.
    pub fn epsilon_high(&self) -> f64 {
        self.epsilon_high.unwrap_or(self.epsilon)
    }

    /// The completion tokens of `sample` that the loss uses.
    pub fn loss_mask(&self, sample: &Sample) -> Vec<bool> {
        let out = self.mask_truncated_completions && sample.truncated;
        sample.mask.iter().map(|&m| m && !out).collect()
    }
}

/// Counts of the whole optimizer batch, which losses divide by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Sequences, those without a token in the loss included.
    pub sequences: usize,
    /// Tokens in the loss.
    pub tokens: usize,
}

/// One completion; the slices have one element per completion token.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a, T> {
    /// log π_θ
    pub logps: &'a [T],
    /// log π_old
    pub old_logps: &'a [T],
    /// log π_ref; needed if β ≠ 0.
    pub ref_logps: Option<&'a [T]>,
    /// Which tokens the loss uses. The values of the others are never read.
    pub mask: &'a [bool],
    /// A
    pub advantage: &'a Advantage,
}

/// The policy term of one token.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Term {
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

/// What tells one policy loss from another.
pub trait PolicyLoss {
    /// w: what each token of a sequence with `tokens` tokens in the loss counts.
    fn weight(&self, config: &LossConfig, tokens: usize, totals: &Totals) -> f64;

    /// L of one token: the clipped surrogate, unless the loss has its own.
    fn term(&self, config: &LossConfig, ratio: f64, logp: f64, advantage: f64) -> Term {
        let _ = logp;
        clip::surrogate(config, ratio, advantage)
    }
}

/// Sums over sequences, in their order, from which the metrics of an optimizer step are made.
#[derive(Clone, Debug, PartialEq)]
pub struct LossSums {
    /// J so far.
    pub loss: f64,
    /// Tokens so far.
    pub tokens: u64,
    /// Sum of K over tokens.
    pub kl: f64,
    /// What a loss reports beyond this.
    pub means: Means,
    low: f64,
    high: f64,
    /// What `low` and `high` count: tokens, or sequences at sequence level.
    counted: u64,
    low_min: f64,
    high_max: f64,
}

impl Default for LossSums {
    fn default() -> Self {
        LossSums {
            loss: 0.0,
            tokens: 0,
            kl: 0.0,
            means: Means::default(),
            low: 0.0,
            high: 0.0,
            counted: 0,
            low_min: f64::INFINITY,
            high_max: f64::NEG_INFINITY,
        }
    }
}

impl LossSums {
    /// Mean K per token.
    pub fn kl_mean(&self) -> f64 {
        self.kl / self.tokens.max(1) as f64
    }

    /// The clip ratios. Where no sequence has a token, the extremes are 0 (TRL has NaN).
    pub fn clip_ratios(&self) -> ClipRatios {
        let per = |x: f64| x / self.counted.max(1) as f64;
        let finite = |x: f64| if x.is_finite() { x } else { 0.0 };
        ClipRatios {
            low_mean: per(self.low),
            low_min: finite(self.low_min),
            high_mean: per(self.high),
            high_max: finite(self.high_max),
            region_mean: per(self.low + self.high),
        }
    }

    /// Counts the clipped ones among `of` tokens (or 1, the sequence).
    fn count_clipped(&mut self, low: u64, high: u64, of: u64) {
        self.low += low as f64;
        self.high += high as f64;
        self.counted += of;
        if of > 0 {
            self.low_min = self.low_min.min(low as f64 / of as f64);
            self.high_max = self.high_max.max(high as f64 / of as f64);
        }
    }
}

/// Adds one sequence's part of J to `sums`, and overwrites `d_logps` with ∂J/∂log π_θ.
pub fn policy<T: Float>(
    config: &LossConfig,
    totals: &Totals,
    sequence: &Sequence<'_, T>,
    d_logps: &mut [T],
    sums: &mut LossSums,
) {
    match config.loss_type {
        LossType::Grpo => evaluate(&grpo::Grpo, config, totals, sequence, d_logps, sums),
        LossType::Bnpo => evaluate(&bnpo::Bnpo, config, totals, sequence, d_logps, sums),
        LossType::DrGrpo => evaluate(&dr_grpo::DrGrpo, config, totals, sequence, d_logps, sums),
        LossType::Dapo => evaluate(&dapo::Dapo, config, totals, sequence, d_logps, sums),
    }
}

/// [`policy`] of a given loss. Arithmetic is f64 whatever `T` is: these are a few numbers per token.
pub fn evaluate<T: Float>(
    loss: &impl PolicyLoss,
    config: &LossConfig,
    totals: &Totals,
    sequence: &Sequence<'_, T>,
    d_logps: &mut [T],
    sums: &mut LossSums,
) {
    let Sequence { logps, old_logps, ref_logps, mask, advantage } = *sequence;
    assert!(logps.len() == mask.len() && old_logps.len() == mask.len() && d_logps.len() == mask.len());
    let ratio = ratio::Ratio::new(config.importance_sampling_level, logps, old_logps, mask);
    let tokens = ratio.tokens();
    let weight = loss.weight(config, tokens, totals);

    // At sequence level every token's term pulls at the one ratio.
    let mut d_sequence_ratio = 0.0;
    let (mut low, mut high) = (0, 0);
    for t in 0..mask.len() {
        d_logps[t] = T::of(0.0);
        if !mask[t] {
            continue;
        }
        let logp = logps[t].f64();
        let r = ratio.at(t);
        let mut term = loss.term(config, r, logp, f64::from(advantage.at(t)));
        if config.beta != 0.0 {
            let ref_logp = ref_logps.expect("beta needs reference log-probabilities")[t].f64();
            let kl = kl::token(logp, ref_logp, config.use_bias_correction_kl.then_some(r));
            term.value += config.beta * kl.value;
            term.d_log_ratio += config.beta * kl.d_log_ratio;
            term.d_logp += config.beta * kl.d_logp;
            sums.kl += kl.value;
        }
        sums.loss += weight * term.value;
        low += u64::from(term.low);
        high += u64::from(term.high);
        match config.importance_sampling_level {
            ImportanceSamplingLevel::Token => d_logps[t] = T::of(weight * (term.d_logp + term.d_log_ratio)),
            ImportanceSamplingLevel::Sequence => {
                d_logps[t] = T::of(weight * term.d_logp);
                d_sequence_ratio += weight * term.d_log_ratio;
            }
        }
    }
    sums.tokens += tokens as u64;
    match (config.importance_sampling_level, advantage) {
        (ImportanceSamplingLevel::Sequence, Advantage::Sequence(_)) => {
            ratio::spread(d_sequence_ratio, mask, d_logps);
            sums.count_clipped(u64::from(low > 0), u64::from(high > 0), 1);
        }
        (ImportanceSamplingLevel::Sequence, Advantage::Tokens(_)) => {
            ratio::spread(d_sequence_ratio, mask, d_logps);
            sums.count_clipped(low, high, tokens as u64);
        }
        (ImportanceSamplingLevel::Token, _) => sums.count_clipped(low, high, tokens as u64),
    }
}
