//! Encodes the summary values of TensorBoard as protobuf, without a library.
//!
//! `Value`: 1 tag, 2 simple_value (float), 5 histo, 8 tensor, 9 metadata. Formats: tensorflow/core/framework's
//! summary.proto and tensor.proto, tensorboard/plugins/hparams/plugin_data.proto. TensorBoard makes a tensor of a
//! `histo` itself.

use crate::{CompletionRows, table};

/// Number of completions of a step that are shown.
const ROWS: usize = 8;
/// Largest number of characters in a cell of that table.
const CHARACTERS: usize = 600;
/// Number of buckets of a histogram.
const BUCKETS: usize = 30;

/// The value of a hyperparameter, for TensorBoard.
#[derive(Clone, Debug, PartialEq)]
pub enum HParam {
    /// A hyperparameter that is a number.
    Number(f64),
    /// A hyperparameter that is a text.
    Text(String),
    /// A hyperparameter that is a boolean.
    Bool(bool),
}

/// A summary value with one number. NaN and infinities are written as such, and TensorBoard shows them.
pub fn scalar(tag: &str, value: f64) -> Vec<u8> {
    let mut entry = tagged(tag);
    key(&mut entry, 2, 5);
    entry.extend_from_slice(&(value as f32).to_le_bytes());
    entry
}

/// A histogram of `values` with buckets of equal width between the smallest and the largest. NaN and infinities are
/// left out; the result is none if nothing is left.
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
    // A bucket ends where the next begins; the first one begins at the least value.
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

/// A summary value with a text in Markdown.
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

/// The beginning of a summary value: only its tag.
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
        out += &format!(" {:.3} |", rows.advantages[row]);
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
