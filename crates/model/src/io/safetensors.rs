//! The safetensors format: a little-endian u64 with the header's length, a header in JSON, then the bytes of the
//! tensors.
//!
//! This module parses the header itself, because the errors of the `safetensors` crate do not name the tensor of a
//! damaged file. The checks are the same: offsets follow one another without gap or overlap, sizes fit shape and dtype,
//! and the last tensor ends at the end of the file.

use crate::{Error, FileDType, Result};
use half::{bf16, f16};
use serde_json::{Map, Value, json};
use std::ops::Range;
use std::path::Path;
use zerocopy::IntoBytes;

/// Maximum size of a header. No model has a larger one, and a damaged length must not make this program allocate
/// memory.
const MAX_HEADER: u64 = 100_000_000;

/// A tensor in a safetensors file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: String,
    /// The dtype's name in the file: `F32`, `BF16`, `I8`, ….
    pub(super) dtype: String,
    pub(super) shape: Vec<usize>,
    /// Range of the tensor's bytes, counted from the start of the file.
    pub(super) bytes: Range<usize>,
}

/// The dtype named `name` in files, if its elements can be read as f32.
fn readable(name: &str) -> Option<FileDType> {
    match name {
        "F32" => Some(FileDType::F32),
        "BF16" => Some(FileDType::Bf16),
        "F16" => Some(FileDType::F16),
        _ => None,
    }
}

/// The name of `dtype` in files.
fn written(dtype: FileDType) -> &'static str {
    match dtype {
        FileDType::F32 => "F32",
        FileDType::Bf16 => "BF16",
        FileDType::F16 => "F16",
    }
}

/// Bits of one element, for any dtype of the format. Sizes are checked even for tensors that are not read.
fn bits(dtype: &str) -> Option<usize> {
    Some(match dtype {
        "F4" => 4,
        "F6_E2M3" | "F6_E3M2" => 6,
        "BOOL" | "U8" | "I8" | "F8_E5M2" | "F8_E4M3" | "F8_E8M0" | "F8_E4M3FNUZ" | "F8_E5M2FNUZ" => 8,
        "I16" | "U16" | "F16" | "BF16" => 16,
        "I32" | "U32" | "F32" => 32,
        "I64" | "U64" | "F64" | "C64" => 64,
        _ => return None,
    })
}

/// The header of `file`, and the offset at which the tensors' bytes begin.
fn parsed_header(path: &Path, file: &[u8]) -> Result<(Map<String, Value>, usize)> {
    let bad = |message: String| Error::file(path, message);
    let Some(length) = file.first_chunk::<8>() else {
        return Err(bad(format!("truncated: {} bytes are too few for a safetensors file", file.len())));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER {
        return Err(bad(format!("not a safetensors file: its header would take {length} bytes")));
    }
    let start = 8 + length as usize;
    let Some(header) = file.get(8..start) else {
        return Err(bad(format!("truncated: the header takes {length} bytes, but the file has only {}", file.len())));
    };
    let header = serde_json::from_slice(header)
        .map_err(|e| bad(format!("not a safetensors file: its header is not a JSON object ({e})")))?;
    Ok((header, start))
}

/// The tensors that the header lists, in the order of their bytes. `file` contains the whole file.
pub(super) fn entries(path: &Path, file: &[u8]) -> Result<Vec<Entry>> {
    let bad = |message: String| Error::file(path, message);
    let (header, start) = parsed_header(path, file)?;
    let mut entries = Vec::with_capacity(header.len());
    for (name, info) in header {
        if name != "__metadata__" {
            entries.push(entry(path, name, &info, start)?);
        }
    }
    entries.sort_by_key(|e| (e.bytes.start, e.bytes.end));
    let mut end = start;
    for e in &entries {
        if e.bytes.start != end {
            return Err(Error::tensor(path, &e.name, "its bytes do not directly follow those of the previous tensor"));
        }
        end = e.bytes.end;
        if end > file.len() {
            let message =
                format!("the file is truncated: the tensor ends at byte {end}, the file at byte {}", file.len());
            return Err(Error::tensor(path, &e.name, message));
        }
    }
    if end != file.len() {
        return Err(bad(format!("the file has {} bytes that belong to no tensor", file.len() - end)));
    }
    Ok(entries)
}

fn entry(path: &Path, name: String, info: &Value, start: usize) -> Result<Entry> {
    let bad = |message: &str| Error::tensor(path, &name, format!("its header entry {message}"));
    let numbers = |key: &str| -> Option<Vec<usize>> {
        info.get(key)?.as_array()?.iter().map(|v| v.as_u64().and_then(|n| usize::try_from(n).ok())).collect()
    };
    let dtype = info.get("dtype").and_then(Value::as_str).ok_or_else(|| bad("has no dtype"))?;
    let shape = numbers("shape").ok_or_else(|| bad("has no shape"))?;
    let offsets = numbers("data_offsets").ok_or_else(|| bad("has no data_offsets"))?;
    let bytes = match offsets[..] {
        [from, to] if from <= to => start.checked_add(from).zip(start.checked_add(to)).map(|(from, to)| from..to),
        _ => None,
    };
    let bytes = bytes.ok_or_else(|| bad("has data_offsets that are not a range [start, end]"))?;
    let bits = bits(dtype).ok_or_else(|| bad(&format!("has an unknown dtype, {dtype}")))?;
    let size = shape.iter().try_fold(bits, |n, &d| n.checked_mul(d)).filter(|n| n % 8 == 0).map(|n| n / 8);
    if size != Some(bytes.len()) {
        return Err(bad(&format!("is declared as {dtype} {shape:?}, but its data has {} bytes", bytes.len())));
    }
    Ok(Entry { dtype: dtype.to_owned(), shape, bytes, name })
}

/// The elements of a tensor, converted to f32.
pub(super) fn elements(path: &Path, entry: &Entry, file: &[u8]) -> Result<Vec<f32>> {
    let bytes = &file[entry.bytes.clone()];
    let Some(dtype) = readable(&entry.dtype) else {
        let message = format!("has dtype {}; supported: F32, BF16, F16", entry.dtype);
        return Err(Error::tensor(path, &entry.name, message));
    };
    Ok(match dtype {
        FileDType::F32 => bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        FileDType::Bf16 => bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
        FileDType::F16 => bytes.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
    })
}

/// Reads a string entry of the header's metadata.
pub(super) fn metadata(path: &Path, file: &[u8], name: &str) -> Result<Option<String>> {
    let (header, _) = parsed_header(path, file)?;
    Ok(header.get("__metadata__").and_then(|m| m.get(name)?.as_str()).map(str::to_owned))
}

/// The beginning of a file with these tensors in this order: the header's length and the header. transformers requires
/// the metadata entry `format`.
pub(super) fn header(specs: &[super::TensorSpec], dtype: FileDType, metadata: &[(&str, &str)]) -> Vec<u8> {
    let mut header = Map::new();
    let metadata = [("format", "pt")].into_iter().chain(metadata.iter().copied());
    let metadata: Map<String, Value> = metadata.map(|(name, value)| (name.to_owned(), value.into())).collect();
    header.insert("__metadata__".into(), metadata.into());
    let mut end = 0;
    for spec in specs {
        let from = end;
        end += spec.shape.iter().product::<usize>() * dtype.bytes();
        let info = json!({"dtype": written(dtype), "shape": spec.shape, "data_offsets": [from, end]});
        header.insert(spec.name.clone(), info);
    }
    let mut json = serde_json::to_vec(&header).expect("a JSON map can be serialised");
    // The data starts at a multiple of 8, so that a reader can use it in place.
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend(json);
    bytes
}

/// Converts `data` to bytes of `dtype`. `room` is the buffer for a conversion, if one is necessary. `None` if a finite
/// element is too large for the dtype.
pub(super) fn narrowed<'a>(data: &'a [f32], dtype: FileDType, room: &'a mut Vec<u8>) -> Option<&'a [u8]> {
    /// Resizes the vector once: `extend` would check its capacity for every element.
    fn put<const N: usize>(data: &[f32], bytes: &mut Vec<u8>, narrow: impl Fn(f32) -> [u8; N]) {
        bytes.resize(N * data.len(), 0);
        bytes.as_chunks_mut().0.iter_mut().zip(data).for_each(|(to, &x)| *to = narrow(x));
    }
    match dtype {
        FileDType::F32 if cfg!(target_endian = "little") => return Some(data.as_bytes()),
        FileDType::F32 => put(data, room, f32::to_le_bytes),
        FileDType::Bf16 => put(data, room, |x| bf16::from_f32(x).to_le_bytes()),
        FileDType::F16 => {
            if data.iter().any(|&x| x.is_finite() && !f16::from_f32(x).is_finite()) {
                return None;
            }
            put(data, room, |x| f16::from_f32(x).to_le_bytes());
        }
    }
    Some(room)
}
