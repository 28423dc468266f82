//! Checks which model can be the teacher of distillation. Its architecture may differ from the policy's.

use super::{load_assets, locate};
use crate::bad_input;
use crate::config::Config;
use crate::error::OrBadInput;
use model::chat::PromptTime;
use model::hub::HubKind;
use model::{Head, ModelAssets, ModelConfig};
use std::path::PathBuf;
use std::sync::Arc;

/// The directory and configuration of the teacher model `name`, which the configuration key `key` gives. A teacher is
/// refused unless every token of `policy` has the same id in the teacher's vocabulary, which may have more tokens.
pub fn teacher(
    config: &Config,
    key: &str,
    name: &str,
    policy: &ModelAssets,
) -> anyhow::Result<(PathBuf, Arc<ModelConfig>)> {
    let dir = locate(name, HubKind::Model).or_bad_input_in(format!("`{key}`"))?;
    // No prompt is rendered with the teacher's template.
    let teacher = load_assets(&dir, Head::Lm, config.dtype, PromptTime::now()).or_bad_input_in(format!("`{key}`"))?;
    if let Some(difference) = policy.tokenizer.differs_in(&teacher.tokenizer) {
        bad_input!(
            "`{key}`: {} does not have the policy's vocabulary: {difference}. It scores the tokens that the policy \
             drew, so each must mean the same to both: name a model of the policy's family",
            dir.display()
        );
    }
    let (own, theirs) = (policy.config.vocab_size, teacher.config.vocab_size);
    if theirs < own {
        bad_input!(
            "`{key}`: {} has an embedding of {theirs} tokens, and the policy one of {own}: it must have a row for \
             every token that the policy can draw",
            dir.display()
        );
    }
    Ok((dir, teacher.config))
}
