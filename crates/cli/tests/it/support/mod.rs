//! Runs the program, reads its output and files, and creates a tiny model directory.

pub mod runs;

use kernels::{Context, Isa};
use model::tokenizer::{SpecialTokens, Tokenizer};
use model::{ModelConfig, Weights};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

/// The exit code and the output of the program.
pub struct RunOutput {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

/// The command `lockstep` with `arguments` in `directory`, with the default action for SIGHUP. The caller's `LOCKSTEP_`
/// variables are removed, except those of the emulator.
pub fn command(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = testing::with_default_hangup(env!("CARGO_BIN_EXE_lockstep"));
    without_settings(&mut command);
    command.args(arguments).current_dir(directory).env("HF_HUB_OFFLINE", "1");
    command
}

/// Removes the caller's `LOCKSTEP_` variables from a command, except those of the emulator.
pub fn without_settings(command: &mut Command) {
    let ours = |name: &str| name.starts_with("LOCKSTEP_") && !name.starts_with("LOCKSTEP_EMULATOR_");
    for (name, _) in std::env::vars().filter(|(name, _)| ours(name)) {
        command.env_remove(name);
    }
}

/// Runs the program to its end.
pub fn lockstep(directory: &Path, arguments: &[&str]) -> RunOutput {
    let Output { status, stdout, stderr } = command(directory, arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    RunOutput { code: status.code(), out: text(stdout), err: text(stderr) }
}

/// Every path under `directory` with its length, sorted.
pub fn listing(directory: &Path) -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(next) = open.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path.clone());
            }
            found.push((path.clone(), std::fs::metadata(&path).map_or(0, |file| file.len())));
        }
    }
    found.sort();
    found
}

/// The tensors of a file of weights, by name.
pub fn tensors(bytes: &[u8]) -> Vec<(String, Vec<f32>)> {
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let mut found = Vec::new();
    for (name, tensor) in header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__") {
        let [start, end] = [0, 1].map(|i| tensor["data_offsets"][i].as_u64().unwrap() as usize + 8 + length);
        let floats = bytes[start..end].chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        found.push((name.clone(), floats));
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

/// Removes the checksum from a weight file, as other programs write it, so that a test can change the file.
pub fn without_checksum(mut bytes: Vec<u8>) -> Vec<u8> {
    let at = bytes.windows(6).position(|name| name == b"\"xxh3\"").unwrap();
    bytes[at + 4] = b'X';
    bytes
}

/// Runs the program, which must refuse its arguments: exit code 2, one paragraph with all `words`, and no new files.
pub fn refused(directory: &Path, arguments: &[&str], words: &[&str]) {
    let before = listing(directory);
    let printed = lockstep(directory, arguments);
    let all = format!("{arguments:?} printed:\n{}{}", printed.out, printed.err);
    assert_eq!(printed.code, Some(2), "exit code; {all}");
    let paragraphs: Vec<&str> = printed.err.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(paragraphs.len(), 1, "one paragraph; {all}");
    assert_eq!(printed.err.lines().last(), paragraphs.first().copied(), "the error must come last; {all}");
    for word in words {
        assert!(paragraphs[0].contains(word), "the word `{word}` is missing; {all}");
    }
    assert_eq!(listing(directory), before, "files were written; {all}");
}

/// The shape of the tiny model.
pub const CONFIG: &str = r#"{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 40,
"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
"head_dim": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
"tie_word_embeddings": false, "bos_token_id": null, "eos_token_id": 0}"#;

/// Writes a model directory with random weights and a tokenizer of lower-case letters.
pub fn model(directory: &Path) {
    model_of(directory, CONFIG);
}

/// Like [`model`], with a different configuration, whose vocabulary size must be 40.
pub fn model_of(directory: &Path, config: &str) {
    let ctx = Context::cpu(Isa::best(), 1);
    let config = Arc::new(ModelConfig::parse(config).unwrap());
    let weights = Weights::random(ctx.memory(), &config, 1).unwrap();
    let special = SpecialTokens { eos: Some("<e>".into()), ..SpecialTokens::default() };
    Tokenizer::characters("abcdefghijklmnopqrstuvwxyz .,?".chars(), &special).unwrap().save(directory).unwrap();
    model::io::save_model(directory, &config, &weights, None, Default::default()).unwrap();
}
