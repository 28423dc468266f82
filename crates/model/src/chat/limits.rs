//! Limits on chat templates. Templates are downloaded with models, so a template that would build unlimited values must
//! fail with an error. minijinja limits the number of instructions (its fuel); this module limits how much a single
//! instruction can build or read.

use crate::{Error, Result};
use minijinja::machinery::{Token, ast, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Value, ValueKind};
use minijinja::{Error as Failure, ErrorKind};
use std::cell::Cell;

/// Budget of one rendering: bytes of text and elements of lists that it may build or read. A conversation of a million
/// tokens is about 4 MB, and templates copy a message only a few times.
pub(super) const BUDGET: usize = 64 << 20;
/// Maximum number of elements of one value, nested ones included.
const ELEMENTS: usize = 1 << 20;
/// Maximum nesting depth of lists.
pub(super) const DEPTH: usize = 200;
/// Maximum number of `namespace` objects in one rendering. They are limited because they can contain one another.
const NAMESPACES: usize = 1000;
/// Maximum number of instructions in one rendering; a message takes about a hundred.
const FUEL: u64 = 10_000_000;
/// Maximum number of bytes of literal text (outside expressions) that one rendering may print.
const PRINTED: u64 = 1 << 30;
/// Maximum size of a template's source, in bytes.
const SOURCE: usize = 1 << 20;
/// Maximum number of tokens in one expression. The syntax tree of `1+1+1…` is as deep as the expression is long.
const TOKENS: usize = 2000;
/// Maximum number of `elif` branches in a template. Each is nested in the one before.
const BRANCHES: usize = 500;
/// Maximum number of bytes or elements of a constant that the compiler computes, such as `"=" * 40`.
const CONSTANT: f64 = 65_536.0;

thread_local! {
    /// The remaining budget of the current rendering on this thread: bytes and elements, and namespaces.
    static LEFT: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Resets the budget at the start of a rendering on this thread.
pub(super) fn begin() {
    LEFT.set((BUDGET, NAMESPACES));
}

pub(super) fn too_large(what: &str) -> Failure {
    Failure::new(ErrorKind::InvalidOperation, format!("{what}: templates must not build larger values"))
}

/// Subtracts bytes or elements from the budget before they are built or read; fails if the budget is exhausted.
pub(super) fn charge(amount: usize) -> std::result::Result<(), Failure> {
    let (left, namespaces) = LEFT.get();
    let rest = left.checked_sub(amount).ok_or_else(|| {
        LEFT.set((0, namespaces));
        too_large(&format!("more than {} MiB of strings and lists in one rendering", BUDGET >> 20))
    })?;
    LEFT.set((rest, namespaces));
    Ok(())
}

/// Subtracts one namespace from the budget; fails if none is left.
pub(super) fn charge_namespace() -> std::result::Result<(), Failure> {
    let (left, namespaces) = LEFT.get();
    let rest = namespaces.checked_sub(1).ok_or_else(|| too_large(&format!("more than {NAMESPACES} namespaces")))?;
    LEFT.set((left, rest));
    Ok(())
}

/// Size of a value, nested values included.
#[derive(Default)]
pub(super) struct Size {
    pub(super) elements: usize,
    /// Bytes of the value's strings, and 8 for each element that is not a string.
    pub(super) text: usize,
}

/// The size of a value; fails if the value is too large or nested too deeply.
pub(super) fn size(value: &Value) -> std::result::Result<Size, Failure> {
    let mut size = Size::default();
    add_size(value, 0, &mut size)?;
    Ok(size)
}

fn add_size(value: &Value, depth: usize, size: &mut Size) -> std::result::Result<(), Failure> {
    if depth > DEPTH {
        return Err(too_large(&format!("lists nested {DEPTH} deep")));
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

/// The maximum number of instructions in one rendering, given the length of the template's longest literal text.
pub(super) fn fuel(longest_literal: usize) -> u64 {
    FUEL.min(PRINTED / longest_literal.max(1) as u64)
}

/// Checks a template's source before it is compiled, and returns the length of its longest literal text.
pub(super) fn check_source(name: &str, source: &str, syntax: &SyntaxConfig) -> Result<usize> {
    let refuse = |what: &str| Err(Error::Chat(format!("template `{name}`: {what}")));
    if source.len() > SOURCE {
        return refuse(&format!("the source has {} bytes, more than {SOURCE}", source.len()));
    }
    let (mut longest, mut tokens, mut line, mut branches) = (0, 0, 0, 0);
    // The parser reports source that cannot be tokenized.
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
            return refuse(&format!("line {line}: the expression has more than {TOKENS} tokens"));
        }
    }
    Ok(longest)
}

/// Checks that the constants computed by the compiler are small.
pub(super) fn check_constants(name: &str, tree: &ast::Stmt<'_>) -> Result<()> {
    let tree = serde_json::to_value(tree).map_err(|e| Error::Chat(format!("template `{name}`: {e}")))?;
    constant(&tree).map(drop).map_err(|size| {
        Error::Chat(format!("template `{name}`: a constant of {size} bytes or elements, more than {CONSTANT}"))
    })
}

/// Upper bounds for a constant expression of the syntax tree: its length if it is a string or a list, and its value if
/// it is a number. `None` if the expression is not constant. Fails if a computed constant is too large. In a node of
/// the tree, `expr` contains the kind, and `inner` contains the fields and the location.
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
                    // Division by a small number gives a large number.
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
