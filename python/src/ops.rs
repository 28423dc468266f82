//! Single operations on NumPy arrays.

use crate::process::use_engine;
use kernels::ops::{sample, softmax};
use kernels::{Context, DType, Isa, Matrix, Tensor};
use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

fn context() -> PyResult<Context> {
    use_engine()?;
    lockstep::context(None, None, Default::default()).map_err(|error| crate::errors::exception(&error))
}

fn refused(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Softmax of `x · scale` over the columns `first[r]..end[r]` of each row r; 0 elsewhere.
#[pyfunction]
pub fn masked_softmax<'py>(
    py: Python<'py>,
    x: PyReadonlyArray2<'py, f32>,
    scale: f32,
    first: PyReadonlyArray1<'py, u32>,
    end: PyReadonlyArray1<'py, u32>,
) -> PyResult<Bound<'py, PyArray2<f32>>> {
    let ctx = context()?;
    let shape = [x.as_array().nrows(), x.as_array().ncols()];
    let (x, first, end) =
        (x.as_slice().map_err(refused)?, first.as_slice().map_err(refused)?, end.as_slice().map_err(refused)?);
    if first.iter().zip(end).any(|(first, end)| first > end) {
        return Err(PyValueError::new_err("masked_softmax: `first` must not be after `end`"));
    }
    let y = py.detach(|| {
        let memory = ctx.memory();
        let (x, mut y) = (Tensor::from_f32(memory, &shape, x), Tensor::zeros(memory, &shape, DType::F32));
        let first = Tensor::from_u32(memory, &[first.len()], first);
        let end = Tensor::from_u32(memory, &[end.len()], end);
        let args = softmax::Forward { x: x.view(), scale, first: first.view(), end: end.view(), y: y.view_mut() };
        softmax::forward(&ctx, args).map(|()| y.to_vec_f32())
    });
    y.map_err(refused)?.into_pyarray(py).reshape(shape)
}

/// Token ids, their log-probabilities before truncation, and those in the truncated distribution.
type Drawn<'py> = (Bound<'py, PyArray1<u32>>, Bound<'py, PyArray1<f32>>, Bound<'py, PyArray1<f32>>);

/// Samples the next token of each hidden row: lm head, penalty, temperature, truncation and draw in one pass.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
pub fn fused_sample<'py>(
    py: Python<'py>,
    hidden: PyReadonlyArray2<'py, f32>,
    weight: PyReadonlyArray2<'py, f32>,
    temperature: f64,
    top_k: usize,
    top_p: f64,
    min_p: f64,
    repetition_penalty: f64,
    history: Vec<Vec<u32>>,
    seed: u64,
    first_row: u32,
    step: u32,
) -> PyResult<Drawn<'py>> {
    let ctx = context()?;
    let (rows, width) = (hidden.as_array().nrows(), hidden.as_array().ncols());
    let (vocabulary, columns) = (weight.as_array().nrows(), weight.as_array().ncols());
    if columns != width {
        return Err(PyValueError::new_err(format!(
            "fused_sample: expected weight [V, {width}] for hidden [{rows}, {width}], got [{vocabulary}, {columns}]"
        )));
    }
    let (hidden, weight) = (hidden.as_slice().map_err(refused)?, weight.as_slice().map_err(refused)?);
    let drawn = py.detach(|| {
        let memory = ctx.memory();
        let hidden = Tensor::from_f32(memory, &[rows, width], hidden);
        let weight = Matrix::from_f32(memory, vocabulary, width, weight);
        let mut ids = Tensor::zeros(memory, &[rows], DType::U32);
        let [mut logps, mut truncated] = [(); 2].map(|()| Tensor::zeros(memory, &[rows], DType::F32));
        let params = |(row, history)| sample::RowParams {
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
            history,
            key: seed,
            counter: [first_row + row, 0, step, 0],
        };
        let history = history.iter().map(Vec::as_slice).chain(std::iter::repeat(&[][..]));
        let params: Vec<_> = (0..rows as u32).zip(history).map(params).collect();
        let args = sample::Forward {
            hidden: hidden.view(),
            weight: &weight,
            rows: &params,
            packed: None,
            ids: ids.view_mut(),
            logps: logps.view_mut(),
            truncated_logps: Some(truncated.view_mut()),
            lse: None,
            entropies: None,
        };
        sample::forward(&ctx, args).map(|()| (ids.view().to_vec_u32(), logps.to_vec_f32(), truncated.to_vec_f32()))
    });
    let (ids, logps, truncated) = drawn.map_err(refused)?;
    Ok((ids.into_pyarray(py), logps.into_pyarray(py), truncated.into_pyarray(py)))
}

/// 32-bit words in the memory of a device, which were copied in a single transfer.
#[pyclass(frozen)]
pub struct DeviceWords {
    tensor: Tensor,
    /// Number of copies from the host.
    #[pyo3(get)]
    copies: u64,
    /// Number of copied bytes.
    #[pyo3(get)]
    copied_bytes: u64,
}

#[pymethods]
impl DeviceWords {
    /// Copies words to a device with separate memory. The CPU shares the host's memory, so a second CPU device stands
    /// in for a GPU and counts transfers.
    #[new]
    fn new(py: Python<'_>, words: PyReadonlyArray1<'_, u32>) -> PyResult<DeviceWords> {
        use_engine()?;
        let words = words.as_slice().map_err(refused)?;
        Ok(py.detach(|| {
            let ctx = Context::cpu_checked(Isa::best(), 1);
            let before = ctx.memory().copies();
            let tensor = Tensor::from_u32(ctx.memory(), &[words.len()], words);
            let copies = ctx.memory().copies() - before;
            DeviceWords { tensor, copies: copies.to_device, copied_bytes: copies.to_device_bytes }
        }))
    }

    /// The words of a range, copied back to the host.
    fn words<'py>(&self, py: Python<'py>, from: usize, to: usize) -> Bound<'py, PyArray1<u32>> {
        self.tensor.rows(from..to).to_vec_u32().into_pyarray(py)
    }
}
