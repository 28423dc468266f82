//! Llama 2 and 3.x, and models of the same architecture.

use crate::config::{Defaults, Fields, like_llama, slides};
use crate::{Family, ModelConfig, Result};

pub(super) static FAMILY: Family = Family {
    model_type: "llama",
    architecture: "LlamaForCausalLM",
    score_architecture: "LlamaForSequenceClassification",
    read,
};

fn read(f: &Fields<'_>, family: &'static Family) -> Result<ModelConfig> {
    let defaults =
        Defaults { max_position_embeddings: 2048, bos_token_id: Some(1), eos_token_id: Some(2), ..Defaults::default() };
    let mut c = like_llama(f, family, defaults)?;
    c.attention_bias = f.bool("attention_bias", false)?;
    c.attention_output_bias = c.attention_bias;
    c.mlp_bias = f.bool("mlp_bias", false)?;
    if slides(f, c.num_layers)?.is_some_and(|s| s.contains(&true)) {
        return Err(f.error("layer_types", "not supported for llama; supported: full_attention"));
    }
    Ok(c)
}
