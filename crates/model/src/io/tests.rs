mod formats;

use super::*;
use crate::{Error, FileDType, ModelConfig};
use std::collections::BTreeMap;
use std::path::Path;

/// Named tensors in plain vectors.
#[derive(Clone, Debug, PartialEq)]
struct Held {
    specs: Vec<TensorSpec>,
    data: BTreeMap<String, Vec<f32>>,
}

impl TensorSink for Held {
    fn tensors(&self) -> Vec<TensorSpec> {
        self.specs.clone()
    }
    fn put(&mut self, name: &str, data: &[f32]) -> Result<()> {
        self.data.insert(name.into(), data.into());
        Ok(())
    }
}

impl TensorSource for Held {
    fn tensors(&self) -> Vec<TensorSpec> {
        self.specs.clone()
    }
    fn read(&self, name: &str, take: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()> {
        self.data[name].chunks(3).try_for_each(take)
    }
}

const EMBEDDING: &str = "model.embed_tokens.weight";

fn config(tied: bool) -> ModelConfig {
    let json = format!(
        r#"{{"model_type":"llama","hidden_size":4,"intermediate_size":3,"num_hidden_layers":1,"num_attention_heads":2,
        "vocab_size":5,"tie_word_embeddings":{tied}}}"#
    );
    ModelConfig::parse(&json).unwrap()
}

/// Only some of a model's tensors: this module asks the sink for the tensor list, not the configuration.
fn held(names: &[(&str, &[usize])]) -> Held {
    let specs: Vec<_> = names.iter().map(|(n, s)| TensorSpec { name: (*n).into(), shape: s.to_vec() }).collect();
    let fill = |s: &TensorSpec| {
        let count: usize = s.shape.iter().product();
        (s.name.clone(), (0..count).map(|i| (i as f32 - 3.0) * 0.125).collect())
    };
    let data = specs.iter().map(fill).collect();
    Held { specs, data }
}

fn tied() -> Held {
    held(&[(EMBEDDING, &[5, 4]), ("model.layers.0.self_attn.o_proj.weight", &[4, 4]), ("model.norm.weight", &[4])])
}

fn load(dir: &Path, config: &ModelConfig, like: &Held) -> Result<Held> {
    let mut sink = Held { specs: like.specs.clone(), data: BTreeMap::new() };
    load_weights(dir, config, &mut sink).map(|()| sink)
}

fn fails_with(result: Result<Held>, words: &[&str]) {
    let message = result.expect_err("must fail").to_string();
    for word in words {
        assert!(message.contains(word), "{word:?} is not in: {message}");
    }
}

#[test]
fn a_saved_model_loads_in_every_dtype_and_sharding() {
    for dtype in [FileDType::F32, FileDType::Bf16, FileDType::F16] {
        for max_shard_bytes in [1_000_000, 50, 1] {
            let dir = tempfile::tempdir().unwrap();
            let options = SaveOptions { dtype, max_shard_bytes };
            save_model(dir.path(), &config(true), &tied(), None, options).unwrap();
            assert_eq!(load(dir.path(), &config(true), &tied()).unwrap(), tied());
            let again = ModelConfig::load(&dir.path().join("config.json")).unwrap();
            assert_eq!(again.dtype, Some(dtype));
            assert!(std::fs::read_dir(dir.path()).unwrap().all(|f| !f.unwrap().path().ends_with(".partial")));
        }
    }
}

/// The reader of the format's authors can read files written by this crate.
#[test]
fn the_safetensors_crate_reads_our_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    save_tensors(&path, &tied(), FileDType::F32).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let file = ::safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.names().len(), 3);
    let embedding = file.tensor(EMBEDDING).unwrap();
    assert_eq!(embedding.shape(), [5, 4]);
    let expected: Vec<u8> = tied().data[EMBEDDING].iter().flat_map(|x| x.to_le_bytes()).collect();
    assert_eq!(embedding.data(), expected);
}

#[test]
fn a_second_save_removes_the_files_of_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let sharded = SaveOptions { max_shard_bytes: 1, ..SaveOptions::default() };
    for options in [sharded, SaveOptions::default(), sharded] {
        save_model(dir.path(), &config(true), &tied(), None, options).unwrap();
        assert_eq!(load(dir.path(), &config(true), &tied()).unwrap(), tied());
        let index = dir.path().join("model.safetensors.index.json").exists();
        assert_eq!(index, options.max_shard_bytes == 1);
        assert_eq!(dir.path().join("model.safetensors").exists(), !index);
    }
}

#[test]
fn the_error_names_missing_unexpected_and_misshapen_tensors() {
    let dir = tempfile::tempdir().unwrap();
    save_model(dir.path(), &config(true), &tied(), None, SaveOptions::default()).unwrap();
    let untied = held(&[(EMBEDDING, &[5, 4]), ("model.norm.weight", &[4]), ("lm_head.weight", &[5, 4])]);
    fails_with(load(dir.path(), &config(false), &untied), &["model.safetensors", "o_proj", "unexpected"]);
    let mut more = tied();
    more.specs.push(TensorSpec { name: "lm_head.weight".into(), shape: vec![5, 4] });
    fails_with(load(dir.path(), &config(false), &more), &["model.safetensors", "lm_head.weight", "missing", "[5, 4]"]);
    let mut other = tied();
    other.specs[0].shape = vec![6, 4];
    fails_with(load(dir.path(), &config(true), &other), &["model.safetensors", EMBEDDING, "[5, 4]", "[6, 4]"]);
    std::fs::remove_file(dir.path().join("model.safetensors")).unwrap();
    fails_with(load(dir.path(), &config(true), &tied()), &["neither model.safetensors nor"]);
}

#[test]
fn a_tied_head_in_the_file_must_equal_the_embedding() {
    let dir = tempfile::tempdir().unwrap();
    let names: &[(&str, &[usize])] = &[(EMBEDDING, &[5, 4]), ("lm_head.weight", &[5, 4])];
    let embedding = held(&names[..1]);
    let save = |held: &Held| save_model(dir.path(), &config(true), held, None, SaveOptions::default()).unwrap();
    save(&held(names));
    assert_eq!(load(dir.path(), &config(true), &embedding).unwrap(), embedding);
    save(&held(&names[1..]));
    assert_eq!(load(dir.path(), &config(true), &embedding).unwrap(), embedding);
    let mut differs = held(names);
    differs.data.get_mut("lm_head.weight").unwrap()[7] = 9.0;
    save(&differs);
    fails_with(load(dir.path(), &config(true), &embedding), &["lm_head.weight", "differs", "tie_word_embeddings"]);
}

#[test]
fn missing_shards_and_shards_outside_the_directory_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let options = SaveOptions { max_shard_bytes: 1, ..SaveOptions::default() };
    save_model(dir.path(), &config(true), &tied(), None, options).unwrap();
    let index = dir.path().join("model.safetensors.index.json");
    let text = std::fs::read_to_string(&index).unwrap();
    std::fs::write(&index, text.replace("model-00001-of-00003", "../model-00001-of-00003")).unwrap();
    fails_with(load(dir.path(), &config(true), &tied()), &[EMBEDDING, "not a file name"]);
    std::fs::write(&index, text.replace("model-00001-of", "model-00002-of")).unwrap();
    fails_with(load(dir.path(), &config(true), &tied()), &["model-00002-of-00003", EMBEDDING, "index places"]);
    std::fs::write(&index, &text[..text.len() / 2]).unwrap();
    fails_with(load(dir.path(), &config(true), &tied()), &["index.json", "not JSON"]);
    std::fs::write(&index, &text).unwrap();
    std::fs::remove_file(dir.path().join("model-00002-of-00003.safetensors")).unwrap();
    fails_with(load(dir.path(), &config(true), &tied()), &["model-00002-of-00003.safetensors", "missing"]);
}

fn load_bytes(bytes: &[u8]) -> Result<Held> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    std::fs::write(&path, bytes).unwrap();
    load(dir.path(), &config(true), &tied())
}

fn good_bytes() -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    save_tensors(&path, &tied(), FileDType::F32).unwrap();
    let mut bytes = std::fs::read(path).unwrap();
    // The fault is also found in a file without a checksum, as other programs write them.
    let at = find_checksum(&bytes).unwrap().start - 4;
    bytes[at] = b'_';
    bytes
}

fn with_header(change: impl Fn(String) -> String) -> Vec<u8> {
    let bytes = good_bytes();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header = change(String::from_utf8(bytes[8..8 + length].to_vec()).unwrap());
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &bytes[8 + length..]].concat()
}

#[test]
fn the_error_for_a_damaged_file_names_the_fault() {
    assert_eq!(load_bytes(&good_bytes()).unwrap(), tied());
    fails_with(load_bytes(b""), &["model.safetensors", "truncated"]);
    fails_with(load_bytes(b"1234567"), &["truncated"]);
    fails_with(load_bytes(b"version https://git-lfs"), &["not a safetensors file"]);
    fails_with(load_bytes(&f64::NAN.to_le_bytes()), &["not a safetensors file"]);
    fails_with(load_bytes(&[0xff; 16]), &["not a safetensors file"]);
    fails_with(load_bytes(&[9, 0, 0, 0, 0, 0, 0, 0, b'{', b'}']), &["truncated", "9 bytes"]);
    fails_with(load_bytes(&[2, 0, 0, 0, 0, 0, 0, 0, b'[', b']']), &["not a JSON object"]);
    let good = good_bytes();
    fails_with(load_bytes(&good[..good.len() - 1]), &["model.norm.weight", "truncated"]);
    fails_with(load_bytes(&[&good[..], &[0]].concat()), &["1 bytes that belong to no tensor"]);
    fails_with(load_bytes(&with_header(|h| h.replace("[5,4]", "[4,5]"))), &[EMBEDDING, "[4, 5]", "[5, 4]"]);
    fails_with(load_bytes(&with_header(|h| h.replace("[5,4]", "[5,5]"))), &[EMBEDDING, "80 bytes"]);
    fails_with(load_bytes(&with_header(|h| h.replace("[5,4]", "[18446744073709551615,4]"))), &[EMBEDDING]);
    fails_with(load_bytes(&with_header(|h| h.replace("[5,4]", "[-5,4]"))), &[EMBEDDING, "no shape"]);
    fails_with(load_bytes(&with_header(|h| h.replace("[0,80]", "[80,0]"))), &[EMBEDDING, "not a range"]);
    fails_with(load_bytes(&with_header(|h| h.replace("[80,144]", "[76,140]"))), &["o_proj", "do not directly follow"]);
    fails_with(load_bytes(&with_header(|h| h.replace("F32", "I32"))), &[EMBEDDING, "I32", "supported"]);
    fails_with(load_bytes(&with_header(|h| h.replace("F32", "F33"))), &[EMBEDDING, "F33"]);
}

/// If any byte or the length of a file changes, reading it gives an error or different values, never a panic.
#[test]
fn reading_a_damaged_file_does_not_panic() {
    let good = good_bytes();
    let mut stream = kernels::rng::Stream::new(3, 0);
    let path = Path::new("fuzz");
    for _ in 0..20_000 {
        let mut bytes = good.clone();
        for _ in 0..1 + stream.below(4) {
            let at = stream.below(bytes.len() as u64) as usize;
            bytes[at] = stream.next_u64() as u8;
        }
        bytes.truncate(stream.below(2 * good.len() as u64) as usize);
        if let Ok(entries) = super::safetensors::entries(path, &bytes) {
            for entry in entries {
                let _ = super::safetensors::elements(path, &entry, &bytes);
            }
        }
    }
}

#[test]
fn a_weight_too_large_for_f16_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let mut held = tied();
    held.data.get_mut(EMBEDDING).unwrap()[0] = 1e6;
    let error = save_tensors(&dir.path().join("x"), &held, FileDType::F16).unwrap_err();
    assert!(matches!(error, Error::Tensor { ref tensor, .. } if tensor == EMBEDDING), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "no partial file may remain");
}
