//! Tokenizers read from directories: named tokens, settings, and invalid files.

use super::*;
use serde_json::{Value, json};

struct Dir(tempfile::TempDir);

impl Dir {
    /// A directory with the tokenizer of [`letters`] and these settings.
    fn new(config: Value) -> Dir {
        let dir = tempfile::tempdir().unwrap();
        letters().save(dir.path()).unwrap();
        let dir = Dir(dir);
        dir.write("tokenizer_config.json", &config);
        dir
    }
    fn write(&self, name: &str, json: &Value) {
        std::fs::write(self.0.path().join(name), json.to_string()).unwrap();
    }
    /// Changes a field of `tokenizer.json`.
    fn change(&self, field: &str, value: Value) {
        let path = self.0.path().join("tokenizer.json");
        let mut file: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        file[field] = value;
        self.write("tokenizer.json", &file);
    }
    fn load(&self) -> Result<Tokenizer> {
        Tokenizer::load(self.0.path())
    }
    fn refused(&self) -> String {
        self.load().unwrap_err().to_string()
    }
}

#[test]
fn named_tokens_come_from_the_settings_or_the_class() {
    let token = |t: &str| Some(t.to_owned());
    let of = |bos: Option<&str>, eos: Option<&str>, pad: Option<&str>, unk: Option<&str>| SpecialTokens {
        bos: bos.and_then(token),
        eos: eos.and_then(token),
        pad: pad.and_then(token),
        unk: unk.and_then(token),
    };
    let end = Some("<|endoftext|>");
    let (qwen, llama) = (of(None, end, end, end), of(Some("<s>"), Some("</s>"), None, Some("<unk>")));
    for (class, expected) in [
        ("Qwen2Tokenizer", &qwen),
        ("Qwen2TokenizerFast", &qwen),
        ("LlamaTokenizer", &llama),
        ("LlamaTokenizerFast", &llama),
        ("PreTrainedTokenizerFast", &of(None, None, None, None)),
        ("FastLlamaTokenizer", &of(None, None, None, None)),
        ("MyQwen2Tokenizer", &of(None, None, None, None)),
    ] {
        let loaded = Dir::new(json!({"tokenizer_class": class})).load().unwrap();
        assert_eq!(loaded.special(), expected, "{class}");
        for (name, token) in expected.named() {
            assert!(loaded.token_id(token).is_some(), "{class}: {name}");
        }
    }
    // Null means no token. `tokenizer_config.json` takes precedence over `special_tokens_map.json`, and both take
    // precedence over the class.
    let dir = Dir::new(json!({"tokenizer_class": "LlamaTokenizer", "bos_token": null, "pad_token": {"content": "a"}}));
    dir.write("special_tokens_map.json", &json!({"bos_token": "<x>", "eos_token": "<e>", "pad_token": "b"}));
    let loaded = dir.load().unwrap();
    assert_eq!(loaded.special(), &of(None, Some("<e>"), Some("a"), Some("<unk>")));
    let named: Vec<_> = loaded.special().named().collect();
    assert_eq!(named, [("eos_token", "<e>"), ("pad_token", "a"), ("unk_token", "<unk>")]);
    // `a` was an ordinary token and is now special with the same id; other new tokens get ids after the vocabulary.
    assert_eq!((loaded.pad_id(), loaded.eos_id(), loaded.token_id("<unk>")), (Some(2), Some(10), Some(11)));
    assert_eq!(loaded.special_ids(), [0, 1, 2, 10, 11]);
    assert_eq!((loaded.bos_id(), loaded.vocab_size()), (None, 12));
}

#[test]
fn additional_special_tokens_are_read_from_both_keys() {
    for key in ["additional_special_tokens", "extra_special_tokens"] {
        let loaded = Dir::new(json!({key: ["<t>", {"content": "<u>"}, 7, {"text": "<v>"}, "<t>"]})).load().unwrap();
        assert_eq!((loaded.token_id("<t>"), loaded.token_id("<u>"), loaded.vocab_size()), (Some(10), Some(11), 12));
        assert_eq!(loaded.special_ids(), [0, 1, 10, 11]);
        assert_eq!(loaded.encode("a<t><u>").unwrap(), [2, 10, 11]);
    }
}

#[test]
fn start_and_end_tokens_are_added_according_to_the_settings() {
    let encoded = |bos: Value, eos: Value| {
        let config = json!({"bos_token": "<s>", "eos_token": "<eos>", "add_bos_token": bos, "add_eos_token": eos});
        Dir::new(config).load().unwrap().encode("a").unwrap()
    };
    let (on, off, absent) = (json!(true), json!(false), json!(null));
    for (bos, eos, ids) in [
        (&on, &on, &[10, 2, 1][..]),
        (&on, &off, &[10, 2]),
        (&on, &absent, &[10, 2]),
        (&off, &on, &[2, 1]),
        (&absent, &on, &[2, 1]),
        (&off, &off, &[2]),
        (&absent, &absent, &[2]),
    ] {
        assert_eq!(encoded(bos.clone(), eos.clone()), ids, "{bos} {eos}");
    }
    // Tokens that tokenizer.json itself adds are kept, unless the settings override them.
    let dir = Dir::new(json!({"bos_token": "<s>", "add_bos_token": true}));
    dir.load().unwrap().save(dir.0.path()).unwrap();
    for (settings, ids) in
        [(json!({}), &[10, 2][..]), (json!({"add_bos_token": false}), &[2]), (json!({"add_eos_token": true}), &[2, 1])]
    {
        let mut config = json!({"bos_token": "<s>", "eos_token": "<eos>"});
        config.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
        dir.write("tokenizer_config.json", &config);
        assert_eq!(dir.load().unwrap().encode("a").unwrap(), ids, "{settings}");
    }
    // Without a start token there is nothing to add.
    assert_eq!(Dir::new(json!({"add_bos_token": true})).load().unwrap().encode("a").unwrap(), [2]);
    // A token name that the tokenizers library would misread is an error.
    let error = Dir::new(json!({"bos_token": "<a:b>", "add_bos_token": true})).refused();
    assert!(error.starts_with("tokenizer: "), "{error}");
}

#[test]
fn encode_does_not_add_a_second_start_token() {
    let config = json!({"bos_token": "<s>", "eos_token": "<eos>", "add_bos_token": true, "add_eos_token": true});
    let loaded = Dir::new(config).load().unwrap();
    assert_eq!(loaded.encode("<s>a").unwrap(), [10, 2, 1]);
    assert_eq!(loaded.encode("<s><s>a").unwrap(), [10, 10, 2, 1]);
    assert_eq!(loaded.encode("a<s>").unwrap(), [10, 2, 10, 1]);
    assert_eq!(loaded.encode("").unwrap(), [10, 1]);
    assert_eq!(loaded.encode_rendered("<s>a").unwrap(), [10, 2]);
}

#[test]
fn the_error_names_an_invalid_tokenizer_file() {
    let dir = tempfile::tempdir().unwrap();
    let missing = Tokenizer::load(dir.path()).unwrap_err().to_string();
    let why = "no such file: copy it and tokenizer_config.json from the tokenizer's directory";
    assert!(missing.ends_with(&format!("tokenizer.json: {why}")), "{missing}");
    let dir = Dir::new(json!({}));
    std::fs::write(dir.0.path().join("tokenizer.json"), "{").unwrap();
    assert!(dir.refused().contains("tokenizer.json: not JSON: "), "{}", dir.refused());
    // A template that names a missing token makes the library panic.
    let dir = Dir::new(json!({}));
    let single = json!([{"SpecialToken": {"id": "<none>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]);
    dir.change(
        "post_processor",
        json!({"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": {}}),
    );
    assert!(dir.refused().contains("tokenizer.json: the tokenizers library cannot load it: "), "{}", dir.refused());
    for name in ["tokenizer_config.json", "special_tokens_map.json"] {
        let dir = Dir::new(json!({}));
        dir.write(name, &json!([]));
        assert!(dir.refused().contains(&format!("{name}: not a JSON object: ")), "{}", dir.refused());
        std::fs::remove_file(dir.0.path().join(name)).unwrap();
        assert!(dir.load().is_ok(), "without {name}");
        std::fs::create_dir(dir.0.path().join(name)).unwrap();
        assert!(dir.refused().contains(name), "an unreadable file is not a missing file");
    }
}

#[test]
fn byte_order_marks_and_batch_settings_are_accepted() {
    let dir = Dir::new(json!({"eos_token": "<eos>"}));
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        let path = dir.0.path().join(name);
        let text = std::fs::read(&path).unwrap();
        std::fs::write(&path, [b"\xef\xbb\xbf", &text[..]].concat()).unwrap();
    }
    assert_eq!(dir.load().unwrap().eos_id(), Some(1));
    let dir = Dir::new(json!({}));
    dir.change("truncation", json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}));
    assert_eq!(dir.load().unwrap().encode("abcab").unwrap(), [2, 3, 4, 2, 3]);
}

#[test]
fn end_token_ids_come_from_all_sources_without_repetition() {
    let dir = tempfile::tempdir().unwrap();
    let config = |eos: &str| {
        let json = format!(
            r#"{{"model_type":"llama","hidden_size":4,"intermediate_size":3,"num_hidden_layers":1,
            "num_attention_heads":2,"vocab_size":10,"eos_token_id":{eos}}}"#
        );
        ModelConfig::parse(&json).unwrap()
    };
    let eos = |config: &ModelConfig| {
        let files = ModelFiles::read(dir.path()).unwrap();
        letters().eos_ids(&files, config).map_err(|e| e.to_string())
    };
    let write = |id: &str| {
        std::fs::write(dir.path().join("generation_config.json"), format!(r#"{{"eos_token_id":{id}}}"#)).unwrap();
    };
    assert_eq!(eos(&config("[9, 1, 3]")), Ok(vec![1, 3, 9]), "ids must be ascending, without repetitions");
    write("null");
    assert_eq!(eos(&config("7")), Ok(vec![1, 7]));
    write("[]");
    assert_eq!(eos(&config("7")), Ok(vec![1]), "an empty list is a valid list of ids");
    write("[4294967295, 2]");
    assert_eq!(eos(&config("7")), Ok(vec![1, 2, u32::MAX]));
    for bad in ["-1", "1.5", "4294967296", "[1, -1]", "[1, \"x\"]", "{}", "true"] {
        write(bad);
        let error = eos(&config("7")).unwrap_err();
        let why = "generation_config.json: `eos_token_id` must be a token id or a list of token ids";
        assert!(error.ends_with(why), "{bad}: {error}");
    }
}
