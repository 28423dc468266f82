//! Checks that a model can be the value model of a PPO policy.

use super::load_config;
use crate::bad_input;
use model::{Head, ModelConfig};
use std::path::Path;
use std::sync::Arc;

/// The configuration of the model in `dir`; an error if that model cannot be the value model of `policy`.
pub fn value_model_shape(dir: &Path, policy: &ModelConfig) -> anyhow::Result<Arc<ModelConfig>> {
    let config = load_config(dir, policy.compute)?;
    let found = match config.head {
        Head::Score(1) => None,
        Head::Score(n) => Some(format!("has {n} scores")),
        Head::Lm => Some("is a language model".to_owned()),
    };
    if let Some(found) = found {
        bad_input!(
            "`value_model`: {} {found}; a value model has one score (…ForSequenceClassification with num_labels = 1): \
             train one, or set value_model = \"policy\"",
            dir.display()
        );
    }
    if config.vocab_size != policy.vocab_size {
        bad_input!(
            "`value_model`: {} has a vocabulary of {} tokens, but the policy has {}: they must be equal",
            dir.display(),
            config.vocab_size,
            policy.vocab_size
        );
    }
    Ok(Arc::new(config))
}
