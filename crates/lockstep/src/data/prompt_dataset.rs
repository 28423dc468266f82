//! Prompts ready for generation: token ids for the model, text and columns for the rewards.

use crate::bad_input;
use crate::config::Config;
use crate::data::notices::Notices;
use crate::data::prompts::{Encoded, Prompt};
use crate::data::{DatasetSpec, encode_all};
use model::ModelAssets;
use model::chat::PromptEncoder;
use std::sync::Arc;

/// The encoded prompts of a dataset.
#[derive(Clone, Debug)]
pub struct PromptDataset {
    /// The encoded prompts, in the dataset's order.
    pub all: Vec<Arc<Prompt>>,
    /// SHA-256 of the data files, in hexadecimal.
    pub hash: String,
    /// Rows that were skipped because their prompt has more than `max_prompt_length` tokens.
    pub left_out: usize,
    /// Notices about the prompts, for the log.
    pub notices: Notices,
}

impl PromptDataset {
    /// Reads and encodes the dataset `spec`. Each prompt with `room` new tokens must fit the longest allowed sequence.
    pub fn load(
        spec: &DatasetSpec,
        config: &Config,
        assets: &ModelAssets,
        room: usize,
    ) -> anyhow::Result<PromptDataset> {
        let data = spec.load()?;
        let encoder = encoder(config, assets)?;
        let context = context(config, assets);
        let encoded = encode_all(&encoder, &data, config.max_prompt_length, context, room, &spec.stop)?;
        let Encoded { prompts, left_out, notices } = encoded;
        Ok(PromptDataset { all: prompts, hash: data.hash, left_out, notices })
    }

    /// Tokens of the longest prompt.
    pub fn longest(&self) -> usize {
        self.all.iter().map(|q| q.tokens.ids.len()).max().unwrap_or(0)
    }
}

/// The encoder that turns prompts into token ids, with the configuration and the model's chat template.
pub fn encoder<'a>(config: &'a Config, assets: &'a ModelAssets) -> anyhow::Result<PromptEncoder<'a>> {
    if let (Some(system), None) = (&config.system_prompt, &assets.chat) {
        bad_input!(
            "`system_prompt` = \"{system}\" cannot be used, since the model has no chat template (chat_template.jinja \
             or tokenizer_config.json): set system_prompt = \"none\", or use a model with a template"
        );
    }
    Ok(PromptEncoder {
        tokenizer: &assets.tokenizer,
        template: assets.chat.as_deref(),
        kwargs: &config.chat_template_kwargs,
        tools: None,
    })
}

/// The length in tokens of the longest sequence that both the model and the configuration allow.
pub fn context(config: &Config, assets: &ModelAssets) -> usize {
    let model = assets.config.max_position_embeddings;
    config.max_model_len.map_or(model, |n| n.min(model))
}
