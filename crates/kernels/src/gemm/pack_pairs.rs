//! Operands of a matmul into words: two terms of a sum in a lane, the first in its upper half.
//!
//! A sum of an odd number of terms ends with −0 · 0, which changes nothing: x + −0 is x, for x = −0 too.

use super::pack::OfWeight;
use super::plan::Strips;
use super::{Left, Matmul, Right};
use crate::matrix::PANEL;
use crate::simd::{Element, LANES, Simd};
use crate::tensor::Elements;
use half::bf16;
use std::ops::Range;

/// Rows of words that are read together where columns of them are packed.
const ROWS_TOGETHER: usize = 4;
/// Elements of a vector of words.
const WIDTH: usize = 2 * LANES;

impl Matmul<'_> {
    /// [`pack_left`](Self::pack_left) of words: `[⌈depth/2⌉][strips.most]` each.
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

    /// Panels `panels` of the right operand, `[⌈depth/2⌉][32]` words each, and the words between two of them.
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
                    // `depth` starts at a panel of the weight.
                    for (source, to) in (depth.start / PANEL..).zip(to.chunks_exact_mut(PANEL / 2 * PANEL)) {
                        let of = |column: usize| (source * self.n + column) * PANEL;
                        transpose::<V>(&data[of(columns.start)..of(columns.end)], to);
                    }
                }
                Right::Rows(..) => self.zip::<V>(depth.clone(), panel, &mut [to]),
                Right::Panels(Elements::F32(_)) | Right::Transposed(Elements::F32(_)) => {
                    unreachable!("a weight in f32 is not multiplied in words")
                }
                Right::Tiles(_) | Right::Words(_) => unreachable!("packed already, or for tiles"),
            }
        }
        (to.as_ptr(), pitch)
    }

    /// Rows `depth` of the right operand, from an even one on, in panels from `first` on: `[⌈rows/2⌉][32]` words each.
    #[inline(always)]
    pub(super) fn zip<V: Simd>(&self, depth: Range<usize>, first: usize, to: &mut [&mut [f32]]) {
        let columns = first * PANEL..self.n.min((first + to.len()) * PANEL);
        match self.right {
            Right::Rows(Elements::F32(data), stride) => zip::<V, f32>(data, stride, depth, columns, to),
            Right::Rows(Elements::Bf16(data), stride) => zip::<V, bf16>(data, stride, depth, columns, to),
            _ => unreachable!("only rows are zipped"),
        }
    }
}

/// What words are made of.
trait Factor: Element {
    /// The first 32 elements of `from` as words, rounded if they are f32.
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

/// Up to 32 neighbours as words, the last of them with −0 if they are odd; zeros after them.
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

/// Rows of row-major data. Whole vectors are stored: what is past a strip's rows belongs to its next step, which is
/// stored later, or is room at the end.
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
                // The number of steps is known: lines stay in registers.
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

/// Columns of row-major data, stored likewise; a few rows at a time, all of whose columns are read while the first
/// cache holds them.
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

/// The first `n` ≤ 16 elements of `from` as bf16. What lies beside them is not used, but faster read than masked.
#[inline(always)]
fn beside<V: Simd, E: Element>(from: &[E], n: usize) -> V {
    bf16_of::<V, E>(from, if from.len() >= LANES { LANES } else { n })
}

/// The first `n` ≤ 16 elements of `from`, rounded if they are f32, the rest 0.
#[inline(always)]
fn bf16_of<V: Simd, E: Element>(from: &[E], n: usize) -> V {
    let lanes: V = if n == LANES { E::load(from) } else { E::load_partial(from, n) };
    if E::FLUSHES { lanes } else { lanes.rounded_to_bf16() }
}

/// Rows `depth` of row-major data, two by two, 32 columns to each of `to`: `[⌈depth/2⌉][32]`; what does not exist is 0.
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

/// 32 outputs of `c` ≤ 32 inputs, `[c/2][32][2]`, to words of two outputs each, `[16][32]`; inputs past `c` become 0.
#[inline(always)]
fn transpose<V: Simd>(from: &[bf16], to: &mut [f32]) {
    for input in [0, LANES] {
        for output in [0, LANES] {
            // A closure would not be compiled with the instruction set's features.
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
