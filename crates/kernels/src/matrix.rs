//! A weight matrix in the layout that products read.
//!
//! [`Layout::Panels`]: the rows (outputs) in panels of 32, each panel stored input by input, `[⌈N/32⌉][K][32]`, the last
//! panel padded with zeros. A product streams it from start to end. Master weights, moments and gradients share the
//! layout, so that the optimizer streams too; padding has gradient 0 and stays 0.

use crate::{DType, Memory, Tensor};
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
        let data = match layout {
            Layout::Panels => Tensor::zeros(memory, &[rows.div_ceil(PANEL), cols, PANEL], DType::F32),
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
    /// Overwrites rows from `first` with row-major elements.
    pub fn pack_rows(&mut self, first: usize, from: &[f32]) {
        let (n, k) = (self.rows, self.cols);
        assert!(from.len() % k.max(1) == 0 && first + from.len() / k.max(1) <= n, "rows of [{n}, {k}] from {first}");
        let data = self.data.view_mut().f32();
        for (row, from) in from.chunks_exact(k).enumerate() {
            let row = first + row;
            let start = (row / PANEL) * k * PANEL + row % PANEL;
            for (k, &x) in from.iter().enumerate() {
                data[start + k * PANEL] = x;
            }
        }
    }
    /// A row-major copy of rows `range`.
    pub fn unpack_rows(&self, range: Range<usize>) -> Vec<f32> {
        let data = self.data.view().f32();
        let k = self.cols;
        let mut out = Vec::with_capacity(range.len() * k);
        for row in range {
            let start = (row / PANEL) * k * PANEL + row % PANEL;
            out.extend((0..k).map(|k| data[start + k * PANEL]));
        }
        out
    }
}

impl std::fmt::Debug for Matrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Matrix([{}, {}] {:?})", self.rows, self.cols, self.layout)
    }
}
