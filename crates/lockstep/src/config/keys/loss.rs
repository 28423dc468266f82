//! Configuration keys of the policy's loss, for GRPO and the algorithms that share its losses.

use crate::bad_input;
use crate::config::keys::Config;
use crate::config::methods::POLICY_LOSS;
use crate::config::row::{OnResume::Warn, Row, TRL, above, at_least};
use train::loss::sampling::CorrectionMode;
use train::{ImportanceSamplingLevel, LossType};

/// The rows of keys that only GRPO's family of policy losses reads (see `loss_type`).
pub(in crate::config) const LOSS: Row = TRL.read_by(POLICY_LOSS).on_resume(Warn);
pub(in crate::config) const SAPO: Row = LOSS.range(above(0.0)).needs("loss_type", "sapo");
pub(in crate::config) const VESPO: Row = LOSS.range(at_least(0.0)).needs("loss_type", "vespo");
pub(in crate::config) const ADAPTIVE_ENTROPY: Row = LOSS.needs("use_adaptive_entropy", "true");
pub(in crate::config) const CORRECTION: Row = LOSS.needs("vllm_importance_sampling_correction", "true");

macro_rules! loss_keys { ($collect:ident $($rows:tt)*) => { $collect! { $($rows)* "Loss" {
    /// The policy loss: how the ratio weights each token, and how tokens and sequences are averaged.
    loss_type: LossType = LossType::Dapo => LOSS.instead(&[(DPO, "dpo_loss_type"), (SFT, "sft_loss_type")]);
    /// Supervised fine-tuning: "nll", the negative log-likelihood; "dft", dynamic fine-tuning, each token weighted by
    /// its own probability, which is held constant (`loss_type` in TRL's SFTConfig).
    sft_loss_type: SftLoss = SftLoss::Nll => TRL.trl_name("loss_type").read_by(SFT).on_resume(Warn);
    /// Whether each token or each sequence has its own importance ratio.
    importance_sampling_level: ImportanceSamplingLevel = ImportanceSamplingLevel::Token => LOSS;
    /// The weight of the KL divergence to the reference model; 0: no reference model is loaded. (In direct preference
    /// optimization: how strongly the policy is kept near the reference; the default is TRL's, 0.1.)
    beta: f64 = 0.0, RLOO = 0.05, RPP = 0.01, DPO = 0.1
        => TRL.range(at_least(0.0)).read_by(REFERENCE.but(PPO).and(DPO)).instead(&[(PPO, "kl_coef")]);
    /// Let the reference model follow the policy: every ref_model_sync_steps steps it becomes ref_model_mixup_alpha ·
    /// policy + (1 − ref_model_mixup_alpha) · reference.
    sync_ref_model: bool = false => TRL.read_by(REFERENCE);
    /// How far each update moves the reference model towards the policy: 0 not at all, 1 all the way.
    ref_model_mixup_alpha: f64 = 0.6
        => TRL.range(at_least(0.0).at_most(1.0)).read_by(REFERENCE).needs("sync_ref_model", "true").on_resume(Warn);
    /// Optimizer steps between two updates of the reference model.
    ref_model_sync_steps: u64 = 512
        => TRL.range(at_least(1.0)).read_by(REFERENCE).needs("sync_ref_model", "true").on_resume(Warn);
    /// The ratio is clipped below 1 − epsilon.
    epsilon: f64 = 0.2
        => TRL.range(at_least(0.0)).read_by(ONLINE.but(PPO)).instead(&[(PPO, "cliprange")]).on_resume(Warn);
    /// The ratio is clipped above 1 + epsilon_high; not set: epsilon. With loss_type "cispo" it is the bound of the
    /// ratio itself (5 is recommended).
    epsilon_high: Option<f64> = None
        => TRL.range(at_least(0.0)).read_by(ONLINE.but(PPO)).instead(&[(PPO, "cliprange")]).on_resume(Warn);
    /// The upper bound of the unclipped ratio (two-sided clipping); it must be above 1 + epsilon_high.
    delta: Option<f64> = None => LOSS;
    /// loss_type "sapo": the temperature of its gate for tokens with an advantage above 0.
    sapo_temperature_pos: f64 = 1.0 => SAPO;
    /// loss_type "sapo": the temperature of its gate for other tokens.
    sapo_temperature_neg: f64 = 1.05 => SAPO;
    /// loss_type "vespo": the exponent k of the sequence's weight where the advantage is not negative.
    vespo_k_pos: f64 = 2.0 => VESPO;
    /// loss_type "vespo": the decay λ of the sequence's weight where the advantage is not negative.
    vespo_lambda_pos: f64 = 3.0 => VESPO;
    /// loss_type "vespo": the exponent k of the sequence's weight where the advantage is negative.
    vespo_k_neg: f64 = 3.0 => VESPO;
    /// loss_type "vespo": the decay λ of the sequence's weight where the advantage is negative.
    vespo_lambda_neg: f64 = 2.0 => VESPO;
    /// Exclude truncated completions from the loss.
    mask_truncated_completions: bool = false => TRL.read_by(ONLINE).on_resume(Warn);
    /// Groups, by number in the run, whose advantages are set to 0, so that nothing is learned from their rewards.
    /// Other terms of the loss (KL, entropy) still include their tokens. `lockstep fork --without-group` sets this key.
    without_groups: Vec<u64> = Vec::new() => OURS.read_by(ONLINE.but(PPO)).on_resume(Warn);
    /// Skip groups whose gradient is known to be 0: all of their rewards are equal, or all of their completions masked.
    /// Weights, moments and the gradient norm keep their bits. Nothing is skipped if such a group may have a gradient,
    /// or if other groups depend on it: with `beta` above 0, an entropy bonus, `top_entropy_quantile` below 1,
    /// advantages centred over the batch (reinforce_plus_plus, GDPO, RLOO's `normalize_advantages`), a teacher, and in
    /// PPO.
    skip_zero_gradients: bool = true => OURS.read_by(ONLINE.but(PPO)).on_resume(Free);
    /// Multiply the KL estimate by the importance ratio, so that its gradient is unbiased.
    use_bias_correction_kl: bool = true => LOSS;
    /// Train on this share of the tokens, those with the highest entropy; 1: all. The KL term still uses all tokens.
    /// The threshold is computed over the whole optimizer batch; this takes another forward pass if the batch has more
    /// than one micro-batch.
    top_entropy_quantile: f64 = 1.0 => LOSS.range(at_least(0.0).at_most(1.0));
    /// Exclude completions with a negative advantage from the policy term if the policy has moved further than this
    /// from their sampler: the mean over tokens of log π_sampler − log π_θ.
    off_policy_mask_threshold: Option<f64> = None => LOSS.range(above(0.0));
    /// The weight of the entropy bonus: J − entropy_coef × mean entropy per token. If adaptive, its initial value.
    entropy_coef: f64 = 0.0 => TRL.read_by(POLICY_LOSS.and(PPO)).on_resume(Warn);
    /// Adapt the weight of the entropy bonus: add entropy_coef_delta after a step with an entropy of at most
    /// entropy_target, else subtract it. The bonus is applied only after such low-entropy steps.
    use_adaptive_entropy: bool = false => TRL.read_by(POLICY_LOSS);
    /// The lower bound of the adaptive weight.
    entropy_coef_min: f64 = 0.0 => ADAPTIVE_ENTROPY;
    /// The upper bound of the adaptive weight.
    entropy_coef_max: f64 = 1.0 => ADAPTIVE_ENTROPY;
    /// The change of the adaptive weight per optimizer step.
    entropy_coef_delta: f64 = 0.005 => ADAPTIVE_ENTROPY.range(at_least(0.0));
    /// The entropy per token, in nats, up to which the adaptive weight is applied.
    entropy_target: f64 = 0.2 => ADAPTIVE_ENTROPY;
    /// Correct for samples that another policy has drawn (from a file, or with another version of the weights): log
    /// π_old is computed when they arrive, and the policy term is multiplied by c = π_old / π_sampler. If false, the
    /// sampler's own log-probabilities are log π_old. In a run that samples for itself c is exactly 1.
    vllm_importance_sampling_correction: bool = false => LOSS.trl_defaults(&[(ALL, "true")]);
    /// Whether c is computed per token or per sequence, and whether values outside its bounds are truncated or masked.
    vllm_importance_sampling_mode: CorrectionMode = CorrectionMode::SequenceMask => CORRECTION;
    /// The upper bound of c.
    vllm_importance_sampling_clip_max: Option<f64> = Some(3.0) => CORRECTION.range(above(0.0));
    /// The lower bound of c.
    vllm_importance_sampling_clip_min: Option<f64> = None => CORRECTION.range(at_least(0.0));
} } } }
pub(in crate::config) use loss_keys;

impl Config {
    /// The upper clip range of the importance ratio.
    pub(crate) fn epsilon_high(&self) -> f64 {
        self.epsilon_high.unwrap_or(self.epsilon)
    }

    /// The policy loss that the keys describe.
    pub(crate) fn loss(&self) -> train::LossConfig {
        train::LossConfig {
            loss_type: self.loss_type,
            importance_sampling_level: self.importance_sampling_level,
            epsilon: self.epsilon,
            epsilon_high: self.epsilon_high,
            delta: self.delta,
            sapo_temperature_pos: self.sapo_temperature_pos,
            sapo_temperature_neg: self.sapo_temperature_neg,
            vespo_k_pos: self.vespo_k_pos,
            vespo_lambda_pos: self.vespo_lambda_pos,
            vespo_k_neg: self.vespo_k_neg,
            vespo_lambda_neg: self.vespo_lambda_neg,
            beta: self.beta,
            use_bias_correction_kl: self.use_bias_correction_kl,
            mask_truncated_completions: self.mask_truncated_completions,
            off_policy_mask_threshold: self.off_policy_mask_threshold,
            top_entropy_quantile: self.top_entropy_quantile,
            entropy: train::loss::entropy::EntropyConfig {
                entropy_coef: self.entropy_coef,
                use_adaptive_entropy: self.use_adaptive_entropy,
                entropy_coef_min: self.entropy_coef_min,
                entropy_coef_max: self.entropy_coef_max,
                entropy_coef_delta: self.entropy_coef_delta,
                entropy_target: self.entropy_target,
            },
            importance_sampling: train::loss::sampling::Correction {
                enabled: self.vllm_importance_sampling_correction,
                mode: self.vllm_importance_sampling_mode,
                clip_max: self.vllm_importance_sampling_clip_max,
                clip_min: self.vllm_importance_sampling_clip_min,
            },
            max_completion_length: self.max_completion_length,
        }
    }
}

/// Refuses contradictory keys of the policy loss. The notes warn of valid values that are probably unintended.
pub(crate) fn check(c: &Config) -> anyhow::Result<Vec<String>> {
    if let Some(delta) = c.delta
        && delta <= 1.0 + c.epsilon_high()
    {
        bad_input!(
            "`delta` = {delta} must be above 1 + epsilon_high = {}: it bounds ratios that the clip lets through",
            1.0 + c.epsilon_high()
        );
    }
    if c.entropy_coef_min > c.entropy_coef_max {
        bad_input!(
            "`entropy_coef_min` must be at most {} (entropy_coef_max), but is {}",
            c.entropy_coef_max,
            c.entropy_coef_min
        );
    }
    let (low, high) = (c.vllm_importance_sampling_clip_min, c.vllm_importance_sampling_clip_max);
    if let (Some(low), Some(high)) = (low, high)
        && low >= high
    {
        bad_input!(
            "`vllm_importance_sampling_clip_min` = {low} must be below vllm_importance_sampling_clip_max = {high}"
        );
    }
    use CorrectionMode::{SequenceTruncate, TokenMask, TokenTruncate};
    let mode = c.vllm_importance_sampling_mode;
    if c.vllm_importance_sampling_correction {
        if matches!(mode, SequenceTruncate | TokenTruncate) && low.is_none() && high.is_none() {
            bad_input!(
                "`vllm_importance_sampling_mode` truncates, but no bound is set: set vllm_importance_sampling_clip_max \
                 or vllm_importance_sampling_clip_min"
            );
        }
        if c.loss_type == LossType::Vespo && !matches!(mode, TokenTruncate | TokenMask) {
            bad_input!(
                "`loss_type` = \"vespo\" weights sequences itself: set vllm_importance_sampling_mode to \
                 \"token_truncate\" or \"token_mask\""
            );
        }
    }
    let sequence = c.importance_sampling_level == ImportanceSamplingLevel::Sequence;
    let mut notes = Vec::new();
    if c.loss_type == LossType::Cispo && c.epsilon_high() < 1.0 {
        notes.push(format!(
            "loss_type \"cispo\" bounds the ratio at epsilon_high itself, here {}: unchanged tokens have a weight \
             below 1; 5.0 is recommended",
            c.epsilon_high()
        ));
    }
    if c.loss_type == LossType::Luspo && !sequence {
        notes.push("loss_type \"luspo\" is meant for importance_sampling_level = \"sequence\"".to_owned());
    }
    if c.loss_type == LossType::Vespo && sequence {
        notes.push(
            "loss_type \"vespo\" always uses the sequence's ratio: importance_sampling_level affects only the KL term"
                .to_owned(),
        );
    }
    Ok(notes)
}
