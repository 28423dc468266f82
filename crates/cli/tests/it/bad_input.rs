//! Bad input gives one clear paragraph and exit code 2, and writes no files, not even an output directory.

use crate::support::{command, lockstep, model, refused};
use std::path::Path;

/// A directory with a valid model and valid data.
fn good() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    model(&dir.path().join("model"));
    write(dir.path(), "d.jsonl", "{\"prompt\": \"ab\", \"answer\": \"c\"}\n{\"prompt\": \"cd\", \"answer\": \"e\"}\n");
    dir
}

fn write(directory: &Path, name: &str, content: impl AsRef<[u8]>) {
    std::fs::write(directory.join(name), content).unwrap();
}

/// Runs `train` for two steps with one prompt × 4 completions; the arguments `more` override the defaults.
fn train(directory: &Path, more: &[&str], words: &[&str]) {
    let base = ["model_name_or_path=model", "dataset_name=d.jsonl", "reward_funcs=unique_chars", "output_dir=run"];
    let small = ["num_generations=4", "per_device_train_batch_size=4", "max_completion_length=4"];
    let mut all = vec!["train"];
    base.iter().chain(&small).for_each(|pair| all.extend(["--set", *pair]));
    refused(directory, &[&all[..], more].concat(), words);
}

#[test]
fn wrong_usage_is_refused_with_help() {
    let dir = tempfile::tempdir().unwrap();
    let printed = lockstep(dir.path(), &["trian"]);
    assert_eq!(printed.code, Some(2));
    assert!(printed.err.contains("train"), "{}", printed.err);
    assert_eq!(lockstep(dir.path(), &[]).code, Some(2));
    let printed = lockstep(dir.path(), &["--help"]);
    assert!(printed.code == Some(0) && printed.out.contains("lockstep demo"), "{}", printed.out);
    assert!(printed.out.starts_with("Reinforcement-learning post-training for language models"), "{}", printed.out);
    refused(dir.path(), &["config", "explain", "num_generatons"], &["did you mean `num_generations`?"]);
    refused(dir.path(), &["config", "from-trl", "none.py"], &["none.py"]);
    misused(dir.path(), &["demo", "--steps", "x"], &["'x'", "--steps"]);
    let scored = ["score-rewards", "--input", "c.jsonl", "--reward", "unique_chars", "--out", "none/x.jsonl"];
    write(dir.path(), "c.jsonl", "{\"completion\": \"a\"}\n");
    refused(dir.path(), &["score-rewards", "--input", ".", "--reward", "unique_chars"], &["--input .", "directory"]);
    refused(dir.path(), &scored, &["--out none/x.jsonl", "an existing directory"]);
}

/// Flags that are refused before any file is read: the first line of the error contains all words.
#[track_caller]
fn misused(directory: &Path, arguments: &[&str], words: &[&str]) {
    let printed = lockstep(directory, arguments);
    let first = printed.err.lines().next().unwrap_or_default();
    assert_eq!(printed.code, Some(2), "{arguments:?} printed {}", printed.err);
    for word in words {
        assert!(first.contains(word), "{arguments:?}: `{word}` is not in {first}");
    }
}

/// A negative number is not parsed as a flag: the error names the flag to which the number belongs.
#[test]
fn negative_numbers_are_refused_by_flag() {
    let dir = good();
    let generate = ["generate", "--model", "model", "--prompt", "ab"];
    for flag in ["--n", "--top-k", "--seed", "--threads", "--max-new-tokens", "--top-p"] {
        misused(dir.path(), &[&generate[..], &[flag, "-1"]].concat(), &["-1", flag]);
    }
    for (command, flag) in [("train", "--steps"), ("eval", "--n"), ("doctor", "--threads"), ("plan", "--seed")] {
        misused(dir.path(), &[command, flag, "-3"], &["-3", flag]);
    }
    misused(dir.path(), &["bench", "gemm", "--threads", "-1"], &["'-1'", "--threads", "1 or more"]);
    for command in ["generate", "score", "doctor", "demo"] {
        misused(dir.path(), &[command, "--threads", "0"], &["'0'", "--threads", "1 or more"]);
    }
}

/// Supervised training, DPO and reward models do not use rewards.
#[test]
fn commands_without_rewards_refuse_the_reward_flag() {
    let dir = good();
    for command in ["sft", "dpo", "reward"] {
        let printed = lockstep(dir.path(), &[command, "--help"]);
        assert!(printed.out.contains("--dataset") && !printed.out.contains("--reward <"), "{}", printed.out);
        misused(dir.path(), &[command, "--reward", "gsm8k"], &["'--reward'"]);
    }
}

#[test]
fn invalid_configurations_are_refused_by_key() {
    let dir = good();
    let set = |pair: &str, words: &[&str]| train(dir.path(), &["--set", pair], words);
    set("learning_raet=1", &["unknown key `learning_raet`", "did you mean `learning_rate`?"]);
    set("num_generations=1", &["`num_generations`", "at least 2"]);
    set("num_generations=3", &["multiple of num_generations = 3", "per_device_train_batch_size to 3 or 6"]);
    set("temperature=0", &["`temperature` = 0"]);
    set("bf16=true", &["the key is dtype = \"bf16\" here"]);
    set("fp16=true", &["compute is f32 or bf16"]);
    set("loss_type=ppo", &["grpo, bnpo, dr_grpo, dapo"]);
    for optim in ["no_such_name", "adamw_8bit"] {
        set(&format!("optim={optim}"), &["`optim`: unknown optimizer", optim, "adamw_torch", "muon"]);
    }
    set("stop_token_ids=[3, 40]", &["`stop_token_ids` has 40", "below 40, the vocabulary size"]);
    set("optim_args=betas=0.5", &["optim_args: ", "no argument `betas`", "adam_beta1"]);
    set("beta", &["--set beta", "KEY=VALUE"]);
    write(dir.path(), "broken.toml", "beta = 0.1\nseed = \n");
    train(dir.path(), &["broken.toml"], &["broken.toml, line 2"]);
    train(dir.path(), &["missing.toml"], &["missing.toml"]);
    write(dir.path(), "twice.toml", "beta = 0.1\nseed = 1\nseed = 2\n");
    train(dir.path(), &["twice.toml"], &["twice.toml, line 3", "duplicate key `seed`"]);
    write(dir.path(), "sections.toml", "[trainer]\nbeta = 0.1\n");
    train(dir.path(), &["sections.toml"], &["unknown key `trainer`. Keys are flat: there are no sections (`lockstep"]);
    std::fs::create_dir(dir.path().join("old")).unwrap();
    write(dir.path(), "old/config.toml", "beta = 0.1\n");
    train(dir.path(), &["old"], &["the configuration old is a directory", "give old/config.toml"]);
    train(dir.path(), &["model"], &["the configuration model is a directory, not a TOML file"]);
    let once = ["--set", "eval_dataset_name=d.jsonl", "--set", "num_generations_eval=1", "--set", "eval_pass_at_k=[3]"];
    train(
        dir.path(),
        &once,
        &["`eval_pass_at_k` has 3", "each prompt has only 1 completion: set num_generations_eval = 3"],
    );
    let never = [&once[..4], &["--set", "eval_pass_at_k=[0]"]].concat();
    train(dir.path(), &never, &["`eval_pass_at_k` has 0", "at least 1"]);
    let eval =
        ["eval", "--model", "model", "--reward", "unique_chars", "--dataset", "a=d.jsonl", "--dataset", "a=d.jsonl"];
    refused(dir.path(), &eval, &["--dataset a=d.jsonl", "the name is used twice"]);
}

#[test]
fn invalid_datasets_are_refused_by_line() {
    let dir = good();
    let data = |content: &str, words: &[&str]| {
        write(dir.path(), "bad.jsonl", content);
        train(dir.path(), &["--set", "dataset_name=bad.jsonl"], words);
    };
    data("{\"question\": \"ab\"}\n", &["bad.jsonl, line 1", "no column `prompt`", "`question`"]);
    data("{\"prompt\": \"ab\"}\n{\"prompt\": \n", &["bad.jsonl, line 2", "broken JSON"]);
    data("\n", &["bad.jsonl", "empty"]);
    data("{\"prompt\": 7}\n", &["line 1", "expected a string"]);
    data(
        &format!("{{\"prompt\": \"{}\"}}\n", "a".repeat(70)),
        &["70 tokens", "context of 64", "max_prompt_length = 60"],
    );
    train(dir.path(), &["--set", "max_completion_length=63"], &["2 tokens", "lower max_completion_length to 62"]);
    train(dir.path(), &["--set", "dataset_name=none.jsonl"], &["none.jsonl", "does not exist"]);
    write(dir.path(), "bad.jsonl", "{\"prompt\": \"ab\"}\n");
    let columnless = ["--set", "dataset_name=bad.jsonl", "--set", "reward_funcs=exact_match"];
    train(dir.path(), &columnless, &["exact_match", "`answer`"]);
}

#[test]
fn invalid_rewards_are_refused() {
    let dir = good();
    let set = |rewards: &str, words: &[&str]| train(dir.path(), &["--set", &format!("reward_funcs={rewards}")], words);
    set("uniqe_chars", &["did you mean `unique_chars`?"]);
    set("command:./no_such_program", &["./no_such_program"]);
    set("[\"format:(\"]", &["format"]);
    train(
        dir.path(),
        &["--set", "reward_weights=[1, 2]"],
        &["must have one weight per reward: it has 2, and there are 1"],
    );
}

#[test]
fn invalid_model_directories_are_refused_by_file() {
    let dir = good();
    let weights = dir.path().join("model/model.safetensors");
    let whole = std::fs::read(&weights).unwrap();
    let config = std::fs::read_to_string(dir.path().join("model/config.json")).unwrap();
    let with = |name: &str, content: &[u8], words: &[&str]| {
        write(&dir.path().join("model"), name, content);
        train(dir.path(), &[], words);
    };
    with("model.safetensors", &whole[..whole.len() - 9], &["model.safetensors"]);
    with("model.safetensors", b"garbage, not a weight file", &["model.safetensors"]);
    std::fs::remove_file(&weights).unwrap();
    train(dir.path(), &[], &["safetensors"]);
    write(&dir.path().join("model"), "model.safetensors", &whole);

    let bare: String = config.split_whitespace().collect();
    let compact = |from: &str, to: &str| {
        assert!(bare.contains(from), "{from} is not in {bare}");
        bare.replace(from, to).into_bytes()
    };
    with("config.json", &compact("\"model_type\":\"llama\"", "\"model_type\":\"mamba\""), &["model_type", "mamba"]);
    with("config.json", &compact("\"hidden_act\":\"silu\"", "\"hidden_act\":\"relu\""), &["hidden_act", "relu"]);
    with("config.json", &compact("\"vocab_size\":40", "\"vocab_size\":20"), &["vocabulary", "20"]);
    with("config.json", &compact("\"intermediate_size\":24", "\"intermediate_size\":23"), &["mlp", "23"]);
    let hiden = compact("\"hidden_size\"", "\"hiden_size\"");
    with("config.json", &hiden, &["`hidden_size`: missing; did you misspell it as `hiden_size`?"]);
    let huge = compact("\"vocab_size\":40", "\"vocab_size\":40000000000");
    with("config.json", &huge, &["`vocab_size` = 40000000000: expected at most"]);
    with("config.json", b"{", &["config.json: not JSON: EOF"]);
    with("config.json", b"[]", &["config.json: expected a JSON object"]);
    write(&dir.path().join("model"), "config.json", &config);
    std::fs::remove_file(dir.path().join("model/tokenizer.json")).unwrap();
    train(dir.path(), &[], &["model/tokenizer.json: no such file", "tokenizer_config.json"]);
    let merge = ["merge", "--model", "model", "--adapter", "model", "--out", "x"];
    refused(dir.path(), &merge, &["model/adapter_config.json", "expected the directory of a PEFT adapter"]);
}

#[test]
fn unusable_output_directories_are_refused() {
    let dir = good();
    std::fs::create_dir(dir.path().join("run")).unwrap();
    // A file with a name that the run itself writes is refused; other files are not.
    write(&dir.path().join("run"), "metrics.jsonl", "mine");
    train(dir.path(), &[], &["run", "metrics.jsonl", "--out"]);
    write(dir.path(), "file", "");
    train(dir.path(), &["--set", "output_dir=file"], &["file"]);
    train(dir.path(), &["--set", "output_dir=new", "--resume", "run"], &["run", "not a run"]);
}

#[test]
fn invalid_input_of_sft_is_refused() {
    let dir = good();
    let base = ["sft", "--model", "model", "--dataset", "d.jsonl", "--out", "run"];
    refused(dir.path(), &base, &["d.jsonl, line 1", "no column `completion`", "`prompt`, `answer`"]);
    let long = [&base[..], &["--set", "completion_column=answer", "--set", "max_length=1"]].concat();
    refused(dir.path(), &long, &["max_length"]);
}

#[test]
fn invalid_input_of_dpo_is_refused() {
    let dir = good();
    write(dir.path(), "pairs.jsonl", "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n");
    let base = ["dpo", "--model", "model", "--out", "run", "--set", "per_device_train_batch_size=1", "--dataset"];
    refused(dir.path(), &[&base[..], &["d.jsonl"]].concat(), &["d.jsonl, line 1", "no column `chosen`", "`rejected`"]);
    let set = |pair: &str, words: &[&str]| {
        refused(dir.path(), &[&base[..], &["pairs.jsonl", "--set", pair]].concat(), words);
    };
    set("beta=0", &["`beta` = 0", "above 0"]);
    set("label_smoothing=0.1", &["`label_smoothing`", "robust"]);
    set("label_smoothing=0.5", &["`label_smoothing`"]);
    set("dpo_loss_type=dpo", &["dpo_loss_type", "sigmoid"]);
    set("ref_model=other", &["`ref_model`", "other does not exist"]);
    set("max_length=1", &["max_length"]);
    set("per_device_train_batch_size=2", &["per_device_train_batch_size", "has only 1"]);
    set("replay=x.jsonl", &["`replay`", "train", "learns from dataset_name"]);
    let right = [&base[..], &["pairs.jsonl", "--steps", "1"]].concat();
    let printed = lockstep(dir.path(), &right);
    assert_eq!(printed.code, Some(0), "{}{}", printed.out, printed.err);
}

/// Checks that the inputs of the tests above are accepted once their errors are removed.
#[test]
fn valid_input_is_accepted() {
    let dir = good();
    let base = ["train", "--model", "model", "--dataset", "d.jsonl", "--reward", "exact_match", "--out", "run"];
    let small = ["num_generations=4", "per_device_train_batch_size=4", "max_completion_length=4", "max_steps=1"];
    let mut arguments = base.to_vec();
    for pair in &small {
        arguments.extend(["--set", pair]);
    }
    let printed = lockstep(dir.path(), &arguments);
    assert_eq!(printed.code, Some(0), "{}{}", printed.out, printed.err);
    assert!(dir.path().join("run/config.toml").is_file() && dir.path().join("run/metrics.jsonl").is_file());
    refused(dir.path(), &arguments, &["run", "already holds a run", "--resume"]);
}

/// Numbers too large for any machine are refused with an error that names the setting, without a panic or an abort.
#[test]
fn absurd_sizes_are_refused() {
    let dir = good();
    for (key, words) in [
        ("threads=100000", "`threads`"),
        ("kv_cache_blocks=1000000000000", "`kv_cache_blocks`"),
        ("kv_cache_blocks=60000000", "MiB of memory"),
        ("max_num_seqs=1000000000", "`max_num_seqs`"),
        ("num_generations=1000000000000", "`num_generations`"),
        ("per_device_train_batch_size=4000000000000000000", "`per_device_train_batch_size`"),
        ("gradient_accumulation_steps=1000000", "rows, but the training data has only"),
        ("generation_batch_size=4000000000000", "`generation_batch_size`"),
        ("max_completion_length=9000000000000000000", "`max_completion_length`"),
        ("num_iterations=9000000000000000000", "`num_iterations`"),
    ] {
        train(dir.path(), &["--set", key], &[words]);
    }
    train(dir.path(), &["--threads", "100000"], &["`threads`", "4096"]);
    let model = ["--model", "model", "--prompt", "ab"];
    for (flag, value) in [("--n", "1000000000000"), ("--threads", "100000")] {
        refused(dir.path(), &[&["generate"], &model[..], &[flag, value]].concat(), &[value]);
    }
    // The completion gets as many tokens as the context allows.
    let long = [&["generate"], &model[..], &["--max-new-tokens", "9000000000000000000", "--n", "2"]].concat();
    assert_eq!(lockstep(dir.path(), &long).code, Some(0));
}

/// A stop string ends a completion. An empty one would end every completion at once, so it is refused.
#[test]
fn empty_stop_strings_are_refused() {
    let dir = good();
    train(dir.path(), &["--set", "stop=[\"a\", \"\"]"], &["`stop`", "empty"]);
    refused(dir.path(), &["generate", "--model", "model", "--prompt", "ab", "--stop", ""], &["--stop"]);
}

/// If a flag and a `--set` give a key two values, the command refuses to choose.
#[test]
fn a_key_with_two_values_is_refused() {
    let dir = good();
    let root = dir.path();
    train(
        root,
        &["--seed", "1", "--set", "seed=2"],
        &["`seed` has two values: 1 from --seed and 2 from --set", "remove one"],
    );
    train(
        root,
        &["--reward", "format:a"],
        &["`reward_funcs` has two values: [\"format:a\"] from --reward and unique_chars from --set"],
    );
    let replay = ["train", "--model", "model", "--replay", "a.jsonl", "--set", "replay=b.jsonl"];
    refused(root, &replay, &["`replay` has two values: a.jsonl from --replay and b.jsonl from --set"]);
    let eval = ["eval", "--model", "model", "--dataset", "d.jsonl", "--task", "prompt_answer"];
    let greedy = ["--temperature", "0", "--set", "eval_sampling=sampled"];
    refused(root, &[&eval[..], &greedy].concat(), &["`eval_sampling` has two values: greedy from --temperature 0"]);
    // The last `--set` wins, also over a value implied by a flag; repeating an equal value is not an error.
    let show = ["config", "show", "--json", "--seed", "3", "--set", "seed=3", "--set", "beta=1", "--set", "beta=2"];
    let shown: serde_json::Value = serde_json::from_str(&lockstep(root, &show).out).unwrap();
    assert_eq!((&shown["seed"], &shown["beta"]), (&3.into(), &2.0.into()));
    let several = ["--n", "2", "--set", "eval_sampling=greedy", "--json", "--max-completion-length", "4"];
    let printed = lockstep(root, &[&eval[..], &several].concat());
    assert_eq!(printed.code, Some(0), "{}", printed.err);
    let shown: serde_json::Value = serde_json::from_str(&printed.out).unwrap();
    assert_eq!(shown["sampling"]["kind"].as_str().or(shown["sampling"].as_str()), Some("greedy"), "{shown}");
}

#[cfg(unix)]
mod not_utf8 {
    use super::*;
    use crate::support::{command, listing};
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    fn bytes(text: &[u8]) -> &OsStr {
        OsStr::from_bytes(text)
    }

    /// The error message of a command that must be refused.
    #[track_caller]
    fn refused(mut command: std::process::Command, directory: &Path) -> String {
        let before = listing(directory);
        let output = command.output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{printed}");
        assert!(!printed.contains("panicked") && listing(directory) == before, "{printed}");
        printed
    }

    #[test]
    fn invalid_utf8_in_the_environment_is_refused() {
        let dir = good();
        let show = || command(dir.path(), &["config", "show"]);
        let mut other = show();
        assert!(
            other.env("OTHER", bytes(b"\xff")).output().unwrap().status.success(),
            "variables of other programs must be ignored"
        );
        for (name, value) in
            [(&b"LOCKSTEP_SEED"[..], &b"\xff"[..]), (b"LOCKSTEP_\xff", b"1"), (b"LOCKSTEP_LOG", b"\xff")]
        {
            let mut ours = show();
            ours.env(bytes(name), bytes(value));
            assert!(refused(ours, dir.path()).contains("LOCKSTEP_"));
        }
        let mut generate = command(dir.path(), &["generate", "--model", "model", "--prompt", "ab"]);
        generate.env("LOCKSTEP_THREADS", bytes(b"\xff"));
        assert!(refused(generate, dir.path()).contains("LOCKSTEP_THREADS"));
    }

    #[test]
    fn invalid_utf8_in_a_path_is_refused() {
        let dir = good();
        let train = ["train", "--model", "model", "--dataset", "d.jsonl", "--reward", "unique_chars", "--out"];
        let mut out = command(dir.path(), &train);
        out.arg(bytes(b"run\xff"));
        assert!(refused(out, dir.path()).contains("--out"));
        for arguments in [
            &["generate", "--prompt", "ab", "--model"][..],
            &["score", "--input", "-", "--model"],
            &["eval", "--model"],
        ] {
            let mut command = command(dir.path(), arguments);
            command.arg(bytes(b"model\xff"));
            refused(command, dir.path());
        }
    }
}

/// Every command either obeys or refuses each environment variable.
#[test]
fn environment_variables_are_obeyed_or_refused() {
    let dir = good();
    let with = |arguments: &[&str], variable: &str, value: &str| {
        let output = command(dir.path(), arguments).env(variable, value).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let generate = ["generate", "--model", "model", "--prompt", "ab", "--max-new-tokens", "2"];
    for arguments in [&generate[..], &["score", "--model", "model", "--input", "none"], &["doctor"], &["demo"]] {
        let (code, printed) = with(arguments, "LOCKSTEP_TEMPERATURE", "0.5");
        assert!(code == Some(2) && printed.contains("LOCKSTEP_TEMPERATURE") && printed.contains("flag"), "{printed}");
        let (code, printed) = with(arguments, "LOCKSTEP_TEMPRATURE", "0.5");
        assert!(
            code == Some(2) && printed.contains("LOCKSTEP_TEMPRATURE") && printed.contains("`temperature`"),
            "{printed}"
        );
    }
    for arguments in [&generate[..], &["config", "show"], &["train"]] {
        let (code, printed) = with(arguments, "LOCKSTEP_LOG", "loud");
        assert!(code == Some(2) && printed.contains("LOCKSTEP_LOG=loud: expected error, warn"), "{printed}");
    }
    assert_eq!(with(&generate, "LOCKSTEP_LOG", "WARN").0, Some(0));
    assert_eq!(with(&generate, "LOCKSTEP_THREADS", "1").0, Some(0));
    assert_eq!(with(&generate, "LOCKSTEP_TEMPERATURE", "").0, Some(0), "an empty variable must count as unset");
    let eval = ["eval", "--model", "model", "--reward", "unique_chars", "--json", "--max-completion-length", "6"];
    let (code, printed) = with(&eval, "LOCKSTEP_EVAL_DATASET_NAME", "d.jsonl");
    assert_eq!(code, Some(0), "{printed}");
    assert!(with(&eval, "LOCKSTEP_EVAL_DATASET", "d.jsonl").1.contains("unknown key"));
}
