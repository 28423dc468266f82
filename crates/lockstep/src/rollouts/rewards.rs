//! Builds the configured reward functions.

use super::reward_model::RewardModelFiles;
use crate::config::Config;
use crate::data::prompt_dataset::PromptDataset;
use crate::error::{BadInput, OrBadInput};
use crate::stop::StopSignal;
use model::chat::PromptTime;
use rewards::{Reward, RewardBatch, RewardModel, RewardSpec, Scores};
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// A configured reward function.
pub enum ConfiguredReward {
    /// The reward function is ready, and belongs to `Owner`.
    Ready(Box<dyn Reward>, Owner),
    /// A reward model, whose weights are not loaded yet.
    Model(RewardModelFiles),
}

/// The origin of a reward function, which determines the processes that can call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A reward function that the configuration alone describes, so every process can build it.
    Configuration,
    /// A function of the calling program, so only this process has it.
    Caller,
}

/// Builds the configured reward functions without the weights of reward models, and checks everything that does not
/// need these weights.
///
/// `injected` are functions of the calling program; the configuration refers to them as `function:NAME`. Once `stop` is
/// set, this function no longer waits for reward programs to start.
pub fn named_rewards(
    config: &Config,
    mut injected: Vec<Box<dyn Reward>>,
    time: PromptTime,
    stop: &StopSignal,
) -> anyhow::Result<Vec<ConfiguredReward>> {
    let mut ready = |(spec, name): (&RewardSpec, String)| -> anyhow::Result<ConfiguredReward> {
        if let Some(function) = spec.function().or_bad_input()? {
            let place = injected.iter().position(|reward| reward.name() == function);
            return place.map(|place| ConfiguredReward::Ready(injected.remove(place), Owner::Caller)).ok_or_else(
                || {
                    BadInput::new(format!(
                        "reward function:{function} must be passed by the calling program: start the run from that \
                         program"
                    ))
                },
            );
        }
        match spec.model().or_bad_input()? {
            Some(model) => Ok(ConfiguredReward::Model(RewardModelFiles::open(name, &model, time)?)),
            None => {
                let built = rewards::build_until(spec, name, &stop.flag());
                // A cancelled start does not mean that the reward failed.
                stop.check()?;
                Ok(ConfiguredReward::Ready(built.or_bad_input()?, Owner::Configuration))
            }
        }
    };
    let names = rewards::names(&config.reward_funcs).or_bad_input()?;
    let all = config.reward_funcs.iter().zip(names).map(&mut ready).collect::<anyhow::Result<_>>()?;
    match injected.first() {
        None => Ok(all),
        Some(left) => Err(BadInput::new(format!(
            "the program passes the function `{}`, but reward_funcs has no \"function:{0}\" (or two functions have \
             this name)",
            left.name()
        ))),
    }
}

/// The deterministic reward functions, for replaying a recorded run. All others are replaced by rewards without scores,
/// which the caller fills in from the record. No program is started, and no model is read.
pub fn rewards_of_record(config: &Config, stop: &StopSignal) -> anyhow::Result<Vec<ConfiguredReward>> {
    let names = rewards::names(&config.reward_funcs).or_bad_input()?;
    let reward = |(spec, name): (&RewardSpec, String)| -> anyhow::Result<ConfiguredReward> {
        if !spec.is_deterministic() {
            return Ok(ConfiguredReward::Ready(Box::new(Silent(name)), Owner::Caller));
        }
        let built = rewards::build_until(spec, name, &stop.flag());
        Ok(ConfiguredReward::Ready(built.or_bad_input()?, Owner::Configuration))
    };
    config.reward_funcs.iter().zip(names).map(reward).collect()
}

/// A reward function that returns neither scores nor problems.
struct Silent(String);

impl Reward for Silent {
    fn name(&self) -> &str {
        &self.0
    }

    fn scores_by_group(&self) -> bool {
        true
    }

    fn score(&mut self, batch: &RewardBatch<'_>) -> Scores {
        Scores::new(vec![None; batch.len()])
    }
}

/// The reward models among the reward functions.
pub fn models(named: &[ConfiguredReward]) -> impl Iterator<Item = &RewardModelFiles> {
    named.iter().filter_map(|reward| if let ConfiguredReward::Model(files) = reward { Some(files) } else { None })
}

/// The configured reward models, whose memory the plan counts.
pub fn named_models(config: &Config) -> anyhow::Result<Vec<RewardModelFiles>> {
    let names = rewards::names(&config.reward_funcs).or_bad_input()?;
    let time = PromptTime::now();
    let open = |(spec, name): (&RewardSpec, String)| match spec.model().or_bad_input() {
        Ok(model) => model.map(|model| RewardModelFiles::open(name, &model, time)),
        Err(error) => Some(Err(error)),
    };
    config.reward_funcs.iter().zip(names).filter_map(open).collect()
}

/// All reward functions, ready to score. `models` are the loaded reward models, in order.
///
/// Once `stop` is set, calls of the reward functions return without waiting for scores.
pub fn ready_rewards(
    named: Vec<ConfiguredReward>,
    models: Vec<RewardModel>,
    stop: &StopSignal,
) -> Vec<Box<dyn Reward>> {
    let mut models = models.into_iter();
    let ready = |named| -> Option<Box<dyn Reward>> {
        let mut reward = match named {
            ConfiguredReward::Ready(reward, _) => reward,
            ConfiguredReward::Model(_) => Box::new(models.next()?),
        };
        reward.stop_with(stop.flag());
        Some(reward)
    };
    named.into_iter().filter_map(ready).collect()
}

/// The names of the reward functions that workers call, which must score each group separately. Reward models are left
/// out, since each worker would need their memory. Functions of the calling program are left out, too, unless
/// `functions` is true: then the workers have them.
pub fn asked_by_workers(named: &[ConfiguredReward], functions: bool) -> BTreeSet<String> {
    let name_for_workers = |reward: &ConfiguredReward| match reward {
        ConfiguredReward::Ready(reward, owner) if reward.scores_by_group() => {
            (functions || *owner == Owner::Configuration).then(|| reward.name().to_owned())
        }
        _ => None,
    };
    named.iter().filter_map(name_for_workers).collect()
}

/// Refuses reward functions that read a column missing from the dataset.
pub fn check_columns(prompts: &PromptDataset, name: &str, rewards: &[ConfiguredReward]) -> anyhow::Result<()> {
    prompts.all.first().map_or(Ok(()), |first| check_columns_of(&first.columns, name, rewards))
}

/// Like [`check_columns`], for the columns of one row.
pub fn check_columns_of(columns: &Map<String, Value>, name: &str, rewards: &[ConfiguredReward]) -> anyhow::Result<()> {
    // A reward model reads only prompts and completions.
    let ready =
        rewards.iter().filter_map(|r| if let ConfiguredReward::Ready(reward, _) = r { Some(reward) } else { None });
    for reward in ready {
        for column in reward.required_columns() {
            if !columns.contains_key(&column) {
                let present: Vec<&str> = columns.keys().map(String::as_str).collect();
                return Err(BadInput::new(format!(
                    "reward {} reads column `{column}`, which {name} lacks; its columns besides the prompt are: {}. \
                     Rename one with columns = {{ {column} = \"…\" }}",
                    reward.name(),
                    if present.is_empty() { "none".to_owned() } else { present.join(", ") }
                )));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
