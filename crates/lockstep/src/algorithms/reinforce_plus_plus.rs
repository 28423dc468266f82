//! REINFORCE++, and its variant whose baseline is the group's mean reward (Hu et al. 2025, arXiv:2501.03262). Both give
//! each token an advantage and normalise advantages over the batch. Formulas:
//! [`train::advantages::reinforce_plus_plus`]; losses: [`train::loss`].

use super::{CENTERED, Estimator, PolicyGradient, Scored};
use crate::config::Config;
use train::advantages::reinforce_plus_plus::{Baseline, compute};
use train::{Advantages, LossConfig, Objective};

pub struct ReinforcePlusPlus(pub Baseline);

impl PolicyGradient for ReinforcePlusPlus {
    fn objective(&self, config: &Config) -> Objective {
        Objective::Policy(match self.0 {
            // The KL divergence is already in the reward.
            Baseline::Batch => LossConfig { beta: 0.0, ..config.loss() },
            Baseline::Group => config.loss(),
        })
    }

    fn estimator(&self) -> Estimator {
        Estimator::Batch(match self.0 {
            Baseline::Batch => |config, batch| advantages(config, batch, Baseline::Batch),
            Baseline::Group => |config, batch| advantages(config, batch, Baseline::Group),
        })
    }

    fn computes_every_group(&self, _config: &Config) -> Option<&'static str> {
        Some(CENTERED)
    }

    fn least_generations(&self, _config: &Config) -> usize {
        match self.0 {
            Baseline::Batch => 1,
            Baseline::Group => 2,
        }
    }
}

fn advantages(config: &Config, batch: &Scored<'_>, baseline: Baseline) -> Advantages {
    let loss = config.loss();
    let masks: Vec<Vec<bool>> = batch.samples.iter().map(|sample| loss.loss_mask(sample)).collect();
    compute(batch.rewards, batch.samples, &masks, config.beta, baseline)
}
