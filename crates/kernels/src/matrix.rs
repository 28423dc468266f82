//! A weight matrix in the layout that products read.
//!
//! [`Layout::Panels`]: the rows (outputs) in panels of 32, each panel stored input by input, `[⌈N/32⌉][K][32]`, the last
//! panel padded with zeros. A product streams it from start to end. Master weights, moments and gradients share the
//! layout, so that the optimizer streams too; padding has gradient 0 and stays 0.

use crate::{DType, Memory, Tensor};
use half::bf16;
use std::ops::Range;

/// Rows of a panel.
pub const PANEL: usize = 32;

/// How the elements of a [`Matrix`] lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// `[⌈N/32⌉][K][32]`
    Panels,
}

/// A matrix `[N, K]`: N outputs, K inputs.
pub struct Matrix {
    rows: usize,
    cols: usize,
    layout: Layout,
    data: Tensor,
}

impl Matrix {
    /// Zeros.
    pub fn zeros(memory: &Memory, rows: usize, cols: usize, layout: Layout) -> Matrix {
        Matrix::zeros_of(memory, rows, cols, layout, DType::F32)
    }
    /// Zeros of f32 or bf16.
    pub fn zeros_of(memory: &Memory, rows: usize, cols: usize, layout: Layout, dtype: DType) -> Matrix {
        let data = match layout {
            Layout::Panels => Tensor::zeros(memory, &[rows.div_ceil(PANEL), cols, PANEL], dtype),
        };
        Matrix { rows, cols, layout, data }
    }
    /// A matrix of these elements, row-major.
    pub fn from_f32(memory: &Memory, rows: usize, cols: usize, data: &[f32]) -> Matrix {
        let mut m = Matrix::zeros(memory, rows, cols, Layout::Panels);
        m.pack_rows(0, data);
        m
    }
    /// N, the outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }
    /// K, the inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }
    /// How the elements lie.
    pub fn layout(&self) -> Layout {
        self.layout
    }
    /// The elements in their layout, padding included: what the optimizer streams over.
    pub fn data(&self) -> &Tensor {
        &self.data
    }
    /// The elements in their layout, to write.
    pub fn data_mut(&mut self) -> &mut Tensor {
        &mut self.data
    }
    /// Overwrites rows from `first` with row-major elements (rounded if the data is bf16).
    pub fn pack_rows(&mut self, first: usize, from: &[f32]) {
        let (n, k) = (self.rows, self.cols);
        assert!(
            from.len().is_multiple_of(k.max(1)) && first + from.len() / k.max(1) <= n,
            "rows of [{n}, {k}] from {first}"
        );
        match self.data.dtype() {
            DType::Bf16 => scatter(self.data.view_mut().bf16(), first, k, from, bf16::from_f32),
            _ => scatter(self.data.view_mut().f32(), first, k, from, |x| x),
        }
    }
    /// A row-major copy of rows `range` (bf16 widened).
    pub fn unpack_rows(&self, range: Range<usize>) -> Vec<f32> {
        match self.data.dtype() {
            DType::Bf16 => gather(self.data.view().bf16(), range, self.cols, bf16::to_f32),
            _ => gather(self.data.view().f32(), range, self.cols, |x| x),
        }
    }
}

/// Row-major elements into rows from `first` of panels with `k` inputs.
fn scatter<T>(data: &mut [T], first: usize, k: usize, from: &[f32], narrow: impl Fn(f32) -> T) {
    for (row, from) in from.chunks_exact(k.max(1)).enumerate() {
        let row = first + row;
        let start = (row / PANEL) * k * PANEL + row % PANEL;
        for (k, &x) in from.iter().enumerate() {
            data[start + k * PANEL] = narrow(x);
        }
    }
}

/// Rows `range` of panels with `k` inputs, row-major.
fn gather<T: Copy>(data: &[T], range: Range<usize>, k: usize, widen: impl Fn(T) -> f32) -> Vec<f32> {
    let mut out = Vec::with_capacity(range.len() * k);
    for row in range {
        let start = (row / PANEL) * k * PANEL + row % PANEL;
        out.extend((0..k).map(|k| widen(data[start + k * PANEL])));
    }
    out
}

impl std::fmt::Debug for Matrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Matrix([{}, {}] {:?})", self.rows, self.cols, self.layout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    #[test]
    fn packs_and_unpacks_any_rows() {
        let memory = Memory::new(Device::Cpu);
        for (n, k) in [(1, 1), (3, 5), (32, 4), (33, 7), (129, 2), (0, 3), (5, 0)] {
            let data: Vec<f32> = (0..n * k).map(|i| i as f32 + 1.0).collect();
            let m = Matrix::from_f32(&memory, n, k, &data);
            assert_eq!((m.rows(), m.cols(), m.data().shape()), (n, k, &[n.div_ceil(PANEL), k, PANEL][..]));
            assert_eq!(m.unpack_rows(0..n), data);
            assert_eq!(m.unpack_rows(n / 2..n), data[n / 2 * k..]);
            // What is not an element is padding, and 0.
            let all = m.data().to_vec_f32();
            assert_eq!(all.iter().filter(|&&x| x != 0.0).count(), n * k);
        }
    }

    #[test]
    fn bf16_elements_go_in_and_out() {
        let memory = Memory::new(Device::Cpu);
        let (n, k) = (33, 7);
        let mut m = Matrix::zeros(&memory, n, k, Layout::Panels);
        *m.data_mut() = Tensor::zeros(&memory, m.data().shape(), DType::Bf16);
        let data: Vec<f32> = (0..n * k).map(|i| i as f32 - 100.0).collect();
        m.pack_rows(0, &data);
        assert_eq!((m.unpack_rows(0..n), m.data().bytes()), (data, 2 * 2 * k * PANEL));
        m.pack_rows(5, &[1.001; 7]);
        assert_eq!(m.unpack_rows(5..6), [1.0; 7]);
    }

    #[test]
    fn an_element_lies_where_the_header_says() {
        let memory = Memory::new(Device::Cpu);
        let (n, k) = (70, 9);
        let data: Vec<f32> = (0..n * k).map(|i| i as f32).collect();
        let mut m = Matrix::from_f32(&memory, n, k, &data);
        let all = m.data().to_vec_f32();
        for row in 0..n {
            for col in 0..k {
                assert_eq!(all[(row / 32 * k + col) * 32 + row % 32], data[row * k + col]);
            }
        }
        m.pack_rows(31, &[-1.0; 18]);
        assert_eq!(m.unpack_rows(31..33), [-1.0; 18]);
        assert_eq!(m.unpack_rows(30..31), data[30 * k..31 * k]);
        assert_eq!(m.unpack_rows(33..34), data[33 * k..34 * k]);
    }

    #[test]
    #[should_panic(expected = "rows of [4, 3]")]
    fn rows_past_the_end_are_refused() {
        Matrix::zeros(&Memory::new(Device::Cpu), 4, 3, Layout::Panels).pack_rows(3, &[0.0; 6]);
    }
}
