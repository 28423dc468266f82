//! Reads Parquet files as rows. The `parquet` crate decompresses Snappy, gzip and LZ4 data pages. Zstandard and Brotli
//! pages are decompressed here, because for them the crate would need a C compiler, or a compressor that nothing here
//! uses.

use super::Row;
use crate::bad_input;
use crate::error::{BadInput, OrBadInput};
use crate::stop::StopSignal;
use parquet::basic::Compression;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::{FileReader, RowGroupReader};
use parquet::file::serialized_reader::{SerializedFileReader, SerializedPageReader};
use parquet::record::Field;
use parquet::record::reader::RowIter;
use parquet::schema::types::Type;
use serde_json::Value;
use std::fs::File;
use std::io::Read;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;

/// Reads up to `limit` rows, each with its row number from 1. Panics are caught, since the `parquet` crate panics on
/// some damaged files (for example at an offset below 0).
pub(super) fn read(path: &Path, limit: usize, stop: &StopSignal) -> anyhow::Result<Vec<(usize, Row)>> {
    std::panic::catch_unwind(AssertUnwindSafe(|| rows(path, limit, stop)))
        .unwrap_or_else(|_| bad_input!("{}: cannot read the Parquet file: it is damaged", path.display()))
}

fn rows(path: &Path, limit: usize, stop: &StopSignal) -> anyhow::Result<Vec<(usize, Row)>> {
    let bad = |e: ParquetError| BadInput::new(format!("{}: cannot read the Parquet file: {e}", path.display()));
    let file = Arc::new(disk::open(path).or_bad_input_in(path.display())?);
    let reader = SerializedFileReader::new(file.try_clone()?).map_err(bad)?;
    let mut rows = Vec::new();
    for group in 0..reader.num_row_groups() {
        let group = RowGroup { inner: reader.get_row_group(group).map_err(bad)?, file: file.clone() };
        for row in RowIter::from_row_group(None, &group).map_err(bad)? {
            if rows.len() == limit {
                return Ok(rows);
            }
            stop.check()?;
            let row = row.map_err(bad)?;
            let number = rows.len() + 1;
            let value = |(column, field): (&String, &Field)| match json(field) {
                Ok(value) => Ok((column.clone(), value)),
                Err(what) => Err(BadInput::new(format!("{}, row {number}: column `{column}` {what}", path.display()))),
            };
            let row = row.get_column_iter().map(value).collect::<anyhow::Result<Row>>()?;
            rows.push((number, row));
        }
    }
    Ok(rows)
}

/// The reason why a Parquet value cannot be converted to JSON.
type NotText = &'static str;

const NOT_FINITE: NotText = "holds a number that is NaN or infinite: make it null or a string, or remove the column";

/// A Parquet value as JSON. Byte arrays are read as UTF-8 text, since some writers do not mark text as such.
fn json(field: &Field) -> std::result::Result<Value, NotText> {
    let mut entries = Row::new();
    match field {
        Field::Bytes(bytes) => match std::str::from_utf8(bytes.data()) {
            Ok(text) => return Ok(text.into()),
            Err(_) => return Err("holds bytes that are not UTF-8 text: convert it to text, or remove the column"),
        },
        Field::ListInternal(list) => return list.elements().iter().map(json).collect(),
        Field::Group(row) => {
            for (name, field) in row.get_column_iter() {
                entries.insert(name.clone(), json(field)?);
            }
        }
        Field::MapInternal(map) => {
            for (key, field) in map.entries() {
                let key = json(key)?;
                entries.insert(key.as_str().map_or_else(|| key.to_string(), str::to_owned), json(field)?);
            }
        }
        // JSON would write NaN and infinity as null.
        Field::Double(x) if !x.is_finite() => return Err(NOT_FINITE),
        Field::Float(x) if !x.is_finite() => return Err(NOT_FINITE),
        Field::Float16(x) if !f64::from(*x).is_finite() => return Err(NOT_FINITE),
        other => return Ok(other.to_json_value()),
    }
    Ok(Value::Object(entries))
}

/// A compression of data pages that this file decompresses instead of the crate.
#[derive(Clone, Copy)]
enum Packing {
    Zstd,
    Brotli,
}

impl Packing {
    fn of(compression: Compression) -> Option<Packing> {
        match compression {
            Compression::ZSTD(_) => Some(Packing::Zstd),
            Compression::BROTLI(_) => Some(Packing::Brotli),
            _ => None,
        }
    }

    fn unpack(self, packed: &[u8], to: &mut Vec<u8>) -> Result<()> {
        let bad = |e: &dyn std::fmt::Display| ParquetError::General(format!("a damaged page: {e}"));
        match self {
            Packing::Zstd => {
                let mut decoder = ruzstd::decoding::StreamingDecoder::new(packed).map_err(|e| bad(&e))?;
                decoder.read_to_end(to).map_err(|e| bad(&e))?;
            }
            Packing::Brotli => {
                let mut decoder = brotli_decompressor::Decompressor::new(packed, packed.len().clamp(1, 1 << 16));
                decoder.read_to_end(to).map_err(|e| bad(&e))?;
            }
        }
        Ok(())
    }

    /// Decompresses `page`. In a page of version 2, the repetition and definition levels before the data are not
    /// compressed.
    fn page(self, page: Page) -> Result<Page> {
        let whole = |buf: &[u8], levels: usize| -> Result<Vec<u8>> {
            let levels = buf.get(..levels).ok_or_else(|| ParquetError::General("a damaged page".into()))?;
            let (mut unpacked, packed) = (levels.to_vec(), &buf[levels.len()..]);
            // A page with only nulls is empty.
            if !packed.is_empty() {
                self.unpack(packed, &mut unpacked)?;
            }
            Ok(unpacked)
        };
        Ok(match page {
            Page::DataPage { buf, num_values, encoding, def_level_encoding, rep_level_encoding, statistics } => {
                let buf = whole(&buf, 0)?.into();
                Page::DataPage { buf, num_values, encoding, def_level_encoding, rep_level_encoding, statistics }
            }
            Page::DataPageV2 {
                buf,
                num_values,
                encoding,
                num_nulls,
                num_rows,
                def_levels_byte_len,
                rep_levels_byte_len,
                is_compressed: true,
                statistics,
            } => Page::DataPageV2 {
                buf: whole(&buf, def_levels_byte_len as usize + rep_levels_byte_len as usize)?.into(),
                num_values,
                encoding,
                num_nulls,
                num_rows,
                def_levels_byte_len,
                rep_levels_byte_len,
                is_compressed: false,
                statistics,
            },
            Page::DictionaryPage { buf, num_values, encoding, is_sorted } => {
                Page::DictionaryPage { buf: whole(&buf, 0)?.into(), num_values, encoding, is_sorted }
            }
            unpacked @ Page::DataPageV2 { .. } => unpacked,
        })
    }
}

/// A row group. Some of its columns are decompressed here.
struct RowGroup<'a> {
    inner: Box<dyn RowGroupReader + 'a>,
    file: Arc<File>,
}

impl RowGroupReader for RowGroup<'_> {
    fn metadata(&self) -> &RowGroupMetaData {
        self.inner.metadata()
    }

    fn num_columns(&self) -> usize {
        self.inner.num_columns()
    }

    fn get_column_page_reader(&self, i: usize) -> Result<Box<dyn PageReader>> {
        let column = self.metadata().column(i);
        let Some(packing) = Packing::of(column.compression()) else { return self.inner.get_column_page_reader(i) };
        // For an uncompressed column, the crate returns pages as they are in the file.
        let as_it_lies = column.clone().into_builder().set_compression(Compression::UNCOMPRESSED).build()?;
        let rows = usize::try_from(self.metadata().num_rows())?;
        let packed = SerializedPageReader::new(self.file.clone(), &as_it_lies, rows, None)?;
        Ok(Box::new(UnpackedPages { packed, packing }))
    }

    fn get_column_bloom_filter(&self, i: usize) -> Option<&parquet::bloom_filter::Sbbf> {
        self.inner.get_column_bloom_filter(i)
    }

    fn get_row_iter(&self, projection: Option<Type>) -> Result<RowIter<'_>> {
        RowIter::from_row_group(projection, self)
    }
}

/// Reads and decompresses the pages of a column.
struct UnpackedPages {
    packed: SerializedPageReader<File>,
    packing: Packing,
}

impl PageReader for UnpackedPages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        self.packed.get_next_page()?.map(|page| self.packing.page(page)).transpose()
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.packed.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.packed.skip_next_page()
    }
}

impl Iterator for UnpackedPages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Result<Page>> {
        self.get_next_page().transpose()
    }
}
