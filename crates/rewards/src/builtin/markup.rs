//! Removes the decoration of an answer: style tags, emphasis, code marks, symbols such as ✅, quotes, and punctuation at
//! the end of the sentence. All graders use these functions, so that markup does not change a score.
//!
//! [`undecorated`] is applied to a whole completion before the search for marks, and also deletes struck-out text.
//! [`bare`] is applied to the marked answer. Both take linear time.

mod emphasis;
mod symbols;
mod tags;

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;

use super::answer::regex;

/// The maximum number of layers of markup that are removed around an answer.
const LAYERS: usize = 12;

/// The text without style tags, symbols, emphasis and code marks.
pub(super) fn undecorated(text: &str) -> Cow<'_, str> {
    changed(text, &[tags::removed, symbols::removed, emphasis::removed])
}

/// Like [`undecorated`], but keeps emphasis and code marks, for callers that interpret these.
pub(super) fn emphasized(text: &str) -> Cow<'_, str> {
    changed(text, &[tags::removed, symbols::removed, emphasis::struck_out_removed])
}

fn changed<'t>(text: &'t str, stages: &[fn(&str) -> Option<String>]) -> Cow<'t, str> {
    let mut text = Cow::Borrowed(text);
    for stage in stages {
        if let Some(new) = stage(&text) {
            text = Cow::Owned(new);
        }
    }
    text
}

/// The answer without quotes, formula signs and punctuation around it. An `!` is removed only after words: in `5!` it
/// may be a factorial.
pub(super) fn bare(answer: &str) -> &str {
    let mut text = answer;
    for _ in 0..LAYERS {
        let inner = inside(without_punctuation(text));
        if inner.len() == text.len() {
            break;
        }
        text = inner;
    }
    text
}

/// Like [`bare`], for an answer at the end of a sentence: an `!` after digits is punctuation, too.
pub(super) fn bare_sentence(answer: &str) -> &str {
    let text = bare(answer);
    let rest = text.trim_end_matches(['!', '?']);
    if rest.ends_with(|c: char| c.is_ascii_digit()) { bare(rest) } else { text }
}

/// An answer without a Japanese or Korean copula at its end: 東京です, 서울입니다.
pub(super) fn without_copula(answer: &str) -> Option<&str> {
    let words = ["です", "でした", "である", "だ", "になります", "となります", "입니다", "이에요", "예요", "이다"];
    let answer = bare(answer);
    words.iter().find_map(|word| answer.strip_suffix(word)).map(bare).filter(|rest| !rest.is_empty())
}

/// The first sentence of a line: "The answer is 5. Done."
pub(super) fn first_sentence(line: &str) -> &str {
    static END: LazyLock<Regex> = LazyLock::new(|| regex(r"[.!?]\s+\p{Lu}"));
    END.find(line).map_or(line, |end| &line[..end.start()])
}

/// Removes the punctuation that ends a sentence. An `!` after digits and words is punctuation; in `n!` and `(2n)!` it
/// is a factorial and stays.
pub(super) fn without_end(text: &str) -> &str {
    let text = text.trim_end_matches('*');
    let rest = text.trim_end_matches(['!', '?']);
    let mut before = rest.chars().rev();
    let ends = match before.next() {
        Some(c) if c.is_alphabetic() => before.next().is_some_and(char::is_alphabetic),
        c => c.is_some_and(|c| c.is_ascii_digit() || c == '*'),
    };
    if ends { rest } else { text }.trim_end_matches(['.', '*'])
}

/// The content of an answer that is a single LaTeX style command: `Paris` for `\text{Paris}`.
pub(super) fn unstyled(answer: &str) -> &str {
    const STYLES: [&str; 16] = [
        "text",
        "textbf",
        "textit",
        "textrm",
        "texttt",
        "textsf",
        "textnormal",
        "emph",
        "mbox",
        "mathrm",
        "mathbf",
        "mathit",
        "mathsf",
        "mathtt",
        "underline",
        "boldsymbol",
    ];
    let mut text = bare(answer);
    for _ in 0..LAYERS {
        let inner = text.strip_prefix('\\').and_then(|rest| {
            let letters = rest.find(|c: char| !c.is_ascii_alphabetic())?;
            let inner = rest[letters..].trim_start().strip_prefix('{')?.strip_suffix('}')?;
            (STYLES.contains(&&rest[..letters]) && closes_last(inner)).then_some(inner)
        });
        match inner {
            Some(inner) => text = bare(inner),
            None => break,
        }
    }
    text
}

/// Whether braces are balanced at each point, so that the brace after `inner` closes the one before it.
fn closes_last(inner: &str) -> bool {
    let mut depth = 0usize;
    for byte in inner.bytes() {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 0 => return false,
            b'}' => depth -= 1,
            _ => {}
        }
    }
    depth == 0
}

/// The text without white space, colons and arrows at its beginning, and sentence punctuation at its end.
fn without_punctuation(text: &str) -> &str {
    let start = |c: char| c.is_whitespace() || matches!(c, ':' | '：' | '→' | '⇒' | '⟹' | '⟶');
    let text = text.trim_start_matches(start).trim_end();
    let (Some(last), before) =
        (text.chars().next_back(), &text[..text.len() - text.chars().next_back().map_or(0, char::len_utf8)])
    else {
        return text;
    };
    let ends = match last {
        // The period stays in "42..." and in the command `\right.`.
        '.' => !before.ends_with(['.', '\\']) && !before.ends_with("\\right"),
        ',' | ';' => !before.ends_with('\\'),
        '。' | '．' | '、' | '，' | '；' => true,
        '!' | '?' | '！' | '？' => {
            let mut letters = before.trim_end_matches(['!', '?', '！', '？']).chars().rev();
            let mut letter = || letters.next().is_some_and(char::is_alphabetic);
            letter() && letter()
        }
        // A closing quotation mark without its opening one: `The answer is 5."`
        '"' | '”' | '»' | '」' | '\'' => {
            before.ends_with(['.', '!', '?', '。']) && !text.starts_with(['"', '“', '«', '「', '\''])
        }
        // A closing brace of JSON, without its opening brace.
        '}' => before.matches('{').count() <= before.matches('}').count(),
        _ => false,
    };
    if ends { before } else { text }
}

/// The content of quotes, code marks or formula signs that enclose the whole text.
fn inside(text: &str) -> &str {
    const PAIRS: [(&str, &str); 16] = [
        ("\"", "\""),
        ("'", "'"),
        ("`", "`"),
        ("“", "”"),
        ("„", "“"),
        ("‘", "’"),
        ("«", "»"),
        ("‹", "›"),
        ("「", "」"),
        ("『", "』"),
        ("$$", "$$"),
        ("$", "$"),
        ("\\(", "\\)"),
        ("\\[", "\\]"),
        ("**", "**"),
        ("__", "__"),
    ];
    for (open, close) in PAIRS {
        let Some(rest) = text.strip_prefix(open) else { continue };
        if let Some(inner) = rest.strip_suffix(close)
            && !inner.trim().is_empty()
            && !inner.ends_with('\\')
            && !inner.contains(open)
            && !inner.contains(close)
        {
            return inner;
        }
    }
    text
}

#[cfg(test)]
mod tests;
