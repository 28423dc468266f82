//! The budget of a template. Templates come with models, from anywhere: one that builds without end must end with an
//! error. minijinja counts instructions (its fuel); this file counts what a single instruction can build or walk over.

use crate::{Error, Result};
use minijinja::machinery::{Token, ast, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Value, ValueKind};
use minijinja::{Error as Failure, ErrorKind};
use std::cell::Cell;

/// Bytes of text and elements of lists that one rendering may build or walk over, in all. A conversation of a million
/// tokens has 4 MB, and templates copy a message a few times.
pub(super) const BUDGET: usize = 64 << 20;
/// Elements of one value, with all that it holds.
const ELEMENTS: usize = 1 << 20;
/// Lists within lists.
pub(super) const DEPTH: usize = 200;
/// Namespaces of a rendering: they can hold one another.
const NAMESPACES: usize = 1000;
/// Instructions of one rendering, a hundred or so for each message.
const FUEL: u64 = 10_000_000;
/// Bytes of a template's text outside its expressions that one rendering may print.
const PRINTED: u64 = 1 << 30;
/// Bytes of a template.
const SOURCE: usize = 1 << 20;
/// Tokens of one expression: `1+1+1…` is as deep as it is long.
const TOKENS: usize = 2000;
/// Branches of a template: each `elif` is within the one before.
const BRANCHES: usize = 500;
/// Bytes or elements of what is computed when a template is read, such as `"=" * 40`.
const CONSTANT: f64 = 65_536.0;

thread_local! {
    /// What is left to the rendering on this thread: bytes and elements, namespaces.
    static LEFT: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// A rendering begins on this thread.
pub(super) fn begin() {
    LEFT.set((BUDGET, NAMESPACES));
}

pub(super) fn too_large(what: &str) -> Failure {
    Failure::new(ErrorKind::InvalidOperation, format!("{what}: a template may not build values that large"))
}

/// Counts bytes or elements that are about to be built or walked over.
pub(super) fn charge(amount: usize) -> std::result::Result<(), Failure> {
    let (left, namespaces) = LEFT.get();
    let rest = left.checked_sub(amount).ok_or_else(|| {
        LEFT.set((0, namespaces));
        too_large(&format!("more than {} MiB of text and lists in one rendering", BUDGET >> 20))
    })?;
    LEFT.set((rest, namespaces));
    Ok(())
}

/// Counts a namespace.
pub(super) fn charge_namespace() -> std::result::Result<(), Failure> {
    let (left, namespaces) = LEFT.get();
    let rest = namespaces.checked_sub(1).ok_or_else(|| too_large(&format!("more than {NAMESPACES} namespaces")))?;
    LEFT.set((left, rest));
    Ok(())
}

/// What a value holds, with all that its elements hold.
#[derive(Default)]
pub(super) struct Size {
    pub(super) elements: usize,
    /// Bytes of its strings, and a few for each element that is none.
    pub(super) text: usize,
}

/// The size of a value; an error if it is too large or too deep to be walked over.
pub(super) fn size(value: &Value) -> std::result::Result<Size, Failure> {
    let mut size = Size::default();
    add_size(value, 0, &mut size)?;
    Ok(size)
}

fn add_size(value: &Value, depth: usize, size: &mut Size) -> std::result::Result<(), Failure> {
    if depth > DEPTH {
        return Err(too_large(&format!("lists within lists, {DEPTH} deep")));
    }
    size.elements += 1;
    if size.elements > ELEMENTS {
        return Err(too_large(&format!("a value of more than {ELEMENTS} elements")));
    }
    size.text = size.text.saturating_add(value.as_str().map_or(8, |text| text.len() + 4));
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => value.try_iter()?.try_for_each(|item| add_size(&item, depth + 1, size)),
        ValueKind::Map => value.try_iter()?.try_for_each(|key| {
            add_size(&key, depth + 1, size)?;
            add_size(&value.get_item(&key)?, depth + 1, size)
        }),
        _ => Ok(()),
    }
}

/// The instructions that a rendering of this template may take.
pub(super) fn fuel(longest_literal: usize) -> u64 {
    FUEL.min(PRINTED / longest_literal.max(1) as u64)
}

/// Checks a template before it is compiled, and gives the length of its longest text outside expressions.
pub(super) fn check_source(name: &str, source: &str, syntax: &SyntaxConfig) -> Result<usize> {
    let refuse = |what: &str| Err(Error::Chat(format!("template `{name}`: {what}")));
    if source.len() > SOURCE {
        return refuse(&format!("{} bytes, more than {SOURCE}", source.len()));
    }
    let (mut longest, mut tokens, mut line, mut branches) = (0, 0, 0, 0);
    // What cannot be read as tokens is refused by the parser, which says why.
    for (token, span) in tokenize(source, false, syntax.clone()).map_while(std::result::Result::ok) {
        match token {
            Token::TemplateData(text) => longest = longest.max(text.len()),
            Token::VariableStart | Token::BlockStart => (tokens, line) = (0, span.start_line),
            Token::Ident("elif") => branches += 1,
            _ => tokens += 1,
        }
        if branches > BRANCHES {
            return refuse(&format!("more than {BRANCHES} branches (elif)"));
        }
        if tokens > TOKENS {
            return refuse(&format!("line {line}: an expression of more than {TOKENS} tokens"));
        }
    }
    Ok(longest)
}

/// Checks that what the compiler computes beforehand is small.
pub(super) fn check_constants(name: &str, tree: &ast::Stmt<'_>) -> Result<()> {
    let tree = serde_json::to_value(tree).map_err(|e| Error::Chat(format!("template `{name}`: {e}")))?;
    constant(&tree).map(drop).map_err(|size| {
        Error::Chat(format!("template `{name}`: a constant of {size} bytes or elements, more than {CONSTANT}"))
    })
}

/// A bound of a constant expression of the tree: its length if it is a text or a list, and its value if it is a number.
/// None if it is no constant; an error if one that is computed is too large. A node of the tree is its kind, and in
/// `inner` its fields and its place.
fn constant(node: &serde_json::Value) -> std::result::Result<Option<(f64, f64)>, f64> {
    use serde_json::Value as Json;
    let fields = match node {
        Json::Array(items) => {
            let bounds = items.iter().map(constant).collect::<std::result::Result<Vec<_>, f64>>()?;
            return Ok(bounds
                .into_iter()
                .map(|bound| bound.map(|(length, _)| length + 1.0))
                .sum::<Option<f64>>()
                .map(|n| (n, 0.0)));
        }
        Json::Object(fields) => fields,
        _ => return Ok(None),
    };
    let kind = node.get("expr").and_then(Json::as_str);
    let fields = match node.get("inner").and_then(|inner| inner.get(0)) {
        Some(Json::Object(inner)) => inner,
        _ => fields,
    };
    let mut bounds = std::collections::BTreeMap::new();
    for (name, field) in fields {
        bounds.insert(name.as_str(), constant(field)?);
    }
    let bound = |name: &str| bounds.get(name).copied().flatten();
    Ok(match kind {
        Some("Const") => Some(match &fields["value"] {
            Json::String(text) => (text.len() as f64, 0.0),
            Json::Number(n) => (0.0, n.as_f64().unwrap_or(f64::INFINITY).abs()),
            _ => (0.0, 1.0),
        }),
        Some("List" | "Tuple") => bound("items"),
        Some("BinOp") => match bound("left").zip(bound("right")) {
            Some(((a, x), (b, y))) => {
                let times = |length: f64, n: f64| if length == 0.0 { 0.0 } else { length * n.max(1.0) };
                let (length, value) = match fields["op"].as_str() {
                    Some("Mul") => (times(a, y) + times(b, x), x * y),
                    Some("Pow") => (0.0, libm::pow(x.max(2.0), y)),
                    // A quotient by something small is large.
                    Some("Div" | "FloorDiv") => (0.0, f64::INFINITY),
                    Some("Concat") => (a + b + 80.0, 0.0),
                    _ => (a + b, x + y),
                };
                if length > CONSTANT {
                    return Err(length);
                }
                Some((length, value))
            }
            None => None,
        },
        _ => None,
    })
}
