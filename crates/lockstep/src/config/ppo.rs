//! What PPO's keys must satisfy, and what they say to the trainer.

use super::values::KeyValue;
use super::{Algorithm, Config, KEYS, Resolved};
use crate::bad_input;
use train::loss::ppo::{PpoConfig, ValueConfig};

/// Keys that PPO has another name for, or no use.
const NOT_OF_PPO: &[&str] = &[
    "scale_rewards",
    "multi_objective_aggregation",
    "normalize_advantages",
    "reward_clip_range",
    "use_bias_correction_kl",
    "loss_type",
    "importance_sampling_level",
    "beta",
    "epsilon",
    "epsilon_high",
    "delta",
    "top_entropy_quantile",
    "off_policy_mask_threshold",
    "use_adaptive_entropy",
    "entropy_coef_min",
    "entropy_coef_max",
    "entropy_coef_delta",
    "entropy_target",
    "vllm_importance_sampling_correction",
    "vllm_importance_sampling_mode",
    "vllm_importance_sampling_clip_max",
    "vllm_importance_sampling_clip_min",
];

/// Refuses what PPO cannot do.
pub(super) fn check(c: &Config) -> anyhow::Result<()> {
    if c.algorithm != Algorithm::Ppo {
        return Ok(());
    }
    if c.num_iterations != 1 {
        bad_input!(
            "`num_iterations` is GRPO's; PPO's passes over a generation are num_ppo_epochs (now {})",
            c.num_ppo_epochs
        );
    }
    for (name, set) in [
        ("generation_batch_size", c.generation_batch_size.is_some()),
        ("steps_per_generation", c.steps_per_generation.is_some()),
    ] {
        if set {
            bad_input!(
                "`{name}` is GRPO's; in PPO a generation is num_mini_batches (now {}) × per_device_train_batch_size × \
                 gradient_accumulation_steps completions: set these",
                c.num_mini_batches
            );
        }
    }
    if c.dynamic_sampling {
        bad_input!("`dynamic_sampling` is for groups that are compared with each other, as GRPO's: set it to false");
    }
    let (step, group) = (c.completions_per_step(), c.num_generations);
    if !step.is_multiple_of(group) {
        bad_input!(
            "a mini-batch of {step} completions (per_device_train_batch_size × gradient_accumulation_steps) must be a multiple of \
             num_generations = {group}, so that groups are whole: set num_generations = 1, or another batch size"
        );
    }
    if c.adap_kl_ctrl && c.kl_coef == 0.0 {
        bad_input!(
            "`adap_kl_ctrl` = true multiplies kl_coef, which is 0: set kl_coef above 0, or adap_kl_ctrl = false"
        );
    }
    Ok(())
}

/// Says which keys that were set have no meaning.
pub(super) fn notes(resolved: &mut Resolved) {
    let (c, default) = (&resolved.config, Config::default());
    let ppo = c.algorithm == Algorithm::Ppo;
    let algorithm = KeyValue::write(&c.algorithm).map_or_else(String::new, |v| v.to_string());
    let idle = KEYS
        .iter()
        .filter(|key| if ppo { NOT_OF_PPO.contains(&key.name) } else { key.section == "PPO" })
        .filter(|key| key.value(c) != key.value(&default))
        .map(|key| format!("{} has no meaning with algorithm = {algorithm}", key.name));
    let idle: Vec<String> = idle.collect();
    resolved.notes.extend(idle);
}

impl Config {
    /// The policy's loss in PPO.
    pub fn ppo(&self) -> PpoConfig {
        PpoConfig { cliprange: self.cliprange, entropy_coef: self.entropy_coef }
    }

    /// The value model's loss in PPO.
    pub fn value_loss(&self) -> ValueConfig {
        ValueConfig { cliprange_value: self.cliprange_value, vf_coef: self.vf_coef }
    }
}
