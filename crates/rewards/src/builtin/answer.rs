//! Finds the text that a completion marks as its answer, and decides whether the words around an answer retract the
//! answer. All graders that search for an answer use this file, for answers of any form.
//!
//! A mark is `<answer>…</answer>` (or `<solution>`), a box (`\boxed{…}`), `####`, or words: "the answer is", "Answer:",
//! "answer = ". Tags and boxes take precedence: the last one to end is used, or the innermost if they are nested.
//! `####` comes next, then words.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;

use super::boxed::last_boxed;

/// How an answer is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// The answer is in tags or a box, so both of its ends are marked.
    Closed,
    /// The answer follows `####`.
    Hashes,
    /// The answer follows words that announce it.
    Announced,
}

/// A marked answer. Its text extends to the end of the mark, or to the end of the completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marked<'t> {
    pub mark: Mark,
    pub text: &'t str,
}

/// The text after the last `</think>` (or `</thinking>`, `</thought>`, `</reasoning>`), unless that text is empty.
pub(super) fn thought_before(text: &str) -> Option<&str> {
    static END: LazyLock<Regex> = LazyLock::new(|| regex(r"(?i)</(?:think|thinking|thought|reasoning)\s*>"));
    if !text.contains("</") {
        return None;
    }
    let end = END.find_iter(text).last()?.end();
    Some(&text[end..]).filter(|rest| rest.contains(char::is_alphanumeric))
}

/// The text inside the last closed tags or box.
pub(super) fn closed(text: &str) -> Option<&str> {
    let mut text = text;
    // If the text after a mark retracts it ("\boxed{42} is wrong"), the previous mark is tried, up to four marks in
    // total.
    for _ in 0..4 {
        let inside = innermost(text)?;
        let end = inside.as_ptr() as usize + inside.len() - text.as_ptr() as usize;
        let after = text[end..].trim_start_matches('}');
        let after = after.strip_prefix("</").and_then(|tag| tag.split_once('>')).map_or(after, |(_, rest)| rest);
        if !taken_back_behind(after, &NOTHING) {
            return Some(inside);
        }
        text = &text[..end - inside.len()];
    }
    None
}

/// A pattern that never matches, since "or" after a mark does not begin an alternative answer.
static NOTHING: LazyLock<Regex> = LazyLock::new(|| regex(r"^\z.^"));

fn innermost(text: &str) -> Option<&str> {
    let mut inside = outermost(text)?;
    // Tags and boxes may be nested. Each level is searched separately, so the number of levels is limited to four.
    for _ in 0..4 {
        match outermost(inside) {
            Some(inner) => inside = inner,
            None => break,
        }
    }
    Some(inside)
}

fn outermost(text: &str) -> Option<&str> {
    let end = |part: &str| part.as_ptr() as usize + part.len();
    match (last_tagged(text), last_boxed(text)) {
        (Some(tagged), Some(boxed)) => Some(if end(tagged) > end(boxed) { tagged } else { boxed }),
        (tagged, boxed) => tagged.or(boxed),
    }
}

/// The text inside the last closed `<answer>` or `<solution>`, in upper or lower case.
fn last_tagged(text: &str) -> Option<&str> {
    static TAG: LazyLock<Regex> = LazyLock::new(|| regex(r"(?i)<(/?)(answer|solution)\s*>"));
    let (mut open, mut last) = (None, None);
    for tag in TAG.captures_iter(text) {
        let (whole, name) = (tag.get(0)?, tag.get(2)?.as_str().to_ascii_lowercase());
        match (tag.get(1)?.is_empty(), &open) {
            (true, _) => open = Some((name, whole.end())),
            (false, Some((opened, start))) if *opened == name => {
                last = Some(&text[*start..whole.start()]);
                open = None;
            }
            _ => {}
        }
    }
    last
}

/// The text after the last `####`.
pub(super) fn hashed(text: &str) -> Option<&str> {
    text.rsplit_once("####").map(|(_, tail)| tail)
}

/// The text after the last words that announce an answer, without leading white space.
pub(super) fn announced(text: &str) -> Option<&str> {
    static WORDS: LazyLock<Regex> = LazyLock::new(|| {
        regex(
            r#"(?ix) \banswer
            (?: \s+ (?:is|would\s+be|will\s+be|must\s+be|should\s+be) \b | ["'*_`]* \s* (?: : | = | \u{ff1a} ) )
            # Chinese, Japanese, Korean.
            | 答案 ["'*_`]* \s* (?: 就?是 | 就?[为為] | 应该是 | 應該是 | : | = | \u{ff1a} ) \s* \u{ff1a}?
            | (?: 答え | 解答 | 正解 ) ["'*_`]* \s* (?: は | : | = | \u{ff1a} )
            | (?: 정답 | 답 ) ["'*_`]* \s* (?: 은 | 는 | : | = | \u{ff1a} )"#,
        )
    });
    WORDS.find_iter(text).last().map(|words| &text[words.end()..])
}

/// The marked answer of a completion, if it marks one.
pub(super) fn marked(text: &str) -> Option<Marked<'_>> {
    let of = |mark: Mark| move |text| Marked { mark, text };
    closed(text)
        .map(of(Mark::Closed))
        .or_else(|| hashed(text).map(of(Mark::Hashes)))
        .or_else(|| announced(text).map(of(Mark::Announced)))
}

/// The text up to the end of its first line that is not empty.
pub(super) fn first_line(text: &str) -> &str {
    text.trim_start().lines().next().unwrap_or_default()
}

/// Replaces `\text{ or }` by `{ or }`, so that words in a formula are recognised as words.
pub(super) fn bare_words(text: &str) -> Cow<'_, str> {
    static TEXT: LazyLock<Regex> = LazyLock::new(|| regex(r"\\(?:text\w*|mbox|mathrm)\s*\{"));
    TEXT.replace_all(text, "{")
}

/// Whether the text just before an answer denies the answer, bounds it, or offers an alternative: "not", "cannot be",
/// "less than", "≠", "either", "5 or". Earlier sentences are ignored.
pub(super) fn taken_back_before(before: &str) -> bool {
    static END: LazyLock<Regex> = LazyLock::new(|| {
        regex(
            r#"(?ix)
            # A denial, and up to three words of its clause.
            (?: \b(?:not|cannot|never|neither|nor|except|excluding|without|no|non|wrong|incorrect|unlike|instead\s+of
                    |rather\s+than)\b | n['’]t\b )
                (?: [\s*$"'`\\({\[]+ [\p{L}'’]+ ){0,3} [\s*$"'`\\({\[-]* $
            # A bound.
            | \b(?:than|least|most|under|below|above|over|exceeds?|beyond|up\s+to|minimum\s+of|maximum\s+of)
                (?: \s+ (?:a|an|the|about) )? [\s*$"'`\\({\[]* $
            | (?: ≠ | != | =/= | /= | (?:^|[^<>])[<>] | [≤≥≮≯≰≱] | [<>]= | \\(?:neq?|not\s*=|[lg](?:t|e|eq|eqslant)?) )
                [\s*$"'`\\({\[]* $
            | (?: 不是 | 不为 | 不為 | 不等于 | 不等於 | 并非 | 並非 | 不可能是 | 大于 | 大於 | 小于 | 小於 | 超过 | 超過 | 至少 | 至多 | 最多 | 不到
                | 或者? | 还是 | 還是 | 또는 | または ) [\s*$"'`\\({\[]* $
            # A cross before it.
            | [❌✗✘✖❎🚫] [\s*$"'`\\({\[]* $
            # Another before it.
            | \b(?:either|or|nor|neither|between|versus|vs\.?) [\s*$"'`\\({\[]* $
            "#,
        )
    });
    // The `>` of a tag such as `<b>` is not a greater-than sign.
    static TAG: LazyLock<Regex> = LazyLock::new(|| regex(r"</?[\w-]+\s*/?>\s*$"));
    let before = &*bare_words(tail(before));
    END.is_match(TAG.find(before).map_or(before, |tag| &before[..tag.start()]))
}

/// Whether the text just after an answer retracts the answer or offers an alternative: "is wrong", "is not", "or 43".
/// `another` matches the beginning of an alternative.
pub(super) fn taken_back_behind(after: &str, another: &Regex) -> bool {
    static DENIAL: LazyLock<Regex> = LazyLock::new(|| {
        regex(
            r#"(?ix) ^ [\s*$"'`\\)({}\],]* (?: [\p{L}'’]+ \s+ ){0,2}?
            (?: \b(?:is|was|are|were|be|seems|looks|would\s+be|must\s+be)\s+ (?: [\p{L}'’]+ \s+ ){0,2}?
                    (?:not|wrong|incorrect|false|impossible|never|no|neither|excluded|out)\b
              | \b(?:isn|wasn|aren|doesn|don|can|won|couldn|wouldn|shouldn)['’]?t\b | \bcannot\b | \bcan\s+not\b
              | \b(?:does|do|did|could|would|should)\s+not\b
              | (?: \p{L}{0,3}? (?: 是错的? | 是錯的? | 不对 | 不對 | 不正确 | 不正確 | 是错误 | ではない | ではありません | じゃない | [이가은는]?\s*아니 ) )
              | [(\[]?\b(?:wrong|incorrect|false)\b | [❌✗✘✖❎🚫] )"#,
        )
    });
    static OR: LazyLock<Regex> = LazyLock::new(|| {
        regex(
            r#"(?ix)^[\s*$"'`\\){}\],]* (?: \b(?:or|and/or|versus|vs)\b\.?(?:\s+(?:maybe|perhaps|possibly|even|else))?
                | \p{L}? (?: 或者? | 还是 | 還是 | または | か | 또는 ) ) \s*"#,
        )
    });
    static CLAUSE: LazyLock<Regex> = LazyLock::new(|| regex(r"(?i)\b(?:since|because|as|while|whereas)\b|[.;\n]|,\s+"));
    let after = &*bare_words(head(after));
    // After the first clause, only a clause such as "which is" can retract the answer.
    let which = |end: usize| ["which", "is ", "but that"].iter().any(|word| after[end..].starts_with(word));
    let clause = CLAUSE.find_iter(after).find(|found| !(found.as_str().starts_with(',') && which(found.end())));
    DENIAL.is_match(clause.map_or(after, |found| &after[..found.start()]))
        || OR.find(after).is_some_and(|or| another.is_match(&after[or.end()..]))
}

/// The last clause of a text.
fn tail(text: &str) -> &str {
    let mut start = text.len().saturating_sub(120);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

/// The first clause of a text.
fn head(text: &str) -> &str {
    let mut end = text.len().min(120);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Replaces full-width and Arabic digits and signs by ASCII, and removes zero-width characters.
pub(super) fn plain_digits(text: &str) -> Cow<'_, str> {
    if text.is_ascii() {
        return Cow::Borrowed(text);
    }
    let plain = |c: char| match c {
        '\u{200b}'..='\u{200f}' | '\u{2060}' | '\u{feff}' | '\u{ad}' => None,
        '\u{ff01}'..='\u{ff5e}' => char::from_u32(c as u32 - 0xff01 + 0x21),
        '٫' => Some('.'),
        '٬' => Some(','),
        '٪' => Some('%'),
        '\u{3000}' => Some(' '),
        c => [0x660, 0x6f0, 0x966]
            .iter()
            .find_map(|zero| (c as u32).checked_sub(*zero).filter(|digit| *digit < 10))
            .and_then(|digit| char::from_digit(digit, 10))
            .or(Some(c)),
    };
    if text.chars().all(|c| plain(c) == Some(c)) {
        Cow::Borrowed(text)
    } else {
        text.chars().filter_map(plain).collect()
    }
}

pub(super) fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a regular expression")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_mark_of_each_form_is_found() {
        for (text, mark, answer) in [
            ("<answer>5</answer>", Mark::Closed, "5"),
            ("<think>\\boxed{4}</think> <answer> 5 </answer>", Mark::Closed, " 5 "),
            ("<answer>4</answer> no, \\boxed{5}", Mark::Closed, "5"),
            ("<answer>4</answer><Answer>5</Answer>", Mark::Closed, "5"),
            ("<answer>so \\boxed{5}</answer>", Mark::Closed, "5"),
            ("\\boxed{<answer>5</answer>}", Mark::Closed, "5"),
            ("<SOLUTION>5</SOLUTION>", Mark::Closed, "5"),
            ("<answer>5</answer> and <answer>6", Mark::Closed, "5"),
            ("<answer>5</solution></answer>", Mark::Closed, "5</solution>"),
            ("<answer></answer>, 5", Mark::Closed, ""),
            ("4 #### 5", Mark::Hashes, " 5"),
            ("The answer is 4. The answer is 5.", Mark::Announced, " 5."),
            ("**Answer**: 5", Mark::Announced, " 5"),
            ("answer=5", Mark::Announced, "5"),
            ("{\"answer\": \"B\"}", Mark::Announced, " \"B\"}"),
        ] {
            assert_eq!(marked(text), Some(Marked { mark, text: answer }), "{text}");
        }
        for text in ["", "5", "<answer>5", "5</answer>", "answers 5", "an answer to 5"] {
            assert_eq!(marked(text), None, "{text}");
        }
    }

    #[test]
    fn words_around_an_answer_can_retract_it() {
        for before in [
            "it is not ",
            "it cannot be ",
            "it isn't ",
            "it can't be equal to ",
            "neither ",
            "x ≠ ",
            "x != ",
            "x \\ne ",
            "x < ",
            "less than ",
            "at least ",
            "either ",
            "5 or ",
            "not (",
            "**not** ",
            "not $",
            "x \\geq ",
        ] {
            assert!(taken_back_before(before), "{before}");
        }
        for before in
            ["", "it is ", "x = ", "He is not here. It is ", "He had no apples, so he buys ", "in all, ", "knot "]
        {
            assert!(!taken_back_before(before), "{before}");
        }
        let digit = regex(r"^\d");
        for after in [
            " is wrong",
            " is not the answer",
            " is not it",
            "** is incorrect",
            " cannot be it",
            " isn't right",
            " or 43",
            ", or 43",
            " (wrong)",
            " does not work",
            " is clearly wrong",
            " apples is wrong",
            ", which is wrong",
            "\\text{ is wrong}",
        ] {
            assert!(taken_back_behind(after, &digit), "{after}");
        }
        for after in ["", ".", " apples", " is right", ", or so", " because 4 is wrong", ". 4 is wrong", " or dollars"]
        {
            assert!(!taken_back_behind(after, &digit), "{after}");
        }
    }

    #[test]
    fn digits_of_other_scripts_are_replaced_by_ascii() {
        assert_eq!(plain_digits("٤٢ ۴२ ４２．５\u{200b}"), "42 42 42.5");
        assert!(matches!(plain_digits("é ½"), Cow::Borrowed(_)));
    }

    #[test]
    fn marked_answers_extend_to_the_end_of_their_mark() {
        for (text, inside) in [
            ("<answer>5</answer> \\boxed{6}", Some("6")),
            ("\\boxed{6} <answer>5</answer>", Some("5")),
            ("<answer>so \\boxed{5} of 6</answer>", Some("5")),
            ("\\boxed{so <answer>5</answer> of 6}", Some("5")),
            ("<answer>4</answer>5</answer>", Some("4")),
            ("<answer>4<answer>5</answer></answer>", Some("5")),
            ("<answer>4<solution>5</answer>", None),
            ("<answer >5</ANSWER\n>", Some("5")),
            ("5</answer><answer>", None),
        ] {
            assert_eq!(closed(text), inside, "{text}");
        }
        assert_eq!((hashed("a #### b #### c"), hashed("a ### b")), (Some(" c"), None));
        assert_eq!((first_line("\n \n a\nb"), first_line(" ")), ("a", ""));
        assert_eq!(bare_words("\\text{ or }\\mathrm {x}\\mbox{y}\\textbf{z}\\frac{1}"), "{ or }{x}{y}{z}\\frac{1}");
    }

    /// Words that retract an answer must be within 120 bytes of the answer.
    #[test]
    fn only_the_adjacent_clause_can_retract_an_answer() {
        for (text, last, first) in [
            ("x".repeat(120), "x".repeat(120), "x".repeat(120)),
            ("a".to_owned() + &"x".repeat(119) + "b", "x".repeat(119) + "b", "a".to_owned() + &"x".repeat(119)),
            ("é".to_owned() + &"x".repeat(119), "x".repeat(119), "é".to_owned() + &"x".repeat(118)),
            ("x".repeat(119) + "é", "x".repeat(118) + "é", "x".repeat(119)),
            (String::new(), String::new(), String::new()),
        ] {
            assert_eq!((tail(&text), head(&text)), (&*last, &*first), "{text}");
        }
        let digit = regex(r"^\d");
        for (after, expected) in [
            (", which is wrong", true),
            (", is wrong", true),
            (", but that is wrong", true),
            (", and 5 is wrong", false),
            (" since 4 is wrong", false),
            (" as 4 is wrong", false),
            ("; 4 is wrong", false),
            ("\n4 is wrong", false),
            (" is wrong, so 4", true),
            (" or 4", true),
            (" or maybe 4", true),
            (" or x", false),
        ] {
            assert_eq!(taken_back_behind(after, &digit), expected, "{after}");
        }
        assert!(taken_back_before("not <b>") && !taken_back_before("is <b>") && taken_back_before("a <b> not "));
    }

    #[test]
    fn each_digit_and_sign_of_other_scripts_has_its_ascii_character() {
        for (text, plain) in [
            ("٠١٩", "019"),
            ("۰۱۹", "019"),
            ("०१९", "019"),
            ("\u{66d}\u{6fa}\u{970}", "\u{66d}\u{6fa}\u{970}"),
            ("！～＝Ａ", "!~=A"),
            ("１٫５٬٪\u{3000}x", "1.5,% x"),
            ("a\u{200b}\u{200f}\u{2060}\u{feff}\u{ad}b", "ab"),
            ("é", "é"),
        ] {
            assert_eq!(plain_digits(text), plain, "{text}");
        }
        assert!(matches!(plain_digits("ab"), Cow::Borrowed("ab")));
    }
}
