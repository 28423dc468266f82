//! A PPO run: a GRPO run (prompts, rollout, rewards, reference, the policy's trainer) and what PPO puts in the place of
//! groups: a value model, and a reward for every token. The loop over its stages is [`run_loop`].

mod critic;
mod run_loop;
mod stages;

pub use critic::Critic;
pub use run_loop::run;

use crate::run::checkpoint::state::CriticState;
use crate::trainers::grpo::{Grpo, Inputs, build_beside};
use train::gae::KlController;

/// A PPO run between two steps.
pub struct Ppo {
    /// What it shares with GRPO.
    pub grpo: Grpo,
    /// The value model.
    critic: Critic,
    /// The weight of the divergence from the reference model.
    kl: KlController,
}

/// Builds a run; nothing is written until all of its input is known to be good.
pub fn build(inputs: Inputs) -> anyhow::Result<Ppo> {
    let (config, ctx) = (inputs.resolved.config.clone(), inputs.ctx.clone());
    let (grpo, mut critic, state) =
        build_beside(inputs, |dir, shape, beginning| Critic::load(&ctx, &config, dir, shape, beginning))?;
    let mut kl = KlController { kl_coef: config.kl_coef };
    if let Some(CriticState { trainer, kl_coef }) = state {
        critic.trainer.set_state(trainer);
        kl.kl_coef = kl_coef;
    }
    Ok(Ppo { grpo, critic, kl })
}
