//! One folder or file for each way to train; [`build`] makes the one that a configuration asks for.

pub mod dpo;
mod grpo;
mod online;
mod ppo;
pub mod reward;
pub mod sft;

use crate::config::{Algorithm, Config, Purpose};
use crate::run::inputs::RunInputs;
use crate::run::task::TrainingTask;
use crate::run::training::TrainingRun;
use model::PromptCompletion;
use train::PreferencePair;

/// Builds the task of a command and the run that it trains in; nothing is written until all of the input is known to be good.
pub fn build(purpose: Purpose, inputs: RunInputs) -> anyhow::Result<(Box<dyn TrainingTask>, TrainingRun)> {
    fn boxed<T: TrainingTask + 'static>((task, run): (T, TrainingRun)) -> (Box<dyn TrainingTask>, TrainingRun) {
        (Box::new(task), run)
    }
    match purpose {
        Purpose::Sft => sft::build(inputs).map(boxed),
        Purpose::Reward => reward::build(inputs).map(boxed),
        Purpose::Dpo => dpo::build(inputs).map(boxed),
        Purpose::Grpo | Purpose::Show => match inputs.config().algorithm {
            Algorithm::Ppo => ppo::build(inputs).map(boxed),
            _ => grpo::build(inputs).map(boxed),
        },
    }
}

/// The responses of pairs for scoring, each chosen one before its rejected one.
fn sequences(pairs: &[PreferencePair]) -> Vec<PromptCompletion<'_>> {
    let mut out = Vec::with_capacity(2 * pairs.len());
    for PreferencePair { prompt, chosen, rejected, .. } in pairs {
        let prompt = &prompt.ids;
        out.extend([chosen, rejected].map(|response| PromptCompletion { prompt, completion: &response.ids }));
    }
    out
}

/// Tokens of all sequences of pairs.
fn count_tokens(pairs: &[PreferencePair]) -> u64 {
    sequences(pairs).iter().map(|s| (s.prompt.len() + s.completion.len()) as u64).sum()
}

/// Optimizer steps over rows of data, `chunks` of them in an epoch.
fn steps_over_rows(config: &Config, chunks: usize) -> u64 {
    match config.max_steps > 0 {
        true => config.max_steps as u64,
        false => (config.num_train_epochs * chunks as f64).ceil() as u64,
    }
}
