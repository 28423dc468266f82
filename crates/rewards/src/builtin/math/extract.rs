//! Finds the text of the final answer in a completion and in a dataset row. It recognises where mathematics begins and
//! ends in a text, but does not interpret it.

use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

use super::super::answer::{closed, hashed, regex, said};
use super::super::boxed::last_boxed;
use super::super::number::{is_meant, numbers};
use super::equal::MAX_BYTES;
use super::units::unit;

/// The answer in a dataset row; `None` if the cell is a solution without a marked answer, or the answer is too long to
/// compare.
pub(super) fn gold(answer: &Value) -> Option<String> {
    let text = match answer {
        Value::Number(number) => number.to_string(),
        Value::String(text) => {
            let marked = || text.rsplit_once("####").map(|(_, tail)| tail);
            match last_boxed(text).or_else(marked) {
                Some(answer) => answer.trim().to_owned(),
                None if is_solution(text) => return None,
                None => text.trim().to_owned(),
            }
        }
        _ => return None,
    };
    (!text.is_empty() && text.len() <= MAX_BYTES).then_some(text)
}

/// Whether a text without a mark is a whole solution, so that its answer cannot be told: it has a broken box, or
/// sentences. A few words count as an answer.
fn is_solution(text: &str) -> bool {
    static SENTENCE_END: LazyLock<Regex> = LazyLock::new(|| regex(r"\p{L}{2}[.!?]\s+\S|[.!?]\s+\p{Lu}"));
    let text = text.trim();
    if text.contains("\\boxed") || text.contains("\\fbox") {
        return true;
    }
    let words = plain_words(text).count();
    let sentence = text.starts_with(char::is_uppercase) && text.ends_with(['.', '!', '?']);
    // "Dr. Smith" is none.
    words >= 4 && is_prose(text) && (words > 8 || sentence || text.contains('\n') || SENTENCE_END.is_match(text))
}

/// The final answer of a completion, if it has one. With `strict` it must be in a box or in `<answer>`.
pub(super) fn answer_of(completion: &str, strict: bool) -> Option<&str> {
    if let Some(inside) = closed(completion) {
        // Tags may hold a sentence.
        let sentence = said(inside).filter(|_| !inside.contains('\\')).and_then(sentence);
        return Some(sentence.unwrap_or(inside));
    }
    if strict {
        return None;
    }
    // The last of them: the shorter rest.
    let said = hashed(completion).into_iter().chain(said(completion)).min_by_key(|rest| rest.len());
    said.and_then(sentence)
        .or_else(|| formulas(completion).last().map(|formula| formula.inside))
        .or_else(|| last_number(completion))
}

/// The answer at the start of `text`: a formula, or else the first sentence without its explanation.
fn sentence(text: &str) -> Option<&str> {
    /// Matches words that may follow an answer without changing it. Any other words do: "5 times as many" is not 5.
    static EXPLANATION: LazyLock<Regex> = LazyLock::new(|| {
        regex(
            r"(?x) ,?\s+(?:because|since)\b | [,;]\s+(?:as|which|so|thus|hence|therefore)\b
            # The number in words, but not the thousand of a number.
            | \s*\((?:zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|\w+ty)
                (?:[\s-]+(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|\w+ty
                    |hundred|thousand|million|and))*\)[.!]?$",
        )
    });
    static END: LazyLock<Regex> = LazyLock::new(|| regex(r"\.\s|[!?]\s+\p{Lu}"));
    let text = emphasized(text);
    if let Some(formula) = formulas(text).next().filter(|formula| formula.start == 0) {
        return Some(formula.inside);
    }
    // What opens a formula here and does not close it is a price's sign, or cut off.
    let mut text = text;
    while let Some(rest) = ["$", "\\(", "\\["].iter().find_map(|opening| text.strip_prefix(opening)) {
        text = rest.trim_start();
    }
    let line = text.lines().next()?;
    let line = line[..END.find(line).map_or(line.len(), |end| end.start() + 1)].trim();
    let said = match EXPLANATION.find(line) {
        Some(explanation) => line[..explanation.start()].trim_end_matches('*'),
        None => without_end(line),
    };
    Some(said).filter(|answer| !answer.is_empty())
}

/// Removes the punctuation that ends a sentence. An `!` after digits and words is punctuation; in `n!` and `(2n)!` it
/// is a factorial and stays.
fn without_end(text: &str) -> &str {
    let text = text.trim_end_matches('*');
    let rest = text.trim_end_matches(['!', '?']);
    let mut before = rest.chars().rev();
    let ends = match before.next() {
        Some(c) if c.is_alphabetic() => before.next().is_some_and(char::is_alphabetic),
        c => c.is_some_and(|c| c.is_ascii_digit() || c == '*'),
    };
    if ends { rest } else { text }.trim_end_matches(['.', '*'])
}

/// The text after leading white space and colons; if stars emphasize a part of it, that part: the 5 of `**5** because`.
fn emphasized(text: &str) -> &str {
    let mut text = text;
    loop {
        text = text.trim_start_matches(|c: char| c == ':' || c.is_whitespace());
        let rest = text.trim_start_matches('*');
        let stars = &text[..text.len() - rest.len()];
        if stars.is_empty() {
            return text;
        }
        // Stars before white space end what was emphasized before: `**Answer:** 5`.
        if rest.starts_with(|c: char| !c.is_whitespace()) {
            let line = rest.lines().next().unwrap_or_default();
            return line.find(stars).filter(|end| *end > 0).map_or(rest, |end| &rest[..end]);
        }
        text = rest;
    }
}

/// The last number as it is written, unless the words around it retract it ("not 12", "x ≠ 12", "12th"). It includes
/// its sign (by the rules of `gsm8k`), denominator, the whole part of a mixed number, exponent and percent sign.
/// Numbers separated only by commas are one list.
fn last_number(text: &str) -> Option<&str> {
    let whole = |range: &Range<usize>| {
        let digits = text[range.clone()].trim_start_matches(['-', '\u{2212}']);
        if digits.bytes().all(|b| b.is_ascii_digit()) { digits.parse::<u64>().ok() } else { None }
    };
    let (mut before, mut last): (Option<Range<usize>>, Option<Range<usize>>) = (None, None);
    for found in numbers(text) {
        let (mut start, end) = (found.start, found.end);
        let between = last.as_ref().map(|last| (last.clone(), &text[last.end..start]));
        match between {
            Some((top, "/")) => {
                let proper = whole(&top).zip(whole(&(start..end))).is_some_and(|(top, bottom)| top < bottom);
                let mixed = before
                    .take()
                    .filter(|before| proper && whole(before).is_some() && &text[before.end..top.start] == " ");
                start = mixed.map_or(top.start, |whole| whole.start);
            }
            Some((list, "," | "e" | "E" | "e-" | "E-" | "e+" | "E+")) => start = list.start,
            _ => before = last.take(),
        }
        last = Some(start..end);
    }
    let Range { start, mut end } = last.filter(|last| is_meant(text, last.start, last.end))?;
    for suffix in ["½", "¼", "¾", " ½", " ¼", " ¾", "\\%", "%"] {
        end += if text[end..].starts_with(suffix) { suffix.len() } else { 0 };
    }
    Some(&text[start..end])
}

/// A formula found in a text.
struct Formula<'t> {
    /// Byte offset of the sign that opens the formula.
    start: usize,
    inside: &'t str,
}

/// The formulas of a text in order: `$…$`, `$$…$$`, `\(…\)` and `\[…\]`, if not empty. Takes one pass: an opening sign
/// cancels any formula that is still open before it.
fn formulas(text: &str) -> impl Iterator<Item = Formula<'_>> {
    let bytes = text.as_bytes();
    let mut at = 0;
    // What closes it, where its sign is and where its inside begins.
    let mut open: Option<(&str, usize, usize)> = None;
    std::iter::from_fn(move || {
        while let Some(&byte) = bytes.get(at) {
            let start = at;
            at += 1;
            let sign = match (byte, bytes.get(at)) {
                (b'\\', Some(b'(' | b')' | b'[' | b']')) => &text[start..start + 2],
                (b'\\', Some(next)) => {
                    // An escaped dollar or backslash.
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

/// Whether `inside`, between two dollar signs, is mathematics and not the text between two prices. `after` is the text
/// after the second sign.
fn is_formula(inside: &str, after: &[u8]) -> bool {
    !inside.trim().is_empty() && !after.first().is_some_and(u8::is_ascii_digit) && !is_prose(inside)
}

/// Whether a text is prose: it has the end of a sentence, two consecutive words that are no units, or begins or ends
/// with a word such as "and" or "the".
fn is_prose(text: &str) -> bool {
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
fn plain_words(text: &str) -> impl Iterator<Item = Range<usize>> + '_ {
    static WORD: LazyLock<Regex> =
        LazyLock::new(|| regex(r"\\(?:text\w*|mbox|mathrm|operatorname|begin|end)\s*\{[^{}]*\}|\\[A-Za-z]+|\p{L}{2,}"));
    WORD.find_iter(text).filter(|found| !found.as_str().starts_with('\\')).map(|found| found.range())
}

#[cfg(test)]
mod tests;
