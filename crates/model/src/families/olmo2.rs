//! OLMo 2: norms after attention and MLP instead of before them, and norms over all heads of q together and all heads
//! of k together.

use crate::config::{Defaults, Fields, HalfNorms, LayerNorms, QkNorm, like_llama};
use crate::{Family, ModelConfig, Result};

pub(super) static FAMILY: Family = Family {
    model_type: "olmo2",
    architecture: "Olmo2ForCausalLM",
    score_architecture: "Olmo2ForSequenceClassification",
    read,
};

fn read(f: &Fields<'_>, family: &'static Family) -> Result<ModelConfig> {
    if f.get("layer_types").is_some() {
        return Err(f.error("layer_types", "not supported for olmo2"));
    }
    like_olmo(f, family, 10_000.0)
}

/// Reads the settings that OLMo 2 and OLMo 3 have in common.
pub(super) fn like_olmo(f: &Fields<'_>, family: &'static Family, rope_theta: f64) -> Result<ModelConfig> {
    let defaults = Defaults {
        max_position_embeddings: 2048,
        rms_norm_eps: 1e-5,
        rope_theta,
        eos_token_id: Some(50_279),
        pad_token_id: Some(1),
        ..Defaults::default()
    };
    let mut c = like_llama(f, family, defaults)?;
    c.attention_bias = f.bool("attention_bias", false)?;
    c.attention_output_bias = c.attention_bias;
    c.qk_norm = QkNorm::AllHeads;
    c.norms = LayerNorms {
        attention: HalfNorms { before: None, after: Some("post_attention_layernorm") },
        mlp: HalfNorms { before: None, after: Some("post_feedforward_layernorm") },
    };
    Ok(c)
}
