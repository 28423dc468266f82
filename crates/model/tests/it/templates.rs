//! Expressions and line ends of chat templates against transformers. `conformance/template_fixtures.py` computed the
//! expected texts.

use model::{Chat, ChatTemplate, SpecialTokens};
use serde_json::{Map, Value};

/// Expressions that transformers renders and this crate rejects, by the name of the missing feature.
const REFUSED: [&str; 23] = [
    "'<a>' | forceescape",
    "'<b>bold</b>  text' | striptags",
    "'a b&c' | urlencode",
    "'one two three four' | truncate(10)",
    "'one two three four' | truncate(10, true)",
    "'one two three four' | truncate(10, true, '!')",
    "'one two three four' | truncate(12, leeway=0)",
    "'one two three four' | wordwrap(9)",
    "'short' | truncate(10)",
    "'{!r}'.format(s)",
    "'{name} {age}'.format_map(map)",
    "1 | filesizeformat",
    "12345 | filesizeformat",
    "12345678 | filesizeformat(true)",
    "cycler('a', 'b').next()",
    "joiner(', ')() ~ 'x'",
    "lipsum(1) | length > 0",
    "list | random | string | length",
    "map | urlencode",
    "s is callable",
    "s | wordwrap(5)",
    "s.encode()",
    "s.translate({})",
];
/// This crate prints a range as a list.
const PRINTED_OTHERWISE: [&str; 1] = ["range(3)"];

fn render(template: &str, messages: &[Value], variables: Option<&Map<String, Value>>) -> Result<String, String> {
    let chat = Chat { messages, kwargs: variables, ..Chat::default() };
    let template = ChatTemplate::new(template, &SpecialTokens::default());
    template.and_then(|template| template.render(&chat)).map_err(|error| error.to_string())
}

/// The rows of a table whose texts differ from the expected ones, each as one line.
fn differing(rows: &Value, template: impl Fn(&Value) -> String, fixture: &Value) -> Vec<String> {
    let (messages, variables) = (fixture["messages"].as_array().unwrap(), fixture["variables"].as_object());
    let row = |row: &Value| {
        let template = template(row);
        let found = render(&template, messages, variables);
        match (row["text"].as_str(), &found) {
            (Some(expected), Ok(text)) if text == expected => None,
            (None, Err(_)) => None,
            (Some(_), Err(_)) if is_in(&REFUSED, &template) => None,
            (Some(_), Ok(_)) if is_in(&PRINTED_OTHERWISE, &template) => None,
            (expected, _) => Some(format!("{template:?}\n    transformers: {expected:?}\n    here: {found:?}")),
        }
    };
    rows.as_array().unwrap().iter().filter_map(row).collect()
}

fn is_in(expressions: &[&str], template: &str) -> bool {
    expressions.iter().any(|expression| template == format!("{{{{ {expression} }}}}"))
}

fn fixture() -> Value {
    serde_json::from_str(include_str!("../fixtures/templates.json")).unwrap()
}

#[test]
fn jinja_expressions_match_transformers() {
    let fixture = fixture();
    let rows = &fixture["expressions"];
    let expression = |row: &Value| format!("{{{{ {} }}}}", row["expression"].as_str().unwrap());
    let differing = differing(rows, expression, &fixture);
    assert!(rows.as_array().unwrap().len() > 500);
    assert!(differing.is_empty(), "{} rows differ:\n{}", differing.len(), differing.join("\n"));
}

#[test]
fn line_ends_of_a_template_are_normalised_to_line_feeds() {
    let fixture = fixture();
    let rows = &fixture["line_ends"];
    let differing = differing(rows, |row| row["template"].as_str().unwrap().to_owned(), &fixture);
    assert!(rows.as_array().unwrap().len() > 90);
    assert!(differing.is_empty(), "{} rows differ:\n{}", differing.len(), differing.join("\n"));
}
