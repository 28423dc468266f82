//! Checks that a model can be the teacher of distillation. Its architecture may differ from the policy's.

use super::{load_assets, locate};
use crate::bad_input;
use crate::config::Config;
use crate::error::OrBadInput;
use model::chat::PromptTime;
use model::hub::HubKind;
use model::{Head, ModelAssets, ModelConfig};
use std::path::PathBuf;
use std::sync::Arc;

/// The directory and configuration of the teacher model `name`, the value of the configuration key `key`. Every token
/// of `policy` must have the same id in the teacher's vocabulary, which may have more tokens.
pub fn teacher(
    config: &Config,
    key: &str,
    name: &str,
    policy: &ModelAssets,
) -> anyhow::Result<(PathBuf, Arc<ModelConfig>)> {
    let dir = locate(name, HubKind::Model).or_bad_input_in(format!("`{key}`"))?;
    // The teacher's template is never used.
    let teacher = load_assets(&dir, Head::Lm, config.dtype, PromptTime::now()).or_bad_input_in(format!("`{key}`"))?;
    if let Some(difference) = policy.tokenizer.differs_in(&teacher.tokenizer) {
        bad_input!(
            "`{key}`: {} does not have the policy's vocabulary: {difference}. A teacher scores the policy's tokens, so \
             their ids must be the same: use a model of the policy's family",
            dir.display()
        );
    }
    let (own, theirs) = (policy.config.vocab_size, teacher.config.vocab_size);
    if theirs < own {
        bad_input!(
            "`{key}`: the embedding of {} has {theirs} rows, but must have at least the policy's {own}",
            dir.display()
        );
    }
    Ok((dir, teacher.config))
}
