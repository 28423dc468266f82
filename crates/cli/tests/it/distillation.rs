//! On-policy distillation: the student approaches its teacher, an interrupted run resumes to the same bits, the plan
//! includes the teacher, and contradictory settings are refused.

use crate::support::runs::{arguments, directory, files, good, metrics, of_lines, same};
use crate::support::{CONFIG, model_of, refused};
use serde_json::Value;
use std::fs;
use std::path::Path;

const TEACHER: &str = "teacher_model_name_or_path=teacher";
const ALONE: [&str; 3] = ["algorithm=distillation", TEACHER, "reward_funcs=[]"];

/// A directory with a student, and a teacher of a different family and width with the same vocabulary. The teacher has
/// learned the completions of `d.jsonl`.
fn with_teacher() -> tempfile::TempDir {
    let dir = directory();
    let wide = CONFIG.replace("\"hidden_size\": 16", "\"hidden_size\": 32");
    model_of(&dir.path().join("untaught"), &wide);
    let set = ["per_device_train_batch_size=10", "max_steps=20", "save_strategy=no", "eval_strategy=no"];
    let mut taught = arguments("sft", "sft", &set);
    let model = taught.iter().position(|argument| *argument == "model").unwrap();
    taught[model] = "untaught";
    good(dir.path(), &taught);
    fs::rename(dir.path().join("sft/model"), dir.path().join("teacher")).unwrap();
    dir
}

fn divergence(run: &Path) -> Vec<f64> {
    of_lines(run, "distillation/reverse_kl")
}

#[test]
fn a_student_approaches_its_teacher_and_resumes() {
    let dir = with_teacher();
    let long = ["max_steps=300", "logging_steps=50", "save_steps=300", "eval_steps=100", "eval_dataset_name=d.jsonl"];
    let wide = ["num_generations=8", "per_device_train_batch_size=64"];
    good(dir.path(), &arguments("train", "far", &[&ALONE[..], &long, &wide].concat()));
    let found = divergence(&dir.path().join("far"));
    let (first, last) = (found[0], found[found.len() - 1]);
    assert!(first > 0.2 && last < 0.5 * first, "{found:?}");
    // Without rewards, the loss is the divergence from the teacher, also in evaluations.
    let evaluated = of_lines(&dir.path().join("far"), "eval_loss");
    assert!(evaluated[evaluated.len() - 1] < evaluated[0], "{evaluated:?}");
    assert!(of_lines(&dir.path().join("far"), "eval_reward").is_empty());
    assert!(
        !metrics(&dir.path().join("far")).iter().any(|line| line.contains("\"unscored\"")),
        "no reward exists, so no completion may count as unscored"
    );

    // Each batch is used twice, so that checkpoints store per-token advantages. Each prompt has one completion.
    let set = [&ALONE[..], &["num_generations=1", "num_iterations=2", "save_steps=1", "threads=1"]].concat();
    good(dir.path(), &arguments("train", "whole", &set));
    let again = [&set[..3], &["num_generations=1", "num_iterations=2", "save_steps=1", "threads=2"]].concat();
    good(dir.path(), &arguments("train", "again", &again));
    good(dir.path(), &["train", "--resume", "again/checkpoints/step-000003"]);
    same(&dir.path().join("whole"), &dir.path().join("again"));
    assert_eq!(of_lines(&dir.path().join("whole"), "sampling/logp_mismatch_tokens"), [0.0; 4]);
    // A resume with a different teacher is refused.
    let weights = dir.path().join("teacher/model.safetensors");
    fs::copy(dir.path().join("untaught/model.safetensors"), weights).unwrap();
    refused(dir.path(), &["train", "--resume", "again/checkpoints/step-000003"], &["teacher", "SHA-256"]);
}

/// With rewards, the loss combines rewards and teacher, weighted by the distillation coefficient. A rollout file stores
/// the teacher's log-probabilities.
#[test]
fn rewards_are_combined_with_the_teacher_and_rollouts_replay() {
    let dir = with_teacher();
    let set = ["algorithm=distillation", TEACHER, "distillation_coef=0.5", "record_rollouts=true", "max_steps=4"];
    good(dir.path(), &arguments("train", "both", &set));
    let both = dir.path().join("both");
    assert!(!divergence(&both).is_empty() && !of_lines(&both, "reward").is_empty());
    good(dir.path(), &arguments("train", "alone", &[&set[..], &["reward_funcs=[]"]].concat()));
    assert_ne!(metrics(&both), metrics(&dir.path().join("alone")));
    // The teacher is not loaded if the file has its log-probabilities.
    let weights = dir.path().join("teacher/model.safetensors");
    fs::copy(dir.path().join("untaught/model.safetensors"), weights).unwrap();
    let replayed = ["algorithm=distillation", TEACHER, "distillation_coef=0.5", "replay=both/rollouts.bin"];
    let more = ["max_steps=4", "eval_strategy=no", "eval_dataset_name=none"];
    good(dir.path(), &arguments("train", "replayed", &[&replayed[..], &more].concat()));
    let weights = |run: &str| files(&dir.path().join(run))["model/model.safetensors"].clone();
    assert_eq!(weights("both"), weights("replayed"));
}

#[test]
fn the_plan_includes_the_teacher() {
    let dir = with_teacher();
    let planned = |model: &str, set: &[&str]| {
        let base = ["plan", "--json", "--model", model, "--set", "max_completion_length=8"];
        let set: Vec<&str> = set.iter().flat_map(|pair| ["--set", *pair]).collect();
        let plan: Value = serde_json::from_str(&good(dir.path(), &[&base[..], &set].concat()).out).unwrap();
        let parts = plan["parts"].as_array().unwrap();
        let bytes = |name: &str| parts.iter().find(|part| part["part"] == name).map(|p| p["bytes"].as_u64().unwrap());
        (bytes("teacher: weights"), bytes("weights").unwrap())
    };
    let data = ["dataset_name=d.jsonl", "reward_funcs=[\"unique_chars\"]"];
    let (teacher, student) = planned("model", &[&data[..], &["algorithm=distillation", TEACHER]].concat());
    let (none, alone) = planned("teacher", &data);
    assert_eq!((teacher, none), (Some(alone), None));
    assert_ne!(alone, student, "student and teacher must have different shapes");
}

#[test]
fn keys_that_contradict_distillation_are_refused() {
    let dir = directory();
    let train = |set: &[&str], words: &[&str]| refused(dir.path(), &arguments("train", "run", set), words);
    train(&["algorithm=distillation"], &["`teacher_model_name_or_path`", "set"]);
    train(&[TEACHER], &["`teacher_model_name_or_path`", "algorithm = \"grpo\"", "remove it"]);
    train(&["algorithm=ppo", TEACHER], &["`teacher_model_name_or_path`", "algorithm = \"ppo\"", "remove it"]);
    let own = ["algorithm=distillation", "teacher_model_name_or_path=model"];
    let with = |more: &[&'static str]| [&own[..], more].concat();
    train(&with(&["beta=0.1"]), &["`beta`", "distillation"]);
    train(&with(&["sync_ref_model=true"]), &["`sync_ref_model`"]);
    train(&with(&["ref_model=model"]), &["`ref_model`"]);
    train(&with(&["dynamic_sampling=true"]), &["`dynamic_sampling`"]);
    train(&with(&["num_generations=1"]), &["`num_generations` must be at least 2"]);
    train(&with(&["distillation_discount=2"]), &["`distillation_discount`", "at most 1"]);
    train(&["reward_funcs=[]"], &["no reward"]);

    // The teacher's vocabulary differs in its tokens or in its size.
    model_of(&dir.path().join("other"), CONFIG);
    let file = dir.path().join("other/tokenizer.json");
    let text = fs::read_to_string(&file).unwrap();
    let swapped = text.replace("\"a\"", "\"A\"");
    assert_ne!(text, swapped);
    fs::write(&file, swapped).unwrap();
    let other = ["algorithm=distillation", "teacher_model_name_or_path=other"];
    train(&other, &["`teacher_model_name_or_path`", "vocabulary", "\"a\"", "\"A\""]);
    model_of(&dir.path().join("small"), &CONFIG.replace("\"vocab_size\": 40", "\"vocab_size\": 36"));
    let small = ["algorithm=distillation", "teacher_model_name_or_path=small"];
    train(&small, &["`teacher_model_name_or_path`", "36", "40"]);
}
