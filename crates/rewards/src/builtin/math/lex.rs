//! LaTeX, or what a model writes in its place, to tokens. Knows no grammar.

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// Digits with at most one point.
    Number(String),
    /// A name after a backslash (`frac`), or one that is read as if it had a backslash (`sqrt`).
    Command(String),
    /// The inside of `\text{…}`, or a word.
    Text(String),
    /// A variable, an operator, a bracket, `{` or `}`; `&` and `\` (a new row) in matrices.
    Char(char),
}

/// Unicode's signs, as the LaTeX that says the same.
const SIGNS: [(char, &str); 26] = [
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
    ('½', "\\frac{1}{2}"),
    ('¼', "\\frac{1}{4}"),
    ('¾', "\\frac{3}{4}"),
];

/// What changes how an answer looks, and nothing else.
const SPACING: [&str; 18] = [
    "\\left",
    "\\right",
    "\\bigl",
    "\\bigr",
    "\\Bigl",
    "\\Bigr",
    "\\big",
    "\\Big",
    "\\displaystyle",
    "\\limits",
    "\\!",
    "\\,",
    "\\;",
    "\\:",
    "\\ ",
    "\\quad",
    "\\(",
    "\\)",
];

/// Words that stand for a command.
const WORDS: [&str; 17] = [
    "sqrt", "pi", "sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "exp", "arcsin", "arccos", "arctan", "theta",
    "infty", "cup",
];

/// The tokens of `text`. `thousands`: a comma before exactly three digits belongs to the number.
pub(super) fn tokens(text: &str, thousands: bool) -> Vec<Token> {
    let text = plain(text);
    let chars: Vec<char> = text.chars().collect();
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(&c) = chars.get(at) {
        let digit = |i: usize| chars.get(i).is_some_and(char::is_ascii_digit);
        if c.is_ascii_digit() || c == '.' && digit(at + 1) {
            let mut number = String::new();
            let end = if thousands { thousands_end(&chars, at) } else { at };
            number.extend(chars[at..end].iter().filter(|c| **c != ','));
            at = end;
            while let Some(&c) = chars.get(at) {
                if !(c.is_ascii_digit() || c == '.' && !number.contains('.')) {
                    break;
                }
                number.push(c);
                at += 1;
            }
            // "5." ends a sentence, "0.\\overline{3}" goes on.
            let goes_on = chars.get(at) == Some(&'\\');
            tokens.push(Token::Number(if goes_on { number } else { number.trim_end_matches('.').to_owned() }));
        } else if c == '\\' {
            let name: String = chars[at + 1..].iter().take_while(|c| c.is_ascii_alphabetic()).collect();
            at += 1 + name.len();
            match name.as_str() {
                "" => {
                    // An escaped sign; a second backslash is a matrix's new row.
                    tokens.extend(chars.get(at).map(|&c| match c {
                        '{' | '}' | '%' | '$' | '|' => Token::Command(c.into()),
                        c => Token::Char(c),
                    }));
                    at += 1;
                }
                "text" | "mbox" | "textbf" | "textit" | "mathrm" | "mathbf" | "mathit" | "textrm" | "operatorname" => {
                    let (inside, end) = braced(&chars, at);
                    at = end;
                    if inside.chars().any(|c| c.is_ascii_digit()) {
                        tokens.extend(self::tokens(&inside, thousands));
                    } else {
                        tokens.push(Token::Text(inside));
                    }
                }
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
                "varnothing" => tokens.push(Token::Command("emptyset".into())),
                "degree" => tokens.extend([Token::Char('^'), Token::Command("circ".into())]),
                _ => tokens.push(Token::Command(name)),
            }
        } else if c.is_alphabetic() {
            let word: String = chars[at..].iter().take_while(|c| c.is_alphabetic()).collect();
            at += word.chars().count();
            match word.as_str() {
                "inf" | "oo" | "infinity" => tokens.push(Token::Command("infty".into())),
                name if WORDS.contains(&name) => tokens.push(Token::Command(word)),
                "and" | "or" => tokens.push(Token::Text(word)),
                // Of four letters and more, it is no product of variables.
                _ if word.chars().count() >= 4 || super::units::unit(&word).is_some() && word.len() > 1 => {
                    tokens.push(Token::Text(word));
                }
                _ => tokens.extend(word.chars().map(Token::Char)),
            }
        } else {
            at += 1;
            if !c.is_whitespace() {
                tokens.push(Token::Char(c));
            }
        }
    }
    tokens
}

/// Without spacing commands, with `^` for `**`, and with thousands that LaTeX separates joined.
fn plain(text: &str) -> String {
    let text = text.replace("**", "^").replace("{,}", "").replace(",\\! ", "").replace(",\\!", "");
    let mut text = without_thin_spaces(&text);
    for (sign, latex) in SIGNS {
        if text.contains(sign) {
            text = text.replace(sign, latex);
        }
    }
    for spacing in SPACING {
        // `\leftarrow` is no `\left`.
        let letters = spacing.ends_with(|c: char| c.is_ascii_alphabetic());
        while let Some(at) = text.match_indices(spacing).find_map(|(at, _)| {
            let after = text[at + spacing.len()..].chars().next();
            let escaped = text[..at].ends_with('\\');
            (!(escaped || letters && after.is_some_and(|c| c.is_ascii_alphabetic()))).then_some(at)
        }) {
            text.replace_range(at..at + spacing.len(), " ");
        }
    }
    // Dollars around mathematics, not those of prices.
    let mut before = ' ';
    text.retain(|c| {
        let keep = c != '$' || before == '\\';
        before = c;
        keep
    });
    text
}

/// `12\,345` as one number.
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

/// Where a number of digits in groups of three ends that begins at `at`; `at` if there is none.
fn thousands_end(chars: &[char], at: usize) -> usize {
    let digits = |from: usize| chars[from.min(chars.len())..].iter().take_while(|c| c.is_ascii_digit()).count();
    let mut end = at + digits(at);
    if !(1..=3).contains(&(end - at)) {
        return at;
    }
    let first = end;
    while chars.get(end) == Some(&',') && digits(end + 1) == 3 {
        end += 4;
    }
    if end > first && chars.get(end) != Some(&',') { end } else { at }
}

/// What stands in the braces that open at `at`, spaces before them apart, and where they end.
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
