//! Finds the text of the final answer in a completion and in a dataset row. This file finds where mathematics begins
//! and ends in a text, but does not parse mathematics.

use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

use super::super::answer::{announced, closed, hashed, regex, taken_back_before, taken_back_behind};
use super::super::boxed::last_boxed;
use super::super::formulas::{formulas, is_prose, plain_words};
use super::super::markup::without_end;
use super::super::number::{
    NUMBER, is_meant, is_of_script_without_spaces, latex_fraction_around, numbers, vulgar_fraction,
};
use super::equal::MAX_BYTES;
use super::units::never_unit;

/// The answer in a dataset row. `None` if the cell is a solution without a marked answer, or if the answer is too long
/// to compare.
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

/// Whether a text without a mark is a complete solution, in which the answer cannot be found: it has an unclosed box,
/// or sentences. A few words are accepted as an answer.
fn is_solution(text: &str) -> bool {
    static SENTENCE_END: LazyLock<Regex> = LazyLock::new(|| regex(r"\p{L}{2}[.!?]\s+\S|[.!?]\s+\p{Lu}"));
    let text = text.trim();
    if text.contains("\\boxed") || text.contains("\\fbox") {
        return true;
    }
    let words = plain_words(text).count();
    let sentence = text.starts_with(char::is_uppercase) && text.ends_with(['.', '!', '?']);
    // "Dr. Smith" does not end a sentence.
    words >= 4 && is_prose(text) && (words > 8 || sentence || text.contains('\n') || SENTENCE_END.is_match(text))
}

/// The final answer of a completion, if there is one. With `strict` it must be in a box or in `<answer>`.
pub(super) fn answer_of(completion: &str, strict: bool) -> Option<&str> {
    if let Some(inside) = closed(completion) {
        // Tags may contain a sentence.
        let sentence = announced(inside).filter(|_| !inside.contains('\\')).and_then(sentence);
        return Some(sentence.unwrap_or(inside));
    }
    if strict {
        return None;
    }
    // The later of the two marks is used, which is the one with less text after it.
    let last = hashed(completion).into_iter().chain(announced(completion)).min_by_key(|rest| rest.len());
    last.and_then(sentence).or_else(|| last_formula_or_number(completion))
}

/// The contents of several consecutive boxes, `\boxed{1}` and `\boxed{2}`, as one list.
pub(super) fn boxes(completion: &str) -> Option<String> {
    static BOXES: LazyLock<Regex> = LazyLock::new(|| {
        regex(r"\\f?boxed\{[^{}]*\}(?:[\s,;$]*(?:\b(?:and|or)\b|\\text\{[^{}]*\})?[\s,;$]*\\f?boxed\{[^{}]*\})+")
    });
    static INSIDE: LazyLock<Regex> = LazyLock::new(|| regex(r"\\f?boxed\{([^{}]*)\}"));
    let all = BOXES.find_iter(completion).last()?.as_str();
    Some(
        INSIDE
            .captures_iter(all)
            .filter_map(|found| found.get(1))
            .map(|one| one.as_str())
            .collect::<Vec<_>>()
            .join(", "),
    )
}

/// The last formula, or the last number without a formula. If the words around the last formula retract it, the
/// answer is a number after the formula.
fn last_formula_or_number(completion: &str) -> Option<&str> {
    let Some(formula) = formulas(completion).last() else { return last_number(completion) };
    let after = behind(completion, formula.inside);
    if !taken_back_before(&completion[..formula.start]) && !is_denied_behind(after) {
        return Some(formula.inside);
    }
    last_number(completion).filter(|number| number.as_ptr() >= after.as_ptr())
}

/// The answer at the beginning of `text`: a formula, or else the first sentence without its explanation.
fn sentence(text: &str) -> Option<&str> {
    /// Matches words after an answer that do not change the answer. All other words do: "5 times as many" is not 5.
    static EXPLANATION: LazyLock<Regex> = LazyLock::new(|| {
        regex(
            r"(?x) ,?\s+(?:because|since)\b | ,\s+(?:and\s+)?not\b | [,;]\s+(?:as|which|so|thus|hence|therefore)\b
            # The number in words, but not the thousand of a number.
            | \s*\((?:zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|\w+ty)
                (?:[\s-]+(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|\w+ty
                    |hundred|thousand|million|and))*\)[.!]?$",
        )
    });
    static END: LazyLock<Regex> = LazyLock::new(|| regex(r"\.\s|[!?]\s+\p{Lu}|[。！？；，、]"));
    let whole = text;
    let text = emphasized(text);
    // The text after the emphasis may change the answer: "**5** is wrong", "**5**x".
    let after = behind(whole, text);
    if after.starts_with(char::is_alphanumeric) || is_denied_behind(after) {
        return None;
    }
    if let Some(formula) = formulas(text).next().filter(|formula| formula.start == 0) {
        return Some(formula.inside).filter(|inside| !is_denied_behind(behind(text, inside)));
    }
    // An unclosed `$` is a currency sign or a truncated formula.
    let mut text = text;
    while let Some(rest) = ["$", "\\(", "\\["].iter().find_map(|opening| text.strip_prefix(opening)) {
        text = rest.trim_start();
    }
    let line = text.lines().next()?;
    let end = |end: regex::Match<'_>| end.start() + usize::from(end.as_str().is_ascii());
    let line = line[..END.find(line).map_or(line.len(), end)].trim();
    let line = without_word(line)?;
    let answer = match EXPLANATION.find(line) {
        Some(explanation) => line[..explanation.start()].trim_end_matches('*'),
        None => without_end(line),
    };
    Some(answer).filter(|answer| !answer.is_empty())
}

/// The number of a text such as `42人` or `42です`, in which a word follows the number without a space. `None` if the word
/// changes or denies the number. Any other text is returned unchanged.
fn without_word(line: &str) -> Option<&str> {
    let Some(end) = line.find(is_of_script_without_spaces) else { return Some(line) };
    let number = line[..end].trim_end();
    if !number.ends_with(|c: char| c.is_ascii_digit()) || numbers(number).count() != 1 {
        return Some(line);
    }
    is_meant(line, 0, number.len()).then_some(number)
}

/// Whether the text after an answer retracts or changes the answer: "is wrong", "or 6", "million".
fn is_denied_behind(after: &str) -> bool {
    let word = after.trim_start().split(|c: char| !c.is_alphabetic()).next().unwrap_or_default();
    never_unit(word) || taken_back_behind(after, &NUMBER)
}

/// The rest of the line after `part`, which is a part of `text`.
fn behind<'t>(text: &'t str, part: &str) -> &'t str {
    let end = part.as_ptr() as usize + part.len() - text.as_ptr() as usize;
    let signs = |c: char| matches!(c, '*' | '$' | '\\' | ')' | ']');
    text[end..].trim_start_matches(signs).lines().next().unwrap_or_default()
}

/// The text after leading white space and colons. If it begins with emphasis, only the emphasized part: 5 for `**5**
/// because`.
fn emphasized(text: &str) -> &str {
    let mut text = text;
    loop {
        text = text.trim_start_matches(|c: char| c == ':' || c.is_whitespace());
        let rest = text.trim_start_matches('*');
        let stars = &text[..text.len() - rest.len()];
        if stars.is_empty() {
            return text;
        }
        // Stars before white space are the end of an earlier emphasis: `**Answer:** 5`.
        if rest.starts_with(|c: char| !c.is_whitespace()) {
            let line = rest.lines().next().unwrap_or_default();
            return line.find(stars).filter(|end| *end > 0).map_or(rest, |end| &rest[..end]);
        }
        text = rest;
    }
}

/// The last number as written in the text, unless the words around it retract it ("not 12", "x ≠ 12", "12th"). The
/// number includes its sign (by the rules of `gsm8k`), denominator, exponent, percent sign, and the whole part of a
/// mixed number. Numbers separated only by commas are one list.
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
    // A fraction without digits, such as "¾".
    let stands =
        |at: usize| text[..at].trim_end_matches(['-', '$', '(']).chars().next_back().is_none_or(char::is_whitespace);
    let vulgar = text.char_indices().rev().find(|(_, c)| vulgar_fraction(*c).is_some());
    let alone = |at: usize| last.as_ref().is_none_or(|last| last.end < at && !text[last.end..at].trim().is_empty());
    if let Some((at, c)) = vulgar.filter(|(at, _)| stands(*at) && alone(*at)) {
        let start = if text[..at].ends_with('-') { at - 1 } else { at };
        let end = at + c.len_utf8();
        return is_meant(text, start, end).then(|| &text[start..end]);
    }
    if let Some(mut fraction) = last.as_ref().and_then(|last| latex_fraction_around(text, last.start)) {
        fraction.start -= usize::from(text[..fraction.start].ends_with('-'));
        return is_meant(text, fraction.start, fraction.end).then(|| &text[fraction]);
    }
    let Range { start, mut end } = last.filter(|last| is_meant(text, last.start, last.end))?;
    let half = text[end..].trim_start_matches(' ').chars().next().filter(|c| vulgar_fraction(*c).is_some());
    if let Some(c) = half.filter(|_| text[end..].len() - text[end..].trim_start_matches(' ').len() <= 1) {
        end = text.len() - text[end..].trim_start_matches(' ').len() + c.len_utf8();
    }
    for suffix in ["\\%", "%"] {
        end += if text[end..].starts_with(suffix) { suffix.len() } else { 0 };
    }
    Some(&text[start..end])
}

#[cfg(test)]
mod tests;
