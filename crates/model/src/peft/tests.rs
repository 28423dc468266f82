//! Reading and writing `adapter_config.json`, and the models that an adapter fits.

use super::*;
use crate::{ModelConfig, ModelView, Trainable};
use kernels::Device;
use std::sync::Arc;

fn good() -> Value {
    json!({"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "org/base", "r": 4,
        "lora_alpha": 6.5, "lora_dropout": 0.25, "use_rslora": true, "target_modules": ["v_proj", "q_proj"],
        "bias": "none", "fan_in_fan_out": false, "modules_to_save": null, "rank_pattern": {},
        "layers_to_transform": []})
}

fn with(fields: Value) -> Value {
    let mut config = good();
    for (key, value) in fields.as_object().unwrap() {
        match value {
            Value::String(text) if text == "(absent)" => drop(config.as_object_mut().unwrap().shift_remove(key)),
            value => config[key] = value.clone(),
        }
    }
    config
}

fn read(config: &Value) -> std::result::Result<AdapterConfig, String> {
    parse(config.as_object().unwrap())
}

#[test]
fn adapter_settings_are_read_from_adapter_config() {
    let names = |names: &[&str]| TargetModules::Names(names.iter().map(|&name| name.to_owned()).collect());
    let lora =
        LoraConfig { r: 4, alpha: 6.5, use_rslora: true, dropout: 0.25, target_modules: names(&["q_proj", "v_proj"]) };
    let expected = AdapterConfig { lora, base: Some("org/base".into()), scores: false };
    assert_eq!(read(&good()), Ok(expected.clone()), "names must be sorted");
    // Fields about the adapter, and fields that enable nothing, are ignored.
    for (key, value) in [
        ("auto_mapping", json!({"x": 1})),
        ("ensure_weight_tying", json!(true)),
        ("inference_mode", json!(true)),
        ("init_lora_weights", json!("gaussian")),
        ("megatron_core", json!("megatron.core")),
        ("peft_version", json!("0.17")),
        ("qalora_group_size", json!(16)),
        ("revision", json!("main")),
        ("runtime_config", json!({"ephemeral": false})),
        ("surprise", json!(null)),
        ("use_dora", json!(false)),
        ("alpha_pattern", json!({})),
        ("layers_pattern", json!([])),
    ] {
        assert_eq!(read(&with(json!({key: value}))), Ok(expected.clone()), "{key}");
    }
    let lora = |fields: Value| read(&with(fields)).unwrap().lora;
    assert_eq!(lora(json!({"target_modules": "all-linear"})).target_modules, TargetModules::AllLinear);
    assert_eq!(lora(json!({"target_modules": ".*q_proj"})).target_modules, TargetModules::Regex(".*q_proj".into()));
    assert_eq!(
        (lora(json!({"lora_dropout": null})).dropout, lora(json!({"lora_dropout": "(absent)"})).dropout),
        (0.0, 0.0)
    );
    assert!(!lora(json!({"use_rslora": "(absent)"})).use_rslora && !lora(json!({"use_rslora": false})).use_rslora);
    let base = |fields: Value| read(&with(fields)).unwrap().base;
    assert_eq!(
        [json!(""), json!(null), json!("(absent)")].map(|b| base(json!({"base_model_name_or_path": b}))),
        [None, None, None]
    );
    let scores = |fields: Value| read(&with(fields)).unwrap().scores;
    assert!(
        scores(json!({"task_type": "SEQ_CLS"})) && !scores(json!({"task_type": "(absent)", "modules_to_save": []}))
    );
    assert!(
        scores(json!({"modules_to_save": ["score"]})) && scores(json!({"modules_to_save": ["classifier", "score"]}))
    );
}

#[test]
fn adapters_other_than_plain_lora_are_refused() {
    let plain = "is not supported; plain LoRA adapters leave it unset";
    for (fields, why) in [
        (json!({"peft_type": "IA3"}), "`peft_type` is \"IA3\"; only LORA is supported".to_owned()),
        (json!({"peft_type": "(absent)"}), "`peft_type` is null; only LORA is supported".into()),
        (json!({"use_dora": true}), format!("`use_dora` = true {plain}")),
        (json!({"bias": "all"}), format!("`bias` = \"all\" {plain}")),
        (json!({"other": "none"}), format!("`other` = \"none\" {plain}")),
        (json!({"rank_pattern": {"q_proj": 8}}), format!("`rank_pattern` = {{\"q_proj\":8}} {plain}")),
        (json!({"layers_to_transform": [1]}), format!("`layers_to_transform` = [1] {plain}")),
        (json!({"surprise": 0}), format!("`surprise` = 0 {plain}")),
        (json!({"r": "(absent)"}), "`r` is missing".into()),
        (json!({"r": 0}), "`r` = 0: expected a positive integer".into()),
        (json!({"r": 1.5}), "`r` = 1.5: expected a positive integer".into()),
        (json!({"lora_alpha": "(absent)"}), "`lora_alpha` is missing".into()),
        (json!({"lora_alpha": "x"}), "`lora_alpha` = \"x\": expected a number".into()),
        (json!({"lora_dropout": "x"}), "`lora_dropout` = \"x\": expected a number".into()),
        (json!({"target_modules": "(absent)"}), "`target_modules` is missing".into()),
        (json!({"target_modules": ["a", 1]}), "`target_modules` = [\"a\",1]: expected a list of names".into()),
        (
            json!({"target_modules": 1}),
            "`target_modules` = 1: expected a list of names, or a regular expression".into(),
        ),
        (json!({"modules_to_save": "score"}), "`modules_to_save` = \"score\": expected a list of names".into()),
        (
            json!({"modules_to_save": ["score", "lm_head"]}),
            "`modules_to_save` has \"lm_head\"; with an adapter only the score head of a reward model can be trained"
                .into(),
        ),
    ] {
        assert_eq!(read(&with(fields.clone())), Err(why), "{fields}");
    }
    for way in ["pissa", "PiSSA_niter_16", "olora", "corda", "loftq", "lora_ga", "eva", "orthogonal"] {
        let read = read(&with(json!({"init_lora_weights": way})));
        match way {
            "eva" | "orthogonal" => assert!(read.is_ok(), "{way}"),
            _ => {
                let why = format!(
                    "`init_lora_weights` = \"{way}\" changes the base model's weights: convert the adapter to a plain \
                     one with PEFT"
                );
                assert_eq!(read, Err(why));
            }
        }
    }
}

fn base() -> Weights {
    let json = r#"{"model_type": "llama", "hidden_size": 4, "intermediate_size": 6, "num_hidden_layers": 1,
        "num_attention_heads": 2, "vocab_size": 5}"#;
    Weights::random(&Memory::new(Device::Cpu), &Arc::new(ModelConfig::parse(json).unwrap()), 1).unwrap()
}

#[test]
fn a_directory_with_an_adapter_config_is_an_adapter() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    assert!(!is_adapter(path));
    let missing = load_adapter_config(path).unwrap_err().to_string();
    assert!(missing.ends_with("no such file; expected the directory of a PEFT adapter"), "{missing}");
    for (text, why) in [("{", "config.json: not JSON: "), ("[]", "config.json: expected a JSON object")] {
        std::fs::write(path.join(ADAPTER_CONFIG), text).unwrap();
        let error = load_adapter_config(path).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    assert!(is_adapter(path));
    std::fs::write(path.join(ADAPTER_CONFIG), format!("\u{feff}{}", good())).unwrap();
    assert_eq!(load_adapter_config(path).unwrap().lora.r, 4);
    std::fs::write(path.join("config.json"), "{}").unwrap();
    assert!(!is_adapter(path), "a full model is not an adapter");
}

#[test]
fn a_saved_adapter_has_pefts_format_and_loads() {
    let (memory, base) = (Memory::new(Device::Cpu), base());
    let scorer = Weights::scorer(&memory, &base);
    for (weights, task, saved) in [(&base, "CAUSAL_LM", json!(null)), (&scorer, "SEQ_CLS", json!(["score"]))] {
        let dir = tempfile::tempdir().unwrap();
        let lora = LoraConfig { r: 2, alpha: 3.0, dropout: 0.5, ..LoraConfig::default() };
        let adapter = Adapter::new(&memory, weights, &lora, 7).unwrap();
        save_adapter(dir.path(), &adapter, BaseModel { name: "org/base", sha256: Some("abc") }).unwrap();
        let file: Value =
            serde_json::from_str(&std::fs::read_to_string(dir.path().join(ADAPTER_CONFIG)).unwrap()).unwrap();
        let expected = json!({"peft_type": "LORA", "task_type": task, "base_model_name_or_path": "org/base",
            "inference_mode": true, "r": 2, "lora_alpha": 3.0, "lora_dropout": 0.5, "use_rslora": false,
            "target_modules": ["q_proj", "v_proj"], "bias": "none", "fan_in_fan_out": false, "init_lora_weights": true,
            "modules_to_save": saved, "rank_pattern": {}, "alpha_pattern": {}});
        assert_eq!(file, expected);
        assert_eq!(base_sha256(dir.path()).unwrap().as_deref(), Some("abc"));
        let loaded = load_adapter(&memory, dir.path(), weights).unwrap();
        let tensors = |adapter: &Adapter| adapter.params.tensors().iter().map(|t| t.to_vec_f32()).collect::<Vec<_>>();
        assert_eq!((tensors(&loaded), &loaded.lora), (tensors(&adapter), &lora));
        let other = if task == "SEQ_CLS" { &base } else { &scorer };
        let error = load_adapter(&memory, dir.path(), other).unwrap_err().to_string();
        let why = match task {
            "SEQ_CLS" => "belongs to a reward model (SEQ_CLS), but the model is a language model",
            _ => "belongs to a language model: it has no score head, which a reward model needs",
        };
        assert!(error.ends_with(&format!("adapter_config.json: {why}")), "{error}");
        // On `Device::Meta` no weights are read, so the file may be missing.
        std::fs::remove_file(dir.path().join("adapter_model.safetensors")).unwrap();
        assert!(load_adapter(&Memory::new(Device::Meta), dir.path(), weights).is_ok());
        let error = load_adapter(&memory, dir.path(), weights).unwrap_err().to_string();
        assert!(
            error.ends_with("no adapter_model.safetensors found (other adapter formats are not supported)"),
            "{error}"
        );
        // An error in the settings uses PEFT's name of the key.
        let mut unknown = expected.clone();
        unknown["target_modules"] = json!(["x_proj"]);
        std::fs::write(dir.path().join(ADAPTER_CONFIG), unknown.to_string()).unwrap();
        let error = load_adapter(&memory, dir.path(), weights).unwrap_err().to_string();
        assert!(
            error.contains("adapter_config.json: `target_modules`: the model has no linear layer named `x_proj`"),
            "{error}"
        );
    }
    let dir = tempfile::tempdir().unwrap();
    for (modules, written) in [
        (TargetModules::AllLinear, json!(crate::weights::LINEAR_MODULES)),
        (TargetModules::Regex(".*q_proj".into()), json!(["q_proj"])),
    ] {
        let lora = LoraConfig { r: 1, target_modules: modules, ..LoraConfig::default() };
        save_adapter(dir.path(), &Adapter::zeros(&memory, &base, &lora).unwrap(), "b").unwrap();
        let text = std::fs::read_to_string(dir.path().join(ADAPTER_CONFIG)).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["target_modules"], written);
        assert_eq!(base_sha256(dir.path()).unwrap(), None);
    }
}

#[test]
fn a_model_in_training_can_be_saved_and_restored() {
    let memory = Memory::new(Device::Cpu);
    for adapted in [false, true] {
        let weights = base();
        let lora = LoraConfig { r: 1, ..LoraConfig::default() };
        let adapter = adapted.then(|| Adapter::new(&memory, &weights, &lora, 1).unwrap());
        let mut model = AdaptedWeights::new(&memory, weights, adapter);
        let numbers = |view: ModelView<'_>| -> Vec<f32> {
            let params = view.adapter().map_or(&view.weights.params, |adapter| &adapter.params);
            let names = params.specs().iter().flat_map(|spec| &spec.parts);
            names.filter_map(|part| params.read(&part.name)).flatten().collect()
        };
        let before = numbers(model.view());
        let (dir, source) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for name in ["tokenizer.json", "generation_config.json"] {
            std::fs::write(source.path().join(name), "{\"x\": 1}").unwrap();
        }
        let copied = ModelFiles::read(source.path()).unwrap();
        model.hold().save(dir.path(), BaseModel::from("org/base"), &copied).unwrap();
        let has = |name: &str| dir.path().join(name).exists();
        assert_eq!((has(ADAPTER_CONFIG), has("config.json"), has("model.safetensors")), (adapted, !adapted, !adapted));
        assert!(has("tokenizer.json"));
        assert_eq!(has("generation_config.json"), !adapted, "an adapter directory has no generation_config.json");
        model
            .update(|params| {
                for tensor in params.tensors_mut() {
                    tensor.overwrite().1.fill(9.0);
                }
                Ok::<_, kernels::Error>(())
            })
            .unwrap();
        assert_ne!(numbers(model.view()), before);
        model.restore(dir.path()).unwrap();
        assert_eq!(numbers(model.view()), before);
        assert_eq!(model.version().0, 1, "only the values are restored, not the version");
    }
}
