//! What memory holds and how it becomes lanes: f32 as it is, bf16 widened exactly and rounded to nearest even.

use super::{LANES, Simd};
use half::bf16;

/// A number in memory. Lanes are f32 whatever it is: a kernel written over an `Element` computes in f32 and rounds only
/// where it stores bf16.
pub trait Element: Copy + Default + Send + Sync + 'static {
    /// Whether chains of products of such numbers take and leave denormals as zeros.
    const FLUSHES: bool;
    /// The first 16 elements of `from`.
    fn load<V: Simd>(from: &[Self]) -> V;
    /// The first `n` ≤ 16 elements of `from`, the rest 0.
    fn load_partial<V: Simd>(from: &[Self], n: usize) -> V;
    /// Writes the first 16 elements of `to`.
    fn store<V: Simd>(v: V, to: &mut [Self]);
    /// Writes the first `n` ≤ 16 elements of `to`.
    fn store_partial<V: Simd>(v: V, to: &mut [Self], n: usize);
    /// [`store`](Self::store) of 16 that [`Element::rounded`] gave.
    fn store_rounded<V: Simd>(v: V, to: &mut [Self]);
    /// What is read again after `v` was stored.
    fn rounded<V: Simd>(v: V) -> V;
    /// Exactly this number.
    fn widen(self) -> f32;
    /// The nearest number, ties to even.
    fn narrow(x: f32) -> Self;
}

impl Element for f32 {
    const FLUSHES: bool = false;
    #[inline(always)]
    fn load<V: Simd>(from: &[f32]) -> V {
        V::load(from)
    }
    #[inline(always)]
    fn load_partial<V: Simd>(from: &[f32], n: usize) -> V {
        V::load_partial(from, n)
    }
    #[inline(always)]
    fn store<V: Simd>(v: V, to: &mut [f32]) {
        v.store(to);
    }
    #[inline(always)]
    fn store_partial<V: Simd>(v: V, to: &mut [f32], n: usize) {
        v.store_partial(to, n);
    }
    #[inline(always)]
    fn store_rounded<V: Simd>(v: V, to: &mut [f32]) {
        v.store(to);
    }
    #[inline(always)]
    fn rounded<V: Simd>(v: V) -> V {
        v
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
    #[inline(always)]
    fn narrow(x: f32) -> f32 {
        x
    }
}

impl Element for bf16 {
    const FLUSHES: bool = true;
    #[inline(always)]
    fn load<V: Simd>(from: &[bf16]) -> V {
        V::load_bf16(from)
    }
    #[inline(always)]
    fn load_partial<V: Simd>(from: &[bf16], n: usize) -> V {
        let mut all = [bf16::ZERO; LANES];
        all[..n].copy_from_slice(&from[..n]);
        V::load_bf16(&all)
    }
    #[inline(always)]
    fn store<V: Simd>(v: V, to: &mut [bf16]) {
        v.store_bf16(to);
    }
    #[inline(always)]
    fn store_partial<V: Simd>(v: V, to: &mut [bf16], n: usize) {
        let mut all = [bf16::ZERO; LANES];
        v.store_bf16(&mut all);
        to[..n].copy_from_slice(&all[..n]);
    }
    #[inline(always)]
    fn store_rounded<V: Simd>(v: V, to: &mut [bf16]) {
        v.store_exact_bf16(to);
    }
    #[inline(always)]
    fn rounded<V: Simd>(v: V) -> V {
        v.rounded_to_bf16()
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    #[inline(always)]
    fn narrow(x: f32) -> bf16 {
        bf16::from_f32(x)
    }
}

/// Widens elements into f32 memory, vector by vector.
#[inline(always)]
pub(crate) fn widen_into<V: Simd, E: Element>(from: &[E], to: &mut [f32]) {
    for (from, to) in from.chunks(LANES).zip(to.chunks_mut(LANES)) {
        if from.len() == LANES && to.len() == LANES {
            E::load::<V>(from).store(to);
        } else {
            from.iter().zip(to).for_each(|(from, to)| *to = from.widen());
        }
    }
}
