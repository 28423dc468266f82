//! PPO in whole runs: initialising the value model, stopping a generation early, adapting the KL coefficient, and all
//! refused settings.

use crate::support::runs::{arguments, directory, files, good, of_lines, rollouts};
use crate::support::{model_of, refused, tensors};
use std::fs;
use std::path::Path;

/// Keys of every run: eight completions per generation, every step logged.
const PPO: [&str; 3] = ["algorithm=ppo", "logging_steps=1", "num_mini_batches=2"];

fn run<'a>(out: &'a str, set: &[&'a str]) -> Vec<&'a str> {
    arguments("train", out, &[&PPO[..], &["num_generations=1"], set].concat())
}

/// The value model in the checkpoint of `step`.
fn value_model(root: &Path, run: &str, step: u64) -> Vec<(String, Vec<f32>)> {
    let path = root.join(run).join(format!("checkpoints/step-{step:06}/value_model/model.safetensors"));
    tensors(&fs::read(path).unwrap())
}

#[test]
fn the_value_model_starts_from_the_policy_or_from_a_directory() {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("reward", "rm", &["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl"]));
    let still = ["value_learning_rate=0", "max_steps=4"];

    // With learning rate 0, a checkpoint has the initial weights.
    good(root, &run("own", &still));
    let policy = tensors(&fs::read(root.join("model/model.safetensors")).unwrap());
    let (score, trunk): (Vec<_>, Vec<_>) =
        value_model(root, "own", 4).into_iter().partition(|(n, _)| n == "score.weight");
    assert_eq!(trunk, policy.into_iter().filter(|(name, _)| name != "lm_head.weight").collect::<Vec<_>>());
    assert!(score.len() == 1 && score[0].1.iter().all(|&w| w == 0.0), "the score head must start at 0");

    good(root, &run("other", &[&still[..], &["value_model=rm/model"]].concat()));
    let reward_model = tensors(&fs::read(root.join("rm/model/model.safetensors")).unwrap());
    assert_eq!(value_model(root, "other", 4), reward_model);
    // A different value model estimates different values, so the value losses, the advantages and the policy differ.
    let losses = |run: &str| of_lines(&root.join(run), "loss/value_avg");
    assert!(losses("own").len() == 4 && losses("own") != losses("other"), "{:?}", losses("own"));
    let weights = |run: &str| files(&root.join(run))["model/model.safetensors"].clone();
    assert!(weights("own") != weights("other"));

    // With a positive learning rate the value model learns. It can then initialise another run, or serve as a reward.
    good(root, &run("learns", &["value_model=rm/model", "max_steps=4"]));
    assert!(value_model(root, "learns", 4) != reward_model);
    let left = "value_model=learns/checkpoints/step-000004/value_model";
    good(root, &run("further", &[&still[..], &[left]].concat()));
    assert_eq!(value_model(root, "further", 4), value_model(root, "learns", 4));
    good(root, &run("judged", &["max_steps=2", "reward_funcs=[\"model:learns/checkpoints/step-000004/value_model\"]"]));
}

#[test]
fn a_generation_is_dropped_once_the_policy_diverges_too_far() {
    let dir = directory();
    let root = dir.path();
    // In the first step of a generation all ratios are 1; in the second step they are not.
    let set = ["num_ppo_epochs=2", "record_rollouts=true"];
    let rollouts = |run: &str| rollouts(&root.join(run)).len();
    let stops = |run: &str| of_lines(&root.join(run), "policy/early_stop");
    good(root, &run("free", &set));
    assert_eq!((rollouts("free"), stops("free")), (12 / 4 * 8, vec![]));
    good(root, &run("far", &[&set[..], &["target_kl=1e-12"]].concat()));
    assert_eq!((rollouts("far"), stops("far")), (12 / 2 * 8, [0.0, 1.0].repeat(6)));
    let divergences = of_lines(&root.join("far"), "policy/approxkl_avg");
    assert!(divergences.chunks(2).all(|d| d[0] == 0.0 && d[1] > 1.5e-12), "{divergences:?}");
    // The generation stops only if the divergence exceeds 1.5 times the target.
    for (out, part, stop) in [("near", 1.2, 0.0), ("beyond", 1.8, 1.0)] {
        let target = format!("target_kl={}", divergences[1] / part);
        good(root, &run(out, &[&set[..], &[&target]].concat()));
        assert_eq!(stops(out)[..2], [0.0, stop], "{target}");
    }
    // A target that is never reached changes no bit.
    good(root, &run("wide", &[&set[..], &["target_kl=1e9"]].concat()));
    assert_eq!((rollouts("wide"), stops("wide")), (rollouts("free"), vec![0.0; 12]));
    let weights = |run: &str| files(&root.join(run))["model/model.safetensors"].clone();
    assert!(weights("wide") == weights("free") && weights("far") != weights("free"));
}

/// Truncated completions can be masked.
#[test]
fn truncated_completions_can_be_masked() {
    let dir = directory();
    let root = dir.path();
    let set = ["max_steps=2", "record_rollouts=true"];
    good(root, &run("all", &set));
    good(root, &run("ended", &[&set[..], &["mask_truncated_completions=true"]].concat()));
    let cut = |line: &serde_json::Value| line["truncated"] == true;
    assert!(rollouts(&root.join("all")).iter().any(cut), "some completions must be truncated, or this test is void");
    let weights = |run: &str| files(&root.join(run))["model/model.safetensors"].clone();
    assert!(weights("all") != weights("ended"));
    // Alternatively, truncated completions get a penalty.
    good(root, &run("costs", &[&set[..], &["missing_eos_penalty=2"]].concat()));
    let score = |run: &str| of_lines(&root.join(run), "objective/scores")[0];
    // The completions are the same; truncated ones have a reward that is lower by 2.
    let first: Vec<serde_json::Value> =
        rollouts(&root.join("all")).into_iter().filter(|line| line["step"] == 1).collect();
    let share = first.iter().filter(|line| cut(line)).count() as f64 / first.len() as f64;
    let paid = score("all") - score("costs");
    assert!((paid - 2.0 * share).abs() < 1e-5, "mean penalty {paid} for a truncated share of {share}");
}

/// With learning rate 0, mini-batches differ only in their samples. If each pass draws a new permutation of the two
/// mini-batches, their order is sometimes the same and sometimes swapped.
#[test]
fn every_pass_shuffles_its_mini_batches_again() {
    let dir = directory();
    let root = dir.path();
    let set = ["num_ppo_epochs=6", "per_device_train_batch_size=1", "learning_rate=0", "value_learning_rate=0"];
    good(root, &run("run", &[&set[..], &["max_steps=24", "eval_strategy=no"]].concat()));
    let entropies = of_lines(&root.join("run"), "policy/entropy_avg");
    assert_eq!(entropies.len(), 2 * 6 * 2);
    assert!(entropies.chunks(2).all(|pass| pass[0] != pass[1]), "{entropies:?}");
    let is_drawn = |generation: &[f64]| {
        let firsts: Vec<f64> = generation.iter().step_by(2).copied().collect();
        let same = firsts.windows(2).filter(|w| w[0] == w[1]).count();
        same > 0 && same < 5
    };
    assert!(entropies.chunks(12).any(is_drawn), "{entropies:?}");
}

#[test]
fn the_kl_coefficient_adapts_to_its_target() {
    let dir = directory();
    let root = dir.path();
    // There are three generations of eight completions, with four steps each. The policy of the first generation is the
    // reference itself, so the divergence is 0.
    let set = ["num_ppo_epochs=2", "kl_estimator=k3", "adap_kl_ctrl=true", "kl_coef=0.1", "kl_horizon=20"];
    let coefficients = |run: &str| of_lines(&root.join(run), "objective/kl_coef");
    let close = |got: &[f64], expected: &[f64]| {
        assert!(got.len() == expected.len() && got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{got:?}");
    };
    let (down, up) = (1.0 - 0.2 * 8.0 / 20.0, 1.0 + 0.2 * 8.0 / 20.0);
    good(root, &run("low", &[&set[..], &["kl_target=1e-9"]].concat()));
    let divergences = of_lines(&root.join("low"), "objective/kl");
    assert!(
        divergences.len() == 3 && divergences[0] == 0.0 && divergences[1..].iter().all(|&kl| kl > 1e-8),
        "{divergences:?}"
    );
    close(&coefficients("low"), &[0.1, 0.1 * down, 0.1 * down * up]);
    good(root, &run("high", &[&set[..], &["kl_target=1e9"]].concat()));
    close(&coefficients("high"), &[0.1, 0.1 * down, 0.1 * down * down]);
    good(root, &run("fixed", &[&set[..2], &["kl_coef=0.1"]].concat()));
    close(&coefficients("fixed"), &[0.1; 3]);
    // The KL coefficient affects both the value model and the policy.
    let weights = |run: &str| files(&root.join(run))["model/model.safetensors"].clone();
    assert!(weights("low") != weights("high") && weights("high") != weights("fixed"));
}

/// Bad configurations give exit code 2 and one paragraph that names the key and the remedy; nothing is written.
#[test]
fn keys_that_contradict_ppo_are_refused() {
    let dir = directory();
    let root = dir.path();
    let refuse = |set: &[&str], words: &[&str]| {
        refused(root, &arguments("train", "run", &[&["algorithm=ppo", "num_generations=1"], set].concat()), words);
    };
    // Keys of GRPO for batch sizes and repetitions.
    refuse(&["num_iterations=2"], &["`num_iterations`", "num_ppo_epochs (now 4)"]);
    refuse(&["generation_batch_size=8"], &["`generation_batch_size`", "num_mini_batches (now 1)", "set these"]);
    refuse(&["generation_batch_size=7"], &["`generation_batch_size`", "num_mini_batches"]);
    refuse(&["steps_per_generation=2"], &["`steps_per_generation`", "num_mini_batches"]);
    refuse(&["dynamic_sampling=true"], &["`dynamic_sampling`", "set it to false"]);
    refuse(&["num_generations=3"], &["mini-batch of 4", "num_generations = 3", "set num_generations = 1"]);
    refuse(&["num_generations=0"], &["`num_generations` must be at least 1"]);
    refuse(&["num_ppo_epochs=0"], &["`num_ppo_epochs` must be at least 1"]);
    refuse(&["num_mini_batches=0"], &["`num_mini_batches` must be at least 1"]);
    // Keys of the KL penalty.
    refuse(&["adap_kl_ctrl=true", "kl_coef=0"], &["`adap_kl_ctrl`", "kl_coef above 0, or adap_kl_ctrl = false"]);
    refuse(&["sync_ref_model=true", "kl_coef=0"], &["`sync_ref_model`", "kl_coef = 0", "sync_ref_model = false"]);
    refuse(&["kl_estimator=k2"], &["`kl_estimator`", "k1, k3"]);
    for key in ["kl_coef", "missing_eos_penalty", "cliprange", "cliprange_value", "vf_coef", "value_learning_rate"] {
        refuse(&[&format!("{key}=-0.1")], &[&format!("`{key}` must be at least 0, but is -0.1")]);
    }
    for key in ["kl_target", "kl_horizon", "target_kl"] {
        refuse(&[&format!("{key}=0")], &[&format!("`{key}` must be above 0, but is 0")]);
    }
    for key in ["gamma", "lam"] {
        refuse(&[&format!("{key}=1.01")], &[&format!("`{key}` must be at least 0 and at most 1, but is 1.01")]);
    }
    refuse(&["temperature=0"], &["`temperature` = 0", "above 0"]);

    // Keys of the value model.
    refuse(&["value_model=model"], &["`value_model`", "is a language model", "value_model = \"policy\""]);
    refuse(&["value_model=nowhere"], &["nowhere"]);
    let config = fs::read_to_string(root.join("model/config.json")).unwrap();
    let scorer = config.replace("Qwen3ForCausalLM", "Qwen3ForSequenceClassification");
    assert!(scorer != config);
    fs::create_dir(root.join("two")).unwrap();
    fs::write(root.join("two/config.json"), &scorer).unwrap();
    refuse(&["value_model=two"], &["`value_model`", "has 2 scores", "num_labels = 1"]);
    good(root, &arguments("reward", "rm", &["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl", "max_steps=1"]));
    let larger = fs::read_to_string(root.join("rm/model/config.json")).unwrap();
    let one_more = larger.replace("\"vocab_size\": 40", "\"vocab_size\": 41");
    assert!(one_more != larger, "{larger}");
    fs::create_dir(root.join("larger")).unwrap();
    fs::write(root.join("larger/config.json"), one_more).unwrap();
    refuse(&["value_model=larger"], &["`value_model`", "vocabulary of 41 tokens", "policy has 40"]);
}

/// Keys of other algorithms that PPO does not use are reported, one line each, and the run continues.
#[test]
fn keys_of_other_algorithms_are_reported_as_unused() {
    let dir = directory();
    let root = dir.path();
    let idle =
        ["beta=0.1", "loss_type=grpo", "scale_rewards=none", "reward_clip_range=[-1, 1]", "normalize_advantages=true"];
    let output = good(root, &run("idle", &[&idle[..], &["max_steps=2"]].concat()));
    for pair in idle {
        let name = pair.split('=').next().unwrap();
        assert!(output.err.contains(&format!("{name} is not read by algorithm = \"ppo\"")), "{name}: {}", output.err);
    }
    good(root, &run("plain", &["max_steps=2"]));
    let weights = |run: &str| files(&root.join(run))["model/model.safetensors"].clone();
    assert!(weights("idle") == weights("plain"));
    let output = good(root, &arguments("train", "rloo", &["algorithm=rloo", "lam=0.5", "max_steps=1"]));
    assert!(output.err.contains("lam is not read by algorithm = \"rloo\""), "{}", output.err);
}

/// The value model's shape may differ from the policy's; only the vocabulary must match.
#[test]
fn a_value_model_may_have_another_shape() {
    const SMALL: &str = r#"{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 40,
"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
"head_dim": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
"tie_word_embeddings": false, "bos_token_id": null, "eos_token_id": 0}"#;
    let dir = directory();
    let root = dir.path();
    model_of(&root.join("small"), SMALL);
    let set = ["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl", "model_name_or_path=small"];
    let mut reward = arguments("reward", "rm", &set);
    let model = reward.iter().position(|a| *a == "model").unwrap();
    reward[model] = "small";
    good(root, &reward);
    // A small clip range would clip all values and leave no gradient, hence the large one.
    good(root, &run("ppo", &["value_model=rm/model", "cliprange_value=10", "max_steps=4"]));
    assert!(of_lines(&root.join("ppo"), "val/grad_norm").iter().all(|&norm| norm > 0.0));
    assert_eq!(of_lines(&root.join("ppo"), "sampling/logp_mismatch_tokens"), vec![0.0; 4]);
}
