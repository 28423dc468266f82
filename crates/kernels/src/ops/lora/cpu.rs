//! LoRA adapters on the CPU: the matmuls with A and B, and the multiplication by the scale.

use super::{Adapter, Backward, Dropout, Forward, dropout};
use crate::Matrix;
use crate::context::{count, count_matmul};
use crate::device::Cpu;
use crate::gemm::{Left, Matmul, MatmulDType, Operands, Order, Right};
use crate::ops::lm_head::cpu::with_workspace;
use crate::pool::{Disjoint, Scratch, Tasks};
use crate::simd::{LANES, Simd};
use crate::tensor::Elements;

/// Elements per [`Scale`] task.
const ELEMENTS: usize = 1 << 14;

impl Adapter<'_> {
    /// Iterates over the adapter's blocks. Yields B, and the block's first columns in `y` and in `xa`.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (&Matrix, usize, usize)> {
        let ranks = self.b.iter().scan(0, |at, b| {
            *at += b.cols();
            Some(*at - b.cols())
        });
        self.b.iter().zip(self.first).zip(ranks).map(|((b, &first), rank)| (b, first, rank))
    }

    /// Elements of workspace needed in addition to `xa` and `dxa`: 0 without dropout.
    fn spare(&self, m: usize, dropout: Option<&Dropout<'_>>) -> usize {
        dropout.map_or(0, |_| self.dropped_len(m))
    }

    /// Computes `xa = s · x Aᵀ`, *overwriting* `xa: [M, R]`.
    fn lower(&self, cpu: &Cpu, m: usize, x: Elements<'_>, xa: &mut [f32]) {
        let (rank, k) = (self.a.rows(), self.a.cols());
        count_matmul(m, rank, k, self.a.data().bytes());
        let operands = Operands {
            m,
            n: rank,
            depth: k,
            left: Left::Rows(x, k),
            right: Right::Panels(self.a.elements(cpu)),
            c: xa,
            order: Order::Rows(rank),
            accumulate: false,
            bias: None,
            dtype: MatmulDType::Stored,
            segments: None,
        };
        Matmul::new(cpu.isa(), operands).run(cpu);
        scale(cpu, xa, self.scale);
    }
}

pub(super) fn forward(cpu: &Cpu, args: Forward<'_>) {
    let Forward { x, adapter, dropout, y } = args;
    let ([m, n], rank) = ([x.shape()[0], y.shape()[1]], adapter.a.rows());
    let y = y.f32(cpu);
    with_workspace(m * rank + adapter.spare(m, dropout.as_ref()), |all| {
        let (xa, spare) = all.split_at_mut(m * rank);
        match &dropout {
            None => adapter.lower(cpu, m, x.elements(cpu), xa),
            Some(dropout) => {
                adapter.lower_dropped(cpu, x.elements(cpu), dropout, xa, spare, None);
                scale(cpu, xa, adapter.scale);
            }
        }
        let xa = &*xa;
        for (b, first, at) in adapter.blocks() {
            count_matmul(m, b.rows(), b.cols(), b.data().bytes());
            let operands = Operands {
                m,
                n: b.rows(),
                depth: b.cols(),
                left: Left::Rows(xa[at..].into(), rank),
                right: Right::Panels(b.elements(cpu)),
                c: &mut y[first..],
                order: Order::Rows(n),
                accumulate: true,
                bias: None,
                dtype: MatmulDType::Stored,
                segments: None,
            };
            Matmul::new(cpu.isa(), operands).run(cpu);
        }
    });
}

pub(super) fn backward(cpu: &Cpu, args: Backward<'_>) {
    let Backward { x, adapter, dropout, d_y, mut d_x, d_a, d_b } = args;
    let ([m, n], rank) = ([x.shape()[0], d_y.shape()[1]], adapter.a.rows());
    let (x, d_y) = (x.elements(cpu), d_y.f32(cpu));
    with_workspace(2 * m * rank + adapter.spare(m, dropout.as_ref()), |all| {
        let (xa, rest) = all.split_at_mut(m * rank);
        let (d_xa, spare) = rest.split_at_mut(m * rank);
        for (b, first, at) in adapter.blocks() {
            count_matmul(m, b.rows(), b.cols(), b.data().bytes());
            let operands = Operands {
                m,
                n: b.cols(),
                depth: b.rows(),
                left: Left::Rows(d_y[first..].into(), n),
                right: Right::Transposed(b.elements(cpu)),
                c: &mut d_xa[at..],
                order: Order::Rows(rank),
                accumulate: false,
                bias: None,
                dtype: MatmulDType::Stored,
                segments: None,
            };
            Matmul::new(cpu.isa(), operands).run(cpu);
        }
        scale(cpu, d_xa, adapter.scale);
        let (d_a, d_x) = (d_a.data_mut().view_mut().f32(cpu), d_x.reborrow().f32(cpu));
        match &dropout {
            None => {
                adapter.lower(cpu, m, x, xa);
                lower_backward(cpu, m, x, &adapter, d_xa, d_a, d_x);
            }
            Some(dropout) => {
                let back = dropout::Back { d_xa, d_a, d_x };
                adapter.lower_dropped(cpu, x, dropout, xa, spare, Some(back));
                scale(cpu, xa, adapter.scale);
            }
        }
        for ((b, first, at), d_b) in adapter.blocks().zip(d_b) {
            count_matmul(m, b.rows(), b.cols(), 2 * b.data().bytes());
            let operands = Operands {
                m: b.cols(),
                n: b.rows(),
                depth: m,
                left: Left::Columns(xa[at..].into(), rank),
                right: Right::Rows(d_y[first..].into(), n),
                c: d_b.data_mut().view_mut().f32(cpu),
                order: Order::Panels,
                accumulate: true,
                bias: None,
                dtype: MatmulDType::Stored,
                segments: None,
            };
            Matmul::new(cpu.isa(), operands).run(cpu);
        }
    });
}

/// *Accumulates into* the gradients of A and `x`, for all blocks of the adapter at once, without dropout.
fn lower_backward(
    cpu: &Cpu,
    m: usize,
    x: Elements<'_>,
    adapter: &Adapter<'_>,
    d_xa: &[f32],
    d_a: &mut [f32],
    d_x: &mut [f32],
) {
    let (rank, k) = (adapter.a.rows(), adapter.a.cols());
    count_matmul(m, rank, 2 * k, 3 * adapter.a.data().bytes());
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
        dtype: MatmulDType::Stored,
        segments: None,
    };
    Matmul::new(cpu.isa(), operands).run(cpu);
    let operands = Operands {
        m,
        n: k,
        depth: rank,
        left: Left::Rows(d_xa.into(), rank),
        right: Right::Transposed(adapter.a.elements(cpu)),
        c: d_x,
        order: Order::Rows(k),
        accumulate: true,
        bias: None,
        dtype: MatmulDType::Stored,
        segments: None,
    };
    Matmul::new(cpu.isa(), operands).run(cpu);
}

/// Multiplies every element of `x` by the scale, in place.
pub(super) fn scale(cpu: &Cpu, x: &mut [f32], scale: f32) {
    let len = x.len();
    count(len as u64, (2 * size_of::<f32>() * len) as u64);
    cpu.run(len.div_ceil(ELEMENTS), &Scale { len, x: Disjoint::new(x), scale });
}

struct Scale<'a> {
    len: usize,
    x: Disjoint<'a, f32>,
    scale: f32,
}

impl Tasks for Scale<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _scratch: &mut Scratch) {
        // SAFETY: no other task accesses this range.
        let x = unsafe { self.x.slice(index * ELEMENTS..self.len.min((index + 1) * ELEMENTS)) };
        for x in x.chunks_mut(LANES) {
            let n = x.len();
            V::load_partial(x, n).mul(V::splat(self.scale)).store_partial(x, n);
        }
    }
}
