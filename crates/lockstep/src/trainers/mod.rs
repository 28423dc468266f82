//! The ways to train, one file or folder for each. [`build`] makes the one that a configuration selects.

mod dpo;
mod grpo;
mod offline;
mod online;
mod ppo;
mod reward;
mod sft;

use crate::algorithms::Estimator;
use crate::bad_input;
use crate::config::Purpose;
use crate::models::{Builder, ModelSource};
use crate::run::inputs::RunInputs;
use crate::run::memory_plan::MemoryPlan;
use crate::run::task::{Task, TrainingTask};
use crate::run::training::TrainingRun;
use dpo::Dpo;
use model::ModelAssets;
use reward::RewardModel;
use sft::Sft;

/// Builds the training task of a command, and the run that trains it. Nothing is written before all inputs have been
/// checked.
pub fn build(purpose: Purpose, inputs: RunInputs) -> anyhow::Result<(Box<dyn Task>, TrainingRun)> {
    fn boxed<T: TrainingTask + 'static>((task, run): (T, TrainingRun)) -> (Box<dyn Task>, TrainingRun) {
        (Box::new(task), run)
    }
    let is_offline = matches!(purpose, Purpose::Sft | Purpose::Reward | Purpose::Dpo);
    if inputs.injected.eval_metrics.is_some() && !is_offline {
        bad_input!("custom evaluation metrics are for supervised, DPO and reward-model runs only");
    }
    match purpose {
        Purpose::Sft => offline::build::<Sft>(inputs).map(boxed),
        Purpose::Reward => offline::build::<RewardModel>(inputs).map(boxed),
        Purpose::Dpo => offline::build::<Dpo>(inputs).map(boxed),
        Purpose::Grpo | Purpose::Eval | Purpose::Show => match inputs.config().policy_gradient().estimator() {
            Estimator::ValueModel => ppo::build(inputs).map(boxed),
            Estimator::Batch(advantages) => grpo::build(inputs, advantages).map(boxed),
        },
    }
}

/// Plans the memory of the run of a command.
pub fn plan(
    purpose: Purpose,
    builder: &Builder<'_>,
    source: &ModelSource,
    assets: &ModelAssets,
) -> anyhow::Result<MemoryPlan> {
    match purpose {
        Purpose::Sft => offline::plan::<Sft>(builder, source, assets),
        Purpose::Reward => offline::plan::<RewardModel>(builder, source, assets),
        Purpose::Dpo => offline::plan::<Dpo>(builder, source, assets),
        Purpose::Grpo | Purpose::Eval | Purpose::Show => match builder.config.policy_gradient().estimator() {
            Estimator::ValueModel => ppo::plan(builder, source, assets),
            Estimator::Batch(_) => grpo::plan(builder, source, assets),
        },
    }
}
