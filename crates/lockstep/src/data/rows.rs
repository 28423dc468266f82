//! Reads rows from JSONL and JSON files, and from Parquet through `super::parquet`. A row is a map from column name to
//! JSON value.

use super::Row;
use crate::bad_input;
use crate::error::BadInput;
use crate::stop::StopSignal;
use rewards::inexact;
use serde::Deserializer;
use serde::de::{DeserializeSeed, SeqAccess, Visitor};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// The end of the error for a line that ends within an object. Often the cause is an object written over several lines.
pub const WHOLE_LINES: &str = ": each line must hold one whole JSON object, so write the object on a single line";

/// Dataset rows in the caller's memory. Clones share the rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows(pub(super) Arc<Vec<Row>>);

impl TryFrom<Vec<Value>> for Rows {
    type Error = anyhow::Error;

    /// Accepts JSON objects, one per row, like the lines of a JSONL file.
    fn try_from(values: Vec<Value>) -> anyhow::Result<Rows> {
        let row = |(i, value)| match value {
            Value::Object(row) => Ok(row),
            other => {
                Err(BadInput::new(format!("row {} is not a JSON object such as {{\"prompt\": \"…\"}}: {other}", i + 1)))
            }
        };
        Ok(Rows(Arc::new(values.into_iter().enumerate().map(row).collect::<anyhow::Result<_>>()?)))
    }
}

/// Reads up to `limit` rows of a file's content. Each row comes with its number from 1: the number of the line in
/// JSONL, else of the row.
pub fn read(path: &Path, content: &[u8], limit: usize, stop: &StopSignal) -> anyhow::Result<Vec<(usize, Row)>> {
    match path.extension().and_then(|e| e.to_str()) {
        #[cfg(feature = "parquet")]
        Some("parquet") => super::parquet::read(path, limit, stop),
        #[cfg(not(feature = "parquet"))]
        Some("parquet") => {
            bad_input!(
                "{}: this program was built without Parquet (feature `parquet`); convert the file to JSON lines",
                path.display()
            )
        }
        Some("gz" | "zst" | "csv" | "arrow") => bad_input!(
            "{}: datasets are read as JSON lines (.jsonl) or Parquet (.parquet); unpack or convert it first",
            path.display()
        ),
        Some("json") if is_list(content) => json_array(path, content, limit, stop),
        _ => json_lines(path, content, limit, stop),
    }
}

/// Whether the content is one JSON list instead of lines.
pub(super) fn is_list(content: &[u8]) -> bool {
    content.strip_prefix("\u{feff}".as_bytes()).unwrap_or(content).trim_ascii_start().starts_with(b"[")
}

fn json_lines(path: &Path, content: &[u8], limit: usize, stop: &StopSignal) -> anyhow::Result<Vec<(usize, Row)>> {
    let mut rows = Vec::new();
    for (index, line) in content.split(|&b| b == b'\n').enumerate() {
        if rows.len() == limit {
            break;
        }
        stop.check()?;
        let place = || format!("{}, line {}", path.display(), index + 1);
        let text = std::str::from_utf8(line).map_err(|e| BadInput::new(format!("{}: not UTF-8: {e}", place())))?;
        let text = if index == 0 { text.trim_start_matches('\u{feff}') } else { text };
        if text.trim().is_empty() {
            continue;
        }
        match serde_json::from_str(text) {
            Ok(Value::Object(row)) => match inexact(text, false, 1) {
                None => rows.push((index + 1, row)),
                Some(number) => bad_input!("{}, {}", place(), number.problem()),
            },
            Ok(_) => bad_input!("{}: each line must be a JSON object such as {{\"prompt\": \"…\"}}", place()),
            Err(e) => {
                // serde_json counts lines within the current line of the file.
                let what = e.to_string();
                let what = what.split(" at line ").next().unwrap_or(&what);
                let whole = if e.is_eof() { WHOLE_LINES } else { "" };
                bad_input!("{}, column {}: broken JSON: {what}{whole}", place(), e.column())
            }
        }
    }
    Ok(rows)
}

/// Reads a file that is one JSON list of objects, as `.json` files often are.
fn json_array(path: &Path, content: &[u8], limit: usize, stop: &StopSignal) -> anyhow::Result<Vec<(usize, Row)>> {
    let content = content.strip_prefix("\u{feff}".as_bytes()).unwrap_or(content);
    let mut json = serde_json::Deserializer::from_slice(content);
    let rows = List { limit, stop }.deserialize(&mut json).and_then(|rows| json.end().map(|()| rows));
    stop.check()?;
    let rows =
        rows.map_err(|e| BadInput::new(format!("{}: broken JSON, or not a list of objects: {e}", path.display())))?;
    match std::str::from_utf8(content).ok().and_then(|text| inexact(text, true, limit)) {
        None => Ok(rows),
        Some(number) => bad_input!("{}, row {}, {}", path.display(), number.row, number.problem()),
    }
}

/// Deserializes a list of rows and keeps the first `limit`.
struct List<'a> {
    limit: usize,
    stop: &'a StopSignal,
}

impl<'de> DeserializeSeed<'de> for List<'_> {
    type Value = Vec<(usize, Row)>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for List<'_> {
    type Value = Vec<(usize, Row)>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a list of objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let (mut rows, mut number) = (Vec::new(), 0);
        while let Some(row) = list.next_element::<Row>()? {
            number += 1;
            if rows.len() < self.limit {
                rows.push((number, row));
            }
            if self.stop.is_requested() {
                return Err(serde::de::Error::custom("stopped"));
            }
        }
        Ok(rows)
    }
}
