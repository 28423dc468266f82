//! Tests of reward specifications, without building rewards.

use super::*;
use serde_json::json;

fn spec(value: Value) -> RewardSpec {
    table(value)
}

#[test]
fn specs_of_models_and_functions_have_a_name() {
    for (value, model, function) in [
        (json!("model:a/b"), Ok(Some("a/b")), Ok(None)),
        (json!({"kind": "model", "name": "x", "model": "a"}), Ok(Some("a")), Ok(None)),
        (json!("model"), Err("the directory of the reward model is missing, as in \"model:DIR\""), Ok(None)),
        (json!("model:"), Err("the directory of the reward model is missing, as in \"model:DIR\""), Ok(None)),
        (
            json!({"kind": "model", "model": 3}),
            Err("the directory of the reward model is missing, as in \"model:DIR\""),
            Ok(None),
        ),
        (
            json!({"kind": "model", "model": "a", "batch": 3}),
            Err("unknown option `batch`; the only option is `model`"),
            Ok(None),
        ),
        (json!("function:f"), Ok(None), Ok(Some("f"))),
        (json!("function"), Ok(None), Err("the name of the function is missing, as in \"function:NAME\"")),
        (json!("function:"), Ok(None), Err("the name of the function is missing, as in \"function:NAME\"")),
        (
            json!({"kind": "function", "function": 3}),
            Ok(None),
            Err("the name of the function is missing, as in \"function:NAME\""),
        ),
        (json!("gsm8k"), Ok(None), Ok(None)),
    ] {
        let own = |kind: &str, expected: std::result::Result<Option<&str>, &str>| {
            let refusal = |message| format!("reward `{kind}`: {message}");
            expected.map(|name| name.map(str::to_owned)).map_err(refusal)
        };
        let spec = spec(value.clone());
        assert_eq!(spec.model().map_err(|error| error.to_string()), own("model", model), "{value}");
        assert_eq!(spec.function().map_err(|error| error.to_string()), own("function", function), "{value}");
    }
    assert_eq!(error("model:a"), "reward `model`: load its files first, with the name from RewardSpec::model");
    assert_eq!(error("function:f"), "reward `function`: the calling code must pass the function to the run");
}

#[test]
fn only_graders_of_text_are_deterministic() {
    for (value, expected) in [
        (json!("gsm8k"), true),
        (json!(" math :a"), true),
        (json!({"kind": "length", "max": 3}), true),
        (json!("code:python"), false),
        (json!({"kind": "code", "language": "shell"}), false),
        (json!("command:x"), false),
        (json!("python:a.py:f"), false),
        (json!("http://x/"), false),
        (json!("model:a"), false),
        (json!("function:f"), false),
        (json!("gsm8"), false),
        (json!({"name": "x"}), false),
    ] {
        assert_eq!(spec(value.clone()).is_deterministic(), expected, "{value}");
    }
    for value in [json!("gsm8k"), json!("command:x"), json!({"kind": "code"}), json!({"kind": "code", "language": 3})] {
        assert_eq!(spec(value.clone()).isolation(), None, "{value}");
    }
}

#[test]
fn tables_and_short_forms_are_parsed_into_kind_name_and_options() {
    let parts = |value: Value| {
        let (kind, name, options) = spec(value).parts().map_err(|error| error.to_string())?;
        Ok::<_, String>((kind, name, Value::Object(options)))
    };
    let own = |kind: &str, name: Option<&str>, options: Value| Ok((kind.to_owned(), name.map(str::to_owned), options));
    assert_eq!(parts(json!(" gsm8k : a b")), own("gsm8k", None, json!({"column": " a b"})));
    assert_eq!(parts(json!("length: 20 ")), own("length", None, json!({"target": 20})));
    assert_eq!(parts(json!("format:a:b")), own("format", None, json!({"pattern": "a:b"})));
    assert_eq!(parts(json!("http:x")), own("http", None, json!({"url": "x"})));
    assert_eq!(parts(json!("https://x:1/y")), own("http", None, json!({"url": "https://x:1/y"})));
    let table = json!({"kind": "length", "max": 3, "name": "x", "margin": 1});
    assert_eq!(parts(table), own("length", Some("x"), json!({"max": 3, "margin": 1})));
    assert_eq!(parts(json!({"kind": "nothing"})), own("nothing", None, json!({})));
    for (value, expected) in [
        (json!({"name": "x"}), format!("the table of a reward must have a `kind`: {}", known())),
        (json!({"kind": ""}), "`kind` must be a nonempty string, got \"\"".to_owned()),
        (json!({"kind": "length", "name": 3}), "`name` must be a nonempty string, got 3".to_owned()),
        (json!({"kind": "length", "name": ""}), "`name` must be a nonempty string, got \"\"".to_owned()),
    ] {
        assert_eq!(parts(value), Err(format!("reward `?`: {expected}")));
    }
    assert!(parts(json!("nothing:x")).unwrap_err().starts_with("unknown reward `nothing`"));
    assert!(error(spec(json!({"kind": "nothing"}))).starts_with("unknown reward `nothing`"));
}

/// `absolute` maps paths to a different directory, in which the files exist.
#[test]
fn paths_of_programs_scripts_and_models_are_mapped() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a.py", "b.json", "run", "c d.py"] {
        std::fs::write(dir.path().join(name), "").unwrap();
    }
    let there = |name: &str| dir.path().join(name).display().to_string();
    let absolute = |path: &str| Ok::<_, ()>(there(path));
    let mapped = |value: Value| {
        let mut spec = spec(value);
        spec.map_paths(absolute).unwrap();
        serde_json::to_value(spec).unwrap()
    };
    let [a, b, run, spaced] = ["a.py", "b.json", "./run", "c d.py"].map(there);
    for (value, expected) in [
        (json!("model:m"), json!(format!("model:{}", there("m")))),
        (
            json!({"kind": "model", "model": "m", "name": "x"}),
            json!({"kind": "model", "model": there("m"), "name": "x"}),
        ),
        (json!("command:./run b"), json!(format!("command:{run} b"))),
        (json!("command:run b"), json!("command:run b")),
        (json!("command:python3 -u a.py b.json"), json!(format!("command:python3 -u {a} b.json"))),
        (json!("command:python3 no.py b.json"), json!(format!("command:python3 no.py {b}"))),
        (json!("command:python3 -a.py run"), json!("command:python3 -a.py run")),
        (json!("command:python3 'c d.py' x"), json!({"kind": "command", "command": ["python3", spaced, "x"]})),
        (
            json!({"kind": "command", "command": ["python3", "a.py"], "timeout_s": 3}),
            json!({"kind": "command", "command": format!("python3 {a}"), "timeout_s": 3}),
        ),
        // Invalid commands are left unchanged: they are reported when the reward is built.
        (json!("command:python3 'a.py"), json!("command:python3 'a.py")),
        (json!("command:"), json!("command:")),
        (json!({"kind": "command", "comand": "a.py"}), json!({"kind": "command", "comand": "a.py"})),
        (json!("python:a.py"), json!("python:a.py")),
        (json!({"kind": "python", "pyton": "a.py:f"}), json!({"kind": "python", "pyton": "a.py:f"})),
        (json!({"kind": "model", "model": 3}), json!({"kind": "model", "model": 3})),
        (json!("gsm8k:a.py"), json!("gsm8k:a.py")),
        (json!({"name": "x"}), json!({"name": "x"})),
    ] {
        assert_eq!(mapped(value.clone()), expected, "{value}");
    }
    let refuse = |_: &str| Err::<String, _>("no");
    for value in ["model:m", "command:./run", "command:python3 a.py", "python:a.py:f"] {
        assert_eq!(RewardSpec::from(value).map_paths(refuse), Err("no"), "{value}");
    }
    assert_eq!(RewardSpec::from("gsm8k").map_paths(refuse), Ok(()));
}

#[test]
fn arguments_in_names_are_words_of_at_most_forty_bytes() {
    let of = |values: [Value; 2]| names(&values.map(spec)).map_err(|error| error.to_string());
    let column = |column: &str| json!({"kind": "gsm8k", "column": column});
    let tag = |text: &str| of([column(text), column("b")]).unwrap()[0].clone();
    assert_eq!(tag("a b/c-d.e"), "gsm8k_a_b_c-d.e");
    assert_eq!(tag("-a- .b. -"), "gsm8k_a_b");
    for (bytes, kept) in [(39, 39), (40, 40), (41, 40)] {
        assert_eq!(tag(&"a".repeat(bytes)), format!("gsm8k_{}", "a".repeat(kept)));
    }
    // Main options in the short form and numbers are arguments too. Without arguments, nothing is appended to the name.
    assert_eq!(of([json!("gsm8k"), json!("gsm8k:b")]).unwrap(), ["gsm8k", "gsm8k_b"]);
    let strict = json!({"kind": "gsm8k", "strict": true});
    assert_eq!(of([json!("math"), strict.clone()]).unwrap(), ["math", "gsm8k"]);
    assert_eq!(of([json!("gsm8k"), strict]).unwrap(), ["gsm8k", "gsm8k_true"]);
    let named = |name: &str| json!({"kind": "length", "name": name, "target": 3});
    for name in TABLE_COLUMNS {
        let fix = format!("set another name, as in {{ kind = \"length\", name = \"my_{name}\", … }}");
        let refusal = format!(
            "reward_funcs: a reward must not have the name `{name}`, which is a column of the completions table: {fix}"
        );
        assert_eq!(of([json!("math"), named(name)]), Err(refusal));
    }
    let refusal = "reward_funcs: two rewards have the name `x`: set another name, as in { kind = \"length\", name = \
                \"my_x\", … }";
    assert_eq!(of([named("x"), named("x")]), Err(refusal.to_owned()));
    let refusal = "reward_funcs: two rewards have the name `f`: give the function another name";
    assert_eq!(of([json!("function:f"), json!("function:f")]), Err(refusal.to_owned()));
}
