//! Model directories written by transformers are read, and saving them again keeps their content.

use kernels::Device;
use kernels::Memory;
use model::io::{SaveOptions, TensorSink, TensorSource, save_model};
use model::{FileDType, ModelConfig, Result, Weights};
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn memory() -> Memory {
    Memory::new(Device::Cpu)
}

fn family(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn load_model(dir: &Path) -> Result<Weights> {
    let config = Arc::new(ModelConfig::load(&dir.join("config.json"))?);
    Weights::load(&memory(), dir, &config)
}

/// Name, shape and element bits of every tensor.
fn content(weights: &Weights) -> Vec<(String, Vec<usize>, Vec<u32>)> {
    let bits = |name: &str| weights.get(name).unwrap().iter().map(|x| x.to_bits()).collect();
    TensorSource::tensors(weights).into_iter().map(|s| (s.name.clone(), s.shape, bits(&s.name))).collect()
}

#[test]
fn saving_a_loaded_model_keeps_every_bit() {
    for name in ["llama3", "mistral", "qwen2", "qwen3"] {
        let weights = load_model(&family(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(content(&weights).iter().all(|(_, _, x)| x.iter().any(|&x| x != 0)), "{name}");
        for max_shard_bytes in [u64::MAX, 4000] {
            let dir = tempfile::tempdir().unwrap();
            let options = SaveOptions { max_shard_bytes, ..SaveOptions::default() };
            save_model(dir.path(), &weights.config, &weights, None, options).unwrap();
            let again = load_model(dir.path()).unwrap();
            assert!(content(&again) == content(&weights), "{name}");
            let mut raw = weights.config.raw.clone();
            raw["dtype"] = "float32".into();
            assert_eq!(again.config.raw, raw, "{name}: config.json lost a field");
        }
    }
}

/// Reads the same file with the `safetensors` crate.
#[test]
fn loaded_elements_match_the_safetensors_crate() {
    let weights = load_model(&family("qwen3")).unwrap();
    let bytes = std::fs::read(family("qwen3").join("model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let ours = content(&weights);
    assert_eq!(file.names().len(), ours.len());
    for (name, shape, bits) in ours {
        let tensor = file.tensor(&name).unwrap();
        assert_eq!(tensor.shape(), shape, "{name}");
        let theirs: Vec<u32> = tensor.data().as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        assert_eq!(theirs, bits, "{name}");
    }
}

#[test]
fn random_weights_fill_every_tensor_and_depend_on_the_seed() {
    let config = Arc::new(ModelConfig::load(&family("qwen3").join("config.json")).unwrap());
    let random = |seed| Weights::random(&memory(), &config, seed).unwrap();
    let first = random(1);
    assert!(content(&first) == content(&random(1)));
    for ((name, _, a), (_, _, b)) in content(&first).iter().zip(content(&random(2))) {
        let fixed = name.ends_with("norm.weight") || name.ends_with("bias");
        assert_eq!(*a == b, fixed, "{name}");
        assert!(name.ends_with("bias") || a.iter().all(|&x| x != 0), "{name}");
    }
}

#[test]
fn saving_in_half_precision_rounds_only_once() {
    let mut weights = load_model(&family("llama3")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let options = SaveOptions { dtype: FileDType::Bf16, ..SaveOptions::default() };
    save_model(dir.path(), &weights.config, &weights, None, options).unwrap();
    let narrow = load_model(dir.path()).unwrap();
    assert_eq!(narrow.config.dtype, Some(FileDType::Bf16));
    for spec in TensorSource::tensors(&narrow) {
        let x = weights.get(&spec.name).unwrap();
        let rounded: Vec<f32> = x.iter().map(|&x| half::bf16::from_f32(x).to_f32()).collect();
        assert_eq!(narrow.get(&spec.name).unwrap(), rounded);
    }
    assert!(weights.put("model.layers.9.nothing", &[]).is_err());
}
