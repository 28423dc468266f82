//! What the policy's trainer minimises with each algorithm, and how rewards become advantages.

use super::{Algorithm, Config};
use train::advantages;
use train::advantages::reinforce_plus_plus::Baseline;
use train::advantages::rloo::RlooRewards;
use train::advantages::{gdpo, reinforce_plus_plus, rloo};
use train::loss::rloo::RlooConfig;
use train::{Advantages, MultiObjectiveAggregation, Objective, RewardMatrix, Sample};

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

    /// The advantages of `samples`, one for each row of `matrix`. With a `beta` that is in the reward they need their
    /// reference.
    pub(crate) fn advantages(&self, matrix: &RewardMatrix, samples: &[Sample]) -> Advantages {
        let beta = self.beta;
        let plus_plus = |baseline| {
            let objective = self.objective();
            let masks: Vec<Vec<bool>> = samples.iter().map(|s| objective.loss_mask(s)).collect();
            reinforce_plus_plus::compute(matrix, samples, &masks, beta, baseline)
        };
        match self.algorithm {
            Algorithm::Grpo if self.multi_objective_aggregation == MultiObjectiveAggregation::NormalizeThenSum => {
                gdpo::compute(matrix)
            }
            Algorithm::Grpo => advantages::compute(matrix, self.scale_rewards),
            Algorithm::Ppo => unreachable!("PPO estimates advantages from values"),
            Algorithm::Rloo => {
                let rewards = RlooRewards {
                    beta,
                    reward_clip_range: self.reward_clip_range.as_deref().map(|r| [r[0], r[1]]),
                    normalize_advantages: self.normalize_advantages,
                    mask_truncated_completions: self.mask_truncated_completions,
                };
                rloo::compute(matrix, samples, &rewards)
            }
            Algorithm::ReinforcePlusPlus => plus_plus(Baseline::Batch),
            Algorithm::ReinforcePlusPlusBaseline => plus_plus(Baseline::Group),
        }
    }
}
