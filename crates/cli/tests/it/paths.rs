//! Paths in a configuration file are relative to that file, also inside lists and tables.

use crate::support::refused;
use crate::support::runs::{arguments, directory, good, of_lines};
use std::fs;

/// Checks evaluation sets, reward models, programs and their scripts.
#[test]
fn paths_in_lists_and_tables_are_relative_to_their_file() {
    let dir = directory();
    // The canonical path, to which the configuration resolves paths, and which the program reports as its working
    // directory.
    let root = &dir.path().canonicalize().unwrap();
    let (configs, elsewhere) = (root.join("configs"), root.join("else where"));
    for made in ["configs/scorer", "configs/my rewards", "else where"] {
        fs::create_dir_all(root.join(made)).unwrap();
    }
    let serve = "while read -r line; do echo '{\"rewards\": [1, 2, 0, 1]}'; done\n";
    fs::write(configs.join("serve.sh"), serve).unwrap();
    let own = configs.join("my rewards/own.sh");
    testing::write_program(&own, format!("#!/bin/sh\n[ \"$1\" = 'a.json' ] || exit 1\n{serve}"));
    fs::copy(root.join("e.jsonl"), configs.join("easy.jsonl")).unwrap();
    let programs = "\"command:sh -u serve.sh serve.sh\", \
                    { kind = \"command\", command = [\"./my rewards/own.sh\", \"a.json\"] }";
    let toml = |rewards: &str| {
        let data = "eval_datasets = { easy = \"easy.jsonl\", hub = \"some/data\" }";
        format!("{data}\nreward_funcs = [{rewards}]\n")
    };
    let show = |name: &str, text: &str| {
        fs::write(configs.join(name), text).unwrap();
        let output = good(&elsewhere, &["config", "show", configs.join(name).to_str().unwrap()]);
        output.out.parse::<toml::Table>().unwrap()
    };
    let models = "\"model:scorer\", \"model:some/scorer\", { kind = \"model\", model = \"scorer\", name = \"b\" }";
    let shown = show("all.toml", &toml(&format!("{programs}, {models}, \"format:../e.jsonl\"")));
    let at = |name: &str| configs.join(name).display().to_string();
    assert_eq!(shown["eval_datasets"]["easy"].as_str(), Some(at("easy.jsonl").as_str()));
    assert_eq!(
        shown["eval_datasets"]["hub"].as_str(),
        Some("some/data"),
        "a name without a local file may be a Hub id"
    );
    let rewards = shown["reward_funcs"].as_array().unwrap();
    assert_eq!(rewards[0].as_str(), Some(format!("command:sh -u {} serve.sh", at("serve.sh")).as_str()));
    let words: Vec<&str> = rewards[1]["command"].as_array().unwrap().iter().map(|w| w.as_str().unwrap()).collect();
    assert_eq!(words, [&at("my rewards/own.sh"), "a.json"]);
    assert_eq!(rewards[2].as_str(), Some(format!("model:{}", at("scorer")).as_str()));
    assert_eq!(rewards[3].as_str(), Some("model:some/scorer"));
    assert_eq!(rewards[4]["model"].as_str(), Some(at("scorer").as_str()));
    assert_eq!(rewards[5].as_str(), Some("format:../e.jsonl"), "no path");

    // The run is started in the directory of run.toml, and resumed from a different directory.
    let rest = "eval_strategy = \"steps\"\neval_steps = 1\nmax_steps = 1\nmax_completion_length = 6\n\
                num_generations = 2\nper_device_train_batch_size = 4\nmodel_name_or_path = \"../model\"\n\
                dataset_name = \"../d.jsonl\"\noutput_dir = \"../run\"\n";
    let whole = toml(programs).replace(", hub = \"some/data\"", "") + rest;
    fs::write(configs.join("run.toml"), whole).unwrap();
    good(&configs, &["train", "run.toml"]);
    good(&elsewhere, &["train", "--resume", "../run", "--set", "max_steps=2"]);
    let run = root.join("run");
    assert_eq!(of_lines(&run, "eval_easy_rewards/sh/mean"), [1.0, 1.0]);
    assert_eq!(of_lines(&run, "eval_easy_rewards/own/mean"), [1.0, 1.0]);
    // Paths on the command line are relative to the working directory; a resume keeps that.
    let set = ["eval_datasets={ sea = \"e.jsonl\" }", "reward_funcs=[\"command:sh configs/serve.sh\"]", "max_steps=2"];
    good(root, &arguments("train", "mine", &set));
    good(&elsewhere, &["train", "--resume", "../mine", "--set", "max_steps=4"]);
    assert_eq!(of_lines(&root.join("mine"), "eval_sea_reward").len(), 1);

    // Paths that exist only relative to a different directory are not guessed.
    for (name, line) in [
        ("d.jsonl", "eval_datasets = { more = \"d.jsonl\" }"),
        ("configs/serve.sh", "reward_funcs = [\"command:sh configs/serve.sh\"]"),
        ("model", "reward_funcs = [{ kind = \"model\", model = \"model\" }]"),
    ] {
        fs::write(configs.join("guess.toml"), line).unwrap();
        let key = line.split(' ').next().unwrap();
        refused(root, &["train", "configs/guess.toml"], &["guess.toml", &format!("`{key}` = {name}"), "relative to"]);
    }
}
