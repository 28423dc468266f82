//! `lockstep eval` gives the same numbers as a run's evaluations with the same settings, and uses no implicit settings.

use crate::stopping::{reward, start, wait_for};
use crate::support::runs::{arguments, directory, good, metrics, of_lines};
use crate::support::{lockstep, refused};
use serde_json::{Map, Value};
use std::fs;
use std::path::Path;

/// A completion length that fits into the model's context after the prompt.
const SHORT: &[&str] = &["--max-completion-length", "6"];

/// The JSON output of `eval`.
fn evaluated(root: &Path, arguments: &[&str]) -> Map<String, Value> {
    let output = good(root, &[&["eval", "--json"], arguments].concat());
    serde_json::from_str(&output.out).unwrap()
}

/// The evaluation that `run` logged at `step`, without its duration.
fn logged(run: &Path, step: u64) -> Map<String, Value> {
    let lines = metrics(run).into_iter().map(|line| serde_json::from_str::<Map<String, Value>>(&line).unwrap());
    let is_it = |line: &Map<String, Value>| line["step"] == step && line.keys().any(|name| name.starts_with("eval_"));
    let mut line = lines.into_iter().find(is_it).unwrap_or_else(|| panic!("no evaluation at {step}"));
    line.retain(|name, _| name.starts_with("eval_"));
    line
}

/// Asserts that every number of `expected` equals the number of the same name in `found`, to the last digit.
#[track_caller]
fn agrees(expected: &Map<String, Value>, found: &Map<String, Value>) {
    assert!(expected.contains_key("eval_reward") && expected.contains_key("eval_pass@2"), "{expected:?}");
    // Only runs have a trainer, so only runs report the loss, metrics of the trainer's forward pass, and the number of
    // trained tokens.
    let of_run = |name: &str| {
        let ends = ["_loss", "_entropy", "_kl"];
        ends.iter().any(|end| name.ends_with(end)) || name.contains("_clip_ratio/") || name == "eval_num_tokens"
    };
    for (name, value) in expected.iter().filter(|(name, _)| !of_run(name)) {
        assert_eq!(found.get(name), Some(value), "{name}");
    }
}

#[test]
fn eval_gives_the_same_numbers_as_the_run() {
    let dir = directory();
    let root = dir.path();
    // A temperature, a stop string and rewards that would reveal a wrong setting, and a second evaluation set.
    let set = [
        "temperature=1.3",
        "stop=[\"a\"]",
        "reward_funcs=[\"unique_chars\", \"length:3\"]",
        "reward_weights=[1, 0.25]",
        "eval_pass_at_k=[1, 2]",
        "eval_datasets={ seen = \"d.jsonl\" }",
    ];
    for (run, more) in [
        ("whole", &[][..]),
        ("adapted", &["use_peft=true"]),
        ("greedy", &["eval_sampling=greedy", "num_generations_eval=2"]),
    ] {
        good(root, &arguments("train", run, &[&set[..], more].concat()));
        let last = logged(&root.join(run), 12);
        assert!(last.contains_key("eval_seen_rewards/length/mean"), "{last:?}");
        agrees(&last, &evaluated(root, &[run]));
        let fourth = logged(&root.join(run), 4);
        agrees(&fourth, &evaluated(root, &[&format!("{run}/checkpoints/step-000004")]));
        let model = format!("{run}/checkpoints/step-000004");
        agrees(&fourth, &evaluated(root, &[&format!("{run}/config.toml"), "--model", &model]));
        assert!(run == "greedy" || fourth != last, "training must change the results, or this test is void");
    }
}

#[test]
fn a_run_that_is_being_trained_can_be_evaluated() {
    let dir = directory();
    let root = dir.path();
    let slow = reward(root, "0.3");
    let mut training = start(root, &arguments("train", "run", &[&slow, "save_steps=1"]));
    wait_for(&root.join("run/checkpoints/step-000001/run_state.json"), true);
    let lock = fs::read(root.join("run/run.lock")).unwrap();
    evaluated(root, &["run", "--reward", "unique_chars"]);
    assert!(training.try_wait().unwrap().is_none(), "the run ended too early for this test");
    assert_eq!(fs::read(root.join("run/run.lock")).unwrap(), lock);
    training.kill().unwrap();
    training.wait().unwrap();
}

#[test]
fn greedy_evaluation_picks_the_most_likely_tokens() {
    let dir = directory();
    let root = dir.path();
    let of_seed = |sampling: &str, seed: &str| {
        let out = format!("{sampling}{seed}");
        let set = [sampling, seed, "eval_on_start=true", "max_steps=1", "num_generations_eval=2", "eval_pass_at_k=[1]"];
        good(root, &arguments("train", &out, &set));
        logged(&root.join(out), 0)
    };
    let greedy = of_seed("eval_sampling=greedy", "seed=1");
    assert_eq!(greedy, of_seed("eval_sampling=greedy", "seed=2"));
    assert_ne!(of_seed("eval_sampling=sampled", "seed=1"), of_seed("eval_sampling=sampled", "seed=2"));

    // Without a configuration, decoding is greedy.
    let base = ["eval", "--model", "model", "--dataset", "e.jsonl", "--reward", "unique_chars"];
    good(root, &[&base[..], SHORT, &["--out", "o.jsonl"]].concat());
    let lines = fs::read_to_string(root.join("o.jsonl")).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    for line in lines {
        let prompt = line["prompt"].as_str().unwrap();
        let arguments =
            ["generate", "--model", "model", "--temperature", "0", "--max-new-tokens", "6", "--json", "--prompt"];
        let generated = good(root, &[&arguments[..], &[prompt]].concat()).out;
        assert_eq!(serde_json::from_str::<Value>(&generated).unwrap()["text"], line["completion"], "{prompt}");
        assert!(line["rewards"]["unique_chars"].is_f64() && line["reward"].is_f64(), "{line}");
    }
}

/// Checks the columns of the table that `score-rewards` prints, too.
#[test]
fn the_table_of_scores_has_quantiles() {
    let dir = directory();
    let root = dir.path();
    let line = |text: &str| format!("{{\"prompt\": \"ab \", \"completion\": \"{text}\"}}\n");
    fs::write(root.join("c.jsonl"), ["a", "ab", "abc", "abcd", "abcdef"].map(line).concat()).unwrap();
    let output = good(root, &["score-rewards", "--input", "c.jsonl", "--reward", "unique_chars"]).out;
    let row = output.lines().find(|line| line.starts_with("unique_chars")).unwrap_or_else(|| panic!("{output}"));
    let columns: Vec<&str> = row.split_whitespace().collect();
    // scored, mean, std, min, p25, median, p75, max
    assert_eq!(columns[1], "5/5");
    assert_eq!(columns[4..], ["1.0000", "2.0000", "3.0000", "4.0000", "6.0000"], "{output}");
}

/// The output has the dataset columns that rewards compare with, and the token ids that rewards count.
#[test]
fn the_output_of_an_evaluation_can_be_scored() {
    let dir = directory();
    let root = dir.path();
    fs::write(root.join("a.jsonl"), "{\"prompt\": \"ab \", \"answer\": \"c\"}\n").unwrap();
    let rewards = ["--reward", "exact_match", "--reward", "length:3", "--json"];
    let eval = ["eval", "--model", "model", "--dataset", "a.jsonl", "--out", "o.jsonl"];
    let evaluated = good(root, &[&eval[..], SHORT, &rewards].concat()).out;
    let scored = good(root, &[&["score-rewards", "--input", "o.jsonl"][..], &rewards].concat()).out;
    let [evaluated, scored] = [evaluated, scored].map(|text| serde_json::from_str::<Value>(&text).unwrap());
    for i in 0..2 {
        assert!(scored["rewards"][i]["mean"].is_f64(), "{scored}");
        assert_eq!(scored["rewards"][i]["mean"], evaluated["rewards"][i]["mean"]);
    }
}

/// Weights, prompts and seed equal those of the first training generation; the completions differ.
#[test]
fn evaluations_use_other_random_numbers_than_training() {
    let dir = directory();
    let root = dir.path();
    fs::write(root.join("same.jsonl"), "{\"prompt\": \"ab \"}\n".repeat(2)).unwrap();
    let same = ["dataset_name=same.jsonl", "eval_dataset_name=same.jsonl", "eval_on_start=true", "eval_steps=100"];
    let set = ["max_steps=1", "num_generations_eval=2", "logging_steps=1"];
    good(root, &arguments("train", "run", &[&same[..], &set].concat()));
    let (evaluation, names) = (logged(&root.join("run"), 0), ["reward", "reward_std", "completions/mean_length"]);
    let of_evaluation = names.map(|name| evaluation[&format!("eval_{name}")].as_f64().unwrap());
    let of_training = names.map(|name| of_lines(&root.join("run"), name)[0]);
    assert_ne!(of_evaluation, of_training);
}

#[test]
fn completions_truncated_at_the_length_limit_are_counted() {
    let dir = directory();
    let root = dir.path();
    let base = ["--model", "model", "--dataset", "e.jsonl", "--reward", "unique_chars", "--n", "8", "--seed", "5"];
    let of = |most: &str| evaluated(root, &[&base[..], &["--max-completion-length", most]].concat());
    let [short, long] = ["1", "48"].map(of).map(|json| {
        let of = |name: &str| json[&format!("eval_completions/{name}")].as_f64().unwrap();
        (of("mean_length"), of("clipped_ratio"))
    });
    // One of forty tokens ends a completion.
    assert!(short.0 == 1.0 && short.1 > 0.8, "{short:?}");
    assert!(long.0 < 48.0 && long.1 < 0.8, "{long:?}");
}

#[test]
fn eval_has_no_implicit_settings_and_prints_the_settings_in_use() {
    let dir = directory();
    let root = dir.path();
    let base = ["eval", "--model", "model", "--dataset", "e.jsonl"];
    refused(root, &base, &["no reward"]);
    refused(root, &["eval", "--model", "model", "--reward", "unique_chars"], &["no data"]);
    refused(root, &["eval", "--dataset", "e.jsonl", "--reward", "unique_chars"], &["no model"]);
    refused(root, &["eval", "model", "--dataset", "e.jsonl"], &["is a model", "--model model"]);
    refused(root, &[&base[..], &["--task", "gsm8k"]].concat(), &["`question`"]);
    let base = [&base[..], &["--reward", "unique_chars"], SHORT].concat();
    let output = good(root, &base);
    for words in ["system prompt  none", "chat template  none", "greedy", "first prompt   \"sea \""] {
        assert!(output.err.contains(words), "`{words}`: {}", output.err);
    }
    assert!(output.out.contains("2/2") && output.out.contains("unique_chars"), "{}", output.out);
    refused(root, &[&base[..], &["--task", "prompt_answer", "--reward", "exact_match"]].concat(), &["`answer`"]);

    let json = evaluated(root, &[&base[1..], &["--n", "4", "--seed", "3"]].concat());
    assert_eq!((&json["num_generations"], &json["sampling"]), (&4.into(), &"sampled".into()));
    assert!(
        json["eval_pass@1"].is_f64() && json["eval_pass@4"].is_f64() && json["system_prompt"].is_null(),
        "{json:?}"
    );
    let sets = [
        "--max-completion-length",
        "6",
        "--n",
        "4",
        "--seed",
        "3",
        "--dataset",
        "held=e.jsonl",
        "--dataset",
        "seen=d.jsonl",
    ];
    let named = evaluated(root, &[&["--model", "model", "--reward", "unique_chars"], &sets[..]].concat());
    assert_eq!(named["eval_held_reward"], json["eval_reward"], "a second dataset must not change the first result");
    assert_ne!(named["eval_seen_reward"], named["eval_held_reward"]);
    assert!(!named.contains_key("eval_reward") && named["prompts"] == 12, "{named:?}");
}

#[test]
fn pass_at_k_uses_its_reward_independent_of_the_reward_weights() {
    let dir = directory();
    let root = dir.path();
    // Both rewards score all completions; one of them always gives 1, the other 0.
    let rewards = "reward_funcs=[\"format:(?s).*\", { kind = \"format\", name = \"never\", pattern = \"Z\" }]";
    let base = ["--model", "model", "--dataset", "e.jsonl", "--pass-at-k", "1", "--set", rewards];
    let base = [&base[..], SHORT, &["--set", "reward_weights=[0.5, 3]"]].concat();
    let of = |more: &[&str]| evaluated(root, &[&base[..], more].concat());
    let json = of(&[]);
    assert_eq!((json["eval_reward"].as_f64(), json["eval_pass@1"].as_f64()), (Some(0.5), Some(1.0)));
    assert_eq!(of(&["--set", "eval_pass_at_k_reward=never"])["eval_pass@1"].as_f64(), Some(0.0));
    let unknown = [&["eval"], &base[..], &["--set", "eval_pass_at_k_reward=nobody"]].concat();
    refused(root, &unknown, &["`eval_pass_at_k_reward` = nobody", "format, never"]);
}

/// A missing score is not treated as 0, neither in pass@k nor in choosing the best checkpoint.
#[test]
fn unscored_completions_are_excluded_everywhere() {
    let dir = directory();
    let root = dir.path();
    let program = |rewards: &str| format!("while read -r line; do echo '{{\"rewards\": {rewards}}}'; done\n");
    fs::write(root.join("null.sh"), program("[null, null]")).unwrap();
    fs::write(root.join("half.sh"), program("[null, 1]")).unwrap();
    let base = ["eval", "--model", "model", "--dataset", "e.jsonl", "--pass-at-k", "1", "--reward"];
    let output = lockstep(root, &[&base[..], &["command:sh null.sh"], SHORT].concat());
    assert_eq!(output.code, Some(1), "{}{}", output.out, output.err);
    assert!(output.out.contains("0/2") && !output.out.contains("pass@1"), "{}", output.out);
    assert!(output.err.contains("scored no completion"), "{}", output.err);
    // A completion is correct if it has the full score.
    fs::write(root.join("part.sh"), program("[0.5, 1]")).unwrap();
    let part = evaluated(root, &[&base[1..], &["command:sh part.sh"], SHORT].concat());
    assert_eq!((part["eval_pass@1"].as_f64(), part["eval_reward"].as_f64()), (Some(0.5), Some(0.75)));
    let half = evaluated(root, &[&base[1..], &["command:sh half.sh"], SHORT].concat());
    assert_eq!((half["eval_pass@1"].as_f64(), &half["rewards"][0]["judged"]), (Some(1.0), &1.into()), "{half:?}");

    fs::write(root.join("null.sh"), program("[null, null, null, null]")).unwrap();
    let best = [
        "load_best_model_at_end=true",
        "metric_for_best_model=pass@1",
        "save_steps=4",
        "eval_pass_at_k=[1]",
        "reward_errors=continue",
    ];
    let output =
        good(root, &arguments("train", "run", &[&["reward_funcs=[\"command:sh null.sh\"]"], &best[..]].concat()));
    assert!(output.err.contains("has no pass@1 and does not count"), "{}", output.err);
    assert!(metrics(&root.join("run")).iter().all(|line| !line.contains("pass@1")));
}

#[test]
fn a_system_prompt_needs_a_chat_template() {
    let dir = directory();
    let root = dir.path();
    let system = "system_prompt=be brief";
    for purpose in ["train", "sft"] {
        refused(root, &arguments(purpose, "run", &[system]), &["`system_prompt`", "no chat template"]);
    }
    let eval = ["eval", "--model", "model", "--dataset", "e.jsonl", "--reward", "unique_chars", "--set", system];
    let eval = [&eval[..], SHORT].concat();
    refused(root, &eval, &["`system_prompt`", "no chat template"]);
    let template = "{% for m in messages %}{{ m.content }}.{% endfor %}";
    fs::write(root.join("model/chat_template.jinja"), template).unwrap();
    let output = good(root, &eval);
    assert!(output.err.contains("first prompt   \"be brief.sea .\""), "{}", output.err);
    let json = evaluated(root, &eval[1..]);
    assert_eq!((&json["chat_template"], &json["system_prompt"]), (&template.into(), &"be brief".into()));
}
