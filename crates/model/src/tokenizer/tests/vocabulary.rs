//! The vocabulary: sizes, ids, differences, offsets, and streaming.

use super::*;
use serde_json::json;

fn of(chars: &str, special: &SpecialTokens) -> Tokenizer {
    Tokenizer::characters(chars.chars(), special).unwrap()
}

#[test]
fn each_token_has_one_id() {
    let all = SpecialTokens {
        bos: Some("<s>".into()),
        eos: Some("<e>".into()),
        pad: Some("<e>".into()),
        unk: Some("<u>".into()),
    };
    let t = of("aba", &all);
    let tokens: Vec<_> = (0..6).map(|id| t.token(id)).collect();
    let expected = [Some("<e>"), Some("<s>"), Some("<u>"), Some("a"), Some("b"), None];
    assert_eq!(tokens, expected.map(|token| token.map(str::to_owned)));
    assert_eq!((t.vocab_size(), t.special_ids()), (5, vec![0, 1, 2]));
    assert_eq!((t.pad_id(), t.bos_id(), t.eos_id()), (Some(0), Some(1), Some(0)));
    assert_eq!(format!("{t:?}"), format!("Tokenizer(5 ids, {all:?})"));
    let empty = of("", &SpecialTokens::default());
    assert_eq!((empty.vocab_size(), empty.longest_token(), empty.special_ids()), (0, 1, vec![]));
}

#[test]
fn differs_in_names_the_first_different_token() {
    let special = SpecialTokens::default();
    let (abc, abd, ab) = (of("abc", &special), of("abd", &special), of("ab", &special));
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(abc.differs_in(&abd), text("id 2 is \"c\" in one tokenizer and \"d\" in the other"));
    assert_eq!(abc.differs_in(&ab), text("id 2 is \"c\" in one tokenizer, but the other has no such id"));
    assert_eq!((ab.differs_in(&abc), abc.differs_in(&abc)), (None, None), "the other tokenizer may have more tokens");
    let bac = of("bac", &special);
    assert_eq!(
        abc.differs_in(&bac),
        text("id 0 is \"a\" in one tokenizer and \"b\" in the other"),
        "the error names the first difference"
    );
}

#[test]
fn is_beyond_detects_texts_that_must_exceed_the_token_limit() {
    let mebibyte = 1 << 20;
    let t = letters();
    assert_eq!(t.longest_token(), 5, "<pad>");
    assert!(!t.is_beyond(mebibyte, 0) && t.is_beyond(mebibyte + 1, 0));
    let bytes = 5 * 300_000;
    assert!(t.is_beyond(bytes, 299_999) && !t.is_beyond(bytes, 300_000) && !t.is_beyond(bytes + 4, 300_000));
    assert!(t.is_beyond(bytes + 5, 300_000));
    assert_eq!(of("aé", &SpecialTokens::default()).longest_token(), 2, "offsets count bytes, not characters");
}

#[test]
fn encode_offsets_returns_byte_ranges() {
    let (ids, ranges) = letters().encode_offsets("éa<eos>b").unwrap();
    assert_eq!(ids, [7, 2, 1, 3]);
    assert_eq!(ranges, [0..2, 2..3, 3..8, 8..9]);
    assert!(letters().encode_offsets("€").is_err());
}

/// Byte tokens, three of which form a `€`. The first space of a text is removed, as in SentencePiece.
fn bytes() -> Tokenizer {
    let vocab = json!({"a": 0, " b": 1, "<0xE2>": 2, "<0x82>": 3, "<0xAC>": 4, "<end>": 5});
    let model = json!({"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": true, "vocab": vocab, "merges": []});
    let decoders = json!([{"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]);
    let end = json!({"id": 5, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true});
    let file = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [end], "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "Sequence", "decoders": decoders},
        "model": model});
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), file.to_string()).unwrap();
    Tokenizer::load(dir.path()).unwrap()
}

#[test]
fn streamed_pieces_are_complete_characters() {
    let t = bytes();
    let pieces = |skip: bool, ids: &[u32]| {
        let mut stream = TextStream::new(skip);
        let mut all: Vec<String> = ids.iter().map(|&id| stream.push(&t, id).unwrap()).collect();
        all.push(stream.finish(&t).unwrap());
        all
    };
    assert_eq!(pieces(false, &[1, 0, 1, 1]), ["b", "a", " b", " b", ""]);
    assert_eq!(pieces(false, &[0, 2, 3, 4, 1]), ["a", "", "", "€", " b", ""]);
    assert_eq!(pieces(true, &[2, 3, 4, 5, 0]), ["", "", "€", "", "a", ""]);
    assert_eq!(pieces(false, &[2, 3, 4, 5, 0]), ["", "", "€", "<end>", "a", ""]);
    let unfinished = pieces(false, &[0, 2, 3]);
    assert_eq!(unfinished[..3], ["a", "", ""]);
    assert_eq!(format!("a{}", unfinished[3]), t.decode(&[0, 2, 3], false).unwrap());
    assert!(unfinished[3].ends_with(char::REPLACEMENT_CHARACTER));
}
