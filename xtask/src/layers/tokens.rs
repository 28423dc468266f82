//! Removes items that are compiled only for tests: items under `#[cfg(test)]` or `#[test]`.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

pub fn without_tests(stream: TokenStream) -> TokenStream {
    let mut out: Vec<TokenTree> = Vec::new();
    let mut trees = stream.into_iter().peekable();
    while let Some(tree) = trees.next() {
        let is_hash = matches!(&tree, TokenTree::Punct(mark) if mark.as_char() == '#');
        match tree {
            _ if is_hash && matches!(trees.peek(), Some(TokenTree::Group(group)) if is_test(group)) => {
                trees.next();
                skip_item(&mut trees);
                // Removes the item's preceding attributes, such as documentation, too.
                while let [.., TokenTree::Punct(mark), TokenTree::Group(_)] = &out[..]
                    && mark.as_char() == '#'
                {
                    out.truncate(out.len() - 2);
                }
            }
            TokenTree::Group(group) => {
                let mut inner = Group::new(group.delimiter(), without_tests(group.stream()));
                inner.set_span(group.span());
                out.push(inner.into());
            }
            other => out.push(other),
        }
    }
    out.into_iter().collect()
}

/// Whether an attribute is `test`, or a `cfg` that requires `test`.
fn is_test(attribute: &Group) -> bool {
    let words = words(attribute.stream());
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        _ if attribute.delimiter() != Delimiter::Bracket => false,
        ["test"] | ["cfg", "test"] => true,
        ["cfg", "all", ref rest @ ..] => rest.contains(&"test") && !rest.contains(&"not"),
        _ => false,
    }
}

fn words(stream: TokenStream) -> Vec<String> {
    let of = |tree| match tree {
        TokenTree::Ident(word) => vec![word.to_string()],
        TokenTree::Group(group) => words(group.stream()),
        _ => Vec::new(),
    };
    stream.into_iter().flat_map(of).collect()
}

/// Words that start an item or statement, which a comma does not end.
const WITH_COMMAS: [&str; 11] =
    ["const", "enum", "fn", "impl", "let", "mod", "static", "struct", "trait", "type", "use"];

/// Skips further attributes and the item. A `use` may have braces before its semicolon. Any other item ends with the
/// first `;` or brace group; a field, a variant or a match arm ends with a comma.
fn skip_item(trees: &mut impl Iterator<Item = TokenTree>) {
    let mut begins_with = None;
    for tree in trees {
        match tree {
            TokenTree::Ident(word) if begins_with.is_none() => {
                begins_with = WITH_COMMAS.into_iter().find(|known| word == known);
            }
            TokenTree::Punct(mark) if mark.as_char() == ';' => return,
            TokenTree::Punct(mark) if mark.as_char() == ',' && begins_with.is_none() => return,
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace && begins_with != Some("use") => return,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_only_for_tests_are_removed() {
        let source =
            "#[cfg(test)] use a::{b, c}; d #[test] fn e() { f[0]; } #[cfg(all(test, unix))] #[allow(g)] mod h; i
            #[cfg(test)] const J: [u8; 2] = [0; 2]; k #[cfg(feature = \"x\")] l #[cfg(not(test))] m
            enum N { #[cfg(test)] O, P, #[doc = \"\"] #[cfg(test)] V } #[test] fn q<R, S>() -> impl T + use<R> {} u";
        let left = words(without_tests(source.parse().unwrap()));
        assert_eq!(left, ["d", "i", "k", "cfg", "feature", "l", "cfg", "not", "test", "m", "enum", "N", "P", "u"]);
    }
}
