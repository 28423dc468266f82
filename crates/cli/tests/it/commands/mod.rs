//! Tests of `init`, `score`, `generate` and `plan` on small random models, through the command line.

mod generate;
mod init;
mod plan;
mod score;
mod score_rewards;

use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};

/// A small Qwen 3 that uses every feature of its family.
const CONFIG: &str = r#"{"model_type": "qwen3", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 40, "max_position_embeddings": 128,
  "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": true, "initializer_range": 0.3,
  "bos_token_id": 1, "eos_token_id": 2}"#;

struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Ran {
    /// The standard output of a command that must succeed.
    #[track_caller]
    fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{}", self.err);
        self.out
    }
    /// The error message of a command that must refuse its input.
    #[track_caller]
    fn refused(self) -> String {
        assert_eq!(self.code, Some(2), "{}{}", self.out, self.err);
        assert!(self.out.is_empty(), "{}", self.out);
        self.err
    }
}

/// Runs `lockstep` with `arguments` in the directory `dir`, with `input` on standard input.
fn lockstep(dir: &Path, arguments: &[&str], input: &str) -> Ran {
    let mut command = crate::support::command(dir, arguments);
    command.env("LOCKSTEP_THREADS", "2");
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program");
    // A command that refuses its arguments does not read its input.
    let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
    let Output { status, stdout, stderr } = child.wait_with_output().expect("it ends");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Ran { code: status.code(), out: text(stdout), err: text(stderr) }
}

/// A directory with `config.json`, a tokenizer of characters in `words`, and a random model in `model`.
fn model() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(dir.path().join("config.json"), CONFIG).expect("writable");
    let token = |t: &str| Some(t.to_owned());
    let special = model::SpecialTokens { pad: token("<pad>"), bos: token("<s>"), eos: token("</s>"), unk: None };
    model::Tokenizer::characters("abcdefghijklmnopqrstuvwxyz .,!".chars(), &special)
        .and_then(|t| t.save(&dir.path().join("words")))
        .expect("a tokenizer");
    let made = ["init", "--config", "config.json", "--tokenizer", "words", "--seed", "7", "--out", "model"];
    lockstep(dir.path(), &made, "").ok();
    dir
}
