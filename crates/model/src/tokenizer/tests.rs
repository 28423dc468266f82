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
fn character_ids_follow_the_special_tokens() {
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
fn the_error_names_a_character_outside_the_vocabulary() {
    assert_eq!(letters().encode("ab€c").unwrap_err().to_string(), "tokenizer: the vocabulary has no character '€'");
    let unk = SpecialTokens { unk: Some("?".into()), ..special() };
    let t = Tokenizer::characters("ab".chars(), &unk).unwrap();
    assert_eq!(t.encode("a€").unwrap(), [3, 2]);
}

#[test]
fn a_saved_tokenizer_loads_again() {
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

/// Padding is meant for batches. Padding to 100,000,000 tokens once made loading take gigabytes; the length in this
/// test would exceed any memory.
#[test]
fn padding_settings_in_a_tokenizer_file_are_ignored() {
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
fn eos_token_id_must_be_a_valid_token_id_or_null() {
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
