use super::*;
use serde_json::Value;

/// The planned bytes of each part, and their sum.
fn plan(dir: &Path, more: &[&str]) -> (serde_json::Map<String, Value>, u64) {
    let base = ["plan", "--json", "--model", "model", "--set", "max_completion_length=32"];
    let out: Value = serde_json::from_str(&lockstep(dir, &[&base, more].concat(), "").ok()).expect("JSON");
    let parts = out["parts"].as_array().expect("parts").iter();
    let parts = parts.map(|p| (p["part"].as_str().expect("a name").to_owned(), p["bytes"].clone())).collect();
    (parts, out["total_bytes"].as_u64().expect("a number"))
}

/// A learner has a slot for each version of the weights that workers may read, and one for the version in training.
#[test]
fn a_learner_has_a_slot_for_each_version() {
    let dir = model();
    let weights = |more: &[&str]| {
        let parts = plan(dir.path(), more).0;
        (parts["weights"].as_u64().unwrap(), parts.contains_key("generation: kv cache"))
    };
    let (one, _) = weights(&["--set", "max_staleness=2"]);
    assert_eq!(weights(&["--distributed", "--set", "max_staleness=0"]), (one, false));
    assert_eq!(weights(&["--distributed", "--set", "max_staleness=2"]), (3 * one, false));
    // With an adapter, slots hold only the adapter.
    let lora = ["--distributed", "--set", "max_staleness=2", "--set", "use_peft=true"];
    let parts = plan(dir.path(), &lora).0;
    assert_eq!(parts["weights"].as_u64().unwrap(), one, "{parts:?}");
}

#[test]
fn the_parts_follow_from_the_shape_and_the_keys() {
    let dir = model();
    let (parts, total) = plan(dir.path(), &[]);
    let bytes = |parts: &serde_json::Map<String, Value>, name: &str| {
        parts.get(name).and_then(Value::as_u64).unwrap_or_else(|| panic!("{name}: {parts:?}"))
    };
    assert_eq!(total, parts.values().filter_map(Value::as_u64).sum::<u64>());

    // Weights are stored in panels of 32 rows, so the embedding's 40 rows are padded to 64. The 96 rows of gate and up
    // and the 64 rows of q, k and v need no padding.
    let (hidden, head_dim, ffn) = (32, 8, 48);
    let layer = 64 * hidden + 32 * hidden + 2 * ffn * hidden + 32 * ffn + 2 * hidden + 2 * head_dim;
    let embedding = 64 * hidden;
    let weights = 4 * (embedding + 2 * layer + hidden);
    assert_eq!(bytes(&parts, "weights"), weights);
    // The gradient of the tied embedding as an input matrix is accumulated separately, for the tokens that occur (at
    // most all 40).
    assert_eq!(bytes(&parts, "training: gradients"), weights + 4 * 40 * hidden);
    assert_eq!(bytes(&parts, "training: optimizer"), 2 * weights + 8);
    // KV cache: 9 sequences (a generation has 8 completions) of 128 tokens, 2 layers, 2 heads of dimension 8.
    let sequence = 128 * 2 * 2 * 2 * 8 * 4;
    assert_eq!(bytes(&parts, "generation: kv cache"), 9 * sequence);
    for (key, sequences) in [("max_num_seqs=4", 4), ("generation_batch_size=24", 24), ("generation_batch_size=640", 64)]
    {
        let other = plan(dir.path(), &["--set", key]).0;
        assert_eq!(bytes(&other, "generation: kv cache"), (sequences + 1) * sequence, "{key}");
    }
    for set in ["gradient_checkpointing=true", "max_tokens_per_micro_batch=16"] {
        let less = plan(dir.path(), &["--set", set, "--set", "num_generations=2"]).0;
        let more = plan(dir.path(), &["--set", "num_generations=2"]).0;
        let of = |p| bytes(p, "training: activations");
        assert!(of(&less) < of(&more), "{set}");
    }
    let with_reference = plan(dir.path(), &["--set", "beta=0.1"]).0;
    assert_eq!(bytes(&with_reference, "reference: weights"), weights);
    // The model without its adapter is the reference, so no second model is loaded.
    let adapted = plan(dir.path(), &["--set", "beta=0.1", "--set", "use_peft=true"]).0;
    assert!(bytes(&adapted, "reference: workspace") > 0 && !adapted.contains_key("reference: weights"), "{adapted:?}");
}

/// A reward model adds its memory. A replayed file with log-probabilities of the reference needs no reference model.
#[test]
fn reward_models_are_counted_and_unused_references_are_not() {
    let dir = model();
    let root = dir.path();
    std::fs::write(root.join("data.jsonl"), "{\"prompt\":\"abc\"}\n".repeat(8)).unwrap();
    let head = "{\"architectures\": [\"Qwen3ForSequenceClassification\"], \"id2label\": {\"0\": \"LABEL_0\"}, ";
    let scorer = CONFIG.replacen('{', head, 1);
    // The directory has no weights, since planning does not read any.
    std::fs::create_dir(root.join("rm")).unwrap();
    std::fs::write(root.join("rm/config.json"), scorer).unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(root.join("model").join(file), root.join("rm").join(file)).unwrap();
    }
    let rewarded = |reward: &str| plan(root, &["--dataset", "data.jsonl", "--reward", reward]);
    let (plain, plain_total) = rewarded("length:10");
    let (with, total) = rewarded("model:rm");
    let of_reward: u64 =
        with.iter().filter(|(name, _)| name.starts_with("reward ")).map(|(_, b)| b.as_u64().unwrap()).sum();
    // The score head is one panel of 32 rows; the rest of the model has the same size.
    let weights = plain["weights"].as_u64().unwrap();
    assert_eq!(with["reward model: weights"].as_u64().unwrap(), weights + 4 * 32 * 32);
    // A reward model reads one token more than the completion has: the end-of-sequence token.
    let longer = ["--dataset", "data.jsonl", "--set", "beta=0.1", "--set", "max_completion_length=33"];
    let (longer, _) = plan(root, &longer);
    assert_eq!(with["reward model: workspace"], longer["reference: workspace"]);
    assert!(plain.len() < with.len(), "{with:?}");
    // The totals come from two processes, whose resident memory differs a little.
    assert!(total.abs_diff(plain_total + of_reward) < 4 << 20, "{total} {plain_total} {of_reward}");

    let line = |more: &str| {
        format!(
            "{{\"prompt_ids\": [1], \"completion_ids\": [[2], [3]], \"rewards\": [0, 1], \"logprobs\": [[-1], \
             [-1]]{more}}}\n"
        )
    };
    std::fs::write(root.join("without.jsonl"), line("")).unwrap();
    std::fs::write(root.join("with.jsonl"), line(", \"ref_logprobs\": [[-1], [-1]]")).unwrap();
    let replayed = |file: &str| {
        let set = format!("replay={file}");
        plan(
            root,
            &[
                "--set",
                &set,
                "--set",
                "beta=0.1",
                "--set",
                "num_generations=2",
                "--set",
                "per_device_train_batch_size=2",
            ],
        )
        .0
    };
    assert_eq!(replayed("without.jsonl")["reference: weights"].as_u64().unwrap(), weights);
    assert!(replayed("with.jsonl").keys().all(|name| !name.starts_with("reference")), "{:?}", replayed("with.jsonl"));
}

#[test]
fn the_longest_prompt_is_taken_from_the_data() {
    let dir = model();
    let rows = "{\"prompt\":\"abc\"}\n{\"prompt\":\"a longer one\"}\n";
    std::fs::write(dir.path().join("data.jsonl"), rows).unwrap();
    let more = ["--json", "--set", "max_completion_length=32", "--dataset", "data.jsonl", "--reward", "length:10"];
    let out = lockstep(dir.path(), &[&["plan", "--model", "model"], &more[..]].concat(), "").ok();
    let out: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(out["longest_prompt"], 12);
    assert_eq!(out["fits"], true);
}

#[test]
fn the_longest_prompt_is_bounded_by_the_configuration_without_data() {
    let dir = model();
    let longest = |set: &[&str]| {
        let arguments = ["plan", "--model", "model", "--json", "--set", "max_completion_length=32"];
        let out: Value = serde_json::from_str(&lockstep(dir.path(), &[&arguments, set].concat(), "").ok()).unwrap();
        out["longest_prompt"].as_u64().unwrap()
    };
    assert_eq!(longest(&[]), 128 - 32);
    assert_eq!(longest(&["--set", "max_prompt_length=8"]), 8);
    assert_eq!(longest(&["--set", "max_prompt_length=100"]), 128 - 32);
}

#[test]
fn a_model_larger_than_any_machine_is_planned_but_not_trained() {
    let dir = model();
    let config = CONFIG.replace("\"hidden_size\": 32", "\"hidden_size\": 32768");
    let config = config.replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 800");
    let config = config.replace("\"intermediate_size\": 48", "\"intermediate_size\": 131072");
    std::fs::write(dir.path().join("model/config.json"), config).unwrap();
    let arguments = ["plan", "--model", "model", "--set", "max_completion_length=32"];
    let planned = lockstep(dir.path(), &arguments, "");
    let (code, text) = (planned.code, planned.out);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("does not fit") && text.contains("No key makes it fit"), "{text}");

    std::fs::write(dir.path().join("data.jsonl"), "{\"prompt\":\"abc\"}\n".repeat(8)).unwrap();
    let more = ["--dataset", "data.jsonl", "--reward", "length:10", "--out", "run"];
    let train = [&["train"], &arguments[1..], &more[..]].concat();
    let ran = lockstep(dir.path(), &train, "");
    assert!(ran.code == Some(2) && ran.err.contains("No key makes it fit"), "{:?} {}", ran.code, ran.err);
}

#[test]
fn a_run_on_pairs_is_planned_by_the_longest_pair() {
    let dir = model();
    std::fs::write(dir.path().join("pairs.jsonl"), "{\"prompt\":\"abc\",\"chosen\":\"de\",\"rejected\":\"fedcba\"}\n")
        .unwrap();
    let arguments = ["plan", "--for", "dpo", "--model", "model", "--dataset", "pairs.jsonl", "--json"];
    let out: Value = serde_json::from_str(&lockstep(dir.path(), &arguments, "").ok()).unwrap();
    assert_eq!((&out["longest_prompt"], &out["longest_completion"]), (&3.into(), &7.into()));
    assert!(out["fits"].as_bool().unwrap() && out["total_bytes"].as_u64().unwrap() > 0, "{out}");
}

#[test]
fn a_supervised_run_is_planned_by_the_longest_row() {
    let dir = model();
    let rows = "{\"prompt\":\"abc\",\"completion\":\"de\"}\n{\"prompt\":\"a\",\"completion\":\"bcdefgh\"}\n";
    std::fs::write(dir.path().join("data.jsonl"), rows).unwrap();
    let arguments = ["plan", "--for", "sft", "--model", "model", "--dataset", "data.jsonl", "--json"];
    let planned = |more: &[&str]| -> Value {
        serde_json::from_str(&lockstep(dir.path(), &[&arguments, more].concat(), "").ok()).unwrap()
    };
    let out = planned(&[]);
    // Seven letters and the end-of-sequence token.
    assert_eq!((&out["longest_prompt"], &out["longest_completion"]), (&1.into(), &8.into()));
    let names = |out: &Value| -> Vec<String> {
        out["parts"].as_array().unwrap().iter().map(|p| p["part"].as_str().unwrap().to_owned()).collect()
    };
    assert!(names(&out).iter().all(|n| !n.starts_with("generation") && !n.starts_with("evaluation")), "{out}");
    let evaluated = planned(&["--set", "eval_dataset_name=data.jsonl"]);
    assert!(names(&evaluated).iter().any(|n| n == "evaluation: workspace"), "{evaluated}");
}

/// On a device, truncated or penalised distributions are sampled from whole rows of logits: as many rows as fit into
/// 256 MiB, with several words per logit.
#[test]
fn the_plan_includes_the_memory_of_the_sampler() {
    let dir = model();
    let root = dir.path();
    let vocab: u64 = 151_936;
    let config = CONFIG.replace("\"vocab_size\": 40", &format!("\"vocab_size\": {vocab}"));
    std::fs::write(root.join("model/config.json"), config).unwrap();
    std::fs::write(root.join("data.jsonl"), "{\"prompt\":\"abc\"}\n".repeat(8)).unwrap();
    let scratch = |set: &[&str]| {
        let mut all = vec!["--device", "cuda-emulated", "--reward", "length:10"];
        for pair in set {
            all.extend(["--set", pair]);
        }
        plan(root, &all).0["scratch of operations"].as_u64().unwrap()
    };
    let drawn = |key: &str| scratch(&["dataset_name=data.jsonl", "generation_batch_size=64", "num_generations=8", key]);
    let plain = drawn("top_k=0");
    let rows = (1 << 26) / (4 * vocab + 2 * 262_144);
    let whole = 4 * rows * (4 * vocab + 2 * 262_144);
    assert!(rows < 64 && plain < whole, "{plain} {whole}");
    for key in ["top_k=5", "top_p=0.9", "min_p=0.1", "repetition_penalty=1.2"] {
        let more = drawn(key);
        assert!(more > whole && more < whole + whole / 8, "{key}: {more}, {whole}");
    }
    // In a replay only the evaluation samples, and greedy sampling does not truncate.
    let line =
        "{\"prompt_ids\": [1], \"completion_ids\": [[2], [3]], \"rewards\": [0, 1], \"logprobs\": [[-1], [-1]]}\n";
    std::fs::write(root.join("r.jsonl"), line).unwrap();
    let evaluated = |sampling: &str| {
        let sizes = ["num_generations=2", "per_device_train_batch_size=2", "num_generations_eval=8"];
        scratch(&[&["replay=r.jsonl", "eval_dataset_name=data.jsonl", "top_k=5", sampling], &sizes[..]].concat())
    };
    assert!(evaluated("eval_sampling=greedy") < whole && evaluated("eval_sampling=sampled") > whole);
}
