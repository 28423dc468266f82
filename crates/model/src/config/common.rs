//! Reads the settings that the `config.json` files of all model families share. Every unsupported setting is an error.

use super::fields::Fields;
use super::rope_fields::rope;
use super::{Activation, Family, FileDType, HalfNorms, Head, LayerNorms, LayerRope, ModelConfig, QkNorm, SCORES};
use crate::Result;
use kernels::DType;
use serde_json::Value;

/// Fields of `config.json` that would change the arithmetic, each with the values that change nothing. Any other value
/// is an error. Null changes nothing either.
const NEUTRAL: &[(&str, &[&str])] = &[
    ("attention_dropout", &["0", "0.0"]),
    ("hidden_dropout", &["0", "0.0"]),
    ("resid_pdrop", &["0", "0.0"]),
    ("embd_pdrop", &["0", "0.0"]),
    ("partial_rotary_factor", &["1", "1.0"]),
    ("attn_logit_softcapping", &[]),
    ("final_logit_softcapping", &[]),
    ("attention_chunk_size", &[]),
    ("num_experts", &["0", "1"]),
    ("num_local_experts", &["0", "1"]),
    ("n_routed_experts", &["0"]),
    ("quantization_config", &[]),
    ("use_mrope", &["false"]),
    ("is_encoder_decoder", &["false"]),
    ("add_cross_attention", &["false"]),
    ("embedding_multiplier", &["1", "1.0"]),
    ("residual_multiplier", &["1", "1.0"]),
    ("attention_multiplier", &[]),
    ("logits_scaling", &["1", "1.0"]),
];

/// The defaults that a family's configuration class in transformers gives to absent fields.
pub(crate) struct Defaults {
    /// Number of KV heads; `None` means as many as query heads.
    pub num_key_value_heads: Option<usize>,
    /// Head dim; `None` means `hidden_size / num_attention_heads`.
    pub head_dim: Option<usize>,
    pub max_position_embeddings: usize,
    pub rms_norm_eps: f64,
    pub rope_theta: f64,
    pub tie_word_embeddings: bool,
    pub bos_token_id: Option<u32>,
    pub eos_token_id: Option<u32>,
    pub pad_token_id: Option<u32>,
}

impl Default for Defaults {
    /// The defaults of most configuration classes.
    fn default() -> Defaults {
        Defaults {
            num_key_value_heads: None,
            head_dim: None,
            max_position_embeddings: 32_768,
            rms_norm_eps: 1e-6,
            rope_theta: 10_000.0,
            tie_word_embeddings: false,
            bos_token_id: None,
            eos_token_id: None,
            pad_token_id: None,
        }
    }
}

/// Reads the configuration of a model like Llama: RMS norms before attention and MLP, SwiGLU, rotary positions and full
/// attention in every layer, no biases. The family's own module then sets its differences.
pub(crate) fn like_llama(f: &Fields<'_>, family: &'static Family, defaults: Defaults) -> Result<ModelConfig> {
    refuse_unhonoured(f)?;
    let num_heads = f.size("num_attention_heads", None)?;
    let hidden_size = f.size("hidden_size", None)?;
    // An absent field gets the default of the family's configuration class; null means "as many as query heads".
    let kv_default = if !f.map.contains_key("num_key_value_heads") {
        defaults.num_key_value_heads.unwrap_or(num_heads)
    } else {
        num_heads
    };
    let num_kv_heads = f.size("num_key_value_heads", Some(kv_default))?;
    if num_heads % num_kv_heads != 0 {
        return Err(f.error("num_key_value_heads", format!("must divide num_attention_heads = {num_heads}")));
    }
    let head_dim = match (f.get("head_dim"), defaults.head_dim) {
        (None, Some(head_dim)) => head_dim,
        (None, None) if hidden_size % num_heads != 0 => {
            return Err(f.error("hidden_size", format!("must be a multiple of num_attention_heads = {num_heads}")));
        }
        _ => f.size("head_dim", Some(hidden_size / num_heads))?,
    };
    if head_dim % 2 != 0 {
        return Err(f.error("head_dim", "rotary positions require an even head_dim"));
    }
    let num_layers = f.size("num_hidden_layers", None)?;
    if num_layers > 1 << 16 {
        return Err(f.error("num_hidden_layers", "must be at most 65536"));
    }
    let max_position_embeddings = f.size("max_position_embeddings", Some(defaults.max_position_embeddings))?;
    let id = |key: &str, default: Option<u32>| f.ids(key, default.as_slice());
    Ok(ModelConfig {
        family,
        hidden_size,
        intermediate_size: f.size("intermediate_size", None)?,
        num_layers,
        num_heads,
        num_kv_heads,
        head_dim,
        vocab_size: f.size("vocab_size", None)?,
        max_position_embeddings,
        rms_norm_eps: f.number("rms_norm_eps")?.unwrap_or(defaults.rms_norm_eps) as f32,
        norm_offset: 0.0,
        activation: Activation::Silu,
        embedding_multiplier: 1.0,
        query_pre_attn_scalar: head_dim as f64,
        rope: rope(f, max_position_embeddings, defaults.rope_theta)?,
        local_rope: None,
        layer_ropes: vec![LayerRope::Global; num_layers],
        windows: vec![None; num_layers],
        attention_bias: false,
        attention_output_bias: false,
        mlp_bias: false,
        qk_norm: QkNorm::Off,
        norms: LayerNorms {
            attention: HalfNorms { before: Some("input_layernorm"), after: None },
            mlp: HalfNorms { before: Some("post_attention_layernorm"), after: None },
        },
        head: head(f)?,
        tie_word_embeddings: f.bool("tie_word_embeddings", defaults.tie_word_embeddings)?,
        bos_token_id: id("bos_token_id", defaults.bos_token_id)?.first().copied(),
        eos_token_ids: id("eos_token_id", defaults.eos_token_id)?,
        pad_token_id: id("pad_token_id", defaults.pad_token_id)?.first().copied(),
        dtype: dtype(f)?,
        compute: DType::F32,
        initializer_range: match f.get("initializer_range").map(Value::as_f64) {
            None => 0.02,
            Some(Some(x)) if (0.0..=1.0).contains(&x) => x as f32,
            Some(_) => return Err(f.error("initializer_range", "expected a number from 0 to 1")),
        },
        raw: f.map.clone(),
    })
}

/// Fails if the boolean field `key` is not `value`, the only value that the family's weights support.
pub(crate) fn only(f: &Fields<'_>, family: &Family, key: &str, value: bool) -> Result<()> {
    if f.bool(key, value)? == value {
        Ok(())
    } else {
        Err(f.error(key, format!("not supported for {}; supported: {value}", family.model_type)))
    }
}

fn refuse_unhonoured(f: &Fields<'_>) -> Result<()> {
    if let Some(act) = f.text("hidden_act")?
        && act != "silu"
        && act != "swish"
    {
        return Err(f.error("hidden_act", "not supported; supported: silu"));
    }
    for (key, neutral) in NEUTRAL {
        if let Some(v) = f.get(key)
            && !neutral.contains(&v.to_string().as_str())
        {
            return Err(f.error(key, "not supported"));
        }
    }
    Ok(())
}

/// The kind of head, from the name in `architectures`.
fn head(f: &Fields<'_>) -> Result<Head> {
    let architecture = f.get("architectures").and_then(|a| a.get(0)).and_then(Value::as_str);
    if !architecture.is_some_and(|a| a.ends_with(SCORES)) {
        return Ok(Head::Lm);
    }
    let labels = match f.get("id2label") {
        Some(Value::Object(names)) => names.len(),
        // transformers does not write the default of 2 labels.
        _ => f.size("num_labels", Some(2))?,
    };
    if labels == 0 { Err(f.error("id2label", "must have at least one label")) } else { Ok(Head::Score(labels)) }
}

fn dtype(f: &Fields<'_>) -> Result<Option<FileDType>> {
    let key = if f.get("dtype").is_some() { "dtype" } else { "torch_dtype" };
    match f.text(key)?.map(|t| t.trim_start_matches("torch.")) {
        None | Some("auto") => Ok(None),
        Some("float32" | "float64") => Ok(Some(FileDType::F32)),
        Some("bfloat16") => Ok(Some(FileDType::Bf16)),
        Some("float16") => Ok(Some(FileDType::F16)),
        Some(_) => Err(f.error(key, "not supported; supported: float32, bfloat16, float16")),
    }
}
