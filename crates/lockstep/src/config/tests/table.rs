//! The rows of the table of keys agree with each other and with TRL's configurations.

use crate::config::keys::{KEYS, Key};
use crate::config::methods::{DPO, GRPO, Methods, REWARD, RLOO, SFT, each};
use crate::config::row::Trl;
use crate::config::unsupported_keys;
use crate::config::{Algorithm, Config, Layers, Purpose};
use serde_json::Value as Json;
use std::collections::BTreeSet;

/// TRL's configuration classes by method; the fields of the last two apply to all methods.
const CLASSES: [(&str, Methods); 5] =
    [("GRPOConfig", GRPO), ("RLOOConfig", RLOO), ("SFTConfig", SFT), ("DPOConfig", DPO), ("RewardConfig", REWARD)];
const SHARED: [&str; 2] = ["ModelConfig", "ScriptArguments"];

fn trl() -> Json {
    serde_json::from_str(include_str!("../../../tests/fixtures/trl_keys.json")).unwrap()
}

fn field<'a>(trl: &'a Json, class: &str, name: &str) -> Option<&'a Json> {
    trl[class].get(name).or_else(|| SHARED.iter().find_map(|shared| trl[*shared].get(name)))
}

fn trl_name(key: &Key) -> Option<&'static str> {
    match key.row.trl {
        Trl::Field { name, .. } => Some(name.unwrap_or(key.name)),
        Trl::Nothing | Trl::Other(_) => None,
    }
}

#[test]
fn rows_are_documented_and_refer_to_existing_keys() {
    let mut names = BTreeSet::new();
    for key in KEYS {
        assert!(names.insert(key.name), "{} is in the table twice", key.name);
        assert!(key.doc.trim().ends_with(['.', ')']), "the documentation of {} is not a sentence", key.name);
        assert!(key.out_of_range(&Config::default()).is_none(), "{}'s default is out of its range", key.name);
        if let Some((needed, value)) = key.row.needs {
            let needed = Config::key(needed).unwrap_or_else(|| panic!("{} needs {needed}", key.name));
            (needed.read_text)(&mut Config::default(), value).unwrap();
        }
        for (methods, others) in key.row.instead {
            assert!(!key.row.read_by.meet(*methods), "a method reads {}, although {others} replaces it", key.name);
            let known = others.split(" and ").all(|other| Config::key(other).is_some());
            assert!(known, "{} is replaced by {others}", key.name);
        }
    }
}

/// The TRL names and defaults in the documentation of keys match TRL.
#[test]
fn documented_trl_names_and_defaults_match_trl() {
    let trl = trl();
    let mut wrong = Vec::new();
    for key in KEYS {
        let Some(name) = trl_name(key) else { continue };
        let mut found = false;
        for (class, method) in CLASSES {
            let Some(theirs) = field(&trl, class, name) else { continue };
            found = true;
            let Trl::Field { defaults, .. } = key.row.trl else { unreachable!() };
            let documented = defaults.iter().find(|(methods, _)| methods.contain(method));
            let documented = documented.map_or_else(|| key.default_text(method), |(_, text)| (*text).to_owned());
            if key.row.read_by.contain(method) && !same(&documented, theirs) {
                wrong.push(format!("{class}.{name} is {theirs}, documented as {documented}"));
            }
        }
        if !found {
            wrong.push(format!("{}: TRL has no field {name}", key.name));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Whether TOML text and a JSON value are equal.
fn same(toml: &str, json: &Json) -> bool {
    let number = |text: &str| text.parse::<f64>().ok();
    match json {
        // None in Python means an unset key, or an empty list or table.
        Json::Null => ["none", "[]", "{}"].contains(&toml),
        Json::Number(n) => number(toml).is_some_and(|x| Some(x) == n.as_f64()),
        Json::Array(items) if items.len() == 1 => same(toml, &items[0]),
        Json::String(text) => toml == format!("\"{text}\""),
        other => other.to_string().as_str() == toml,
    }
}

/// Every field of TRL's configurations is supported, ignored with a reason, or refused with a fix.
#[test]
fn every_trl_field_is_supported_ignored_or_refused() {
    let trl = trl();
    let answered: BTreeSet<&str> = KEYS
        .iter()
        .flat_map(|key| trl_name(key).into_iter().chain([key.name]))
        .chain(unsupported_keys::names())
        .collect();
    let mut count = 0;
    for class in CLASSES.iter().map(|(class, _)| *class).chain(SHARED) {
        for name in trl[class].as_object().unwrap().keys() {
            assert!(answered.contains(name.as_str()), "{class}.{name} is neither supported nor refused");
            count += 1;
        }
    }
    assert!(count > 700, "{count} fields");
}

/// Every key has a reader, and a method with its own default for a key also reads the key.
#[test]
fn every_key_has_a_reader() {
    for key in KEYS {
        assert!(each().any(|(method, _)| key.row.read_by.contain(method)), "nothing reads {}", key.name);
        for (methods, _) in key.defaults {
            assert!(key.row.read_by.contain(*methods), "{} has a default where it is not read", key.name);
        }
    }
}

/// A method's defaults are the same in the library and in its runs.
#[test]
fn a_methods_defaults_equal_those_of_its_runs() {
    let of = |purpose, algorithm| Config::defaults(purpose, algorithm);
    assert_eq!(of(Purpose::Grpo, Algorithm::Grpo), Config::default());
    let (sft, rloo) = (of(Purpose::Sft, Algorithm::Grpo), of(Purpose::Grpo, Algorithm::Rloo));
    assert_eq!((sft.learning_rate, rloo.num_generations, rloo.algorithm), (2e-5, 2, Algorithm::Rloo));
    let (num_generations, max_length) = (Config::key("num_generations").unwrap(), Config::key("max_length").unwrap());
    let read = |key: &Key, purpose| key.is_read_by(purpose, Algorithm::Grpo);
    assert!(read(num_generations, Purpose::Grpo) && !read(num_generations, Purpose::Sft));
    assert!(!read(max_length, Purpose::Grpo) && read(max_length, Purpose::Dpo));
    let trl_name = Config::key("dpo_loss_type").unwrap().trl_name();
    assert_eq!((trl_name, max_length.trl_name()), (Some("loss_type"), None));
}

/// A program's values override a file but not the command line, and are checked like a file's.
#[test]
fn values_from_a_program_override_a_file_but_not_flags() {
    let resolve = |values: &[(&str, toml::Value)], set: &[(&str, &str)]| {
        let values = values.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        let set = set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Layers { purpose: Purpose::Show, values, set, ..Layers::default() }.resolve()
    };
    let given = [("num_generations", 4.into()), ("beta", 0.5.into()), ("use_vllm", true.into())];
    let resolved = resolve(&given, &[("beta", "0.25")]).unwrap();
    assert_eq!((resolved.config.num_generations, resolved.config.beta), (4, 0.25));
    assert!(resolved.notes.iter().any(|note| note.contains("use_vllm")), "{:?}", resolved.notes);
    assert!(resolved.to_toml().contains("num_generations = 4  # program"));
    for (name, value, words) in [
        ("num_generatons", toml::Value::Integer(4), "did you mean `num_generations`?"),
        ("num_generations", "four".into(), "argument: `num_generations`: expected an integer"),
        ("fsdp", "full_shard".into(), "remove it"),
    ] {
        let error = resolve(&[(name, value)], &[]).unwrap_err();
        assert!(crate::error::is_bad_input(&error) && error.to_string().contains(words), "{error}");
    }
}

/// The trainer's structs have their own defaults, for use without a configuration, which must equal the keys' defaults.
#[test]
fn trainer_defaults_equal_the_defaults_of_keys() {
    let c = Config::default();
    assert_eq!(c.loss(), train::LossConfig::default());
    assert_eq!(c.optimizer(), train::OptimizerConfig { seed: c.seed, ..Default::default() });
    assert_eq!((c.ppo(), c.value_loss()), Default::default());
    let dpo = Config { beta: 0.1, ..c };
    assert_eq!(dpo.dpo(), train::loss::dpo::DpoConfig::default());
}
