//! Mistral: the Llama architecture with a sliding window on every layer.

use crate::config::{Defaults, Fields, like_llama, only, slides};
use crate::{Family, ModelConfig, Result};
use serde_json::Value;

pub(super) static FAMILY: Family = Family {
    model_type: "mistral",
    architecture: "MistralForCausalLM",
    score_architecture: "MistralForSequenceClassification",
    read,
};

fn read(f: &Fields<'_>, family: &'static Family) -> Result<ModelConfig> {
    only(f, family, "attention_bias", false)?;
    only(f, family, "mlp_bias", false)?;
    let defaults = Defaults {
        num_key_value_heads: Some(8),
        max_position_embeddings: 131_072,
        bos_token_id: Some(1),
        eos_token_id: Some(2),
        ..Defaults::default()
    };
    let mut c = like_llama(f, family, defaults)?;
    // Null means no window; an absent field means the default of the configuration class.
    let window = match f.map.get("sliding_window") {
        None => Some(4096),
        Some(Value::Null) => None,
        Some(_) => Some(f.size("sliding_window", None)?),
    };
    if slides(f, c.num_layers)?.is_some_and(|s| s.contains(&window.is_none())) {
        return Err(f.error("layer_types", "not supported for mistral, whose layers must all have the same attention"));
    }
    c.windows.fill(window);
    Ok(c)
}
