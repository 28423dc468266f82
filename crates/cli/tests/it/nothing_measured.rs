//! Metrics over no values are missing, in every kind of run and for every way in which values can be missing. The
//! tables list the metrics that must be absent from every line, the metrics that must be present, and the printed
//! messages.

use crate::support::runs::{arguments, directory, good};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// A run of three logged steps in which some metrics have no values.
struct Case {
    name: &'static str,
    set: &'static [&'static str],
    /// Metrics that must be absent from all lines; a name that ends in `*` matches all names with that prefix.
    missing: &'static [&'static str],
    /// Metrics that must be present in each line (metrics of completions: in each line with new completions), with the
    /// value if it is known.
    there: &'static [(&'static str, Option<f64>)],
    /// Ids of the alarms that must be raised.
    alarms: &'static [&'static str],
    /// Words that must be printed.
    prints: &'static [&'static str],
}

/// With this seed, no one-token completion is the end token, so all completions are truncated.
const CUT: [&str; 4] = ["max_completion_length=1", "mask_truncated_completions=true", "learning_rate=0", "seed=1"];
const OF_LOSS: &[&str] = &[
    "loss",
    "entropy",
    "kl",
    "clip_ratio/*",
    "policy_loss",
    "cispo_clip_ratio",
    "vespo/*",
    "completions/mean_terminated_length",
    "completions/min_terminated_length",
    "completions/max_terminated_length",
];
const OF_PPO: &[&str] = &[
    "loss",
    "loss/*",
    "entropy",
    "clip_ratio/*",
    "policy/approxkl_avg",
    "policy/clipfrac_avg",
    "policy/entropy_avg",
    "val/ratio",
    "val/clipfrac_avg",
    "val/explained_variance",
    "objective/kl",
    "objective/entropy",
    "objective/non_score_reward",
    "objective/rlhf_reward",
];
const OF_SCORES: &[&str] =
    &["reward", "reward_std", "reward_p*", "frac_reward_zero_std", "rewards/*", "eval_reward*", "eval_pass@*"];

const fn masked(name: &'static str, set: &'static [&'static str], missing: &'static [&'static str]) -> Case {
    Case {
        name,
        set,
        missing,
        there: &[("reward", Some(1.0)), ("grad_norm", Some(0.0)), ("completions/clipped_ratio", Some(1.0))],
        alarms: &["nothing_learned", "truncated"],
        prints: &["no token of the step's", "every one is masked, and nothing was learned"],
    }
}

const fn unscored(name: &'static str, set: &'static [&'static str], missing: &'static [&'static str]) -> Case {
    let there = &[("completions/mean_length", None), ("grad_norm", Some(0.0))];
    Case {
        name,
        set,
        missing,
        there,
        alarms: &["unscored"],
        prints: &["no reward gave a score for 4 of 4 completions"],
    }
}

/// Runs in which every completion is truncated and masked.
const MASKED: &[Case] = &[
    masked("grpo", &["beta=0.1"], OF_LOSS),
    // Only two generations: fewer than the alarm `truncated` needs.
    Case { alarms: &["nothing_learned"], ..masked("two iterations", &["num_iterations=2", "beta=0.1"], OF_LOSS) },
    masked("recorded entropies", &["record_entropies=true", "record_rollouts=true"], OF_LOSS),
    masked("no group left out", &["skip_zero_gradients=false"], OF_LOSS),
    masked("ratios of sequences", &["importance_sampling_level=sequence", "loss_type=grpo"], OF_LOSS),
    masked("cispo", &["loss_type=cispo"], OF_LOSS),
    masked("sapo", &["loss_type=sapo"], OF_LOSS),
    masked("vespo", &["loss_type=vespo"], OF_LOSS),
    masked("luspo", &["loss_type=luspo"], OF_LOSS),
    masked("dr_grpo", &["loss_type=dr_grpo"], OF_LOSS),
    masked("an entropy bonus", &["entropy_coef=0.1"], OF_LOSS),
    masked("an adaptive bonus", &["use_adaptive_entropy=true", "entropy_coef=0.1"], OF_LOSS),
    masked("tokens of the highest entropy", &["top_entropy_quantile=0.5"], OF_LOSS),
    masked(
        "stale weights",
        &["max_staleness=1"],
        &[
            "loss",
            "entropy",
            "clip_ratio/*",
            "sampling/importance_sampling_ratio/*",
            "sampling/sampling_logp_difference/*",
        ],
    ),
    masked("rloo", &["algorithm=rloo", "beta=0.1"], OF_LOSS),
    masked("reinforce++", &["algorithm=reinforce_plus_plus", "beta=0.1"], OF_LOSS),
    masked("gdpo", &["multi_objective_aggregation=normalize_then_sum"], OF_LOSS),
    masked("lora", &["use_peft=true"], OF_LOSS),
    masked("ppo", &["algorithm=ppo", "num_generations=1", "num_ppo_epochs=1", "adap_kl_ctrl=true", "seed=2"], OF_PPO),
];

/// Runs in which no completion has a score.
const UNSCORED: &[Case] = &[
    unscored("null", &["reward_funcs=[REWARD null]"], OF_SCORES),
    unscored("null for each token", &["reward_funcs=[REWARD tokens]"], OF_SCORES),
    unscored("empty lists", &["reward_funcs=[REWARD empty]"], OF_SCORES),
    unscored("steps of null", &["reward_funcs=[REWARD steps]"], OF_SCORES),
    unscored(
        "an evaluation",
        &[
            "reward_funcs=[REWARD null]",
            "eval_strategy=steps",
            "eval_steps=1",
            "eval_loss=true",
            "eval_pass_at_k=[1]",
            "metric_for_best_model=eval_loss",
            "early_stopping_patience=1",
        ],
        &[
            "reward",
            "reward_std",
            "reward_p*",
            "rewards/*",
            "eval_reward",
            "eval_reward_std",
            "eval_rewards/*",
            "eval_pass@*",
            "eval_loss",
        ],
    ),
    unscored(
        "dynamic sampling",
        &["reward_funcs=[REWARD null]", "dynamic_sampling=true", "dynamic_sampling_max_rounds=2"],
        &["reward", "dynamic_sampling/reward"],
    ),
    unscored("rloo", &["reward_funcs=[REWARD null]", "algorithm=rloo"], OF_SCORES),
    unscored(
        "reinforce++",
        &["reward_funcs=[REWARD null]", "algorithm=reinforce_plus_plus", "skip_zero_gradients=false"],
        OF_SCORES,
    ),
    unscored("gdpo", &["reward_funcs=[REWARD null]", "multi_objective_aggregation=normalize_then_sum"], OF_SCORES),
    Case {
        alarms: &["unscored", "nothing_learned"],
        ..unscored(
            "ppo",
            &["reward_funcs=[REWARD null]", "algorithm=ppo", "num_generations=1", "num_ppo_epochs=1"],
            OF_PPO,
        )
    },
    Case {
        alarms: &["unscored", "nothing_learned"],
        ..unscored(
            "ppo, steps",
            &["reward_funcs=[REWARD tokens]", "algorithm=ppo", "num_generations=1", "num_ppo_epochs=1"],
            OF_PPO,
        )
    },
];

/// Runs whose groups have no gradient, although every completion has a score.
const EQUAL: &[Case] = &[
    Case {
        name: "a constant",
        set: &["reward_funcs=[REWARD constant]"],
        missing: &["entropy"],
        there: &[
            ("reward_std", Some(0.0)),
            ("rewards/constant/std", Some(0.0)),
            ("frac_reward_zero_std", Some(1.0)),
            ("clip_ratio/region_mean", Some(0.0)),
            ("loss", Some(0.0)),
        ],
        alarms: &["zero_variance"],
        prints: &["all rewards are equal: no advantage", "prompts that the model solves sometimes"],
    },
    Case {
        name: "r and -r",
        set: &["reward_funcs=[REWARD length, REWARD minus]"],
        missing: &["entropy"],
        there: &[("reward", Some(0.0)), ("reward_std", Some(0.0)), ("frac_reward_zero_std", Some(1.0))],
        alarms: &["zero_variance"],
        prints: &["rewards vary (`length`, `minus`): their weighted sum cancels", "opposite effects"],
    },
    Case {
        name: "weights 0",
        set: &["reward_funcs=[REWARD length]", "reward_weights=[0.0]"],
        missing: &["entropy"],
        there: &[("reward", Some(0.0)), ("reward_std", Some(0.0))],
        alarms: &["zero_variance"],
        prints: &["all weights are 0, so every completion's total reward is 0", "the weight of these rewards is 0"],
    },
    Case {
        name: "ppo, r and -r",
        set: &["reward_funcs=[REWARD length, REWARD minus]", "algorithm=ppo", "num_generations=1", "num_ppo_epochs=1"],
        missing: &["frac_reward_zero_std"],
        there: &[("reward", Some(0.0)), ("reward_std", Some(0.0))],
        alarms: &["zero_variance"],
        prints: &["their weighted sum cancels"],
    },
];

/// A program whose argument selects the kind of score.
const REWARD: &str = r#"
import json, sys
kind = sys.argv[1]
for line in sys.stdin:
    batch = json.loads(line)
    pairs = zip(batch["completions"], batch["completion_ids"])
    score = {
        "null": lambda text, ids: None,
        "tokens": lambda text, ids: [None] * len(ids),
        "empty": lambda text, ids: [],
        "steps": lambda text, ids: [{"end": len(text), "score": None}],
        "one": lambda text, ids: 1.0,
        "constant": lambda text, ids: 0.1,
        "length": lambda text, ids: sum(ids) / 7,
        "minus": lambda text, ids: -sum(ids) / 7,
        "end": lambda text, ids: [{"end": len(text), "score": 1.0}],
    }[kind]
    print(json.dumps({"rewards": [score(*pair) for pair in pairs]}), flush=True)
"#;

const SHORT: [&str; 6] = [
    "max_steps=3",
    "logging_steps=1",
    "save_strategy=no",
    "eval_strategy=no",
    "log_completions=false",
    "reward_errors=continue",
];

fn lines(run: &Path) -> Vec<Map<String, Value>> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The differences from the expectations of the case.
fn wrong(root: &Path, case: &Case, common: &[&str], out: &str) -> Vec<String> {
    let command =
        |name: &str| format!("{{kind = \"command\", name = \"{name}\", command = \"python3 reward.py {name}\"}}");
    let kinds = ["null", "tokens", "empty", "steps", "one", "constant", "length", "minus", "end"];
    let own = |pair: &&str| {
        kinds.iter().fold((*pair).to_owned(), |p, kind| p.replace(&format!("REWARD {kind}"), &command(kind)))
    };
    let set: Vec<String> = SHORT.iter().chain(common).chain(case.set).map(own).collect();
    let output = good(root, &arguments("train", out, &set.iter().map(String::as_str).collect::<Vec<_>>()));
    let lines = lines(&root.join(out));
    let mut wrong = Vec::new();
    let fits = |key: &str, name: &str| name.strip_suffix('*').map_or(key == name, |start| key.starts_with(start));
    let keys: BTreeSet<&String> = lines.iter().flat_map(Map::keys).collect();
    for key in keys.iter().filter(|key| case.missing.iter().any(|name| fits(key, name))) {
        let values: Vec<_> = lines.iter().filter_map(|line| line.get(*key)).collect();
        wrong.push(format!("{key} is {values:?}, not missing"));
    }
    let steps: Vec<_> = lines.iter().filter(|line| line.contains_key("grad_norm")).collect();
    if steps.len() != 3 {
        wrong.push(format!("expected three logged steps, got {}", steps.len()));
    }
    for (name, value) in case.there {
        let is_right = |line: &&&Map<String, Value>| match (line.get(*name).and_then(Value::as_f64), value) {
            (Some(found), Some(value)) => found == *value,
            (found, None) => found.is_some(),
            (None, Some(_)) => false,
        };
        // Metrics of completions are logged only in steps with new completions.
        let has = |line: &&&Map<String, Value>| {
            ["grad_norm", "loss"].contains(name) || line.contains_key("completions/mean_length")
        };
        if let Some(line) = steps.iter().filter(has).find(|line| !is_right(line)) {
            wrong.push(format!("{name} is {:?}, not {value:?}", line.get(*name)));
        }
    }
    for line in &steps {
        let compared = line.get("sampling/logp_compared_tokens").and_then(Value::as_f64).unwrap_or(0.0);
        if line.contains_key("sampling/max_logp_difference") != (compared > 0.0) {
            wrong.push(format!("sampling/max_logp_difference is wrong for {compared} compared tokens"));
        }
    }
    let raised: BTreeSet<&str> = lines.iter().filter_map(|line| line.get("alarm")?["id"].as_str()).collect();
    for id in case.alarms.iter().filter(|id| !raised.contains(**id)) {
        wrong.push(format!("no alarm {id}: {raised:?}"));
    }
    if raised.contains("entropy_collapse") || raised.contains("reward_bad_answer") {
        wrong.push(format!("alarms {raised:?}"));
    }
    for words in case.prints.iter().filter(|words| !output.err.contains(**words)) {
        wrong.push(format!("`{words}` is not printed"));
    }
    wrong
}

/// Runs all cases of a table, and reports all failures.
fn check(cases: &[Case], common: &[&str]) {
    let Some(()) = testing::program("python3") else { return };
    let dir = directory();
    let root = dir.path();
    fs::write(root.join("reward.py"), REWARD).unwrap();
    let mut all = Vec::new();
    for (i, case) in cases.iter().enumerate() {
        let found = wrong(root, case, common, &format!("run{i}"));
        all.extend(found.into_iter().map(|what| format!("{}: {what}", case.name)));
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

#[test]
fn metrics_of_masked_completions_are_missing() {
    check(MASKED, &[&CUT[..], &["reward_funcs=[REWARD one]"]].concat());
}

#[test]
fn metrics_of_completions_without_a_score_are_missing() {
    check(UNSCORED, &[]);
}

#[test]
fn equal_rewards_have_a_deviation_of_0_and_a_reported_cause() {
    check(EQUAL, &[]);
}

/// A process-reward step at the end of an empty completion is valid: the completion has a score, and the other
/// completions keep their scores.
#[test]
fn a_step_at_the_end_of_an_empty_completion_has_a_score() {
    let Some(()) = testing::program("python3") else { return };
    let dir = directory();
    fs::write(dir.path().join("reward.py"), REWARD).unwrap();
    for algorithm in ["grpo", "ppo"] {
        let own = format!("algorithm={algorithm}");
        // Some of 64 one-token completions consist of only the end token.
        let set = [&own, "reward_funcs=[REWARD end]", "max_completion_length=1", "per_device_train_batch_size=64"];
        let set = [&set[..], &["num_generations=8", "learning_rate=0", "eval_strategy=no"]].concat();
        let there: &[(&str, Option<f64>)] = &[("reward", Some(1.0)), ("rewards/end/mean", Some(1.0))];
        let case = Case { name: "", set: &[], missing: &[], there, alarms: &[], prints: &[] };
        let found = wrong(dir.path(), &case, &set, algorithm);
        assert!(found.is_empty(), "{algorithm}: {}", found.join("\n"));
        let line = &lines(&dir.path().join(algorithm))[0];
        assert!(
            line["completions/clipped_ratio"].as_f64().unwrap() < 1.0,
            "some completions must be only the end token"
        );
    }
}
