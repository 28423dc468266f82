//! Gemma 3's text model. It differs from Llama in these points: GeGLU; norms that multiply by 1 + weight, before and
//! after attention and MLP and on each head of q and k; scaled embeddings; most layers with a sliding window and their
//! own rope base (Gemma Team, "Gemma 3 Technical Report", 2025, arXiv 2503.19786).

use super::olmo3::layer_fields;
use crate::config::{Activation, Defaults, Fields, HalfNorms, LayerNorms, LayerRope, QkNorm};
use crate::config::{like_llama, only, rope, slides};
use crate::{Family, ModelConfig, Result};
use serde_json::Value;

pub(super) static FAMILY: Family = Family {
    model_type: "gemma3_text",
    architecture: "Gemma3ForCausalLM",
    score_architecture: "Gemma3TextForSequenceClassification",
    read,
};

const THETA: f64 = 1_000_000.0;
const LOCAL_THETA: f64 = 10_000.0;

fn read(f: &Fields<'_>, family: &'static Family) -> Result<ModelConfig> {
    only(f, family, "use_bidirectional_attention", false)?;
    if f.text("hidden_activation")?.is_some_and(|name| name != "gelu_pytorch_tanh") {
        return Err(f.error("hidden_activation", "not supported for gemma3_text; supported: gelu_pytorch_tanh"));
    }
    if let Some(Value::Object(kinds)) = f.get("rope_parameters")
        && let Some(other) = kinds.keys().find(|kind| !["full_attention", "sliding_attention"].contains(&kind.as_str()))
    {
        let message = format!("{other} is not supported; expected full_attention and sliding_attention");
        return Err(f.error("rope_parameters", message));
    }
    // Gemma's field for the activation is `hidden_activation`; transformers does not read `hidden_act`.
    let mut full = layer_fields(f, "full_attention");
    full.remove("hidden_act");
    let defaults = Defaults {
        num_key_value_heads: Some(4),
        head_dim: Some(256),
        max_position_embeddings: 131_072,
        rope_theta: THETA,
        tie_word_embeddings: true,
        bos_token_id: Some(2),
        eos_token_id: Some(1),
        pad_token_id: Some(0),
        ..Defaults::default()
    };
    let mut c = like_llama(&Fields { map: &full, prefix: f.prefix }, family, defaults)?;
    c.raw = f.map.clone();
    c.attention_bias = f.bool("attention_bias", false)?;
    c.attention_output_bias = c.attention_bias;
    c.activation = Activation::GeluTanh;
    c.embedding_multiplier = (c.hidden_size as f64).sqrt() as f32;
    c.query_pre_attn_scalar = f.number("query_pre_attn_scalar")?.unwrap_or(256.0);
    c.norm_offset = 1.0;
    c.qk_norm = QkNorm::EachHead;
    c.norms = LayerNorms {
        attention: HalfNorms { before: Some("input_layernorm"), after: Some("post_attention_layernorm") },
        mlp: HalfNorms { before: Some("pre_feedforward_layernorm"), after: Some("post_feedforward_layernorm") },
    };
    windows(f, &mut c)?;
    Ok(c)
}

/// Sets the sliding windows, and the rope of the layers with a window.
fn windows(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    let slides = match slides(f, c.num_layers)? {
        Some(slides) => slides,
        None => {
            let every = f.size("sliding_window_pattern", Some(6))?;
            (1..=c.num_layers).map(|layer| layer % every != 0).collect()
        }
    };
    if slides.contains(&true) {
        if f.map.get("sliding_window") == Some(&Value::Null) {
            return Err(f.error("sliding_window", "must be set, because some layers use a sliding window"));
        }
        if f.number("rope_local_base_freq")?.is_some_and(|theta| theta <= 1.0) {
            return Err(f.error("rope_local_base_freq", "expected a number above 1"));
        }
        let mut map = layer_fields(f, "sliding_attention");
        let theta = f.get("rope_local_base_freq").cloned().unwrap_or_else(|| LOCAL_THETA.into());
        map.insert("rope_theta".into(), theta);
        c.local_rope = Some(rope(&Fields { map: &map, prefix: f.prefix }, c.max_position_embeddings, LOCAL_THETA)?);
    }
    let window = f.size("sliding_window", Some(4096))?;
    let kind = |&slides: &bool| if slides { LayerRope::Local } else { LayerRope::Global };
    c.layer_ropes = slides.iter().map(kind).collect();
    c.windows = slides.into_iter().map(|slides| slides.then_some(window)).collect();
    Ok(())
}
