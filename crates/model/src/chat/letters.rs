//! Classes and cases of characters, as Python's strings define them.

use super::python::refused;
use minijinja::Error;
use regex::Regex;
use std::sync::LazyLock;

/// Characters that `str.isdigit` accepts besides decimal digits.
const DIGITS: &str = concat!(
    r"\u{b2}\u{b3}\u{b9}\u{1369}-\u{1371}\u{19da}\u{2070}\u{2074}-\u{2079}\u{2080}-\u{2089}",
    r"\u{2460}-\u{2468}\u{2474}-\u{247c}\u{2488}-\u{2490}\u{24ea}\u{24f5}-\u{24fd}\u{24ff}",
    r"\u{2776}-\u{277e}\u{2780}-\u{2788}\u{278a}-\u{2792}\u{10a40}-\u{10a43}\u{10e60}-\u{10e68}",
    r"\u{11052}-\u{1105a}\u{1f100}-\u{1f10a}",
);
/// Chinese characters that `str.isnumeric` accepts.
const NUMERALS: &str = concat!(
    r"\u{3405}\u{3483}\u{382a}\u{3b4d}\u{4e00}\u{4e03}\u{4e07}\u{4e09}\u{4e5d}\u{4e8c}\u{4e94}\u{4e96}",
    r"\u{4ebf}-\u{4ec0}\u{4edf}\u{4ee8}\u{4f0d}\u{4f70}\u{5104}\u{5146}\u{5169}\u{516b}\u{516d}\u{5341}",
    r"\u{5343}-\u{5345}\u{534c}\u{53c1}-\u{53c4}\u{56db}\u{58f1}\u{58f9}\u{5e7a}\u{5efe}-\u{5eff}",
    r"\u{5f0c}-\u{5f0e}\u{5f10}\u{62fe}\u{634c}\u{67d2}\u{6f06}\u{7396}\u{767e}\u{8086}\u{842c}\u{8cae}\u{8cb3}",
    r"\u{8d30}\u{9621}\u{9646}\u{964c}\u{9678}\u{96f6}\u{f96b}\u{f973}\u{f978}\u{f9b2}\u{f9d1}\u{f9d3}\u{f9fd}",
    r"\u{20001}\u{20064}\u{200e2}\u{20121}\u{2092a}\u{20983}\u{2098c}\u{2099c}\u{20aea}\u{20afd}\u{20b19}",
    r"\u{22390}\u{22998}\u{23b1b}\u{2626d}\u{2f890}",
);

fn compiled(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the pattern is valid")
}

static DIGIT: LazyLock<Regex> = LazyLock::new(|| compiled(&format!(r"^[\p{{Nd}}{DIGITS}]+$")));
static DECIMAL: LazyLock<Regex> = LazyLock::new(|| compiled(r"^\p{Nd}+$"));
static NUMERIC: LazyLock<Regex> = LazyLock::new(|| compiled(&format!(r"^[\p{{N}}{NUMERALS}]+$")));
static LETTERS: LazyLock<Regex> = LazyLock::new(|| compiled(r"^\p{L}+$"));
static ALNUM: LazyLock<Regex> = LazyLock::new(|| compiled(r"^[\p{L}\p{N}]+$"));
static IDENTIFIER: LazyLock<Regex> = LazyLock::new(|| compiled(r"^[\p{XID_Start}_]\p{XID_Continue}*$"));
static PRINTABLE: LazyLock<Regex> = LazyLock::new(|| compiled(r"^(?: |[^\p{C}\p{Z}])*$"));
static WORD: LazyLock<Regex> = LazyLock::new(|| compiled(r"[\p{L}\p{N}_]+"));

/// Python's methods `isdigit`, `isalpha` and so on, which test the whole string.
pub(super) fn is_all(method: &str, text: &str) -> bool {
    let class = match method {
        "isdigit" => &DIGIT,
        "isdecimal" => &DECIMAL,
        "isnumeric" => &NUMERIC,
        "isalpha" => &LETTERS,
        "isalnum" => &ALNUM,
        "isidentifier" => &IDENTIFIER,
        _ => &PRINTABLE,
    };
    class.is_match(text)
}

/// The number of words: the matches of `\w+` in Python's `re`.
pub(super) fn words(text: &str) -> usize {
    WORD.find_iter(text).count()
}

/// Whether Python splits and strips strings at this character.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Whether Python's `splitlines` ends a line at this character.
pub(super) fn ends_line(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// `str.swapcase`.
pub(super) fn swap_case(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match () {
            () if c.is_uppercase() => out.extend(c.to_lowercase()),
            () if c.is_lowercase() => out.extend(c.to_uppercase()),
            () => out.push(c),
        }
    }
    out
}

/// `str.casefold`.
pub(super) fn fold_case(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            'ı' => out.push(c),
            // Cherokee letters fold to upper case.
            '\u{13a0}'..='\u{13fd}' | '\u{ab70}'..='\u{abbf}' => out.extend(c.to_uppercase()),
            _ => out.extend(c.to_uppercase().flat_map(char::to_lowercase)),
        }
    }
    out
}

/// Digraphs that are one character, each in upper case, title case and lower case.
const PAIRS: [[char; 3]; 4] = [['Ǆ', 'ǅ', 'ǆ'], ['Ǉ', 'ǈ', 'ǉ'], ['Ǌ', 'ǋ', 'ǌ'], ['Ǳ', 'ǲ', 'ǳ']];

fn is_title_letter(c: char) -> bool {
    PAIRS.iter().any(|[_, title, _]| *title == c)
        || ('\u{1f88}'..='\u{1ffc}').contains(&c) && c.is_alphabetic() && !c.is_lowercase()
}

/// The character at the beginning of a word in a title.
fn title_letter(c: char) -> Result<String, Error> {
    if let Some([_, title, _]) = PAIRS.iter().find(|pair| pair.contains(&c)) {
        return Ok((*title).into());
    }
    match c {
        // Georgian letters are not capitalised in titles.
        '\u{10d0}'..='\u{10ff}' => Ok(c.into()),
        'ŉ' | '\u{1f80}'..='\u{1ffc}' if c.to_uppercase().count() > 1 => {
            Err(refused(format!("the title case of {c:?} is not supported")))
        }
        _ => {
            let mut capital = c.to_uppercase();
            Ok(capital.next().into_iter().chain(capital.flat_map(char::to_lowercase)).collect())
        }
    }
}

/// `str.title`: letters that follow a letter become lower case, all others become capitals.
pub(super) fn title(text: &str) -> Result<String, Error> {
    let (mut out, mut in_word) = (String::with_capacity(text.len()), false);
    for c in text.chars() {
        if in_word {
            out.extend(c.to_lowercase())
        } else {
            out.push_str(&title_letter(c)?)
        }
        in_word = c.is_lowercase() || c.is_uppercase() || is_title_letter(c);
    }
    Ok(out)
}

/// `str.capitalize`.
pub(super) fn capitalize(text: &str) -> Result<String, Error> {
    let mut rest = text.chars();
    let Some(first) = rest.next() else { return Ok(String::new()) };
    Ok(title_letter(first)? + &rest.as_str().to_lowercase())
}

/// `str.istitle`.
pub(super) fn is_title(text: &str) -> bool {
    let (mut found, mut in_word) = (false, false);
    for c in text.chars() {
        let is_capital = c.is_uppercase() || is_title_letter(c);
        if is_capital == in_word && (is_capital || c.is_lowercase()) {
            return false;
        }
        in_word = is_capital || c.is_lowercase();
        found |= in_word;
    }
    found
}
