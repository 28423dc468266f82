//! The golden runs: tiny models that the program creates, and the shortest runs that use all parts that affect bits.

use crate::bits::{self, Bits};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A run: command, model, and keys in addition to [`COMMON`].
pub struct Run {
    pub name: &'static str,
    command: &'static str,
    model: &'static str,
    set: &'static [&'static str],
}

pub const STEPS: u64 = 6;
/// The checkpoint at which the run is interrupted: in the middle of a generation batch, with metrics that are not
/// logged yet.
const CUT: u64 = 2;
pub const COMMON: &[&str] = &[
    "max_steps=6",
    "per_device_train_batch_size=8",
    "learning_rate=0.01",
    "logging_steps=3",
    "save_steps=2",
    "eval_strategy=steps",
    "eval_steps=3",
];
/// Keys of all runs that sample completions.
pub const SAMPLED: &[&str] = &[
    "dataset_name=d.jsonl",
    "eval_dataset_name=e.jsonl",
    "max_completion_length=10",
    "num_generations_eval=2",
    "record_rollouts=true",
    // The evaluation loss follows from values that are already hashed, and has its own tests in `it`.
    "eval_loss=false",
];

/// A metric of runs that skip groups.
const SKIPPED: &str = "metric update/skipped_groups";

/// `qwen3` has norms of q and k, tied embeddings and two layers; `qwen2` has biases and a separate lm head.
pub const RUNS: &[Run] = &[
    // A generation of 16 completions is used for four steps. The run has a reference model and a cosine schedule.
    Run {
        name: "grpo",
        command: "train",
        model: "qwen3",
        set: &[
            "reward_funcs=[\"unique_chars\"]",
            "num_generations=4",
            "num_iterations=2",
            "steps_per_generation=2",
            "beta=0.04",
            "lr_scheduler_type=cosine",
            "warmup_steps=1",
            "weight_decay=0.1",
        ],
    },
    Run {
        name: "grpo-dynamic",
        command: "train",
        model: "qwen3",
        set: &[
            "reward_funcs=[\"format:^[a-j]\"]",
            "num_generations=2",
            "dynamic_sampling=true",
            "dynamic_sampling_max_rounds=3",
            "temperature=0.9",
            "top_k=30",
            "top_p=0.95",
            "min_p=0.01",
            "repetition_penalty=1.1",
        ],
    },
    // Many groups have equal rewards; the entropies of these groups are recorded.
    Run {
        name: "grpo-zero",
        command: "train",
        model: "qwen3",
        set: &[
            "reward_funcs=[\"format:^[a-j]\"]",
            "num_generations=2",
            "num_iterations=2",
            "weight_decay=0.1",
            "record_entropies=true",
        ],
    },
    Run {
        name: "grpo-lora",
        command: "train",
        model: "qwen2",
        set: &[
            "reward_funcs=[\"unique_chars\"]",
            "num_generations=4",
            "num_iterations=2",
            "beta=0.04",
            "use_peft=true",
            "lora_r=4",
            "lora_dropout=0.2",
            "lora_target_modules=all-linear",
        ],
    },
    Run {
        name: "gdpo",
        command: "train",
        model: "qwen2",
        set: &[
            "reward_funcs=[\"unique_chars\", \"length:3\"]",
            "reward_weights=[1, 0.5]",
            "multi_objective_aggregation=normalize_then_sum",
            "num_generations=4",
            "eval_sampling=greedy",
            "num_generations_eval=1",
        ],
    },
    Run {
        name: "cispo",
        command: "train",
        model: "qwen2",
        set: &[
            "reward_funcs=[\"unique_chars\"]",
            "loss_type=cispo",
            "num_generations=4",
            "num_iterations=2",
            "top_entropy_quantile=0.5",
            "entropy_coef=0.02",
        ],
    },
    // Moments in bf16 use stochastic rounding.
    Run {
        name: "sapo",
        command: "train",
        model: "qwen3",
        set: &[
            "reward_funcs=[\"unique_chars\"]",
            "loss_type=sapo",
            "num_generations=4",
            "num_iterations=2",
            "adam_moments_dtype=bf16",
        ],
    },
    Run {
        name: "rloo",
        command: "train",
        model: "qwen2",
        set: &["reward_funcs=[\"unique_chars\"]", "algorithm=rloo", "num_generations=4", "beta=0.05"],
    },
    Run {
        name: "ppo",
        command: "train",
        model: "qwen2",
        set: &[
            "reward_funcs=[\"unique_chars\"]",
            "algorithm=ppo",
            "num_generations=1",
            "num_mini_batches=2",
            "num_ppo_epochs=2",
            "per_device_train_batch_size=4",
            "kl_estimator=k3",
            "adap_kl_ctrl=true",
            "whiten_rewards=true",
        ],
    },
    Run {
        name: "sft",
        command: "sft",
        model: "qwen2",
        set: &["dataset_name=d.jsonl", "eval_dataset_name=e.jsonl", "lr_scheduler_type=cosine"],
    },
    Run { name: "dpo", command: "dpo", model: "qwen3", set: &["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl"] },
    Run {
        name: "reward",
        command: "reward",
        model: "padded",
        set: &["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl", "center_rewards_coefficient=0.01"],
    },
    // Replays the recorded rollouts of `grpo`, which runs first.
    Run {
        name: "replay",
        command: "train",
        model: "qwen3",
        set: &[
            "replay=recorded/rollouts.bin",
            "num_generations=4",
            "num_iterations=2",
            "steps_per_generation=2",
            "beta=0.04",
            "loss_type=dr_grpo",
        ],
    },
];

/// A temporary directory with models and data.
pub struct Site(tempfile::TempDir);

impl Site {
    pub fn new() -> Site {
        let site = Site(tempfile::tempdir().unwrap());
        let root = site.0.path();
        fs::create_dir(root.join("tokenizer")).unwrap();
        fs::write(root.join("tokenizer/tokenizer.json"), tokenizer().to_string()).unwrap();
        fs::write(root.join("tokenizer/tokenizer_config.json"), r#"{"eos_token": "<e>"}"#).unwrap();
        let words =
            ["ab", "sun", "moon", "tree", "x", "river", "a long road that winds by the lake and on", "sky", "oak"];
        let rows = |words: &[&str], row: fn(&str) -> Value| -> String {
            words.iter().map(|word| format!("{}\n", row(word))).collect()
        };
        let completed = |w: &str| json!({"prompt": format!("{w} "), "completion": format!("{w}, and {w}.")});
        let pair = |w: &str| json!({"prompt": format!("{w} "), "chosen": format!("{w}."), "rejected": format!("{w}?")});
        let held_out = ["sea", "hill", "a far place"];
        for (name, text) in [
            ("d.jsonl", rows(&words, completed)),
            ("e.jsonl", rows(&held_out, completed)),
            ("p.jsonl", rows(&words, pair)),
            ("q.jsonl", rows(&held_out, pair)),
        ] {
            fs::write(root.join(name), text).unwrap();
        }
        for (name, own) in [
            (
                "qwen3",
                json!({"model_type": "qwen3", "num_hidden_layers": 2, "tie_word_embeddings": true, "head_dim": 12}),
            ),
            ("qwen2", json!({"model_type": "qwen2", "num_hidden_layers": 1, "tie_word_embeddings": false})),
            (
                "small",
                json!({"model_type": "qwen3", "num_hidden_layers": 1, "tie_word_embeddings": true, "head_dim": 8,
                    "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1}),
            ),
        ] {
            let mut config = json!({"vocab_size": 40, "hidden_size": 40, "intermediate_size": 72,
                "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
                "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
                "initializer_range": 0.3, "bos_token_id": null, "eos_token_id": 0});
            config.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
            fs::write(root.join(format!("{name}.json")), config.to_string()).unwrap();
            let config = format!("{name}.json");
            let init = ["init", "--config", &config, "--tokenizer", "tokenizer", "--seed", "7", "--out", name];
            good(site.program("portable", root, &init));
        }
        // qwen3 with a padding token that does not end a completion. Without it, the end token would be used for
        // padding, and its score would never be read.
        fs::create_dir(root.join("padded")).unwrap();
        for file in fs::read_dir(root.join("qwen3")).unwrap().map(|entry| entry.unwrap()) {
            fs::copy(file.path(), root.join("padded").join(file.file_name())).unwrap();
        }
        fs::write(root.join("padded/tokenizer_config.json"), r#"{"eos_token": "<e>", "pad_token": ","}"#).unwrap();
        site
    }

    /// Whether the machine has the instruction set.
    pub fn has(&self, isa: &str) -> bool {
        let generate = ["generate", "--model", "qwen2", "--prompt", "a", "--max-new-tokens", "1"];
        let output = self.program(isa, self.0.path(), &generate);
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() || printed.contains("this machine lacks it"), "{printed}");
        output.status.success()
    }

    /// Creates a directory for a run, with links to models and data.
    pub fn directory(&self, name: &str) -> PathBuf {
        let directory = self.0.path().join(name);
        fs::create_dir(&directory).unwrap();
        for name in ["qwen2", "qwen3", "small", "padded", "d.jsonl", "e.jsonl", "p.jsonl", "q.jsonl"] {
            std::os::unix::fs::symlink(self.0.path().join(name), directory.join(name)).unwrap();
        }
        directory
    }

    /// Returns the hashes of `run`, and asserts that they stay equal if the run is interrupted and resumed on the
    /// instruction set `resumed`.
    pub fn bits(&self, run: &Run, isa: &str, column: usize, resumed: Option<&str>) -> Bits {
        let directory = self.directory(&format!("{}-{isa}-{column}", run.name));
        if run.name == "replay" {
            let recorded = RUNS.iter().find(|run| run.name == "grpo").unwrap();
            good(self.program(isa, &directory, &arguments(recorded, column, "recorded")));
        }
        let arguments = arguments(run, column, "run");
        good(self.program(isa, &directory, &arguments));
        let out = directory.join("run");
        let whole = bits::of(&out, STEPS);
        if whole.contains_key(SKIPPED) {
            self.check_without_skipping(run, &directory, isa, column, &whole);
        }
        if let Some(isa) = resumed {
            cut(&out);
            let mut arguments = vec![run.command, "--resume", "run", "--set", "threads=2"];
            if run.command == "train" {
                // The resumed run also uses speculative decoding.
                arguments.extend(["--set", "speculative=auto"]);
            }
            good(self.program(isa, &directory, &arguments));
            let found = bits::of(&out, STEPS);
            let differing: Vec<_> = whole.iter().filter(|(name, hash)| found.get(*name) != Some(hash)).collect();
            assert!(whole.len() == found.len() && differing.is_empty(), "{} resumed on {isa}: {differing:?}", run.name);
        }
        whole
    }

    /// Skipping groups in the update may change only metrics that measure the amount of work.
    fn check_without_skipping(&self, run: &Run, directory: &Path, isa: &str, column: usize, whole: &Bits) {
        let mut arguments = arguments(run, column, "all");
        arguments.extend(["--set", "skip_zero_gradients=false"].map(String::from));
        good(self.program(isa, directory, &arguments));
        let of_computed = |name: &str| name.starts_with("metric update/") || name == "metric entropy";
        let kept = |bits: Bits| bits.into_iter().filter(|(name, _)| !of_computed(name)).collect::<Bits>();
        let (all, whole) = (kept(bits::of(&directory.join("all"), STEPS)), kept(whole.clone()));
        let differing: Vec<_> = whole.iter().filter(|(name, hash)| all.get(*name) != Some(hash)).collect();
        assert!(all.len() == whole.len() && differing.is_empty(), "{} computing every group: {differing:?}", run.name);
    }

    pub fn program(&self, isa: &str, directory: &Path, arguments: &[impl AsRef<std::ffi::OsStr>]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("LOCKSTEP_")) {
            command.env_remove(name);
        }
        command.args(arguments).current_dir(directory).env("LOCKSTEP_ISA", isa).env("HF_HUB_OFFLINE", "1");
        command.output().unwrap()
    }
}

fn arguments(run: &Run, column: usize, out: &str) -> Vec<String> {
    let mut all: Vec<String> = [run.command, "--model", run.model, "--out", out].map(String::from).to_vec();
    let sampled = if run.command == "train" && run.name != "replay" { SAMPLED } else { &[] };
    let dtype = if column == 0 { "dtype=f32" } else { "dtype=bf16" };
    let common = COMMON.iter().filter(|key| run.name != "replay" || !key.starts_with("eval"));
    for set in common.chain(sampled).chain(run.set).chain(&[dtype, "threads=1", "tensorboard=false"]) {
        all.extend(["--set".to_owned(), (*set).to_owned()]);
    }
    all
}

pub fn good(output: Output) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
}

/// Edits the run directory as if the run had been killed after the checkpoint of step [`CUT`].
pub fn cut(run: &Path) {
    let later: Vec<PathBuf> = fs::read_dir(run.join("checkpoints")).unwrap().map(|e| e.unwrap().path()).collect();
    let kept = run.join(format!("checkpoints/step-{CUT:06}"));
    assert!(later.contains(&kept), "{later:?}");
    later.iter().filter(|path| **path != kept).for_each(|path| fs::remove_dir_all(path).unwrap());
    fs::remove_dir_all(run.join("model")).unwrap();
}

/// A tokenizer with one token per letter.
fn tokenizer() -> Value {
    let mut vocabulary = Map::from_iter([("<e>".to_owned(), 0.into())]);
    for (i, letter) in "abcdefghijklmnopqrstuvwxyz .,?".chars().enumerate() {
        vocabulary.insert(letter.to_string(), (i + 1).into());
    }
    let added = json!([{"id": 0, "content": "<e>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true}]);
    let split = json!({"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated", "invert": false});
    json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": split, "post_processor": null, "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": ""}})
}
