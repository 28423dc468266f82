//! One folder or file for each way to train; [`execute`] runs the one that a configuration asks for.

pub mod dpo;
pub mod grpo;
pub mod ppo;
pub mod reward;
pub mod sft;

use crate::config::{Algorithm, Purpose, Resolved};
use crate::run::course::{Beginning, Finished};
use crate::run::run_dir::RunDir;
use crate::run::signals::StopRequest;
use grpo::Inputs;
use kernels::Context;
use telemetry::Console;

/// Builds and runs; the demo comes here too.
pub fn execute(
    purpose: Purpose,
    resolved: Resolved,
    run: RunDir,
    beginning: Beginning,
    ctx: &Context,
    console: &Console,
    stop: StopRequest,
) -> anyhow::Result<Finished> {
    match purpose {
        Purpose::Sft => {
            let mut sft = sft::build(resolved, run, beginning, ctx, console.clone(), stop)?;
            let ended = sft::run(&mut sft)?;
            sft.course.finish(ended)
        }
        Purpose::Reward => {
            let mut reward = reward::build(resolved, run, beginning, ctx, console.clone(), stop)?;
            let ended = reward::run(&mut reward)?;
            reward.course.finish(ended)
        }
        Purpose::Dpo => {
            let mut dpo = dpo::build(resolved, run, beginning, ctx, console.clone(), stop)?;
            let ended = dpo::run(&mut dpo)?;
            dpo.course.finish(ended)
        }
        Purpose::Grpo | Purpose::Show => {
            let ppo = resolved.config.algorithm == Algorithm::Ppo;
            let inputs = Inputs { resolved, run, beginning, ctx: ctx.clone(), console: console.clone(), stop };
            if ppo {
                let mut ppo = ppo::build(inputs)?;
                let ended = ppo::run(&mut ppo)?;
                return ppo.grpo.course.finish(ended);
            }
            let mut grpo = grpo::build(inputs)?;
            let ended = grpo::run(&mut grpo)?;
            grpo.course.finish(ended)
        }
    }
}
