//! `--ranks`: several processes divide generation and the passes of each step, with the bits of one process with the
//! same `gradient_shares`.

use crate::distributed_faults::signal;
use crate::stopping::is_alive;
use crate::support::runs::{arguments, directory, directory_of, files, good, same, same_but_workers};
use crate::support::{CONFIG, command, refused};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Stdio};
use testing::wait_until;

/// The arguments of a run of `purpose` in `out` with this many ranks.
pub fn divided<'a>(purpose: &'a str, out: &'a str, set: &[&'a str], ranks: &'a str) -> Vec<&'a str> {
    [arguments(purpose, out, set), vec!["--ranks", ranks]].concat()
}

const PROFILES: &str = "sampling_profiles={ fast = { share = 0.75, max_completion_length = 2 }, \
                        quality = { share = 0.25, top_k = 8 } }";

/// Kinds of runs: the command, a name and keys. The model's embeddings are tied.
pub const KINDS: [(&str, &str, &[&str]); 11] = [
    ("train", "grpo", &["beta=0.04", "per_device_train_batch_size=8", "record_rollouts=true", "stop=[\"a\"]"]),
    ("train", "iterations", &["num_iterations=2", "per_device_train_batch_size=8", "optim=muon", "dtype=bf16"]),
    (
        "train",
        "dynamic",
        &[
            "dynamic_sampling=true",
            "per_device_train_batch_size=8",
            "adam_moments_dtype=bf16",
            "rollout_activations=100kB",
        ],
    ),
    ("train", "rloo", &["algorithm=rloo", "per_device_train_batch_size=8", "max_staleness=1"]),
    (
        "train",
        "lora",
        &["use_peft=true", "lora_r=2", "lora_dropout=0.1", "beta=0.04", "per_device_train_batch_size=16"],
    ),
    ("train", "adapter", &["use_peft=true", "lora_r=2", "per_device_train_batch_size=16"]),
    ("train", "chunks", &[PROFILES, "max_staleness=2", "partial_rollout_tokens=2", "per_device_train_batch_size=8"]),
    ("train", "ppo", &["algorithm=ppo", "num_ppo_epochs=2", "num_mini_batches=2", "per_device_train_batch_size=8"]),
    ("sft", "sft", &["packing=false"]),
    ("reward", "reward", &["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl"]),
    ("dpo", "dpo", &["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl"]),
];

#[test]
fn any_number_of_ranks_gives_the_bits_of_one_process() {
    let dir = directory();
    let root = dir.path();
    for (purpose, kind, set) in KINDS {
        let set = [set, &["gradient_shares=4"]].concat();
        let one = format!("{kind}-1");
        good(root, &arguments(purpose, &one, &set));
        for ranks in ["2", "4"] {
            let out = format!("{kind}-{ranks}");
            good(root, &divided(purpose, &out, &set, ranks));
            // A batch that was generated ahead has the seconds that it took.
            let compare = if ["rloo", "chunks"].contains(&kind) { same_but_workers } else { same };
            compare(&root.join(&one), &root.join(&out));
        }
    }
    good(root, &["verify", "grpo-4", "--all"]);
    // Each rank generates its groups and keeps their activations, which it uses as one process does.
    for kind in ["grpo", "adapter"] {
        let shares = ["1", "2", "4"].map(|ranks| shares_of_activations(&root.join(format!("{kind}-{ranks}"))));
        assert!(shares[0].iter().all(|&share| share > 0.5) && !shares[0].is_empty(), "{kind}: {shares:?}");
        assert!(shares.iter().all(|of| *of == shares[0]), "{kind}: {shares:?}");
    }
}

/// The share of the update's rows whose activations were kept, from every line of the metrics.
fn shares_of_activations(run: &Path) -> Vec<f64> {
    let text = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter_map(|line| line["rollout_activations_share"].as_f64()).collect()
}

/// Operations of the passes and of the optimizer step on all ranks are counted, as those of one process.
#[test]
fn operations_of_all_ranks_are_counted() {
    let dir = directory();
    let root = dir.path();
    let set = ["gradient_shares=4", "per_device_train_batch_size=8", "rollout_activations=off", "max_steps=4"];
    let flops = ["1", "2", "4"].map(|ranks| {
        good(root, &divided("train", ranks, &set, ranks));
        ["rollout", "update"].map(|span| flops_of(&root.join(ranks), span))
    });
    assert!(flops[0].iter().all(|&flops| flops > 0.0));
    assert_eq!(flops[0], flops[1]);
    assert_eq!(flops[0], flops[2]);
}

/// The floating-point operations of all spans of this name.
fn flops_of(run: &Path, span: &str) -> f64 {
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(run.join("trace.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().or(trace.as_array()).unwrap();
    let spans = events.iter().filter(|event| event["name"] == *span);
    spans.filter_map(|event| event["args"]["flops"].as_f64()).sum()
}

/// Neighbouring groups with the same prompt are one group of the update, whose kept activations are used, too.
#[test]
fn activations_of_groups_with_the_same_prompt_are_used_by_all_ranks() {
    let dir = directory();
    let root = dir.path();
    let rows: String =
        ["ab", "sun", "moon", "tree"].iter().map(|w| format!("{{\"prompt\": \"{w} \"}}\n").repeat(2)).collect();
    std::fs::write(root.join("twice.jsonl"), rows).unwrap();
    let set =
        ["gradient_shares=2", "per_device_train_batch_size=16", "shuffle_dataset=false", "dataset_name=twice.jsonl"];
    let shares = ["1", "2"].map(|ranks| {
        good(root, &divided("train", ranks, &set, ranks));
        shares_of_activations(&root.join(ranks))
    });
    same(&root.join("1"), &root.join("2"));
    assert!(shares[0].iter().all(|&share| share > 0.5) && !shares[0].is_empty(), "{shares:?}");
    assert_eq!(shares[0], shares[1]);
}

/// The texts from which tokens are drafted are those of all ranks.
#[test]
fn drafts_of_all_ranks_are_kept() {
    let dir = directory();
    let root = dir.path();
    let set = ["gradient_shares=2", "per_device_train_batch_size=8", "max_steps=4", "speculative=auto"];
    let texts = ["1", "2"].map(|ranks| {
        good(root, &divided("train", ranks, &set, ranks));
        std::fs::read(root.join(ranks).join("drafts.bin")).unwrap().len()
    });
    assert_eq!(texts[0], texts[1]);
    good(root, &["train", "--resume", "2", "--ranks", "2", "--set", "max_steps=8"]);
}

/// The processor time that a process has used, in ticks of 10 ms.
fn cpu_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let times = stat.rsplit(") ").next().unwrap_or_default().split(' ').skip(11).take(2);
    times.filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
}

/// A run begins with a long evaluation, which needs nothing but generation. Another rank takes part in it, and is lost
/// meanwhile.
#[test]
fn a_rank_that_is_lost_during_generation_ends_the_run() {
    let dir = directory();
    let root = dir.path();
    let set = ["eval_on_start=true", "num_generations_eval=50000", "max_completion_length=50", "speculative=off"];
    for (name, why) in
        [("9", "was killed by signal 9"), ("STOP", "sent no heartbeat for 15 s: it hangs or was stopped")]
    {
        let out = format!("lost-{name}");
        let arguments = [divided("train", &out, &set, "2"), vec!["--threads", "2"]].concat();
        let run = command(root, &arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        wait_until("the run has another rank", || children(run.id()).len() == 1);
        let rank = children(run.id())[0];
        wait_until("the rank generates", || cpu_ticks(rank) >= 100);
        signal(rank, name);
        let (code, text) = ended(run);
        assert_eq!(code, Some(1), "{text}");
        let error =
            format!("error: rank 1 of 2 (process {rank}) {why}; stopped after step 0: resume the run with --resume ");
        assert!(text.lines().last().unwrap_or_default().starts_with(&error), "{text}");
        assert!(text.contains("generation is divided among all ranks"), "{text}");
        wait_until("the rank ends", || !is_alive(&rank.to_string()));
        let logged = std::fs::read_to_string(root.join(&out).join("metrics.jsonl")).unwrap_or_default();
        assert!(logged.is_empty(), "the run was not generating: {logged}");
    }
}

/// Untied embeddings, an entropy bonus on the tokens of highest entropy, and a number of groups that ranks cannot
/// divide evenly.
#[test]
fn ranks_without_groups_and_entropies_of_all_ranks_change_no_bit() {
    let dir = directory_of(CONFIG);
    let root = dir.path();
    for (name, set) in [
        ("entropy", &["top_entropy_quantile=0.5", "per_device_train_batch_size=6"][..]),
        ("few", &["per_device_train_batch_size=2", "gradient_checkpointing=true", "max_steps=12"][..]),
    ] {
        let set = [set, &["gradient_shares=8"]].concat();
        let [one, four] = ["1", "4"].map(|ranks| format!("{name}-{ranks}"));
        good(root, &arguments("train", &one, &set));
        good(root, &divided("train", &four, &set, "4"));
        same(&root.join(&one), &root.join(&four));
    }
}

#[test]
fn unset_shares_are_the_number_of_ranks_and_are_recorded() {
    let dir = directory();
    let root = dir.path();
    let printed = good(root, &divided("sft", "two", &[], "2")).err;
    let line = "gradient_shares = 2: one process computes the same bits with --set gradient_shares=2";
    assert!(printed.contains(line), "{printed}");
    good(root, &arguments("sft", "one", &["gradient_shares=2"]));
    same(&root.join("one"), &root.join("two"));
    let config = std::fs::read_to_string(root.join("two/config.toml")).unwrap();
    assert!(config.contains("gradient_shares = 2  # command line\n"), "{config}");
    assert!(config_without_ranks(root), "one rank must leave gradient_shares at its default");
}

fn config_without_ranks(root: &Path) -> bool {
    good(root, &divided("sft", "alone", &["max_steps=1", "eval_strategy=no"], "1"));
    std::fs::read_to_string(root.join("alone/config.toml")).unwrap().contains("gradient_shares = 1  # default\n")
}

#[test]
fn runs_that_ranks_cannot_divide_are_refused() {
    let dir = directory();
    let root = dir.path();
    let train = |set: &[&'static str], ranks: &'static str, words: &[&str]| {
        refused(root, &divided("train", "run", set, ranks), words);
    };
    let pairs = "--ranks must be a power of two, since gradients are added in pairs, got";
    train(&[], "3", &[pairs, "3: use 2 or 4"]);
    train(&[], "12", &[pairs, "12: use 8 or 16"]);
    train(&[], "0", &["--ranks must be at least 1, got 0"]);
    train(&[], "128", &["--ranks 128 is more than the largest gradient_shares, 64"]);
    let more =
        "--ranks 4 is more than gradient_shares = 2, by which the gradients of this run are divided: use --ranks 2";
    train(&["gradient_shares=2"], "4", &[more]);
    let with_workers = [divided("train", "run", &[], "2"), vec!["--distributed"]].concat();
    refused(root, &with_workers, &["--ranks 2 cannot divide the learner of a run with workers yet"]);
    let alone = command(root, &["rank"]).stdin(Stdio::null()).output().unwrap();
    let alone = (alone.status.code(), String::from_utf8(alone.stderr).unwrap());
    let why = "error: standard input must be the socket of rank 0: `lockstep train --ranks N` starts the ranks\n";
    assert_eq!(alone, (Some(2), why.to_owned()));
}

/// Each rank has its own gradients and activations, and a part of the optimizer's state; the weights exist once.
#[test]
fn the_plan_lists_the_memory_of_each_rank() {
    let dir = directory();
    let parts = |ranks: &str| {
        let data = ["plan", "--json", "--model", "model", "--dataset", "d.jsonl", "--reward", "unique_chars"];
        let set = ["--set", "num_generations=2", "--set", "max_completion_length=6", "--set", "gradient_shares=4"];
        let printed = good(dir.path(), &[&data[..], &set, &["--ranks", ranks]].concat()).out;
        let plan: Value = serde_json::from_str(&printed).unwrap();
        let part = |part: &Value| (part["part"].as_str().unwrap().to_owned(), part["bytes"].as_u64().unwrap());
        plan["parts"].as_array().unwrap().iter().map(part).collect::<BTreeMap<_, _>>()
    };
    let [one, two, four] = ["1", "2", "4"].map(parts);
    // Each rank generates its part of the groups with its own KV cache.
    let cache = |plan: &BTreeMap<String, u64>, of: &str| plan.get(&format!("{of}generation: kv cache")).copied();
    assert!(cache(&two, "").unwrap() < cache(&one, "").unwrap());
    assert_eq!([cache(&two, "rank 1: "), cache(&four, "rank 3: ")], [cache(&two, ""), cache(&four, "")]);
    assert_eq!([cache(&one, "rank 1: "), cache(&four, "rank 4: ")], [None; 2]);
    assert!(four.contains_key("rank 2: generation: workspace"), "{four:?}");
    let gradients = |plan: &BTreeMap<String, u64>, of: &str| plan.get(&format!("{of}: gradients")).copied();
    // A gradient, and one more for each doubling of a rank's shares.
    let rank = |plan: &BTreeMap<String, u64>, rank: u64| gradients(plan, &format!("rank {rank}: training"));
    let (half, quarter) = (rank(&two, 1).unwrap(), rank(&four, 1).unwrap());
    assert!(quarter < half && half < gradients(&one, "training").unwrap());
    assert_eq!((rank(&four, 3), rank(&four, 4), rank(&one, 1)), (Some(quarter), None, None));
    assert!(gradients(&four, "training") < gradients(&two, "training"));
    // The parts of the optimizer's state are those of one process together, but for the norm, which each rank has.
    let optimizer = |plan: &BTreeMap<String, u64>| -> Vec<u64> {
        plan.iter().filter(|(name, _)| name.ends_with("training: optimizer")).map(|(_, bytes)| *bytes).collect()
    };
    let whole = optimizer(&one)[0];
    for (plan, ranks) in [(&two, 2), (&four, 4)] {
        let parts = optimizer(plan);
        assert_eq!((parts.len(), parts.iter().sum::<u64>()), (ranks, whole + 8 * (ranks as u64 - 1)));
        assert!(parts.iter().all(|&part| part < whole * 3 / 4), "{parts:?} of {whole}");
    }
    for (name, bytes) in &one {
        let differs = ["generation: ", "program"].iter().any(|part| name.starts_with(part));
        let is_divided = ["gradients", "optimizer"].iter().any(|part| name.ends_with(part));
        assert!(differs || is_divided || two[name] == *bytes, "{name}");
        assert!(!four.contains_key("rank 1: weights"));
    }
    assert!(four.keys().any(|name| name.starts_with("rank 3: training: activations")), "{four:?}");
}

/// The processes whose parent is `pid`, by the system's list.
pub fn children(pid: u32) -> Vec<u32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().map(|word| word.parse().unwrap()).collect()
}

/// Waits for the end of a run. Returns its exit code and standard error.
pub fn ended(mut run: Child) -> (Option<i32>, String) {
    let stderr = run.stderr.take().unwrap();
    let reported = std::thread::spawn(move || std::io::read_to_string(stderr).unwrap());
    let status = testing::wait_for_end("the run ends", &mut run);
    (status.code(), reported.join().unwrap())
}

/// A run that is killed is resumed with other numbers of ranks, up to the end of a run that was never killed.
#[test]
fn a_lost_rank_ends_the_run_which_resumes_with_another_number() {
    let dir = directory();
    let root = dir.path();
    let set = ["gradient_shares=4", "per_device_train_batch_size=8", "save_steps=1"];
    good(root, &arguments("train", "whole", &set));
    let resumed = |ranks: &'static str| vec!["train", "--resume", "killed", "--ranks", ranks];
    let starts = [divided("train", "killed", &set, "4"), resumed("2")];
    for (start, (checkpoint, name)) in starts.iter().zip([("000002", "9"), ("000006", "STOP")]) {
        let run = command(root, start).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let checkpoint = root.join(format!("killed/checkpoints/step-{checkpoint}/files.json"));
        wait_until("a checkpoint is written", || checkpoint.exists());
        let ranks = children(run.id());
        assert!(!ranks.is_empty());
        signal(ranks[0], name);
        let (code, text) = ended(run);
        assert_eq!(code, Some(1), "{text}");
        let last = text.lines().last().unwrap_or_default();
        let why = if name == "9" { "was killed by signal 9" } else { "sent no heartbeat for 15 s" };
        let named = format!("(process {}) {why}", ranks[0]);
        assert!(last.starts_with("error: rank ") && last.contains(&named), "{text}");
        let log = format!(" --resume {0} (the log of the rank: {0}/lockstep-1.log)", root.join("killed").display());
        assert!(last.contains(": resume the run ") && last.ends_with(&log), "{text}");
        wait_until("every rank ends", || !ranks.iter().any(|pid| is_alive(&pid.to_string())));
    }
    good(root, &resumed("4"));
    same(&root.join("whole"), &root.join("killed"));
    // Each rank has a log, which later starts continue.
    let logs =
        ["1", "3"].map(|rank| std::fs::read_to_string(root.join(format!("killed/lockstep-{rank}.log"))).unwrap());
    let lines = |log: &str, words: &str| log.lines().filter(|line| line.contains(words)).count();
    assert_eq!([lines(&logs[0], "rank 1 of 4: 1 threads"), lines(&logs[0], "rank 1 of 2: ")], [2, 1], "{}", logs[0]);
    assert_eq!([lines(&logs[1], "rank 3 of 4: 1 threads"), lines(&logs[1], "rank 3 of 2: ")], [2, 0], "{}", logs[1]);
    for words in ["generation: up to ", "generation 1: ", "model 0: gradient of ", "rank 0 has ended"] {
        assert!(lines(&logs[0], words) >= 1, "{words}: {}", logs[0]);
    }
    // And without ranks, from a checkpoint.
    let first = files(&root.join("whole"));
    good(root, &["train", "--resume", "killed/checkpoints/step-000006"]);
    assert!(first["model/model.safetensors"] == files(&root.join("killed"))["model/model.safetensors"]);
}

/// However rank 0 ends, no process stays behind.
#[test]
fn ranks_end_with_rank_0() {
    let dir = directory();
    for (name, code) in [("9", None), ("TERM", Some(143))] {
        let out = format!("run-{name}");
        let set = ["per_device_train_batch_size=8", "max_steps=100000", "save_steps=100000", "eval_strategy=no"];
        let arguments = divided("train", &out, &set, "2");
        let run = command(dir.path(), &arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let log = dir.path().join(&out).join("metrics.jsonl");
        wait_until("a step is logged", || std::fs::metadata(&log).is_ok_and(|file| file.len() > 0));
        let ranks = children(run.id());
        assert_eq!(ranks.len(), 1);
        // A signal to a rank alone is not a request to stop.
        signal(ranks[0], "TERM");
        signal(run.id(), name);
        let (found, text) = ended(run);
        assert_eq!(found, code, "{text}");
        wait_until("the rank ends", || !is_alive(&ranks[0].to_string()));
    }
}
