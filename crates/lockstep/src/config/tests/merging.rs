//! Merging of configuration files, environment variables and flags, and the errors.

use super::{REQUIRED, grpo, layers, resolve};
use crate::config::resolved::Origin;
use crate::config::{
    Config, Layers, Purpose, UnsupportedKey, changes, hyperparameters, settings_of_weights, unknown_key,
};
use crate::config::{unsupported_key, unsupported_keys};
use crate::error::is_bad_input;
use std::path::Path;
use toml::Value;

/// The error of a configuration file with this name and text.
fn message(name: &str, text: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(name);
    std::fs::write(&file, text).unwrap();
    let layers = Layers { file: Some(file), purpose: Purpose::Show, ..Layers::default() };
    let error = layers.resolve().unwrap_err();
    assert!(is_bad_input(&error), "{error}");
    error.to_string().replace(&dir.path().display().to_string(), "DIR")
}

#[test]
fn errors_in_a_file_are_reported() {
    let sections = "DIR/c.toml: unknown key `training`. Keys are flat: there are no sections (`lockstep config \
                    show` lists \
                    all keys)";
    assert_eq!(message("c.toml", "[training]\nbeta = 1\n"), sections);
    assert_eq!(
        message("c.toml", "sead = 1\n"),
        "DIR/c.toml: unknown key `sead`; did you mean `seed`? (`lockstep config show` lists all keys)"
    );
    assert_eq!(message("c.toml", "beta = \"much\"\n"), "DIR/c.toml: `beta`: expected a number, got \"much\"");
    let twice = message("c.toml", "seed = 1\nbeta = 1\nseed = 2\n");
    assert_eq!(twice, "DIR/c.toml, line 3: not valid TOML: duplicate key `seed`");
    let broken = message("c.toml", "= 1\n");
    assert!(
        broken.starts_with("DIR/c.toml, line 1: not valid TOML: ") && !broken.contains("it was read as"),
        "{broken}"
    );
    let broken = message("reward.py", "seed = 1\n\nimport sys\n");
    assert!(broken.starts_with("DIR/reward.py, line 3: not valid TOML: "), "{broken}");
    let hint = "; it was read as a configuration file: a reward command of several words must be quoted";
    assert!(broken.ends_with(hint), "{broken}");
    let refused = message("c.toml", "fp16 = true\n");
    assert!(refused.starts_with("DIR/c.toml: `fp16 = true`: compute is f32 or bf16 here"), "{refused}");

    let dir = tempfile::tempdir().unwrap();
    let at = |path: &Path| {
        let layers = Layers { file: Some(path.to_owned()), purpose: Purpose::Show, ..Layers::default() };
        layers.resolve().unwrap_err().to_string().replace(&dir.path().display().to_string(), "DIR")
    };
    assert_eq!(at(dir.path()), "the configuration DIR is a directory, not a TOML file");
    std::fs::write(dir.path().join("config.toml"), "").unwrap();
    assert_eq!(at(dir.path()), "the configuration DIR is a directory, not a TOML file: give DIR/config.toml");
    let missing = at(&dir.path().join("none.toml"));
    assert!(missing.starts_with("cannot read the configuration DIR/none.toml: "), "{missing}");
    assert!(missing.ends_with("; `lockstep config show` prints one"), "{missing}");
}

#[test]
fn environment_variables_set_keys_and_unknown_ones_are_refused() {
    let with = |variables: &[(&str, &str)]| {
        let mut layers = layers(Purpose::Show, &[]);
        layers.environment = variables.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        layers.resolve()
    };
    // These variables do not set a key: they are for tests, or empty, or belong to other settings.
    let others = [
        ("LOCKSTEP_DEVICE", "x"),
        ("LOCKSTEP_NATS_TOKEN", "x"),
        ("LOCKSTEP_TEST_ANYTHING", "x"),
        ("LOCKSTEP_EMULATOR_THREADS", "x"),
        ("LOCKSTEP_SEED", ""),
        ("LOCKSTEP_NO_SUCH_KEY", ""),
    ];
    assert_eq!(with(&others).unwrap().config, Config::default());
    let resolved = with(&[("LOCKSTEP_SEED", "3"), ("LOCKSTEP_THREADS", "2")]).unwrap();
    assert_eq!((resolved.config.seed, resolved.config.threads), (3, Some(2)));
    assert_eq!(resolved.origin("seed").to_string(), "LOCKSTEP_SEED");
    let wrong = with(&[("LOCKSTEP_SEED", "x")]).unwrap_err().to_string();
    assert_eq!(wrong, "environment variable LOCKSTEP_SEED: `seed`: expected an integer, got \"x\"");
    let unknown = with(&[("LOCKSTEP_TESTS", "1")]).unwrap_err().to_string();
    assert!(unknown.starts_with("environment variable LOCKSTEP_TESTS: unknown key `tests`"), "{unknown}");
}

#[test]
fn unknown_keys_get_a_suggestion_or_the_reason_why_they_are_unsupported() {
    assert_eq!(unknown_key("sead"), "unknown key `sead`; did you mean `seed`?");
    assert_eq!(unknown_key("use_vlm"), "unknown key `use_vlm`; did you mean `use_vllm`?");
    assert_eq!(unknown_key("wibble_wobble"), "unknown key `wibble_wobble`");
    let note = "use_vllm has no meaning here: generation and training are one engine here; there is no vLLM to set up";
    assert_eq!(grpo(&[("use_vllm", "true")]).unwrap().notes, [note]);
    let refused = grpo(&[("use_dora", "true")]).unwrap_err().to_string();
    assert_eq!(refused, "command line: `use_dora = true`: adapters are plain LoRA here; remove it");
    let anyway = "use_dora has no meaning here: this value is the default behaviour";
    assert_eq!(grpo(&[("use_dora", "false")]).unwrap().notes, [anyway]);
}

/// A key of an unsupported feature is accepted if its value leaves the feature off.
#[test]
fn unsupported_keys_are_accepted_if_their_value_leaves_the_feature_off() {
    let is_refused = |name: &str, value: Value| match unsupported_key(name, &value) {
        Some(UnsupportedKey::Refused(_)) => true,
        Some(UnsupportedKey::Ignored(_)) => false,
        None => panic!("{name} is not in the list"),
    };
    let text = |text: &str| Value::String(text.to_owned());
    for value in [text(""), text("no"), text("none"), text("None"), text("null"), text("float32")] {
        assert!(!is_refused("torch_dtype", value.clone()), "{value}");
    }
    for value in [text("float16"), text("main"), Value::Integer(1), Value::Float(0.5), Value::Boolean(true)] {
        assert!(is_refused("torch_dtype", value.clone()), "{value}");
    }
    assert!(!is_refused("torch_dtype", Value::Boolean(false)));
    let numbers = [(Value::Integer(0), false), (Value::Float(0.0), false), (Value::Integer(1), true)];
    for (value, refused) in numbers.into_iter().chain([(Value::Float(0.1), true)]) {
        assert_eq!(is_refused("label_smoothing_factor", value.clone()), refused, "{value}");
    }
    let list = |items: &[&str]| Value::Array(items.iter().map(|item| text(item)).collect());
    assert!(!is_refused("lora_modules_to_save", list(&[])) && is_refused("lora_modules_to_save", list(&["a"])));
    let table = |entries: &[&str]| Value::Table(entries.iter().map(|key| ((*key).to_owned(), text("x"))).collect());
    assert!(!is_refused("model_init_kwargs", table(&[])) && is_refused("model_init_kwargs", table(&["a"])));
    assert!(unsupported_key("seed", &Value::Integer(1)).is_none());
    assert!(matches!(unsupported_key("use_vllm", &Value::Boolean(true)), Some(UnsupportedKey::Ignored(_))));
    let (ignored, refused): (Vec<_>, Vec<_>) =
        unsupported_keys().partition(|(_, answer)| matches!(answer, UnsupportedKey::Ignored(_)));
    assert!(ignored.len() > 10 && refused.len() > 10);
}

#[test]
fn each_task_has_a_preset_for_its_columns_and_rewards() {
    let set = |task| [("model_name_or_path", "m"), ("dataset_name", "d"), ("task", task)];
    let prompts = resolve(Purpose::Grpo, &set("prompt_answer")).unwrap();
    assert_eq!(prompts.config.reward_funcs, ["exact_match".into()]);
    // The preset's column equals the default, and the preset has no system prompt, so the task is the origin of
    // neither.
    assert_eq!(
        (prompts.origin("prompt_column"), prompts.origin("system_prompt")),
        (&Origin::Default, &Origin::Default)
    );
    assert_eq!(*prompts.origin("reward_funcs"), Origin::Task);
    assert!(prompts.config.columns.is_empty() && prompts.config.system_prompt.is_none());
    let pairs = resolve(Purpose::Reward, &set("gsm8k_solutions")).unwrap();
    assert_eq!((pairs.config.prompt_column.as_str(), pairs.config.reward_funcs.len()), ("question", 0));
    assert_eq!(*pairs.origin("prompt_column"), Origin::Task);
    let own = [&set("gsm8k")[..], &[("reward_funcs", "length:3")]].concat();
    let own = resolve(Purpose::Grpo, &own).unwrap();
    assert_eq!((own.config.reward_funcs[0].clone(), own.origin("reward_funcs")), ("length:3".into(), &Origin::Flag));
    let prompt = resolve(Purpose::Grpo, &set("gsm8k")).unwrap().config.system_prompt.unwrap();
    assert!(prompt.starts_with("Solve the problem step by step."), "{prompt}");
}

#[test]
fn origins_of_values_are_printed_by_name() {
    let c = resolve(Purpose::Grpo, &[&REQUIRED[..], &[("algorithm", "rloo")]].concat()).unwrap();
    let names = ["num_generations", "algorithm", "seed"].map(|key| c.origin(key).to_string());
    assert_eq!(names, ["algorithm", "command line", "default"]);
    assert_eq!((c.is_set("num_generations"), c.is_set("seed")), (true, false));
    assert_eq!(
        [Origin::Task, Origin::Adapter, Origin::Program].map(|o| o.to_string()),
        ["task", "the adapter", "program"]
    );
    // For a method without an algorithm, the origin of a default does not name one.
    let sft = resolve(Purpose::Sft, &REQUIRED[..2]).unwrap();
    assert_eq!((sft.config.learning_rate, sft.origin("learning_rate")), (2e-5, &Origin::Default));
}

#[test]
fn a_shown_configuration_lists_each_key_with_its_origin() {
    let resolved = resolve(Purpose::Show, &[("max_length", "none"), ("seed", "3")]).unwrap();
    let toml = resolved.to_toml();
    assert!(toml.starts_with("# Model and run\n"), "{toml}");
    for line in [
        "\n\n# Data\n",
        "\nseed = 3  # command line\n",
        "\nmax_length = \"none\"  # command line\n",
        "\n# threads =  # not set\n",
        "\nlearning_rate = 1e-6  # default\n",
    ] {
        assert!(toml.contains(line), "{line:?} is not in\n{toml}");
    }
    let json = resolved.to_json();
    assert_eq!((&json["seed"], json["threads"].is_null(), json["max_length"].is_null()), (&3.into(), true, true));
    let numbers = hyperparameters(&resolved.config);
    let of = |name: &str| numbers.iter().find(|(own, _)| *own == name).map(|(_, value)| value.clone());
    assert_eq!((of("seed"), of("loss_type")), (Some(Value::Integer(3)), Some(Value::String("dapo".to_owned()))));
    for place in ["output_dir", "run_name", "device", "threads", "tensorboard", "stop", "columns", "reward_funcs"] {
        assert_eq!(of(place), None, "{place}");
    }
}

#[test]
fn changed_keys_are_listed_with_old_and_new_values() {
    let began = grpo(&[]).unwrap().config;
    let now = grpo(&[("learning_rate", "0.5"), ("threads", "2"), ("max_length", "none")]).unwrap().config;
    let lines = ["max_length was 1024, now none", "learning_rate was 1e-6, now 0.5", "threads was none, now 2"];
    assert_eq!(changes(&began, &now), lines);
    let refused = crate::config::changes_on_resume(&began, &Config { seed: 1, beta: 0.5, ..began.clone() });
    assert_eq!(
        refused.unwrap_err().to_string(),
        "a resumed run cannot change these keys: seed was 42, now 1; beta was 0.0, now 0.5. Give them their old \
         values, \
         or start a new run in another directory"
    );
    // The content of a replayed file is hashed elsewhere, so a change of its path is not listed.
    let replayed = Config { replay: Some("/a/r.jsonl".into()), ..began.clone() };
    assert_eq!(settings_of_weights(&replayed), settings_of_weights(&began));
}

/// Values under a key's TRL name, where TRL's name differs.
#[test]
fn keys_that_a_command_does_not_read_are_reported() {
    let note =
        |purpose: Purpose, set: &[(&str, &str)]| resolve(purpose, &[&REQUIRED[..2], set].concat()).unwrap().notes;
    let dpo = "not read by `lockstep dpo`: num_iterations, loss_type (use dpo_loss_type instead)";
    assert_eq!(note(Purpose::Dpo, &[("num_iterations", "2"), ("loss_type", "grpo")]), [dpo]);
    // An evaluation and `config show` accept the keys of every command.
    assert_eq!(note(Purpose::Show, &[("num_iterations", "2"), ("completion_only_loss", "true")]), [""; 0]);
    let unmet =
        ["no effect without use_peft = true: lora_r, lora_alpha", "no effect without adap_kl_ctrl = true: kl_target"];
    let set = [("lora_r", "8"), ("kl_target", "3"), ("lora_alpha", "16")];
    let mut notes = note(Purpose::Show, &set);
    notes.sort();
    let mut unmet = unmet.map(str::to_owned).to_vec();
    unmet.sort();
    assert_eq!(notes, unmet);
    // A key's default is not reported.
    assert_eq!(note(Purpose::Sft, &[("num_iterations", "1")]), [""; 0]);
    let refused = grpo(&[("algorithm", "rloo"), ("scale_rewards", "batch")]).unwrap_err().to_string();
    assert_eq!(refused, "`scale_rewards` is not read by algorithm = \"rloo\": remove it");
    let refused = grpo(&[("kl_coef", "0.5")]).unwrap().notes;
    assert_eq!(refused, ["kl_coef is not read by algorithm = \"grpo\""]);
    let ppo = grpo(&[("algorithm", "ppo"), ("epsilon", "0.3")]).unwrap().notes;
    assert_eq!(ppo, ["epsilon is not read by algorithm = \"ppo\" (use cliprange instead)"]);
}
