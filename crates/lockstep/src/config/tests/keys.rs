//! What is said of keys: their defaults, ranges, types, readers and TRL's counterparts.

use crate::config::keys::Key;
use crate::config::methods::{ONLINE, PAIRS};
use crate::config::row::OnResume;
use crate::config::{Algorithm, Config, Purpose};
use serde_json::json;

fn key(name: &str) -> &'static Key {
    Config::key(name).unwrap_or_else(|| panic!("no key {name}"))
}

#[test]
fn defaults_by_method() {
    for (name, defaults) in [
        ("seed", "42"),
        ("threads", "not set"),
        ("max_length", "1024"),
        ("learning_rate", "1e-6 (ppo: 3e-6, sft: 2e-5, reward: 1e-4)"),
        ("num_generations", "8 (rloo: 2, reinforce_plus_plus: 1, ppo: 1)"),
        ("beta", "0.0 (rloo: 0.05, reinforce_plus_plus: 0.01, dpo: 0.1)"),
        ("stop", "[]"),
        ("columns", "{}"),
        ("algorithm", "\"grpo\""),
    ] {
        assert_eq!(key(name).defaults_text(), defaults, "{name}");
    }
}

#[test]
fn what_trl_has() {
    for (name, trl, trl_name) in [
        ("seed", "the same default", None),
        ("dataset_split", "dataset_train_split, the same default", Some("dataset_train_split")),
        ("eval_dataset_split", "dataset_test_split, default \"test\"", Some("dataset_test_split")),
        ("disable_dropout", "default true in dpo, reward", None),
        ("shuffle_dataset", "default false in sft", None),
        ("algorithm", "the trainer's class", None),
        ("prompt_column", "no such key", None),
    ] {
        assert_eq!((key(name).trl_text().as_str(), key(name).trl_name()), (trl, trl_name), "{name}");
    }
    assert_eq!(Config::key_of_trl("dataset_train_split").map(|key| key.name), Some("dataset_split"));
    assert!(Config::key_of_trl("seed").is_none() && Config::key_of_trl("dataset_split").is_none());
}

#[test]
fn types_ranges_and_schemas() {
    let integer = json!({"type": "integer", "minimum": 0});
    let threads = json!({"anyOf": [{"type": "integer", "minimum": 1, "maximum": 4096}, {"const": "none"}]});
    for (name, of_type, schema) in [
        ("seed", "integer", integer),
        (
            "adam_beta1",
            "number, at least 0 and below 1",
            json!({"type": "number", "minimum": 0.0, "exclusiveMaximum": 1.0}),
        ),
        ("adam_epsilon", "number, above 0", json!({"type": "number", "exclusiveMinimum": 0.0})),
        ("top_p", "number, above 0 and at most 1", json!({"type": "number", "exclusiveMinimum": 0.0, "maximum": 1.0})),
        (
            "max_staleness",
            "integer, at least 0 and at most 64",
            json!({"type": "integer", "minimum": 0, "maximum": 64}),
        ),
        ("save_steps", "integer, at least 1", json!({"type": "integer", "minimum": 1})),
        ("threads", "integer or \"none\", at least 1 and at most 4096", threads),
    ] {
        assert_eq!((key(name).type_text().as_str(), key(name).schema()), (of_type, schema), "{name}");
    }
}

#[test]
fn ranges_hold_at_their_ends() {
    let said = |name: &str, text: &str| {
        let mut config = Config::default();
        (key(name).read_text)(&mut config, text).unwrap();
        key(name).out_of_range(&config)
    };
    for (name, inside) in [
        ("learning_rate", &["0"][..]),
        ("threads", &["1", "4096", "none"]),
        ("adam_beta1", &["0", "0.999"]),
        ("top_p", &["1", "0.001"]),
        ("max_staleness", &["0", "64"]),
        ("seed", &["0"]),
        ("stop", &["a"]),
    ] {
        for text in inside {
            assert_eq!(said(name, text), None, "{name} = {text}");
        }
    }
    for (name, text, words) in [
        ("learning_rate", "-1e-9", "`learning_rate` must be at least 0, but is -0.000000001"),
        ("adam_beta1", "1", "`adam_beta1` must be at least 0 and below 1, but is 1"),
        ("top_p", "0", "`top_p` must be above 0 and at most 1, but is 0"),
        ("top_p", "1.5", "`top_p` must be above 0 and at most 1, but is 1.5"),
        ("max_staleness", "65", "`max_staleness` must be at least 0 and at most 64, but is 65"),
        ("threads", "0", "`threads` must be at least 1 and at most 4096, but is 0; \"none\" leaves it unset"),
    ] {
        assert_eq!(said(name, text).as_deref(), Some(words));
    }
}

#[test]
fn readers_and_needs() {
    for (name, readers) in [
        ("seed", "every command"),
        ("algorithm", "train"),
        ("max_length", "sft, dpo, reward"),
        ("max_prompt_length", "train, sft"),
        ("kl_coef", "train (ppo)"),
        ("loss_type", "train (grpo, reinforce_plus_plus, reinforce_plus_plus_baseline, distillation)"),
        ("beta", "train (grpo, rloo, reinforce_plus_plus, reinforce_plus_plus_baseline), dpo"),
    ] {
        assert_eq!(key(name).read_by(), readers, "{name}");
    }
    assert_eq!(key("kl_coef").needs(), None);
    assert_eq!(key("kl_target").needs(), Some(("adap_kl_ctrl", "true")));
    assert_eq!(key("threads").on_resume(), OnResume::Free);
    assert_eq!((key("seed").on_resume(), key("beta").on_resume()), (OnResume::Fixed, OnResume::Fixed));
    assert_eq!(key("max_steps").on_resume(), OnResume::Warn);
    let read = |name: &str, purpose, algorithm| key(name).is_read_by(purpose, algorithm);
    assert!(read("kl_coef", Purpose::Grpo, Algorithm::Ppo) && !read("kl_coef", Purpose::Grpo, Algorithm::Rloo));
    assert!(!read("kl_coef", Purpose::Sft, Algorithm::Ppo) && read("kl_coef", Purpose::Eval, Algorithm::Ppo));
    let meaning = key("seed").meaning();
    assert_eq!(meaning, "The seed of everything random: shuffling, sampling, initial weights.");
    // A key whose need is a text, and one that is true.
    let unmet = |name: &str, change: fn(&mut Config)| {
        let mut config = Config::default();
        change(&mut config);
        key(name).unmet_need(&config)
    };
    assert_eq!(unmet("discopop_tau", |_| {}).as_deref(), Some("dpo_loss_type = \"discopop\""));
    assert_eq!(unmet("kl_target", |_| {}).as_deref(), Some("adap_kl_ctrl = true"));
    assert_eq!((unmet("kl_target", |c| c.adap_kl_ctrl = true), unmet("seed", |_| {})), (None, None));
    let discopop = |c: &mut Config| c.dpo_loss_type = train::loss::dpo::DpoLoss::Discopop;
    assert_eq!(unmet("discopop_tau", discopop), None);
}

#[test]
fn a_value_is_checked_without_a_configuration() {
    assert_eq!(key("num_generations").check(&toml::Value::Integer(4)), Ok(()));
    let refused = key("num_generations").check(&toml::Value::Boolean(true));
    assert_eq!(refused, Err("expected an integer, got true".to_owned()));
}

#[test]
fn commands_and_their_methods() {
    for (purpose, command) in [
        (Purpose::Grpo, "train"),
        (Purpose::Show, "train"),
        (Purpose::Eval, "eval"),
        (Purpose::Sft, "sft"),
        (Purpose::Reward, "reward"),
        (Purpose::Dpo, "dpo"),
    ] {
        assert_eq!(purpose.command(), command);
    }
    assert!(PAIRS.meet(PAIRS) && !PAIRS.meet(ONLINE) && ONLINE.contain(ONLINE) && !PAIRS.contain(ONLINE));
    assert_eq!(PAIRS.to_string(), "dpo, reward");
    assert_eq!(Algorithm::ReinforcePlusPlusBaseline.label(), "reinforce++ baseline");
}
