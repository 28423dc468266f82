//! SmolLM 3: every fourth layer has no rotary positions (NoPE, Kazemnejad et al. 2023, arXiv 2305.19466). If a sliding
//! window is enabled, it applies to these layers.

use crate::config::{Defaults, Fields, LayerRope, like_llama, slides};
use crate::{Family, ModelConfig, Result};
use serde_json::Value;

pub(super) static FAMILY: Family = Family {
    model_type: "smollm3",
    architecture: "SmolLM3ForCausalLM",
    score_architecture: "SmolLM3ForSequenceClassification",
    read,
};

fn read(f: &Fields<'_>, family: &'static Family) -> Result<ModelConfig> {
    let defaults = Defaults {
        num_key_value_heads: Some(4),
        rope_theta: 2_000_000.0,
        tie_word_embeddings: true,
        bos_token_id: Some(128_000),
        eos_token_id: Some(128_001),
        pad_token_id: Some(128_004),
        ..Defaults::default()
    };
    let mut c = like_llama(f, family, defaults)?;
    c.attention_bias = f.bool("attention_bias", false)?;
    c.attention_output_bias = c.attention_bias;
    c.mlp_bias = f.bool("mlp_bias", false)?;
    c.layer_ropes = ropes(f, c.num_layers)?;
    let window = if f.bool("use_sliding_window", false)? && f.get("sliding_window").is_some() {
        Some(f.size("sliding_window", None)?)
    } else {
        None
    };
    let slides = match slides(f, c.num_layers)? {
        Some(slides) => slides,
        None => c.layer_ropes.iter().map(|rope| *rope == LayerRope::Off && window.is_some()).collect(),
    };
    if window.is_none() && slides.contains(&true) {
        return Err(f.error("layer_types", "sliding_attention requires use_sliding_window, which is not set"));
    }
    c.windows = slides.into_iter().map(|slides| window.filter(|_| slides)).collect();
    Ok(c)
}

/// Reads which layers have rotary positions. Despite its name, `no_rope_layers` has a 1 for each layer with rope.
fn ropes(f: &Fields<'_>, num_layers: usize) -> Result<Vec<LayerRope>> {
    let rope = |rotates: bool| if rotates { LayerRope::Global } else { LayerRope::Off };
    match f.get("no_rope_layers") {
        None => {
            let every = f.size("no_rope_layer_interval", Some(4))?;
            Ok((1..=num_layers).map(|layer| rope(layer % every != 0)).collect())
        }
        Some(Value::Array(list)) if list.len() >= num_layers => {
            let one = |v: &Value| match v.as_u64() {
                Some(flag @ (0 | 1)) => Ok(rope(flag == 1)),
                _ => Err(f.error("no_rope_layers", "expected 0 or 1 for each layer")),
            };
            list[..num_layers].iter().map(one).collect()
        }
        Some(_) => Err(f.error("no_rope_layers", format!("expected a list of {num_layers}, one for each layer"))),
    }
}
