//! Prompts, ready to be asked: ids for the model, text and columns for the rewards.

use crate::config::Config;
use crate::data::prompts::Prompt;
use crate::data::{DatasetSpec, PromptEncoder};
use crate::error::{BadInput, OrBadInput};
use crate::policy::Words;
use crate::reward_model::reward::Opened;
use kernels::Context;
use rewards::{Reward, RewardSpec};
use std::sync::Arc;

/// The prompts of a data set.
#[derive(Clone, Debug)]
pub struct Questions {
    /// The prompts.
    pub all: Vec<Arc<Prompt>>,
    /// SHA-256 of the data.
    pub hash: String,
    /// Rows left out because their prompt is too long.
    pub left_out: usize,
}

impl Questions {
    /// Reads and encodes `spec`; with `room` new tokens each, every prompt must fit the context.
    pub fn load(spec: &DatasetSpec, config: &Config, words: &Words, room: usize) -> anyhow::Result<Questions> {
        let data = spec.load()?;
        let encoder = encoder(config, words);
        let context = context(config, words);
        let encoded = encoder.encode_all(&data, config.max_prompt_length, context, room)?;
        Ok(Questions { all: encoded.prompts, hash: data.hash, left_out: encoded.left_out })
    }

    /// Tokens of the longest.
    pub fn longest(&self) -> usize {
        self.all.iter().map(|q| q.ids.len()).max().unwrap_or(0)
    }

    /// Refuses rewards that read a column that is not there.
    pub fn check_columns(&self, name: &str, rewards: &[Named]) -> anyhow::Result<()> {
        let Some(first) = self.all.first() else { return Ok(()) };
        // A model reads prompts and completions alone.
        let ready = rewards.iter().filter_map(|r| if let Named::Ready(reward) = r { Some(reward) } else { None });
        for reward in ready {
            for column in reward.required_columns() {
                if !first.columns.contains_key(&column) {
                    let present: Vec<&str> = first.columns.keys().map(String::as_str).collect();
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
}

/// How prompts become ids.
pub fn encoder<'a>(config: &'a Config, words: &'a Words) -> PromptEncoder<'a> {
    PromptEncoder { tokenizer: &words.tokenizer, template: words.chat.as_deref(), kwargs: &config.chat_template_kwargs }
}

/// The longest sequence that the model and the configuration allow.
pub fn context(config: &Config, words: &Words) -> usize {
    let model = words.config.max_position_embeddings;
    config.max_model_len.map_or(model, |n| n.min(model))
}

/// A reward that the configuration names.
pub enum Named {
    /// It can judge.
    Ready(Box<dyn Reward>),
    /// A model, whose weights are still to be read.
    Model(Opened),
}

/// The rewards that the configuration names, checked as far as that takes no memory.
pub fn named_rewards(config: &Config) -> anyhow::Result<Vec<Named>> {
    let name = |spec: &RewardSpec| -> anyhow::Result<Named> {
        match spec.model().or_bad_input()? {
            Some((name, model)) => Ok(Named::Model(Opened::open(name, &model)?)),
            None => Ok(Named::Ready(rewards::build(spec).or_bad_input()?)),
        }
    };
    config.reward_funcs.iter().map(name).collect()
}

/// Makes all of them ready to judge.
pub fn load_rewards(named: Vec<Named>, config: &Config, ctx: &Context) -> anyhow::Result<Vec<Box<dyn Reward>>> {
    let load = |named| -> anyhow::Result<Box<dyn Reward>> {
        match named {
            Named::Ready(reward) => Ok(reward),
            Named::Model(opened) => Ok(Box::new(opened.load(config, ctx)?)),
        }
    };
    named.into_iter().map(load).collect()
}
