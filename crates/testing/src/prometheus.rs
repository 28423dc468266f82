//! A strict parser of the Prometheus text format, version 0.0.4, for tests of exporters.

use std::collections::{BTreeMap, BTreeSet};

/// One value of a metric, with its labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The name of the metric.
    pub name: String,
    /// The labels and their unescaped values.
    pub labels: BTreeMap<String, String>,
    /// The value.
    pub value: f64,
}

/// Parses all samples of a text, in order, and the type of each metric. An error contains the line that violates the
/// format. Each metric must have one `HELP` and one `TYPE` line, followed by all of its samples without other metrics
/// between them, and each sample may occur only once.
#[allow(clippy::type_complexity)]
pub fn read(text: &str) -> Result<(Vec<Sample>, BTreeMap<String, String>), String> {
    let (mut samples, mut types, mut helps) = (Vec::<Sample>::new(), BTreeMap::new(), BTreeSet::new());
    let mut seen = BTreeSet::new();
    if !text.is_empty() && !text.ends_with('\n') {
        return Err("the last line must end with a newline".to_owned());
    }
    for line in text.lines() {
        let wrong = |why: &str| Err(format!("{why}: {line}"));
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, text) = help.split_once(' ').unwrap_or((help, ""));
            if !is_name(name, ":_") || !helps.insert(name.to_owned()) {
                return wrong("expected a valid metric name without an earlier HELP line");
            }
            unescaped(text, "\\n")?;
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let Some((name, kind)) = kind.split_once(' ') else { return wrong("missing type") };
            let known = ["counter", "gauge", "histogram", "summary", "untyped"].contains(&kind);
            if !known || !helps.contains(name) || types.insert(name.to_owned(), kind.to_owned()).is_some() {
                return wrong("expected a known type, after the HELP line, and only once per metric");
            }
        } else {
            let sample = sample(line)?;
            if !types.contains_key(&sample.name) {
                return wrong("the TYPE line must precede the samples");
            }
            let is_new = samples.last().is_none_or(|last| last.name != sample.name);
            if is_new && samples.iter().any(|other| other.name == sample.name) {
                return wrong("the samples of a metric must be consecutive");
            }
            if !seen.insert((sample.name.clone(), sample.labels.clone())) {
                return wrong("duplicate sample");
            }
            samples.push(sample);
        }
    }
    Ok((samples, types))
}

fn is_name(text: &str, more: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || more.contains(c);
    !text.is_empty() && text.chars().all(fits) && !text.starts_with(|c: char| c.is_ascii_digit())
}

/// Parses a line `name{label="value",…} number`.
fn sample(line: &str) -> Result<Sample, String> {
    let wrong = |why: &str| format!("{why}: {line}");
    let name_end = line.find(['{', ' ']).ok_or_else(|| wrong("missing value"))?;
    let (name, mut rest) = line.split_at(name_end);
    if !is_name(name, ":_") {
        return Err(wrong("invalid metric name"));
    }
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (label, after) = rest.split_once("=\"").ok_or_else(|| wrong("expected label=\"value\""))?;
            if !is_name(label, "_") {
                return Err(wrong("invalid label name"));
            }
            let end = end_of(after).ok_or_else(|| wrong("unterminated string"))?;
            let value = unescaped(&after[..end], "\\\"n")?;
            if labels.insert(label.to_owned(), value).is_some() {
                return Err(wrong("duplicate label"));
            }
            rest = &after[end + 1..];
            rest = rest.strip_prefix(',').unwrap_or(rest);
        }
        rest = &rest[1..];
    }
    let number = rest.strip_prefix(' ').ok_or_else(|| wrong("missing space before the value"))?;
    let value = match number {
        "NaN" => f64::NAN,
        "+Inf" => f64::INFINITY,
        "-Inf" => f64::NEG_INFINITY,
        number if number.starts_with(|c: char| c.is_ascii_digit() || c == '-') => {
            number.parse().map_err(|_| wrong("invalid number"))?
        }
        _ => return Err(wrong("invalid number")),
    };
    Ok(Sample { name: name.to_owned(), labels, value })
}

/// The position of the quote that ends the string.
fn end_of(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    text.char_indices().find_map(|(at, c)| {
        let ends = c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        ends.then_some(at)
    })
}

/// The string with escapes replaced. Only the escapes in `allowed` are accepted.
fn unescaped(text: &str, allowed: &str) -> Result<String, String> {
    let (mut plain, mut chars) = (String::new(), text.chars());
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next().filter(|c| allowed.contains(*c)) {
                Some('n') => plain.push('\n'),
                Some(c) => plain.push(c),
                None => return Err(format!("unknown escape in {text}")),
            },
            c => plain.push(c),
        }
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "# HELP a_b A \\n.\n# TYPE a_b gauge\n";

    #[test]
    fn samples_are_parsed_with_their_labels() {
        let text = format!("{HEAD}a_b{{x=\"1,\\\"\\\\\\n}}\",y=\"\"}} -0.5\na_b{{}} NaN\na_b{{z=\"é\"}} +Inf\n");
        let (samples, types) = read(&text).unwrap();
        assert_eq!(types, BTreeMap::from([("a_b".to_owned(), "gauge".to_owned())]));
        assert_eq!(samples[0].labels["x"], "1,\"\\\n}");
        assert_eq!((samples[0].value, samples[2].value, &*samples[2].labels["z"]), (-0.5, f64::INFINITY, "é"));
        assert!(samples[1].value.is_nan() && samples[1].labels.is_empty());
        assert_eq!(read("").unwrap().0, []);
    }

    #[test]
    fn text_that_prometheus_would_reject_is_an_error() {
        let other = "# HELP c d\n# TYPE c counter\nc 1\n";
        for text in [
            "a 1\n".to_owned(),
            format!("{HEAD}a_b 1"),
            format!("{HEAD}a_b one\n"),
            format!("{HEAD}a_b inf\n"),
            format!("{HEAD}a_b{{x=\"1\"}}2\n"),
            format!("{HEAD}a_b{{x=\"\\t\"}} 2\n"),
            format!("{HEAD}a_b{{x=\"1}} 2\n"),
            format!("{HEAD}a_b{{x-y=\"1\"}} 2\n"),
            format!("{HEAD}a_b 1\na_b 2\n"),
            format!("{HEAD}a_b 1\n{other}a_b{{x=\"1\"}} 2\n"),
            format!("{HEAD}{HEAD}"),
            "# TYPE a gauge\n".to_owned(),
            "# HELP a/b c\n".to_owned(),
            "# HELP a b\n# TYPE a number\n".to_owned(),
            "9a 1\n".to_owned(),
        ] {
            assert!(read(&text).is_err(), "{text}");
        }
    }
}
