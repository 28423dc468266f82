mod frequencies;
mod settings;

use crate::config::{FileDType, LayerRope, QkNorm, Rope, RopeScaling};
use crate::{ModelConfig, Result};
use serde_json::{Value, json};

fn base() -> Value {
    json!({"model_type": "llama", "hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 512})
}

/// The base configuration with these fields set; null removes a field.
fn with(fields: Value) -> Result<ModelConfig> {
    let mut config = base();
    for (key, value) in fields.as_object().unwrap() {
        match value {
            Value::String(s) if s == "(absent)" => drop(config.as_object_mut().unwrap().shift_remove(key)),
            _ => config[key] = value.clone(),
        }
    }
    ModelConfig::parse(&config.to_string())
}

/// Everything that the model reads, without `raw`, which may differ.
fn meaning(c: &ModelConfig) -> String {
    let mut c = c.clone();
    c.raw = Default::default();
    format!("{c:?}")
}

/// The fixtures are written by `conformance/config_fixtures.py`.
#[test]
fn version_4_and_5_configs_agree_and_frequencies_match_transformers() {
    let rows: Vec<Value> = serde_json::from_str(include_str!("../../tests/fixtures/config.json")).unwrap();
    assert!(rows.len() >= 20);
    let (mut off, mut all) = (0, 0);
    for row in &rows {
        let name = &row["name"];
        let old = ModelConfig::parse(&row["v4"].to_string()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let new = ModelConfig::parse(&row["v5"].to_string()).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(meaning(&old), meaning(&new), "{name}");
        assert_eq!(new.dtype, Some(FileDType::Bf16));
        assert_eq!(new.head_dim as u64, row["head_dim"].as_u64().unwrap(), "{name}");
        assert_eq!(new.num_kv_heads as u64, row["kv_heads"].as_u64().unwrap(), "{name}");
        let windows: Vec<_> =
            row["windows"].as_array().unwrap().iter().map(|w| w.as_u64().map(|w| w as usize)).collect();
        assert_eq!(new.windows, windows, "{name}");
        let rotates: Vec<bool> = new.layer_ropes.iter().map(|rope| *rope != LayerRope::Off).collect();
        assert_eq!(json!(rotates), row["rotates"], "{name}");
        let eos = match &row["eos"] {
            Value::Array(ids) => ids.clone(),
            Value::Null => vec![],
            one => vec![one.clone()],
        };
        assert_eq!(json!(new.eos_token_ids), json!(eos), "{name}");

        // If layers with a window have their own frequencies, exactly these layers must use them.
        let local: Vec<bool> = new.layer_ropes.iter().map(|rope| *rope == LayerRope::Local).collect();
        let slides: Vec<bool> = windows.iter().map(|w| w.is_some() && !row["local"].is_null()).collect();
        assert_eq!(local, slides, "{name}");
        let global = (LayerRope::Global, &row["inv_freq_bits"], &row["attention_scaling"]);
        let local = (!row["local"].is_null()).then(|| (LayerRope::Local, &row["local"][0], &row["local"][1]));
        for (kind, bits, their_scaling) in std::iter::once(global).chain(local) {
            let (inv_freq, scaling) = new.inv_freq(kind);
            assert_eq!(scaling, their_scaling.as_f64().unwrap() as f32, "{name}");
            let bits = bits.as_array().unwrap();
            assert_eq!(inv_freq.len(), bits.len(), "{name}");
            for (i, (ours, bits)) in inv_freq.iter().zip(bits).enumerate() {
                let theirs = bits.as_u64().unwrap() as u32;
                all += 1;
                let distance = ours.to_bits().abs_diff(theirs);
                off += u32::from(distance > 0);
                assert!(distance <= 4, "{name}: frequency {i} is off by {distance} units in the last place");
            }
        }
    }
    // This crate's powers are correctly rounded. torch's powers are sometimes off by one unit in the last place,
    // depending on the machine; llama3's ramp can turn this into four units.
    assert!(100 * off <= all, "{off} of {all} frequencies differ from transformers'");
}

fn refused(fields: Value, words: &[&str]) {
    let message = with(fields.clone()).expect_err(&fields.to_string()).to_string();
    for word in words {
        assert!(message.contains(word), "{word:?} is not in {message:?}");
    }
}

#[test]
fn unsupported_fields_are_refused_by_name_and_value() {
    refused(
        json!({"model_type": "gpt2"}),
        &["model_type", "\"gpt2\"", "llama, mistral, qwen2, qwen3, smollm3, olmo2, olmo3, gemma3_text"],
    );
    refused(
        json!({"model_type": "(absent)"}),
        &["model_type", "missing", "llama, mistral, qwen2, qwen3, smollm3, olmo2, olmo3, gemma3_text"],
    );
    refused(json!({"model_type": "qwen3_moe"}), &["qwen3_moe"]);
    refused(json!({"hidden_act": "gelu"}), &["hidden_act", "gelu", "silu"]);
    refused(json!({"attention_dropout": 0.1}), &["attention_dropout", "0.1"]);
    refused(json!({"partial_rotary_factor": 0.5}), &["partial_rotary_factor", "0.5"]);
    refused(json!({"final_logit_softcapping": 30.0}), &["final_logit_softcapping", "30"]);
    refused(json!({"num_experts": 8}), &["num_experts", "8"]);
    refused(json!({"quantization_config": {"bits": 4}}), &["quantization_config", "bits"]);
    refused(json!({"dtype": "float8"}), &["dtype", "float8"]);
    refused(json!({"rope_scaling": {"type": "dynamic", "factor": 2.0}}), &["rope_scaling.type", "dynamic", "yarn"]);
    refused(json!({"rope_parameters": {"rope_type": "longrope"}}), &["rope_parameters.rope_type", "longrope"]);
    refused(json!({"rope_scaling": {"type": "linear"}}), &["rope_scaling.factor", "missing"]);
    refused(json!({"rope_scaling": {"type": "default", "mrope_section": [1]}}), &["mrope_section"]);
    refused(json!({"rope_parameters": {"full_attention": {}}}), &["rope_parameters.full_attention"]);
    refused(json!({"rope_theta": 0}), &["rope_theta", "0"]);
    refused(json!({"model_type": "mistral", "attention_bias": true}), &["attention_bias", "mistral"]);
    refused(json!({"model_type": "qwen2", "attention_bias": false}), &["attention_bias", "qwen2"]);
    refused(json!({"model_type": "qwen3", "mlp_bias": true}), &["mlp_bias", "qwen3"]);
    refused(json!({"layer_types": ["full_attention", "chunked_attention"]}), &["layer_types", "chunked_attention"]);
    refused(json!({"layer_types": ["full_attention"]}), &["layer_types", "2"]);
    refused(
        json!({"model_type": "qwen2", "layer_types": ["full_attention", "sliding_attention"]}),
        &["layer_types", "use_sliding_window"],
    );
    refused(json!({"model_type": "smollm3", "no_rope_layers": [1]}), &["no_rope_layers", "2"]);
    refused(json!({"model_type": "smollm3", "no_rope_layers": [1, 2]}), &["no_rope_layers", "0 or 1"]);
    refused(
        json!({"model_type": "smollm3", "layer_types": ["full_attention", "sliding_attention"]}),
        &["layer_types", "use_sliding_window"],
    );
    let gemma = |fields: Value| {
        let mut gemma = json!({"model_type": "gemma3_text"});
        gemma.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        gemma
    };
    refused(gemma(json!({"hidden_activation": "gelu"})), &["hidden_activation", "gelu", "gelu_pytorch_tanh"]);
    refused(gemma(json!({"attn_logit_softcapping": 50.0})), &["attn_logit_softcapping", "50"]);
    refused(gemma(json!({"final_logit_softcapping": 30.0})), &["final_logit_softcapping", "30"]);
    refused(gemma(json!({"use_bidirectional_attention": true})), &["use_bidirectional_attention", "gemma3_text"]);
    refused(gemma(json!({"sliding_window": null})), &["sliding_window", "null"]);
    refused(gemma(json!({"rope_local_base_freq": 0.5})), &["rope_local_base_freq", "0.5"]);
    refused(gemma(json!({"rope_parameters": {"rope_type": "default"}})), &["rope_parameters", "sliding_attention"]);
    refused(
        json!({"model_type": "gemma3", "text_config": {}, "vision_config": {"model_type": "siglip_vision_model"}}),
        &["model_type", "\"gemma3\"", "text and images", "gemma3_text"],
    );
    // Fields that a family's code in transformers does not read are not rejected.
    with(gemma(json!({"hidden_act": "relu", "sliding_window_pattern": 1}))).unwrap();
    with(json!({"sliding_window": 4096, "attention_dropout": 0.0, "quantization_config": null})).unwrap();
    with(json!({"hidden_act": "swish", "pretraining_tp": 2, "use_cache": false})).unwrap();
}

#[test]
fn invalid_sizes_are_refused() {
    for key in ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"] {
        refused(json!({key: "(absent)"}), &[key, "missing"]);
        for bad in [json!(0), json!(-1), json!(1.5), json!("8"), json!(u64::MAX), json!([])] {
            refused(json!({key: bad}), &[key]);
        }
    }
    refused(json!({"num_key_value_heads": 3}), &["num_key_value_heads", "3", "8"]);
    refused(json!({"num_attention_heads": 12, "num_key_value_heads": 12}), &["hidden_size", "64", "12"]);
    refused(json!({"head_dim": 7}), &["head_dim", "7"]);
    refused(json!({"rms_norm_eps": -1}), &["rms_norm_eps"]);
    refused(json!({"eos_token_id": "x"}), &["eos_token_id"]);
    refused(json!({"model_type": "qwen3", "use_sliding_window": true, "sliding_window": 0}), &["sliding_window", "0"]);
    for text in ["", "{", "[]", "null", "\u{0}"] {
        assert!(ModelConfig::parse(text).is_err());
    }
}

#[test]
fn errors_name_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.json");
    let message = || ModelConfig::load(&path).unwrap_err().to_string();
    assert!(message().contains("config.json"), "{}", message());
    std::fs::write(&path, base().to_string().replace("llama", "bert")).unwrap();
    assert!(message().starts_with(&format!("{}: `model_type` = \"bert\"", path.display())), "{}", message());
}

/// A valid config in which field values or bytes of the text were changed gives an error or a config, never a panic.
#[test]
fn a_corrupt_config_does_not_panic() {
    let rows: Vec<Value> = serde_json::from_str(include_str!("../../tests/fixtures/config.json")).unwrap();
    let odd = [
        json!(null),
        json!(0),
        json!(-1),
        json!(1),
        json!(1e308),
        json!(-0.5),
        json!(u64::MAX),
        json!(1u64 << 31),
        json!(""),
        json!("default"),
        json!("yarn"),
        json!(true),
        json!([]),
        json!([null, 1]),
        json!({}),
        json!({"rope_type": "llama3"}),
        json!({"type": "yarn", "factor": 1e-300, "rope_theta": 1e300}),
    ];
    let mut stream = kernels::rng::Stream::new(11, 0);
    for _ in 0..4000 {
        let pick = &rows[stream.below(rows.len() as u64) as usize];
        let mut config = pick[if stream.below(2) == 0 { "v4" } else { "v5" }].clone();
        for _ in 0..1 + stream.below(3) {
            let fields = config.as_object_mut().unwrap();
            let key = fields.keys().nth(stream.below(fields.len() as u64) as usize).unwrap().clone();
            let value = odd[stream.below(odd.len() as u64) as usize].clone();
            match fields[&key].as_object_mut().filter(|m| !m.is_empty()) {
                Some(inner) if stream.below(4) > 0 => {
                    let at = inner.keys().nth(stream.below(inner.len() as u64) as usize).unwrap().clone();
                    inner[&at] = value;
                }
                _ => fields[&key] = value,
            }
        }
        let mut text = config.to_string().into_bytes();
        if stream.below(4) == 0 {
            let at = stream.below(text.len() as u64) as usize;
            text[at] = stream.next_u64() as u8;
        }
        if let Ok(config) = ModelConfig::parse(&String::from_utf8_lossy(&text))
            && config.head_dim <= 1024
        {
            let (inv_freq, _) = config.inv_freq(LayerRope::Global);
            assert_eq!(inv_freq.len(), config.head_dim / 2);
        }
    }
}
