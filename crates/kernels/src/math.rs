//! Vectorised exp, ln and sigmoid, without libm: every instruction set gives the same bits.

use crate::simd::{SHIFT, Simd};

/// exp is 0 below this: 2^−126 is the smallest power of 2 that is a normal number.
const UNDERFLOW: f32 = -87.33;
/// exp is +∞ above this.
const OVERFLOW: f32 = 88.72;

/// e^x with an error of at most 2 ulp: 0 below −87.33 (and at −∞), +∞ above 88.72, NaN for NaN.
#[inline(always)]
pub fn exp<V: Simd>(x: V) -> V {
    V::select(x.lt(V::splat(UNDERFLOW)), V::splat(0.0), exp_or_tiny(x))
}

/// [`exp`], but with e^−87.33 instead of 0 below −87.33.
#[inline(always)]
fn exp_or_tiny<V: Simd>(x: V) -> V {
    let e = power(x.max(V::splat(UNDERFLOW)).min(V::splat(OVERFLOW)));
    // Above OVERFLOW the result is +∞, or NaN if x is NaN.
    V::select(x.lt(V::splat(OVERFLOW.next_up())), e, x.add(V::splat(f32::INFINITY)))
}

/// [`exp`] in fewer instructions, with the same bits, for x of at most 88.72. (Above that the result is unspecified.)
#[inline(always)]
pub fn exp_finite<V: Simd>(x: V) -> V {
    let e = power(x.max(V::splat(UNDERFLOW)));
    // Below UNDERFLOW the result is 0, or NaN if x is NaN.
    V::select(V::splat(UNDERFLOW.next_down()).lt(x), e, x.max(V::splat(0.0)))
}

/// e^x, for x such that e^x and e^−x are normal numbers.
#[inline(always)]
fn power<V: Simd>(x: V) -> V {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    // ln 2 is split into two parts. The first has few bits, so that n·LN2_HI is exact.
    const LN2_HI: f32 = 0.693_359_4;
    const LN2_LO: f32 = -2.121_944_4e-4;
    let shifted = x.mul(V::splat(LOG2_E)).add(V::splat(SHIFT));
    let n = shifted.sub(V::splat(SHIFT));
    let r = n.fma(V::splat(-LN2_HI), x);
    let r = n.fma(V::splat(-LN2_LO), r);
    // Cephes expf: e^r ≈ 1 + r + r²·p(r) on |r| ≤ ln 2 / 2.
    let p = V::splat(1.987_569_1e-4);
    let p = p.fma(r, V::splat(1.398_2e-3));
    let p = p.fma(r, V::splat(8.333_452e-3));
    let p = p.fma(r, V::splat(4.166_579_6e-2));
    let p = p.fma(r, V::splat(1.666_666_5e-1));
    let p = p.fma(r, V::splat(5e-1));
    p.fma(r.mul(r), r).add(V::splat(1.0)).mul_pow2(shifted)
}

/// ln x for positive normal x, with a relative error of at most 2 ulp.
#[inline(always)]
pub fn ln<V: Simd>(x: V) -> V {
    let (e, m) = x.split_exponent();
    // Moves the significand into [√½, √2), so that the series is centred on 1.
    let large = V::splat(std::f32::consts::SQRT_2).lt(m);
    let m = V::select(large, m.mul(V::splat(0.5)), m);
    let e = V::select(large, e.add(V::splat(1.0)), e);
    let r = m.sub(V::splat(1.0));
    // Cephes logf.
    let p = V::splat(7.037_683_6e-2);
    let p = p.fma(r, V::splat(-1.151_461e-1));
    let p = p.fma(r, V::splat(1.167_699_9e-1));
    let p = p.fma(r, V::splat(-1.242_014_1e-1));
    let p = p.fma(r, V::splat(1.424_932_3e-1));
    let p = p.fma(r, V::splat(-1.666_805_8e-1));
    let p = p.fma(r, V::splat(2.000_071_5e-1));
    let p = p.fma(r, V::splat(-2.499_999_4e-1));
    let p = p.fma(r, V::splat(3.333_333e-1));
    let square = r.mul(r);
    let y = p.mul(r).mul(square);
    let y = e.fma(V::splat(-2.121_944_4e-4), y);
    let y = square.fma(V::splat(-0.5), y);
    let y = y.add(r);
    e.fma(V::splat(0.693_359_4), y)
}

/// The logistic function, 1 / (1 + e^−x).
#[inline(always)]
pub fn sigmoid<V: Simd>(x: V) -> V {
    let one = V::splat(1.0);
    // A tiny exponential does not change the sum 1 + e^−x.
    one.div(one.add(exp_or_tiny(V::splat(0.0).sub(x))))
}

/// [`exp`] of one number instead of a vector.
#[inline(always)]
pub fn exp1<V: Simd>(x: f32) -> f32 {
    exp(V::splat(x)).to_array()[0]
}

/// [`ln`] of one number instead of a vector.
#[inline(always)]
pub fn ln1<V: Simd>(x: f32) -> f32 {
    ln(V::splat(x)).to_array()[0]
}

#[cfg(test)]
mod tests;
