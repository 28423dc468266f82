//! THE LOOP.
//!
//! `prompts → rollout → rewards → samples → advantages → update → (the same weights) → rollout`
//!
//! Each line below is one stage, a method of [`Grpo`] in `stages.rs`. Everything that the next step depends on lies
//! in [`Grpo`], can be written between two steps and read again: a run that was killed goes on to the same bits.

use super::Grpo;
use crate::rollouts::Rollouts;
use crate::run::course::Ended;

/// Runs until the last step, an early stop, or a signal.
pub fn run(grpo: &mut Grpo) -> anyhow::Result<Ended> {
    grpo.before_first_step()?;
    while !grpo.is_done() {
        if grpo.batch_is_used_up() {
            let rollouts = rollouts(grpo)?;
            let samples = grpo.samples(&rollouts)?;
            let advantages = grpo.advantages(&rollouts, &samples);
            grpo.fill_batch(rollouts, samples, advantages)?;
        }
        grpo.update()?;
        if let Some(ended) = grpo.after_step()? {
            return Ok(ended);
        }
    }
    Ok(Ended::Done)
}

/// The next groups of completions, judged: the policy's own, or a file's.
pub fn rollouts(grpo: &mut Grpo) -> anyhow::Result<Rollouts> {
    if grpo.replays() { grpo.recorded() } else { generate(grpo) }
}

/// Once; with dynamic sampling again for the groups whose rewards do not differ.
fn generate(grpo: &mut Grpo) -> anyhow::Result<Rollouts> {
    let mut generation = grpo.new_generation();
    while let Some(prompts) = grpo.draw_prompts(&generation) {
        let (completions, judged) = grpo.rollout_and_judge(&prompts)?;
        generation.take(prompts, completions, judged);
    }
    Ok(grpo.end_generation(generation))
}
