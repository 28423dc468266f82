//! Rows of files: JSONL and Parquet, each row a map from column to JSON value.

use crate::bad_input;
use crate::error::BadInput;
use crate::stop::StopSignal;
use serde_json::{Map, Value};
use std::path::Path;
use std::sync::Arc;

/// A row as read.
pub type Row = Map<String, Value>;

/// Rows that a program has in memory; a clone is another handle to the same ones.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows(pub(super) Arc<Vec<Row>>);

impl TryFrom<Vec<Value>> for Rows {
    type Error = anyhow::Error;

    /// From JSON objects, as the lines of a file would have them.
    fn try_from(values: Vec<Value>) -> anyhow::Result<Rows> {
        let row = |(i, value)| match value {
            Value::Object(row) => Ok(row),
            other => {
                Err(BadInput::new(format!("row {} is no JSON object such as {{\"prompt\": \"…\"}}: {other}", i + 1)))
            }
        };
        Ok(Rows(Arc::new(values.into_iter().enumerate().map(row).collect::<anyhow::Result<_>>()?)))
    }
}

/// Reads up to `limit` rows of a file's content, each with where it stands (a line of JSONL, a row of Parquet, from 1).
pub fn read(path: &Path, content: &[u8], limit: usize, stop: &StopSignal) -> anyhow::Result<Vec<(usize, Row)>> {
    match path.extension().and_then(|e| e.to_str()) {
        #[cfg(feature = "parquet")]
        Some("parquet") => super::parquet::read(path, limit, stop),
        #[cfg(not(feature = "parquet"))]
        Some("parquet") => {
            bad_input!("{}: this program was built without Parquet (feature `parquet`); use JSON lines", path.display())
        }
        Some("gz" | "zst" | "csv" | "arrow") => bad_input!(
            "{}: datasets are read as JSON lines (.jsonl) or Parquet (.parquet); unpack or convert it first",
            path.display()
        ),
        Some("json") if content.trim_ascii_start().starts_with(b"[") => json_array(path, content, limit),
        _ => json_lines(path, content, limit, stop),
    }
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
            Ok(Value::Object(row)) => rows.push((index + 1, row)),
            Ok(_) => bad_input!("{}: each line must be a JSON object such as {{\"prompt\": \"…\"}}", place()),
            Err(e) => {
                // serde_json counts lines within this one.
                let what = e.to_string();
                let what = what.split(" at line ").next().unwrap_or(&what);
                bad_input!("{}, column {}: broken JSON: {what}", place(), e.column())
            }
        }
    }
    Ok(rows)
}

/// One list of objects, as `.json` files often are.
fn json_array(path: &Path, content: &[u8], limit: usize) -> anyhow::Result<Vec<(usize, Row)>> {
    let rows: Vec<Row> = serde_json::from_slice(content)
        .map_err(|e| BadInput::new(format!("{}: broken JSON, or no list of objects: {e}", path.display())))?;
    Ok((1..).zip(rows).take(limit).collect())
}
