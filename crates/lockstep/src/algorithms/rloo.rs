//! RLOO (Ahmadian et al. 2024, arXiv:2402.14740): a completion's baseline is the mean reward of the other completions
//! in its group, and the probability ratio of the whole completion is clipped. Formulas: [`train::advantages::rloo`],
//! [`train::loss::rloo`].

use super::{CENTERED, Estimator, PolicyGradient, Scored};
use crate::config::Config;
use train::advantages::rloo::{self, RlooRewards};
use train::loss::rloo::RlooConfig;
use train::{Advantages, Objective};

pub struct Rloo;

impl PolicyGradient for Rloo {
    fn objective(&self, config: &Config) -> Objective {
        Objective::Rloo(RlooConfig {
            epsilon: config.epsilon,
            epsilon_high: config.epsilon_high,
            mask_truncated_completions: config.mask_truncated_completions,
        })
    }

    fn estimator(&self) -> Estimator {
        Estimator::Batch(advantages)
    }

    fn computes_every_group(&self, config: &Config) -> Option<&'static str> {
        let in_reward = config.beta != 0.0;
        in_reward
            .then_some("the KL divergence to the reference (beta) is in the reward")
            .or(config.normalize_advantages.then_some(CENTERED))
    }
}

fn advantages(config: &Config, batch: &Scored<'_>) -> Advantages {
    let rewards = RlooRewards {
        beta: config.beta,
        reward_clip_range: config.reward_clip_range.as_deref().map(|r| [r[0], r[1]]),
        normalize_advantages: config.normalize_advantages,
        mask_truncated_completions: config.mask_truncated_completions,
    };
    rloo::compute(batch.rewards, batch.samples, &rewards)
}
