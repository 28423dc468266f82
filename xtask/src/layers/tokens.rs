//! Splits Rust source into words and punctuation with line numbers, which is enough to find the paths in a file. Items
//! under `#[cfg(test)]` or `#[test]` are left out.

use proc_macro2::{Delimiter, Spacing, Span, TokenStream, TokenTree};

/// One token and its line number, from 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    pub kind: Kind,
    pub line: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// An identifier or keyword, without `r#`.
    Word(String),
    /// The path separator `::`.
    PathSep,
    /// Any other character.
    Mark(char),
    /// A string literal, raw or not, without its quotes.
    Text(String),
    /// Any other literal.
    Literal,
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

/// The tokens of `source`, without comments. A doc comment becomes its equivalent attribute.
pub fn tokens(source: &str) -> Result<Vec<Token>, String> {
    let mut out = Vec::new();
    flatten(source.parse().map_err(|e: proc_macro2::LexError| e.to_string())?, &mut out);
    Ok(out)
}

fn flatten(stream: TokenStream, out: &mut Vec<Token>) {
    let token = |kind: Kind, span: Span| Token { kind, line: span.start().line };
    let mut trees = stream.into_iter().peekable();
    while let Some(tree) = trees.next() {
        let span = tree.span();
        match tree {
            TokenTree::Group(group) => {
                let marks = match group.delimiter() {
                    Delimiter::Parenthesis => Some(['(', ')']),
                    Delimiter::Brace => Some(['{', '}']),
                    Delimiter::Bracket => Some(['[', ']']),
                    Delimiter::None => None,
                };
                out.extend(marks.map(|[open, _]| token(Kind::Mark(open), group.span_open())));
                flatten(group.stream(), out);
                out.extend(marks.map(|[_, close]| token(Kind::Mark(close), group.span_close())));
            }
            TokenTree::Ident(name) => {
                out.push(token(Kind::Word(name.to_string().trim_start_matches("r#").to_owned()), span));
            }
            TokenTree::Punct(mark) => {
                let is_path = mark.as_char() == ':' && mark.spacing() == Spacing::Joint;
                let next = trees.next_if(|next| is_path && matches!(next, TokenTree::Punct(p) if p.as_char() == ':'));
                out.push(token(if next.is_some() { Kind::PathSep } else { Kind::Mark(mark.as_char()) }, span));
            }
            TokenTree::Literal(literal) => {
                let text = syn::parse_str::<syn::LitStr>(&literal.to_string());
                out.push(token(text.map_or(Kind::Literal, |text| Kind::Text(text.value())), span));
            }
        }
    }
}

/// The tokens without the items that are compiled only for tests.
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

/// The index after the attribute `#[…]` that begins at token `i`, if one does.
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

/// Whether the inside of an attribute is `test`, or a `cfg` that requires `test`.
fn is_test(inside: &[Token]) -> bool {
    let words: Vec<&str> = inside.iter().filter_map(Token::word).collect();
    match words[..] {
        ["test"] | ["cfg", "test"] => true,
        ["cfg", "all", ref rest @ ..] => rest.contains(&"test") && !rest.contains(&"not"),
        _ => false,
    }
}

/// The index after the item that begins at token `i`, including further attributes.
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
        without_tests(&tokens(source).unwrap()).iter().filter_map(|t| t.word().map(str::to_owned)).collect()
    }

    #[test]
    fn comments_strings_and_characters_name_nothing() {
        let source = "a // b\n/* c /* d */ e */ \"f \\\" g\" r#\"h \" i\"# 'j' '\\'' 'k: r#type b\"l\"";
        assert_eq!(words(source), ["a", "k", "type"]);
        assert_eq!(tokens("a\n\n\"x\ny\"\nb").unwrap().last().unwrap().line, 5);
    }

    #[test]
    fn what_only_tests_see_is_left_out() {
        let source =
            "#[cfg(test)] use a::{b, c}; d #[test] fn e() { f[0]; } #[cfg(all(test, unix))] #[allow(g)] mod h; i
            #[cfg(test)] const J: [u8; 2] = [0; 2]; k #[cfg(feature = \"x\")] l #[cfg(not(test))] m";
        assert_eq!(words(source), ["d", "i", "k", "cfg", "feature", "l", "cfg", "not", "test", "m"]);
    }
}
