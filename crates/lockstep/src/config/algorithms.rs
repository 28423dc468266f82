//! Algorithms have defaults of their own, which fill in what nobody set, and keys that must fit each other.

use super::{Algorithm, Config, Origin, Resolved};
use crate::bad_input;
use train::loss::sampling::CorrectionMode;
use train::{ImportanceSamplingLevel, LossType};

/// The keys whose default is another than the table's, with that default.
fn defaults(algorithm: Algorithm) -> &'static [(&'static str, &'static str)] {
    match algorithm {
        Algorithm::Grpo => &[],
        // The learning rate is that of TRL's PPOConfig.
        Algorithm::Ppo => &[("num_generations", "1"), ("learning_rate", "3e-6")],
    }
}

/// Fills in the defaults of `resolved`'s algorithm where nobody set the key.
pub(super) fn apply(resolved: &mut Resolved) {
    for &(name, text) in defaults(resolved.config.algorithm) {
        let key = Config::key(name).expect("a key of the table");
        if !resolved.is_set(name) {
            (key.read_text)(&mut resolved.config, text).expect("a value of the key's type");
            resolved.origins.insert(key.name, Origin::Algorithm);
        }
    }
}

/// Refuses keys of the policy loss that contradict each other; notes what works, but hardly as meant.
pub(super) fn check(resolved: &mut Resolved) -> anyhow::Result<()> {
    let c = &resolved.config;
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
                "`vllm_importance_sampling_mode` truncates, but there is nothing to truncate at: set \
                 vllm_importance_sampling_clip_max or vllm_importance_sampling_clip_min"
            );
        }
        if c.loss_type == LossType::Vespo && !matches!(mode, TokenTruncate | TokenMask) {
            bad_input!(
                "`loss_type` = \"vespo\" weighs sequences itself: set vllm_importance_sampling_mode to \"token_truncate\" or \
                 \"token_mask\""
            );
        }
    }
    let sequence = c.importance_sampling_level == ImportanceSamplingLevel::Sequence;
    let mut notes = Vec::new();
    if c.loss_type == LossType::Cispo && c.epsilon_high() < 1.0 {
        notes.push(format!(
            "loss_type \"cispo\" bounds the ratio at epsilon_high itself, here {}: unchanged tokens weigh less than 1; 5.0 is \
             recommended",
            c.epsilon_high()
        ));
    }
    if c.loss_type == LossType::Luspo && !sequence {
        notes.push("loss_type \"luspo\" is meant for importance_sampling_level = \"sequence\"".to_owned());
    }
    if c.loss_type == LossType::Vespo && sequence {
        notes.push(
            "loss_type \"vespo\" has the sequence's ratio itself: importance_sampling_level acts on the KL term only"
                .to_owned(),
        );
    }
    resolved.notes.extend(notes);
    Ok(())
}

impl Config {
    /// The upper clip range.
    pub fn epsilon_high(&self) -> f64 {
        self.epsilon_high.unwrap_or(self.epsilon)
    }
}
