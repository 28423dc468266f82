//! Paths in configurations, and runs that continue an adapter.

use crate::config::resolved::Origin;
use crate::config::{Layers, Purpose, Resolved, settings_of_weights};
use crate::error::is_bad_input;
use std::path::{Path, PathBuf};

/// A directory with a configuration file of this content, and empty files of these names.
fn beside(text: &str, names: &[&str]) -> (tempfile::TempDir, Layers) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.toml");
    std::fs::write(&file, text).unwrap();
    for name in names {
        std::fs::write(dir.path().join(name), "").unwrap();
    }
    let layers = Layers { file: Some(file), purpose: Purpose::Show, ..Layers::default() };
    (dir, layers)
}

#[test]
fn paths_in_a_file_are_relative_to_its_directory() {
    let text = "output_dir = \"out\"\nreplay = \"r.jsonl\"\nmodel_name_or_path = \"there\"\n\
                dataset_name = \"org/data\"\n\
                eval_dataset_name = \"/abs\"\nref_model = \"\"\n\
                reward_funcs = [\"python:there:f\", \"command:none -x\"]\n\
                [eval_datasets]\na = \"there\"\nb = \"org/eval\"\n";
    let (dir, layers) = beside(text, &["there"]);
    let Resolved { config, .. } = layers.resolve().unwrap();
    let at = |name: &str| dir.path().join(name);
    let text = |name: &str| Some(at(name).display().to_string());
    assert_eq!((config.output_dir, config.replay), (Some(at("out")), Some(at("r.jsonl"))));
    assert_eq!((config.model_name_or_path, config.dataset_name), (text("there"), Some("org/data".to_owned())));
    assert_eq!(config.eval_dataset_name.as_deref(), Some("/abs"));
    assert_eq!(config.ref_model.as_deref(), Some(""), "an empty name is not a path");
    assert_eq!(config.eval_datasets["a"], at("there").display().to_string().as_str());
    assert_eq!(config.eval_datasets["b"], "org/eval");
    let rewards = format!("{:?}", config.reward_funcs);
    assert!(rewards.contains(&format!("python:{}:f", at("there").display())), "{rewards}");
    assert!(rewards.contains("command:none -x"), "{rewards}");
    // A default is not a path, even if a file has its name.
    assert_eq!(config.value_model, "policy");
}

#[test]
fn paths_of_flags_are_relative_to_the_working_directory() {
    let (_dir, mut layers) = beside("", &[]);
    let set = [("output_dir", "out"), ("model_name_or_path", "Cargo.toml"), ("dataset_name", "no/such")];
    layers.set = set.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
    let config = layers.resolve().unwrap().config;
    let working = std::env::current_dir().unwrap();
    assert_eq!(config.output_dir, Some(working.join("out")));
    assert_eq!(config.model_name_or_path.map(PathBuf::from), Some(working.join("Cargo.toml")));
    assert_eq!(config.dataset_name.as_deref(), Some("no/such"));
}

#[test]
fn a_path_that_exists_only_in_the_working_directory_is_refused() {
    let (dir, layers) = beside("model_name_or_path = \"Cargo.toml\"\n", &[]);
    let error = layers.resolve().unwrap_err();
    assert!(is_bad_input(&error));
    let working = std::env::current_dir().unwrap();
    let words = format!(
        "{0}/c.toml: `model_name_or_path` = Cargo.toml: paths in a file are relative to the file's directory, and \
         {0}/Cargo.toml does not exist, but Cargo.toml exists in the working directory: write {1}/Cargo.toml, or set \
         the key on the command line",
        dir.path().display(),
        working.display()
    );
    assert_eq!(error.to_string(), words);
}

/// An adapter's directory with this configuration.
fn adapter(json: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("adapter_config.json"), json).unwrap();
    dir
}

const LORA: &str = r#"{"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "b", "r": 4,
"lora_alpha": 6, "lora_dropout": 0.25, "use_rslora": true, "bias": "none", "target_modules": ["v_proj", "q_proj"]}"#;

fn with(dir: &Path, purpose: Purpose, set: &[(&str, &str)]) -> anyhow::Result<Resolved> {
    let model = ("model_name_or_path", dir.to_str().unwrap());
    let enough = [model, ("dataset_name", "d"), ("reward_funcs", "gsm8k"), ("eval_dataset_name", "e")];
    let all = [&enough[..], &[("eval_strategy", "steps")], set].concat();
    let set = all.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    Layers { purpose, set, ..Layers::default() }.resolve()
}

#[test]
fn an_adapters_directory_sets_the_adapter_keys() {
    let dir = adapter(LORA);
    let resolved = with(dir.path(), Purpose::Grpo, &[]).unwrap();
    let c = &resolved.config;
    assert_eq!((c.use_peft, c.lora_r, c.lora_alpha, c.lora_dropout, c.use_rslora), (true, 4, 6.0, 0.25, true));
    let mut names = c.lora_target_modules.clone().unwrap();
    names.sort();
    assert_eq!(names, ["q_proj", "v_proj"]);
    assert_eq!(resolved.notes, [format!("the run continues with the adapter {}", dir.path().display())]);
    for key in ["use_peft", "lora_r", "lora_alpha", "lora_dropout", "use_rslora", "lora_target_modules"] {
        assert_eq!(*resolved.origin(key), Origin::Adapter, "{key}");
    }
    assert_eq!(*resolved.origin("disable_dropout"), Origin::Default);
    // Keys may repeat the adapter's values, with the modules in any order.
    let same = [("lora_r", "4"), ("lora_target_modules", "[\"q_proj\", \"v_proj\"]"), ("disable_dropout", "true")];
    assert_eq!(with(dir.path(), Purpose::Grpo, &same).unwrap().config.adapter().map(|lora| lora.dropout), Some(0.0));
    // An evaluation uses the adapter as it is.
    assert!(!with(dir.path(), Purpose::Eval, &[]).unwrap().config.use_peft);
    let model = dir.path().display();
    for (key, value, theirs, fix) in [
        ("lora_r", "8", "4", ""),
        ("lora_alpha", "4.0", "6.0", ""),
        ("use_rslora", "false", "true", ""),
        ("lora_dropout", "0.0", "0.25", " (disable_dropout = true trains without dropout)"),
        ("use_peft", "false", "true", "; to train all weights, merge the adapter into its base with `lockstep merge`"),
    ] {
        let error = with(dir.path(), Purpose::Grpo, &[(key, value)]).unwrap_err();
        let words = format!(
            "`{key}` = {value}, but the model {model} is an adapter, and its adapter_config.json has {theirs}: remove \
             the key{fix}"
        );
        assert_eq!((is_bad_input(&error), error.to_string()), (true, words));
    }
    let error = with(dir.path(), Purpose::Grpo, &[("lora_target_modules", "[\"k_proj\"]")]).unwrap_err();
    assert!(error.to_string().starts_with("`lora_target_modules` = [\"k_proj\"], but"), "{error}");
}

#[test]
fn all_linear_equals_the_list_of_all_linear_layers() {
    let names = "[\"down_proj\", \"gate_proj\", \"k_proj\", \"o_proj\", \"q_proj\", \"up_proj\", \"v_proj\"]";
    let dir = adapter(&LORA.replace("[\"v_proj\", \"q_proj\"]", names));
    let set = [("lora_target_modules", "all-linear")];
    assert!(with(dir.path(), Purpose::Grpo, &set).is_ok());
    assert!(with(dir.path(), Purpose::Grpo, &[("lora_target_modules", names)]).is_ok());
    assert!(with(dir.path(), Purpose::Grpo, &[("lora_target_modules", "q_proj")]).is_err());
}

/// A run from a version without `template_columns` passed no tools to the template, and resumes without them.
#[test]
fn an_older_run_passes_no_columns_to_the_template() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let columns = |file: &str| {
        let file = Some(place(file));
        let resolved = Layers { purpose: Purpose::Show, file, ..Layers::default() }.resolve().unwrap();
        (resolved.config.template_columns.clone(), settings_of_weights(&resolved.config))
    };
    let both = ["tools", "chat_template_kwargs"].map(str::to_owned).to_vec();
    for name in ["config.toml", "mine.toml"] {
        std::fs::write(place(name), "seed = 3\n").unwrap();
    }
    let (new, settings) = columns("config.toml");
    assert_eq!(new, both, "no run's configuration is in the directory");
    std::fs::write(place("record.json"), "{}").unwrap();
    assert_eq!(columns("mine.toml").0, both);
    assert_eq!(columns("config.toml"), (Vec::new(), settings), "the lineage stays the same");
    std::fs::write(place("config.toml"), "template_columns = [\"tools\"]\n").unwrap();
    assert_eq!(columns("config.toml").0, ["tools"]);
    for (value, error) in
        [("[\"documents\"]", "may contain only tools and chat_template_kwargs"), ("3", "template_columns")]
    {
        let set = vec![("template_columns".to_owned(), value.to_owned())];
        let found = Layers { purpose: Purpose::Show, set, ..Layers::default() }.resolve().unwrap_err().to_string();
        assert!(found.contains(error), "{found}");
    }
}
