//! GRPO and its family: a completion's reward is compared with the other rewards of its group (Shao et al. 2024,
//! arXiv:2402.03300). GDPO normalises each of several rewards separately; process rewards score single steps of a
//! completion. Formulas: [`train::advantages`]; losses: [`train::loss`].

use super::{CENTERED, Estimator, PolicyGradient, Scored, terms_without_advantage};
use crate::config::Config;
use train::advantages::process::{self, ProcessRewards};
use train::advantages::{self, gdpo};
use train::{Advantages, MultiObjectiveAggregation, Objective};

pub struct Grpo;

impl PolicyGradient for Grpo {
    fn objective(&self, config: &Config) -> Objective {
        Objective::Policy(config.loss())
    }

    fn estimator(&self) -> Estimator {
        Estimator::Batch(advantages)
    }

    fn computes_every_group(&self, config: &Config) -> Option<&'static str> {
        let centered = config.multi_objective_aggregation == MultiObjectiveAggregation::NormalizeThenSum;
        terms_without_advantage(config).or(centered.then_some(CENTERED))
    }
}

/// GRPO's advantages of a generation batch. Other algorithms add them to their own terms.
pub(super) fn advantages(config: &Config, batch: &Scored<'_>) -> Advantages {
    let Scored { rewards, steps, samples } = *batch;
    let mut advantages = match config.multi_objective_aggregation {
        MultiObjectiveAggregation::NormalizeThenSum => gdpo::compute(rewards),
        MultiObjectiveAggregation::SumThenNormalize => advantages::compute(rewards, config.scale_rewards),
    };
    if config.process_rewards == ProcessRewards::PerStep {
        process::per_step(&mut advantages, rewards, samples, steps, config.scale_rewards);
    }
    advantages
}
