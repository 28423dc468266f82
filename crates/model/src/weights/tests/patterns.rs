//! Compares target modules with PEFT: a table of patterns and lists, each with the modules that PEFT adapts, or with
//! PEFT's error (conformance/lora_pattern_fixtures.py).

use super::*;
use serde_json::Value;
use std::collections::BTreeSet;

/// `target_modules` of a LoraConfig: a string is a regular expression, a list contains names.
fn targets(target: &Value) -> TargetModules {
    match target {
        Value::String(all) if all.eq_ignore_ascii_case("all-linear") => TargetModules::AllLinear,
        Value::String(pattern) => TargetModules::Regex(pattern.clone()),
        Value::Array(names) => TargetModules::Names(names.iter().map(|n| n.as_str().unwrap().to_owned()).collect()),
        other => panic!("{other}"),
    }
}

/// The modules that this crate adapts, or its error.
fn adapted(config: &Arc<ModelConfig>, lora: &LoraConfig) -> std::result::Result<BTreeSet<String>, String> {
    lora.check_new(config).map_err(|error| error.to_string())?;
    let memory = Memory::new(Device::Meta);
    let adapter = Adapter::zeros(&memory, &Weights::zeros(&memory, config), lora).map_err(|e| e.to_string())?;
    let specs = adapter.params.specs();
    let names = specs.iter().flat_map(|spec| &spec.parts).map(|part| part.name.as_str());
    let module = |name: &str| Some(name.strip_prefix("base_model.model.")?.strip_suffix(".lora_B.weight")?.to_owned());
    Ok(names.filter_map(module).collect())
}

/// Whether PEFT adapts the head or the embedding, for which this crate returns an error.
fn has_head(modules: &BTreeSet<String>) -> bool {
    ["lm_head", "model.embed_tokens"].iter().any(|name| modules.contains(*name))
}

/// Targets that only this crate rejects: lists in which a name matches no module. PEFT ignores such names.
const STRICTER: [&str; 2] = [r#"[".*q_proj","v_proj"]"#, r#"["q_proj","lm_head"]"#];

#[test]
fn target_modules_select_the_same_modules_as_in_peft() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/lora_patterns.json");
    let rows: Vec<Value> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let (mut wrong, mut same, mut refused) = (Vec::new(), 0, 0);
    for row in &rows {
        let (family, target) = (row["model"].as_str().unwrap(), &row["target"]);
        let config = config(family);
        let lora = LoraConfig { r: 2, target_modules: targets(target), ..LoraConfig::default() };
        let found = adapted(&config, &lora);
        let peft: Option<BTreeSet<String>> = serde_json::from_value(row["modules"].clone()).ok();
        match (&found, &peft) {
            (Err(_), None) => refused += 1,
            (Err(why), Some(modules)) if has_head(modules) => {
                refused += 1;
                let is_named = ["the head and the embedding cannot be adapted", "matches no linear layer"];
                let is_named = is_named.iter().any(|words| why.contains(words));
                if !is_named {
                    wrong.push(format!("{family} {target}: {why}"));
                }
            }
            (Err(_), Some(_)) if STRICTER.contains(&target.to_string().as_str()) => refused += 1,
            (Ok(found), Some(modules)) if found == modules => {
                same += 1;
                // The saved names must select the same modules when the file is read.
                let written = LoraConfig { target_modules: TargetModules::Names(lora.names(&config)), ..lora.clone() };
                if adapted(&config, &written).as_ref() != Ok(modules) {
                    wrong.push(format!("{family} {target}: written as {:?}", written.target_modules));
                }
            }
            _ => wrong.push(format!("{family} {target}: {found:?}, PEFT {peft:?}")),
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
    assert!(same >= 100 && refused >= 60, "{same} rows are equal, {refused} are refused");
}

#[test]
fn a_pattern_is_saved_as_the_shortest_names() {
    let config = config("llama3");
    let written = |pattern: &str| {
        let lora = LoraConfig { target_modules: TargetModules::Regex(pattern.into()), ..LoraConfig::default() };
        lora.names(&config)
    };
    assert_eq!(written(".*(v|q)_proj"), ["q_proj", "v_proj"]);
    let one = ["model.layers.1.self_attn.q_proj", "model.layers.1.mlp.down_proj"];
    assert_eq!(written(r".*\.1\..*(q_proj|down_proj)"), one);
    assert_eq!(
        written(r".*").len(),
        7,
        "a pattern of an earlier version that matches everything selects all linear layers"
    );
}

#[test]
fn the_error_for_a_pattern_names_a_module_that_it_must_not_match() {
    let config = config("llama3");
    let why = |pattern: &str| {
        let lora = LoraConfig { target_modules: TargetModules::Regex(pattern.into()), ..LoraConfig::default() };
        lora.check_new(&config).unwrap_err().to_string()
    };
    for (pattern, module, reason) in [
        (".*", "lm_head", "the head and the embedding cannot be adapted"),
        (".*(q_proj|lm_head)", "lm_head", "the head and the embedding cannot be adapted"),
        (".*(q_proj|embed_tokens)", "model.embed_tokens", "the head and the embedding cannot be adapted"),
        (".*layers.*", "model.layers", "that is not a linear layer"),
        (".*(mlp|q_proj)", "model.layers.0.mlp", "that is not a linear layer"),
        (".*(norm|q_proj)", "model.layers.0.input_layernorm", "that is not a linear layer"),
        (r".*\.1\.mlp\.(act_fn|up_proj)", "model.layers.1.mlp.act_fn", "that is not a linear layer"),
    ] {
        let fix = "match only linear layers, as in `.*_proj`, or set all-linear";
        let words = format!("`lora_target_modules`: `{pattern}` also matches `{module}`, but {reason}: {fix}");
        assert_eq!(why(pattern), words);
    }
}
