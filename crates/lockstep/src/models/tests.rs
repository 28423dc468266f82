//! Model directories: errors, and the hashes of a model's weights.

use super::*;
use crate::config::ComputeDType;
use crate::data::prompt_dataset::{PromptDataset, context, encoder};
use crate::data::{DatasetSpec, Rows};
use crate::error::is_bad_input;
use crate::stop::{StopSignal, is_stopped};
use kernels::Context;
use model::chat::PromptTime;
use model::io::SaveOptions;
use model::peft::BaseModel;
use model::tokenizer::{SpecialTokens, Tokenizer};
use model::{Adapter, Head, LoraConfig, ModelAssets, ModelConfig, Weights};
use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use telemetry::record::{FileHash, sha256};

const SHAPE: &str = r#"{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 40,
"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
"head_dim": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
"tie_word_embeddings": true, "attention_bias": false, "bos_token_id": null, "eos_token_id": 0}"#;

fn one_thread() -> Context {
    crate::context(None, Some(1), ComputeDType::F32).unwrap()
}

fn shape(vocab: usize) -> ModelConfig {
    ModelConfig::parse(&SHAPE.replace("\"vocab_size\": 40", &format!("\"vocab_size\": {vocab}"))).unwrap()
}

/// Saves a model of this shape with a tokenizer of these characters.
fn save(dir: &Path, config: &ModelConfig, letters: &str) -> Weights {
    let config = Arc::new(config.clone());
    let weights = Weights::random(one_thread().memory(), &config, 1).unwrap();
    let special = SpecialTokens { eos: Some("<e>".into()), ..SpecialTokens::default() };
    Tokenizer::characters(letters.chars(), &special).unwrap().save(dir).unwrap();
    model::io::save_model(dir, &config, &weights, None, SaveOptions::default()).unwrap();
    weights
}

/// Saves an adapter on these weights, with this base in its configuration.
fn save_adapter(dir: &Path, weights: &Weights, base: &str, sha256: Option<&str>) {
    let lora = LoraConfig { r: 2, ..LoraConfig::default() };
    let adapter = Adapter::new(one_thread().memory(), weights, &lora, 1).unwrap();
    model::peft::save_adapter(dir, &adapter, BaseModel { name: base, sha256 }).unwrap();
}

#[track_caller]
fn message<T>(result: anyhow::Result<T>) -> String {
    let error = result.err().expect("it was accepted");
    assert!(is_bad_input(&error), "{error:#}");
    error.to_string()
}

#[test]
fn the_hash_of_a_model_covers_all_weight_files() {
    let file = |name: &str, hash: &str| FileHash { name: name.into(), bytes: None, sha256: hash.into() };
    let config = file("config.json", "c");
    assert_eq!(weights_hash(&[config.clone(), file("model.safetensors", "a")]), "a");
    let two = [file("1.safetensors", "a"), config, file("2.safetensors", "b")];
    assert_eq!((weights_hash(&two), weights_hash(&[])), (sha256(b"a\nb\n"), sha256(b"")));
}

#[test]
fn hashes_cover_the_files_that_define_a_model() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["tokenizer.json", "config.json", "b.safetensors", "a.safetensors", "notes.txt", "adapter_config.json"]
    {
        fs::write(dir.path().join(name), name).unwrap();
    }
    fs::write(dir.path().join("model.safetensors.index.json"), "{}").unwrap();
    fs::create_dir(dir.path().join("c.safetensors")).unwrap();
    let names = |which: fn(&str) -> bool| {
        let files = hashes(dir.path(), &StopSignal::new(), which).unwrap();
        files.into_iter().map(|file| file.name).collect::<Vec<_>>()
    };
    let all = [
        "a.safetensors",
        "adapter_config.json",
        "b.safetensors",
        "config.json",
        "model.safetensors.index.json",
        "tokenizer.json",
    ];
    assert_eq!(names(|_| true), all);
    assert_eq!(names(|name| name.starts_with("a")), all[..2]);
    let files = hashes(dir.path(), &StopSignal::new(), |name| name == "config.json").unwrap();
    assert_eq!((files[0].sha256.clone(), files[0].bytes), (sha256(b"config.json"), Some(11)));
    let stop = StopSignal::new();
    stop.request();
    assert!(is_stopped(&hashes(dir.path(), &stop, |_| true).unwrap_err()));
    assert!(message(hashes(&dir.path().join("none"), &stop, |_| true)).contains("none: "));
}

#[test]
fn an_adapter_is_refused_on_other_base_weights() {
    let dir = tempfile::tempdir().unwrap();
    let [base, adapter] = ["base", "adapter"].map(|name| dir.path().join(name));
    let weights = save(&base, &shape(40), "abc");
    let own = sha256(&fs::read(base.join("model.safetensors")).unwrap());
    let check = || {
        let warned = RefCell::new(Vec::new());
        let checked = check_base(&adapter, &base, &StopSignal::new(), |what| warned.borrow_mut().push(what.to_owned()));
        (checked.map_err(|error| error.to_string()), warned.into_inner())
    };
    save_adapter(&adapter, &weights, "the base", Some(&own));
    assert_eq!(check(), (Ok(()), vec![]));
    save_adapter(&adapter, &weights, "the base", None);
    let (a, b) = (adapter.display(), base.display());
    let unknown = format!(
        "the adapter {a} does not record the weights that it was trained on (no base_model_sha256), so they are not \
         compared with those of {b}"
    );
    assert_eq!(check(), (Ok(()), vec![unknown]));
    save_adapter(&adapter, &weights, "the base", Some("00"));
    let other = format!(
        "the adapter {a} was trained on the base, whose weights have the SHA-256 00, but those of {b} have {own}: use \
         the model that it was trained on, or allow this one with --other-base (allow_other_base = true)"
    );
    assert_eq!(check(), (Err(other.clone()), vec![]));
    let load = |adapter: Option<&Path>| Policy::load_with(&one_thread(), &base, adapter, ComputeDType::F32, |_| {});
    assert_eq!(message(load(Some(&adapter))), other);
    assert!(load(None).unwrap().weights.adapter.is_none());
    let forced = Policy::load_with_other(&one_thread(), &base, Some(&adapter), ComputeDType::F32).unwrap();
    assert!(forced.weights.adapter.is_some());
    let below = Policy::load_below(&one_thread(), &base, &adapter, ComputeDType::F32).unwrap();
    assert!(below.weights.adapter.is_some() && below.config().head == Head::Lm);
}

#[test]
fn models_and_adapters_are_distinguished() {
    let dir = tempfile::tempdir().unwrap();
    let [base, adapter] = ["base", "adapter"].map(|name| dir.path().join(name));
    let weights = save(&base, &shape(40), "abc");
    let (b, a) = (base.display().to_string(), adapter.display().to_string());
    save_adapter(&adapter, &weights, &b, None);
    let both = ModelSource { dir: base.clone(), adapter: Some(adapter.clone()) };
    assert_eq!(ModelSource::named(&a, Head::Lm).unwrap(), both);
    assert_eq!(ModelSource::named(&b, Head::Lm).unwrap(), ModelSource { dir: base.clone(), adapter: None });
    assert_eq!(locate_model(&a).unwrap(), (base.clone(), Some(adapter.clone())));
    let named = |name: &str| Config { model_name_or_path: Some(name.to_owned()), ..Config::default() };
    assert_eq!(ModelSource::of(&named(&a), Head::Lm).unwrap(), both);
    assert_eq!(
        message(ModelSource::named(&a, Head::Score(1))),
        format!(
            "{a} is an adapter of a language model, but a reward model must start from a reward model's adapter or \
             from a full model: merge it into its base model (`lockstep merge`)"
        )
    );
    let json = fs::read_to_string(adapter.join("adapter_config.json")).unwrap();
    let write = |json: String| fs::write(adapter.join("adapter_config.json"), json).unwrap();
    write(json.replace("CAUSAL_LM", "SEQ_CLS"));
    assert_eq!(
        message(ModelSource::named(&a, Head::Lm)),
        format!(
            "{a} is an adapter of a reward model (SEQ_CLS), but a language model is needed here: merge it into its \
             base model (`lockstep merge`)"
        )
    );
    write(json.replace(&format!("\"{b}\""), "null"));
    assert_eq!(
        message(ModelSource::named(&a, Head::Lm)),
        format!(
            "{a}/adapter_config.json: `base_model_name_or_path` is missing: set it to the model that the adapter was \
             trained on"
        )
    );
    write(json.replace(&b, "/no/such/model"));
    let gone = message(ModelSource::named(&a, Head::Lm));
    assert!(gone.starts_with(&format!("{a}/adapter_config.json: `base_model_name_or_path`: ")), "{gone}");
    assert!(gone.ends_with("; set it to the model that the adapter was trained on"), "{gone}");
    let refused = format!(
        "{a} is an adapter: use the model that it was trained on, and --adapter for the adapter (in generate, score \
         and eval), or merge the two with `lockstep merge`"
    );
    assert_eq!(message(load_assets(&adapter, Head::Lm, ComputeDType::F32, PromptTime(0))), refused);
    assert_eq!(message(load_config(&adapter, kernels::DType::F32)), refused);
    assert_eq!(
        message(load_assets(Path::new("no/such"), Head::Lm, ComputeDType::F32, PromptTime(0))),
        "model no/such must be a directory with config.json, model.safetensors and tokenizer.json"
    );
    let missing = message(load_config(dir.path(), kernels::DType::F32));
    assert!(missing.contains("config.json"), "{missing}");
    assert_eq!(load_config(&base, kernels::DType::Bf16).unwrap().compute, kernels::DType::Bf16);
    write(json);
    // The reference model is a Hub id, a model directory or an adapter; if not set, `ref_adapter` decides.
    let source =
        |dir: &Path, adapter: Option<&Path>| ModelSource { dir: dir.to_owned(), adapter: adapter.map(Path::to_owned) };
    let run_source = source(&base, Some(&adapter));
    let reference = |ref_model: Option<&str>, ref_adapter| {
        let config = Config { ref_model: ref_model.map(Into::into), ref_adapter, ..Config::default() };
        reference_source(&config, &run_source)
    };
    let missing = message(reference(Some("/no/such"), RefAdapter::None));
    assert!(missing.starts_with("`ref_model`: "), "{missing}");
    for ref_adapter in [RefAdapter::None, RefAdapter::Initial] {
        assert_eq!(reference(Some(&a), ref_adapter).unwrap(), source(&base, Some(&adapter)));
        assert_eq!(reference(Some(&b), ref_adapter).unwrap(), source(&base, None));
    }
    assert_eq!(reference(None, RefAdapter::None).unwrap(), source(&base, None));
    assert_eq!(reference(None, RefAdapter::Initial).unwrap(), run_source);
    let new = Config { ref_adapter: RefAdapter::Initial, ..Config::default() };
    assert_eq!(reference_source(&new, &source(&base, None)).unwrap(), source(&base, None), "a new adapter");
    // A reference model with files of its own is hashed besides the base model.
    let named = |name: &str, ref_model: Option<&str>, ref_adapter| {
        let ref_model = ref_model.map(Into::into);
        let config = Config { model_name_or_path: Some(name.into()), ref_model, ref_adapter, ..Config::default() };
        separate_reference(&config).map(str::to_owned)
    };
    assert_eq!(named(&a, None, RefAdapter::Initial), Some(a.clone()));
    assert_eq!(named(&a, None, RefAdapter::None), None);
    assert_eq!(named(&b, None, RefAdapter::Initial), None);
    assert_eq!(named(&a, Some(&b), RefAdapter::Initial), Some(b.clone()));
}

#[test]
fn a_value_model_must_have_one_score_and_the_policys_vocabulary() {
    let dir = tempfile::tempdir().unwrap();
    let policy = ModelConfig { compute: kernels::DType::Bf16, ..shape(40) };
    let of = |config: &ModelConfig| {
        let json = serde_json::Value::Object(config.raw.clone());
        fs::write(dir.path().join("config.json"), json.to_string()).unwrap();
        value_model_shape(dir.path(), &policy)
    };
    let value = of(&shape(40).with_score_head(1)).unwrap();
    assert_eq!((value.head, value.compute), (Head::Score(1), kernels::DType::Bf16));
    let place = dir.path().display();
    let fix = "a value model has one score (…ForSequenceClassification with num_labels = 1): train one, or set \
               value_model = \"policy\"";
    assert_eq!(message(of(&shape(40).with_score_head(3))), format!("`value_model`: {place} has 3 scores; {fix}"));
    assert_eq!(message(of(&shape(40))), format!("`value_model`: {place} is a language model; {fix}"));
    for vocab in [39, 41] {
        let words = format!(
            "`value_model`: {place} has a vocabulary of {vocab} tokens, but the policy has 40: they must be equal"
        );
        assert_eq!(message(of(&shape(vocab).with_score_head(1))), words);
    }
}

#[test]
fn a_teacher_must_have_the_policys_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let policy = dir.path().join("policy");
    save(&policy, &shape(40), "abc");
    let assets: ModelAssets = load_assets(&policy, Head::Lm, ComputeDType::F32, PromptTime(0)).unwrap();
    let of = |name: &str, vocab: usize, letters: &str| {
        let place = dir.path().join(name);
        save(&place, &shape(vocab), letters);
        teacher(&Config::default(), "the_key", &place.display().to_string(), &assets)
    };
    // A teacher may have more tokens and a larger embedding.
    let (place, config) = of("larger", 50, "abcd").unwrap();
    assert_eq!((place, config.vocab_size), (dir.path().join("larger"), 50));
    assert_eq!(of("same", 40, "abc").unwrap().1.vocab_size, 40);
    let smaller = format!(
        "`the_key`: the embedding of {} has 39 rows, but must have at least the policy's 40",
        dir.path().join("smaller").display()
    );
    assert_eq!(message(of("smaller", 39, "abc")), smaller);
    let other = message(of("other", 40, "abd"));
    let start = format!("`the_key`: {} does not have the policy's vocabulary: id ", dir.path().join("other").display());
    let end = "A teacher scores the policy's tokens, so their ids must be the same: use a model of the policy's family";
    assert!(other.starts_with(&start) && other.ends_with(end), "{other}");
    assert!(message(teacher(&Config::default(), "the_key", "/no/such", &assets)).starts_with("`the_key`: "));
}

#[test]
fn a_nan_weight_is_reported_by_name() {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), &shape(40), "abc");
    let path = dir.path().join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    // Writes NaN over the last number of the file (these bits are NaN in f32 and bf16), and renames the checksum so
    // that it is ignored.
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&0x7fc0_7fc0u32.to_le_bytes());
    let name = bytes.windows(4).position(|name| name == b"xxh3").unwrap();
    bytes[name] = b'n';
    fs::write(&path, bytes).unwrap();
    let _ = fs::remove_file(dir.path().join(model::io::FILE_LIST));
    let policy = Policy::load(&one_thread(), dir.path(), ComputeDType::F32).unwrap();
    assert!(!policy.weights_are_finite());
    let why = policy.why_not_finite();
    let end = format!("` of {} has a value that is not finite: the model is damaged", dir.path().display());
    assert!(why.starts_with('`') && why.ends_with(&end), "{why}");
}

#[test]
fn a_policy_reports_its_kind_and_non_finite_weights() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("base");
    let weights = save(&base, &shape(40), "abc");
    let policy = Policy::load(&one_thread(), &base, ComputeDType::F32).unwrap();
    let ctx = one_thread();
    let described = policy.describe(&ctx);
    let words = format!("qwen3 · 0.00 M parameters · f32 on {} · 1 thread", ctx.describe());
    assert_eq!(described, words);
    assert!(policy.weights_are_finite());
    let place = base.display();
    let finite = format!(
        "the weights of {place} are finite, but activations overflow: the weights are too large for this dtype"
    );
    assert_eq!(policy.why_not_finite(), finite);
    assert_eq!(policy.eos_ids, [0]);
    // The saved model is read back with the same bits and its tokenizer.
    let copy = dir.path().join("copy");
    policy.save(&copy).unwrap();
    let read = |dir: &Path| fs::read(dir.join("model.safetensors")).unwrap();
    assert!(read(&copy) == read(&base) && copy.join("tokenizer.json").exists());
    let adapter = dir.path().join("adapter");
    save_adapter(&adapter, &weights, "b", None);
    let adapted = Policy::load_with_other(&ctx, &base, Some(&adapter), ComputeDType::Bf16).unwrap();
    let described = adapted.describe(&ctx);
    assert!(described.contains(" parameters · 0.00 M in an adapter of rank 2 · bf16 on "), "{described}");
}

#[test]
fn prompts_must_fit_the_models_context() {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), &shape(40), "abcdef");
    let assets = load_assets(dir.path(), Head::Lm, ComputeDType::F32, PromptTime(0)).unwrap();
    let longest = |max_model_len| context(&Config { max_model_len, ..Config::default() }, &assets);
    assert_eq!((longest(None), longest(Some(30)), longest(Some(99))), (64, 30, 64));
    let rows = ["ab", "abcdef", "abc"].map(|prompt| serde_json::json!({"prompt": prompt})).to_vec();
    let load = |config: &Config, room: usize| {
        let named = Config { dataset_name: Some("memory".into()), ..config.clone() };
        let spec = DatasetSpec { rows: Rows::try_from(rows.clone()).ok(), ..DatasetSpec::train(&named).unwrap() };
        PromptDataset::load(&spec, &named, &assets, room)
    };
    let all = load(&Config::default(), 58).unwrap();
    assert_eq!((all.all.len(), all.longest(), all.left_out, all.hash.len()), (3, 6, 0, 64));
    let some = load(&Config { max_prompt_length: Some(5), ..Config::default() }, 58).unwrap();
    assert_eq!((some.all.len(), some.longest(), some.left_out), (2, 3, 1));
    assert!(message(load(&Config::default(), 59)).starts_with("memory, row 2: the prompt's 6 tokens"));
    assert!(
        message(load(&Config { max_model_len: Some(9), ..Config::default() }, 4)).contains("the context of 9 tokens")
    );
    let none = PromptDataset { all: Vec::new(), hash: String::new(), left_out: 0, notices: Default::default() };
    assert_eq!(none.longest(), 0);
    let system = Config { system_prompt: Some("be brief".into()), ..Config::default() };
    assert_eq!(
        message(encoder(&system, &assets).map(|_| ())),
        "`system_prompt` = \"be brief\" cannot be used, since the model has no chat template (chat_template.jinja or \
         tokenizer_config.json): set system_prompt = \"none\", or use a model with a template"
    );
    assert!(encoder(&Config::default(), &assets).is_ok());
}
