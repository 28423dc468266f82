//! The algorithms of `lockstep train`, a file each: what one minimises, how it estimates advantages, what it needs of a
//! batch, and what it asks of its keys.
//!
//! Everything else asks a [`PolicyGradient`] and not which one it is. To add one: its file here, its line in [`named`],
//! and its row in `config/methods.rs`. Knows configurations and what `train` computes, no model and no text.

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

/// A policy-gradient method.
pub trait PolicyGradient {
    /// What the policy's trainer minimises.
    fn objective(&self, config: &Config) -> Objective;

    /// How advantages are estimated.
    fn estimator(&self) -> Estimator;

    /// The model beside the policy that scores completions: its log-probabilities are in the loss, the rewards or the
    /// advantages.
    fn reference<'a>(&self, config: &'a Config) -> Option<Reference<'a>> {
        (config.beta != 0.0).then_some(Reference::Policy)
    }

    /// Whether it can learn without rewards.
    fn learns_without_rewards(&self) -> bool {
        false
    }

    /// The metrics that a console shows.
    fn shown_metrics(&self) -> &'static [&'static str] {
        &["loss", "reward", "kl", "completions/mean_length"]
    }

    /// The fewest completions of a prompt that it can compare.
    fn least_generations(&self, _config: &Config) -> usize {
        2
    }

    /// Times that a generation is passed over.
    fn passes(&self, config: &Config) -> usize {
        config.num_iterations
    }

    /// Optimizer steps that a pass over a generation is cut into, where no key of GRPO's says it.
    fn mini_batches(&self, _config: &Config) -> usize {
        1
    }

    /// Why the update computes every group, as a clause; `None` where it may leave out those without an advantage. It
    /// may where nothing but the advantage, and that against the group alone, makes a gradient.
    fn computes_every_group(&self, config: &Config) -> Option<&'static str>;

    /// Refuses what it cannot do, as bad input that says how to fix it.
    fn check(&self, _config: &Config) -> anyhow::Result<()> {
        Ok(())
    }
}

/// A model that scores completions beside the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reference<'a> {
    /// One of the policy's shape: `ref_model`, or else the policy as it was at the start. It may follow the policy
    /// (`sync_ref_model`).
    Policy,
    /// A frozen one of any shape that reads the policy's tokens.
    Teacher {
        /// The key that names it.
        key: &'static str,
        /// Its directory or Hub id.
        name: &'a str,
    },
}

/// How advantages are estimated.
#[derive(Clone, Copy, Debug)]
pub enum Estimator {
    /// From the generation batch as it is.
    Batch(FromBatch),
    /// From the values of a value model that is trained beside the policy ([`train::gae`]).
    ValueModel,
}

/// The advantages of a generation batch, one for each sample.
pub type FromBatch = fn(&Config, &Scored<'_>) -> Advantages;

/// A generation batch; lists have an element for each completion, those of a prompt behind one another.
#[derive(Clone, Copy, Debug)]
pub struct Scored<'a> {
    /// The rewards.
    pub rewards: &'a RewardMatrix,
    /// The rewards of steps, where a completion has them.
    pub steps: &'a [Option<StepRewards>],
    /// The completions with what is known of each token, the reference's log-probabilities where there is one
    /// ([`PolicyGradient::reference`]). Their advantages are not set.
    pub samples: &'a [Sample],
}

/// The algorithm of this name.
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

/// The terms of a policy loss that have a gradient without an advantage.
fn terms_without_advantage(config: &Config) -> Option<&'static str> {
    if config.beta != 0.0 {
        return Some("the KL divergence to the reference (beta) has a gradient of its own");
    }
    if config.entropy_coef != 0.0 || config.use_adaptive_entropy {
        return Some("the entropy bonus has a gradient of its own");
    }
    (config.top_entropy_quantile < 1.0).then_some("top_entropy_quantile is of the entropies of all tokens")
}

const CENTERED: &str = "advantages are centred over the batch, so those of a group without spread are not 0";

impl Config {
    /// Why the update computes every group, as a clause; `None` where those without a gradient are left out.
    pub fn computes_every_group(&self) -> Option<&'static str> {
        match self.skip_zero_gradients {
            true => self.policy_gradient().computes_every_group(self),
            false => Some("skip_zero_gradients = false"),
        }
    }

    /// Which groups the update computes, in words.
    pub fn skipping(&self) -> String {
        let why = self.computes_every_group();
        let what = why.map_or_else(|| "left out of the update".to_owned(), |why| format!("computed, since {why}"));
        format!("groups without a gradient: {what}")
    }

    /// Its algorithm.
    pub(crate) fn policy_gradient(&self) -> &'static dyn PolicyGradient {
        named(self.algorithm)
    }

    /// What the policy's trainer minimises.
    pub fn objective(&self) -> Objective {
        self.policy_gradient().objective(self)
    }

    /// The model beside the policy that scores completions.
    pub(crate) fn reference(&self) -> Option<Reference<'_>> {
        self.policy_gradient().reference(self)
    }

    /// Whether a run needs the reference model's weights where `ref_logps` says that its rollouts come with the
    /// log-probabilities: for completions of an evaluation nobody has them.
    pub(crate) fn loads_reference(&self, ref_logps: bool) -> bool {
        let evaluates = self.has_eval_data() && self.eval_strategy != Strategy::No;
        self.reference().is_some() && (!ref_logps || evaluates && self.has_eval_loss())
    }

    /// Whether an evaluation of completions reports the loss. Where advantages come from values, completions alone
    /// have none.
    pub(crate) fn has_eval_loss(&self) -> bool {
        self.eval_loss && matches!(self.policy_gradient().estimator(), Estimator::Batch(_))
    }
}

impl Layers {
    /// Puts them together and checks the result. What is wrong is a [`BadInput`](crate::BadInput) that says how to fix
    /// it.
    pub fn resolve(&self) -> anyhow::Result<Resolved> {
        let mut resolved = self.put_together()?;
        if self.purpose == Purpose::Grpo {
            check(&mut resolved)?;
        }
        Ok(resolved)
    }
}

/// What holds where completions are generated and scored.
fn check(resolved: &mut Resolved) -> anyhow::Result<()> {
    let c = &resolved.config;
    let mut notes = loss::check(c)?;
    let algorithm = c.policy_gradient();
    // First: it says what the algorithm has instead of GRPO's keys, whose own rules come second.
    algorithm.check(c)?;
    batches::check(c)?;
    if c.sync_ref_model && c.reference().is_none() {
        bad_input!(
            "`sync_ref_model` = true, but with beta = 0 (in PPO: kl_coef = 0) there is no reference model: set it \
             above 0, or sync_ref_model = false"
        );
    }
    if c.sync_ref_model && c.dtype == ComputeDType::Bf16 {
        bad_input!(
            "`sync_ref_model` = true needs `dtype` = \"f32\": steps of ref_model_mixup_alpha are too small for a \
             reference in bf16"
        );
    }
    rewards::check(c, algorithm.learns_without_rewards())?;
    notes.extend(sampling::check(c)?);
    profiles::check(c)?;
    notes.extend(profiles::notes(c)?);
    resolved.notes.extend(notes);
    Ok(())
}
