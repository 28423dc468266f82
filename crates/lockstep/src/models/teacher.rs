//! Which model can score the completions of a policy without being of its shape.

use super::{load_assets, locate};
use crate::bad_input;
use crate::config::Config;
use crate::error::OrBadInput;
use model::hub::HubKind;
use model::{Head, ModelAssets, ModelConfig};
use std::path::PathBuf;
use std::sync::Arc;

/// The directory and the shape of the language model that `key` names; refuses one that does not read the tokens of
/// `policy` as the policy does: each must have the same id in both vocabularies. The other may have more.
pub fn teacher(
    config: &Config,
    key: &str,
    name: &str,
    policy: &ModelAssets,
) -> anyhow::Result<(PathBuf, Arc<ModelConfig>)> {
    let dir = locate(name, HubKind::Model).or_bad_input_in(format!("`{key}`"))?;
    let teacher = load_assets(&dir, Head::Lm, config.dtype).or_bad_input_in(format!("`{key}`"))?;
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
