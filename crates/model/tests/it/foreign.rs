//! Damaged files of a model directory. Loading returns an error or a value. It does not panic, and a damaged number
//! does not make it allocate a lot of memory.

use model::chat::PromptTime;
use model::io::{ModelFiles, TensorSink, TensorSpec, load_tensors};
use model::peft::load_adapter_config;
use model::{Chat, ChatTemplate, ModelConfig, SpecialTokens, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::fs;
use testing::foreign;

/// Reads files with two tensors, and counts their elements.
struct Sink(usize);

impl TensorSink for Sink {
    fn tensors(&self) -> Vec<TensorSpec> {
        vec![TensorSpec { name: "a".into(), shape: vec![2, 3] }, TensorSpec { name: "b".into(), shape: vec![4] }]
    }
    fn put(&mut self, _: &str, data: &[f32]) -> model::Result<()> {
        self.0 += data.len();
        Ok(())
    }
}

fn header() -> Value {
    json!({"__metadata__": {"format": "pt"}, "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]}})
}

fn safetensors(header: &Value) -> Vec<u8> {
    let text = header.to_string();
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &[7; 32]].concat()
}

fn read(bytes: &[u8]) -> model::Result<usize> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    fs::write(&path, bytes).unwrap();
    let mut sink = Sink(0);
    load_tensors(&path, &mut sink)?;
    Ok(sink.0)
}

fn config() -> Value {
    json!({"model_type": "llama", "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
        "hidden_act": "silu", "tie_word_embeddings": false, "bos_token_id": 1, "eos_token_id": [0, 2],
        "torch_dtype": "bfloat16"})
}

fn tokenizer() -> [(&'static str, Value); 2] {
    let special = SpecialTokens { eos: Some("<e>".into()), ..SpecialTokens::default() };
    let dir = tempfile::tempdir().unwrap();
    Tokenizer::characters("abcd ".chars(), &special).unwrap().save(dir.path()).unwrap();
    let value = |name| serde_json::from_slice(&fs::read(dir.path().join(name)).unwrap()).unwrap();
    ["tokenizer.json", "tokenizer_config.json"].map(|name| (name, value(name)))
}

/// A byte-pair `tokenizer.json` with a normalizer, pre-tokenizer, post-processor and decoder.
fn byte_pairs() -> Value {
    json!({"version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [{"id": 6, "content": "<e>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true}],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"},
            {"type": "Replace", "pattern": {"String": "x"}, "content": "a"}]},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "\\s+"}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]},
        "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<e>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}}], "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {"<e>": {"id": "<e>", "ids": [6], "tokens": ["<e>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": "a", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": {"a": 0, "b": 1, "c": 2, "\u{120}": 3, "ab": 4, "abc": 5}, "merges": [["a", "b"], ["ab", "c"]]}})
}

fn load_tokenizer(files: [(&str, Vec<u8>); 2]) {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in &files {
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    if let Ok(tokenizer) = Tokenizer::load(dir.path()) {
        let _ = tokenizer.encode("ab cd<e>").and_then(|ids| tokenizer.decode(&ids, true));
    }
    let files = ModelFiles::read(dir.path()).unwrap();
    let _ = ChatTemplate::of(&files, &SpecialTokens::default(), PromptTime(0));
}

fn adapter() -> Value {
    json!({"peft_type": "LORA", "base_model_name_or_path": "x", "r": 4, "lora_alpha": 8, "lora_dropout": 0.1,
        "bias": "none", "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM", "use_rslora": false,
        "modules_to_save": null, "rank_pattern": {}, "fan_in_fan_out": false})
}

fn load_adapter(bytes: &[u8]) {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("adapter_config.json"), bytes).unwrap();
    let _ = load_adapter_config(dir.path());
}

const TEMPLATE: &str = "{%- for m in messages %}{{ m['role'] | upper }}: {{ m.content.split('a')[0] }}\n\
     {% if loop.last and add_generation_prompt %}A:{{ x[1:] | default('z') }}{% endif %}{% endfor %}\
     {{ messages | tojson(indent=2) }}";

fn render(template: &str, messages: &[Value]) {
    if let Ok(template) = ChatTemplate::new(template, &SpecialTokens::default()) {
        let _ = template.render(&Chat { messages, add_generation_prompt: true, ..Chat::default() });
    }
}

#[test]
fn the_undamaged_files_load() {
    assert_eq!(read(&safetensors(&header())).unwrap(), 10);
    ModelConfig::parse(&config().to_string()).unwrap();
    let tokens = tempfile::tempdir().unwrap();
    fs::write(tokens.path().join("tokenizer.json"), byte_pairs().to_string()).unwrap();
    assert_eq!(Tokenizer::load(tokens.path()).unwrap().encode("abc ab").unwrap(), [6, 5, 3, 4]);
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("adapter_config.json"), adapter().to_string()).unwrap();
    load_adapter_config(dir.path()).unwrap();
    let chat = [json!({"role": "user", "content": "bab"})];
    let template = ChatTemplate::new(TEMPLATE, &SpecialTokens::default()).unwrap();
    template.render(&Chat { messages: &chat, add_generation_prompt: true, ..Chat::default() }).unwrap();
}

#[test]
fn expensive_templates_end_with_an_error() {
    let render = |source| {
        let template = ChatTemplate::new(source, &SpecialTokens::default());
        let text = template.and_then(|t| t.render(&Chat { messages: &[json!({})], ..Chat::default() }));
        text.unwrap_err().to_string()
    };
    assert!(render("{{ 'ab' * 4611686018427387904 }}").contains("constant"));
    assert!(render("{% set n = 4611686018427387904 %}{{ 'ab' * n }}").contains("templates must not build"));
    assert!(
        render("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}").contains("fuel")
    );
}

proptest! {
    #![proptest_config(foreign::few())]

    #[test]
    fn a_damaged_safetensors_file_does_not_panic(bytes in foreign::bytes(safetensors(&header()))) {
        let _ = read(&bytes);
    }
    #[test]
    fn a_damaged_safetensors_header_does_not_panic(header in foreign::json(header())) {
        let _ = read(&safetensors(&header));
    }
    #[test]
    fn a_config_with_damaged_fields_does_not_panic(config in foreign::json(config())) {
        let _ = ModelConfig::parse(&config.to_string());
    }
    #[test]
    fn a_config_with_damaged_bytes_does_not_panic(bytes in foreign::bytes(config().to_string().into_bytes())) {
        let _ = ModelConfig::parse(&String::from_utf8_lossy(&bytes));
    }
    #[test]
    fn a_tokenizer_with_damaged_fields_does_not_panic(
        tokens in foreign::json(tokenizer()[0].1.clone()), config in foreign::json(tokenizer()[1].1.clone())
    ) {
        let (tokens, config) = (tokens.to_string(), config.to_string());
        load_tokenizer([("tokenizer.json", tokens.into()), ("tokenizer_config.json", config.into())]);
    }
    #[test]
    fn a_byte_pair_tokenizer_with_damaged_fields_does_not_panic(tokens in foreign::json(byte_pairs())) {
        load_tokenizer([("tokenizer.json", tokens.to_string().into()), ("tokenizer_config.json", b"{}".into())]);
    }
    #[test]
    fn a_tokenizer_with_damaged_bytes_does_not_panic(
        bytes in foreign::bytes(tokenizer()[0].1.to_string().into_bytes())
    ) {
        load_tokenizer([("tokenizer.json", bytes), ("tokenizer_config.json", tokenizer()[1].1.to_string().into())]);
    }
    #[test]
    fn an_adapter_config_with_damaged_fields_does_not_panic(config in foreign::json(adapter())) {
        load_adapter(config.to_string().as_bytes());
    }
    #[test]
    fn an_adapter_config_with_damaged_bytes_does_not_panic(
        bytes in foreign::bytes(adapter().to_string().into_bytes())
    ) {
        load_adapter(&bytes);
    }
    #[test]
    fn a_damaged_chat_template_does_not_panic(bytes in foreign::bytes(TEMPLATE.into())) {
        render(&String::from_utf8_lossy(&bytes), &[json!({"role": "user", "content": "bab"})]);
    }
    #[test]
    fn damaged_chat_messages_do_not_panic(
        messages in foreign::json(json!([{"role": "user", "content": "bab"}, {"role": "assistant", "content": "x"}]))
    ) {
        render(TEMPLATE, messages.as_array().map_or(&[], Vec::as_slice));
    }
}
