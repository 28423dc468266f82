//! Low-rank adapters (LoRA, Hu et al., arXiv 2106.09685) of a product: `y += s · (x Aᵀ) Bᵀ`.
//!
//! Shapes: `M` rows (tokens), `K` inputs, `N` outputs; `s` the scale (`alpha / r`). Products with the same input are fused
//! (q, k and v), and each has an adapter of its own: block `i` is `A_i: [r_i, K]`, `B_i: [N_i, r_i]`, and adds to the
//! columns `first_i .. first_i + N_i` of `y`. The `A_i` lie one below the other in `A: [R, K]`, `R = Σ r_i`, so that
//! `x` is read once; columns of `y` that no block reaches stay as they are.
//!
//! ```text
//! xa[m,j]          = s · Σ_k x[m,k] A[j,k]              the chain rounded to f32, then multiplied by s
//! y[m,first_i+n]  += Σ_j xa[m,j] B_i[n,j]               j over block i; continues the chain of the base product
//! dxa[m,j]         = s · Σ_n dy[m,first_i+n] B_i[n,j]
//! dB_i[n,j]       += Σ_m dy[m,first_i+n] xa[m,j]
//! dA[j,k]         += Σ_m dxa[m,j] x[m,k]
//! dx[m,k]         += Σ_j dxa[m,j] A[j,k]                all j, ascending
//! ```
//!
//! `xa` carries the scale, so `dB` needs no other factor. The backward computes it again, to the same bits: it costs less
//! than keeping it for every layer.
//!
//! With [`Dropout`], block `i` reads `f_i[m,k] x[m,k]` in the place of `x`, where `f_i` is 0 or `1/(1−p)`: in `xa` and `dA`; and
//!
//! ```text
//! dx[m,k]         += f_i[m,k] · Σ_j dxa[m,j] A[j,k]     j over block i, from 0; then the next block
//! ```

mod cpu;
mod dropout;
pub mod reference;
#[cfg(test)]
mod tests;

pub use dropout::Dropout;

use super::args::{expect, expect_floats, expect_shape, two_dims};
use super::linear::{self, book};
use super::lm_head::cpu::with_workspace;
use crate::tensor::Elements;
use crate::{Context, DType, Matrix, Result, View, ViewMut};
use linear::cpu::{Left, Numbers, Operands, Order, Product, Right};

/// An adapter, to read.
#[derive(Clone, Copy)]
pub struct Adapter<'a> {
    /// `[R, K]`
    pub a: &'a Matrix,
    /// The `[N_i, r_i]`.
    pub b: &'a [Matrix],
    /// The `first_i`.
    pub first: &'a [usize],
    /// `s`
    pub scale: f32,
}

/// Arguments of [`forward`].
pub struct Forward<'a> {
    /// `[M, K]`
    pub x: View<'a>,
    /// The adapter.
    pub adapter: Adapter<'a>,
    /// Which elements of `x` the adapter does not see.
    pub dropout: Option<Dropout<'a>>,
    /// `[M, N]`: *accumulates into*.
    pub y: ViewMut<'a>,
}

/// Arguments of [`backward`].
pub struct Backward<'a> {
    /// `[M, K]`
    pub x: View<'a>,
    /// The adapter.
    pub adapter: Adapter<'a>,
    /// That of [`forward`].
    pub dropout: Option<Dropout<'a>>,
    /// `[M, N]`
    pub d_y: View<'a>,
    /// `[M, K]`: *accumulates into*.
    pub d_x: ViewMut<'a>,
    /// `[R, K]`: *accumulates into*.
    pub d_a: &'a mut Matrix,
    /// The `[N_i, r_i]`: *accumulates into*.
    pub d_b: &'a mut [Matrix],
}

impl Adapter<'_> {
    /// R, if the parts fit each other and rows of `k` inputs and `n` outputs.
    fn check(&self, op: &'static str, k: usize, n: usize) -> Result<usize> {
        let rank = self.b.iter().map(Matrix::cols).sum();
        expect_shape(op, "a", &[self.a.rows(), self.a.cols()], &[rank, k])?;
        expect_shape(op, "first", &[self.first.len()], &[self.b.len()])?;
        for (b, &first) in self.b.iter().zip(self.first) {
            expect_shape(op, "b (its last row)", &[n.max(first + b.rows())], &[n])?;
        }
        Ok(rank)
    }

    /// Each block: B, its columns' start in `y`, its columns' start in `xa`.
    fn blocks(&self) -> impl Iterator<Item = (&Matrix, usize, usize)> {
        let ranks = self.b.iter().scan(0, |at, b| {
            *at += b.cols();
            Some(*at - b.cols())
        });
        self.b.iter().zip(self.first).zip(ranks).map(|((b, &first), rank)| (b, first, rank))
    }

    /// Elements of workspace beside xa and dxa.
    fn spare(&self, m: usize, dropout: Option<&Dropout<'_>>) -> usize {
        dropout.map_or(0, |_| self.dropped_len(m))
    }

    /// `xa = s · x Aᵀ`: `[M, R]` overwrites.
    fn lower(&self, ctx: &Context, m: usize, x: Elements<'_>, xa: &mut [f32]) {
        let (rank, k) = (self.a.rows(), self.a.cols());
        book(m, rank, k, self.a.data().bytes());
        let operands = Operands {
            m,
            n: rank,
            depth: k,
            left: Left::Rows(x, k),
            right: Right::Panels(self.a.elements()),
            c: xa,
            order: Order::Rows(rank),
            accumulate: false,
            bias: None,
            numbers: Numbers::Held,
            segments: None,
        };
        Product::new(ctx.isa(), operands).run(ctx);
        cpu::scale(ctx, xa, self.scale);
    }
}

/// `y += s · (x Aᵀ) Bᵀ`. Beside its outputs it holds `xa`.
pub fn forward(ctx: &Context, args: Forward<'_>) -> Result<()> {
    const OP: &str = "lora::forward";
    let Forward { x, adapter, dropout, y } = args;
    let ([m, k], [_, n]) = (two_dims(OP, "x", x)?, two_dims(OP, "y", y.view())?);
    let rank = adapter.check(OP, k, n)?;
    expect_floats(OP, "x", x, &[m, k])?;
    expect(OP, "y", y.view(), DType::F32, &[m, n])?;
    dropout.as_ref().map_or(Ok(()), |dropout| dropout.check(OP, m))?;
    if m == 0 || rank == 0 {
        return Ok(());
    }
    let y = y.f32();
    with_workspace(m * rank + adapter.spare(m, dropout.as_ref()), |all| {
        let (xa, spare) = all.split_at_mut(m * rank);
        match &dropout {
            None => adapter.lower(ctx, m, x.elements(), xa),
            Some(dropout) => {
                adapter.lower_dropped(ctx, x.elements(), dropout, xa, spare, None);
                cpu::scale(ctx, xa, adapter.scale);
            }
        }
        let xa = &*xa;
        for (b, first, at) in adapter.blocks() {
            book(m, b.rows(), b.cols(), b.data().bytes());
            let operands = Operands {
                m,
                n: b.rows(),
                depth: b.cols(),
                left: Left::Rows(xa[at..].into(), rank),
                right: Right::Panels(b.elements()),
                c: &mut y[first..],
                order: Order::Rows(n),
                accumulate: true,
                bias: None,
                numbers: Numbers::Held,
                segments: None,
            };
            Product::new(ctx.isa(), operands).run(ctx);
        }
    });
    Ok(())
}

/// The gradients of `x`, `A` and the `B_i`. Beside its outputs it holds `xa` and `dxa`.
pub fn backward(ctx: &Context, args: Backward<'_>) -> Result<()> {
    const OP: &str = "lora::backward";
    let Backward { x, adapter, dropout, d_y, mut d_x, d_a, d_b } = args;
    let ([m, k], [_, n]) = (two_dims(OP, "x", x)?, two_dims(OP, "d_y", d_y)?);
    let rank = adapter.check(OP, k, n)?;
    expect_floats(OP, "x", x, &[m, k])?;
    expect(OP, "d_y", d_y, DType::F32, &[m, n])?;
    expect(OP, "d_x", d_x.view(), DType::F32, &[m, k])?;
    expect_shape(OP, "d_a", &[d_a.rows(), d_a.cols()], &[rank, k])?;
    expect_shape(OP, "d_b", &[d_b.len()], &[adapter.b.len()])?;
    for (d_b, b) in d_b.iter().zip(adapter.b) {
        expect_shape(OP, "d_b", &[d_b.rows(), d_b.cols()], &[b.rows(), b.cols()])?;
    }
    dropout.as_ref().map_or(Ok(()), |dropout| dropout.check(OP, m))?;
    if m == 0 || rank == 0 {
        return Ok(());
    }
    let (x, d_y) = (x.elements(), d_y.f32());
    with_workspace(2 * m * rank + adapter.spare(m, dropout.as_ref()), |all| {
        let (xa, rest) = all.split_at_mut(m * rank);
        let (d_xa, spare) = rest.split_at_mut(m * rank);
        for (b, first, at) in adapter.blocks() {
            book(m, b.rows(), b.cols(), b.data().bytes());
            let operands = Operands {
                m,
                n: b.cols(),
                depth: b.rows(),
                left: Left::Rows(d_y[first..].into(), n),
                right: Right::Transposed(b.elements()),
                c: &mut d_xa[at..],
                order: Order::Rows(rank),
                accumulate: false,
                bias: None,
                numbers: Numbers::Held,
                segments: None,
            };
            Product::new(ctx.isa(), operands).run(ctx);
        }
        cpu::scale(ctx, d_xa, adapter.scale);
        let (d_a, d_x) = (d_a.data_mut().view_mut().f32(), d_x.reborrow().f32());
        match &dropout {
            None => {
                adapter.lower(ctx, m, x, xa);
                lower_backward(ctx, m, x, &adapter, d_xa, d_a, d_x);
            }
            Some(dropout) => {
                let back = dropout::Back { d_xa, d_a, d_x };
                adapter.lower_dropped(ctx, x, dropout, xa, spare, Some(back));
                cpu::scale(ctx, xa, adapter.scale);
            }
        }
        for ((b, first, at), d_b) in adapter.blocks().zip(d_b) {
            book(m, b.rows(), b.cols(), 2 * b.data().bytes());
            let operands = Operands {
                m: b.cols(),
                n: b.rows(),
                depth: m,
                left: Left::Columns(xa[at..].into(), rank),
                right: Right::Rows(d_y[first..].into(), n),
                c: d_b.data_mut().view_mut().f32(),
                order: Order::Panels,
                accumulate: true,
                bias: None,
                numbers: Numbers::Held,
                segments: None,
            };
            Product::new(ctx.isa(), operands).run(ctx);
        }
    });
    Ok(())
}

/// The gradients of A and `x`, of all blocks at once: *accumulates into* both.
fn lower_backward(
    ctx: &Context,
    m: usize,
    x: Elements<'_>,
    adapter: &Adapter<'_>,
    d_xa: &[f32],
    d_a: &mut [f32],
    d_x: &mut [f32],
) {
    let (rank, k) = (adapter.a.rows(), adapter.a.cols());
    book(m, rank, 2 * k, 3 * adapter.a.data().bytes());
    let operands = Operands {
        m: k,
        n: rank,
        depth: m,
        left: Left::Columns(x, k),
        right: Right::Rows(d_xa.into(), rank),
        c: d_a,
        order: Order::Panels,
        accumulate: true,
        bias: None,
        numbers: Numbers::Held,
        segments: None,
    };
    Product::new(ctx.isa(), operands).run(ctx);
    let operands = Operands {
        m,
        n: k,
        depth: rank,
        left: Left::Rows(d_xa.into(), rank),
        right: Right::Transposed(adapter.a.elements()),
        c: d_x,
        order: Order::Rows(k),
        accumulate: true,
        bias: None,
        numbers: Numbers::Held,
        segments: None,
    };
    Product::new(ctx.isa(), operands).run(ctx);
}
