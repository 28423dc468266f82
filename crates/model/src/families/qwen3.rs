//! Qwen 3 (dense): norms on each head of q and k, an explicit head dim, and sliding windows as in Qwen 2.

use super::qwen2::windows;
use crate::config::{Defaults, Fields, QkNorm, like_llama, only};
use crate::{Family, ModelConfig, Result};

pub(super) static FAMILY: Family = Family {
    model_type: "qwen3",
    architecture: "Qwen3ForCausalLM",
    score_architecture: "Qwen3ForSequenceClassification",
    read,
};

fn read(f: &Fields<'_>, family: &'static Family) -> Result<ModelConfig> {
    only(f, family, "mlp_bias", false)?;
    let defaults = Defaults { num_key_value_heads: Some(32), head_dim: Some(128), ..Defaults::default() };
    let mut c = like_llama(f, family, defaults)?;
    c.attention_bias = f.bool("attention_bias", false)?;
    c.attention_output_bias = c.attention_bias;
    c.qk_norm = QkNorm::EachHead;
    c.windows = windows(f, c.num_layers)?;
    Ok(c)
}
