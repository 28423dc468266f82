use super::*;

fn weights(dir: &Path) -> Vec<u8> {
    std::fs::read(dir.join("model.safetensors")).expect("weights")
}

#[test]
fn the_seed_determines_the_weights() {
    let dir = model();
    for (seed, out) in [("7", "same"), ("8", "other")] {
        lockstep(dir.path(), &["init", "--config", "config.json", "--seed", seed, "--out", out], "").ok();
    }
    let made = |name| weights(&dir.path().join(name));
    assert_eq!(made("model"), made("same"));
    assert_ne!(made("model"), made("other"));
    assert!(dir.path().join("model/tokenizer.json").exists() && !dir.path().join("same/tokenizer.json").exists());
}

#[test]
fn existing_files_are_kept_and_no_partial_directory_remains() {
    let dir = model();
    let before = weights(&dir.path().join("model"));
    let to = |out, config| lockstep(dir.path(), &["init", "--config", config, "--out", out], "");
    assert!(to("model", "config.json").refused().contains("files are not overwritten"));
    assert_eq!(weights(&dir.path().join("model")), before);

    std::fs::create_dir(dir.path().join("empty")).unwrap();
    to("empty", "config.json").ok();
    assert_eq!(weights(&dir.path().join("empty")).len(), before.len());

    std::fs::write(dir.path().join("strange.json"), CONFIG.replace("qwen3", "mamba")).unwrap();
    assert!(to("new", "strange.json").refused().contains("mamba"));
    std::fs::write(dir.path().join("small.json"), CONFIG.replace("\"vocab_size\": 40", "\"vocab_size\": 20")).unwrap();
    let small = ["init", "--config", "small.json", "--tokenizer", "words", "--out", "new"];
    assert!(lockstep(dir.path(), &small, "").refused().contains("20 rows"));
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.iter().all(|n| n != "new" && !n.to_string_lossy().starts_with('.')), "{left:?}");
}

#[test]
fn characters_define_a_tokenizer() {
    let dir = model();
    std::fs::write(dir.path().join("own.json"), CONFIG.replace("\"eos_token_id\": 2", "\"eos_token_id\": 1")).unwrap();
    let with =
        |text, out| lockstep(dir.path(), &["init", "--config", "own.json", "--characters", text, "--out", out], "");
    // A repeated character, a line feed, and multi-byte characters have one token each.
    with("abca\né日", "made").ok();
    let tokenizer = model::Tokenizer::load(&dir.path().join("made")).expect("a tokenizer");
    assert_eq!(tokenizer.encode("ab\n日éc").expect("ids"), [2, 3, 5, 7, 6, 4]);
    assert_eq!(
        (tokenizer.vocab_size(), tokenizer.eos_id(), tokenizer.token(1)),
        (8, Some(1), Some("<eos>".to_owned()))
    );
    assert!(tokenizer.encode("x").is_err());

    assert!(with("", "none").refused().contains("--characters must not be empty"));
    let many: String = ('!'..='~').collect();
    assert!(with(&many, "none").refused().contains("40 rows"));
    let other = ["init", "--config", "config.json", "--characters", "ab", "--out", "none"];
    assert!(
        lockstep(dir.path(), &other, "")
            .refused()
            .contains("eos_token_id is [2], but the <eos> of --characters is token 1")
    );
    let both = ["init", "--config", "config.json", "--characters", "ab", "--tokenizer", "words", "--out", "none"];
    assert!(lockstep(dir.path(), &both, "").refused().contains("cannot be used with"));
    assert!(!dir.path().join("none").exists());
}
