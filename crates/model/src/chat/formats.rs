//! Python's `%` string formatting, and the filters that parse numbers.

use super::limits::charge;
use super::methods::Arguments;
use super::python;
use super::python::refused;
use minijinja::Error;
use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Value, ValueKind};

type Outcome = std::result::Result<Value, Error>;

/// One conversion of a format, such as `%(name)-5.2f`.
struct Conversion<'f> {
    key: Option<&'f str>,
    flags: &'f str,
    width: Option<&'f str>,
    precision: Option<&'f str>,
    kind: char,
}

impl<'f> Conversion<'f> {
    /// Parses the characters after a `%`. Returns the conversion and the rest of the format.
    fn read(format: &'f str) -> Result<(Conversion<'f>, &'f str), Error> {
        let ends_early = || refused("%: the format ends with an incomplete conversion");
        let (key, rest) = match format.strip_prefix('(') {
            Some(rest) => rest.split_once(')').map(|(key, rest)| (Some(key), rest)).ok_or_else(ends_early)?,
            None => (None, format),
        };
        let (flags, rest) = while_in(rest, |c| "#0- +".contains(c));
        let (width, rest) = size(rest);
        let (precision, rest) = match rest.strip_prefix('.') {
            Some(rest) => {
                let (precision, rest) = size(rest);
                (Some(precision.unwrap_or("0")), rest)
            }
            None => (None, rest),
        };
        let rest = rest.strip_prefix(['h', 'l', 'L']).unwrap_or(rest);
        let kind = rest.chars().next().ok_or_else(ends_early)?;
        Ok((Conversion { key, flags, width, precision, kind }, &rest[kind.len_utf8()..]))
    }
}

fn while_in(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !belongs(c)).unwrap_or(text.len()))
}

/// A number at the beginning of a string, or a `*`.
fn size(text: &str) -> (Option<&str>, &str) {
    let (digits, rest) = if text.starts_with('*') { text.split_at(1) } else { while_in(text, |c| c.is_ascii_digit()) };
    (Some(digits).filter(|digits| !digits.is_empty()), rest)
}

/// Python's `format % values`. A tuple provides several values; a dictionary provides them by name.
pub(super) fn percent(text: &str, values: &Value) -> Result<String, Error> {
    let arguments: Vec<Value> = if values.is_tuple() { values.try_iter()?.collect() } else { vec![values.clone()] };
    let mut left = arguments.into_iter();
    let mut next = || left.next().ok_or_else(|| refused("%: not enough values for the format"));
    let (mut out, mut rest) = (String::new(), text);
    while let Some((literal, after)) = rest.split_once('%') {
        out.push_str(literal);
        let (conversion, after) = Conversion::read(after)?;
        rest = after;
        if conversion.kind == '%' {
            out.push('%');
            continue;
        }
        let mut given = |size: Option<&str>| match size {
            Some("*") => next()?.as_usize().ok_or_else(|| refused("%: the width must be a number")).map(Some),
            Some(digits) => digits.parse().map(Some).map_err(|_| refused("%: the width is too large")),
            None => Ok(None),
        };
        let (width, precision) = (given(conversion.width)?, given(conversion.precision)?);
        charge(width.unwrap_or(0).saturating_add(precision.unwrap_or(0)))?;
        let value = match conversion.key {
            Some(key) => by_name(values, key)?,
            None => next()?,
        };
        out.push_str(&converted(&conversion, width, precision, &value)?);
    }
    if values.kind() != ValueKind::Map && left.next().is_some() {
        return Err(refused("%: more values than the format has conversions"));
    }
    out.push_str(rest);
    Ok(out)
}

fn by_name(values: &Value, key: &str) -> Outcome {
    let value = if values.kind() == ValueKind::Map { values.get_item(&Value::from(key))? } else { Value::UNDEFINED };
    Some(value).filter(|value| !value.is_undefined()).ok_or_else(|| refused(format!("%: no value for {key:?}")))
}

fn converted(
    Conversion { flags, kind, .. }: &Conversion<'_>,
    width: Option<usize>,
    precision: Option<usize>,
    value: &Value,
) -> Result<String, Error> {
    if let 's' | 'r' = kind {
        let text = if *kind == 's' { python::print(value)? } else { python::represent(value)? };
        let text: String = text.chars().take(precision.unwrap_or(usize::MAX)).collect();
        let spaces = " ".repeat(width.unwrap_or(0).saturating_sub(text.chars().count()));
        return Ok(if flags.contains('-') { text + &spaces } else { spaces + &text });
    }
    let number = match (kind, whole(value)) {
        ('d' | 'i' | 'u', Some(number)) => Value::from(number),
        _ => value.clone(),
    };
    let kind = if matches!(kind, 'i' | 'u') { 'd' } else { *kind };
    let size = |size: Option<usize>, before: &str| size.map_or(String::new(), |size| format!("{before}{size}"));
    let one = format!("%{flags}{}{}{kind}", size(width, ""), size(precision, "."));
    format(FormatStyle::Printf, &one, &[number])
}

/// The integer part of a float.
fn whole(value: &Value) -> Option<i128> {
    let float = f64::try_from(value.clone()).ok().filter(|x| !value.is_integer() && x.abs() < 1e38)?;
    (value.kind() == ValueKind::Number).then_some(float as i128)
}

/// The filter `format`.
pub(super) fn format_filter(all: &[Value]) -> Outcome {
    let Some((text, values)) = all.split_first() else { return Err(refused("format: expected a string")) };
    let text = text.as_str().map_or_else(|| python::print(text), |text| Ok(text.to_owned()))?;
    let values = match values {
        [named] if named.is_kwargs() => named.clone(),
        [.., last] if last.is_kwargs() => {
            return Err(refused("format: positional and keyword arguments cannot be mixed"));
        }
        _ => Value::from(minijinja::value::Tuple::from(values.to_vec())),
    };
    percent(&text, &values).map(Value::from)
}

/// The filter `int`. A string that is not a number gives the default.
pub(super) fn int(all: &[Value]) -> Outcome {
    let [value, default, base] = Arguments::of("int", all).by_name(["", "default", "base"])?;
    let value = value.unwrap_or_default();
    if value.is_undefined() {
        return Err(refused("int: the value is undefined"));
    }
    let base = base.map_or(Some(10), |base| base.as_usize().filter(|base| *base == 0 || (2..=36).contains(base)));
    let default = default.unwrap_or_else(|| Value::from(0));
    if let Some(text) = value.as_str() {
        let base = base.ok_or_else(|| refused("int: the base must be from 2 to 36"))?;
        let truncated_float = |text: &str| float_in(text).filter(|x| x.is_finite()).map(truncated).transpose();
        return match int_in(text, base as u32)? {
            Some(number) => Ok(number),
            None => Ok(truncated_float(text)?.unwrap_or(default)),
        };
    }
    match value.kind() {
        ValueKind::Bool => Ok(Value::from(i64::from(value.is_true()))),
        ValueKind::Number if value.is_integer() => Ok(value),
        ValueKind::Number => match f64::try_from(value)? {
            x if x.is_finite() => truncated(x),
            _ => Ok(default),
        },
        _ => Ok(default),
    }
}

/// The filter `float`. A string that is not a number gives the default.
pub(super) fn float(all: &[Value]) -> Outcome {
    let [value, default] = Arguments::of("float", all).by_name(["", "default"])?;
    let value = value.unwrap_or_default();
    if value.is_undefined() {
        return Err(refused("float: the value is undefined"));
    }
    let number = match value.as_str() {
        Some(text) => float_in(text),
        None if value.kind() == ValueKind::Bool => Some(if value.is_true() { 1.0 } else { 0.0 }),
        None if value.kind() == ValueKind::Number => f64::try_from(value).ok(),
        None => None,
    };
    Ok(number.map_or_else(|| default.unwrap_or_else(|| Value::from(0.0)), Value::from))
}

fn truncated(x: f64) -> Outcome {
    match x.abs() < 1e38 {
        true if (x as i64) as f64 == x.trunc() => Ok(Value::from(x as i64)),
        true => Ok(Value::from(x as i128)),
        false => Err(refused(format!("int: {x} is too large"))),
    }
}

/// The digits of a number without the underscores between them; `None` if an underscore is anywhere else.
fn without_underscores(digits: &str) -> Option<String> {
    let in_place = !digits.starts_with('_') && !digits.ends_with('_') && !digits.contains("__");
    in_place.then(|| digits.replace('_', ""))
}

fn trimmed(text: &str) -> &str {
    text.trim_matches(super::letters::is_space)
}

/// Python's `int(text, base)`; `None` if the string is not a number in this base. Fails if the number is too large
/// here.
fn int_in(text: &str, base: u32) -> Result<Option<Value>, Error> {
    let text = trimmed(text);
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let prefixed = [("0x", 16), ("0o", 8), ("0b", 2)].into_iter().find_map(|(prefix, prefix_base)| {
        let rest = lower.strip_prefix(prefix).filter(|_| base == prefix_base || base == 0)?;
        Some((rest.strip_prefix('_').unwrap_or(rest), prefix_base))
    });
    let (digits, base) = prefixed.unwrap_or((&lower, base));
    // Without a base, a number that begins with 0 is 0.
    if base == 0 && digits.starts_with('0') && digits.contains(|c: char| ('1'..='9').contains(&c)) {
        return Ok(None);
    }
    let base = if base == 0 { 10 } else { base };
    let Some(digits) = without_underscores(digits) else { return Ok(None) };
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(base)) {
        return Ok(None);
    }
    let number = i128::from_str_radix(&digits, base).map_err(|_| refused(format!("int: {text} is too large")))?;
    let number = if negative { -number } else { number };
    Ok(Some(i64::try_from(number).map_or_else(|_| Value::from(number), Value::from)))
}

/// Python's `float(text)`; `None` if the string is not a number.
fn float_in(text: &str) -> Option<f64> {
    without_underscores(trimmed(text))?.parse().ok()
}
