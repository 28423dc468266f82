//! Packs the operands of a matmul into words. A word has two consecutive bf16 terms of a sum in one 32-bit lane, the
//! first term in the upper half.
//!
//! A sum with an odd number of terms ends with the term −0 · 0, which does not change a bit: x + −0 is x, even for x =
//! −0.

use super::pack::OfWeight;
use super::plan::Strips;
use super::{Left, Matmul, Right};
use crate::matrix::PANEL;
use crate::simd::{Element, LANES, Simd};
use crate::tensor::Elements;
use half::bf16;
use std::ops::Range;

/// Rows of words that are packed together when columns are packed.
const ROWS_TOGETHER: usize = 4;
/// Number of bf16 elements in a vector of 16 words.
const WIDTH: usize = 2 * LANES;

impl Matmul<'_> {
    /// Like [`pack_left`](Self::pack_left), but into words of two terms: strips of `[⌈depth/2⌉][strips.most]`.
    #[inline(always)]
    pub(super) fn pack_left_words<V: Simd>(
        &self,
        strips: &Strips,
        which: Range<usize>,
        depth: Range<usize>,
        to: &mut [f32],
    ) {
        let of = (strips, which);
        match self.left {
            Left::Rows(Elements::F32(data), stride) => rows::<V, f32>(data, stride, of, depth, to),
            Left::Rows(Elements::Bf16(data), stride) => rows::<V, bf16>(data, stride, of, depth, to),
            Left::Columns(Elements::F32(data), stride) => columns::<V, f32>(data, stride, of, depth, to),
            Left::Columns(Elements::Bf16(data), stride) => columns::<V, bf16>(data, stride, of, depth, to),
            Left::Tiles(_) | Left::Strips(_) => unreachable!("packed already"),
        }
    }

    /// Returns panels `panels` of the right operand as `[⌈depth/2⌉][32]` words each, and the number of words from one
    /// panel to the next.
    #[inline(always)]
    pub(super) fn words<V: Simd>(
        &self,
        panels: Range<usize>,
        depth: Range<usize>,
        to: &mut [f32],
    ) -> (*const f32, usize) {
        if let Right::Words(packed) = self.right {
            let pitch = self.depth.div_ceil(2) * PANEL;
            return (packed[panels.start * pitch + depth.start / 2 * PANEL..].as_ptr(), pitch);
        }
        let pitch = depth.len().next_multiple_of(PANEL) / 2 * PANEL;
        for (panel, to) in panels.zip(to.chunks_exact_mut(pitch.max(1))) {
            let columns = panel * PANEL..self.n.min((panel + 1) * PANEL);
            match self.right {
                Right::Panels(Elements::Bf16(data)) => {
                    let from = &data[(panel * self.depth + depth.start) * PANEL..][..depth.len() * PANEL];
                    for (from, to) in from.chunks_exact(WIDTH).zip(to.chunks_exact_mut(LANES)) {
                        V::load_words(from).store(to);
                    }
                }
                Right::Transposed(Elements::Bf16(data)) => {
                    // `depth` starts at a multiple of 32, so at the start of a panel of the weight.
                    for (source, to) in (depth.start / PANEL..).zip(to.chunks_exact_mut(PANEL / 2 * PANEL)) {
                        let of = |column: usize| (source * self.n + column) * PANEL;
                        transpose::<V>(&data[of(columns.start)..of(columns.end)], to);
                    }
                }
                Right::Rows(..) => self.zip::<V>(depth.clone(), panel, &mut [to]),
                Right::Panels(Elements::F32(_)) | Right::Transposed(Elements::F32(_)) => {
                    unreachable!("f32 weights are never multiplied in words")
                }
                Right::Tiles(_) | Right::Words(_) => unreachable!("the operand is already packed, or packed for tiles"),
            }
        }
        (to.as_ptr(), pitch)
    }

    /// Packs the rows `depth` of a row-major right operand into words; `depth.start` is even. `to` contains the panels
    /// from `first` on, `[⌈rows/2⌉][32]` words each.
    #[inline(always)]
    pub(super) fn zip<V: Simd>(&self, depth: Range<usize>, first: usize, to: &mut [&mut [f32]]) {
        let columns = first * PANEL..self.n.min((first + to.len()) * PANEL);
        match self.right {
            Right::Rows(Elements::F32(data), stride) => zip::<V, f32>(data, stride, depth, columns, to),
            Right::Rows(Elements::Bf16(data), stride) => zip::<V, bf16>(data, stride, depth, columns, to),
            _ => unreachable!("only row-major data is packed into words"),
        }
    }
}

/// Element type that is packed into words: f32 or bf16.
trait Factor: Element {
    /// Packs the first 32 elements of `from` into 16 words; f32 is rounded to bf16.
    fn words<V: Simd>(from: &[Self]) -> V;
}

impl Factor for bf16 {
    #[inline(always)]
    fn words<V: Simd>(from: &[bf16]) -> V {
        V::load_words(from)
    }
}

impl Factor for f32 {
    #[inline(always)]
    fn words<V: Simd>(from: &[f32]) -> V {
        let mut all = [bf16::ZERO; WIDTH];
        V::load(from).store_bf16(&mut all);
        V::load(&from[LANES..]).store_bf16(&mut all[LANES..]);
        V::load_words(&all)
    }
}

/// Packs up to 32 consecutive elements into 16 words. The partner of an odd last element is −0; further words are 0.
#[inline(always)]
fn neighbours<V: Simd, E: Factor>(from: &[E]) -> V {
    if from.len() == WIDTH {
        return E::words(from);
    }
    let mut all = [bf16::ZERO; WIDTH];
    if from.len() % 2 == 1 {
        all[from.len()] = bf16::NEG_ZERO;
    }
    from.iter().zip(&mut all).for_each(|(from, to)| *to = bf16::narrow(from.widen()));
    V::load_words(&all)
}

/// Packs rows of row-major data into strips of words. Whole vectors are stored: lanes past the strip's rows fall into
/// its next step, which is stored later and overwrites them, or into spare room at the end.
#[inline(always)]
fn rows<V: Simd, E: Factor>(
    data: &[E],
    stride: usize,
    (strips, which): (&Strips, Range<usize>),
    depth: Range<usize>,
    to: &mut [f32],
) {
    for (strip, to) in which.zip(to.chunks_mut(strips.pitch())) {
        for k in (0..depth.len()).step_by(WIDTH) {
            let n = WIDTH.min(depth.len() - k);
            let mut lines = [V::splat(0.0); LANES];
            for (row, line) in strips.rows(strip).zip(&mut lines) {
                *line = neighbours::<V, E>(&data[row * stride + depth.start + k..][..n]);
            }
            let to = &mut to[k / 2 * strips.most..];
            if strips.most == 1 {
                lines[0].store(to);
                continue;
            }
            let lines = V::transpose(lines);
            if n == WIDTH {
                // The number of lines is a compile-time constant, so that the lines stay in registers.
                for (i, line) in lines.into_iter().enumerate() {
                    line.store(&mut to[i * strips.most..]);
                }
            } else {
                for (i, line) in lines.into_iter().enumerate().take(n.div_ceil(2)) {
                    line.store(&mut to[i * strips.most..]);
                }
            }
        }
    }
}

/// Packs columns of row-major data into strips of words, storing whole vectors as [`rows`] does. It reads a few rows at
/// a time and packs all their columns while the rows are in the first-level cache.
#[inline(always)]
fn columns<V: Simd, E: Element>(
    data: &[E],
    stride: usize,
    (strips, which): (&Strips, Range<usize>),
    depth: Range<usize>,
    to: &mut [f32],
) {
    let words = depth.len().div_ceil(2);
    for first in (0..words).step_by(ROWS_TOGETHER) {
        for (strip, to) in which.clone().zip(to.chunks_mut(strips.pitch())) {
            let columns = strips.rows(strip);
            for word in first..words.min(first + ROWS_TOGETHER) {
                let k = depth.start + 2 * word;
                let at = |row: usize| row * stride + columns.start;
                let even = beside::<V, E>(&data[at(k)..], columns.len());
                let odd =
                    if k + 1 < depth.end { beside::<V, E>(&data[at(k + 1)..], columns.len()) } else { V::splat(-0.0) };
                V::word(even, odd).store(&mut to[word * strips.most..]);
            }
        }
    }
}

/// Loads the first `n` ≤ 16 elements of `from` as bf16. It may load up to 16, because that is faster than masking; the
/// extra lanes are never used.
#[inline(always)]
fn beside<V: Simd, E: Element>(from: &[E], n: usize) -> V {
    bf16_of::<V, E>(from, if from.len() >= LANES { LANES } else { n })
}

/// Loads the first `n` ≤ 16 elements of `from`, rounded to bf16 if they are f32; the other lanes are 0.
#[inline(always)]
fn bf16_of<V: Simd, E: Element>(from: &[E], n: usize) -> V {
    let lanes: V = if n == LANES { E::load(from) } else { E::load_partial(from, n) };
    if E::FLUSHES { lanes } else { lanes.rounded_to_bf16() }
}

/// Packs the rows `depth` of row-major data into words of two rows each, 32 columns into each panel of `to`,
/// `[⌈depth/2⌉][32]`. Missing rows and columns are 0.
#[inline(always)]
fn zip<V: Simd, E: Element>(
    data: &[E],
    stride: usize,
    depth: Range<usize>,
    columns: Range<usize>,
    to: &mut [&mut [f32]],
) {
    for (word, k) in depth.clone().step_by(2).enumerate() {
        for (to, first) in to.iter_mut().zip((columns.start..).step_by(PANEL)) {
            let to = &mut to[word * PANEL..][..PANEL];
            if k + 1 < depth.end && first + PANEL <= columns.end {
                let (even, odd) = (&data[k * stride + first..][..PANEL], &data[(k + 1) * stride + first..][..PANEL]);
                for (at, to) in [0, LANES].into_iter().zip(to.chunks_exact_mut(LANES)) {
                    let (even, odd) = (&even[at..], &odd[at..]);
                    V::word(bf16_of::<V, E>(even, LANES), bf16_of::<V, E>(odd, LANES)).store(to);
                }
                continue;
            }
            for (at, to) in (first..).step_by(LANES).zip(to.chunks_exact_mut(LANES)) {
                let n = columns.end.saturating_sub(at).min(LANES);
                let mut rows = [V::splat(0.0); 2];
                for (k, row) in (k..depth.end).zip(&mut rows).take(if n == 0 { 0 } else { 2 }) {
                    *row = bf16_of::<V, E>(&data[k * stride + at..][..n], n);
                }
                V::word(rows[0], rows[1]).store(to);
            }
        }
    }
}

/// Transposes a part of a bf16 weight: 32 outputs of `c` ≤ 32 inputs, `[c/2][32][2]`, become words of two outputs each,
/// `[16][32]`. Inputs past `c` become 0.
#[inline(always)]
fn transpose<V: Simd>(from: &[bf16], to: &mut [f32]) {
    for input in [0, LANES] {
        for output in [0, LANES] {
            // This is a loop because a closure would not be compiled with the instruction set's features.
            let mut rows = [V::splat(0.0); LANES];
            for (i, rows) in rows.chunks_exact_mut(2).enumerate() {
                rows.copy_from_slice(&bf16::rows::<V>(from, input + 2 * i, output));
            }
            let transposed = V::transpose(rows);
            for (i, outputs) in transposed.chunks_exact(2).enumerate() {
                V::word(outputs[0], outputs[1]).store(&mut to[(output / 2 + i) * PANEL + input..]);
            }
        }
    }
}
