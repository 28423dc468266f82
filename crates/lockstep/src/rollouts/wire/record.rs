//! A record: named columns of values, with a checksum. This layer knows nothing of groups.

use std::fmt::Display;
use twox_hash::XxHash3_64;

/// The version of the layout.
pub const VERSION: u8 = 1;

/// The first three bytes of a record; the version follows.
pub(super) const MAGIC: &[u8; 3] = b"LSG";
/// Length in bytes of the header before a record's body.
pub(super) const HEADER: usize = 16;
/// A bit in a column's kind: a reader that does not know the column must refuse the whole record.
const MUST_BE_KNOWN: u8 = 0x80;

/// The error for bytes that are not a record, or a record that this version cannot read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct WireError(String);

impl WireError {
    pub(super) fn new(text: impl Into<String>) -> WireError {
        WireError(text.into())
    }
    pub(super) fn of(self, what: impl Display) -> WireError {
        WireError(format!("{what}: {}", self.0))
    }
}

/// The type of the values in a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A column of unsigned integers, as varints.
    Uint = 1,
    /// A column of f32 values; every bit is preserved.
    F32 = 2,
    /// A column of f64 values; every bit is preserved.
    F64 = 3,
    /// Run-length encoded unsigned integers: a value, and how often it is repeated.
    Runs = 4,
    /// A column of UTF-8 texts.
    Text = 5,
    /// A column that is one string of raw bytes.
    Bytes = 6,
}

impl Kind {
    const ALL: [Kind; 6] = [Kind::Uint, Kind::F32, Kind::F64, Kind::Runs, Kind::Text, Kind::Bytes];
}

/// Builds a record from columns. The same columns in the same order give the same bytes.
#[derive(Debug, Default)]
pub struct RecordWriter {
    columns: u64,
    directory: Vec<u8>,
    data: Vec<u8>,
    must_be_known: bool,
}

impl RecordWriter {
    /// A writer of an empty record.
    pub fn new() -> RecordWriter {
        RecordWriter::default()
    }

    /// Marks the next column: readers that do not know it must refuse the record.
    pub fn must_be_known(&mut self) -> &mut RecordWriter {
        self.must_be_known = true;
        self
    }

    /// Adds a column of unsigned integers, as varints: small ones take few bytes.
    pub fn uints(&mut self, name: &str, width: usize, values: impl IntoIterator<Item = u64>) {
        self.column(name, Kind::Uint, width, |to| values.into_iter().for_each(|value| put_varint(to, value)));
    }

    /// Adds a column of f32 values, preserved to the bit.
    pub fn f32s<'a>(&mut self, name: &str, width: usize, values: impl IntoIterator<Item = &'a f32>) {
        let bytes = |x: &f32| x.to_bits().to_le_bytes();
        self.column(name, Kind::F32, width, |to| values.into_iter().for_each(|x| to.extend(bytes(x))));
    }

    /// Adds a column of f64 values, preserved to the bit.
    pub fn f64s<'a>(&mut self, name: &str, width: usize, values: impl IntoIterator<Item = &'a f64>) {
        let bytes = |x: &f64| x.to_bits().to_le_bytes();
        self.column(name, Kind::F64, width, |to| values.into_iter().for_each(|x| to.extend(bytes(x))));
    }

    /// Adds a run-length encoded column, for numbers that mostly equal the one before.
    pub fn runs(&mut self, name: &str, values: impl IntoIterator<Item = u64>) {
        self.column(name, Kind::Runs, 1, |to| {
            let mut put = |(value, times)| {
                put_varint(to, value);
                put_varint(to, times);
            };
            let mut open: Option<(u64, u64)> = None;
            for value in values {
                match &mut open {
                    Some((same, times)) if *same == value => *times += 1,
                    _ => open.replace((value, 1)).into_iter().for_each(&mut put),
                }
            }
            open.into_iter().for_each(put);
        });
    }

    /// Adds a column of texts.
    pub fn texts(&mut self, name: &str, texts: impl IntoIterator<Item = impl AsRef<str>>) {
        self.column(name, Kind::Text, 1, |to| {
            for text in texts {
                put_varint(to, text.as_ref().len() as u64);
                to.extend_from_slice(text.as_ref().as_bytes());
            }
        });
    }

    /// Adds a column of raw bytes.
    pub fn bytes(&mut self, name: &str, bytes: &[u8]) {
        self.column(name, Kind::Bytes, 1, |to| to.extend_from_slice(bytes));
    }

    fn column(&mut self, name: &str, kind: Kind, width: usize, put: impl FnOnce(&mut Vec<u8>)) {
        let length = u8::try_from(name.len()).expect("names of columns are short");
        let before = self.data.len();
        put(&mut self.data);
        self.columns += 1;
        self.directory.push(length);
        self.directory.extend_from_slice(name.as_bytes());
        let must_be_known = std::mem::take(&mut self.must_be_known);
        self.directory.push(kind as u8 | if must_be_known { MUST_BE_KNOWN } else { 0 });
        put_varint(&mut self.directory, width as u64);
        put_varint(&mut self.directory, (self.data.len() - before) as u64);
    }

    /// Appends the record to `to`.
    ///
    /// # Panics
    /// If the record has 4 GiB or more.
    pub fn finish(self, to: &mut Vec<u8>) {
        let mut body = Vec::with_capacity(self.data.len() + self.directory.len() + 10);
        put_varint(&mut body, self.columns);
        body.extend_from_slice(&self.directory);
        body.extend_from_slice(&self.data);
        to.extend_from_slice(MAGIC);
        to.push(VERSION);
        to.extend(u32::try_from(body.len()).expect("a record has less than 4 GiB").to_le_bytes());
        to.extend(XxHash3_64::oneshot(&body).to_le_bytes());
        to.extend_from_slice(&body);
    }
}

/// Reads the columns of a record; only the columns that are requested are decoded.
#[derive(Debug)]
pub struct RecordReader<'a> {
    columns: Vec<RawColumn<'a>>,
}

#[derive(Clone, Copy, Debug)]
struct RawColumn<'a> {
    name: &'a str,
    kind: u8,
    width: u64,
    bytes: &'a [u8],
}

/// The length in bytes of the record with this `header`, which has at least [`HEADER`] bytes.
pub(super) fn record_length(header: &[u8]) -> Result<u64, WireError> {
    let (magic, version) = (&header[..3], header[3]);
    if magic != MAGIC {
        return Err(WireError::new("not a record: it does not begin with LSG"));
    }
    if version != VERSION {
        return Err(WireError::new(format!(
            "the record has layout version {version}, but this program reads version {VERSION}: use {}",
            if version > VERSION { "a newer one" } else { "the program that wrote the record" }
        )));
    }
    let length = u32::from_le_bytes(header[4..8].try_into().expect("four bytes"));
    Ok(HEADER as u64 + u64::from(length))
}

impl<'a> RecordReader<'a> {
    /// Reads the record at the start of `bytes`, and also returns the bytes after it.
    pub fn take(bytes: &'a [u8]) -> Result<(RecordReader<'a>, &'a [u8]), WireError> {
        if bytes.len() < HEADER {
            return Err(WireError::new(format!(
                "{} bytes are not a record: the header alone has {HEADER}",
                bytes.len()
            )));
        }
        let length = record_length(bytes)?;
        let whole = usize::try_from(length).ok().and_then(|length| bytes.split_at_checked(length));
        let Some((record, rest)) = whole else {
            let there = bytes.len();
            return Err(WireError::new(format!("the record is truncated: {there} of {length} bytes")));
        };
        let (header, body) = record.split_at(HEADER);
        if XxHash3_64::oneshot(body).to_le_bytes() != header[8..] {
            return Err(WireError::new("the checksum (XXH3) does not match: the record is damaged"));
        }
        Ok((RecordReader { columns: directory(body)? }, rest))
    }

    /// The names of the columns.
    pub fn names(&self) -> impl Iterator<Item = &'a str> {
        self.columns.iter().map(|column| column.name)
    }

    /// Refuses a record that has a must-be-known column for which `known` is false.
    pub fn refuse_unknown(&self, known: impl Fn(&str) -> bool) -> Result<(), WireError> {
        let unknown = |c: &&RawColumn<'_>| c.kind & MUST_BE_KNOWN != 0 && !known(c.name);
        match self.columns.iter().find(unknown) {
            Some(c) => Err(WireError::new(format!(
                "column `{}` is required, but unknown to this program: use a newer one",
                c.name
            ))),
            None => Ok(()),
        }
    }

    /// The type of a column's values; `None` if the column is missing or its kind is unknown to this version.
    pub fn kind(&self, name: &str) -> Option<Kind> {
        let column = self.columns.iter().find(|c| c.name == name)?;
        Kind::ALL.into_iter().find(|&kind| kind as u8 == column.kind & !MUST_BE_KNOWN)
    }

    /// The width of a column: the number of values per element. An element is a token, for example.
    pub fn width(&self, name: &str) -> u64 {
        self.columns.iter().find(|c| c.name == name).map_or(1, |c| c.width)
    }

    fn get(&self, name: &str, kind: Kind) -> Result<Option<&'a [u8]>, WireError> {
        let Some(column) = self.columns.iter().find(|c| c.name == name) else { return Ok(None) };
        match self.kind(name) {
            Some(own) if own == kind => Ok(Some(column.bytes)),
            _ => Err(WireError::new(format!(
                "column `{name}` has values of kind {}, not {}",
                column.kind & !MUST_BE_KNOWN,
                kind as u8
            ))),
        }
    }

    /// The unsigned integers of a column, if the record has it.
    pub fn uints(&self, name: &str) -> Result<Option<Vec<u64>>, WireError> {
        self.get(name, Kind::Uint)?.map(|bytes| varints(bytes).map_err(|e| e.of(in_column(name)))).transpose()
    }

    /// The f32 values of a column, if the record has it.
    pub fn f32s(&self, name: &str) -> Result<Option<Vec<f32>>, WireError> {
        let of = |bytes: [u8; 4]| f32::from_bits(u32::from_le_bytes(bytes));
        self.get(name, Kind::F32)?.map(|bytes| fixed(name, bytes, of)).transpose()
    }

    /// The f64 values of a column, if the record has it.
    pub fn f64s(&self, name: &str) -> Result<Option<Vec<f64>>, WireError> {
        let of = |bytes: [u8; 8]| f64::from_bits(u64::from_le_bytes(bytes));
        self.get(name, Kind::F64)?.map(|bytes| fixed(name, bytes, of)).transpose()
    }

    /// Decodes a run-length encoded column of `expected` numbers; `None` if the record does not have the column.
    pub fn runs(&self, name: &str, expected: usize) -> Result<Option<Vec<u64>>, WireError> {
        let Some(bytes) = self.get(name, Kind::Runs)? else { return Ok(None) };
        let pairs = varints(bytes).map_err(|e| e.of(in_column(name)))?;
        let (pairs, odd) = pairs.as_chunks::<2>();
        // Checked before memory is allocated, since a few bytes can encode any length.
        let total = pairs.iter().try_fold(0u64, |sum, [_, times]| sum.checked_add(*times).filter(|_| *times > 0));
        if !odd.is_empty() || total != Some(expected as u64) {
            return Err(WireError::new(format!("column `{name}` must have {expected} values")));
        }
        Ok(Some(pairs.iter().flat_map(|&[value, times]| std::iter::repeat_n(value, times as usize)).collect()))
    }

    /// The texts of a column, if the record has it.
    pub fn texts(&self, name: &str) -> Result<Option<Vec<&'a str>>, WireError> {
        let Some(mut bytes) = self.get(name, Kind::Text)? else { return Ok(None) };
        let mut texts = Vec::new();
        while !bytes.is_empty() {
            let text = take_varint(&mut bytes).and_then(|length| take(&mut bytes, length));
            let text = text.and_then(|text| std::str::from_utf8(text).ok());
            texts.push(text.ok_or_else(|| WireError::new(format!("column `{name}` has an invalid string")))?);
        }
        Ok(Some(texts))
    }

    /// The raw bytes of a column, if the record has it.
    pub fn bytes(&self, name: &str) -> Result<Option<&'a [u8]>, WireError> {
        self.get(name, Kind::Bytes)
    }
}

fn in_column(name: &str) -> String {
    format!("column `{name}`")
}

fn directory(body: &[u8]) -> Result<Vec<RawColumn<'_>>, WireError> {
    let broken = || WireError::new("its column table is damaged");
    let mut rest = body;
    let count = take_varint(&mut rest).ok_or_else(broken)?;
    let mut columns: Vec<(RawColumn<'_>, u64)> = Vec::new();
    for _ in 0..count {
        let column = (|| {
            let length = take(&mut rest, 1)?[0];
            let name = std::str::from_utf8(take(&mut rest, u64::from(length))?).ok()?;
            let kind = take(&mut rest, 1)?[0];
            let (width, length) = (take_varint(&mut rest)?, take_varint(&mut rest)?);
            Some((RawColumn { name, kind, width, bytes: &[] }, length))
        })();
        columns.push(column.ok_or_else(broken)?);
    }
    for (column, length) in &mut columns {
        let Some(bytes) = take(&mut rest, *length) else {
            return Err(WireError::new(format!("column `{}` is truncated", column.name)));
        };
        column.bytes = bytes;
    }
    if !rest.is_empty() {
        return Err(broken());
    }
    let columns: Vec<_> = columns.into_iter().map(|(column, _)| column).collect();
    let mut names: Vec<&str> = columns.iter().map(|c| c.name).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(WireError::new(format!("duplicate column `{}`", pair[0]))),
        None => Ok(columns),
    }
}

fn fixed<const N: usize, T>(name: &str, bytes: &[u8], of: impl Fn([u8; N]) -> T) -> Result<Vec<T>, WireError> {
    let (values, odd) = bytes.as_chunks::<N>();
    if !odd.is_empty() {
        return Err(WireError::new(format!("column `{name}` ends within a number")));
    }
    Ok(values.iter().map(|&bytes| of(bytes)).collect())
}

fn put_varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

fn varints(mut bytes: &[u8]) -> Result<Vec<u64>, WireError> {
    // A varint has at least one byte. Most token ids have two.
    let mut values = Vec::with_capacity(bytes.len() / 2 + 1);
    while !bytes.is_empty() {
        values.push(take_varint(&mut bytes).ok_or_else(|| WireError::new("invalid varint"))?);
    }
    Ok(values)
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for (i, &byte) in bytes.iter().enumerate().take(10) {
        let bits = u64::from(byte & 0x7f);
        // Each number has exactly one valid encoding: no bits beyond 64, and no trailing zero bytes.
        if (i == 9 && byte > 1) || (i > 0 && byte == 0) {
            return None;
        }
        value |= bits << (7 * i);
        if byte < 0x80 {
            *bytes = &bytes[i + 1..];
            return Some(value);
        }
    }
    None
}

fn take<'a>(bytes: &mut &'a [u8], length: u64) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(usize::try_from(length).ok()?)?;
    *bytes = rest;
    Some(taken)
}
