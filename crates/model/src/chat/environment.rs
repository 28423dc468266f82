//! The Jinja environment in which transformers renders chat templates: its syntax settings, functions and filters.

use super::{PromptTime, limits, operators, python};
use crate::{Error, Result};
use minijinja::machinery;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{AutoEscape, Environment, ErrorKind};
use std::collections::BTreeMap;

pub(super) fn new(sources: &BTreeMap<String, String>, time: PromptTime) -> Result<Environment<'static>> {
    let mut env = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    let syntax = syntax.expect("the default delimiters are valid");
    env.set_syntax(syntax.clone());
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_formatter(|out, _, value| out.write_str(&python::print(value)?).map_err(minijinja::Error::from));
    operators::add(&mut env);
    // In Python, strings and dictionaries also have a length and items, and so does Jinja's undefined value.
    let is_sequence = |value: &Value| {
        let counted = [ValueKind::String, ValueKind::Seq, ValueKind::Iterable, ValueKind::Map, ValueKind::Undefined];
        counted.contains(&value.kind())
    };
    env.add_test("sequence", is_sequence);
    env.add_filter("tojson", tojson);
    // In Python, None cannot be iterated, but an undefined value can.
    env.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    env.add_filter("string", python::print);
    env.add_function("raise_exception", |message: String| -> std::result::Result<Value, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
    });
    env.add_function("strftime_now", move |format: &str| python::strftime(format, time.0));
    let mut longest = 0;
    for (name, source) in sources {
        let mut templates = vec![(name.clone(), generation(source, false))];
        if marks_generation(source) {
            templates.push((marked(name), generation(source, true)));
        }
        for (name, source) in templates {
            longest = longest.max(limits::check_source(&name, &source, &syntax)?);
            limits::check_constants(&name, &machinery::parse(&source, &name, syntax.clone()).map_err(failed)?)?;
            env.add_template_owned(name, source).map_err(failed)?;
        }
    }
    env.set_fuel(Some(limits::fuel(longest)));
    Ok(env)
}

/// Converts an error, with its location in the template and its causes.
pub(super) fn failed(error: minijinja::Error) -> Error {
    let mut message = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(c) = cause {
        message += &format!(": {c}");
        cause = c.source();
    }
    Error::Chat(message)
}

/// The filter `tojson(value, ensure_ascii, indent, separators, sort_keys)` with the defaults of transformers. It
/// escapes only characters that JSON requires to be escaped.
fn tojson(value: &Value, positional: Rest<Value>, kwargs: Kwargs) -> std::result::Result<String, minijinja::Error> {
    let bad = |message: &str| minijinja::Error::new(ErrorKind::InvalidOperation, format!("tojson: {message}"));
    let argument = |place: usize, name: &str| -> std::result::Result<Option<Value>, minijinja::Error> {
        let named: Option<Value> = kwargs.get(name)?;
        Ok(positional.get(place).cloned().or(named).filter(|v| !v.is_none()))
    };
    let ensure_ascii = argument(0, "ensure_ascii")?.is_some_and(|v| v.is_true());
    let indent = argument(1, "indent")?;
    let separators = argument(2, "separators")?;
    let sort_keys = argument(3, "sort_keys")?.is_some_and(|v| v.is_true());
    kwargs.assert_all_used()?;
    if positional.len() > 4 {
        return Err(bad("too many arguments"));
    }

    let indent = match &indent {
        None => None,
        Some(v) => Some(match (v.as_str(), v.as_usize()) {
            (Some(text), _) => text.to_owned(),
            (None, Some(n)) if n <= 64 => " ".repeat(n),
            _ => return Err(bad("indent must be a small number or a string")),
        }),
    };
    let (item, key) = match &separators {
        None => ((if indent.is_some() { "," } else { ", " }).to_owned(), ": ".to_owned()),
        Some(v) => {
            let pair: Vec<Value> = v.try_iter()?.collect();
            match &pair[..] {
                [a, b] => match (a.as_str(), b.as_str()) {
                    (Some(a), Some(b)) => (a.to_owned(), b.to_owned()),
                    _ => return Err(bad("separators must be two strings")),
                },
                _ => return Err(bad("separators must be two strings")),
            }
        }
    };
    python::Json { ensure_ascii, indent, item, key, sort_keys }.dump(value).map_err(|m| bad(&m))
}

/// Marks that are printed around the assistant's text: Unicode noncharacters, which no text contains.
pub(super) const MARKS: [char; 2] = ['\u{FDD0}', '\u{FDD1}'];

/// Name of the variant of a template that prints [`MARKS`].
pub(super) fn marked(name: &str) -> String {
    format!("{name} with marks")
}

/// Whether a template has `{% generation %}` blocks.
pub(super) fn marks_generation(source: &str) -> bool {
    source.contains("endgeneration")
}

/// Replaces `{% generation %}` … `{% endgeneration %}`, which mark the assistant's text, by `with` blocks. Both kinds
/// of block print nothing and open a scope. With `marks`, the blocks print [`MARKS`] around their text. Whitespace
/// control (`-` and `+`) of the tags is kept.
fn generation(source: &str, marks: bool) -> String {
    let [begin_mark, end_mark] = MARKS;
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let end = tag.find("%}").map_or(tag.len(), |end| end + 2);
        let (tag, after) = tag.split_at(end);
        let inside = tag.trim_start_matches("{%").trim_end_matches("%}");
        match inside.trim_matches(['-', '+']).trim() {
            word @ ("generation" | "endgeneration") => {
                let with = if word == "generation" { "with" } else { "endwith" };
                let open = &tag[..tag.len() - inside_end(tag).len()];
                match (marks, word) {
                    (false, _) => out.push_str(&tag.replace(word, with)),
                    (true, "generation") => {
                        out.push_str(&format!("{} %}}{begin_mark}", open.replace(word, with).trim_end()));
                        out.push_str(&format!("{{% set _ = 0 {}", inside_end(tag)));
                    }
                    (true, _) => {
                        out.push_str(&format!("{} %}}{end_mark}", open.replace(word, "set _ = 0").trim_end()));
                        out.push_str(&format!("{{% endwith {}", inside_end(tag)));
                    }
                }
            }
            "raw" => {
                // The text after this tag is literal, up to the closing tag. Jinja keeps the line feed after this tag,
                // but minijinja drops one.
                out.push_str(tag);
                if after.starts_with('\n') && !tag.ends_with("-%}") {
                    out.push('\n');
                }
                let (literal, next) = after.split_at(end_of_raw(after));
                out.push_str(literal);
                rest = next;
                continue;
            }
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// The position of the tag `{% endraw %}`; the end of the text if there is none.
fn end_of_raw(text: &str) -> usize {
    let is_end = |at: &usize| text[at + 2..].trim_start_matches(['-', '+']).trim_start().starts_with("endraw");
    text.match_indices("{%").map(|(at, _)| at).find(is_end).unwrap_or(text.len())
}

/// The end of a tag: `%}` with its whitespace-control sign.
fn inside_end(tag: &str) -> &str {
    let marks = ["-%}", "+%}", "%}"];
    marks.into_iter().find(|end| tag.ends_with(end)).unwrap_or_default()
}
