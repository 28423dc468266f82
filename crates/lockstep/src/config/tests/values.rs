//! The values that each key type accepts, and how they are written.

use crate::config::values::{KeyValue, toml_of_text, toml_on_one_line};
use rewards::RewardSpec;
use serde_json::{Map, Value as Json, json};
use std::path::PathBuf;
use toml::Value;

fn text(text: &str) -> Value {
    Value::String(text.to_owned())
}

#[test]
fn numbers_must_be_integers_in_range() {
    let cases: [(Value, Result<u64, &str>); 13] = [
        (Value::Integer(7), Ok(7)),
        (Value::Integer(0), Ok(0)),
        (Value::Float(1e3), Ok(1000)),
        (Value::Float(0.0), Ok(0)),
        (Value::Integer(-1), Err("expected an integer in range, got -1")),
        (Value::Float(-2.0), Err("expected an integer in range, got -2.0")),
        (Value::Float(1.5), Err("expected an integer, got 1.5")),
        (Value::Float(f64::INFINITY), Err("expected an integer, got inf")),
        (text("7"), Err("expected an integer, got \"7\"")),
        (Value::Boolean(true), Err("expected an integer, got true")),
        // 18 digits fit a TOML integer, so a string of 18 digits is refused.
        (text("123456789012345678"), Err("expected an integer, got \"123456789012345678\"")),
        (
            text("1234567890123456789"),
            Err("expected an integer up to 9223372036854775807 (2^63 - 1), got \"1234567890123456789\""),
        ),
        (text("123456789012345678x"), Err("expected an integer, got \"123456789012345678x\"")),
    ];
    for (value, expected) in cases {
        assert_eq!(u64::read(&value), expected.map_err(str::to_owned), "{value}");
    }
    let large = u64::read(&Value::Float(1e16)).unwrap_err();
    assert!(large.starts_with("expected an integer up to 9223372036854775807 (2^63 - 1), got "), "{large}");
    assert_eq!(i64::read(&Value::Integer(-3)), Ok(-3));

    assert_eq!((f64::read(&Value::Integer(3)), f64::read(&Value::Float(0.5))), (Ok(3.0), Ok(0.5)));
    assert_eq!(f64::read(&text("0.5")), Err("expected a number, got \"0.5\"".to_owned()));
    assert_eq!(f64::read(&Value::Float(f64::NAN)), Err("expected a finite number, got nan".to_owned()));
    assert_eq!(bool::read(&Value::Boolean(false)), Ok(false));
    assert_eq!(bool::read(&text("yes")), Err("expected true or false, got \"yes\"".to_owned()));
}

#[test]
fn strings_paths_and_unset_values_are_parsed() {
    assert_eq!((toml_of_text("True"), toml_of_text("False")), (Value::Boolean(true), Value::Boolean(false)));
    assert_eq!((toml_of_text("true"), toml_of_text("3")), (Value::Boolean(true), Value::Integer(3)));
    assert_eq!(toml_of_text("1\nother = 2"), text("1\nother = 2"), "one value, not a file");
    assert_eq!(toml_of_text("plain words"), text("plain words"));
    assert_eq!(String::read_text("\"quoted\""), Ok("quoted".to_owned()));
    assert_eq!(String::read_text("0x10"), Ok("0x10".to_owned()));
    assert_eq!(String::read(&Value::Integer(3)), Err("expected a string in quotes, got 3".to_owned()));
    assert_eq!(PathBuf::read(&text("a/b")), Ok(PathBuf::from("a/b")));
    assert_eq!(PathBuf::read(&text("")), Err("expected a path in quotes, got \"\"".to_owned()));
    for word in ["none", "None", "null"] {
        assert_eq!((Option::<u64>::read(&text(word)), Option::<u64>::read_text(word)), (Ok(None), Ok(None)), "{word}");
    }
    assert_eq!((Option::<u64>::read_text("3"), Option::<u64>::read(&Value::Integer(3))), (Ok(Some(3)), Ok(Some(3))));
    assert!(Option::<u64>::read(&text("nothing")).is_err());
    assert_eq!((Some(3u64).write(), None::<u64>.write()), (Some(Value::Integer(3)), None));
    assert_eq!(u64::MAX.write(), Some(Value::Integer(i64::MAX)), "TOML has no larger integer");
}

#[test]
fn lists_tables_and_rewards_are_parsed() {
    assert_eq!(Vec::<u64>::read_text(""), Ok(vec![]));
    assert_eq!(Vec::<u64>::read_text("3"), Ok(vec![3]));
    assert_eq!(Vec::<u64>::read_text("[3, 4]"), Ok(vec![3, 4]));
    assert_eq!(Vec::<u64>::read(&Value::Integer(5)), Ok(vec![5]));
    assert!(Vec::<u64>::read_text("[3, true]").unwrap_err().contains("expected an integer"));
    let Ok(toml) = "t = { kind = \"length\", max = 3 }\nd = 2020-01-01".parse::<toml::Table>() else { panic!("TOML") };
    let table = json!({"kind": "length", "max": 3});
    let map = |table: &Json| table.as_object().cloned().unwrap_or_default();
    assert_eq!(Map::read(&toml["t"]), Ok(map(&table)));
    for other in [&toml["d"], &text("kind"), &Value::Array(vec![])] {
        let refused = <Map<String, Json>>::read(other).unwrap_err();
        assert!(refused.starts_with("expected a table such as { key = \"value\" }, got "), "{refused}");
    }
    assert_eq!(Vec::<Map<String, Json>>::read_text("{ kind = \"length\", max = 3 }"), Ok(vec![map(&table)]));
    assert_eq!(RewardSpec::read(&text("gsm8k")), Ok(RewardSpec::Short("gsm8k".to_owned())));
    assert_eq!(RewardSpec::read(&toml["t"]), Ok(RewardSpec::Table(map(&table))));
    for other in [text(""), Value::Integer(3)] {
        let refused = RewardSpec::read(&other).unwrap_err();
        assert!(refused.starts_with("expected a reward's name or a table with its `kind`, got "), "{refused}");
    }
}

#[test]
fn tables_are_written_on_one_line() {
    let file = "e = {}\nt = { \"\" = 1, \"a b\" = [1, 2.5], a_b-1 = { x = true } }\ns = \"a\\\"b\\n\\u007f\"\n";
    let Ok(values) = file.parse::<toml::Table>() else { panic!("TOML") };
    let line = |name: &str| toml_on_one_line(&values[name]);
    assert_eq!(line("e"), "{}");
    let table = line("t");
    for part in ["\"\" = 1", "\"a b\" = [1, 2.5]", "a_b-1 = { x = true }"] {
        assert!(table.contains(part), "{table}");
    }
    assert!(table.starts_with("{ ") && table.ends_with(" }"), "{table}");
    assert_eq!(line("s"), "\"a\\\"b\\n\\u007f\"");
    for (x, written) in [(0.0, "0.0"), (1e-3, "0.001"), (9e-4, "9e-4"), (-5e-4, "-5e-4"), (2.0, "2.0")] {
        assert_eq!(toml_on_one_line(&Value::Float(x)), written);
    }
}
