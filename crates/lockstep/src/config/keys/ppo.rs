//! Configuration keys of PPO: value model, rewards per token, passes over a generation batch.

use crate::config::keys::Config;
use crate::config::methods::PPO;
use crate::config::row::{OURS, OnResume::Warn, Row};
use train::loss::ppo::{PpoConfig, ValueConfig};

/// The rows of PPO's keys. TRL no longer has a PPO trainer; names and defaults are those of its last PPOConfig.
pub(in crate::config) const OF_PPO: Row =
    OURS.trl_has("the same in PPOConfig, while TRL had it").read_by(PPO).on_resume(Warn);

macro_rules! ppo_keys { ($collect:ident $($rows:tt)*) => { $collect! { $($rows)* "PPO" {
    /// The initial value model: "policy" (the policy's layers with a score of 0), or the directory of a reward or value
    /// model with one score.
    value_model: String = "policy".to_owned()
        => OF_PPO.name().trl_has("value_model of the earlier PPOTrainer: the reward model").on_resume(Fixed);
    /// The weight of the KL divergence to the reference model in each token's reward; 0: no reference model is loaded.
    kl_coef: f64 = 0.05 => OF_PPO.range(at_least(0.0)).on_resume(Fixed);
    /// The estimator of the divergence at a token: k1 is log π − log π_ref; k3 is never negative.
    kl_estimator: KlEstimator = KlEstimator::K1 => OF_PPO;
    /// Adapt kl_coef after each generation, so that the divergence per completion approaches kl_target.
    adap_kl_ctrl: bool = false
        => OF_PPO.trl_has("adap_kl_ctrl of the PPOConfig of TRL 0.11, true there").on_resume(Fixed);
    /// The divergence per completion, in nats, that adap_kl_ctrl aims at.
    kl_target: f64 = 6.0
        => OF_PPO.trl_has("target of the PPOConfig of TRL 0.11").range(above(0.0)).needs("adap_kl_ctrl", "true");
    /// The horizon of adap_kl_ctrl in completions: larger values adapt more slowly.
    kl_horizon: f64 = 10_000.0
        => OF_PPO.trl_has("horizon of the PPOConfig of TRL 0.11").range(above(0.0)).needs("adap_kl_ctrl", "true");
    /// Subtracted from the score of a completion without an end token.
    missing_eos_penalty: Option<f64> = None => OF_PPO.range(at_least(0.0));
    /// The discount of later rewards (γ).
    gamma: f64 = 1.0 => OF_PPO.range(at_least(0.0).at_most(1.0));
    /// λ of generalised advantage estimation: 0 looks ahead to the next value, 1 to the end of the completion.
    lam: f64 = 0.95 => OF_PPO.range(at_least(0.0).at_most(1.0));
    /// Divide the rewards of tokens by their standard deviation over the generation batch.
    whiten_rewards: bool = false => OF_PPO;
    /// The ratio of new to old policy is clipped to 1 ± this.
    cliprange: f64 = 0.2 => OF_PPO.range(at_least(0.0));
    /// Values are clipped to their values at rollout ± this.
    cliprange_value: f64 = 0.2 => OF_PPO.range(at_least(0.0));
    /// The weight of the value loss. The value model has an optimizer of its own, so this weight matters only for
    /// max_grad_norm and adam_epsilon.
    vf_coef: f64 = 0.1 => OF_PPO.range(at_least(0.0));
    /// The value model's peak learning rate; not set: learning_rate.
    value_learning_rate: Option<f64> = None => OF_PPO.range(at_least(0.0));
    /// Passes over each generation batch.
    num_ppo_epochs: usize = 4 => OF_PPO.range(at_least(1.0).at_most(MAX_COUNT)).on_resume(Fixed);
    /// Optimizer steps per pass over a generation batch, which has this × per_device_train_batch_size ×
    /// gradient_accumulation_steps completions.
    num_mini_batches: usize = 1 => OF_PPO.range(at_least(1.0).at_most(MAX_COUNT)).on_resume(Fixed);
    /// End the updates on a generation batch early if the new policy is further than 1.5 × this (nats per token) from
    /// the old policy.
    target_kl: Option<f64> = None => OF_PPO.trl_has("target_kl of the PPOConfig of TRL 0.11").range(above(0.0));
} } } }
pub(in crate::config) use ppo_keys;

impl Config {
    /// The loss of the policy in PPO.
    pub(crate) fn ppo(&self) -> PpoConfig {
        PpoConfig { cliprange: self.cliprange, entropy_coef: self.entropy_coef }
    }

    /// The loss of the value model in PPO.
    pub(crate) fn value_loss(&self) -> ValueConfig {
        ValueConfig { cliprange_value: self.cliprange_value, vf_coef: self.vf_coef }
    }
}
