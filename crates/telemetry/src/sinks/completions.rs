//! Writes `completions/completions_00010.parquet`: the sampled completions of a logged step, in TRL's columns.
//!
//! The columns are `step, prompt, completion, <one column per reward>, <extra columns of rewards>, advantage`, with one
//! row per completion. The file can be read with `pandas.read_parquet`. Text becomes a string column. If all prompts
//! (or all completions) are conversations, the column is a list of structs with the messages' keys, as pandas writes
//! it. A mixture becomes text, with conversations as JSON. A missing reward is null. The file is not compressed.
//! Without the feature `parquet` the same columns are written as JSON lines (`.jsonl`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::Sink;
use crate::atomic_write::write_atomically;
use crate::{CompletionRows, Error, Event, EventKind, Result, Step};

#[cfg(feature = "parquet")]
mod parquet_file;

/// A sink that writes a table for each step whose completions it receives.
#[derive(Debug)]
pub struct CompletionsSink {
    directory: PathBuf,
}

impl CompletionsSink {
    /// A sink that writes its tables to `directory`. The directory is created with the first table.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        CompletionsSink { directory: directory.into() }
    }
}

impl Sink for CompletionsSink {
    fn receive(&mut self, event: &Event) -> Result<()> {
        let EventKind::Completions { rows, .. } = &event.kind else { return Ok(()) };
        write(&self.directory, rows).map(drop)
    }

    /// Removes the tables of steps after `step`, and incomplete tables.
    fn resume(&mut self, step: Step, _lengths: &BTreeMap<String, u64>) -> Result<Option<String>> {
        for entry in disk::read_dir(&self.directory).into_iter().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let number = name.strip_prefix("completions_").and_then(|n| n.split('.').next()?.parse().ok()).map(Step);
            let half_written = name.starts_with(".completions_") && name.ends_with(".tmp");
            if half_written || number.is_some_and(|n| n > step) {
                disk::remove_file(entry.path()).map_err(Error::io("remove", &entry.path()))?;
            }
        }
        Ok(None)
    }
}

/// The path of a step's table in `directory`.
fn path(directory: &Path, step: Step) -> PathBuf {
    let extension = if cfg!(feature = "parquet") { "parquet" } else { "jsonl" };
    directory.join(format!("completions_{step:05}.{extension}"))
}

/// Writes the table of a step atomically and returns its path. An existing table of the same step, for example from
/// before a resume, is replaced. The directory is created if it is missing.
fn write(directory: &Path, rows: &CompletionRows) -> Result<PathBuf> {
    let path = path(directory, rows.step);
    let bytes = columns(rows).and_then(|columns| encode(&columns, rows));
    let bytes = bytes.map_err(|message| Error::format(&path, message))?;
    disk::create_dir_all(directory).map_err(Error::io("create", directory))?;
    write_atomically(&path, &bytes)?;
    Ok(path)
}

#[cfg(feature = "parquet")]
fn encode(columns: &[Column], rows: &CompletionRows) -> std::result::Result<Vec<u8>, String> {
    parquet_file::encode(columns, rows.prompts.len())
}

/// The rows as JSON lines, one object per row, with conversations unchanged.
#[cfg(not(feature = "parquet"))]
fn encode(_checked: &[Column], rows: &CompletionRows) -> std::result::Result<Vec<u8>, String> {
    let mut out = Vec::new();
    for i in 0..rows.prompts.len() {
        let mut row = crate::Record::new();
        row.set("step", rows.step)
            .set("prompt", rows.prompts[i].clone())
            .set("completion", rows.completions[i].clone());
        for (name, scores) in &rows.rewards {
            row.set(name, scores[i]);
        }
        for (name, values) in &rows.extra {
            row.set(name, values[i].clone());
        }
        row.set("advantage", rows.advantages[i]);
        serde_json::to_writer(&mut out, &row.0).map_err(|error| error.to_string())?;
        out.push(b'\n');
    }
    Ok(out)
}

/// A column of the table: its name and its cells.
struct Column {
    name: String,
    cells: Cells,
}

/// The cells of a column, one per row; `None` is null.
#[cfg_attr(not(feature = "parquet"), allow(dead_code, reason = "without parquet only the number of cells is read"))]
enum Cells {
    Ints(Vec<Option<i64>>),
    Floats(Vec<Option<f64>>),
    Bools(Vec<Option<bool>>),
    Texts(Vec<Option<String>>),
    /// Lists of chat messages: the keys of the messages, and for each row and message the values of these keys.
    Messages {
        keys: Vec<String>,
        rows: Vec<Vec<Vec<Option<String>>>>,
    },
}

/// The columns of the table in order. Fails if their lengths differ or two columns have the same name.
fn columns(rows: &CompletionRows) -> std::result::Result<Vec<Column>, String> {
    let n = rows.prompts.len();
    let mut columns = vec![
        Column { name: "step".to_owned(), cells: Cells::Ints(vec![Some(rows.step.0 as i64); n]) },
        Column { name: "prompt".to_owned(), cells: cells(&rows.prompts) },
        Column { name: "completion".to_owned(), cells: cells(&rows.completions) },
    ];
    columns.extend(
        rows.rewards.iter().map(|(name, scores)| Column { name: name.clone(), cells: Cells::Floats(scores.clone()) }),
    );
    columns.extend(rows.extra.iter().map(|(name, values)| Column { name: name.clone(), cells: cells(values) }));
    columns.push(Column { name: "advantage".to_owned(), cells: Cells::Floats(rows.advantages.clone()) });
    for (i, column) in columns.iter().enumerate() {
        if column.cells.len() != n {
            return Err(format!(
                "column `{}` must have one value per completion: got {} values for {n} completions",
                column.name,
                column.cells.len()
            ));
        }
        if columns[..i].iter().any(|other| other.name == column.name) {
            return Err(format!("two columns have the name `{}`: rename one of the rewards", column.name));
        }
    }
    Ok(columns)
}

impl Cells {
    fn len(&self) -> usize {
        match self {
            Cells::Ints(cells) => cells.len(),
            Cells::Floats(cells) => cells.len(),
            Cells::Bools(cells) => cells.len(),
            Cells::Texts(cells) => cells.len(),
            Cells::Messages { rows, .. } => rows.len(),
        }
    }
}

/// Converts the values to cells of the most specific type that fits all of them.
fn cells(values: &[Value]) -> Cells {
    fn all<T>(values: &[Value], read: impl Fn(&Value) -> Option<T>) -> Option<Vec<Option<T>>> {
        let cell = |value: &Value| if value.is_null() { Some(None) } else { read(value).map(Some) };
        values.iter().map(cell).collect()
    }
    if let Some(texts) = all(values, |value| value.as_str().map(str::to_owned)) {
        return Cells::Texts(texts);
    }
    if let Some(rows) = values.iter().map(messages).collect::<Option<Vec<_>>>() {
        let mut keys: Vec<String> = Vec::new();
        for key in rows.iter().flatten().flat_map(|message| message.keys()) {
            if !keys.contains(key) {
                keys.push(key.clone());
            }
        }
        if !keys.is_empty() {
            let cell = |value: Option<&Value>| value.filter(|value| !value.is_null()).map(text);
            let row = |row: &Vec<&serde_json::Map<String, Value>>| {
                row.iter().map(|message| keys.iter().map(|key| cell(message.get(key))).collect()).collect()
            };
            let rows = rows.iter().map(row).collect();
            return Cells::Messages { keys, rows };
        }
    }
    if let Some(bools) = all(values, Value::as_bool) {
        return Cells::Bools(bools);
    }
    if let Some(ints) = all(values, Value::as_i64) {
        return Cells::Ints(ints);
    }
    if let Some(floats) = all(values, Value::as_f64) {
        return Cells::Floats(floats);
    }
    Cells::Texts(values.iter().map(|value| (!value.is_null()).then(|| text(value))).collect())
}

/// The objects of a JSON array of objects; `None` for any other value.
fn messages(value: &Value) -> Option<Vec<&serde_json::Map<String, Value>>> {
    value.as_array()?.iter().map(Value::as_object).collect()
}

/// A string unchanged; any other value as JSON.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(all(test, feature = "parquet"))]
mod tests;
