//! Qwen 2 and 2.5: biases on q, k and v, and a sliding window on the upper layers if it is enabled.

use crate::config::{Defaults, Fields, like_llama, only, slides};
use crate::{Family, ModelConfig, Result};
use serde_json::Value;

pub(super) static FAMILY: Family = Family {
    model_type: "qwen2",
    architecture: "Qwen2ForCausalLM",
    score_architecture: "Qwen2ForSequenceClassification",
    read,
};

fn read(f: &Fields<'_>, family: &'static Family) -> Result<ModelConfig> {
    only(f, family, "attention_bias", true)?;
    only(f, family, "mlp_bias", false)?;
    let defaults = Defaults { num_key_value_heads: Some(32), ..Defaults::default() };
    let mut c = like_llama(f, family, defaults)?;
    c.attention_bias = true;
    c.windows = windows(f, c.num_layers)?;
    Ok(c)
}

/// The sliding window of each layer, for Qwen 2 and Qwen 3.
pub(super) fn windows(f: &Fields<'_>, num_layers: usize) -> Result<Vec<Option<usize>>> {
    let window = match (f.bool("use_sliding_window", false)?, f.map.get("sliding_window")) {
        (false, _) | (true, Some(Value::Null)) => None,
        (true, _) => Some(f.size("sliding_window", Some(4096))?),
    };
    // `max_window_layers` is the index of the first layer with a window, so 0 is valid.
    let first = match f.get("max_window_layers") {
        None => 28,
        Some(v) => v.as_u64().ok_or_else(|| f.error("max_window_layers", "expected an integer"))?,
    };
    match (slides(f, num_layers)?, window) {
        (None, window) => Ok((0..num_layers).map(|layer| window.filter(|_| layer as u64 >= first)).collect()),
        (Some(slides), None) if slides.contains(&true) => {
            Err(f.error("layer_types", "sliding_attention requires use_sliding_window, which is not set"))
        }
        (Some(slides), window) => Ok(slides.into_iter().map(|slides| window.filter(|_| slides)).collect()),
    }
}
