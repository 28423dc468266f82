//! Rotary position embedding (Su et al., "RoFormer", 2021). Element i of a head is paired with element i + hd/2, as in
//! Hugging Face transformers.
//!
//! Letters in shapes: `T` tokens, `A` heads in a row, `hd` head_dim, `P` positions in the table.
//!
//! For each of the first `heads` heads a and each i < hd/2, `p = positions[t]`, `θ = f32(p) · inv_freq[i]` rounded to
//! f32:
//! ```text
//! c, s            = cos θ · attention_scaling, sin θ · attention_scaling
//! x'[t,a,i]       = x[t,a,i]        · c − x[t,a,i+hd/2] · s
//! x'[t,a,i+hd/2]  = x[t,a,i+hd/2]   · c + x[t,a,i]      · s
//! ```
//! The backward pass is the transpose: the same rotation with −s.

mod cpu;
mod cuda;
#[cfg(test)]
pub(crate) mod reference;

use crate::DType::{F32, U32};
use crate::device::Backend;
use crate::ops::args::{expect, expect_below, expect_floats, two_dims};
use crate::{Context, DType, Device, Error, Memory, Result, Tensor, View, ViewMut};

/// Cosines and sines of the rotation angles, for every position below a limit.
#[derive(Debug)]
pub struct Table {
    /// Cosines `[P, hd/2]`.
    cos: Tensor,
    /// Sines `[P, hd/2]`.
    sin: Tensor,
}

impl Table {
    /// Computes the table for the frequencies `inv_freq: [hd/2]` and the positions `0..max_positions`. Cosines and
    /// sines are multiplied by `attention_scaling`.
    ///
    /// Angles are position · frequency in f32, as in transformers. Their cosine and sine are computed by a Taylor
    /// series in f64 (error below 1e-14 for angles up to 1.6e6) and rounded to f32, so that the bits do not depend on a
    /// C library.
    pub fn new(memory: &Memory, inv_freq: &[f32], attention_scaling: f32, max_positions: usize) -> Table {
        let zeros = || Tensor::zeros(memory, &[max_positions, inv_freq.len()], DType::F32);
        let mut table = Table { cos: zeros(), sin: zeros() };
        if memory.device() != Device::Meta {
            let angles = (0..max_positions).flat_map(|p| inv_freq.iter().map(move |f| p as f32 * f));
            let both = angles.map(|angle| cos_sin(f64::from(angle)));
            let (cos, sin): (Vec<f32>, Vec<f32>) =
                both.map(|(c, s)| (c as f32 * attention_scaling, s as f32 * attention_scaling)).unzip();
            table.cos.view_mut().copy_from_f32(&cos);
            table.sin.view_mut().copy_from_f32(&sin);
        }
        table
    }
    /// Cosines of the angles: `[P, hd/2]`.
    pub fn cos(&self) -> View<'_> {
        self.cos.view()
    }
    /// Sines of the angles: `[P, hd/2]`.
    pub fn sin(&self) -> View<'_> {
        self.sin.view()
    }
}

/// Arguments of [`forward`] and [`backward`].
pub struct Rotate<'a> {
    /// Rows of heads `[T, A·hd]`: rotated in place.
    pub x: ViewMut<'a>,
    /// Number of heads to rotate: the first heads of a row, which are queries and keys.
    pub heads: usize,
    /// Size of a head (hd).
    pub head_dim: usize,
    /// Position of each row in its sequence: u32 `[T]`, each below P.
    pub positions: View<'a>,
    /// Cosines and sines of the rotation angles.
    pub table: &'a Table,
}

/// Arguments of [`forward_into`].
pub struct RotateInto<'a> {
    /// Rows of heads: `[T, A·hd]`.
    pub x: View<'a>,
    /// Output `[T, A·hd]`, f32 or bf16 (rounded once, after the rotation): *overwrites*. Heads that are not rotated are
    /// copied.
    pub y: ViewMut<'a>,
    /// Number of heads to rotate: the first heads of a row, which are queries and keys.
    pub heads: usize,
    /// Size of a head (hd).
    pub head_dim: usize,
    /// Position of each row in its sequence: u32 `[T]`, each below P.
    pub positions: View<'a>,
    /// Cosines and sines of the rotation angles.
    pub table: &'a Table,
}

/// Rotates queries and keys in place.
pub fn forward(ctx: &Context, args: Rotate<'_>) -> Result<()> {
    check("rope::forward", args.x.view(), args.heads, args.head_dim, args.positions, args.table)?;
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::rotate(cpu, args, 1.0),
        Backend::Cuda(cuda) => cuda::rotate(cuda, args, 1.0)?,
    }
    Ok(())
}

/// Rotates queries and keys into another tensor.
pub fn forward_into(ctx: &Context, args: RotateInto<'_>) -> Result<()> {
    const OP: &str = "rope::forward_into";
    check(OP, args.x, args.heads, args.head_dim, args.positions, args.table)?;
    expect_floats(OP, "y", args.y.view(), args.x.shape())?;
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::rotate_into(cpu, args),
        Backend::Cuda(cuda) => cuda::rotate_into(cuda, args)?,
    }
    Ok(())
}

/// Backward pass: rotates a gradient in place, by the opposite angles.
pub fn backward(ctx: &Context, args: Rotate<'_>) -> Result<()> {
    check("rope::backward", args.x.view(), args.heads, args.head_dim, args.positions, args.table)?;
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu::rotate(cpu, args, -1.0),
        Backend::Cuda(cuda) => cuda::rotate(cuda, args, -1.0)?,
    }
    Ok(())
}

fn check(op: &'static str, x: View<'_>, heads: usize, hd: usize, positions: View<'_>, table: &Table) -> Result<()> {
    let [t, width] = two_dims(op, "x", x)?;
    let [limit, half] = two_dims(op, "table", table.cos())?;
    expect(op, "x", x, F32, &[t, width])?;
    expect(op, "positions", positions, U32, &[t])?;
    if hd != 2 * half || width % hd.max(1) != 0 || heads * hd > width {
        let message =
            format!("shapes do not fit: {heads} heads of {hd} in rows of {width} with a table of {half} angles");
        return Err(Error::Value { op, message });
    }
    expect_below(op, "positions", positions.indices(), limit)?;
    crate::context::count(6 * (t * heads * half) as u64, 16 * (t * heads * half) as u64);
    Ok(())
}

/// Cosine and sine of an angle ≥ 0, by reduction to |r| ≤ π/4 and Taylor series.
fn cos_sin(angle: f64) -> (f64, f64) {
    // π/2 is split into two parts. The first has 33 bits, so its product with fewer than 2^20 quarter turns is exact.
    const HALF_PI_HI: f64 = f64::from_bits(0x3ff9_21fb_5440_0000);
    const HALF_PI_LO: f64 = 6.077_100_506_506_192e-11;
    let turns = (angle * std::f64::consts::FRAC_2_PI).round_ties_even();
    let r = (angle - turns * HALF_PI_HI) - turns * HALF_PI_LO;
    let square = r * r;
    let (mut sin, mut cos) = (1.0, 1.0);
    for n in (2..=18u32).rev().step_by(2) {
        let n = f64::from(n);
        cos = 1.0 - square / (n * (n - 1.0)) * cos;
        sin = 1.0 - square / (n * (n + 1.0)) * sin;
    }
    sin *= r;
    match turns as u64 % 4 {
        0 => (cos, sin),
        1 => (-sin, cos),
        2 => (-cos, -sin),
        _ => (sin, -cos),
    }
}

#[cfg(test)]
mod tests;
