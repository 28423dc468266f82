//! Finds the formulas of a text (`$…$`, `\(…\)`, `\[…\]`) without interpreting them.

use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;

use super::answer::regex;
use super::units::unit;

/// A formula found in a text.
pub(super) struct Formula<'t> {
    /// Byte offset of the sign that opens the formula.
    pub start: usize,
    pub inside: &'t str,
}

/// The nonempty formulas of a text in order: `$…$`, `$$…$$`, `\(…\)` and `\[…\]`. The search takes one pass: an opening
/// sign cancels a formula that is still open.
pub(super) fn formulas(text: &str) -> impl Iterator<Item = Formula<'_>> {
    let bytes = text.as_bytes();
    let mut at = 0;
    // The open formula: its closing sign, the position of its opening sign, and the start of its content.
    let mut open: Option<(&str, usize, usize)> = None;
    std::iter::from_fn(move || {
        while let Some(&byte) = bytes.get(at) {
            let start = at;
            at += 1;
            let sign = match (byte, bytes.get(at)) {
                (b'\\', Some(b'(' | b')' | b'[' | b']')) => &text[start..start + 2],
                (b'\\', Some(next)) => {
                    // Skips an escaped dollar sign or backslash.
                    at += usize::from(next.is_ascii());
                    continue;
                }
                (b'$', next) => {
                    if let Some(("$", opening, begins)) = open
                        && is_formula(&text[begins..start], &bytes[at..])
                    {
                        open = None;
                        return Some(Formula { start: opening, inside: text[begins..start].trim() });
                    }
                    if next == Some(&b'$') { "$$" } else { "$" }
                }
                _ => continue,
            };
            at = start + sign.len();
            let closing = match sign {
                "\\)" | "\\]" | "$$" if open.is_some_and(|(closing, ..)| closing == sign) => {
                    let (_, opening, begins) = open.take()?;
                    let inside = text[begins..start].trim();
                    if inside.is_empty() {
                        continue;
                    }
                    return Some(Formula { start: opening, inside });
                }
                "\\(" => "\\)",
                "\\[" => "\\]",
                "$" => "$",
                "$$" => "$$",
                _ => continue,
            };
            open = Some((closing, start, at));
        }
        None
    })
}

/// Whether `inside`, the text between two dollar signs, is mathematics and not text between two prices. `after` is the
/// text after the second sign.
fn is_formula(inside: &str, after: &[u8]) -> bool {
    !inside.trim().is_empty() && !after.first().is_some_and(u8::is_ascii_digit) && !is_prose(inside)
}

/// Whether a text is prose: it contains the end of a sentence or two consecutive words that are not units, or begins or
/// ends with a word such as "and" or "the".
pub(super) fn is_prose(text: &str) -> bool {
    const JOINING: [&str; 21] = [
        "and", "or", "to", "for", "of", "in", "on", "is", "so", "per", "but", "plus", "minus", "the", "at", "by",
        "with", "then", "from", "as", "if",
    ];
    let text = text.trim();
    let joins =
        |word: &Range<usize>| (word.start == 0 || word.end == text.len()) && JOINING.contains(&&text[word.clone()]);
    let mut before: Option<Range<usize>> = None;
    for word in plain_words(text) {
        let pair = before.replace(word.clone()).is_some_and(|before| {
            let space = &text[before.end..word.start];
            !space.is_empty()
                && space.trim().is_empty()
                && unit(&text[before]).is_none()
                && unit(&text[word.clone()]).is_none()
        });
        if pair || joins(&word) {
            return true;
        }
    }
    text.contains(". ")
}

/// The words of at least two letters that are neither LaTeX commands nor inside `\text{…}`.
pub(super) fn plain_words(text: &str) -> impl Iterator<Item = Range<usize>> + '_ {
    static WORD: LazyLock<Regex> =
        LazyLock::new(|| regex(r"\\(?:text\w*|mbox|mathrm|operatorname|begin|end)\s*\{[^{}]*\}|\\[A-Za-z]+|\p{L}{2,}"));
    WORD.find_iter(text).filter(|found| !found.as_str().starts_with('\\')).map(|found| found.range())
}
