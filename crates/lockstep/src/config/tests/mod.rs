//! Layers, types, checks and their messages.

mod keys;
mod merging;
mod places;
mod refusals;
mod report_to;
mod settings;
mod table;
mod values;

use super::resolved::Origin;
use super::values::KeyValue;
use super::*;
use crate::error::is_bad_input;
use std::path::PathBuf;

fn layers(purpose: Purpose, set: &[(&str, &str)]) -> Layers {
    let set = set.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    Layers { purpose, set, ..Layers::default() }
}

fn resolve(purpose: Purpose, set: &[(&str, &str)]) -> anyhow::Result<Resolved> {
    layers(purpose, set).resolve()
}

const REQUIRED: [(&str, &str); 3] = [("model_name_or_path", "m"), ("dataset_name", "d"), ("reward_funcs", "gsm8k")];

pub(super) fn grpo(set: &[(&str, &str)]) -> anyhow::Result<Resolved> {
    resolve(Purpose::Grpo, &[&REQUIRED, set].concat())
}

pub(super) fn refused(set: &[(&str, &str)], words: &[&str]) {
    let error = grpo(set).expect_err(&format!("{set:?} was accepted"));
    let message = error.to_string();
    assert!(is_bad_input(&error), "{message}");
    assert!(!message.contains('\n'), "one paragraph: {message}");
    for word in words {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
}

#[test]
fn later_layers_override_earlier_ones_and_are_recorded_as_origins() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.toml");
    std::fs::write(&file, "beta = 0.1\nseed = 1\ntemperature = 0.9\n").unwrap();
    let mut layers = layers(Purpose::Show, &[("temperature", "0.7")]);
    layers.file = Some(file.clone());
    let environment = [("LOCKSTEP_SEED", "2"), ("LOCKSTEP_TEMPERATURE", "0.8"), ("LOCKSTEP_ISA", "avx2")];
    layers.environment = environment.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    let resolved = layers.resolve().unwrap();
    let c = &resolved.config;
    assert_eq!((c.beta, c.seed, c.temperature, c.epsilon), (0.1, 2, 0.7, 0.2));
    assert_eq!(*resolved.origin("beta"), Origin::File(file));
    assert_eq!(*resolved.origin("seed"), Origin::Environment("LOCKSTEP_SEED".to_owned()));
    assert_eq!((resolved.origin("temperature"), resolved.origin("epsilon")), (&Origin::Flag, &Origin::Default));

    layers.environment.push(("LOCKSTEP_LEARNING_RAET".to_owned(), "1".to_owned()));
    let error = layers.resolve().unwrap_err().to_string();
    assert!(error.contains("LOCKSTEP_LEARNING_RAET") && error.contains("`learning_rate`"), "{error}");
}

#[test]
fn a_shown_configuration_parses_to_the_same_values() {
    let set = [
        ("task", "gsm8k"),
        ("reward_funcs", r#"["gsm8k", {kind = "format", pattern = "a\"b\n.*"}]"#),
        ("reward_weights", "[1, 0.5]"),
        ("chat_template_kwargs", "{enable_thinking = false, n = [1, {a = 2.5}]}"),
        ("columns", "{\"odd name\" = \"answer\"}"),
        ("stop", "</s>"),
        ("max_length", "none"),
        ("learning_rate", "3e-5"),
        ("system_prompt", "two\nlines \"and\" quotes \u{7f}"),
    ];
    let resolved = grpo(&set).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.toml");
    std::fs::write(&file, resolved.to_toml()).unwrap();
    let again = Layers { file: Some(file), ..Layers::default() }.resolve();
    assert_eq!(again.unwrap().config, resolved.config, "{}", resolved.to_toml());
    assert!(resolved.to_toml().contains("learning_rate = 3e-5"), "{}", resolved.to_toml());
    assert_eq!(resolved.to_json()["reward_weights"][1], 0.5);
}

#[test]
fn flags_are_parsed_by_the_type_of_their_key() {
    let c = grpo(&[("run_name", "3"), ("stop", "[\"a\", \"b\"]"), ("shuffle_dataset", "False"), ("max_steps", "1e3")]);
    let c = c.unwrap().config;
    assert_eq!((c.run_name.as_deref(), c.stop.len(), c.shuffle_dataset, c.max_steps), (Some("3"), 2, false, 1000));
    assert_eq!(Option::<f64>::read_text("none"), Ok(None));
    assert_eq!(PathBuf::read_text("a b/c"), Ok(PathBuf::from("a b/c")));
    refused(&[("num_generations", "many")], &["command line", "`num_generations`", "an integer", "many"]);
    refused(&[("num_generations", "-3")], &["integer in range", "-3"]);
    refused(&[("loss_type", "ppo")], &["one of grpo, bnpo, dr_grpo, dapo", "ppo"]);
    refused(&[("learning_rate", "nan")], &["finite"]);
}

#[test]
fn trl_keys_without_meaning_are_reported_and_impossible_ones_refused() {
    let notes =
        grpo(&[("use_vllm", "true"), ("report_to", "wandb"), ("bf16", "false"), ("fp16", "False")]).unwrap().notes;
    assert_eq!(notes.len(), 4, "{notes:?}");
    assert!(notes[0].contains("use_vllm") && notes[0].contains("one engine"), "{notes:?}");
    refused(&[("dtype", "bf16"), ("beta", "0.1"), ("sync_ref_model", "true")], &["sync_ref_model", "dtype"]);
    refused(&[("bf16", "true")], &["`bf16 = true`", "dtype = \"bf16\""]);
    refused(&[("deepspeed", "ds.json")], &["deepspeed"]);
}

#[test]
fn keys_of_other_commands_are_reported() {
    let notes =
        |purpose: Purpose, set: &[(&str, &str)]| resolve(purpose, &[&REQUIRED[..2], set].concat()).unwrap().notes;
    let train_keys = [("algorithm", "rloo"), ("epsilon", "0.3"), ("vf_coef", "2"), ("record_rollouts", "true")];
    let reported = notes(Purpose::Dpo, &train_keys);
    assert_eq!(reported, ["not read by `lockstep dpo`: algorithm, epsilon, vf_coef, record_rollouts"]);
    assert_eq!(notes(Purpose::Sft, &[("beta", "0.1")]), ["not read by `lockstep sft`: beta"]);
    assert_eq!(notes(Purpose::Dpo, &[("beta", "0.3"), ("num_generations", "8")]), [""; 0]);
    let reported = grpo(&[("dpo_loss_type", "ipo")]).unwrap().notes;
    assert_eq!(reported, ["not read by `lockstep train`: dpo_loss_type"]);
    // An algorithm's defaults do not apply to commands without an algorithm.
    assert_eq!(resolve(Purpose::Dpo, &[&REQUIRED[..2], &train_keys].concat()).unwrap().config.beta, 0.1);
    let ppo = resolve(Purpose::Sft, &[&REQUIRED[..2], &[("algorithm", "ppo")]].concat()).unwrap().config;
    assert_eq!((ppo.learning_rate, ppo.num_generations), (2e-5, 8));
    let recorded = |purpose| resolve(purpose, &[&REQUIRED[..], &[("record_rollouts", "true")]].concat()).unwrap();
    assert!(recorded(Purpose::Grpo).config.record_rollouts && !recorded(Purpose::Sft).config.record_rollouts);
}

#[test]
fn keys_without_effect_are_reported() {
    let notes = |set: &[(&str, &str)]| grpo(set).unwrap().notes;
    assert_eq!(notes(&[("vespo_k_pos", "1")]), ["no effect without loss_type = \"vespo\": vespo_k_pos"]);
    assert_eq!(notes(&[("vespo_k_pos", "1"), ("loss_type", "vespo")]), [""; 0]);
    let lora = [("lora_r", "8"), ("lora_alpha", "16")];
    assert_eq!(notes(&lora), ["no effect without use_peft = true: lora_r, lora_alpha"]);
    let ppo = ("algorithm", "ppo");
    assert_eq!(notes(&[ppo, ("beta", "0.1")]), ["beta is not read by algorithm = \"ppo\" (use kl_coef instead)"]);
    refused(&[("algorithm", "rloo"), ("sapo_temperature_pos", "2")], &["`sapo_temperature_pos`", "\"rloo\"", "remove"]);
    let dpo = resolve(Purpose::Dpo, &[&REQUIRED[..2], &[("loss_type", "grpo")]].concat()).unwrap().notes;
    assert_eq!(dpo, ["not read by `lockstep dpo`: loss_type (use dpo_loss_type instead)"]);
}

/// Groups without a gradient are skipped only where this is exact; otherwise the run logs the reason.
#[test]
fn every_combination_that_computes_all_groups_has_a_reason() {
    assert_eq!(grpo(&[]).unwrap().config.computes_every_group(), None);
    let skips: [&[(&str, &str)]; 4] = [
        &[("loss_type", "vespo"), ("scale_rewards", "batch"), ("mask_truncated_completions", "true")],
        &[("num_iterations", "2"), ("off_policy_mask_threshold", "0.1"), ("max_staleness", "1")],
        &[("algorithm", "rloo"), ("beta", "0")],
        &[("use_peft", "true"), ("lora_dropout", "0.1"), ("dtype", "bf16"), ("process_rewards", "per_step")],
    ];
    for set in skips {
        let config = grpo(set).unwrap().config;
        assert_eq!(config.computes_every_group(), None, "{set:?}");
        assert!(config.skipping().contains("left out"), "{}", config.skipping());
        assert!(trainer_config(&config, config.objective()).skip_zero_gradients, "{set:?}");
    }
    let refused: [(&[(&str, &str)], &str); 13] = [
        (&[("skip_zero_gradients", "false")], "skip_zero_gradients"),
        (&[("beta", "0.04")], "beta"),
        (&[("entropy_coef", "0.01")], "entropy bonus"),
        (&[("use_adaptive_entropy", "true")], "entropy bonus"),
        (&[("top_entropy_quantile", "0.5")], "top_entropy_quantile"),
        (&[("multi_objective_aggregation", "normalize_then_sum")], "centred"),
        (&[("algorithm", "rloo")], "beta"),
        (&[("algorithm", "rloo"), ("beta", "0"), ("normalize_advantages", "true")], "centred"),
        (&[("algorithm", "reinforce_plus_plus")], "centred"),
        (&[("algorithm", "reinforce_plus_plus"), ("beta", "0")], "centred"),
        (&[("algorithm", "reinforce_plus_plus_baseline")], "centred"),
        (&[("algorithm", "distillation"), ("teacher_model_name_or_path", "t")], "teacher"),
        (&[("algorithm", "ppo")], "value model"),
    ];
    for (set, word) in refused {
        let config = grpo(set).unwrap().config;
        let why = config.computes_every_group().unwrap_or_else(|| panic!("{set:?} skips"));
        assert!(why.contains(word) && config.skipping().contains(why), "{set:?}: {why}");
        assert!(!trainer_config(&config, config.objective()).skip_zero_gradients, "{set:?}");
    }
}

#[test]
fn a_task_fills_in_missing_keys() {
    let set = [("model_name_or_path", "m"), ("dataset_name", "d"), ("task", "gsm8k")];
    let resolved = resolve(Purpose::Grpo, &set).unwrap();
    assert_eq!((resolved.config.prompt_column.as_str(), resolved.config.reward_funcs.len()), ("question", 1));
    assert!(resolved.config.system_prompt.is_some() && *resolved.origin("prompt_column") == Origin::Task);
    let own = [&set[..], &[("system_prompt", "none"), ("prompt_column", "q")]].concat();
    let config = resolve(Purpose::Grpo, &own).unwrap().config;
    assert_eq!((config.prompt_column.as_str(), config.system_prompt), ("q", None));
}

/// Keys on which no bit depends keep their current value.
#[test]
fn old_values_are_restored_from_the_lines_that_list_changes() {
    let began = grpo(&[("stop", "[\"a, now b\", \"c\"]")]).unwrap().config;
    let set = [
        ("learning_rate", "1e-5"),
        ("max_steps", "5"),
        ("epsilon_high", "0.3"),
        ("without_groups", "[3, 4]"),
        ("loss_type", "bnpo"),
        ("reward_funcs", "[\"gsm8k\", {kind = \"length\", max = 3}]"),
        ("reward_weights", "[1.0, 0.5]"),
        ("mask_truncated_completions", "true"),
    ];
    let now = grpo(&[&[("stop", "[\"a, now b\", \"c\"]"), ("threads", "1")][..], &set].concat()).unwrap().config;
    let lines = changes(&began, &now);
    assert!(lines.len() > set.len(), "{lines:?}");
    let mut undone = now.clone();
    undo(&mut undone, &lines.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
    assert_eq!(undone, Config { threads: now.threads, ..began.clone() });
    // Two resumed starts; the second changes a value again.
    let lines = ["max_steps was -1, now 5", "a reward is not a key", "max_steps was 5, now 9"];
    undo(&mut undone, &lines).unwrap();
    assert_eq!(undone.max_steps, -1);
    assert!(undo(&mut undone, &["max_steps was many, now 5"]).unwrap_err().contains("max_steps"));
    // A line with an ambiguous old value is an error.
    assert!(undo(&mut undone, &["stop was [\"a, now b\"], now []"]).is_err());
}

#[test]
fn changes_on_resume_are_free_reported_or_refused() {
    let began = grpo(&[]).unwrap().config;
    let now = |set| grpo(set).unwrap().config;
    assert!(changes_on_resume(&began, &now(&[("threads", "1"), ("logging_steps", "1")])).unwrap().is_empty());
    let reported = changes_on_resume(&began, &now(&[("learning_rate", "1e-5"), ("max_steps", "5")])).unwrap();
    assert_eq!(reported.len(), 2);
    let error = changes_on_resume(&began, &now(&[("seed", "1"), ("beta", "0.1")])).unwrap_err();
    assert!(is_bad_input(&error));
    assert!(error.to_string().contains("seed was 42, now 1") && error.to_string().contains("beta was 0.0, now 0.1"));
}

#[test]
fn settings_of_weights_list_the_keys_that_decide_bits() {
    let of = |set: &[(&str, &str)]| settings_of_weights(&grpo(set).unwrap().config);
    let own = of(&[]);
    assert_eq!(own, "reward_funcs = [\"gsm8k\"]\n");
    let free = [
        ("threads", "1"),
        ("max_tokens_per_micro_batch", "24"),
        ("output_dir", "elsewhere"),
        ("run_name", "r"),
        ("logging_steps", "1"),
        ("record_rollouts", "true"),
        ("save_steps", "1"),
        ("eval_dataset_name", "e"),
        ("eval_max_samples", "3"),
        ("model_name_or_path", "/a/b"),
        ("dataset_name", "/a/d"),
    ];
    for &key in &free {
        assert_eq!(of(&[key]), own, "{key:?}");
    }
    let decides = [
        ("learning_rate", "2e-6"),
        ("temperature", "0.5"),
        ("dtype", "bf16"),
        ("algorithm", "rloo"),
        ("prefix_sharing", "false"),
        ("max_steps", "9"),
    ];
    let named = |key: &str| of(&[(key, decides.iter().find(|(name, _)| *name == key).unwrap().1)]);
    for (key, _) in &decides {
        assert!(named(key).contains(&format!("{key} = ")), "{key}");
    }
    // Only the file name of a reward program counts, not its directory.
    let reward = |path: &str| of(&[("reward_funcs", &format!("command:{path} -x"))]);
    assert_eq!(reward("/a/score.sh"), reward("/b/score.sh"));
    assert_ne!(reward("/a/score.sh"), reward("/a/other.sh"));
    // The directory of a script does not count either.
    let scripts = ["a", "b"].map(|name| {
        let dir = tempfile::Builder::new().prefix(name).tempdir().unwrap();
        std::fs::write(dir.path().join("score.py"), "").unwrap();
        dir
    });
    let script = |place: usize| reward(&format!("python3 {}/score.py", scripts[place].path().display()));
    assert_eq!(script(0), script(1));
    assert!(script(0).contains("python3 score.py"), "{}", script(0));
}

#[test]
fn every_example_is_a_valid_configuration() {
    let examples = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut count = 0;
    for entry in std::fs::read_dir(&examples).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_none_or(|e| e != "toml") {
            continue;
        }
        let text = std::fs::read_to_string(&file).unwrap();
        // The command in the file's first comment decides the purpose.
        let purpose = [("lockstep dpo ", Purpose::Dpo), ("lockstep reward ", Purpose::Reward)]
            .into_iter()
            .find_map(|(command, purpose)| text.contains(command).then_some(purpose))
            .unwrap_or(Purpose::Grpo);
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        assert!(text.contains(&format!("examples/{name}")), "{name} does not contain the command that runs it");
        assert!(!text.contains("../shared"), "{name} needs files that users do not have");
        // Resolves the file as `lockstep config show FILE` does, then as its command does, which sets the keys that the
        // file leaves open.
        let layers = |purpose, set| Layers { purpose, file: Some(file.clone()), set, ..Layers::default() };
        layers(Purpose::Show, Vec::new()).resolve().unwrap_or_else(|e| panic!("{name}: {e}"));
        let open = ["model_name_or_path", "dataset_name", "eval_dataset_name"].into_iter();
        let open = open.filter(|key| text.contains("eval_strategy") || !key.starts_with("eval_"));
        let open = open.filter(|key| !text.lines().any(|line| line.starts_with(key)));
        let set = open.map(|key| (key.to_owned(), "x".to_owned())).collect();
        let resolved = layers(purpose, set).resolve().unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(resolved.notes.is_empty(), "{name}: {:?}", resolved.notes);
        count += 1;
    }
    assert!(count >= 12, "{count} examples");
}
