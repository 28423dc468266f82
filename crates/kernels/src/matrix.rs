//! A weight matrix in the layout that matmuls read.
//!
//! A weight of N outputs (rows) and K inputs (columns) is stored in panels of 32 rows, the last panel padded with
//! zeros. A matmul reads the panels from start to end:
//!
//! | layout            | of   | elements             |                                                            |
//! |-------------------|------|----------------------|------------------------------------------------------------|
//! | [`Layout::Panels`] | f32  | `[⌈N/32⌉][K][32]`    | input by input                                             |
//! | [`Layout::Pairs`]  | bf16 | `[⌈N/32⌉][K/2][32][2]` | two inputs side by side, as tiles read them; K is even     |
//!
//! Master weights, optimizer moments and gradients are f32 in [`Layout::Panels`], so that the optimizer reads all of
//! them in memory order together with the bf16 weights: an element is among the same 64 elements in both layouts.
//! Padding has gradient 0 and stays 0.

use crate::device::Cpu;
use crate::simd::{Element, Kernel, LANES, Simd};
use crate::tensor::Elements;
use crate::{DType, Device, Isa, Memory, Tensor};
use half::bf16;
use std::ops::Range;

/// Rows (outputs) per panel.
pub const PANEL: usize = 32;

/// The memory layout of a [`Matrix`]'s elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// `[⌈N/32⌉][K][32]`: panels of 32 rows, one input after the other.
    Panels,
    /// `[⌈N/32⌉][K/2][32][2]`: panels of 32 rows, two inputs side by side.
    Pairs,
}

impl Layout {
    /// The layout of a weight matrix of `dtype` for matmuls on `device`.
    pub fn of(device: Device, dtype: DType) -> Layout {
        match device {
            Device::Cpu | Device::CpuChecked | Device::Cuda(_) | Device::CudaEmulated | Device::Meta => match dtype {
                DType::Bf16 => Layout::Pairs,
                DType::F32 | DType::U32 => Layout::Panels,
            },
        }
    }

    /// Index in memory of element `(row, col)` of a matrix with `cols` inputs.
    #[inline(always)]
    pub(crate) fn at(self, cols: usize, row: usize, col: usize) -> usize {
        let (panel, row) = (row / PANEL * cols * PANEL, row % PANEL);
        panel
            + match self {
                Layout::Panels => col * PANEL + row,
                Layout::Pairs => col / 2 * 2 * PANEL + row * 2 + col % 2,
            }
    }
}

/// A weight matrix `[N, K]` with N outputs and K inputs, in a [`Layout`] for matmuls.
pub struct Matrix {
    rows: usize,
    cols: usize,
    layout: Layout,
    data: Tensor,
}

impl Matrix {
    /// An f32 matrix of zeros, with `rows` outputs and `cols` inputs.
    pub fn zeros(memory: &Memory, rows: usize, cols: usize) -> Matrix {
        Matrix::zeros_of(memory, rows, cols, DType::F32)
    }
    /// A matrix of zeros of `dtype`, which is f32 or bf16. For bf16 `cols` must be even.
    pub fn zeros_of(memory: &Memory, rows: usize, cols: usize, dtype: DType) -> Matrix {
        let (panels, layout) = (rows.div_ceil(PANEL), Layout::of(memory.device(), dtype));
        let data = match layout {
            Layout::Panels => Tensor::zeros(memory, &[panels, cols, PANEL], dtype),
            Layout::Pairs => {
                assert!(cols.is_multiple_of(2), "a bf16 matrix must have an even number of inputs, got {cols}");
                Tensor::zeros(memory, &[panels, cols / 2, PANEL, 2], dtype)
            }
        };
        Matrix { rows, cols, layout, data }
    }
    /// An f32 matrix with the elements of `data`, which is row-major.
    pub fn from_f32(memory: &Memory, rows: usize, cols: usize, data: &[f32]) -> Matrix {
        let mut m = Matrix::zeros(memory, rows, cols);
        m.pack_rows(0, data);
        m
    }
    /// N, the number of outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }
    /// K, the number of inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }
    /// The memory layout of the matrix's elements.
    pub fn layout(&self) -> Layout {
        self.layout
    }
    /// The elements in their layout, including padding. The optimizer steps through this tensor.
    pub fn data(&self) -> &Tensor {
        &self.data
    }
    /// The elements in their layout, including padding, writable.
    pub fn data_mut(&mut self) -> &mut Tensor {
        &mut self.data
    }
    /// Overwrites the matrix's rows from `first` on with the row-major elements `from` (rounded if the matrix is bf16).
    pub fn pack_rows(&mut self, first: usize, from: &[f32]) {
        let (n, k) = (self.rows, self.cols);
        assert!(
            from.len().is_multiple_of(k.max(1)) && first + from.len() / k.max(1) <= n,
            "rows from {first} on do not fit a matrix of shape [{n}, {k}]"
        );
        let at = |row: usize, col: usize| self.layout.at(k, first + row, col);
        let mut data = self.data.view_mut();
        match data.dtype() {
            DType::Bf16 => data.update(|to: &mut [bf16]| scatter(to, k, from, at, bf16::from_f32)),
            _ => data.update(|to: &mut [f32]| scatter(to, k, from, at, |x| x)),
        }
    }
    /// A row-major copy of the matrix's rows `range` in f32.
    pub fn unpack_rows(&self, range: Range<usize>) -> Vec<f32> {
        let mut to = vec![0.0; range.len() * self.cols];
        self.unpack_rows_into(range, &mut to);
        to
    }
    /// Copies the matrix's rows `range` to `to`, row-major in f32.
    pub fn unpack_rows_into(&self, range: Range<usize>, to: &mut [f32]) {
        let (n, k) = (self.rows, self.cols);
        assert!(
            range.end <= n && to.len() == range.len() * k,
            "rows {range:?} of a matrix of shape [{n}, {k}] into {} elements",
            to.len()
        );
        // On a device, only these panels are copied.
        let data = self.data.rows(range.start / PANEL..range.end.div_ceil(PANEL).max(range.start / PANEL));
        // Pairs interleave two inputs; panels do not interleave.
        match (data.dtype(), self.layout) {
            (DType::Bf16, Layout::Pairs) => {
                data.download(|data: &[bf16]| Isa::best().run(Gather::<_, 2> { data, range, k, to }));
            }
            (DType::Bf16, Layout::Panels) => {
                data.download(|data: &[bf16]| Isa::best().run(Gather::<_, 1> { data, range, k, to }));
            }
            _ => data.download(|data: &[f32]| Isa::best().run(Gather::<_, 1> { data, range, k, to })),
        }
    }
    /// The elements for a matmul on the CPU: f32 in [`Layout::Panels`], or bf16 in [`Layout::Pairs`].
    pub(crate) fn elements(&self, cpu: &Cpu) -> Elements<'_> {
        let layout = Layout::of(self.data.device(), self.data.dtype());
        assert_eq!(self.layout, layout, "matmuls cannot read this layout");
        self.data.view().elements(cpu)
    }
}

/// Writes row-major elements with `k` inputs to their places in a matrix's layout: element `(row, col)` goes to
/// `at(row, col)`.
fn scatter<T>(data: &mut [T], k: usize, from: &[f32], at: impl Fn(usize, usize) -> usize, narrow: impl Fn(f32) -> T) {
    for (row, from) in from.chunks_exact(k.max(1)).enumerate() {
        from.iter().enumerate().for_each(|(k, &x)| data[at(row, k)] = narrow(x));
    }
}

/// Elements of a bf16 matrix in [`Layout::Pairs`], from a whole pair of inputs on, in the order of [`Layout::Panels`].
pub fn panels_of_pairs(pairs: &[f32]) -> Vec<f32> {
    let row = |line: &[f32], input: usize| line.iter().skip(input).step_by(2).copied().collect::<Vec<_>>();
    pairs.chunks(2 * PANEL).flat_map(|line| [row(line, 0), row(line, 1)].concat()).collect()
}

/// Number of inputs of a panel that are unpacked together: few enough to stay in the first-level cache.
const TOGETHER: usize = 32;

/// Unpacks a matrix's rows `range` with `k` inputs into row-major `to`. `data` are panels of `[k / SIDE][32][SIDE]`;
/// the first of them contains row `range.start`.
struct Gather<'a, T, const SIDE: usize> {
    data: &'a [T],
    range: Range<usize>,
    k: usize,
    to: &'a mut [f32],
}

impl<T: Element, const SIDE: usize> Kernel for Gather<'_, T, SIDE> {
    type Output = ();
    #[inline(always)]
    fn run<V: Simd>(self) {
        let Gather { data, range, k, to } = self;
        let mut row = range.start;
        while row < range.end {
            let panel = row / PANEL;
            let rows = row..range.end.min((panel + 1) * PANEL);
            let (from, to) =
                (&data[(panel - range.start / PANEL) * PANEL * k..][..PANEL * k], &mut to[(row - range.start) * k..]);
            for (block, from) in from.chunks(TOGETHER * PANEL).enumerate() {
                let inputs = block * TOGETHER..k.min((block + 1) * TOGETHER);
                if SIDE == 1 && rows.len() == PANEL && inputs.len() == TOGETHER {
                    transpose::<V, T>(from, &mut to[inputs.start..], k);
                    continue;
                }
                for (row, to) in rows.clone().zip(to.chunks_exact_mut(k)) {
                    let at = row % PANEL * SIDE;
                    for (to, from) in to[inputs.clone()].chunks_exact_mut(SIDE).zip(from.chunks_exact(PANEL * SIDE)) {
                        for (to, from) in to.iter_mut().zip(&from[at..at + SIDE]) {
                            *to = from.widen();
                        }
                    }
                }
            }
            row = rows.end;
        }
    }
}

/// Transposes 32 inputs of a full panel, `from`: `[input, row]`, into rows of `k` elements, `to`: `[row, input]`.
#[inline(always)]
fn transpose<V: Simd, T: Element>(from: &[T], to: &mut [f32], k: usize) {
    for row in (0..PANEL).step_by(LANES) {
        for input in (0..TOGETHER).step_by(LANES) {
            // This is a loop because a closure would not be compiled with the instruction set's features.
            let mut inputs = [V::splat(0.0); LANES];
            for (i, lanes) in inputs.iter_mut().enumerate() {
                *lanes = T::load(&from[(input + i) * PANEL + row..]);
            }
            for (i, lanes) in V::transpose(inputs).into_iter().enumerate() {
                lanes.store(&mut to[(row + i) * k + input..]);
            }
        }
    }
}

impl std::fmt::Debug for Matrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Matrix([{}, {}] {:?})", self.rows, self.cols, self.layout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_packs_and_unpacks_any_rows() {
        let memory = Memory::new(Device::Cpu);
        for (n, k) in [(1, 1), (3, 5), (32, 4), (33, 7), (129, 2), (70, 75), (0, 3), (5, 0)] {
            let data: Vec<f32> = (0..n * k).map(|i| i as f32 + 1.0).collect();
            let m = Matrix::from_f32(&memory, n, k, &data);
            assert_eq!((m.rows(), m.cols(), m.data().shape()), (n, k, &[n.div_ceil(PANEL), k, PANEL][..]));
            assert_eq!(m.unpack_rows(0..n), data);
            assert_eq!(m.unpack_rows(n / 2..n), data[n / 2 * k..]);
            // All other elements are padding, which must be 0.
            let all = m.data().to_vec_f32();
            assert_eq!(all.iter().filter(|&&x| x != 0.0).count(), n * k);
        }
    }

    #[test]
    fn a_bf16_matrix_packs_and_unpacks_its_elements() {
        let memory = Memory::new(Device::Cpu);
        let (n, k) = (33, 8);
        let mut m = Matrix::zeros_of(&memory, n, k, DType::Bf16);
        let data: Vec<f32> = (0..n * k).map(|i| i as f32 - 100.0).collect();
        m.pack_rows(0, &data);
        let all = m.data().to_vec_f32();
        for (i, &x) in data.iter().enumerate() {
            let (row, col) = (i / k, i % k);
            assert_eq!(all[((row / 32 * k / 2 + col / 2) * 32 + row % 32) * 2 + col % 2], x);
        }
        assert_eq!((m.unpack_rows(0..n), m.data().bytes()), (data, 2 * 2 * k * PANEL));
        m.pack_rows(5, &[1.001; 8]);
        assert_eq!(m.unpack_rows(5..6), [1.0; 8]);
    }

    #[test]
    #[should_panic(expected = "an even number of inputs, got 7")]
    fn a_bf16_matrix_needs_an_even_number_of_inputs() {
        Matrix::zeros_of(&Memory::new(Device::Cpu), 4, 7, DType::Bf16);
    }

    #[test]
    #[should_panic(expected = "matmuls cannot read this layout")]
    fn a_matmul_refuses_a_matrix_in_another_layout() {
        let memory = Memory::new(Device::Cpu);
        let mut moments = Matrix::zeros(&memory, 4, 8);
        *moments.data_mut() = Tensor::zeros(&memory, moments.data().shape(), DType::Bf16);
        moments.elements(&Cpu::new(crate::Isa::PORTABLE, 1, Device::Cpu).unwrap());
    }

    #[test]
    fn elements_are_stored_at_the_documented_index() {
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
    #[should_panic(expected = "do not fit a matrix of shape [4, 3]")]
    fn packing_rows_past_the_end_panics() {
        Matrix::zeros(&Memory::new(Device::Cpu), 4, 3).pack_rows(3, &[0.0; 6]);
    }

    #[test]
    fn rows_are_unpacked_on_every_device_in_every_layout() {
        let (n, k) = (100, 70);
        let data: Vec<f32> = (0..n * k).map(|i| (i % 251) as f32).collect();
        for device in [Device::Cpu, Device::CpuChecked] {
            let memory = Memory::new(device);
            for dtype in [DType::F32, DType::Bf16] {
                let mut matrix = Matrix::zeros_of(&memory, n, k, dtype);
                matrix.pack_rows(0, &data[..40 * k]);
                matrix.pack_rows(40, &data[40 * k..]);
                for rows in [0..100, 0..32, 32..64, 31..33, 33..34, 64..100, 99..100, 5..5, 100..100] {
                    assert_eq!(matrix.unpack_rows(rows.clone()), data[rows.start * k..rows.end * k], "{rows:?}");
                }
                // bf16 moments have the layout of f32 weights.
                let mut moments = Matrix::zeros(&memory, n, k);
                *moments.data_mut() = Tensor::zeros(&memory, moments.data().shape(), DType::Bf16);
                moments.pack_rows(0, &data);
                assert_eq!(moments.unpack_rows(20..90), data[20 * k..90 * k]);
            }
        }
        let memory = Memory::new(Device::Cpu);
        let says = |f: &dyn Fn()| {
            let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).expect_err("`f` must panic");
            panic.downcast_ref::<String>().cloned().unwrap()
        };
        let matrix = Matrix::zeros(&memory, 4, 3);
        assert_eq!(
            says(&|| matrix.unpack_rows_into(2..5, &mut [0.0; 9])),
            "rows 2..5 of a matrix of shape [4, 3] into 9 elements"
        );
        assert_eq!(
            says(&|| matrix.unpack_rows_into(2..4, &mut [0.0; 7])),
            "rows 2..4 of a matrix of shape [4, 3] into 7 elements"
        );
        for (first, len, accepted) in
            [(0, 12, true), (3, 3, true), (4, 0, true), (3, 4, false), (4, 3, false), (0, 2, false)]
        {
            let pack = || Matrix::zeros(&memory, 4, 3).pack_rows(first, &vec![1.0; len]);
            let accepts = std::panic::catch_unwind(std::panic::AssertUnwindSafe(pack)).is_ok();
            assert_eq!(accepts, accepted, "{len} numbers from row {first}");
        }
    }
}
