//! Reads the numbers of tensors.

use super::proto::{self, DType, Encoding};

/// Token ids from numbers.
pub fn token_ids(numbers: Vec<f64>) -> Result<Vec<u32>, String> {
    let id = |x: f64| (x >= 0.0 && x <= f64::from(u32::MAX) && x.fract() == 0.0).then_some(x as u32);
    numbers.into_iter().map(|x| id(x).ok_or_else(|| format!("{x} is not a token id"))).collect()
}

/// The numbers of a tensor in row-major order.
pub fn values(tensor: &proto::Tensor, left: &mut usize) -> Result<Vec<f64>, String> {
    let sizes = tensor.shape.iter().map(|&size| usize::try_from(size).ok());
    let shape: Vec<usize> = sizes.collect::<Option<_>>().ok_or_else(|| format!("the shape {:?}", tensor.shape))?;
    let size = shape.iter().try_fold(1usize, |all, &size| all.checked_mul(size)).filter(|&size| size <= *left);
    let size = size.ok_or_else(|| format!("the shape {shape:?} is too large"))?;
    *left -= size;
    match &tensor.encoding {
        // A tensor without elements may have no bytes.
        None if size == 0 => Ok(Vec::new()),
        None => Err("a tensor without data".to_owned()),
        Some(Encoding::Dense(bytes)) => {
            let values = by_dtype(bytes, tensor.dtype)?;
            // The shape may be left out for one dimension.
            if !shape.is_empty() && values.len() != size {
                return Err(format!("{} numbers for the shape {shape:?}", values.len()));
            }
            Ok(values)
        }
        Some(Encoding::SparseCsr(csr)) => {
            let [rows, columns] = shape[..] else { return Err(format!("a sparse tensor of the shape {shape:?}")) };
            let index = |bytes: &[u8]| {
                let indices = numbers(bytes, i64::from_le_bytes)?;
                let indices = indices.into_iter().map(|i| usize::try_from(i).ok());
                indices.collect::<Option<Vec<usize>>>().ok_or_else(|| "a negative index".to_owned())
            };
            let (starts, places) = (index(&csr.crow_indices)?, index(&csr.col_indices)?);
            let given = by_dtype(&csr.values, tensor.dtype)?;
            let is_whole = starts.len() == rows + 1 && starts.is_sorted() && starts[0] == 0;
            if !is_whole || starts[rows] != given.len() || places.len() != given.len() {
                return Err(format!("a sparse tensor whose indices do not fit the shape {shape:?}"));
            }
            let mut out = vec![0.0; size];
            for row in 0..rows {
                for i in starts[row]..starts[row + 1] {
                    let column = places[i];
                    if column >= columns {
                        return Err(format!("column {column} of a sparse tensor with {columns}"));
                    }
                    out[row * columns + column] = given[i];
                }
            }
            Ok(out)
        }
    }
}

pub fn by_dtype(bytes: &[u8], dtype: i32) -> Result<Vec<f64>, String> {
    match DType::try_from(dtype) {
        Ok(DType::Float32) => numbers(bytes, |bytes| f64::from(f32::from_le_bytes(bytes))),
        Ok(DType::Int32) => numbers(bytes, |bytes| f64::from(i32::from_le_bytes(bytes))),
        // Ids and masks are small.
        Ok(DType::Int64) => numbers(bytes, |bytes| i64::from_le_bytes(bytes) as f64),
        _ => Err(format!("a tensor of the dtype {dtype}: expected float32, int64 or int32")),
    }
}

fn numbers<const N: usize, T>(bytes: &[u8], of: impl Fn([u8; N]) -> T) -> Result<Vec<T>, String> {
    let (numbers, rest) = bytes.as_chunks::<N>();
    if !rest.is_empty() {
        return Err(format!("{} bytes are not numbers of {N} bytes", bytes.len()));
    }
    Ok(numbers.iter().map(|&bytes| of(bytes)).collect())
}
