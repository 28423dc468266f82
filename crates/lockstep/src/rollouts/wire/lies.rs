//! Changes one column of a record at a time, with a correct checksum, for tests.

use super::record::{Kind, RecordReader, RecordWriter};
use serde_json::Value;

/// The names of the columns of the first record in `bytes`.
pub(crate) fn columns(bytes: &[u8]) -> Vec<String> {
    RecordReader::take(bytes).unwrap().0.names().map(str::to_owned).collect()
}

/// The records in `bytes`, one by one.
pub(crate) fn split(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let (_, rest) = RecordReader::take(bytes).unwrap();
        records.push(bytes[..bytes.len() - rest.len()].to_vec());
        bytes = rest;
    }
    records
}

/// The record `bytes` with a different value in `column`: a number that differs in its last bit, another string, or
/// another leaf of JSON. `None` if the column has no values.
pub(crate) fn changed(bytes: &[u8], column: &str) -> Option<Vec<u8>> {
    let (read, _) = RecordReader::take(bytes).unwrap();
    let kind = read.kind(column).unwrap();
    let is_empty = match kind {
        Kind::Text => read.texts(column).unwrap().unwrap().is_empty(),
        Kind::Uint => read.uints(column).unwrap().unwrap().is_empty(),
        Kind::F32 => read.f32s(column).unwrap().unwrap().is_empty(),
        Kind::F64 => read.f64s(column).unwrap().unwrap().is_empty(),
        Kind::Bytes => read.bytes(column).unwrap().unwrap().is_empty(),
        Kind::Runs => runs(&read, column).is_empty(),
    };
    (!is_empty).then(|| written(bytes, Some(column), None))
}

/// The record `bytes` without `column`.
pub(crate) fn without(bytes: &[u8], column: &str) -> Vec<u8> {
    written(bytes, None, Some(column))
}

/// The record `bytes` with an additional column `name`.
pub(crate) fn with_more(bytes: &[u8], name: &str) -> Vec<u8> {
    let mut record = copied(bytes, None, None);
    record.texts(name, ["a lie"]);
    let mut out = Vec::new();
    record.finish(&mut out);
    out
}

fn written(bytes: &[u8], changed: Option<&str>, left_out: Option<&str>) -> Vec<u8> {
    let mut out = Vec::new();
    copied(bytes, changed, left_out).finish(&mut out);
    out
}

fn copied(bytes: &[u8], changed: Option<&str>, left_out: Option<&str>) -> RecordWriter {
    let (read, _) = RecordReader::take(bytes).unwrap();
    let mut record = RecordWriter::new();
    for column in read.names().filter(|name| Some(*name) != left_out) {
        let (width, lies) = (read.width(column) as usize, Some(column) == changed);
        if read.refuse_unknown(|name| name != column).is_err() {
            record.must_be_known();
        }
        match read.kind(column).unwrap() {
            Kind::Uint => {
                let mut values = read.uints(column).unwrap().unwrap();
                values.last_mut().into_iter().filter(|_| lies).for_each(|value| *value ^= 1);
                record.uints(column, width, values);
            }
            Kind::F32 => {
                let mut values = read.f32s(column).unwrap().unwrap();
                let last = values.last_mut().into_iter().filter(|_| lies);
                last.for_each(|value| *value = f32::from_bits(value.to_bits() ^ 1));
                record.f32s(column, width, &values);
            }
            Kind::F64 => {
                let mut values = read.f64s(column).unwrap().unwrap();
                let last = values.last_mut().into_iter().filter(|_| lies);
                last.for_each(|value| *value = f64::from_bits(value.to_bits() ^ 1));
                record.f64s(column, width, &values);
            }
            Kind::Runs => {
                let mut values = runs(&read, column);
                values.last_mut().into_iter().filter(|_| lies).for_each(|value| *value ^= 1);
                record.runs(column, values);
            }
            Kind::Text => {
                let mut texts: Vec<String> =
                    read.texts(column).unwrap().unwrap().into_iter().map(str::to_owned).collect();
                texts.last_mut().into_iter().filter(|_| lies).for_each(|text| *text = other_text(text));
                record.texts(column, texts);
            }
            Kind::Bytes => {
                let mut bytes = read.bytes(column).unwrap().unwrap().to_vec();
                bytes.last_mut().into_iter().filter(|_| lies).for_each(|byte| *byte ^= 1);
                record.bytes(column, &bytes);
            }
        }
    }
    record
}

fn runs(read: &RecordReader<'_>, column: &str) -> Vec<u64> {
    (0..1000).find_map(|count| read.runs(column, count).ok()).unwrap().unwrap()
}

fn other_text(text: &str) -> String {
    match serde_json::from_str::<Value>(text) {
        Ok(mut value) => {
            other_json(&mut value);
            value.to_string()
        }
        Err(_) => format!("{text}x"),
    }
}

/// Changes the last leaf of a JSON value. An empty list or object gets a first element.
pub(crate) fn other_json(value: &mut Value) {
    match value {
        Value::Null => *value = Value::from("x"),
        Value::Bool(flag) => *flag = !*flag,
        Value::String(text) => text.push('x'),
        Value::Number(number) => {
            *value = match number.as_u64() {
                Some(whole) => Value::from(whole ^ 1),
                None => Value::from(number.as_f64().unwrap() + 1.0),
            }
        }
        Value::Array(list) => match list.last_mut() {
            Some(last) => other_json(last),
            None => list.push(Value::from("x")),
        },
        Value::Object(fields) => match fields.values_mut().next_back() {
            Some(last) => other_json(last),
            None => drop(fields.insert("lie".to_owned(), Value::from(1))),
        },
    }
}
