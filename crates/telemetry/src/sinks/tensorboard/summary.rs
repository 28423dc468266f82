//! Encodes the summary values of TensorBoard as protobuf, without a library.
//!
//! `Value`: 1 tag, 2 simple_value (float), 5 histo, 8 tensor, 9 metadata. Formats: tensorflow/core/framework's
//! summary.proto and tensor.proto, tensorboard/plugins/hparams/plugin_data.proto. TensorBoard converts a `histo` to a
//! tensor.

use crate::{CompletionRows, table};

/// The number of completions in the table of a step.
const ROWS: usize = 8;
/// The maximum number of characters in a cell of the table.
const CHARACTERS: usize = 600;
/// Number of buckets of a histogram.
const BUCKETS: usize = 30;

/// The value of a hyperparameter, for TensorBoard.
#[derive(Clone, Debug, PartialEq)]
pub enum HParam {
    /// A hyperparameter that is a number.
    Number(f64),
    /// A hyperparameter that is a string.
    Text(String),
    /// A hyperparameter that is a boolean.
    Bool(bool),
}

/// A summary value with one number. NaN and infinities are written unchanged; TensorBoard can show them.
pub fn scalar(tag: &str, value: f64) -> Vec<u8> {
    let mut entry = tagged(tag);
    key(&mut entry, 2, 5);
    entry.extend_from_slice(&(value as f32).to_le_bytes());
    entry
}

/// A histogram of `values` with buckets of equal width between the smallest and the largest value. NaN and infinities
/// are ignored. Returns `None` if no value is finite.
pub fn histogram(tag: &str, values: &[f64]) -> Option<Vec<u8>> {
    let values: Vec<f64> = values.iter().copied().filter(|x| x.is_finite()).collect();
    let (low, high) = values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), &x| (l.min(x), h.max(x)));
    if values.is_empty() {
        return None;
    }
    let wide = ((high - low) / BUCKETS as f64).max(f64::MIN_POSITIVE);
    let mut counts = [0f64; BUCKETS];
    for x in &values {
        counts[(((x - low) / wide) as usize).min(BUCKETS - 1)] += 1.0;
    }
    // The upper limits of the buckets. The first bucket begins at the smallest value.
    let limits: Vec<f64> = (1..=BUCKETS).map(|i| if i == BUCKETS { high } else { low + wide * i as f64 }).collect();
    let mut histo = Vec::new();
    let sums = [low, high, values.len() as f64, values.iter().sum(), values.iter().map(|x| x * x).sum()];
    for (field, x) in (1..).zip(sums) {
        double(&mut histo, field, x);
    }
    for (field, list) in [(6, &limits[..]), (7, &counts[..])] {
        let packed: Vec<u8> = list.iter().flat_map(|x| x.to_le_bytes()).collect();
        bytes(&mut histo, field, &packed);
    }
    let mut entry = tagged(tag);
    bytes(&mut entry, 5, &histo);
    Some(entry)
}

/// A summary value with a Markdown text.
pub fn text(tag: &str, text: &str) -> Vec<u8> {
    let (mut size, mut shape, mut tensor) = (Vec::new(), Vec::new(), Vec::new());
    integer(&mut size, 1, 1);
    bytes(&mut shape, 2, &size);
    integer(&mut tensor, 1, 7); // strings
    bytes(&mut tensor, 2, &shape);
    bytes(&mut tensor, 8, text.as_bytes());
    let mut entry = tagged(tag);
    bytes(&mut entry, 8, &tensor);
    bytes(&mut entry, 9, &metadata("text", b""));
    entry
}

/// A summary value with the hyperparameters of a run, for TensorBoard's HPARAMS table.
pub fn hparams(all: &[(String, HParam)]) -> Vec<u8> {
    let mut session = Vec::new();
    for (name, param) in all {
        let mut value = Vec::new();
        match param {
            HParam::Number(x) => double(&mut value, 2, *x),
            HParam::Text(text) => bytes(&mut value, 3, text.as_bytes()),
            HParam::Bool(yes) => integer(&mut value, 4, u64::from(*yes)),
        }
        let mut pair = Vec::new();
        bytes(&mut pair, 1, name.as_bytes());
        bytes(&mut pair, 2, &value);
        bytes(&mut session, 1, &pair);
    }
    let mut data = Vec::new();
    bytes(&mut data, 3, &session);
    let mut entry = tagged("_hparams_/session_start_info");
    bytes(&mut entry, 9, &metadata("hparams", &data));
    entry
}

/// The beginning of a summary value: its tag.
fn tagged(tag: &str) -> Vec<u8> {
    let mut entry = Vec::new();
    bytes(&mut entry, 1, tag.as_bytes());
    entry
}

fn metadata(plugin: &str, content: &[u8]) -> Vec<u8> {
    let (mut data, mut metadata) = (Vec::new(), Vec::new());
    bytes(&mut data, 1, plugin.as_bytes());
    bytes(&mut data, 2, content);
    bytes(&mut metadata, 1, &data);
    metadata
}

/// The first completions of a step, as a table in Markdown.
pub fn completions(rows: &CompletionRows) -> String {
    let cell = |text: &str| {
        let short: String = text.chars().take(CHARACTERS).collect();
        let escaped = short.replace('&', "&amp;").replace('<', "&lt;").replace('|', "\\|");
        escaped.lines().collect::<Vec<_>>().join("<br>")
    };
    let names: String = rows.rewards.iter().map(|(name, _)| format!(" {} |", cell(name))).collect();
    let mut out =
        format!("| prompt | completion |{names} advantage |\n|---|---|{}", "---|".repeat(rows.rewards.len() + 1));
    for row in 0..rows.prompts.len().min(ROWS) {
        let of = |content| cell(&table::shown(content));
        out += &format!("\n| {} | {} |", of(&rows.prompts[row]), of(&rows.completions[row]));
        for (_, scores) in &rows.rewards {
            out += &scores[row].map_or(" – |".to_owned(), |score| format!(" {score} |"));
        }
        out += &rows.advantages[row].map_or(" – |".to_owned(), |advantage| format!(" {advantage:.3} |"));
    }
    out
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Writes the key of a protobuf field: its number and wire type (0 varint, 1 eight bytes, 2 length-delimited, 5 four
/// bytes).
fn key(out: &mut Vec<u8>, field: u64, wire: u64) {
    varint(out, field << 3 | wire);
}

pub(super) fn integer(out: &mut Vec<u8>, field: u64, value: u64) {
    key(out, field, 0);
    varint(out, value);
}

pub(super) fn double(out: &mut Vec<u8>, field: u64, value: f64) {
    key(out, field, 1);
    out.extend_from_slice(&value.to_le_bytes());
}

pub(super) fn bytes(out: &mut Vec<u8>, field: u64, value: &[u8]) {
    key(out, field, 2);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_texts_and_hyperparameters_have_the_expected_bytes() {
        assert_eq!(scalar("a", 1.0), [0x0a, 1, b'a', 0x15, 0, 0, 0x80, 0x3f]);
        let tensor = [&[0x08, 7, 0x12, 4, 0x12, 2, 0x08, 1, 0x42, 2][..], b"xy"].concat();
        let metadata = [&[0x0a, 8, 0x0a, 4][..], b"text", &[0x12, 0]].concat();
        let expected = [&[0x0a, 1, b't', 0x42, 12][..], &tensor, &[0x4a, 10], &metadata].concat();
        assert_eq!(text("t", "xy"), expected);
        let all = [("n", HParam::Number(1.0)), ("t", HParam::Text("v".into())), ("b", HParam::Bool(true))];
        let pairs: [&[u8]; 3] = [
            &[0x0a, 14, 0x0a, 1, b'n', 0x12, 9, 0x11, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f],
            &[0x0a, 8, 0x0a, 1, b't', 0x12, 3, 0x1a, 1, b'v'],
            &[0x0a, 7, 0x0a, 1, b'b', 0x12, 2, 0x20, 1],
        ];
        let session = pairs.concat();
        let content = [&[0x1a, session.len() as u8][..], &session].concat();
        let data = [&[0x0a, 7][..], b"hparams", &[0x12, content.len() as u8], &content].concat();
        let metadata = [&[0x0a, data.len() as u8][..], &data].concat();
        let tag = b"_hparams_/session_start_info";
        let expected = [&[0x0a, tag.len() as u8][..], tag, &[0x4a, metadata.len() as u8], &metadata].concat();
        assert_eq!(hparams(&all.map(|(name, value)| (name.to_owned(), value))), expected);
    }

    /// Parses a histogram: its minimum, maximum, count, sum and sum of squares; the limits of the buckets; the counts
    /// of the buckets.
    fn read(entry: &[u8], tag: &str) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
        let doubles = |bytes: &[u8]| -> Vec<f64> {
            bytes.chunks_exact(8).map(|x| f64::from_le_bytes(x.try_into().unwrap())).collect()
        };
        let histo = entry.strip_prefix(tagged(tag).as_slice()).unwrap().strip_prefix(&[0x2a]).unwrap();
        let list_length = [BUCKETS * 8 % 128 + 128, BUCKETS * 8 / 128].map(|byte| byte as u8);
        let sums: Vec<f64> = (0..5).flat_map(|i| doubles(&histo[2 + 9 * i..][1..9])).collect();
        assert_eq!((0..5).map(|i| histo[2 + 9 * i]).collect::<Vec<_>>(), [0x09, 0x11, 0x19, 0x21, 0x29]);
        let (limits, counts) = histo[2 + 45..].split_at(3 + 8 * BUCKETS);
        assert_eq!(
            (&limits[..3], &counts[..3]),
            (&[0x32, list_length[0], list_length[1]][..], &[0x3a, list_length[0], list_length[1]][..])
        );
        (sums, doubles(&limits[3..]), doubles(&counts[3..]))
    }

    #[test]
    fn a_histogram_counts_only_finite_values() {
        let entry = histogram("h", &[0.0, 1.0, f64::NAN, 2.5, 30.0, f64::INFINITY, 29.0, f64::NEG_INFINITY]).unwrap();
        let (sums, limits, counts) = read(&entry, "h");
        assert_eq!(sums, [0.0, 30.0, 5.0, 62.5, 1.0 + 6.25 + 900.0 + 841.0]);
        assert_eq!(limits, (1..=30).map(f64::from).collect::<Vec<_>>());
        let mut expected = [0.0; BUCKETS];
        for (bucket, count) in [(0, 1.0), (1, 1.0), (2, 1.0), (29, 2.0)] {
            expected[bucket] = count;
        }
        assert_eq!(counts, expected);
        let (sums, limits, counts) = read(&histogram("one", &[-2.0, -2.0]).unwrap(), "one");
        assert_eq!((sums, limits), (vec![-2.0, -2.0, 2.0, -4.0, 8.0], vec![-2.0; BUCKETS]));
        assert_eq!((counts[0], counts.iter().sum::<f64>()), (2.0, 2.0));
        assert_eq!((histogram("none", &[]), histogram("none", &[f64::NAN, f64::INFINITY])), (None, None));
    }
}
