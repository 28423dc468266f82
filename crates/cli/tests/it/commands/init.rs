use super::*;

fn weights(dir: &Path) -> Vec<u8> {
    std::fs::read(dir.join("model.safetensors")).expect("weights")
}

#[test]
fn the_seed_decides_the_weights() {
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
fn nothing_is_overwritten_and_nothing_is_left_half_written() {
    let dir = model();
    let before = weights(&dir.path().join("model"));
    let to = |out, config| lockstep(dir.path(), &["init", "--config", config, "--out", out], "");
    assert!(to("model", "config.json").refused().contains("nothing is overwritten"));
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
