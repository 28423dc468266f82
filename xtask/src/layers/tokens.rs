//! Rust source as words and punctuation, each with its line: enough to find the paths that a file names. Comments are
//! left out, as are items under `#[cfg(test)]` or `#[test]`. Knows nothing of modules.

/// One token and the line (from 1) on which it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    pub kind: Kind,
    pub line: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// An identifier or keyword, without `r#`.
    Word(String),
    /// `::`
    PathSep,
    /// Any other character.
    Mark(char),
    /// A string literal, raw or not, without its quotes.
    Text(String),
}

impl Token {
    pub fn is(&self, mark: char) -> bool {
        self.kind == Kind::Mark(mark)
    }

    pub fn word(&self) -> Option<&str> {
        match &self.kind {
            Kind::Word(word) => Some(word),
            _ => None,
        }
    }
}

/// The tokens of `source`, without comments.
pub fn tokens(source: &str) -> Vec<Token> {
    let chars: Vec<char> = source.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let (mut out, mut i, mut line) = (Vec::new(), 0, 1);
    while i < chars.len() {
        let (start, from_line) = (i, line);
        let kind = match at(i) {
            '/' if at(i + 1) == '/' => {
                i += chars[i..].iter().take_while(|&&c| c != '\n').count();
                None
            }
            '/' if at(i + 1) == '*' => {
                let mut depth = 0;
                loop {
                    match (at(i), at(i + 1)) {
                        ('/', '*') => (depth, i) = (depth + 1, i + 2),
                        ('*', '/') => (depth, i) = (depth - 1, i + 2),
                        _ => i += 1,
                    }
                    if depth == 0 || i >= chars.len() {
                        break;
                    }
                }
                None
            }
            '"' => {
                i += 1;
                while i < chars.len() && at(i) != '"' {
                    i += if at(i) == '\\' { 2 } else { 1 };
                }
                i += 1;
                Some(Kind::Text(chars[start + 1..(i - 1).min(chars.len())].iter().collect()))
            }
            // A character literal, unless it is a lifetime.
            '\'' if at(i + 1) == '\\' || at(i + 2) == '\'' => {
                i += if at(i + 1) == '\\' { 3 } else { 2 };
                i += chars[i.min(chars.len())..].iter().take_while(|&&c| c != '\'').count() + 1;
                Some(Kind::Mark('\''))
            }
            ':' if at(i + 1) == ':' => {
                i += 2;
                Some(Kind::PathSep)
            }
            c if c.is_alphanumeric() || c == '_' => {
                i += chars[i..].iter().take_while(|&&c| c.is_alphanumeric() || c == '_').count();
                let word: String = chars[start..i].iter().collect();
                match raw_string(&chars, i, &word) {
                    Some((text, end)) => {
                        i = end;
                        Some(Kind::Text(text))
                    }
                    // `r#name`: the name comes as the next word.
                    None if word == "r" && at(i) == '#' => {
                        i += 1;
                        None
                    }
                    None => Some(Kind::Word(word)),
                }
            }
            c => {
                i += 1;
                (!c.is_whitespace()).then_some(Kind::Mark(c))
            }
        };
        line += chars[start..i.min(chars.len())].iter().filter(|&&c| c == '\n').count();
        out.extend(kind.map(|kind| Token { kind, line: from_line }));
    }
    out
}

/// The raw string that begins with the prefix `word` ending before `chars[at]`, and the place after it.
fn raw_string(chars: &[char], at: usize, word: &str) -> Option<(String, usize)> {
    if !matches!(word, "r" | "br" | "cr") {
        return None;
    }
    let hashes = chars[at..].iter().take_while(|&&c| c == '#').count();
    let start = at + hashes + 1;
    if chars.get(start - 1) != Some(&'"') {
        return None;
    }
    let closes = |i: usize| chars[i] == '"' && chars[i + 1..].iter().take_while(|&&c| c == '#').count() >= hashes;
    let end = (start..chars.len()).find(|&i| closes(i)).unwrap_or(chars.len());
    Some((chars[start..end].iter().collect(), end + 1 + hashes))
}

/// `tokens` without the items that only tests are built with.
pub fn without_tests(tokens: &[Token]) -> Vec<Token> {
    let mut out = Vec::new();
    let mut i = 0;
    while i < tokens.len() {
        let end = attribute_end(tokens, i);
        match end {
            Some(end) if is_test(&tokens[i + 2..end - 1]) => i = item_end(tokens, end),
            Some(end) => {
                out.extend_from_slice(&tokens[i..end]);
                i = end;
            }
            None => {
                out.push(tokens[i].clone());
                i += 1;
            }
        }
    }
    out
}

/// The place after the attribute `#[…]` that begins at `i`, if one does.
fn attribute_end(tokens: &[Token], i: usize) -> Option<usize> {
    if !tokens[i].is('#') || !tokens.get(i + 1)?.is('[') {
        return None;
    }
    let mut depth = 0;
    for (j, token) in tokens.iter().enumerate().skip(i + 1) {
        depth += i32::from(token.is('[')) - i32::from(token.is(']'));
        if depth == 0 {
            return Some(j + 1);
        }
    }
    None
}

/// Whether the inside of an attribute is `test` or a `cfg` that needs `test`.
fn is_test(inside: &[Token]) -> bool {
    let words: Vec<&str> = inside.iter().filter_map(Token::word).collect();
    match words[..] {
        ["test"] | ["cfg", "test"] => true,
        ["cfg", "all", ref rest @ ..] => rest.contains(&"test") && !rest.contains(&"not"),
        _ => false,
    }
}

/// The place after the item that begins at `i`, further attributes included.
fn item_end(tokens: &[Token], mut i: usize) -> usize {
    while i < tokens.len() {
        match attribute_end(tokens, i) {
            Some(end) => i = end,
            None => break,
        }
    }
    // A `use` may have braces before its semicolon; any other item ends with the first of `;` and a closed brace.
    let is_use = tokens[i..].iter().take(5).any(|token| token.word() == Some("use"));
    let (mut braces, mut others) = (0, 0);
    while i < tokens.len() {
        let token = &tokens[i];
        braces += i32::from(token.is('{')) - i32::from(token.is('}'));
        others += i32::from(token.is('(') || token.is('[')) - i32::from(token.is(')') || token.is(']'));
        i += 1;
        if (braces, others) == (0, 0) && (token.is(';') || token.is('}') && !is_use) {
            break;
        }
    }
    i
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(source: &str) -> Vec<String> {
        without_tests(&tokens(source)).iter().filter_map(|t| t.word().map(str::to_owned)).collect()
    }

    #[test]
    fn comments_strings_and_characters_name_nothing() {
        let source = "a // b\n/* c /* d */ e */ \"f \\\" g\" r#\"h \" i\"# 'j' '\\'' 'k: r#type b\"l\"";
        assert_eq!(words(source), ["a", "k", "type", "b"]);
        assert_eq!(tokens("a\n\n\"x\ny\"\nb").last().unwrap().line, 5);
    }

    #[test]
    fn what_only_tests_see_is_left_out() {
        let source =
            "#[cfg(test)] use a::{b, c}; d #[test] fn e() { f[0]; } #[cfg(all(test, unix))] #[allow(g)] mod h; i
            #[cfg(test)] const J: [u8; 2] = [0; 2]; k #[cfg(feature = \"x\")] l #[cfg(not(test))] m";
        assert_eq!(words(source), ["d", "i", "k", "cfg", "feature", "l", "cfg", "not", "test", "m"]);
    }
}
