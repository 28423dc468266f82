//! The rewards that a configuration names, made ready to score.

use super::reward_model::RewardModelFiles;
use crate::config::Config;
use crate::data::prompt_dataset::PromptDataset;
use crate::error::{BadInput, OrBadInput};
use crate::stop::StopSignal;
use rewards::{Reward, RewardBatch, RewardModel, RewardSpec, Scores};
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// A reward that the configuration names.
pub enum ConfiguredReward {
    /// It can score.
    Ready(Box<dyn Reward>, Owner),
    /// A model, whose weights are still to be read.
    Model(RewardModelFiles),
}

/// Who has a reward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Whoever reads the configuration.
    Configuration,
    /// This program, whose function it is.
    Caller,
}

/// The rewards that the configuration names, checked as far as that takes no memory.
///
/// `injected` has those that a program gives: `function:NAME` names one of them. No program's start is waited for once
/// `stop` is given.
pub fn named_rewards(
    config: &Config,
    mut injected: Vec<Box<dyn Reward>>,
    stop: &StopSignal,
) -> anyhow::Result<Vec<ConfiguredReward>> {
    let mut ready = |(spec, name): (&RewardSpec, String)| -> anyhow::Result<ConfiguredReward> {
        if let Some(function) = spec.function().or_bad_input()? {
            let place = injected.iter().position(|reward| reward.name() == function);
            return place.map(|place| ConfiguredReward::Ready(injected.remove(place), Owner::Caller)).ok_or_else(
                || BadInput::new(format!("reward function:{function} is a program's own: run it from that program")),
            );
        }
        match spec.model().or_bad_input()? {
            Some(model) => Ok(ConfiguredReward::Model(RewardModelFiles::open(name, &model)?)),
            None => {
                let built = rewards::build_until(spec, name, &stop.flag());
                // One that was cancelled is not at fault.
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
            "the function `{}` was given, but reward_funcs has no \"function:{0}\" for it (or two have this name)",
            left.name()
        ))),
    }
}

/// The rewards of a recorded run: those that give the same score whenever they are asked; in the place of each other
/// one what gives no score, for whoever has the record to fill in. No program is started, and no model read.
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

/// Gives no score, which is no problem.
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

/// The models among the rewards.
pub fn models(named: &[ConfiguredReward]) -> impl Iterator<Item = &RewardModelFiles> {
    named.iter().filter_map(|reward| if let ConfiguredReward::Model(files) = reward { Some(files) } else { None })
}

/// The models that a configuration names as rewards: the rewards that the memory plan counts.
pub fn named_models(config: &Config) -> anyhow::Result<Vec<RewardModelFiles>> {
    let names = rewards::names(&config.reward_funcs).or_bad_input()?;
    let open = |(spec, name): (&RewardSpec, String)| match spec.model().or_bad_input() {
        Ok(model) => model.map(|model| RewardModelFiles::open(name, &model)),
        Err(error) => Some(Err(error)),
    };
    config.reward_funcs.iter().zip(names).filter_map(open).collect()
}

/// All of them, ready to score, with `models` in the places of the models.
///
/// None of them is waited for once `stop` is set.
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

/// The names of those that workers ask: which score a group by itself, and are neither models, whose memory each worker
/// would take, nor a program's own functions, unless the workers have its `functions`, too.
pub fn asked_by_workers(named: &[ConfiguredReward], functions: bool) -> BTreeSet<String> {
    let of_workers = |reward: &ConfiguredReward| match reward {
        ConfiguredReward::Ready(reward, owner) if reward.scores_by_group() => {
            (functions || *owner == Owner::Configuration).then(|| reward.name().to_owned())
        }
        _ => None,
    };
    named.iter().filter_map(of_workers).collect()
}

/// Refuses rewards that read a column that is not there.
pub fn check_columns(prompts: &PromptDataset, name: &str, rewards: &[ConfiguredReward]) -> anyhow::Result<()> {
    prompts.all.first().map_or(Ok(()), |first| check_columns_of(&first.columns, name, rewards))
}

/// The same of one row's columns.
pub fn check_columns_of(columns: &Map<String, Value>, name: &str, rewards: &[ConfiguredReward]) -> anyhow::Result<()> {
    // A model reads prompts and completions alone.
    let ready =
        rewards.iter().filter_map(|r| if let ConfiguredReward::Ready(reward, _) = r { Some(reward) } else { None });
    for reward in ready {
        for column in reward.required_columns() {
            if !columns.contains_key(&column) {
                let present: Vec<&str> = columns.keys().map(String::as_str).collect();
                return Err(BadInput::new(format!(
                    "reward {} reads column `{column}`, which {name} lacks; its columns beside the prompt are: {}. \
                     Rename one with columns = {{ {column} = \"…\" }}",
                    reward.name(),
                    if present.is_empty() { "none".to_owned() } else { present.join(", ") }
                )));
            }
        }
    }
    Ok(())
}
