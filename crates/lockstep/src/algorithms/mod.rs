//! The algorithms of `lockstep train`, one file each: the loss, the estimate of advantages, the requirements on a
//! batch, and the values of configuration keys that the algorithm refuses.
//!
//! All other code calls the [`PolicyGradient`] trait and does not depend on the algorithm. A new algorithm needs a file
//! here, a line in [`named`], and a row in `config/methods.rs`. This module uses configurations and the `train` crate;
//! it depends neither on models nor on text.

mod batches;
mod distillation;
mod grpo;
mod ppo;
mod reinforce_plus_plus;
mod rloo;

use crate::bad_input;
use crate::config::keys::{loss, rewards, sampling};
use crate::config::{Algorithm, ComputeDType, Config, Layers, Purpose, Resolved, Strategy, profiles};
use train::advantages::reinforce_plus_plus::Baseline;
use train::{Advantages, Objective, RewardMatrix, Sample, StepRewards};

/// A policy-gradient algorithm: GRPO, RLOO, REINFORCE++, PPO or distillation.
pub trait PolicyGradient {
    /// The objective that the policy's trainer minimises.
    fn objective(&self, config: &Config) -> Objective;

    /// How the algorithm estimates advantages.
    fn estimator(&self) -> Estimator;

    /// The second model that scores completions, if the algorithm needs one; its log-probabilities enter the loss, the
    /// rewards or the advantages.
    fn reference<'a>(&self, config: &'a Config) -> Option<Reference<'a>> {
        (config.beta != 0.0).then_some(Reference::Policy)
    }

    /// Whether the algorithm can learn without reward functions.
    fn learns_without_rewards(&self) -> bool {
        false
    }

    /// Names of the metrics that the console shows at each step.
    fn shown_metrics(&self) -> &'static [&'static str] {
        &["reward", "kl", "completions/mean_length"]
    }

    /// The smallest supported number of completions per prompt.
    fn least_generations(&self, _config: &Config) -> usize {
        2
    }

    /// How many times the updates pass over a generation batch.
    fn passes(&self, config: &Config) -> usize {
        config.num_iterations
    }

    /// Optimizer steps in one pass over a generation batch, if neither `steps_per_generation` nor
    /// `generation_batch_size` is set.
    fn mini_batches(&self, _config: &Config) -> usize {
        1
    }

    /// The reason why the update must compute every group, as a clause for a message; `None` if groups whose advantages
    /// are all 0 may be skipped. Skipping is correct only if a group's gradient comes from advantages within that group
    /// alone.
    fn computes_every_group(&self, config: &Config) -> Option<&'static str>;

    /// Refuses configurations that the algorithm cannot train; the `BadInput` tells how to fix them.
    fn check(&self, _config: &Config) -> anyhow::Result<()> {
        Ok(())
    }
}

/// A model other than the policy that scores completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reference<'a> {
    /// The KL term's reference model, which has the policy's architecture: `ref_model`, or else the policy as it was at
    /// the start. With `sync_ref_model` the reference model follows the policy.
    Policy,
    /// The frozen teacher of distillation, which may have any architecture and reads the policy's token ids.
    Teacher {
        /// The configuration key that names the teacher.
        key: &'static str,
        /// The teacher's directory or Hub id.
        name: &'a str,
    },
}

/// The way in which an algorithm estimates advantages.
#[derive(Clone, Copy, Debug)]
pub enum Estimator {
    /// Advantages are a function of the generation batch.
    Batch(FromBatch),
    /// Advantages come from the values of a value model that is trained with the policy ([`train::gae`]).
    ValueModel,
}

/// Computes the advantages of a generation batch, one for each sample.
pub type FromBatch = fn(&Config, &Scored<'_>) -> Advantages;

/// A scored generation batch. Each list has one element per completion; the completions of a prompt are adjacent.
#[derive(Clone, Copy, Debug)]
pub struct Scored<'a> {
    /// The rewards of each completion, one column per reward function.
    pub rewards: &'a RewardMatrix,
    /// Process rewards, for the completions whose steps were scored.
    pub steps: &'a [Option<StepRewards>],
    /// The completions with their tokens' log-probabilities, including those of the reference if there is one
    /// ([`PolicyGradient::reference`]). Advantages are not set yet.
    pub samples: &'a [Sample],
}

/// The implementation of `algorithm`.
fn named(algorithm: Algorithm) -> &'static dyn PolicyGradient {
    match algorithm {
        Algorithm::Grpo => &grpo::Grpo,
        Algorithm::Rloo => &rloo::Rloo,
        Algorithm::ReinforcePlusPlus => &reinforce_plus_plus::ReinforcePlusPlus(Baseline::Batch),
        Algorithm::ReinforcePlusPlusBaseline => &reinforce_plus_plus::ReinforcePlusPlus(Baseline::Group),
        Algorithm::Ppo => &ppo::Ppo,
        Algorithm::Distillation => &distillation::Distillation,
    }
}

/// A clause that names the loss terms whose gradient is not 0 where the advantage is 0; `None` without such terms.
fn terms_without_advantage(config: &Config) -> Option<&'static str> {
    if config.beta != 0.0 {
        return Some("the KL divergence to the reference (beta) has a gradient of its own");
    }
    if config.entropy_coef != 0.0 || config.use_adaptive_entropy {
        return Some("the entropy bonus has a gradient of its own");
    }
    (config.top_entropy_quantile < 1.0).then_some("top_entropy_quantile is computed from the entropies of all tokens")
}

const CENTERED: &str = "advantages are centred over the batch, so a group with equal rewards can have nonzero \
                        advantages";

impl Config {
    /// The reason why the update computes every group, as a clause for a message; `None` if it skips groups without a
    /// gradient.
    pub fn computes_every_group(&self) -> Option<&'static str> {
        if self.skip_zero_gradients {
            self.policy_gradient().computes_every_group(self)
        } else {
            Some("skip_zero_gradients = false")
        }
    }

    /// A sentence for the log: whether the update computes groups without a gradient.
    pub fn skipping(&self) -> String {
        let why = self.computes_every_group();
        let what = why.map_or_else(|| "left out of the update".to_owned(), |why| format!("computed, since {why}"));
        format!("groups without a gradient: {what}")
    }

    /// The algorithm that the configuration names.
    pub(crate) fn policy_gradient(&self) -> &'static dyn PolicyGradient {
        named(self.algorithm)
    }

    /// The objective that the policy's trainer minimises.
    pub fn objective(&self) -> Objective {
        self.policy_gradient().objective(self)
    }

    /// The second model that scores completions, if the algorithm needs one.
    pub(crate) fn reference(&self) -> Option<Reference<'_>> {
        self.policy_gradient().reference(self)
    }

    /// Whether a run must load the reference model. `ref_logps` is true if its rollouts already contain the reference's
    /// log-probabilities; the completions of an evaluation never do.
    pub(crate) fn loads_reference(&self, ref_logps: bool) -> bool {
        let evaluates = self.has_eval_data() && self.eval_strategy != Strategy::No;
        self.reference().is_some() && (!ref_logps || evaluates && self.has_eval_loss())
    }

    /// Whether an evaluation of completions reports the loss. If advantages come from a value model, no loss is
    /// reported, since completions alone then give no advantages.
    pub(crate) fn has_eval_loss(&self) -> bool {
        self.eval_loss && matches!(self.policy_gradient().estimator(), Estimator::Batch(_))
    }
}

impl Layers {
    /// Merges the layers and checks the resulting configuration. An error is a [`BadInput`](crate::BadInput) that tells
    /// how to fix the configuration.
    pub fn resolve(&self) -> anyhow::Result<Resolved> {
        let mut resolved = self.put_together()?;
        if self.purpose == Purpose::Grpo {
            check(&mut resolved)?;
        }
        Ok(resolved)
    }
}

/// Checks the rules for a configuration whose run generates and scores completions.
fn check(resolved: &mut Resolved) -> anyhow::Result<()> {
    let c = &resolved.config;
    let mut notes = loss::check(c)?;
    let algorithm = c.policy_gradient();
    // The algorithm's check comes first: its errors name the replacements for GRPO's keys, whose rules are checked
    // next.
    algorithm.check(c)?;
    batches::check(c)?;
    if c.sync_ref_model && c.reference().is_none() {
        bad_input!(
            "`sync_ref_model` = true needs a reference model, but beta = 0 (in PPO: kl_coef = 0) loads none: set beta \
             (kl_coef) above 0, or sync_ref_model = false"
        );
    }
    if c.sync_ref_model && c.dtype == ComputeDType::Bf16 {
        bad_input!(
            "`sync_ref_model` = true needs `dtype` = \"f32\": in bf16, steps of ref_model_mixup_alpha would be lost to \
             rounding"
        );
    }
    rewards::check(c, algorithm.learns_without_rewards())?;
    notes.extend(rewards::unweighted(c));
    notes.extend(sampling::check(c)?);
    profiles::check(c)?;
    notes.extend(profiles::notes(c)?);
    resolved.notes.extend(notes);
    Ok(())
}

#[cfg(test)]
mod tests;
