//! Lists every change that the mutation operators below can make to a source file, by syntax alone. The compiler then
//! rejects changes that do not type-check.
//!
//! | operator | changes |
//! |---|---|
//! | comparison | `<` and `<=`, `>` and `>=`, `==` and `!=` |
//! | arithmetic | `+` and `-`, `*` and `/`, `%` to `*`, `&` and `\|`, `^` to `\|`, `<<` and `>>`, the same with `=` |
//! | order | operands of `-` and `/`, neighbouring arguments |
//! | bound | `x + 1` and `x - 1` to `x`; an end of a range by one |
//! | logic | `&&` and `\|\|`, `!x` to `x`; a condition of `if`, `while` or a match guard negated |
//! | sign | `-x` to `x` |
//! | constant | integers by one, floats doubled, 0.0 and 1.0, `true` and `false` |
//! | method | min and max, any and all, first and last, `is_some` and `is_none`, … ([`METHODS`]) |
//! | statement | an expression statement dropped, its `?` dropped |
//! | result | a function returns at once: nothing, a default, `true`, `false` |
//!
//! Never changed: strings and characters, patterns, types, attributes, constants and other compile-time expressions,
//! macro definitions, arguments of macros that are not in [`MACROS`], and code that is not compiled here
//! (`#[cfg(not(…))]`) or only in tests.

use super::list::Change;
use std::ops::Range;
use syn::parse::{ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Expr, Lit, Pat, ReturnType, Stmt, Token, UnOp};

/// Pairs of methods with the same type, which are exchanged.
const METHODS: [(&str, &str); 11] = [
    ("min", "max"),
    ("any", "all"),
    ("first", "last"),
    ("is_some", "is_none"),
    ("is_ok", "is_err"),
    ("is_some_and", "is_none_or"),
    ("floor", "ceil"),
    ("find", "rfind"),
    ("position", "rposition"),
    ("starts_with", "ends_with"),
    ("trim_start", "trim_end"),
];

/// Macros whose arguments are expressions.
const MACROS: [&str; 18] = [
    "anyhow",
    "assert",
    "assert_eq",
    "assert_ne",
    "bad",
    "bad_input",
    "bail",
    "ensure",
    "eprint",
    "eprintln",
    "format",
    "panic",
    "print",
    "println",
    "unreachable",
    "vec",
    "write",
    "writeln",
];

/// A possible mutant: a change of the text in a byte range of a file.
pub struct Candidate {
    pub range: Range<usize>,
    pub change: Change,
    /// The function and the change, in a few words.
    pub what: String,
}

/// A module in a file of its own: its name, and the value of its `#[path]` attribute.
pub type Submodule = (String, Option<String>);

/// The possible mutants of a file, and the submodules that it declares.
pub fn read(source: &str) -> Result<(Vec<Candidate>, Vec<Submodule>), syn::Error> {
    let file = syn::parse_file(source)?;
    let mut reader = Reader { source, functions: Vec::new(), found: Vec::new(), modules: Vec::new() };
    reader.visit_file(&file);
    Ok((reader.found, reader.modules))
}

struct Reader<'a> {
    source: &'a str,
    functions: Vec<String>,
    found: Vec<Candidate>,
    modules: Vec<Submodule>,
}

impl<'a> Reader<'a> {
    fn text(&self, node: &impl Spanned) -> &'a str {
        &self.source[node.span().byte_range()]
    }

    fn add(&mut self, range: Range<usize>, change: Change) {
        let from = short(&self.source[range.clone()]);
        let what = match &change {
            Change::Dropped => format!("without {from}"),
            Change::Becomes(to) => format!("{from} → {}", short(to)),
            Change::Before(statement) => format!("at once {statement}"),
        };
        let function = self.functions.last().map_or("", String::as_str);
        self.found.push(Candidate { range, change, what: format!("{function}: {what}") });
    }

    fn becomes(&mut self, node: &impl Spanned, to: String) {
        self.add(node.span().byte_range(), Change::Becomes(to));
    }

    fn function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        if signature.constness.is_some() {
            return;
        }
        self.functions.push(signature.ident.to_string());
        if let Some(first) = block.stmts.first() {
            let start = first.span().byte_range().start;
            for result in results(&signature.output, self.source) {
                self.add(start..start, Change::Before(format!("return {result};").replace(" ;", ";")));
            }
        }
        self.visit_block(block);
        self.functions.pop();
    }

    fn binary(&mut self, node: &syn::ExprBinary) {
        let (left, right) = (self.text(&node.left), self.text(&node.right));
        let other = match node.op {
            BinOp::Lt(_) => "<=",
            BinOp::Le(_) => "<",
            BinOp::Gt(_) => ">=",
            BinOp::Ge(_) => ">",
            BinOp::Eq(_) => "!=",
            BinOp::Ne(_) => "==",
            BinOp::Add(_) => "-",
            BinOp::Sub(_) => "+",
            BinOp::Mul(_) => "/",
            BinOp::Div(_) | BinOp::Rem(_) => "*",
            BinOp::And(_) => "||",
            BinOp::Or(_) => "&&",
            BinOp::BitAnd(_) | BinOp::BitXor(_) => "|",
            BinOp::BitOr(_) => "&",
            BinOp::Shl(_) => ">>",
            BinOp::Shr(_) => "<<",
            BinOp::AddAssign(_) => "-=",
            BinOp::SubAssign(_) => "+=",
            BinOp::MulAssign(_) => "/=",
            BinOp::DivAssign(_) | BinOp::RemAssign(_) => "*=",
            BinOp::BitAndAssign(_) | BinOp::BitXorAssign(_) => "|=",
            BinOp::BitOrAssign(_) => "&=",
            BinOp::ShlAssign(_) => ">>=",
            BinOp::ShrAssign(_) => "<<=",
            _ => return,
        };
        let is_assignment = other.ends_with('=') && !matches!(other, "<=" | ">=" | "!=" | "==");
        self.becomes(node, if is_assignment { format!("{left} {other} {right}") } else { joined(left, other, right) });
        match node.op {
            BinOp::Add(_) | BinOp::Sub(_) if right == "1" => self.becomes(node, left.to_owned()),
            BinOp::Sub(_) => self.becomes(node, joined(right, "-", left)),
            BinOp::Div(_) => self.becomes(node, joined(right, "/", left)),
            _ => {}
        }
    }

    fn condition(&mut self, condition: &Expr) {
        match condition {
            Expr::Let(_) => {}
            Expr::Binary(chain) if has_let(condition) => {
                self.condition(&chain.left);
                self.condition(&chain.right);
            }
            _ => self.becomes(condition, format!("!({})", self.text(condition))),
        }
    }

    fn literal(&mut self, literal: &syn::ExprLit) {
        match &literal.lit {
            Lit::Int(number) => {
                let Ok(value) = number.base10_parse::<u32>() else { return };
                self.becomes(literal, format!("{}{}", value.saturating_add(1), number.suffix()));
                if value > 0 {
                    self.becomes(literal, format!("{}{}", value - 1, number.suffix()));
                }
            }
            Lit::Float(number) => {
                let other = match number.base10_parse::<f64>() {
                    Ok(0.0) => format!("1.0{}", number.suffix()),
                    Ok(1.0) => format!("0.0{}", number.suffix()),
                    _ => format!("2.0 * {number}"),
                };
                self.becomes(literal, other);
            }
            Lit::Bool(value) => self.becomes(literal, (!value.value).to_string()),
            _ => {}
        }
    }

    /// Adds mutants of a call with two arguments exchanged.
    fn swapped(&mut self, call: &impl Spanned, arguments: &Punctuated<Expr, Token![,]>) {
        let whole = call.span().byte_range();
        for (a, b) in arguments.iter().zip(arguments.iter().skip(1)) {
            let (first, second) = (a.span().byte_range(), b.span().byte_range());
            if self.text(a) != self.text(b) {
                let parts = [
                    &self.source[whole.start..first.start],
                    self.text(b),
                    &self.source[first.end..second.start],
                    self.text(a),
                    &self.source[second.end..whole.end],
                ];
                self.add(whole.clone(), Change::Becomes(parts.concat()));
            }
        }
    }

    fn method(&mut self, call: &syn::ExprMethodCall) {
        self.swapped(call, &call.args);
        let (whole, name) = (call.span().byte_range(), call.method.span().byte_range());
        let others = METHODS.iter().flat_map(|&(a, b)| [(a, b), (b, a)]);
        for (_, other) in others.filter(|(one, _)| call.method == one) {
            let text = [&self.source[whole.start..name.start], other, &self.source[name.end..whole.end]].concat();
            self.add(whole.clone(), Change::Becomes(text));
        }
    }

    fn ends(&mut self, range: &syn::ExprRange) {
        let is_literal = |end: &Expr| matches!(end, Expr::Lit(_));
        if let Some(start) = range.start.as_deref().filter(|start| !is_literal(start)) {
            self.becomes(start, joined(self.text(start), "+", "1"));
        }
        if let Some(end) = range.end.as_deref().filter(|end| !is_literal(end)) {
            self.becomes(end, joined(self.text(end), "-", "1"));
            self.becomes(end, joined(self.text(end), "+", "1"));
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        use syn::Item;
        match item {
            Item::Fn(node) if is_compiled(&node.attrs) => self.function(&node.sig, &node.block),
            Item::Impl(node) if is_compiled(&node.attrs) => visit::visit_item_impl(self, node),
            Item::Trait(node) if is_compiled(&node.attrs) => visit::visit_item_trait(self, node),
            Item::Mod(node) if is_compiled(&node.attrs) => match &node.content {
                Some(_) => visit::visit_item_mod(self, node),
                None => self.modules.push((node.ident.to_string(), path_attribute(&node.attrs))),
            },
            // Types, constants, imports, macros.
            _ => {}
        }
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        if let syn::ImplItem::Fn(node) = item
            && is_compiled(&node.attrs)
        {
            self.function(&node.sig, &node.block);
        }
    }

    fn visit_trait_item(&mut self, item: &'ast syn::TraitItem) {
        if let syn::TraitItem::Fn(syn::TraitItemFn { attrs, sig, default: Some(block), .. }) = item
            && is_compiled(attrs)
        {
            self.function(sig, block);
        }
    }

    fn visit_stmt(&mut self, statement: &'ast Stmt) {
        let attributes: &[syn::Attribute] = match statement {
            Stmt::Local(local) => &local.attrs,
            Stmt::Macro(node) => &node.attrs,
            Stmt::Expr(Expr::Block(node), _) => &node.attrs,
            Stmt::Expr(Expr::If(node), _) => &node.attrs,
            Stmt::Expr(Expr::Return(node), _) => &node.attrs,
            Stmt::Expr(Expr::Unsafe(node), _) => &node.attrs,
            _ => &[],
        };
        if !is_compiled(attributes) {
            return;
        }
        let is_dropped = match statement {
            Stmt::Expr(node, Some(_)) => is_effect(node),
            Stmt::Macro(node) => node.mac.path.get_ident().is_some_and(|name| MACROS.iter().any(|m| name == m)),
            _ => false,
        };
        if is_dropped {
            self.add(statement.span().byte_range(), Change::Dropped);
        }
        if let Stmt::Expr(Expr::Try(node), Some(_)) = statement {
            self.becomes(node, format!("{{ let _ = {}; }}", self.text(&node.expr)));
        }
        visit::visit_stmt(self, statement);
    }

    fn visit_expr(&mut self, node: &'ast Expr) {
        match node {
            Expr::Binary(binary) if !has_let(node) => self.binary(binary),
            Expr::Unary(syn::ExprUnary { op: UnOp::Neg(_) | UnOp::Not(_), expr, .. }) => {
                self.becomes(node, self.text(expr).to_owned());
            }
            Expr::If(node) => self.condition(&node.cond),
            Expr::While(node) => self.condition(&node.cond),
            Expr::Lit(literal) => self.literal(literal),
            Expr::Range(range) => self.ends(range),
            Expr::Call(call) => self.swapped(call, &call.args),
            Expr::MethodCall(call) => self.method(call),
            // Its length is a constant.
            Expr::Repeat(array) => return self.visit_expr(&array.expr),
            Expr::Const(_) => return,
            _ => {}
        }
        visit::visit_expr(self, node);
    }

    fn visit_macro(&mut self, node: &'ast syn::Macro) {
        let Some(name) = node.path.segments.last().map(|segment| segment.ident.to_string()) else { return };
        if name == "matches" {
            let first = |input: ParseStream<'_>| {
                let first: Expr = input.parse()?;
                input.parse::<proc_macro2::TokenStream>().map(|_| first)
            };
            if let Ok(first) = first.parse2(node.tokens.clone()) {
                self.visit_expr(&first);
            }
        } else if MACROS.contains(&name.as_str()) {
            let arguments = Punctuated::<Expr, Token![,]>::parse_terminated;
            for argument in arguments.parse2(node.tokens.clone()).into_iter().flatten() {
                match &argument {
                    // `name = value`
                    Expr::Assign(named) => self.visit_expr(&named.right),
                    _ => self.visit_expr(&argument),
                }
            }
        }
    }

    fn visit_pat(&mut self, pattern: &'ast Pat) {
        if let Pat::Guard(guarded) = pattern {
            self.condition(&guarded.guard);
            self.visit_expr(&guarded.guard);
        }
    }

    fn visit_type(&mut self, _: &'ast syn::Type) {}
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
    fn visit_path(&mut self, _: &'ast syn::Path) {}
    fn visit_angle_bracketed_generic_arguments(&mut self, _: &'ast syn::AngleBracketedGenericArguments) {}
    fn visit_generics(&mut self, _: &'ast syn::Generics) {}
}

/// The values that a function with this return type can return at once, as source text.
fn results(output: &ReturnType, source: &str) -> Vec<String> {
    let ReturnType::Type(_, result) = output else { return vec![String::new()] };
    let text = &source[result.span().byte_range()];
    let name = text.split(['<', ' ']).next().unwrap_or_default().rsplit("::").next().unwrap_or_default();
    let result = match (name, text) {
        ("bool", _) => return vec!["true".to_owned(), "false".to_owned()],
        ("Result", _) if text.contains("Result<bool") => return vec!["Ok(true)".to_owned(), "Ok(false)".to_owned()],
        ("Result", _) => "Ok(Default::default())",
        ("Option", _) => "None",
        (_, "&str" | "&'static str") => "\"\"",
        ("impl" | "!" | "Self", _) => return Vec::new(),
        _ if text.starts_with("&[") => "&[]",
        _ if text.starts_with('&') => return Vec::new(),
        _ => "Default::default()",
    };
    vec![result.to_owned()]
}

/// Whether an expression is evaluated for its effect, not for its value.
fn is_effect(node: &Expr) -> bool {
    match node {
        Expr::Assign(_) | Expr::Call(_) | Expr::MethodCall(_) => true,
        Expr::Return(_) | Expr::Break(_) | Expr::Continue(_) => true,
        Expr::Try(node) => is_effect(&node.expr),
        Expr::Binary(node) => {
            use BinOp::{AddAssign, DivAssign, MulAssign, RemAssign, SubAssign};
            use BinOp::{BitAndAssign, BitOrAssign, BitXorAssign, ShlAssign, ShrAssign};
            matches!(node.op, AddAssign(_) | SubAssign(_) | MulAssign(_) | DivAssign(_) | RemAssign(_))
                || matches!(node.op, BitAndAssign(_) | BitOrAssign(_) | BitXorAssign(_) | ShlAssign(_) | ShrAssign(_))
        }
        _ => false,
    }
}

/// Whether a chain of `&&` contains a `let`, and so cannot be used elsewhere as an expression.
fn has_let(node: &Expr) -> bool {
    match node {
        Expr::Let(_) => true,
        Expr::Binary(node) => matches!(node.op, BinOp::And(_)) && (has_let(&node.left) || has_let(&node.right)),
        _ => false,
    }
}

/// Whether an item with these attributes is compiled outside tests, on this machine.
fn is_compiled(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().all(|attribute| {
        let words = match &attribute.meta {
            syn::Meta::List(list) if attribute.path().is_ident("cfg") => list.tokens.to_string(),
            _ => return !attribute.path().is_ident("test"),
        };
        let mut words = words.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
        match (words.next(), words.next()) {
            (Some("not"), Some("test" | "miri")) => true,
            (Some("not" | "test"), _) => false,
            (Some("all"), second) => second != Some("test") && !words.any(|word| word == "test"),
            _ => true,
        }
    })
}

fn path_attribute(attributes: &[syn::Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| match &attribute.meta {
        syn::Meta::NameValue(syn::MetaNameValue { path, value: Expr::Lit(literal), .. }) if path.is_ident("path") => {
            match &literal.lit {
                Lit::Str(text) => Some(text.value()),
                _ => None,
            }
        }
        _ => None,
    })
}

fn joined(left: &str, operator: &str, right: &str) -> String {
    format!("({left}) {operator} ({right})")
}

/// The text in one line of at most 60 characters.
fn short(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(source: &str) -> Vec<String> {
        read(source).unwrap().0.into_iter().map(|candidate| candidate.what).collect()
    }

    fn of(expression: &str) -> Vec<String> {
        let all = changes(&format!("impl X {{ fn f() -> &X {{ {expression} }} }}"));
        all.iter().map(|what| what.strip_prefix("f: ").unwrap().to_owned()).collect()
    }

    #[test]
    fn each_operator_changes_what_it_says() {
        assert_eq!(of("a < b"), ["a < b → (a) <= (b)"]);
        assert_eq!(of("a / b"), ["a / b → (a) * (b)", "a / b → (b) / (a)"]);
        assert_eq!(of("a - 1"), ["a - 1 → (a) + (1)", "a - 1 → a", "1 → 2", "1 → 0"]);
        assert_eq!(of("-x && !y"), ["-x && !y → (-x) || (!y)", "-x → x", "!y → y"]);
        assert_eq!(of("0.0 + 2e-5f32"), ["0.0 + 2e-5f32 → (0.0) - (2e-5f32)", "0.0 → 1.0", "2e-5f32 → 2.0 * 2e-5f32"]);
        assert_eq!(of("f(a, b, b)"), ["f(a, b, b) → f(b, a, b)"]);
        assert_eq!(of("x.min(y)"), ["x.min(y) → x.max(y)"]);
        assert_eq!(of("[true; 3]"), ["true → false"]);
        assert_eq!(of("&x[a..b]"), ["a → (a) + (1)", "b → (b) - (1)", "b → (b) + (1)"]);
        assert_eq!(of("{ x += y; z }"), ["without x += y;", "x += y → x -= y"]);
        assert_eq!(of("{ g()?; z }"), ["without g()?;", "g()? → { let _ = g(); }"]);
        assert_eq!(of("if let A = b && c { d }"), ["c → !(c)"]);
        assert_eq!(of("match a { B if c => d, 1 => e }"), ["c → !(c)"]);
        assert_eq!(of("vec![a == b, matches!(c, 1 | 2)]"), ["a == b → (a) != (b)"]);
        assert_eq!(of("format!(\"{x}\", x = a + b)"), ["a + b → (a) - (b)"]);
    }

    #[test]
    fn functions_return_at_once() {
        assert_eq!(changes("fn f() -> bool { g() }"), ["f: at once return true;", "f: at once return false;"]);
        assert_eq!(changes("fn f() { g() }"), ["f: at once return;"]);
        assert_eq!(changes("fn f() -> Result<X> { g() }"), ["f: at once return Ok(Default::default());"]);
    }

    #[test]
    fn what_is_no_code_of_the_program_is_left_out() {
        let source = "const A: u8 = 1; static B: u8 = 2; const fn f() -> u8 { 3 } #[test] fn t() { 4; }
            #[cfg(test)] mod tests { fn u() { 5; } } #[cfg(all(test, unix))] fn v() { 6; } enum E { A = 7 }
            #[cfg(not(unix))] fn w() { 8; } fn x() -> &X { y::<9>(); #[cfg(not(unix))] { 10 } }
            #[cfg(unix)] mod kept; #[cfg(test)] mod left;";
        assert_eq!(changes(source), ["x: without y::<9>();"]);
        assert_eq!(read(source).unwrap().1, [("kept".to_owned(), None)]);
    }
}
