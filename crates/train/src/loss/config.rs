//! Parameters of the policy losses; names, meanings and defaults are TRL's.

use super::LossType;
use super::entropy::EntropyConfig;
use super::sampling::Correction;
use crate::Sample;
use serde::{Deserialize, Serialize};

/// Whether importance ratios are per token or per sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImportanceSamplingLevel {
    /// Each token has its own importance ratio.
    #[default]
    Token,
    /// One ratio for the sequence: the geometric mean of its tokens' ratios (GSPO, Zheng et al. 2025,
    /// arXiv:2507.18071).
    Sequence,
}

/// Settings of a policy loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossConfig {
    /// The variant of the loss: its policy term, and how tokens are averaged.
    pub loss_type: LossType,
    /// Whether importance ratios are per token or per sequence.
    pub importance_sampling_level: ImportanceSamplingLevel,
    /// Clip range of the importance ratio below 1.
    pub epsilon: f64,
    /// Clip range of the importance ratio above 1; `None` means the same as below. For `cispo`, this is the maximum
    /// ratio.
    pub epsilon_high: Option<f64>,
    /// Upper bound δ of the unclipped ratio (two-sided clipping, INTELLECT-2, arXiv:2505.07291).
    pub delta: Option<f64>,
    /// Temperature τ of `sapo` for advantages above 0.
    pub sapo_temperature_pos: f64,
    /// Temperature τ of `sapo` for advantages of 0 or below.
    pub sapo_temperature_neg: f64,
    /// Exponent k of `vespo` for advantages of 0 or above.
    pub vespo_k_pos: f64,
    /// Decay λ of `vespo` for advantages of 0 or above.
    pub vespo_lambda_pos: f64,
    /// Exponent k of `vespo` for negative advantages.
    pub vespo_k_neg: f64,
    /// Decay λ of `vespo` for negative advantages.
    pub vespo_lambda_neg: f64,
    /// Weight β of the KL divergence to the reference model; 0 for none.
    pub beta: f64,
    /// Multiply the KL estimate by the importance ratio (DeepSeek-V3.2, arXiv:2512.02556). This is TRL's default: the
    /// gradient is unbiased, and on-policy it is log π_θ − log π_ref times ∇ log π_θ.
    pub use_bias_correction_kl: bool,
    /// Leave completions that reached the length limit out of the loss.
    pub mask_truncated_completions: bool,
    /// Leave a sequence with a negative advantage out of the policy term if the mean of log π_sampler − log π_θ over
    /// its tokens is above this.
    pub off_policy_mask_threshold: Option<f64>,
    /// The fraction ρ of tokens, those with the highest entropy, that stay in the policy term; 1 for all.
    pub top_entropy_quantile: f64,
    /// Settings of the entropy bonus.
    pub entropy: EntropyConfig,
    /// Importance-sampling correction for samples that were not drawn from the old policy.
    pub importance_sampling: Correction,
    /// The constant by which `dr_grpo` divides.
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
    /// The clip range above 1. It defaults to the range below 1.
    pub fn epsilon_high(&self) -> f64 {
        self.epsilon_high.unwrap_or(self.epsilon)
    }

    /// The completion tokens of `sample` that the loss uses.
    pub fn loss_mask(&self, sample: &Sample) -> Vec<bool> {
        let out = self.mask_truncated_completions && sample.truncated();
        sample.loss_mask.iter().map(|&m| m && !out).collect()
    }
}
