//! THE LOOP.
//!
//! `prompts → rollout → rewards → advantages → samples → update → (the same weights) → rollout`
//!
//! Each line below is one stage, a method of [`Grpo`] in `grpo/stages.rs`. Everything that the next step depends on lies
//! in [`Grpo`], can be written between two steps and read again: a run that was killed goes on to the same bits.

use crate::course::Ended;
use crate::grpo::Grpo;

/// Runs until the last step, an early stop, or a signal.
pub fn run(grpo: &mut Grpo) -> anyhow::Result<Ended> {
    grpo.before_first_step()?;
    while !grpo.is_done() {
        if grpo.batch_is_used_up() {
            let prompts = grpo.draw_prompts();
            let completions = grpo.rollout(&prompts)?;
            let rewards = grpo.judge(&prompts, &completions)?;
            let advantages = grpo.advantages(&rewards);
            grpo.fill_batch(&prompts, &completions, rewards, advantages)?;
        }
        grpo.update()?;
        if let Some(ended) = grpo.after_step()? {
            return Ok(ended);
        }
    }
    Ok(Ended::Done)
}
