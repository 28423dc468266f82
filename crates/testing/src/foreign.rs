//! Property tests that run parsers on corrupted input. A parser must accept the input or return an error, and must not
//! panic.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::{Value, json};

/// The proptest configuration. It runs only 64 cases, because every parser has several property tests. Its seed is
/// fixed, so that results are reproducible. `PROPTEST_CASES=5000 PROPTEST_RNG_SEED=…` runs other cases.
pub fn few() -> ProptestConfig {
    let default = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { default.cases } else { 64 };
    let rng_seed = match default.rng_seed {
        RngSeed::Random => RngSeed::Fixed(1),
        fixed => fixed,
    };
    ProptestConfig { cases, rng_seed, failure_persistence: None, ..default }
}

/// Random bytes, or `valid` truncated, or `valid` with bytes changed, inserted, removed or repeated.
pub fn bytes(valid: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    let edits = prop::collection::vec((0..5u8, any::<prop::sample::Index>(), any::<u8>()), 1..4);
    let damaged = edits.prop_map(move |edits| {
        let mut bytes = valid.clone();
        for (edit, place, byte) in edits {
            let at = place.index(bytes.len() + 1);
            match edit {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, byte),
                2 if at < bytes.len() => bytes[at] = byte,
                3 if at < bytes.len() => drop(bytes.remove(at)),
                4 => bytes.extend_from_within(..at),
                _ => {}
            }
        }
        bytes
    });
    prop_oneof![4 => damaged, 1 => prop::collection::vec(any::<u8>(), 0..200)]
}

/// `valid` with one or two values, at any depth, replaced or removed.
pub fn json(valid: Value) -> impl Strategy<Value = Value> {
    let others = prop::sample::select(vec![
        json!(null),
        json!(true),
        json!(0),
        json!(-1),
        json!(1),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(1u64 << 40),
        json!(1e300),
        json!(-0.5),
        json!(""),
        json!("\u{0}x\u{10ffff}"),
        json!([]),
        json!([[], {}, 1, "x"]),
        json!({}),
        json!({"": {"": [null]}}),
    ]);
    let edits = prop::collection::vec((any::<prop::sample::Index>(), prop::option::of(others)), 1..3);
    edits.prop_map(move |edits| {
        let mut value = valid.clone();
        for (place, other) in edits {
            let mut paths = Vec::new();
            pointers(&value, String::new(), &mut paths);
            let path = &paths[place.index(paths.len())];
            match (other, value.pointer_mut(path)) {
                (Some(other), Some(place)) => *place = other,
                (None, _) => remove(&mut value, path),
                _ => {}
            }
        }
        value
    })
}

/// The JSON pointers of all values in `value`.
fn pointers(value: &Value, here: String, all: &mut Vec<String>) {
    let escaped = |key: &str| key.replace('~', "~0").replace('/', "~1");
    match value {
        Value::Object(map) => map.iter().for_each(|(k, v)| pointers(v, format!("{here}/{}", escaped(k)), all)),
        Value::Array(list) => list.iter().enumerate().for_each(|(i, v)| pointers(v, format!("{here}/{i}"), all)),
        _ => {}
    }
    all.push(here);
}

fn remove(value: &mut Value, path: &str) {
    let Some((parent, key)) = path.rsplit_once('/') else { return };
    match value.pointer_mut(parent) {
        Some(Value::Object(map)) => drop(map.remove(&key.replace("~1", "/").replace("~0", "~"))),
        Some(Value::Array(list)) => drop(key.parse().ok().filter(|&i: &usize| i < list.len()).map(|i| list.remove(i))),
        _ => {}
    }
}
