//! Losses: the value, and its gradient with respect to the log-probability of every completion token.

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
    /// Multiply the KL estimate by the ratio (DeepSeek-V3.2, arXiv:2512.02556).
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
            use_bias_correction_kl: false,
            mask_truncated_completions: false,
            max_completion_length: 512,
        }
    }
}
