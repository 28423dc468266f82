//! Prints values as Python does, also in JSON, and formats dates.

use super::limits::{DEPTH, charge, too_large};
use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Converts a JSON value to a template value.
pub(super) fn value(json: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match json {
        Json::Null => Value::from(()),
        Json::Bool(b) => Value::from(*b),
        Json::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(i), _) => Value::from(i),
            (None, Some(u)) => Value::from(u),
            (None, None) => Value::from(n.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(s) => Value::from(s.as_str()),
        Json::Array(items) => items.iter().map(value).collect(),
        Json::Object(map) => Value::from_pairs(map.iter().map(|(k, v)| (k.as_str(), value(v)))),
    }
}

/// The error for a call with invalid arguments.
pub(super) fn refused(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// Python's `str(value)`. The length is subtracted from the rendering's budget.
pub(super) fn print(value: &Value) -> Result<String, minijinja::Error> {
    let mut out = String::new();
    match value.as_str() {
        Some(text) => {
            charge(text.len())?;
            out.push_str(text);
        }
        None if value.is_undefined() => {}
        None => repr(value, 0, &mut out)?,
    }
    Ok(out)
}

/// Python's `repr(value)`. The length is subtracted from the rendering's budget.
pub(super) fn represent(value: &Value) -> Result<String, minijinja::Error> {
    let mut out = String::new();
    repr(value, 0, &mut out)?;
    Ok(out)
}

/// Writes Python's `repr(value)`.
fn repr(value: &Value, depth: usize, out: &mut String) -> Result<(), minijinja::Error> {
    if depth > DEPTH {
        return Err(too_large("nested lists"));
    }
    let mut list = |ends: [&str; 2], write: &mut dyn FnMut(Value, &mut String) -> Result<(), minijinja::Error>| {
        out.push_str(ends[0]);
        for (i, item) in value.try_iter()?.enumerate() {
            out.push_str(if i > 0 { ", " } else { "" });
            write(item, out)?;
        }
        out.push_str(ends[1]);
        charge(2)
    };
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            let ends = if value.is_tuple() { ["(", ")"] } else { ["[", "]"] };
            let ends = if value.is_tuple() && value.len() == Some(1) { ["(", ",)"] } else { ends };
            return list(ends, &mut |item, out| repr(&item, depth + 1, out));
        }
        ValueKind::Map => {
            return list(["{", "}"], &mut |key, out| {
                repr(&key, depth + 1, out)?;
                out.push_str(": ");
                repr(&value.get_item(&key).unwrap_or_default(), depth + 1, out)
            });
        }
        _ => {}
    }
    let from = out.len();
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            charge(text.len())?;
            quoted(text, out);
        }
        _ => out.push_str(&value.to_string()),
    }
    charge(out.len() - from + 2)
}

/// Writes a Python string literal: in single quotes, or in double quotes if the text contains only single quotes.
fn quoted(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => *out += &format!("\\x{:02x}", c as u32),
            c => out.push(c),
        }
    }
    out.push(quote);
}

fn number(value: &Value) -> String {
    match f64::try_from(value.clone()) {
        Ok(x) if !value.is_integer() => float(x),
        _ => value.to_string(),
    }
}

/// Python's `repr` of a float: the shortest digits that parse to `x`, with an exponent below 1e-4 and from 1e16 up.
fn float(x: f64) -> String {
    if x.is_nan() {
        return "nan".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf" } else { "-inf" }.into();
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').expect("the `e` format prints an exponent");
    let exponent: i32 = exponent.parse().expect("the exponent is an integer");
    if (-4..16).contains(&exponent) {
        let plain = format!("{x}");
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// Settings of Python's `json.dumps`.
pub(super) struct Json {
    pub(super) ensure_ascii: bool,
    /// Indentation of one level; `None` puts everything on one line.
    pub(super) indent: Option<String>,
    /// Separator between items.
    pub(super) item: String,
    /// Separator between key and value.
    pub(super) key: String,
    pub(super) sort_keys: bool,
}

impl Json {
    pub(super) fn dump(&self, value: &Value) -> Result<String, String> {
        let mut out = String::new();
        self.write(value, 0, &mut out)?;
        Ok(out)
    }

    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), String> {
        if depth > DEPTH {
            return Err("nested too deeply".into());
        }
        // Charges the budget for an element with its line break, separators and indentation.
        let indent = self.indent.as_ref().map_or(0, String::len);
        charge(2 + self.item.len() + self.key.len() + indent * depth).map_err(|e| e.to_string())?;
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&match number(value).as_str() {
                "nan" => "NaN".to_owned(),
                "inf" => "Infinity".to_owned(),
                "-inf" => "-Infinity".to_owned(),
                n => n.to_owned(),
            }),
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), out)?,
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter().map_err(|e| e.to_string())?.collect();
                self.list(['[', ']'], items, depth, out, |item, out| self.write(&item, depth + 1, out))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter().map_err(|e| e.to_string())?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.list(['{', '}'], keys, depth, out, |key, out| {
                    match key.as_str() {
                        Some(text) => self.string(text, out),
                        None => {
                            // JSON keys may be numbers, booleans or null, which become strings.
                            let mut text = String::new();
                            self.write(&key, depth + 1, &mut text)?;
                            self.string(&text, out)
                        }
                    }?;
                    out.push_str(&self.key);
                    self.write(&value.get_item(&key).map_err(|e| e.to_string())?, depth + 1, out)
                })?;
            }
            kind => return Err(format!("a value of kind {kind} cannot be written as JSON")),
        }
        Ok(())
    }

    fn list(
        &self,
        [open, close]: [char; 2],
        items: Vec<Value>,
        depth: usize,
        out: &mut String,
        mut write: impl FnMut(Value, &mut String) -> Result<(), String>,
    ) -> Result<(), String> {
        let line = |depth: usize, out: &mut String| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                out.push_str(&indent.repeat(depth));
            }
        };
        out.push(open);
        let empty = items.is_empty();
        for (i, item) in items.into_iter().enumerate() {
            if i > 0 {
                out.push_str(&self.item);
            }
            line(depth + 1, out);
            write(item, out)?;
        }
        if !empty {
            line(depth, out);
        }
        out.push(close);
        Ok(())
    }

    fn string(&self, text: &str, out: &mut String) -> Result<(), String> {
        charge(text.len()).map_err(|e| e.to_string())?;
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || self.ensure_ascii && c > '~' => {
                    c.encode_utf16(&mut [0; 2]).iter().for_each(|u| *out += &format!("\\u{u:04x}"));
                }
                c => out.push(c),
            }
        }
        out.push('"');
        Ok(())
    }
}

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Python's `strftime` for a time in seconds since 1970, in UTC. transformers uses local time, which differs between
/// machines. Unsupported conversions are left as they are.
pub fn strftime(format: &str, seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Civil date from a day number (Hinnant, "chrono-compatible low-level date algorithms"); years start in March.
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let march_day = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * march_day + 2) / 153;
    let day = march_day - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let leap = year % 4 == 0 && year % 100 != 0 || year % 400 == 0;
    // January and February are at the end of a year that starts in March.
    let day_of_year = if month > 2 { march_day + 60 + u64::from(leap) } else { march_day - 305 };
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let (weekday, month_name) = (DAYS[((days + 4) % 7) as usize], MONTHS[month as usize - 1]);

    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('d') => out += &format!("{day:02}"),
            Some('m') => out += &format!("{month:02}"),
            Some('Y') => out += &year.to_string(),
            Some('y') => out += &format!("{:02}", year % 100),
            Some('b' | 'h') => out += &month_name[..3],
            Some('B') => out += month_name,
            Some('a') => out += &weekday[..3],
            Some('A') => out += weekday,
            Some('j') => out += &format!("{day_of_year:03}"),
            Some('H') => out += &format!("{hour:02}"),
            Some('I') => out += &format!("{:02}", (hour + 11) % 12 + 1),
            Some('p') => out += if hour < 12 { "AM" } else { "PM" },
            Some('M') => out += &format!("{minute:02}"),
            Some('S') => out += &format!("{second:02}"),
            Some('F') => out += &format!("{year}-{month:02}-{day:02}"),
            Some('T') => out += &format!("{hour:02}:{minute:02}:{second:02}"),
            Some('%') => out.push('%'),
            Some(other) => out.extend(['%', other]),
            None => out.push('%'),
        }
    }
    out
}
