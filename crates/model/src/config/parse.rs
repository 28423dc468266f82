//! From JSON to [`ModelConfig`]: defaults, both generations of field names, and a refusal of all that is not honoured.

use super::{Family, FileDType, Head, ModelConfig, Rope, RopeScaling, SCORES};
use crate::{Error, Result};
use serde_json::{Map, Value};

/// Sizes past this are a mistake, and would overflow products of two of them.
const MAX_SIZE: u64 = 1 << 31;

/// Fields that would change the arithmetic, and the values of them that change nothing. Null changes nothing either.
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

/// The fields of one JSON object, under a prefix for messages.
struct Fields<'a> {
    map: &'a Map<String, Value>,
    prefix: &'a str,
}

impl<'a> Fields<'a> {
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }
    fn error(&self, key: &str, message: impl Into<String>) -> Error {
        // A value may be large: what names it is enough.
        let value = self.map.get(key).map(|v| shorten(&v.to_string()));
        Error::Config { field: format!("{}{key}", self.prefix), value, message: message.into() }
    }
    /// A positive size, or `default` where the field is absent or null.
    fn size(&self, key: &str, default: Option<usize>) -> Result<usize> {
        match (self.get(key), default) {
            (None, Some(default)) => Ok(default),
            (None, None) => Err(self.error(key, "is missing")),
            (Some(v), _) => match v.as_u64() {
                Some(n) if n > 0 && n <= MAX_SIZE => Ok(n as usize),
                _ => Err(self.error(key, "expected a positive integer")),
            },
        }
    }
    fn bool(&self, key: &str, default: bool) -> Result<bool> {
        match self.get(key) {
            None => Ok(default),
            Some(v) => v.as_bool().ok_or_else(|| self.error(key, "expected true or false")),
        }
    }
    /// A positive finite number.
    fn number(&self, key: &str) -> Result<Option<f64>> {
        match self.get(key) {
            None => Ok(None),
            Some(v) => match v.as_f64() {
                Some(x) if x > 0.0 && x.is_finite() => Ok(Some(x)),
                _ => Err(self.error(key, "expected a positive number")),
            },
        }
    }
    fn required(&self, key: &str) -> Result<f64> {
        self.number(key)?.ok_or_else(|| self.error(key, "is missing"))
    }
    fn text(&self, key: &str) -> Result<Option<&'a str>> {
        match self.get(key) {
            None => Ok(None),
            Some(v) => v.as_str().map(Some).ok_or_else(|| self.error(key, "expected a string")),
        }
    }
    /// Token ids: one, several, or `default` where the field is absent; an explicit null is none. A negative id is how
    /// old configs write "none".
    fn ids(&self, key: &str, default: &[u32]) -> Result<Vec<u32>> {
        let one = |v: &Value| match (v.as_u64(), v.as_i64()) {
            (Some(id), _) if id <= u64::from(u32::MAX) => Ok(Some(id as u32)),
            (None, Some(_)) => Ok(None),
            _ => Err(self.error(key, "expected a token id")),
        };
        match self.map.get(key) {
            None => Ok(default.to_vec()),
            Some(Value::Null) => Ok(vec![]),
            Some(Value::Array(ids)) => ids.iter().filter_map(|v| one(v).transpose()).collect(),
            Some(v) => Ok(one(v)?.into_iter().collect()),
        }
    }
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

pub(super) fn parse(json: &str) -> Result<ModelConfig> {
    let raw: Value = serde_json::from_str(json).map_err(|e| Error::Config {
        field: "(file)".into(),
        value: None,
        message: format!("not JSON: {e}"),
    })?;
    let Value::Object(raw) = raw else {
        return Err(Error::Config { field: "(file)".into(), value: None, message: "expected a JSON object".into() });
    };
    let f = Fields { map: &raw, prefix: "" };

    let family = family(&f)?;
    refuse_unhonoured(&f, family)?;

    let num_heads = f.size("num_attention_heads", None)?;
    let hidden_size = f.size("hidden_size", None)?;
    // Absent and null differ: absent takes the default of the family's configuration class, null means "as many as
    // heads".
    let kv_default = match (family, raw.contains_key("num_key_value_heads")) {
        (Family::Mistral, false) => 8,
        (Family::Qwen2 | Family::Qwen3, false) => 32,
        _ => num_heads,
    };
    let num_kv_heads = f.size("num_key_value_heads", Some(kv_default))?;
    if num_heads % num_kv_heads != 0 {
        return Err(f.error("num_key_value_heads", format!("does not divide num_attention_heads = {num_heads}")));
    }
    let head_dim = match (f.get("head_dim"), family) {
        (None, Family::Qwen3) => 128,
        (None, _) if hidden_size % num_heads != 0 => {
            return Err(f.error("hidden_size", format!("is not a multiple of num_attention_heads = {num_heads}")));
        }
        _ => f.size("head_dim", Some(hidden_size / num_heads))?,
    };
    if head_dim % 2 != 0 {
        return Err(f.error("head_dim", "rotary positions need an even head_dim"));
    }
    let num_layers = f.size("num_hidden_layers", None)?;
    if num_layers > 1 << 16 {
        return Err(f.error("num_hidden_layers", "more layers than any model has"));
    }
    let max_position_embeddings = f.size(
        "max_position_embeddings",
        Some(match family {
            Family::Llama => 2048,
            Family::Mistral => 131_072,
            Family::Qwen2 | Family::Qwen3 => 32_768,
        }),
    )?;
    let biased = f.bool("attention_bias", family == Family::Qwen2)?;
    let (bos, eos): (&[u32], &[u32]) = match family {
        Family::Llama | Family::Mistral => (&[1], &[2]),
        Family::Qwen2 | Family::Qwen3 => (&[], &[]),
    };
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
        rms_norm_eps: f.number("rms_norm_eps")?.unwrap_or(1e-6) as f32,
        rope: rope(&f, max_position_embeddings)?,
        windows: windows(&f, family, num_layers)?,
        attention_bias: biased,
        attention_output_bias: biased && matches!(family, Family::Llama | Family::Qwen3),
        mlp_bias: f.bool("mlp_bias", false)?,
        qk_norm: family == Family::Qwen3,
        head: head(&f)?,
        tie_word_embeddings: f.bool("tie_word_embeddings", false)?,
        bos_token_id: f.ids("bos_token_id", bos)?.first().copied(),
        eos_token_ids: f.ids("eos_token_id", eos)?,
        pad_token_id: f.ids("pad_token_id", &[])?.first().copied(),
        dtype: dtype(&f)?,
        compute: kernels::DType::F32,
        initializer_range: match f.get("initializer_range").map(Value::as_f64) {
            None => 0.02,
            Some(Some(x)) if (0.0..=1.0).contains(&x) => x as f32,
            Some(_) => return Err(f.error("initializer_range", "expected a number from 0 to 1")),
        },
        raw,
    })
}

fn family(f: &Fields<'_>) -> Result<Family> {
    let supported = || Family::ALL.map(Family::model_type).join(", ");
    match f.text("model_type")? {
        None => Err(f.error("model_type", format!("is missing; supported: {}", supported()))),
        Some(t) => Family::ALL
            .into_iter()
            .find(|family| family.model_type() == t)
            .ok_or_else(|| f.error("model_type", format!("is not supported; supported: {}", supported()))),
    }
}

fn refuse_unhonoured(f: &Fields<'_>, family: Family) -> Result<()> {
    if let Some(act) = f.text("hidden_act")?
        && act != "silu"
        && act != "swish"
    {
        return Err(f.error("hidden_act", "is not supported; supported: silu"));
    }
    for (key, neutral) in NEUTRAL {
        if let Some(v) = f.get(key)
            && !neutral.contains(&v.to_string().as_str())
        {
            return Err(f.error(key, "is not supported"));
        }
    }
    // Switches that only some families have: the others' weights would have no place for what they ask for.
    let fixed = match family {
        Family::Llama => [None, None],
        Family::Mistral => [Some(("attention_bias", false)), Some(("mlp_bias", false))],
        Family::Qwen2 => [Some(("attention_bias", true)), Some(("mlp_bias", false))],
        Family::Qwen3 => [None, Some(("mlp_bias", false))],
    };
    for (key, only) in fixed.into_iter().flatten() {
        if f.bool(key, only)? != only {
            return Err(f.error(key, format!("is not supported for {}; supported: {only}", family.model_type())));
        }
    }
    Ok(())
}

/// By the architecture that the weights were saved from.
fn head(f: &Fields<'_>) -> Result<Head> {
    let architecture = f.get("architectures").and_then(|a| a.get(0)).and_then(Value::as_str);
    if !architecture.is_some_and(|a| a.ends_with(SCORES)) {
        return Ok(Head::Lm);
    }
    let labels = match (f.get("id2label"), f.get("num_labels").and_then(Value::as_u64)) {
        (Some(Value::Object(names)), _) => names.len(),
        (_, Some(n)) => n as usize,
        // What transformers leaves out.
        _ => 2,
    };
    if labels == 0 { Err(f.error("id2label", "has no label")) } else { Ok(Head::Score(labels)) }
}

fn dtype(f: &Fields<'_>) -> Result<Option<FileDType>> {
    let key = if f.get("dtype").is_some() { "dtype" } else { "torch_dtype" };
    match f.text(key)?.map(|t| t.trim_start_matches("torch.")) {
        None | Some("auto") => Ok(None),
        Some("float32" | "float64") => Ok(Some(FileDType::F32)),
        Some("bfloat16") => Ok(Some(FileDType::Bf16)),
        Some("float16") => Ok(Some(FileDType::F16)),
        Some(_) => Err(f.error(key, "is not supported; supported: float32, bfloat16, float16")),
    }
}

/// The sliding window of each layer, as transformers chooses it for the family.
fn windows(f: &Fields<'_>, family: Family, num_layers: usize) -> Result<Vec<Option<usize>>> {
    let types = match f.get("layer_types") {
        None => None,
        Some(Value::Array(types)) if types.len() == num_layers => Some(types),
        Some(_) => return Err(f.error("layer_types", format!("expected a list of {num_layers}, one for each layer"))),
    };
    let sliding = |layer: usize| match types.and_then(|t| t[layer].as_str()) {
        Some("full_attention") => Ok(false),
        Some("sliding_attention") => Ok(true),
        _ => Err(f.error("layer_types", "is not supported; supported: full_attention, sliding_attention")),
    };
    match family {
        Family::Llama => {
            for layer in 0..types.map_or(0, Vec::len) {
                if sliding(layer)? {
                    return Err(f.error("layer_types", "is not supported for llama; supported: full_attention"));
                }
            }
            Ok(vec![None; num_layers])
        }
        Family::Mistral => {
            // Null is no window; absent is the default of the configuration class.
            let window = match f.map.get("sliding_window") {
                None => Some(4096),
                Some(Value::Null) => None,
                Some(_) => Some(f.size("sliding_window", None)?),
            };
            for layer in 0..types.map_or(0, Vec::len) {
                if sliding(layer)? != window.is_some() {
                    return Err(f.error("layer_types", "is not supported for mistral, whose layers are all alike"));
                }
            }
            Ok(vec![window; num_layers])
        }
        Family::Qwen2 | Family::Qwen3 => {
            let window = match (f.bool("use_sliding_window", false)?, f.map.get("sliding_window")) {
                (false, _) | (true, Some(Value::Null)) => None,
                (true, _) => Some(f.size("sliding_window", Some(4096))?),
            };
            // Zero layers below the first one that slides is a legal value.
            let first = match f.get("max_window_layers") {
                None => 28,
                Some(v) => v.as_u64().ok_or_else(|| f.error("max_window_layers", "expected an integer"))?,
            };
            let layer = |layer: usize| match (types, window) {
                (None, w) => Ok(w.filter(|_| layer as u64 >= first)),
                (Some(_), w) => match (sliding(layer)?, w) {
                    (false, _) => Ok(None),
                    (true, Some(w)) => Ok(Some(w)),
                    (true, None) => {
                        Err(f.error("layer_types", "asks for sliding_attention, but use_sliding_window is not set"))
                    }
                },
            };
            (0..num_layers).map(layer).collect()
        }
    }
}

/// Rotary settings. `rope_scaling` (transformers 4) wins over `rope_parameters` (5); θ inside wins over θ outside.
fn rope(f: &Fields<'_>, max_position_embeddings: usize) -> Result<Rope> {
    let given = |key| match f.get(key) {
        None => Ok(None),
        Some(Value::Object(map)) if map.is_empty() => Ok(None),
        Some(Value::Object(map)) => Ok(Some(map)),
        Some(_) => Err(f.error(key, "expected an object")),
    };
    let empty = Map::new();
    let (map, prefix) = match (given("rope_scaling")?, given("rope_parameters")?) {
        (Some(map), _) => (map, "rope_scaling."),
        (None, Some(map)) => (map, "rope_parameters."),
        (None, None) => (&empty, "rope_parameters."),
    };
    let r = Fields { map, prefix };
    const KNOWN: &[&str] = &[
        "rope_type",
        "type",
        "rope_theta",
        "partial_rotary_factor",
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    ];
    let kind_key = if r.get("rope_type").is_some() { "rope_type" } else { "type" };
    let kind = r.text(kind_key)?.unwrap_or("default");
    if !["default", "linear", "llama3", "yarn"].contains(&kind) {
        return Err(r.error(kind_key, "is not supported; supported: default, linear, llama3, yarn"));
    }
    if let Some(key) = map.keys().find(|k| !KNOWN.contains(&k.as_str())) {
        return Err(r.error(key, "is not supported"));
    }
    if r.number("partial_rotary_factor")?.is_some_and(|p| p != 1.0) {
        return Err(r.error("partial_rotary_factor", "is not supported; supported: 1"));
    }
    let theta = match (r.number("rope_theta")?, f.number("rope_theta")?) {
        (Some(theta), _) | (None, Some(theta)) => theta,
        (None, None) => 10_000.0,
    };
    if theta <= 1.0 {
        let at = if r.get("rope_theta").is_some() { &r } else { f };
        return Err(at.error("rope_theta", "expected a number above 1"));
    }
    // The field outside wins, as transformers has it.
    let original = match (f.number("original_max_position_embeddings")?, r.number("original_max_position_embeddings")?)
    {
        (Some(n), _) | (None, Some(n)) => n,
        (None, None) => max_position_embeddings as f64,
    };
    let scaling = match kind {
        "default" => RopeScaling::Default,
        "linear" => RopeScaling::Linear { factor: r.required("factor")? },
        "llama3" => {
            let (low, high) = (r.required("low_freq_factor")?, r.required("high_freq_factor")?);
            if high <= low {
                return Err(r.error("high_freq_factor", format!("is not above low_freq_factor = {low}")));
            }
            RopeScaling::Llama3 {
                factor: r.required("factor")?,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings: original,
            }
        }
        _ => {
            let factor = r.number("factor")?.unwrap_or(max_position_embeddings as f64 / original);
            let temper = |mscale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * mscale * libm::log(factor) + 1.0 };
            let attention_factor =
                match (r.number("attention_factor")?, r.number("mscale")?, r.number("mscale_all_dim")?) {
                    (Some(given), _, _) => given,
                    (None, Some(above), Some(below)) => temper(above) / temper(below),
                    _ => temper(1.0),
                };
            RopeScaling::Yarn {
                factor,
                attention_factor,
                beta_fast: r.number("beta_fast")?.unwrap_or(32.0),
                beta_slow: r.number("beta_slow")?.unwrap_or(1.0),
                original_max_position_embeddings: original,
                truncate: r.bool("truncate", true)?,
            }
        }
    };
    Ok(Rope { theta, scaling })
}
