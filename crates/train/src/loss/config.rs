//! Parameters of the policy losses; names, meanings and defaults are TRL's.

use super::LossType;
use super::entropy::EntropyConfig;
use super::sampling::Correction;
use crate::Sample;
use serde::{Deserialize, Serialize};

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

/// The policy loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossConfig {
    /// Which term, and how tokens are averaged.
    pub loss_type: LossType,
    /// What the ratio is of.
    pub importance_sampling_level: ImportanceSamplingLevel,
    /// The clip range below 1.
    pub epsilon: f64,
    /// The clip range above 1; `None`: as below. In `cispo`, the largest ratio itself.
    pub epsilon_high: Option<f64>,
    /// Upper bound of the unclipped ratio (two-sided clipping, INTELLECT-2, arXiv:2505.07291).
    pub delta: Option<f64>,
    /// `sapo`'s τ where the advantage is above 0.
    pub sapo_temperature_pos: f64,
    /// `sapo`'s τ where the advantage is 0 or below.
    pub sapo_temperature_neg: f64,
    /// `vespo`'s k where the advantage is not negative.
    pub vespo_k_pos: f64,
    /// `vespo`'s λ where the advantage is not negative.
    pub vespo_lambda_pos: f64,
    /// `vespo`'s k where the advantage is negative.
    pub vespo_k_neg: f64,
    /// `vespo`'s λ where the advantage is negative.
    pub vespo_lambda_neg: f64,
    /// Weight of the KL divergence to the reference; 0 for none.
    pub beta: f64,
    /// Multiply the KL estimate by the ratio (DeepSeek-V3.2, arXiv:2512.02556). TRL's default: its gradient is
    /// unbiased, and on policy it is log π_θ − log π_ref.
    pub use_bias_correction_kl: bool,
    /// Leave completions that the length limit cut out of the loss.
    pub mask_truncated_completions: bool,
    /// Leave sequences with a negative advantage out of the policy term where the mean of log π_sampler − log π_θ is
    /// above this.
    pub off_policy_mask_threshold: Option<f64>,
    /// The share ρ of tokens, those of highest entropy, that stay in the policy term; 1 for all.
    pub top_entropy_quantile: f64,
    /// The entropy bonus.
    pub entropy: EntropyConfig,
    /// The correction for a sampler that was not the old policy.
    pub importance_sampling: Correction,
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
            sapo_temperature_pos: 1.0,
            sapo_temperature_neg: 1.05,
            vespo_k_pos: 2.0,
            vespo_lambda_pos: 3.0,
            vespo_k_neg: 3.0,
            vespo_lambda_neg: 2.0,
            beta: 0.0,
            use_bias_correction_kl: true,
            mask_truncated_completions: false,
            off_policy_mask_threshold: None,
            top_entropy_quantile: 1.0,
            entropy: EntropyConfig::default(),
            importance_sampling: Correction::default(),
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
