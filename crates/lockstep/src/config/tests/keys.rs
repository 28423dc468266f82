//! The ranges of keys, and checks of single values.

use crate::config::Config;
use crate::config::keys::Key;

fn key(name: &str) -> &'static Key {
    Config::key(name).unwrap_or_else(|| panic!("no key {name}"))
}

#[test]
fn ranges_include_or_exclude_their_bounds_as_documented() {
    let message = |name: &str, text: &str| {
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
            assert_eq!(message(name, text), None, "{name} = {text}");
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
        assert_eq!(message(name, text).as_deref(), Some(words));
    }
}

#[test]
fn a_value_is_checked_without_a_configuration() {
    assert_eq!(key("num_generations").check(&toml::Value::Integer(4)), Ok(()));
    let refused = key("num_generations").check(&toml::Value::Boolean(true));
    assert_eq!(refused, Err("expected an integer, got true".to_owned()));
}
