//! The default of every setting for each family, its limits, and rejected values.

use super::*;
use crate::Head;
use kernels::DType;

/// A configuration of a family that sets only the sizes without a default.
fn bare(family: &str, more: Value) -> Result<ModelConfig> {
    let mut config = json!({"model_type": family, "hidden_size": 512, "intermediate_size": 20, "num_hidden_layers": 12,
        "num_attention_heads": 32, "vocab_size": 50});
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    ModelConfig::parse(&config.to_string())
}

/// The defaults of transformers' configuration classes, in order: KV heads, head dim, positions, ε, θ, tied, ids of
/// start, end and padding.
#[test]
fn absent_fields_get_the_defaults_of_the_family() {
    type Row = (&'static str, [usize; 3], f32, f64, bool, [Option<u32>; 3]);
    let rows: [Row; 8] = [
        ("llama", [32, 16, 2048], 1e-6, 1e4, false, [Some(1), Some(2), None]),
        ("mistral", [8, 16, 131_072], 1e-6, 1e4, false, [Some(1), Some(2), None]),
        ("qwen2", [32, 16, 32_768], 1e-6, 1e4, false, [None; 3]),
        ("qwen3", [32, 128, 32_768], 1e-6, 1e4, false, [None; 3]),
        ("smollm3", [4, 16, 32_768], 1e-6, 2e6, true, [Some(128_000), Some(128_001), Some(128_004)]),
        ("olmo2", [32, 16, 2048], 1e-5, 1e4, false, [None, Some(50_279), Some(1)]),
        ("olmo3", [32, 16, 2048], 1e-5, 5e5, false, [None, Some(50_279), Some(1)]),
        ("gemma3_text", [4, 256, 131_072], 1e-6, 1e6, true, [Some(2), Some(1), Some(0)]),
    ];
    for (family, [kv, head_dim, positions], eps, theta, tied, [bos, eos, pad]) in rows {
        let c = bare(family, json!({})).unwrap();
        assert_eq!((c.num_kv_heads, c.head_dim, c.max_position_embeddings), (kv, head_dim, positions), "{family}");
        assert_eq!((c.rms_norm_eps, c.rope.theta, c.tie_word_embeddings), (eps, theta, tied), "{family}");
        assert_eq!(
            (c.bos_token_id, c.eos_token_ids.clone(), c.pad_token_id),
            (bos, Vec::from_iter(eos), pad),
            "{family}"
        );
        assert_eq!((c.rope.scaling.clone(), c.initializer_range, c.head), (RopeScaling::Default, 0.02, Head::Lm));
        assert_eq!((c.compute, c.dtype, c.mlp_bias, c.attention_output_bias), (DType::F32, None, false, false));
        assert_eq!(c.attention_bias, family == "qwen2");
        let norms = c.qk_norm_widths();
        match c.qk_norm {
            QkNorm::Off => assert_eq!(norms, None),
            QkNorm::EachHead => assert_eq!(norms, Some((head_dim, head_dim, 32 + kv))),
            QkNorm::AllHeads => assert_eq!(norms, Some((32 * head_dim, kv * head_dim, 2))),
        }
        assert_eq!((c.qkv_width(), c.head_rows()), ((32 + 2 * kv) * head_dim, (!tied).then_some(50)), "{family}");
        let slides: Vec<bool> = c.windows.iter().map(Option::is_some).collect();
        let (every, all_slide) = match family {
            "olmo3" => (4, false),
            "gemma3_text" => (6, false),
            _ => (1, family == "mistral"),
        };
        assert_eq!(slides, (1..=12).map(|layer| all_slide || layer % every != 0).collect::<Vec<_>>(), "{family}");
        assert!(c.windows.iter().flatten().all(|&window| window == 4096), "{family}");
        let local: Vec<bool> = c.layer_ropes.iter().map(|rope| *rope == LayerRope::Local).collect();
        assert_eq!(local, slides.iter().map(|&s| s && family != "mistral").collect::<Vec<_>>(), "{family}");
        let off: Vec<bool> = c.layer_ropes.iter().map(|rope| *rope == LayerRope::Off).collect();
        assert_eq!(off, (1..=12).map(|layer| family == "smollm3" && layer % 4 == 0).collect::<Vec<_>>(), "{family}");
        let gemma = family == "gemma3_text";
        assert_eq!(c.norm_offset, f32::from(u8::from(gemma)));
        assert_eq!(c.embedding_multiplier, if gemma { 512f32.sqrt() } else { 1.0 });
        assert_eq!(c.query_pre_attn_scalar, if gemma { 256.0 } else { head_dim as f64 });
        assert_eq!(
            c.local_rope.map(|rope| rope.theta),
            match family {
                "olmo3" => Some(5e5),
                "gemma3_text" => Some(1e4),
                _ => None,
            }
        );
    }
}

#[test]
fn null_and_absent_fields_differ_as_in_transformers() {
    for family in ["mistral", "qwen2", "smollm3", "gemma3_text"] {
        assert_eq!(
            bare(family, json!({"num_key_value_heads": null})).unwrap().num_kv_heads,
            32,
            "as many KV heads as query heads"
        );
        assert_eq!(bare(family, json!({"num_key_value_heads": 16})).unwrap().num_kv_heads, 16);
    }
    assert_eq!(bare("qwen3", json!({"head_dim": null})).unwrap().head_dim, 128);
    assert_eq!(bare("qwen3", json!({"head_dim": 64})).unwrap().head_dim, 64);
    assert_eq!(bare("llama", json!({"head_dim": null})).unwrap().head_dim, 16);
    let odd = json!({"hidden_size": 500, "head_dim": 64});
    assert_eq!(bare("llama", odd).unwrap().head_dim, 64, "an explicit head_dim need not divide hidden_size");
    let windows = |more: Value| bare("mistral", more).unwrap().windows[0];
    assert_eq!(
        [windows(json!({})), windows(json!({"sliding_window": null})), windows(json!({"sliding_window": 7}))],
        [Some(4096), None, Some(7)]
    );
}

#[test]
fn unsupported_arithmetic_settings_are_refused() {
    for (key, neutral) in [
        ("attention_dropout", &[json!(0), json!(0.0)][..]),
        ("hidden_dropout", &[json!(0), json!(0.0)]),
        ("resid_pdrop", &[json!(0), json!(0.0)]),
        ("embd_pdrop", &[json!(0), json!(0.0)]),
        ("partial_rotary_factor", &[json!(1), json!(1.0)]),
        ("attn_logit_softcapping", &[]),
        ("final_logit_softcapping", &[]),
        ("attention_chunk_size", &[]),
        ("num_experts", &[json!(0), json!(1)]),
        ("num_local_experts", &[json!(0), json!(1)]),
        ("n_routed_experts", &[json!(0)]),
        ("quantization_config", &[]),
        ("use_mrope", &[json!(false)]),
        ("is_encoder_decoder", &[json!(false)]),
        ("add_cross_attention", &[json!(false)]),
        ("embedding_multiplier", &[json!(1), json!(1.0)]),
        ("residual_multiplier", &[json!(1), json!(1.0)]),
        ("attention_multiplier", &[]),
        ("logits_scaling", &[json!(1), json!(1.0)]),
    ] {
        for value in neutral.iter().cloned().chain([json!(null)]) {
            with(json!({key: value})).unwrap();
        }
        refused(json!({key: 7}), &[key, "= 7: not supported"]);
        refused(json!({key: true}), &[key, "= true: not supported"]);
    }
    with(json!({"hidden_act": "silu"})).unwrap();
    for (value, dtype) in [
        (json!("float32"), Some(FileDType::F32)),
        (json!("torch.float64"), Some(FileDType::F32)),
        (json!("torch.bfloat16"), Some(FileDType::Bf16)),
        (json!("float16"), Some(FileDType::F16)),
        (json!("auto"), None),
        (json!(null), None),
    ] {
        assert_eq!(with(json!({"torch_dtype": value})).unwrap().dtype, dtype);
        assert_eq!(with(json!({"dtype": value, "torch_dtype": value})).unwrap().dtype, dtype);
    }
    assert_eq!(with(json!({"dtype": "float16", "torch_dtype": "bfloat16"})).unwrap().dtype, Some(FileDType::F16));
    refused(json!({"torch_dtype": "int8"}), &["`torch_dtype` = \"int8\"", "float32, bfloat16, float16"]);
    let names = [FileDType::F32, FileDType::Bf16, FileDType::F16].map(|d| (d.config_name(), d.bytes()));
    assert_eq!(names, [("float32", 4), ("bfloat16", 2), ("float16", 2)]);
}

#[test]
fn the_architecture_name_selects_the_head() {
    let scores = |more: Value| {
        let mut fields = json!({"architectures": ["LlamaForSequenceClassification", "Other"]});
        fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        with(fields)
    };
    let labels = |more: Value| match scores(more).unwrap().head {
        Head::Score(labels) => labels,
        Head::Lm => panic!("expected a score head"),
    };
    assert_eq!(labels(json!({})), 2);
    assert_eq!(labels(json!({"num_labels": 5})), 5);
    assert_eq!(labels(json!({"id2label": {"0": "a", "1": "b", "2": "c"}, "num_labels": 5})), 3);
    assert!(
        scores(json!({"id2label": {}}))
            .unwrap_err()
            .to_string()
            .contains("`id2label` = {}: must have at least one label")
    );
    assert!(scores(json!({"num_labels": 0})).is_err());
    for lm in [json!(["LlamaForCausalLM"]), json!([]), json!(null), json!(["ForSequenceClassificationX"]), json!("x")] {
        assert_eq!(with(json!({"architectures": lm})).unwrap().head, Head::Lm);
    }
    let c = with(json!({"tie_word_embeddings": true})).unwrap();
    let two = c.with_score_head(2);
    assert_eq!((c.head_rows(), two.head_rows(), two.head), (None, Some(2), Head::Score(2)));
    assert_eq!(two.raw["architectures"], json!(["LlamaForSequenceClassification"]));
    assert_eq!(two.raw["id2label"], json!({"0": "LABEL_0", "1": "LABEL_1"}));
    assert_eq!(two.raw["label2id"], json!({"LABEL_0": 0, "LABEL_1": 1}));
    assert_eq!(ModelConfig::parse(&Value::Object(two.raw.clone()).to_string()).unwrap().head, Head::Score(2));
    let padded = c.padded_with(Some(9));
    assert_eq!((padded.pad_token_id, &padded.raw["pad_token_id"]), (Some(9), &json!(9)));
    assert_eq!(padded.padded_with(None).pad_token_id, None);
}

#[test]
fn bf16_models_must_have_even_sizes() {
    let c = with(json!({"intermediate_size": 171})).unwrap();
    let error = c.computing_in(DType::Bf16).unwrap_err().to_string();
    let why = "must be even for bf16: set dtype = \"f32\"";
    assert_eq!(error, format!("config.json: `intermediate_size` = 171: {why}"));
    assert_eq!(c.computing_in(DType::F32).unwrap().compute, DType::F32);
    let odd = with(json!({"hidden_size": 65, "head_dim": 8})).unwrap();
    assert!(odd.computing_in(DType::Bf16).unwrap_err().to_string().contains("`hidden_size` = 65"));
    let c = with(json!({})).unwrap().computing_in(DType::Bf16).unwrap();
    assert_eq!(c.compute, DType::Bf16);
    let gemma = bare("gemma3_text", json!({})).unwrap();
    let rounded = half::bf16::from_f32(512f32.sqrt()).to_f32();
    assert_eq!(
        (gemma.embedding_scale(), gemma.computing_in(DType::Bf16).unwrap().embedding_scale()),
        (512f32.sqrt(), rounded)
    );
    assert_eq!(bare("gemma3_text", json!({"query_pre_attn_scalar": 64})).unwrap().attention_scale(), 0.125);
}

#[test]
fn each_layer_gets_the_sliding_window_of_its_type() {
    let windows = |family: &str, more: Value| bare(family, more).unwrap().windows;
    let only =
        |layers: &[usize], window: usize| (0..12).map(|l| layers.contains(&l).then_some(window)).collect::<Vec<_>>();
    for family in ["qwen2", "qwen3"] {
        assert_eq!(
            windows(family, json!({"sliding_window": 7})),
            only(&[], 7),
            "use_sliding_window is false by default"
        );
        let on = |more: Value| {
            let mut fields = json!({"use_sliding_window": true, "sliding_window": 7});
            fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            windows(family, fields)
        };
        assert_eq!(on(json!({"max_window_layers": 9})), only(&[9, 10, 11], 7));
        assert_eq!(on(json!({"max_window_layers": 0})), vec![Some(7); 12]);
        assert_eq!(on(json!({})), only(&[], 7), "max_window_layers is 28 by default");
        assert_eq!(on(json!({"sliding_window": null, "max_window_layers": 0})), only(&[], 7));
        assert_eq!(
            bare(family, json!({"use_sliding_window": true, "num_hidden_layers": 30})).unwrap().windows[27..],
            [None, Some(4096), Some(4096)]
        );
        let mut types = vec!["full_attention"; 12];
        types[3] = "sliding_attention";
        assert_eq!(on(json!({"layer_types": types, "max_window_layers": 0})), only(&[3], 7));
        let error =
            bare(family, json!({"use_sliding_window": true, "max_window_layers": "x"})).unwrap_err().to_string();
        assert!(error.contains("max_window_layers") && error.contains("expected an integer"), "{error}");
    }
    let types = |sliding: &[usize]| {
        (0..12).map(|l| if sliding.contains(&l) { "sliding_attention" } else { "full_attention" }).collect::<Vec<_>>()
    };
    for family in ["olmo3", "gemma3_text"] {
        let found = windows(family, json!({"layer_types": types(&[0, 5]), "sliding_window": 9}));
        assert_eq!(found, only(&[0, 5], 9));
        let none = bare(family, json!({"layer_types": types(&[])})).unwrap();
        assert_eq!((none.windows, none.local_rope), (only(&[], 9), None));
    }
    let pattern = windows("gemma3_text", json!({"sliding_window_pattern": 3}));
    assert_eq!(pattern, only(&[0, 1, 3, 4, 6, 7, 9, 10], 4096));
    let local = |more: Value| bare("gemma3_text", more).unwrap().local_rope.unwrap().theta;
    assert_eq!((local(json!({"rope_local_base_freq": 77})), local(json!({"rope_theta": 5}))), (77.0, 10_000.0));
    let error = bare("mistral", json!({"layer_types": types(&[3])})).unwrap_err().to_string();
    assert!(error.contains("not supported for mistral, whose layers must all have the same attention"), "{error}");
    let all: Vec<usize> = (0..12).collect();
    assert_eq!(windows("mistral", json!({"layer_types": types(&all), "sliding_window": 9})), vec![Some(9); 12]);
    assert!(bare("mistral", json!({"layer_types": types(&all), "sliding_window": null})).is_err());
    assert_eq!(windows("mistral", json!({"layer_types": types(&[]), "sliding_window": null})), only(&[], 9));
    assert_eq!(windows("llama", json!({"layer_types": types(&[])})), only(&[], 9));
    let error = bare("llama", json!({"layer_types": types(&[11])})).unwrap_err().to_string();
    assert!(error.contains("not supported for llama; supported: full_attention"), "{error}");
    assert!(
        bare("olmo2", json!({"layer_types": types(&[])})).unwrap_err().to_string().contains("not supported for olmo2")
    );
    // In SmolLM 3 the window applies to the layers without rope.
    let smollm = |more: Value| bare("smollm3", more).unwrap();
    assert_eq!(smollm(json!({"use_sliding_window": true, "sliding_window": 9})).windows, only(&[3, 7, 11], 9));
    assert_eq!(smollm(json!({"sliding_window": 9})).windows, only(&[], 9));
    assert_eq!(smollm(json!({"use_sliding_window": true})).windows, only(&[], 9));
    let both = json!({"use_sliding_window": true, "sliding_window": 9, "layer_types": types(&[1])});
    assert_eq!(smollm(both).windows, only(&[1], 9));
    let off = |more: Value| {
        let ropes = smollm(more).layer_ropes;
        (0..12).filter(|&l| ropes[l] == LayerRope::Off).collect::<Vec<_>>()
    };
    assert_eq!(off(json!({"no_rope_layer_interval": 5})), [4, 9]);
    assert_eq!(
        off(json!({"no_rope_layers": [1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0]})),
        [1, 11],
        "entries beyond num_hidden_layers are ignored"
    );
    for bad in [json!(vec![1; 11]), json!(4), json!({})] {
        let error = bare("smollm3", json!({"no_rope_layers": bad})).unwrap_err().to_string();
        assert!(error.contains("expected a list of 12, one for each layer"), "{error}");
    }
    let (still, factor) = smollm(json!({})).inv_freq(LayerRope::Off);
    assert_eq!((still, factor), (vec![0.0; 8], 1.0));
}

#[test]
fn each_family_reads_its_own_bias_settings() {
    let biases = |family: &str, more: Value| {
        let c = bare(family, more).unwrap();
        (c.attention_bias, c.attention_output_bias, c.mlp_bias)
    };
    for family in ["llama", "smollm3"] {
        assert_eq!(biases(family, json!({"attention_bias": true})), (true, true, false));
        assert_eq!(biases(family, json!({"mlp_bias": true})), (false, false, true));
    }
    for family in ["qwen3", "olmo2", "olmo3", "gemma3_text"] {
        assert_eq!(biases(family, json!({"attention_bias": true})), (true, true, false));
        assert_eq!(biases(family, json!({"attention_bias": false})), (false, false, false));
    }
    assert_eq!(biases("qwen2", json!({"attention_bias": true, "mlp_bias": false})), (true, false, false));
    for (family, key, value, other) in [
        ("mistral", "attention_bias", true, false),
        ("mistral", "mlp_bias", true, false),
        ("qwen2", "attention_bias", false, true),
        ("qwen2", "mlp_bias", true, false),
        ("qwen3", "mlp_bias", true, false),
        ("gemma3_text", "use_bidirectional_attention", true, false),
    ] {
        let error = bare(family, json!({key: value})).unwrap_err().to_string();
        assert_eq!(error, format!("config.json: `{key}` = {value}: not supported for {family}; supported: {other}"));
        bare(family, json!({key: other})).unwrap();
    }
}
