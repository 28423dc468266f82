//! Encodes columns as a Parquet file with one row group, without compression.

use std::sync::Arc;

use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{Type, TypePtr};

use super::{Cells, Column};

/// The bytes of a Parquet file with these columns, each with `rows` rows.
pub(super) fn encode(columns: &[Column], rows: usize) -> Result<Vec<u8>, String> {
    try_encode(columns, rows).map_err(|error| error.to_string())
}

fn try_encode(columns: &[Column], rows: usize) -> parquet::errors::Result<Vec<u8>> {
    let fields = columns.iter().map(field).collect::<parquet::errors::Result<Vec<_>>>()?;
    let schema = Arc::new(Type::group_type_builder("schema").with_fields(fields).build()?);
    let mut file = SerializedFileWriter::new(Vec::new(), schema, Arc::new(WriterProperties::builder().build()))?;
    if rows > 0 {
        let mut group = file.next_row_group()?;
        for column in columns {
            write(&mut group, &column.cells)?;
        }
        group.close()?;
    }
    file.into_inner()
}

/// The Parquet schema of one column; every value may be null.
fn field(column: &Column) -> parquet::errors::Result<TypePtr> {
    let primitive = |name: &str, physical, logical| {
        let builder = Type::primitive_type_builder(name, physical).with_repetition(Repetition::OPTIONAL);
        builder.with_logical_type(logical).build().map(Arc::new)
    };
    let name = column.name.as_str();
    match &column.cells {
        Cells::Ints(_) => primitive(name, Physical::INT64, None),
        Cells::Floats(_) => primitive(name, Physical::DOUBLE, None),
        Cells::Bools(_) => primitive(name, Physical::BOOLEAN, None),
        Cells::Texts(_) => primitive(name, Physical::BYTE_ARRAY, Some(LogicalType::String)),
        Cells::Messages { keys, .. } => {
            let group = |name: &str, repetition, logical, fields| {
                let builder = Type::group_type_builder(name).with_repetition(repetition);
                builder.with_logical_type(logical).with_fields(fields).build().map(Arc::new)
            };
            let text = |key: &String| primitive(key, Physical::BYTE_ARRAY, Some(LogicalType::String));
            let keys = keys.iter().map(text).collect::<parquet::errors::Result<Vec<_>>>()?;
            let element = group("element", Repetition::OPTIONAL, None, keys)?;
            let list = group("list", Repetition::REPEATED, None, vec![element])?;
            group(name, Repetition::OPTIONAL, Some(LogicalType::List), vec![list])
        }
    }
}

fn write(group: &mut SerializedRowGroupWriter<'_, Vec<u8>>, cells: &Cells) -> parquet::errors::Result<()> {
    match cells {
        Cells::Ints(cells) => flat::<Int64Type>(group, cells.iter().copied()),
        Cells::Floats(cells) => flat::<DoubleType>(group, cells.iter().copied()),
        Cells::Bools(cells) => flat::<BoolType>(group, cells.iter().copied()),
        Cells::Texts(cells) => {
            flat::<ByteArrayType>(group, cells.iter().map(|cell| cell.as_deref().map(ByteArray::from)))
        }
        Cells::Messages { keys, rows } => (0..keys.len()).try_for_each(|key| nested(group, rows, key)),
    }
}

/// Writes a column of optional values. The definition level is 1 for a value and 0 for null.
fn flat<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    cells: impl Iterator<Item = Option<T::T>>,
) -> parquet::errors::Result<()> {
    let (mut values, mut levels) = (Vec::new(), Vec::new());
    for cell in cells {
        levels.push(i16::from(cell.is_some()));
        values.extend(cell);
    }
    column::<T>(group, &values, &levels, None)
}

/// Writes one key of lists of chat messages. The definition level is 1 for an empty list, 3 for a message without the
/// key, and 4 for a message with the key. The repetition level is 0 for the first message of a list and 1 for all
/// others.
fn nested(
    group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    rows: &[Vec<Vec<Option<String>>>],
    key: usize,
) -> parquet::errors::Result<()> {
    let (mut values, mut definitions, mut repetitions) = (Vec::new(), Vec::new(), Vec::new());
    for row in rows {
        if row.is_empty() {
            definitions.push(1);
            repetitions.push(0);
        }
        for (i, message) in row.iter().enumerate() {
            let value = message[key].as_deref().map(ByteArray::from);
            definitions.push(if value.is_some() { 4 } else { 3 });
            repetitions.push(i16::from(i > 0));
            values.extend(value);
        }
    }
    column::<ByteArrayType>(group, &values, &definitions, Some(&repetitions))
}

fn column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    values: &[T::T],
    definitions: &[i16],
    repetitions: Option<&[i16]>,
) -> parquet::errors::Result<()> {
    let mut column = group.next_column()?.expect("the schema has one leaf per call");
    column.typed::<T>().write_batch(values, Some(definitions), repetitions)?;
    column.close()
}
