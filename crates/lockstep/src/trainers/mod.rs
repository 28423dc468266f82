//! The training methods, one file or folder each. [`build`] builds the one that a configuration selects.

mod dpo;
mod grpo;
mod offline;
mod online;
mod ppo;
mod reward;
mod sft;

use crate::algorithms::Estimator;
use crate::bad_input;
use crate::config::{Config, Purpose};
use crate::models::{Builder, ModelSource};
use crate::run::inputs::RunInputs;
use crate::run::memory_plan::{MemoryPlan, Room};
use crate::run::task::TakeStep;
use crate::run::training::TrainingRun;
use dpo::Dpo;
use model::ModelAssets;
use reward::RewardModel;
use sft::Sft;

/// Builds the training task of a command and the run that trains it. All inputs are checked before anything is written.
pub fn build(purpose: Purpose, inputs: RunInputs) -> anyhow::Result<(Box<dyn TakeStep>, TrainingRun)> {
    fn boxed<T: TakeStep + 'static>((task, run): (T, TrainingRun)) -> (Box<dyn TakeStep>, TrainingRun) {
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

/// Plans the memory of a configuration's run.
pub type Planner<'a> = Box<dyn Fn(&Config) -> anyhow::Result<MemoryPlan> + 'a>;

/// Plans the memory of a command's run in `room`, for the configuration of `builder` and for changes of it. The data is
/// read only once.
pub fn planner<'a>(
    purpose: Purpose,
    builder: &'a Builder<'a>,
    source: &'a ModelSource,
    assets: &'a ModelAssets,
    room: Room<'_>,
) -> anyhow::Result<Planner<'a>> {
    // Only a run that trains keeps activations of its rollouts.
    let room = Some(room).filter(|_| purpose == Purpose::Grpo);
    match purpose {
        Purpose::Sft => offline::planner::<Sft>(builder, source, assets),
        Purpose::Reward => offline::planner::<RewardModel>(builder, source, assets),
        Purpose::Dpo => offline::planner::<Dpo>(builder, source, assets),
        Purpose::Grpo | Purpose::Eval | Purpose::Show => match builder.config.policy_gradient().estimator() {
            Estimator::ValueModel => ppo::planner(builder, source, assets, room),
            Estimator::Batch(_) => grpo::planner(builder, source, assets, room),
        },
    }
}
