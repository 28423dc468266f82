//! The element types in memory and their conversion to lanes of f32. f32 is not converted; bf16 is widened exactly, and
//! rounded to nearest even when stored.

use super::{LANES, Simd};
use half::bf16;

/// The type of a number in memory, f32 or bf16. Lanes are always f32: a kernel that is generic over `Element` computes
/// in f32 and rounds only where it stores bf16.
pub trait Element: Copy + Default + Send + Sync + 'static {
    /// Whether matmuls of this type, as chains of multiply-adds, treat denormal inputs and results as zeros.
    const FLUSHES: bool;
    /// Loads the first 16 elements of `from`.
    fn load<V: Simd>(from: &[Self]) -> V;
    /// Loads the first `n` ≤ 16 elements of `from`; the other lanes are 0.
    fn load_partial<V: Simd>(from: &[Self], n: usize) -> V;
    /// Stores the lanes of `v` in the first 16 elements of `to`.
    fn store<V: Simd>(v: V, to: &mut [Self]);
    /// Stores the first `n` ≤ 16 lanes of `v` in the first `n` elements of `to`.
    fn store_partial<V: Simd>(v: V, to: &mut [Self], n: usize);
    /// Like [`store`](Self::store), for lanes that [`Element::rounded`] returned and that need no rounding.
    fn store_rounded<V: Simd>(v: V, to: &mut [Self]);
    /// The lanes of `v` as they would be loaded after a [`store`](Self::store).
    fn rounded<V: Simd>(v: V) -> V;
    /// The same number as f32; exact.
    fn widen(self) -> f32;
    /// The number of this type nearest to `x`, ties to even.
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

/// Widens all elements of `from` into `to`, vector by vector.
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
