//! Splits LaTeX, or the plain notation that models write instead, into tokens.

use super::super::number::vulgar_fraction;

/// A token of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// Digits with at most one decimal point.
    Number(String),
    /// The name of a LaTeX command (`frac` for `\frac`), or a word that is read as a command (`sqrt`).
    Command(String),
    /// The text inside `\text{…}`, or a word.
    Text(String),
    /// A variable, an operator, a bracket, `{` or `}`; in matrices also `&` and `\` (for the row separator `\\`).
    Char(char),
}

/// Unicode signs and the equivalent LaTeX commands.
const SIGNS: [(char, &str); 25] = [
    ('≈', "\\approx "),
    ('~', " "),
    ('×', "*"),
    ('·', "*"),
    ('⋅', "*"),
    ('∗', "*"),
    ('÷', "/"),
    ('−', "-"),
    ('–', "-"),
    ('π', "\\pi "),
    ('θ', "\\theta "),
    ('√', "\\sqrt "),
    ('∞', "\\infty "),
    ('≤', "\\le "),
    ('≥', "\\ge "),
    ('≠', "\\ne "),
    ('°', "^\\circ "),
    ('±', "\\pm "),
    ('∓', "\\mp "),
    ('∪', "\\cup "),
    ('∩', "\\cap "),
    ('∈', "\\in "),
    ('∅', "\\emptyset "),
    ('²', "^2 "),
    ('³', "^3 "),
];

/// LaTeX commands that change only the appearance of an answer, and are ignored.
const SPACING: [&str; 28] = [
    "\\left",
    "\\right",
    "\\bigl",
    "\\bigr",
    "\\Bigl",
    "\\Bigr",
    "\\big",
    "\\Big",
    "\\bigg",
    "\\Bigg",
    "\\biggl",
    "\\biggr",
    "\\Biggl",
    "\\Biggr",
    "\\boldsymbol",
    "\\underline",
    "\\displaystyle",
    "\\textstyle",
    "\\limits",
    "\\!",
    "\\,",
    "\\;",
    "\\:",
    "\\ ",
    "\\quad",
    "\\qquad",
    "\\(",
    "\\)",
];

/// Plain words that are read as LaTeX commands.
const WORDS: [&str; 24] = [
    "mod", "sqrt", "pi", "sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "exp", "arcsin", "arccos", "arctan",
    "theta", "infty", "cup", "sinh", "cosh", "tanh", "coth", "sech", "csch",
];

/// Names of functions that may be written upright, as in `\operatorname{lcm}(4, 6)`.
const UPRIGHT: [&str; 32] = [
    "max", "min", "gcd", "lcm", "sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "exp", "arcsin", "arccos",
    "arctan", "arcsec", "arccsc", "sinh", "cosh", "tanh", "coth", "sech", "csch", "arsinh", "arcosh", "artanh",
    "arcsinh", "arccosh", "arctanh", "lg", "mod",
];

/// The tokens of `text`. With `thousands`, a comma before exactly three digits is part of the number.
pub(super) fn tokens(text: &str, thousands: bool) -> Vec<Token> {
    let text = plain(text);
    let chars: Vec<char> = text.chars().collect();
    let mut tokens = Vec::new();
    let mut at = 0;
    // A comma inside brackets is a separator: (1,234) is a point.
    let mut brackets = 0usize;
    while let Some(&c) = chars.get(at) {
        let digit = |i: usize| chars.get(i).is_some_and(char::is_ascii_digit);
        let period = |at: usize| {
            ["\\overline", "\\bar"].iter().any(|over| chars[at..].iter().copied().take(over.len()).eq(over.chars()))
        };
        if c.is_ascii_digit() || c == '.' && (digit(at + 1) || period(at + 1)) {
            let mut number = String::new();
            let end = if thousands && brackets == 0 { thousands_end(&chars, at) } else { at };
            number.extend(chars[at..end].iter().filter(|c| **c != ','));
            at = end;
            while let Some(&c) = chars.get(at) {
                if !(c.is_ascii_digit() || c == '.' && !number.contains('.')) {
                    break;
                }
                number.push(c);
                at += 1;
            }
            if let Some((places, end)) =
                power_of_ten(&chars, at).filter(|_| thousands || !ambiguous(&chars, at, &number))
            {
                number = shifted(&number, places);
                at = end;
            }
            // A point at the end is removed, since "5." ends a sentence. It stays in "0.\\overline{3}", where the
            // digits continue.
            let continues = chars.get(at) == Some(&'\\');
            tokens.push(Token::Number(if continues { number } else { number.trim_end_matches('.').to_owned() }));
        } else if c == '\\' {
            let name: String = chars[at + 1..].iter().take_while(|c| c.is_ascii_alphabetic()).collect();
            at += 1 + name.len();
            match name.as_str() {
                "" => {
                    // Skips an escaped sign. A second backslash starts a new row of a matrix.
                    match chars.get(at) {
                        Some('{') => brackets += 1,
                        Some('}') => brackets = brackets.saturating_sub(1),
                        _ => {}
                    }
                    tokens.extend(chars.get(at).map(|&c| match c {
                        '{' | '}' | '%' | '$' | '|' => Token::Command(c.into()),
                        c => Token::Char(c),
                    }));
                    at += 1;
                }
                "text" | "textnormal" | "mbox" | "textbf" | "textit" | "mathrm" | "mathbf" | "mathit" | "textrm"
                | "emph" | "textsf" | "texttt" | "mathsf" | "mathtt" | "operatorname" => {
                    let (inside, end) = braced(&chars, at);
                    at = end;
                    let mut letters = inside.trim().chars();
                    let letter = letters.next().filter(|c| c.is_alphabetic() && letters.next().is_none());
                    // `\mathrm` may mark a unit, as in 5\,\mathrm{m}, or an upright symbol, as the e of e^2.
                    let symbol = match name.as_str() {
                        "mathrm" => super::units::unit(&inside).is_none(),
                        other => matches!(other, "mathbf" | "mathit" | "textbf" | "textit"),
                    };
                    if let Some(letter) = letter.filter(|_| symbol) {
                        tokens.push(Token::Char(letter));
                    } else if matches!(inside.trim(), "GCD" | "LCM") {
                        tokens.push(Token::Command(inside.trim().to_lowercase()));
                    } else if UPRIGHT.contains(&inside.trim()) {
                        tokens.push(Token::Command(inside.trim().into()));
                    } else if matches!(inside.trim(), "%" | "\\%") {
                        tokens.push(Token::Command("%".into()));
                    } else if inside.chars().any(|c| c.is_ascii_digit()) {
                        tokens.extend(self::tokens(&inside, thousands));
                    } else {
                        tokens.push(Token::Text(inside));
                    }
                }
                // The color precedes the colored text.
                "textcolor" | "color" => at = braced(&chars, at).1,
                "bar" => tokens.push(Token::Command("overline".into())),
                "dfrac" | "tfrac" | "cfrac" => tokens.push(Token::Command("frac".into())),
                "dbinom" | "tbinom" => tokens.push(Token::Command("binom".into())),
                "cdot" | "times" | "ast" => tokens.push(Token::Char('*')),
                "div" => tokens.push(Token::Char('/')),
                "lbrace" => tokens.push(Token::Command("{".into())),
                "rbrace" => tokens.push(Token::Command("}".into())),
                "lbrack" => tokens.push(Token::Char('[')),
                "rbrack" => tokens.push(Token::Char(']')),
                "lvert" | "rvert" | "mid" | "vert" => tokens.push(Token::Char('|')),
                "leq" | "leqslant" => tokens.push(Token::Command("le".into())),
                "geq" | "geqslant" => tokens.push(Token::Command("ge".into())),
                "neq" => tokens.push(Token::Command("ne".into())),
                "lt" => tokens.push(Token::Char('<')),
                "gt" => tokens.push(Token::Char('>')),
                "bmod" => tokens.push(Token::Command("mod".into())),
                "varnothing" => tokens.push(Token::Command("emptyset".into())),
                "degree" => tokens.extend([Token::Char('^'), Token::Command("circ".into())]),
                _ => tokens.push(Token::Command(name)),
            }
        } else if c.is_alphabetic() {
            let word: String = chars[at..].iter().take_while(|c| c.is_alphabetic()).collect();
            at += word.chars().count();
            match word.as_str() {
                // A function needs a bracket: in "x_{max}" the word is an index.
                "max" | "min" | "gcd" | "lcm" if chars.get(at) == Some(&'(') => tokens.push(Token::Command(word)),
                "inf" | "oo" | "infinity" => tokens.push(Token::Command("infty".into())),
                name if WORDS.contains(&name) => tokens.push(Token::Command(word)),
                "and" | "or" => tokens.push(Token::Text(word)),
                _ if ["yes", "no", "odd"].contains(&word.to_lowercase().as_str()) => tokens.push(Token::Text(word)),
                // A word of at least four letters is not a product of variables.
                _ if word.chars().count() >= 4 || super::units::unit(&word).is_some() && word.len() > 1 => {
                    tokens.push(Token::Text(word));
                }
                _ => tokens.extend(word.chars().map(Token::Char)),
            }
        } else {
            at += 1;
            match c {
                '(' | '[' => brackets += 1,
                ')' | ']' => brackets = brackets.saturating_sub(1),
                _ => {}
            }
            if !c.is_whitespace() {
                tokens.push(Token::Char(c));
            }
        }
    }
    tokens
}

/// The text without spacing commands, with `^` for `**`, and without LaTeX's thousands separators.
fn plain(text: &str) -> String {
    let text = text
        .replace("**", "^")
        .replace("{,}", "")
        .replace("{:}", ":")
        .replace(" !=", "\\ne ")
        .replace(",\\! ", "")
        .replace(",\\!", "");
    let mut text = without_thin_spaces(&text);
    for (sign, latex) in SIGNS {
        if text.contains(sign) {
            text = text.replace(sign, latex);
        }
    }
    if text.chars().any(|c| vulgar_fraction(c).is_some()) {
        let plain =
            |c: char| vulgar_fraction(c).map_or(c.to_string(), |(top, bottom)| format!("\\frac{{{top}}}{{{bottom}}}"));
        text = text.chars().map(plain).collect();
    }
    for spacing in SPACING {
        // `\leftarrow` must not match `\left`.
        let letters = spacing.ends_with(|c: char| c.is_ascii_alphabetic());
        while let Some(at) = text.match_indices(spacing).find_map(|(at, _)| {
            let after = text[at + spacing.len()..].chars().next();
            let escaped = text[..at].ends_with('\\');
            (!(escaped || letters && after.is_some_and(|c| c.is_ascii_alphabetic()))).then_some(at)
        }) {
            text.replace_range(at..at + spacing.len(), " ");
        }
    }
    // Removes the dollar signs around mathematics, but not those of prices.
    let mut before = ' ';
    text.retain(|c| {
        let keep = c != '$' || before == '\\';
        before = c;
        keep
    });
    text
}

/// The text with thin spaces removed from numbers: `12\,345` becomes `12345`.
fn without_thin_spaces(text: &str) -> String {
    let mut joined = String::new();
    let mut before = String::new();
    for (i, part) in text.split("\\,").enumerate() {
        let digits = |c: &char| c.is_ascii_digit();
        let group = part.chars().take_while(digits).count() == 3 && (1..=3).contains(&before.len());
        if i > 0 && !(group && before != "0") {
            joined.push_str("\\,");
        }
        joined.push_str(part);
        before = part.chars().rev().take_while(digits).collect();
    }
    joined
}

/// The end of a number that begins at `at`, with digits in groups of three; `at` if no such number exists.
fn thousands_end(chars: &[char], at: usize) -> usize {
    let digits = |from: usize| chars[from.min(chars.len())..].iter().take_while(|c| c.is_ascii_digit()).count();
    let mut end = at + digits(at);
    if !(1..=3).contains(&(end - at)) || chars[at] == '0' {
        return at;
    }
    let first = end;
    while chars.get(end) == Some(&',') && digits(end + 1) == 3 {
        end += 4;
    }
    if end > first && chars.get(end) != Some(&',') { end } else { at }
}

/// The exponent of ten written as `e-3` at position `at`, and the position after it.
fn power_of_ten(chars: &[char], at: usize) -> Option<(i32, usize)> {
    if !matches!(chars.get(at), Some('e' | 'E')) {
        return None;
    }
    let sign = usize::from(matches!(chars.get(at + 1), Some('+' | '-')));
    let digits: String = chars[at + 1 + sign..].iter().take_while(|c| c.is_ascii_digit()).collect();
    let end = at + 1 + sign + digits.len();
    let places: i32 = digits.parse().ok().filter(|places| *places <= 400)?;
    Some((if chars[at + 1] == '-' { -places } else { places }, end))
}

/// Whether an `e` after `number` may be Euler's number: `2e-3` may be 2e − 3, but `1e-3`, `2.5e-3`, `2E-3` and `2e5`
/// can only be powers of ten.
fn ambiguous(chars: &[char], at: usize, number: &str) -> bool {
    chars[at] == 'e' && !chars[at + 1].is_ascii_digit() && !number.contains('.') && number != "1"
}

/// The decimal `number` times ten to the power of `places`, as digits.
fn shifted(number: &str, places: i32) -> String {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let zeros = "0".repeat(places.unsigned_abs() as usize);
    if places < 0 {
        let digits = zeros + whole;
        let (whole, moved) = digits.split_at(digits.len() - places.unsigned_abs() as usize);
        return format!("{whole}.{moved}{fraction}");
    }
    let digits = fraction.to_owned() + &zeros;
    let (moved, fraction) = digits.split_at(places as usize);
    format!("{whole}{moved}.{fraction}")
}

/// The text inside the braces that open at `at` (after spaces), and the position after the braces.
fn braced(chars: &[char], at: usize) -> (String, usize) {
    let start = at + chars[at..].iter().take_while(|c| c.is_whitespace()).count();
    if chars.get(start) != Some(&'{') {
        return (String::new(), at);
    }
    let mut depth = 0usize;
    for (i, &c) in chars.iter().enumerate().skip(start) {
        depth = match c {
            '{' => depth + 1,
            '}' => depth - 1,
            _ => depth,
        };
        if depth == 0 {
            return (chars[start + 1..i].iter().collect(), i + 1);
        }
    }
    (chars[start + 1..].iter().collect(), chars.len())
}
