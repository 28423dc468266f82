//! THE LOOP of PPO: [`grpo_loop`](crate::trainers::grpo::run_loop) with a value model instead of groups.
//!
//! `prompts → rollout → scores → rewards of tokens → advantages → samples → update → (the same weights) → rollout`
//!
//! Each line below is one stage, a method of [`Ppo`] in `ppo/stages.rs`; rollouts, rewards and the reference model are GRPO's.
//! Everything that the next step depends on lies in [`Ppo`], can be written between two steps and read again.

use crate::run::course::Ended;
use crate::trainers::grpo::rollouts;
use crate::trainers::ppo::Ppo;

/// Runs until the last step, an early stop, or a signal.
pub fn run(ppo: &mut Ppo) -> anyhow::Result<Ended> {
    ppo.grpo.before_first_step()?;
    while !ppo.grpo.is_done() {
        if ppo.grpo.batch_is_used_up() {
            let rollouts = rollouts(&mut ppo.grpo)?;
            let scores = ppo.scores(&rollouts);
            let samples = ppo.samples(&rollouts, &scores)?;
            let values = ppo.values(&samples)?;
            let rewards = ppo.token_rewards(&scores, &samples);
            let estimates = ppo.estimates(rewards, &values, &samples);
            ppo.fill_batch(rollouts, scores, samples, &values, estimates)?;
        }
        ppo.update()?;
        if let Some(ended) = ppo.after_step()? {
            return Ok(ended);
        }
    }
    Ok(Ended::Done)
}
