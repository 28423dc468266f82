//! PPO (Schulman et al. 2017, arXiv:1707.06347): a value model gives each token its advantage. Formulas:
//! [`train::gae`], [`train::loss::ppo`]; the stages of a step: `trainers/ppo`.

use super::{Estimator, PolicyGradient, Reference};
use crate::bad_input;
use crate::config::Config;
use train::Objective;

pub struct Ppo;

impl PolicyGradient for Ppo {
    fn objective(&self, config: &Config) -> Objective {
        Objective::Ppo(config.ppo())
    }

    fn estimator(&self) -> Estimator {
        Estimator::ValueModel
    }

    fn reference<'a>(&self, config: &'a Config) -> Option<Reference<'a>> {
        (config.kl_coef != 0.0).then_some(Reference::Policy)
    }

    fn computes_every_group(&self, _config: &Config) -> Option<&'static str> {
        Some("the value model learns from every completion")
    }

    fn least_generations(&self, _config: &Config) -> usize {
        1
    }

    fn passes(&self, config: &Config) -> usize {
        config.num_ppo_epochs
    }

    fn mini_batches(&self, config: &Config) -> usize {
        config.num_mini_batches
    }

    fn check(&self, c: &Config) -> anyhow::Result<()> {
        if c.num_iterations != 1 {
            bad_input!(
                "`num_iterations` is a key of GRPO; in PPO, set num_ppo_epochs (now {}) instead",
                c.num_ppo_epochs
            );
        }
        for (name, set) in [
            ("generation_batch_size", c.generation_batch_size.is_some()),
            ("steps_per_generation", c.steps_per_generation.is_some()),
        ] {
            if set {
                bad_input!(
                    "`{name}` is a key of GRPO; in PPO a generation batch has num_mini_batches (now {}) × \
                     per_device_train_batch_size × gradient_accumulation_steps completions: set these keys",
                    c.num_mini_batches
                );
            }
        }
        if c.dynamic_sampling {
            bad_input!(
                "`dynamic_sampling` is for algorithms that compare the completions of a group, such as GRPO: set it to \
                 false"
            );
        }
        let (step, group) = (c.completions_per_step(), c.num_generations);
        if !step.is_multiple_of(group) {
            bad_input!(
                "a mini-batch of {step} completions (per_device_train_batch_size × gradient_accumulation_steps) must \
                 be a multiple of num_generations = {group}, so that groups are complete: set num_generations = 1, or \
                 another batch size"
            );
        }
        if c.adap_kl_ctrl && c.kl_coef == 0.0 {
            bad_input!(
                "`adap_kl_ctrl` = true multiplies kl_coef, which is 0: set kl_coef above 0, or adap_kl_ctrl = false"
            );
        }
        Ok(())
    }
}
