//! The limits on templates, each tested at the largest allowed value and at the next one.

use super::super::limits::{self, BUDGET};
use super::*;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value as Rendered;

fn compiled(source: &str) -> std::result::Result<ChatTemplate, String> {
    ChatTemplate::new(source, &special()).map_err(|e| e.to_string())
}

fn checked(source: &str) -> std::result::Result<usize, String> {
    limits::check_source("name", source, &SyntaxConfig::default()).map_err(|e| e.to_string())
}

#[test]
fn a_rendering_may_use_its_whole_budget_and_no_more() {
    limits::begin();
    limits::charge(BUDGET - 1).unwrap();
    limits::charge(1).unwrap();
    limits::charge(0).unwrap();
    let error = limits::charge(1).unwrap_err().to_string();
    let why = "more than 64 MiB of strings and lists in one rendering: templates must not build larger values";
    assert!(error.contains(why), "{error}");
    for n in 0..1000 {
        limits::charge_namespace().unwrap_or_else(|e| panic!("{n}: {e}"));
    }
    assert!(limits::charge_namespace().unwrap_err().to_string().contains("more than 1000 namespaces"));
    // A new rendering has the full budget. A charge beyond the remaining budget fails and uses up the rest.
    limits::begin();
    limits::charge_namespace().unwrap();
    limits::charge(10).unwrap();
    assert!(limits::charge(BUDGET).is_err() && limits::charge(1).is_err());
    limits::charge_namespace().unwrap();
}

#[test]
fn a_template_may_create_a_thousand_namespaces() {
    let of = |n: usize| format!("{{% for i in range({n}) %}}{{% set ns = namespace(a=i) %}}{{% endfor %}}done");
    assert_eq!(render(&of(1000), json!({})), "done");
    let error = render_with(&of(1001), json!([{"role": "user", "content": "hi"}]), json!({})).unwrap_err().to_string();
    assert!(error.contains("more than 1000 namespaces"), "{error}");
}

#[test]
fn the_size_of_a_value_includes_nested_values() {
    let size = |value: &Rendered| limits::size(value).map(|s| (s.elements, s.text)).map_err(|e| e.to_string());
    let list = |items: Vec<Rendered>| Rendered::from(items);
    assert_eq!(size(&Rendered::from(5)), Ok((1, 8)));
    assert_eq!(size(&Rendered::from("héllo")), Ok((1, 10)));
    assert_eq!(size(&list(vec!["ab".into(), "c".into()])), Ok((3, 8 + 6 + 5)));
    assert_eq!(size(&Rendered::from_pairs([("k", list(vec![1.into(), "xyz".into()]))])), Ok((5, 8 + 5 + 8 + 8 + 7)));
    let deep = |n: usize| (0..n).fold(Rendered::from(1), |inner, _| Rendered::from(vec![inner]));
    assert_eq!(size(&deep(200)).unwrap().0, 201);
    assert!(size(&deep(201)).unwrap_err().contains("lists nested 200 deep: templates must not build"));
    let maps = |n: usize| (0..n).fold(Rendered::from(1), |inner, _| Rendered::from_pairs([("k", inner)]));
    assert_eq!(size(&maps(200)).unwrap().0, 401);
    assert!(size(&maps(201)).is_err());
    let long = |n: usize| list(vec![Rendered::from(1); n]);
    assert_eq!(size(&long((1 << 20) - 1)).unwrap().0, 1 << 20);
    assert!(size(&long(1 << 20)).unwrap_err().contains("a value of more than 1048576 elements"));
}

#[test]
fn long_literal_text_lowers_the_instruction_limit() {
    let lengths = [0, 1, 107, 108, 1 << 10, 1 << 20];
    let expected = [10_000_000, 10_000_000, 10_000_000, (1 << 30) / 108, 1 << 20, 1 << 10];
    assert_eq!(lengths.map(limits::fuel), expected);
    assert_eq!(checked("abc{{ x }}defgh{% if a %}ij{% endif %}"), Ok(5));
    assert_eq!(checked("{{ 'inside an expression' }}"), Ok(0));
    // The longest literal of all templates counts.
    let messages = [json!({"role": "user", "content": "hi"})];
    let chat = Chat { messages: &messages, ..Chat::default() };
    let of = |sources: [(&str, String); 2]| {
        let sources = sources.map(|(name, source)| (name.to_owned(), source));
        ChatTemplate::named(sources.into(), &special(), PromptTime(0)).unwrap().render(&chat).map_err(|e| e.to_string())
    };
    let turns = "{% for i in range(9000) %}{% endfor %}done".to_owned();
    assert_eq!(of([("default", turns.clone()), ("other", "short".to_owned())]), Ok("done".to_owned()));
    for other in ["a", "other"] {
        let error = of([("default", turns.clone()), (other, "x".repeat(500_000))]).unwrap_err();
        assert!(error.contains("out of fuel"), "{error}");
    }
}

#[test]
fn template_source_expressions_and_branches_have_size_limits() {
    assert_eq!(checked(&"x".repeat(1 << 20)), Ok(1 << 20));
    let error = checked(&"x".repeat((1 << 20) + 1)).unwrap_err();
    assert_eq!(error, "chat template: template `name`: the source has 1048577 bytes, more than 1048576");
    // The end of an expression counts as a token. Each expression and each block is counted separately.
    let tokens = |n: usize| format!("{{{{ {}}}}}", "1 ".repeat(n - 1));
    assert_eq!(checked(&tokens(2000)), Ok(0));
    assert_eq!(checked(&(tokens(1500) + &tokens(2000) + "{% if a %}" + &tokens(2000))), Ok(0));
    let error = checked(&format!("\n\n{}", tokens(2001))).unwrap_err();
    assert_eq!(error, "chat template: template `name`: line 3: the expression has more than 2000 tokens");
    let error = checked(&format!("\n{{% if {} %}}", "1 ".repeat(2000))).unwrap_err();
    assert!(error.contains("line 2: the expression"), "{error}");
    let list = format!("{{{{ [{}1] }}}}", "1,".repeat(998));
    assert_eq!(render(&list, json!({})).len(), 3 * 999);
    let branches = |n: usize| format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(n));
    assert_eq!(checked(&branches(500)), Ok(0));
    let error = checked(&branches(501)).unwrap_err();
    assert_eq!(error, "chat template: template `name`: more than 500 branches (elif)");
}

#[test]
fn compile_time_constants_have_a_size_limit() {
    for (fits, too_large, size) in [
        ("'a' * 65536", "'a' * 65537", "65537"),
        ("32768 * 'ab'", "32769 * 'ab'", "65538"),
        ("[1, 1] * 32768", "[1, 1] * 32769", "65538"),
        ("(1, 1) * 32768", "(1, 1) * 32769", "65538"),
        ("['ab', 'c'] * 13107", "['ab', 'c'] * 13108", "65540"),
        ("'a' * 3 ** 10", "'a' * 3 ** 11", "177147"),
        ("'a' * (256 * 256)", "'a' * (256 * 257)", "65792"),
        ("'a' * (65535 + 1)", "'a' * (65535 + 2)", "65537"),
        ("'a' * 65000 + 'b' * 536", "'a' * 65000 + 'b' * 537", "65537"),
        // A number counts as at most 80 characters.
        ("'a' * 65000 ~ 'b' * 456", "'a' * 65000 ~ 'b' * 457", "65537"),
        ("('a' * 256) * 256", "('a' * 257) * 256", "65792"),
    ] {
        if let Err(error) = compiled(&format!("{{{{ {fits} }}}}")) {
            panic!("{fits}: {error}");
        }
        for place in ["{{ # }}", "{% set x = # %}", "{% if a %}{{ f([x, #]) | trim }}{% endif %}"] {
            let error = compiled(&place.replace('#', too_large)).expect_err(too_large);
            let why = format!("template `default`: a constant of {size} bytes or elements, more than 65536");
            assert!(error.contains(&why), "{too_large}: {error}");
        }
    }
    // Division by a small number gives a large number. A number in the source is not limited.
    assert!(compiled("{{ 'a' * (9 // 1) }}").unwrap_err().contains("a constant of inf bytes"));
    for number in ["8 / 2", "99999 * 99999", "9 ** 99", "1e300 * 1e300", "'a' * n", "n * 99999"] {
        if let Err(error) = compiled(&format!("{{{{ {number} }}}}")) {
            panic!("{number}: {error}");
        }
    }
    assert_eq!(render("{{ 'ab' * 3 }}{{ 3 * 'ab' }}{{ [1] * 2 }}{{ 8 / 2 }}", json!({})), "abababababab[1, 1]4.0");
}
