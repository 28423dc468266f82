//! Where the answer of a completion and of a dataset's row stands. Knows where mathematics begins and ends in a text,
//! and nothing of what it means.

use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

use super::super::answer::{closed, hashed, regex, said};
use super::super::boxed::last_boxed;
use super::super::number::{is_meant, numbers};
use super::equal::MAX_BYTES;
use super::units::unit;

/// The answer of a dataset's row; none where there is a solution without a mark or an answer too long to be compared.
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

/// Whether a text without a mark is a solution, whose answer nobody can tell, and not an answer: it has a broken box,
/// or sentences. A few words are an answer.
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

/// The final answer of a completion, if it has one. `strict`: only in a box or in `<answer>`.
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

/// What is said at the start of `text`: a formula, or else the first sentence without its explanation.
fn sentence(text: &str) -> Option<&str> {
    /// What may follow an answer and changes nothing of it. More words are none of these: "5 times as many" is not 5.
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

/// Without the signs that end a sentence. After digits and words `!` is one of them, and no factorial; that of `n!`
/// and `(2n)!` stays.
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

/// The text without white space and colons before it, or what its stars emphasize: the 5 of `**5** because`.
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

/// The last number as it is written, unless something takes it back ("not 12", "x ≠ 12", "12th"): with its sign (as
/// `gsm8k` has it), its denominator, the whole number before a fraction, its exponent, a percent sign. Numbers with
/// nothing but commas between are one list.
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

/// A formula in a text.
struct Formula<'t> {
    /// Where the sign is that opens it.
    start: usize,
    inside: &'t str,
}

/// The formulas of a text in order: `$…$`, `$$…$$`, `\(…\)` and `\[…\]` with something in them. One pass: what opens a
/// formula makes what was open before it none.
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

/// Whether `inside` is mathematics between two dollars, and not the text between two prices. `after` is what follows.
fn is_formula(inside: &str, after: &[u8]) -> bool {
    !inside.trim().is_empty() && !after.first().is_some_and(u8::is_ascii_digit) && !is_prose(inside)
}

/// Whether a text has a sentence's end, two words without a unit behind each other, or at an end a word that joins.
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

/// The words of two letters and more that are neither commands of LaTeX nor in its `\text{…}`.
fn plain_words(text: &str) -> impl Iterator<Item = Range<usize>> + '_ {
    static WORD: LazyLock<Regex> =
        LazyLock::new(|| regex(r"\\(?:text\w*|mbox|mathrm|operatorname|begin|end)\s*\{[^{}]*\}|\\[A-Za-z]+|\p{L}{2,}"));
    WORD.find_iter(text).filter(|found| !found.as_str().starts_with('\\')).map(|found| found.range())
}

#[cfg(test)]
mod tests;
