//! Finds numbers in JSON that fit neither a 64-bit integer nor a float exactly. serde_json reads such a number as the
//! nearest float, so a reward would compare with a different number than the dataset's.

/// A number that parsing would change.
#[derive(Debug, PartialEq)]
pub struct Inexact<'j> {
    /// The number of the row in a list of rows, from 1; 1 if the JSON is one row.
    pub row: usize,
    /// The column, as JSON writes its name.
    pub column: &'j str,
    /// The number as it is written.
    pub number: &'j str,
}

impl Inexact<'_> {
    /// The fault and its fix, for a message that begins with the position of the row.
    pub fn problem(&self) -> String {
        let Inexact { column, number, .. } = self;
        let read = number.parse::<f64>().map(serde_json::Value::from).unwrap_or_default();
        format!(
            "column `{column}`: {number} has more digits than 64 bits hold, and would be read as {read}; write it as \
             text: \"{number}\""
        )
    }
}

/// The first inexact number in the first `limit` rows. `json` is valid JSON: one row, or with `list` a list of rows.
pub fn inexact(json: &str, list: bool, limit: usize) -> Option<Inexact<'_>> {
    let bytes = json.as_bytes();
    // The nesting level at which column names occur.
    let level = if list { 2 } else { 1 };
    let mut depth = 0usize;
    let mut row = 0usize;
    let mut column = "";
    let mut at = 0usize;
    while let Some(&byte) = bytes.get(at) {
        let start = at;
        at += 1;
        match byte {
            b'"' => {
                while bytes.get(at).is_some_and(|&byte| byte != b'"') {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                let text = json.get(start + 1..at).unwrap_or_default();
                at += 1;
                if depth == level && json.get(at..).is_some_and(|rest| rest.trim_start().starts_with(':')) {
                    column = text;
                }
            }
            b'{' | b'[' => {
                depth += 1;
                row += usize::from(depth == level);
                if row > limit {
                    return None;
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'-' | b'0'..=b'9' => {
                while bytes.get(at).is_some_and(|byte| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-')) {
                    at += 1;
                }
                let number = &json[start..at];
                if !is_exact(number) {
                    return Some(Inexact { row, column, number });
                }
            }
            _ => {}
        }
    }
    None
}

/// Whether the number survives parsing. An integer must fit 64 bits. Any other number must be written as a float is:
/// with the fewest digits that distinguish it from its neighbours, or with the 17 digits of C's `%.17g`.
fn is_exact(number: &str) -> bool {
    if number.len() <= 15 && !number.contains(['e', 'E']) {
        return true;
    }
    if !number.contains(['.', 'e', 'E']) {
        return number.parse::<i64>().is_ok() || number.parse::<u64>().is_ok();
    }
    // serde_json itself rejects numbers that are too large.
    let Some(float) = number.parse::<f64>().ok().filter(|float| float.is_finite()) else { return true };
    let written = digits(number);
    written.is_some() && (written == digits(&format!("{float:e}")) || written == digits(&format!("{float:.16e}")))
}

/// A number's digits without zeros at both ends, and the power of ten of the first digit; `None` if the exponent is too
/// large.
pub(crate) fn digits(number: &str) -> Option<(String, i64)> {
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all: String = whole.trim_start_matches('-').chars().chain(fraction.chars()).collect();
    let kept = all.trim_start_matches('0');
    if kept.is_empty() {
        return Some((String::new(), 0));
    }
    let first = (whole.trim_start_matches('-').len() as i64).checked_sub((all.len() - kept.len()) as i64)?;
    Some((kept.trim_end_matches('0').to_owned(), exponent.parse::<i64>().ok()?.checked_add(first)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_exact_if_64_bits_hold_it() {
        let wrong: Vec<(&str, bool)> = [
            ("0", true),
            ("-0", true),
            ("-0.0", true),
            ("0.0000000000000000000", true),
            ("0e99999999999999999999", true),
            ("5", true),
            ("-123456789012345", true),
            ("9007199254740993", true),
            ("9223372036854775807", true),
            ("18446744073709551615", true),
            ("-9223372036854775808", true),
            ("18446744073709551616", false),
            ("-9223372036854775809", false),
            ("100000000000000000000", false),
            ("100000000000000000001", false),
            ("1e20", true),
            ("1.5e300", true),
            ("1E+2", true),
            ("1e-400", false),
            ("1e-99999999999999999999", false),
            ("1e400", true),
            ("0.1", true),
            ("0.30000000000000004", true),
            // These are C's %.17g of 0.1, of 0.6, and of a third.
            ("0.10000000000000001", true),
            ("0.59999999999999998", true),
            ("0.33333333333333331", true),
            ("0.12345678901234567890", false),
            ("0.1234567890123456789", false),
            ("3.14159265358979323846", false),
            ("123456789012345678.5", false),
            ("9007199254740993.0", false),
            ("9007199254740992.0", true),
            ("1.00000000000000000001", false),
            ("1.00000000000000000000", true),
            ("100000000000000000001e0", false),
            ("1.7976931348623157e308", true),
            ("5e-324", true),
            ("4.9406564584124654e-324", true),
        ]
        .into_iter()
        .filter(|&(number, exact)| is_exact(number) != exact)
        .collect();
        assert!(wrong.is_empty(), "{wrong:?}");
    }

    #[test]
    fn the_first_inexact_number_has_its_row_and_column() {
        let big = "100000000000000000001";
        for (json, list, limit, expected) in [
            (format!(r#"{{"a": 1, "b": {big}}}"#), false, 9, Some((1, "b"))),
            (format!(r#"{{"a": {{"c": [1, {big}]}}, "b": 2}}"#), false, 9, Some((1, "a"))),
            (format!(r#"{{"a": "{big}", "b": "x\"{big}"}}"#), false, 9, None),
            (format!(r#"{{"a\\": "\\", "b" :{big}}}"#), false, 9, Some((1, "b"))),
            (format!(r#"[{{"a": 1}}, {{"a": -{big}}}]"#), true, 9, Some((2, "a"))),
            (format!(r#"[{{"a": 1}}, {{"a": {big}}}]"#), true, 1, None),
            (format!(r#" [{{"a": [{{}}, {{}}]}}, {{"é": {{"x": {big}}}}}]"#), true, 9, Some((2, "é"))),
            ("{}".into(), false, 9, None),
            (String::new(), false, 9, None),
        ] {
            let found = inexact(&json, list, limit);
            assert_eq!(found.map(|found| (found.row, found.column)), expected, "{json}");
        }
        let problem = inexact(r#"{"answer": 100000000000000000001}"#, false, 1).unwrap().problem();
        let expected = "column `answer`: 100000000000000000001 has more digits than 64 bits hold, and would be read as \
                        1e+20; write it as text: \"100000000000000000001\"";
        assert_eq!(problem, expected);
    }
}
