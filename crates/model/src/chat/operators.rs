//! Jinja operators and filters that count their work: before each one runs, the size of its inputs and outputs is
//! subtracted from the rendering's budget. So a hostile chat template cannot use unbounded memory or time.

use super::limits::{begin, charge, charge_namespace, size};
use super::{formats, letters, methods, python};
use minijinja::machinery::{self, Instruction, Instructions};
use minijinja::value::{Rest, Tuple, Value, ValueKind, ValueOrKwargs};
use minijinja::{AutoEscape, Environment, Error, Expression, State, filters, functions};
use std::collections::BTreeMap;
use std::sync::LazyLock;

type Outcome = std::result::Result<Value, Error>;

/// All arguments of a call; the last one holds the keyword arguments, if any.
type Arguments = Rest<ValueOrKwargs>;

/// The counting filter that replaces an instruction, and its number of arguments; `None` if the instruction needs no
/// counting. The filters' names contain a colon, so templates cannot call them.
fn counted(instruction: &Instruction<'_>) -> Option<(&'static str, u16)> {
    let several = |n: usize| u16::try_from(n).ok().filter(|n| *n > 0);
    Some(match instruction {
        Instruction::Add => (":add", 2),
        Instruction::Mul => (":mul", 2),
        Instruction::Rem => (":rem", 2),
        Instruction::StringConcat => (":concat", 2),
        Instruction::Slice => (":slice", 4),
        Instruction::Eq => (":eq", 2),
        Instruction::Ne => (":ne", 2),
        Instruction::Lt => (":lt", 2),
        Instruction::Lte => (":le", 2),
        Instruction::Gt => (":gt", 2),
        Instruction::Gte => (":ge", 2),
        Instruction::In => (":in", 2),
        Instruction::BuildList(Some(n)) => (":list", several(*n)?),
        Instruction::BuildTuple(Some(n)) => (":tuple", several(*n)?),
        Instruction::BuildMap(n) => (":map", several(n * 2)?),
        _ => return None,
    })
}

/// Replaces operators by their counting filters. Each instruction is replaced by exactly one instruction, so that jump
/// targets stay valid.
fn with_counted<'a>(instructions: &Instructions<'a>) -> Instructions<'a> {
    let mut out = Instructions::new(instructions.name(), instructions.source());
    let mut at = 0;
    while let Some(instruction) = instructions.get(at) {
        let instruction = match counted(instruction) {
            // The id !0 makes minijinja look the filter up by name each time.
            Some((name, arguments)) => Instruction::ApplyFilter(name, Some(arguments), !0),
            None => instruction.clone(),
        };
        match (instructions.get_span(at), instructions.get_line(at)) {
            (Some(span), _) => out.add_with_span(instruction, span),
            (None, Some(line)) => out.add_with_line(instruction, line as u16),
            (None, None) => out.add(instruction),
        };
        at += 1;
    }
    out
}

/// Renders a template of the environment within the budget of one rendering.
pub(super) fn render(env: &Environment<'static>, name: &str, variables: Value) -> std::result::Result<String, Error> {
    let template = env.get_template(name)?;
    let compiled = machinery::get_compiled_template(&template);
    let instructions = with_counted(&compiled.instructions);
    let blocks: BTreeMap<_, _> = compiled.blocks.iter().map(|(name, block)| (*name, with_counted(block))).collect();
    begin();
    let mut text = String::new();
    let mut output = machinery::make_string_output(&mut text);
    machinery::eval(env, &instructions, variables, &blocks, &mut output, AutoEscape::None)?;
    Ok(text)
}

/// Adds the counting operators, filters and functions to an environment.
pub(super) fn add(env: &mut Environment<'static>) {
    for (name, operator) in OPERATORS {
        let operator = *operator;
        env.add_filter(*name, move |arguments: Arguments| operator(&arguments.into_values()));
    }
    for (name, filter) in filters() {
        env.add_filter(name, move |state: &mut State<'_, '_>, arguments: Arguments| {
            let arguments = arguments.into_values();
            charge(work(name, &arguments)?)?;
            flat(filter.call(state, &arguments)?)
        });
    }
    for (name, filter) in OWN_FILTERS {
        env.add_filter(*name, move |arguments: Arguments| {
            let arguments = arguments.into_values();
            charge(work(name, &arguments)?)?;
            filter(&arguments)
        });
    }
    let namespace = Value::from_function(functions::namespace);
    env.add_function("namespace", move |state: &mut State<'_, '_>, arguments: Arguments| {
        let arguments = arguments.into_values();
        charge_namespace()?;
        checked(namespace.call(state, &arguments)?)
    });
    let dict = Value::from_function(functions::dict);
    env.add_function("dict", move |state: &mut State<'_, '_>, arguments: Arguments| {
        let arguments = arguments.into_values();
        checked(dict.call(state, &arguments)?)
    });
    // Jinja has no `debug`, and minijinja's version prints all variables.
    env.remove_global("debug");
    env.set_unknown_method_callback(|state, value, method, arguments| {
        let all: Vec<Value> = std::iter::once(value).chain(arguments).cloned().collect();
        if !(value.kind() == ValueKind::Map && method == "get") {
            charge(work(method, &all)?)?;
        }
        if let Some(outcome) = methods::call(value, method, arguments) {
            return outcome;
        }
        flat(minijinja_contrib::pycompat::unknown_method_callback(state, value, method, arguments)?)
    });
}

/// minijinja's filters, except those that only read one element or a length.
fn filters() -> Vec<(&'static str, Value)> {
    macro_rules! table {
        ($($name:ident)*) => { vec![$((stringify!($name), Value::from_function(filters::$name))),*] };
    }
    let mut all = table![
        lower upper title capitalize dictsort items reverse trim join split lines min max sort list bool batch
        slice sum select reject selectattr rejectattr map groupby unique chain zip pprint escape
    ];
    all.push(("e", Value::from_function(filters::escape)));
    all
}

/// Jinja's filters that minijinja lacks or defines differently.
const OWN_FILTERS: &[(&str, Operator)] = &[
    ("wordcount", methods::word_count),
    ("center", methods::center),
    ("indent", methods::indent),
    ("replace", methods::replace_filter),
    ("format", formats::format_filter),
    ("int", formats::int),
    ("float", formats::float),
];

/// Upper bound on the bytes and elements that a filter or method of this name builds or reads.
fn work(name: &str, arguments: &[Value]) -> std::result::Result<usize, Error> {
    // Bytes to charge for each piece of a string that becomes a separate value.
    const PIECE: usize = 32;
    let (mut elements, mut text, mut longest) = (0_usize, 0_usize, 0);
    for argument in arguments {
        let size = size(argument)?;
        elements += size.elements;
        text = text.saturating_add(size.text);
        longest = longest.max(argument.as_str().map_or(0, str::len));
    }
    let string = |place: usize| arguments.get(place).and_then(Value::as_str);
    let number = |place: usize| arguments.get(place).and_then(Value::as_usize).unwrap_or(0);
    let subject = string(0).unwrap_or_default();
    let more = match name {
        "replace" => match (string(1), string(2)) {
            (Some(""), Some(to)) => text.saturating_add((subject.len() + 1).saturating_mul(to.len())),
            (Some(from), Some(to)) => text.saturating_add(subject.matches(from).count().saturating_mul(to.len())),
            _ => text.saturating_mul(text),
        },
        // If the subject is a string, its characters are joined.
        "join" => text.saturating_add((elements + subject.len()).saturating_mul(longest)),
        "indent" => {
            // The width is a number or an indentation string, given by position or by name.
            let width = arguments.iter().skip(1).filter_map(|v| {
                let named = v.is_kwargs().then(|| v.get_attr("width").ok()).flatten();
                let width = named.as_ref().unwrap_or(v);
                width.as_usize().or(width.as_str().map(str::len))
            });
            let lines = subject.matches(letters::ends_line).count() + 1;
            text.saturating_add(lines.saturating_mul(width.max().unwrap_or(4)))
        }
        "format" => {
            // A field can be as wide as the largest number in the format, or as long as all arguments.
            let numbers = subject.split(|c: char| !c.is_ascii_digit()).filter(|n| !n.is_empty());
            let widest = numbers.map(|n| n.parse().unwrap_or(usize::MAX)).max().unwrap_or(0);
            let given = (1..arguments.len()).map(number).max().filter(|_| subject.contains('*')).unwrap_or(0);
            let fields = subject.matches(['%', '{']).count();
            text.saturating_add(fields.saturating_mul(text.saturating_add(widest.max(given))))
        }
        "batch" | "slice" => number(1),
        "escape" | "e" => text.saturating_mul(6),
        "lower" | "upper" | "title" | "capitalize" | "swapcase" | "casefold" => text.saturating_mul(3),
        "trim" | "strip" | "lstrip" | "rstrip" | "pprint" | "removeprefix" | "removesuffix" | "partition"
        | "rpartition" => text,
        "split" | "rsplit" | "splitlines" | "lines" => {
            let words = matches!(name, "split" | "rsplit");
            let pieces = match string(1).filter(|by| words && !by.is_empty()) {
                Some(by) => subject.matches(by).count() + 1,
                // A separator given by name is at least one byte long.
                None if words && arguments.iter().any(Value::is_kwargs) => subject.len(),
                None if words => subject.split(letters::is_space).filter(|word| !word.is_empty()).count(),
                None => subject.lines().count().max(subject.matches(letters::ends_line).count()),
            };
            text.saturating_add(pieces.saturating_mul(PIECE))
        }
        // Each character of a string is an element.
        "list" | "sort" | "reverse" | "select" | "reject" | "map" | "unique" | "chain" | "zip" | "min" | "max"
        | "sum" | "groupby" | "dictsort" => longest.saturating_mul(PIECE),
        _ => longest,
    };
    Ok(elements.saturating_add(more))
}

/// Converts a lazy sequence to a list. In a loop, lazy sequences over lazy sequences would become nested one level
/// deeper with each iteration.
fn flat(value: Value) -> Outcome {
    if value.kind() != ValueKind::Iterable {
        return Ok(value);
    }
    let mut items = Vec::new();
    for item in value.try_iter()? {
        charge(1)?;
        items.push(item);
    }
    Ok(Value::from(items))
}

/// Charges the budget for a new value, nested values included, then returns the value.
fn checked(value: Value) -> Outcome {
    charge(size(&value)?.elements)?;
    Ok(value)
}

/// Evaluates an operator as minijinja does.
fn native(expression: &Expression<'_, '_>, arguments: &[Value]) -> Outcome {
    let names = ["a", "b", "c", "d"];
    let operands = Value::from_pairs(names.into_iter().zip(arguments.iter().cloned()));
    let outcome = expression.eval(operands);
    // The error's location is within the expression of this file, not within the template, so it is dropped.
    flat(outcome.map_err(|e| Error::new(e.kind(), e.detail().unwrap_or_default().to_owned()))?)
}

static PLAIN: LazyLock<Environment<'static>> = LazyLock::new(Environment::new);
static ADD: LazyLock<Expression<'static, 'static>> = LazyLock::new(|| compile("a + b"));
static MUL: LazyLock<Expression<'static, 'static>> = LazyLock::new(|| compile("a * b"));
static REM: LazyLock<Expression<'static, 'static>> = LazyLock::new(|| compile("a % b"));
static SLICE: LazyLock<Expression<'static, 'static>> = LazyLock::new(|| compile("a[b:c:d]"));
static IN: LazyLock<Expression<'static, 'static>> = LazyLock::new(|| compile("a in b"));

fn compile(expression: &'static str) -> Expression<'static, 'static> {
    PLAIN.compile_expression(expression).expect("the expression is valid")
}

type Operator = fn(&[Value]) -> Outcome;
const OPERATORS: &[(&str, Operator)] = &[
    (":add", add_values),
    (":mul", multiply),
    (":rem", remainder),
    (":concat", concatenate),
    (":slice", slice),
    (":eq", |v| compare(v, |a, b| a == b)),
    (":ne", |v| compare(v, |a, b| a != b)),
    (":lt", |v| compare(v, |a, b| a < b)),
    (":le", |v| compare(v, |a, b| a <= b)),
    (":gt", |v| compare(v, |a, b| a > b)),
    (":ge", |v| compare(v, |a, b| a >= b)),
    (":in", contains),
    (":list", |v| checked(Value::from(v.to_vec()))),
    (":tuple", |v| checked(Value::from(Tuple::from(v.to_vec())))),
    (":map", |v| {
        v.chunks_exact(2).try_for_each(|pair| charge(size(&pair[0])?.elements))?;
        checked(Value::from_pairs(v.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone()))))
    }),
];

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

fn add_values(v: &[Value]) -> Outcome {
    if let (Some(a), Some(b)) = (v[0].as_str(), v[1].as_str()) {
        charge(a.len() + b.len())?;
        return Ok(Value::from([a, b].concat()));
    }
    if is_list(&v[0]) && is_list(&v[1]) {
        charge(size(&v[0])?.elements + size(&v[1])?.elements)?;
    }
    native(&ADD, v)
}

fn multiply(v: &[Value]) -> Outcome {
    for (value, times) in [(&v[0], &v[1]), (&v[1], &v[0])] {
        let length = match value.as_str() {
            Some(text) => text.len(),
            None if is_list(value) => size(value)?.elements,
            None => 0,
        };
        charge(length.saturating_mul(times.as_usize().unwrap_or(0)))?;
    }
    native(&MUL, v)
}

/// The remainder of a division, or a string formatted with values.
fn remainder(v: &[Value]) -> Outcome {
    match v[0].as_str() {
        Some(text) => {
            charge(size(&v[1])?.elements + text.len())?;
            formats::percent(text, &v[1]).map(Value::from)
        }
        None => native(&REM, v),
    }
}

fn concatenate(v: &[Value]) -> Outcome {
    Ok(Value::from(python::print(&v[0])? + &python::print(&v[1])?))
}

fn slice(v: &[Value]) -> Outcome {
    // A slice with negative indices collects the string's characters as elements.
    charge(v[0].as_str().map_or_else(|| v[0].len().unwrap_or(0), |text| text.len().saturating_mul(4)))?;
    native(&SLICE, v)
}

fn compare(v: &[Value], holds: fn(&Value, &Value) -> bool) -> Outcome {
    if v.iter().all(|value| value.as_object().is_some()) {
        charge(size(&v[0])?.elements + size(&v[1])?.elements)?;
    }
    Ok(Value::from(holds(&v[0], &v[1])))
}

fn contains(v: &[Value]) -> Outcome {
    charge(match v[1].as_str() {
        Some(_) => size(&v[0])?.text,
        None if v[0].as_object().is_some() => size(&v[0])?.elements + size(&v[1])?.elements,
        None => v[1].len().unwrap_or(0),
    })?;
    native(&IN, v)
}
