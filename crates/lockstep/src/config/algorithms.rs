//! Algorithms have defaults of their own, which fill in what nobody set, and keys that must fit each other.

use super::values::KeyValue;
use super::{Algorithm, Config, Origin, Resolved};
use crate::bad_input;
use train::advantages;
use train::advantages::reinforce_plus_plus::Baseline;
use train::advantages::rloo::RlooRewards;
use train::advantages::{gdpo, reinforce_plus_plus, rloo};
use train::loss::dpo::DpoConfig;
use train::loss::rloo::RlooConfig;
use train::loss::sampling::CorrectionMode;
use train::{
    Advantages, ImportanceSamplingLevel, LossType, MultiObjectiveAggregation, Objective, RewardMatrix, Sample,
};

/// The keys whose default is another than the table's, with that default.
fn defaults(algorithm: Algorithm) -> &'static [(&'static str, &'static str)] {
    match algorithm {
        Algorithm::Grpo | Algorithm::ReinforcePlusPlusBaseline => &[],
        // The learning rate is that of TRL's PPOConfig.
        Algorithm::Ppo => &[("num_generations", "1"), ("learning_rate", "3e-6")],
        // Those of TRL's RLOOConfig.
        Algorithm::Rloo => &[("num_generations", "2"), ("beta", "0.05")],
        // Those of OpenRLHF, the implementation that the paper names.
        Algorithm::ReinforcePlusPlus => &[("num_generations", "1"), ("beta", "0.01")],
    }
}

/// The keys of other algorithms: set to another value than their default, they would be ignored.
fn without_meaning(algorithm: Algorithm) -> &'static [&'static str] {
    match algorithm {
        Algorithm::Grpo => &["reward_clip_range", "normalize_advantages"],
        // What PPO refuses is in its own validation.
        Algorithm::Ppo => &[],
        Algorithm::ReinforcePlusPlus | Algorithm::ReinforcePlusPlusBaseline => {
            &["reward_clip_range", "normalize_advantages", "scale_rewards", "multi_objective_aggregation"]
        }
        Algorithm::Rloo => &[
            "scale_rewards",
            "multi_objective_aggregation",
            "loss_type",
            "importance_sampling_level",
            "delta",
            "use_bias_correction_kl",
            "top_entropy_quantile",
            "off_policy_mask_threshold",
            "entropy_coef",
            "use_adaptive_entropy",
            "vllm_importance_sampling_correction",
        ],
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
    for name in without_meaning(c.algorithm) {
        let key = Config::key(name).expect("a key of the table");
        if key.value(c) != key.value(&Config::default()) {
            let algorithm = KeyValue::write(&c.algorithm).map_or_else(String::new, |v| v.to_string());
            bad_input!("`{name}` has no part in algorithm = {algorithm}: remove it");
        }
    }
    if let Some(range) = &c.reward_clip_range
        && !matches!(range.as_slice(), [low, high] if low < high)
    {
        bad_input!("`reward_clip_range` must be two numbers, the lower first, but is {range:?}");
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

impl Algorithm {
    /// The fewest completions of a prompt that it can compare.
    pub fn least_generations(self) -> usize {
        match self {
            Algorithm::Ppo | Algorithm::ReinforcePlusPlus => 1,
            Algorithm::Grpo | Algorithm::Rloo | Algorithm::ReinforcePlusPlusBaseline => 2,
        }
    }
}

impl Config {
    /// What the policy's trainer minimises.
    pub fn objective(&self) -> Objective {
        match self.algorithm {
            Algorithm::Grpo | Algorithm::ReinforcePlusPlus | Algorithm::ReinforcePlusPlusBaseline => {
                Objective::Policy(self.loss())
            }
            Algorithm::Ppo => Objective::Ppo(self.ppo()),
            Algorithm::Rloo => Objective::Rloo(RlooConfig {
                epsilon: self.epsilon,
                epsilon_high: self.epsilon_high,
                mask_truncated_completions: self.mask_truncated_completions,
            }),
        }
    }

    /// The advantages of `samples`, which lie group by group. With a `beta` that is in the reward they need their reference.
    pub fn advantages(&self, matrix: &RewardMatrix, samples: &[Sample]) -> Advantages {
        let (group, beta) = (self.num_generations, self.beta);
        let plus_plus = |baseline| {
            let objective = self.objective();
            let masks: Vec<Vec<bool>> = samples.iter().map(|s| objective.loss_mask(s)).collect();
            reinforce_plus_plus::compute(matrix, samples, &masks, group, beta, baseline)
        };
        match self.algorithm {
            Algorithm::Grpo if self.multi_objective_aggregation == MultiObjectiveAggregation::NormalizeThenSum => {
                gdpo::compute(matrix, group)
            }
            Algorithm::Grpo => advantages::compute(matrix, group, self.scale_rewards),
            Algorithm::Ppo => unreachable!("PPO estimates advantages from values"),
            Algorithm::Rloo => {
                let rewards = RlooRewards {
                    beta,
                    reward_clip_range: self.reward_clip_range.as_deref().map(|r| [r[0], r[1]]),
                    normalize_advantages: self.normalize_advantages,
                    mask_truncated_completions: self.mask_truncated_completions,
                };
                rloo::compute(matrix, samples, group, &rewards)
            }
            Algorithm::ReinforcePlusPlus => plus_plus(Baseline::Batch),
            Algorithm::ReinforcePlusPlusBaseline => plus_plus(Baseline::Group),
        }
    }

    /// DPO's loss.
    pub fn dpo(&self) -> DpoConfig {
        DpoConfig { beta: self.beta, loss_type: self.dpo_loss_type, label_smoothing: self.label_smoothing }
    }

    /// The upper clip range.
    pub fn epsilon_high(&self) -> f64 {
        self.epsilon_high.unwrap_or(self.epsilon)
    }
}
