//! Translates the configuration in a TRL script to TOML: the literal arguments of `GRPOConfig(…)`, `GRPOTrainer(…)` (or
//! their RLOO counterparts) and `load_dataset(…)`. The TOML lists all other arguments in comments.

use super::python::{Call, Literal};
use lockstep::config::{Config, UnsupportedKey, keys, toml_on_one_line, unsupported_key};
use std::fmt::Write;
use toml::Value;

/// Arguments that have a different name in Lockstep: TRL's name, and the configuration key.
const RENAMED: [(&str, &str); 2] = [("model", "model_name_or_path"), ("stop_strings", "stop")];

/// Returns the TOML for the calls of a script.
pub(super) fn translate(calls: &[Call]) -> anyhow::Result<String> {
    let first = |name: &str| calls.iter().find(|call| call.name == name).map(|call| call.arguments.clone());
    let (rloo_config, rloo_trainer) = (first("RLOOConfig"), first("RLOOTrainer"));
    let rloo = rloo_config.is_some() || rloo_trainer.is_some();
    let config = rloo_config.or_else(|| first("GRPOConfig"));
    let trainer = rloo_trainer.or_else(|| first("GRPOTrainer"));
    if config.is_none() && trainer.is_none() {
        anyhow::bail!(
            "the script must call GRPOConfig, GRPOTrainer, RLOOConfig or RLOOTrainer, but calls none of them"
        );
    }
    let mut found: Vec<(&'static str, String)> = Vec::new();
    if rloo {
        found.push(("algorithm", "\"rloo\"".to_owned()));
    }
    let mut open: Vec<String> = Vec::new();
    for (place, (name, value)) in config.into_iter().flatten().enumerate() {
        match (name.as_str(), &value) {
            ("", Literal::Expression(text)) if text.starts_with('*') => {
                open.push(format!("{text}: the contents of the dictionary are unknown"));
            }
            ("", _) if place == 0 => translate_one("output_dir", value, &mut found, &mut open),
            ("", value) => open.push(format!("argument {} = {}: pass it by name", place + 1, text_of(value))),
            _ => translate_one(&name, value, &mut found, &mut open),
        }
    }
    for (name, value) in trainer.into_iter().flatten() {
        match (name.as_str(), value) {
            ("args" | "processing_class" | "train_dataset", Literal::Expression(_)) => {}
            ("eval_dataset", value) => {
                open.push(format!("eval_dataset = {}: set eval_dataset_name (and eval_strategy)", text_of(&value)))
            }
            ("reward_funcs", value) => open.push(format!(
                "reward_funcs = {}: move the functions unchanged to a separate file, and set reward_funcs = \
                 [\"python:my_rewards.py:my_function\"], or to built-in rewards (\"gsm8k\", \"format:REGEX\", …)",
                text_of(&value)
            )),
            ("model" | "reward_weights", value) => translate_one(&name, value, &mut found, &mut open),
            (_, Literal::None) => {}
            ("", value) if found.iter().all(|(key, _)| *key != "model_name_or_path") => {
                translate_one("model", value, &mut found, &mut open);
            }
            (other, value) => open.push(format!("{other} = {}: unknown argument", text_of(&value))),
        }
    }
    dataset(calls, &mut found, &mut open);
    let translated = [if rloo { "RLOO" } else { "GRPO" }].map(|of| [format!("{of}Config"), format!("{of}Trainer")]);
    others(calls, &translated[0], &mut open);

    let mut text =
        String::from("# Translated from a TRL script. `lockstep config show FILE` completes and checks it.\n");
    for key in keys() {
        if let Some((_, value)) = found.iter().rfind(|(name, _)| *name == key.name) {
            let _ = writeln!(text, "{} = {value}", key.name);
        }
    }
    if !open.is_empty() {
        text.push_str("\n# Not translated:\n");
        for line in open {
            let _ = writeln!(text, "# - {line}");
        }
    }
    Ok(text)
}

/// Dataset methods that change the rows.
const DATA: [&str; 9] = [
    "map",
    "filter",
    "select",
    "shuffle",
    "take",
    "train_test_split",
    "rename_column",
    "rename_columns",
    "remove_columns",
];

/// Whether a call with this name affects training. If such a call is not translated, a comment lists it.
fn is_listed(name: &str) -> bool {
    ["load_dataset", "set_seed", "get_peft_model", "get_peft_config"].contains(&name)
        || ["Config", "Trainer", "Arguments", "Callback", "Parser"].iter().any(|end| name.ends_with(end))
}

/// Lists the calls that are not translated. Only the first call of each name is translated.
fn others(calls: &[Call], translated: &[String], open: &mut Vec<String>) {
    let mut seen: Vec<&str> = Vec::new();
    for Call { name, method, line, arguments } in calls {
        let changes_data = *method && DATA.contains(&&**name);
        if !changes_data && !is_listed(name) {
            continue;
        }
        let is_known = name == "load_dataset" || translated.contains(name);
        if is_known && !seen.contains(&&**name) {
            seen.push(name);
            continue;
        }
        let argument = |(name, value): &(String, Literal)| {
            if name.is_empty() { text_of(value) } else { format!("{name} = {}", text_of(value)) }
        };
        let arguments = arguments.iter().map(argument).collect::<Vec<_>>().join(", ");
        if changes_data {
            open.push(format!(
                ".{name}({arguments}) in line {line}: if it changes the data, write the changed data to a file \
                 and use that (`columns` renames columns)"
            ));
            continue;
        }
        let why =
            if is_known { "only the first call is translated" } else { "calls of this function are not translated" };
        open.push(format!("{name}({arguments}) in line {line}: {why}"));
    }
}

fn text_of(literal: &Literal) -> String {
    match literal {
        Literal::Value(value) => toml_on_one_line(value),
        Literal::None => "None".to_owned(),
        Literal::Expression(text) => text.clone(),
    }
}

fn translate_one(name: &str, value: Literal, found: &mut Vec<(&'static str, String)>, open: &mut Vec<String>) {
    let name = RENAMED.iter().find(|(theirs, _)| *theirs == name).map_or(name, |(_, ours)| *ours);
    let written = text_of(&value);
    let toml = match value {
        Literal::Value(Value::Boolean(on)) if name == "scale_rewards" => {
            Value::String(if on { "group" } else { "none" }.to_owned())
        }
        Literal::Value(value) => value,
        Literal::None => Value::String("none".to_owned()),
        Literal::Expression(text) => {
            let what = if name.is_empty() { text } else { format!("{name} = {text}") };
            open.push(format!("{what}: not a literal"));
            return;
        }
    };
    if let Some(key) = Config::key(name).or_else(|| Config::key_of_trl(name)) {
        match key.check(&toml) {
            Ok(()) => found.push((key.name, toml_on_one_line(&toml))),
            Err(why) => open.push(format!("{name} = {written}: {why}")),
        }
        return;
    }
    match unsupported_key(name, &toml) {
        Some(UnsupportedKey::Ignored(why)) => open.push(format!("{name} = {written}: no effect here: {why}")),
        Some(UnsupportedKey::Refused(what)) => open.push(format!("{name} = {written}: not supported: {what}")),
        None => open.push(format!("{name} = {written}: unknown key")),
    }
}

/// Translates `load_dataset("name", "configuration", split="train")`.
fn dataset(calls: &[Call], found: &mut Vec<(&'static str, String)>, open: &mut Vec<String>) {
    let Some(Call { arguments, .. }) = calls.iter().find(|call| call.name == "load_dataset") else {
        open.push("train_dataset: the script does not call load_dataset(…); set dataset_name".to_owned());
        return;
    };
    let quoted = |text: &str| toml_on_one_line(&Value::String(text.to_owned()));
    let text = |(name, value): &(String, Literal)| match value {
        Literal::Value(Value::String(text)) if name.is_empty() => Some(text.clone()),
        _ => None,
    };
    let positional: Vec<String> = arguments.iter().map_while(text).collect();
    for (key, value) in ["dataset_name", "dataset_config"].into_iter().zip(&positional) {
        found.push((key, quoted(value)));
    }
    if positional.is_empty() {
        open.push("train_dataset: the name in load_dataset(…) is not a literal; set dataset_name".to_owned());
    }
    for (name, value) in arguments {
        let key = match name.as_str() {
            "split" => "dataset_split",
            "name" => "dataset_config",
            "path" => "dataset_name",
            _ => continue,
        };
        match value {
            Literal::Value(Value::String(split)) if key == "dataset_split" && split.contains(['[', '+']) => {
                open.push(format!("dataset_split = {}: slices cannot be translated; see max_samples", quoted(split)));
            }
            Literal::Value(Value::String(text)) => found.push((key, quoted(text))),
            other => open.push(format!("{key} = {}: not a literal", text_of(other))),
        }
    }
    if calls.iter().any(|call| call.method && call.name == "map") {
        open.push(
            "dataset.map(…): Python code that changes rows cannot be translated; prompt_column, columns, system_prompt \
             and task cover the usual cases"
                .to_owned(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::python::calls;

    fn translated(script: &str) -> anyhow::Result<String> {
        translate(&calls(script.as_bytes(), std::path::Path::new("python3")).unwrap())
    }

    #[test]
    fn the_translated_configuration_can_be_loaded() {
        let Some(()) = testing::program("python3") else { return };
        let script = r#"
from trl import GRPOConfig, GRPOTrainer
dataset = load_dataset("openai/gsm8k", "main", split="train")
LR = 1e-5
args = GRPOConfig(
    output_dir="out",  # where
    learning_rate=LR, num_generations=4, per_device_train_batch_size=4, scale_rewards=False,
    chat_template_kwargs={"enable_thinking": False},
    bf16=True, use_vllm=True, report_to="none", logging_steps=get_steps(), epsilon_high=None, beeta=1,
)
trainer = GRPOTrainer(model="Qwen/Qwen2-0.5B", reward_funcs=[len_reward], args=args, train_dataset=dataset)
"#;
        let text = translated(script).unwrap();
        let table: toml::Table = text.parse().unwrap();
        let expect = [
            ("model_name_or_path", Value::String("Qwen/Qwen2-0.5B".into())),
            ("dataset_name", Value::String("openai/gsm8k".into())),
            ("dataset_config", Value::String("main".into())),
            ("output_dir", Value::String("out".into())),
            ("learning_rate", Value::Float(1e-5)),
            ("num_generations", Value::Integer(4)),
            ("scale_rewards", Value::String("none".into())),
            ("epsilon_high", Value::String("none".into())),
        ];
        for (key, value) in expect {
            assert_eq!(table[key], value, "{key}");
        }
        assert_eq!(table["chat_template_kwargs"]["enable_thinking"], Value::Boolean(false));
        for word in [
            "bf16 = true: not supported: the key is dtype",
            "use_vllm = true: no effect",
            "logging_steps = get_steps(): not a literal",
            "beeta = 1: unknown key",
            "reward_funcs = [len_reward]: move the functions unchanged to a separate file",
        ] {
            assert!(text.contains(word), "{word} is not in\n{text}");
        }
        assert!(translated("print(1)").is_err());

        let script = "args = RLOOConfig(\"out\", reward_clip_range=[-1.0, 1.0])\ntrainer = RLOOTrainer(args=args)\n";
        let table: toml::Table = translated(script).unwrap().parse().unwrap();
        assert_eq!(
            (&table["algorithm"], &table["output_dir"]),
            (&Value::String("rloo".into()), &Value::String("out".into()))
        );
        assert!(table["reward_clip_range"].is_array());
    }

    /// The script has a second GRPOConfig, a DPOConfig, and arguments that only Python can evaluate.
    #[test]
    fn every_call_that_is_not_translated_is_listed() {
        let Some(()) = testing::program("python3") else { return };
        let script = "first = GRPOConfig(lr, **cfg, beta=0.1)\nsecond = GRPOConfig(learning_rate=3e-6, seed=7)\n\
                      other = trl.DPOConfig(beta=0.5)\nclass MyConfig(GRPOConfig): pass\nd = load_dataset('a')\n\
                      e = load_dataset('b', split='test')\nt = GRPOTrainer(args=first, peft_config=LoraConfig(r=8))\n";
        let text = translated(script).unwrap();
        for words in [
            "output_dir = lr: not a literal",
            "# - **cfg: the contents of the dictionary are unknown",
            "GRPOConfig(learning_rate = 3e-6, seed = 7) in line 2: only the first call is translated",
            "DPOConfig(beta = 0.5) in line 3: calls of this function are not translated",
            "in line 6: only the first call is translated",
            "LoraConfig(r = 8) in line 7",
        ] {
            assert!(text.contains(words), "`{words}` is not in\n{text}");
        }
        let table: toml::Table = text.parse().unwrap();
        assert_eq!((table.get("learning_rate"), table.get("output_dir")), (None, None));
        assert_eq!((&table["beta"], &table["dataset_name"]), (&Value::Float(0.1), &Value::String("a".into())));
    }

    /// Functions that an import or an assignment renamed are recognised; strings that look like calls are not. Calls
    /// that change the data are listed.
    #[test]
    fn calls_through_aliases_are_recognised_and_strings_are_ignored() {
        let Some(()) = testing::program("python3") else { return };
        let script = "from trl import (GRPOConfig as Cfg, GRPOTrainer)\nimport trl\nset_seed(3)\nMine = trl.SFTConfig\n\
                      args = Cfg(num_generations=4, **base)\nwarm = Mine(max_steps=10)\nlast = Cfg(beta=0.5)\n\
                      s = \"GRPOConfig(seed=99)\"\nhelp = \'\'\'\nGRPOConfig(seed=98)\n\'\'\'\n\
                      d = load_dataset('a').map(as_chat, num_proc=2)\nx = list(map(str, d))\n\
                      t = GRPOTrainer(args=args, callbacks=[EarlyStoppingCallback(2)])\np = TrlParser((Cfg, Other))\n";
        let text = translated(script).unwrap();
        for words in [
            "# - **base: the contents",
            "set_seed(3) in line 3: calls of this function",
            "SFTConfig(max_steps = 10) in line 6: calls of this function",
            "GRPOConfig(beta = 0.5) in line 7: only the first",
            ".map(as_chat, num_proc = 2) in line 12: if it changes the data",
            "EarlyStoppingCallback(2) in line 14",
            "TrlParser((Cfg, Other)) in line 15",
        ] {
            assert!(text.contains(words), "`{words}` is not in\n{text}");
        }
        assert!(!text.contains("99") && !text.contains("98") && !text.contains("map(str"), "{text}");
        let table: toml::Table = text.parse().unwrap();
        assert_eq!((&table["num_generations"], table.get("beta")), (&Value::Integer(4), None));
    }

    /// Translates calls in the form in which `calls.py` prints them.
    #[test]
    fn parsed_calls_are_translated_to_toml_and_comments() {
        let text = |text: &str| Literal::Value(Value::String(text.to_owned()));
        let code = |text: &str| Literal::Expression(text.to_owned());
        let call = |name: &str, method: bool, arguments: &[(&str, Literal)]| Call {
            name: name.to_owned(),
            method,
            line: 3,
            arguments: arguments.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
        };
        let all = [
            call(
                "load_dataset",
                false,
                &[("path", text("p")), ("name", text("n")), ("split", text("train[:5]")), ("x", code("y"))],
            ),
            call("map", true, &[("", code("f"))]),
            call("map", false, &[("", code("g"))]),
            call(
                "GRPOConfig",
                false,
                &[
                    ("", text("out")),
                    ("", code("second")),
                    ("scale_rewards", Literal::Value(Value::Boolean(true))),
                    ("beta", Literal::Value(Value::Float(0.5))),
                    ("beta", Literal::Value(Value::Float(0.25))),
                    ("num_generations", text("many")),
                ],
            ),
            call(
                "GRPOTrainer",
                false,
                &[
                    ("", text("m")),
                    ("", text("late")),
                    ("args", code("args")),
                    ("eval_dataset", code("e")),
                    ("callbacks", Literal::None),
                    ("peft_config", code("p")),
                    ("reward_weights", Literal::Value(Value::Array(vec![Value::Float(1.0)]))),
                ],
            ),
        ];
        let translated = translate(&all).unwrap();
        let (keys, open) = translated.split_once("\n# Not translated:\n").unwrap();
        let mut keys: Vec<&str> = keys.lines().collect();
        let comment = "# Translated from a TRL script. `lockstep config show FILE` completes and checks it.";
        assert_eq!(keys.remove(0), comment);
        keys.sort_unstable();
        let expected = [
            "beta = 0.25",
            "dataset_config = \"n\"",
            "dataset_name = \"p\"",
            "model_name_or_path = \"m\"",
            "output_dir = \"out\"",
            "reward_weights = [1.0]",
            "scale_rewards = \"group\"",
        ];
        assert_eq!(keys, expected);
        let open: Vec<&str> = open.lines().collect();
        assert_eq!(open[0], "# - argument 2 = second: pass it by name");
        assert!(open[1].starts_with("# - num_generations = \"many\": "), "{}", open[1]);
        assert_eq!(open[2], "# -  = \"late\": unknown argument");
        assert_eq!(open[3], "# - eval_dataset = e: set eval_dataset_name (and eval_strategy)");
        assert_eq!(open[4], "# - peft_config = p: unknown argument");
        assert_eq!(open[5], "# - train_dataset: the name in load_dataset(…) is not a literal; set dataset_name");
        assert_eq!(open[6], "# - dataset_split = \"train[:5]\": slices cannot be translated; see max_samples");
        assert!(open[7].starts_with("# - dataset.map(…): Python code that changes rows"), "{}", open[7]);
        assert!(open[8].starts_with("# - .map(f) in line 3: if it changes the data"), "{}", open[8]);
        assert_eq!(open.len(), 9, "{open:?}");
        let why = translate(&[call("f", false, &[])]).unwrap_err().to_string();
        assert_eq!(
            why,
            "the script must call GRPOConfig, GRPOTrainer, RLOOConfig or RLOOTrainer, but calls none of them"
        );
        let bare = translate(&[call("RLOOTrainer", false, &[])]).unwrap();
        assert!(bare.contains("\nalgorithm = \"rloo\"\n"), "{bare}");
        assert!(
            bare.contains("# - train_dataset: the script does not call load_dataset(…); set dataset_name"),
            "{bare}"
        );
        let positional = [
            call("GRPOConfig", false, &[]),
            call("load_dataset", false, &[("", text("a")), ("", code("b")), ("", text("c"))]),
        ];
        let translated = translate(&positional).unwrap();
        assert!(translated.contains("dataset_name = \"a\"") && !translated.contains("dataset_config"), "{translated}");
    }
}
