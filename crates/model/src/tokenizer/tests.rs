mod files;
mod vocabulary;

use super::*;

fn special() -> SpecialTokens {
    SpecialTokens { pad: Some("<pad>".into()), eos: Some("<eos>".into()), ..SpecialTokens::default() }
}

/// The configuration of a model with an embedding of `vocab` rows.
fn config(vocab: usize) -> ModelConfig {
    let json = format!(
        r#"{{"model_type":"llama","hidden_size":4,"intermediate_size":3,"num_hidden_layers":1,
        "num_attention_heads":2,"vocab_size":{vocab}}}"#
    );
    ModelConfig::parse(&json).unwrap()
}

fn letters() -> Tokenizer {
    Tokenizer::characters("abc \néß\"".chars(), &special()).unwrap()
}

#[test]
fn characters_are_ids_in_order_after_the_special_tokens() {
    let t = letters();
    assert_eq!(t.encode("cab<eos>").unwrap(), [4, 2, 3, 1]);
    assert_eq!((t.vocab_size(), t.eos_id(), t.pad_id(), t.bos_id()), (10, Some(1), Some(0), None));
    let text = "a b\n\n\"é ß  c";
    let ids = t.encode(text).unwrap();
    assert_eq!(ids.len(), text.chars().count());
    assert_eq!(t.decode(&ids, true).unwrap(), text);
    assert_eq!(t.decode(&[2, 1, 0], true).unwrap(), "a");
    assert_eq!(t.decode(&[2, 1, 0], false).unwrap(), "a<eos><pad>");
}

#[test]
fn a_character_outside_the_vocabulary_is_an_error_that_names_it() {
    assert_eq!(letters().encode("ab€c").unwrap_err().to_string(), "tokenizer: the vocabulary has no character '€'");
    let unk = SpecialTokens { unk: Some("?".into()), ..special() };
    let t = Tokenizer::characters("ab".chars(), &unk).unwrap();
    assert_eq!(t.encode("a€").unwrap(), [3, 2]);
}

#[test]
fn what_is_saved_is_loaded() {
    let dir = tempfile::tempdir().unwrap();
    letters().save(dir.path()).unwrap();
    let t = Tokenizer::load(dir.path()).unwrap();
    assert_eq!(t.special(), &special());
    assert_eq!(t.encode("ab\n<eos>").unwrap(), letters().encode("ab\n<eos>").unwrap());
    assert_eq!(t.vocab_size(), 10);
    assert_eq!(t.decode(&[2, 3, 1], true).unwrap(), "ab");
}

#[test]
fn a_vocabulary_larger_than_the_embedding_is_an_error() {
    letters().check_fits(&config(10)).unwrap();
    let error = letters().check_fits(&config(9)).unwrap_err().to_string();
    assert!(error.contains("up to 9") && error.contains("9 rows") && error.contains(r#""\"""#), "{error}");
}

#[test]
fn end_tokens_of_all_places_are_honoured() {
    let dir = tempfile::tempdir().unwrap();
    let json = r#"{"model_type":"llama","hidden_size":4,"intermediate_size":3,"num_hidden_layers":1,
        "num_attention_heads":2,"vocab_size":10,"eos_token_id":7}"#;
    let config = ModelConfig::parse(json).unwrap();
    let eos = || letters().eos_ids(&ModelFiles::read(dir.path()).unwrap(), &config);
    assert_eq!(eos().unwrap(), [1, 7]);
    let write = |text: &str| std::fs::write(dir.path().join("generation_config.json"), text).unwrap();
    write(r#"{"eos_token_id":[9,8]}"#);
    assert_eq!(eos().unwrap(), [1, 8, 9]);
    write(r#"{"eos_token_id":3}"#);
    assert_eq!(eos().unwrap(), [1, 3]);
    write(r#"{"temperature":1}"#);
    assert_eq!(eos().unwrap(), [1, 7]);
    write(r#"{"eos_token_id":"x"}"#);
    assert!(eos().unwrap_err().to_string().contains("generation_config.json"));
    write("{");
    assert!(eos().unwrap_err().to_string().contains("not a JSON object"));
}

/// Padding is for batches. To 100,000,000 tokens it took gigabytes when the file was read; for as many as here there is
/// no memory.
#[test]
fn padding_of_a_file_costs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    letters().save(dir.path()).unwrap();
    let path = dir.path().join("tokenizer.json");
    let mut file: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    file["padding"] = serde_json::json!({"strategy": {"Fixed": 1u64 << 50}, "direction": "Right", "pad_id": 0,
        "pad_to_multiple_of": null, "pad_type_id": 0, "pad_token": "<pad>"});
    std::fs::write(&path, file.to_string()).unwrap();
    assert_eq!(Tokenizer::load(dir.path()).unwrap().encode("ab").unwrap(), [2, 3]);
}

#[test]
fn an_end_token_is_a_number_from_0_or_none() {
    let read = |id: &str| {
        ModelConfig::parse(&format!(
            r#"{{"model_type":"llama","hidden_size":4,"intermediate_size":3,"num_hidden_layers":1,
            "num_attention_heads":2,"vocab_size":10,"eos_token_id":{id}}}"#
        ))
    };
    assert!(read("-1").unwrap().eos_token_ids.is_empty());
    let error = read("-5").unwrap_err().to_string();
    assert!(error.contains("eos_token_id") && error.contains("-5"), "{error}");
}

#[test]
fn directories_without_a_readable_tokenizer_say_so() {
    let dir = tempfile::tempdir().unwrap();
    assert!(Tokenizer::load(dir.path()).unwrap_err().to_string().contains("tokenizer.json"));
    for garbage in ["", "{", "[]", "{\"model\":1}", "\u{0}"] {
        std::fs::write(dir.path().join("tokenizer.json"), garbage).unwrap();
        assert!(Tokenizer::load(dir.path()).unwrap_err().to_string().contains("tokenizer.json"));
    }
}

#[test]
fn settings_beside_tokenizer_json_are_honoured() {
    let dir = tempfile::tempdir().unwrap();
    letters().save(dir.path()).unwrap();
    let config = |json: &str| std::fs::write(dir.path().join("tokenizer_config.json"), json).unwrap();
    // Tokens as objects, tokens that tokenizer.json lacks, and a start token before every text but where it is already.
    config(
        r#"{"eos_token":{"content":"<eos>"},"bos_token":"<s>","add_bos_token":true,"pad_token":null,
        "additional_special_tokens":["<tool>",{"content":"<eos>"}]}"#,
    );
    let t = Tokenizer::load(dir.path()).unwrap();
    assert_eq!((t.bos_id(), t.eos_id(), t.pad_id(), t.token_id("<tool>")), (Some(10), Some(1), None, Some(11)));
    assert_eq!(t.encode("a<tool>").unwrap(), [10, 2, 11]);
    assert_eq!(t.encode("<s>a").unwrap(), [10, 2]);
    assert_eq!(t.encode_rendered("<s>a").unwrap(), [10, 2]);
    assert_eq!(t.special_ids(), [0, 1, 10, 11]);
    config(r#"{"eos_token":"<eos>","add_eos_token":true}"#);
    assert_eq!(Tokenizer::load(dir.path()).unwrap().encode("a").unwrap(), [2, 1]);
    // transformers 4 kept the names in a file of their own.
    config("{}");
    std::fs::write(dir.path().join("special_tokens_map.json"), r#"{"eos_token":"<eos>"}"#).unwrap();
    assert_eq!(Tokenizer::load(dir.path()).unwrap().eos_id(), Some(1));
}
