//! Removes HTML tags that change only the appearance of a text.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;

use super::super::answer::regex;

/// Tags that start a new line.
const BLOCKS: [&str; 10] = ["p", "div", "center", "pre", "h1", "h2", "h3", "h4", "h5", "h6"];
/// Tags that mark their content as deleted.
const STRUCK: [&str; 3] = ["s", "strike", "del"];

/// The text without paired style tags, and with some entities replaced by their characters; `None` if nothing changes.
pub(super) fn removed(text: &str) -> Option<String> {
    let text_of_entities = entities(text);
    let text = text_of_entities.as_deref().unwrap_or(text);
    let Some(parts) = parts(text) else { return text_of_entities };
    let mut new = String::with_capacity(text.len());
    let mut at = 0;
    for (range, instead) in parts {
        // The range is inside a part that was already removed.
        if range.end <= at {
            continue;
        }
        new.push_str(&text[at..range.start.max(at)]);
        new.push_str(instead);
        at = range.end;
    }
    new.push_str(&text[at..]);
    Some(new)
}

/// The replacements in order: ranges of the text and their substitutes. A tag is replaced only if it is paired, unlike
/// in `a<b>c`.
fn parts(text: &str) -> Option<Vec<(Range<usize>, &'static str)>> {
    static TAG: LazyLock<Regex> = LazyLock::new(|| {
        regex(
            r"(?xi) <(?:br\s*/?|(?P<close>/?)(?P<name>b|strong|i|em|u|code|tt|kbd|samp|mark|span|font|big|small|ins|sup
            |sub|p|div|center|pre|h[1-6]|s|strike|del)(?:\s[^<>]*)?)>",
        )
    });
    let mut open: HashMap<String, Vec<Range<usize>>> = HashMap::new();
    let mut parts = Vec::new();
    for tag in TAG.captures_iter(text) {
        let whole = tag.get(0)?.range();
        let Some(name) = tag.name("name") else {
            parts.push((whole, "\n"));
            continue;
        };
        let name = name.as_str().to_ascii_lowercase();
        if tag["close"].is_empty() {
            open.entry(name).or_default().push(whole);
        } else if let Some(start) = open.get_mut(&name).and_then(Vec::pop) {
            let name = name.as_str();
            if STRUCK.contains(&name) {
                parts.push((start.start..whole.end, ""));
                continue;
            }
            let [before, after] = match name {
                "sup" => ["^{", "}"],
                "sub" => ["_{", "}"],
                name if BLOCKS.contains(&name) => ["\n", "\n"],
                _ => ["", ""],
            };
            parts.push((start, before));
            parts.push((whole, after));
        }
    }
    parts.sort_by_key(|(range, _)| (range.start, std::cmp::Reverse(range.end)));
    (!parts.is_empty()).then_some(parts)
}

fn entities(text: &str) -> Option<String> {
    static ENTITY: LazyLock<Regex> = LazyLock::new(|| regex("&(nbsp|lt|gt|amp|quot|apos|times|divide|minus);"));
    if !text.contains('&') || !ENTITY.is_match(text) {
        return None;
    }
    let character = |found: &regex::Captures<'_>| match &found[1] {
        "lt" => "<",
        "gt" => ">",
        "amp" => "&",
        "quot" => "\"",
        "apos" => "'",
        "times" => "×",
        "divide" => "÷",
        "minus" => "−",
        _ => " ",
    };
    Some(ENTITY.replace_all(text, character).into_owned())
}
