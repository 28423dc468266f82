//! The expected output of a program, and its comparison with the actual output.

use serde_json::Value;

use super::inexact::digits;

/// An expected output.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Text, compared by lines.
    Text(String),
    /// A JSON value that is not text: a number, a boolean, or a list of them.
    Value(Value),
}

impl From<&str> for Output {
    fn from(text: &str) -> Output {
        Output::Text(text.to_owned())
    }
}

impl Output {
    /// The expected output in a test. `None` for null, an object or a list of lists, since programs may print these in
    /// different ways.
    pub fn read(value: &Value) -> Option<Output> {
        let plain = |value: &Value| matches!(value, Value::String(_) | Value::Number(_) | Value::Bool(_));
        match value {
            Value::String(text) => Some(Output::Text(text.clone())),
            Value::Number(_) | Value::Bool(_) => Some(Output::Value(value.clone())),
            Value::Array(items) if items.iter().all(plain) => Some(Output::Value(value.clone())),
            _ => None,
        }
    }

    /// Whether a program printed this output. White space at the ends of lines and of the whole text is ignored. A list
    /// may be printed as lines, as one line with spaces or commas between its items, or as a language writes lists.
    pub fn is(&self, given: &[u8]) -> bool {
        let Ok(given) = std::str::from_utf8(given) else { return false };
        match self {
            Output::Text(text) => same_lines(given, text),
            Output::Value(Value::Array(items)) => {
                same_lines(given, &Value::from(items.clone()).to_string()) || same_list(given, items)
            }
            Output::Value(item) => same_item(given.trim(), item),
        }
    }
}

fn same_lines(given: &str, expected: &str) -> bool {
    given.trim_end().lines().map(str::trim_end).eq(expected.trim_end().lines().map(str::trim_end))
}

fn same_list(given: &str, items: &[Value]) -> bool {
    let lines: Vec<&str> = given.trim_end().lines().map(str::trim_end).collect();
    // Text items may be printed on separate lines, as in the file that the list was made from.
    let texts: Option<Vec<&str>> = items.iter().map(|item| item.as_str().map(str::trim_end)).collect();
    if texts.is_some_and(|texts| same_lines(given, &texts.join("\n"))) {
        return true;
    }
    let all = |parts: &[&str]| {
        parts.len() == items.len() && parts.iter().zip(items).all(|(part, item)| same_item(part, item))
    };
    if all(&lines) {
        return true;
    }
    let given = given.trim();
    let brackets = [('[', ']'), ('(', ')'), ('{', '}')];
    let inside = brackets.iter().find_map(|(open, close)| given.strip_prefix(*open)?.strip_suffix(*close));
    match inside {
        Some(inside) if inside.trim().is_empty() => items.is_empty(),
        Some(inside) => {
            let parts: Vec<&str> = inside.split(',').map(|part| unquoted(part.trim())).collect();
            all(&parts)
        }
        // The words of a line can be the items only if no item contains a space.
        None => {
            all(&given.split_whitespace().collect::<Vec<_>>())
                || all(&given.split(',').map(str::trim).collect::<Vec<_>>())
        }
    }
}

fn unquoted(text: &str) -> &str {
    let quotes = ['"', '\''];
    quotes.iter().find_map(|quote| text.strip_prefix(*quote)?.strip_suffix(*quote)).unwrap_or(text)
}

/// Whether a program printed one value: a number in any decimal notation, a boolean as some language writes it, or
/// text.
fn same_item(given: &str, item: &Value) -> bool {
    match item {
        Value::String(text) => given == text.trim_end(),
        Value::Bool(truth) => given.eq_ignore_ascii_case(if *truth { "true" } else { "false" }),
        Value::Number(number) => {
            let value = decimal(given.strip_prefix('+').unwrap_or(given));
            value.is_some() && value == decimal(&number.to_string())
        }
        _ => false,
    }
}

/// Normalizes a decimal number (`[-]digits[.digits]`, also with an exponent), so that equal numbers give equal results:
/// whether it is negative, its digits, and the power of ten of the first digit.
fn decimal(text: &str) -> Option<(bool, String, i64)> {
    let size = text.strip_prefix('-').unwrap_or(text);
    let mantissa = size.split(['e', 'E']).next().unwrap_or_default().replacen('.', "", 1);
    if mantissa.is_empty() || !mantissa.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (digits, power) = digits(size)?;
    Some((size.len() < text.len() && !digits.is_empty(), digits, power))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_typed_output_is_equal_to_what_right_programs_print() {
        let wrong: Vec<_> = [
            (json!("1\n2\n"), "1\n2", true),
            (json!("1\n2"), "1 \n2\n\n", true),
            (json!("1\n2"), "1 2", false),
            (json!("5.0"), "5", false),
            (json!("true"), "True", false),
            (json!(["1", "2"]), "1\n2\n", true),
            (json!(["1", "2"]), "1 2\n", true),
            (json!(["1", "2"]), "[\"1\",\"2\"]", true),
            (json!(["1", "2"]), "['1', '2']\n", true),
            (json!(["1", "2"]), "[1, 2]\n", true),
            (json!(["1", "2"]), "1, 2", true),
            (json!(["1", "2"]), "2\n1\n", false),
            (json!(["1", "2"]), "12", false),
            (json!(["1", "2"]), "1\n2\n3\n", false),
            (json!(["1", "2"]), "1", false),
            (json!(["1", "2"]), "", false),
            (json!(["a b", "c"]), "a b\nc\n", true),
            (json!(["a b", "c"]), "a\nb c\n", false),
            (json!(["a b", "c"]), "a b c", false),
            (json!(["1\n", "2\n"]), "1\n2\n", true),
            (json!(["1 ", "2"]), "1\n2", true),
            (json!(["", "2"]), "\n2", true),
            (json!(["Yes"]), "Yes\n", true),
            (json!(["Yes"]), "yes\n", false),
            (json!([1, 2]), "1\n2\n", true),
            (json!([1, 2]), "1 2\n", true),
            (json!([1, 2]), "[1, 2]\n", true),
            (json!([1, 2]), "(1, 2)", true),
            (json!([1, 2]), "1 3\n", false),
            (json!([1, 2]), "[1, 2, 3]", false),
            (json!([1.5, 2]), "1.5 2.0", true),
            (json!([true, false]), "True\nFalse", true),
            (json!([true, false]), "True\nTrue", false),
            (json!([]), "", true),
            (json!([]), "[]", true),
            (json!([]), "0", false),
            (json!(true), "true\n", true),
            (json!(true), "True\n", true),
            (json!(true), "TRUE", true),
            (json!(true), "1", false),
            (json!(true), "false", false),
            (json!(false), "False", true),
            (json!(false), "", false),
            (json!(5), "5\n", true),
            (json!(5), "5.0\n", true),
            (json!(5), "05", true),
            (json!(5), "+5", true),
            (json!(5), "5 5", false),
            (json!(5), "6", false),
            (json!(5), "-5", false),
            (json!(5), "five", false),
            (json!(5), "", false),
            (json!(5.0), "5", true),
            (json!(0.1), "0.10", true),
            (json!(0.1), "1e-1", true),
            (json!(0.1), "0.11", false),
            (json!(-2.5), "-2.5", true),
            (json!(1e21), "1000000000000000000000", true),
        ]
        .into_iter()
        .filter(|(output, given, expected)| Output::read(output).unwrap().is(given.as_bytes()) != *expected)
        .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        for output in [json!(null), json!({"a": 1}), json!([[1]]), json!([null]), json!([{"a": 1}])] {
            assert_eq!(Output::read(&output), None, "{output}");
        }
        assert!(!Output::read(&json!(["x"])).unwrap().is(b"\xff"));
    }
}
