//! One layer of the decoder: an attention half and an MLP half, each with its forward and its backward pass.
//!
//! ```text
//! x                           the layer's input, a residual stream     [T, H]
//! m  = x + attend(x)          `attend.rs`                              [T, H]
//! x' = m + mlp(m)             `mlp.rs`                                 [T, H]
//! ```
//!
//! A sum is formed where it is next read: by the norm that begins the next half. Until then it is two tensors, the
//! stream and `delta`. In the backward pass the stream's gradient passes the sum unchanged, and each half adds its
//! own to it.
//!
//! Legend of these files: T rows, H hidden, F ffn, nh heads, nkv kv heads, hd head width.

use super::{Rope, attend, mlp};
use crate::ModelConfig;
use crate::batch::{Dropout, RowViews};
use crate::config::QkNorm;
use crate::kv::LayerPages;
use crate::weights::{Layer, LowRankRows, RowAdapters};
use kernels::{Context, DType, Memory, Result, Tensor, View, ViewMut};

/// What all layers of a pass have in common.
#[derive(Clone, Copy)]
pub(super) struct Pass<'a> {
    pub ctx: &'a Context,
    pub config: &'a ModelConfig,
    pub rope: &'a Rope,
    pub rows: RowViews<'a>,
    /// The adapter of each row.
    pub adapters: &'a RowAdapters<'a>,
    /// What adapters do not see; none in inference.
    pub dropout: Option<&'a Dropout>,
}

/// The linear layers of a layer, in the order of [`Layer::linears`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Linears {
    Qkv,
    O,
    GateUp,
    Down,
}

impl<'a> Pass<'a> {
    /// What adapters add to this linear layer.
    pub fn low_rank(&self, layer: usize, linear: Linears) -> LowRankRows<'a> {
        let place = 4 * layer as u32 + linear as u32;
        let dropout = self.dropout.map(|dropout| dropout.of(place, self.rows.positions));
        LowRankRows { adapters: self.adapters, layer, linear: linear as usize, dropout, first: 0 }
    }
}

/// Where a layer finds its input.
pub(super) enum Input<'a> {
    /// `x` holds it: the first layer, or a layer that is recomputed.
    Ready,
    /// The input is `mid` of the layer before, plus `delta`.
    After(&'a LayerActivations),
    /// As `After`, where all layers share one [`LayerActivations`]: `mid` is still in it.
    AfterInPlace,
}

/// What a layer computes in the forward pass, and reads in the backward pass. T rows of each are in use.
///
/// What feeds a matmul or attention has the model's compute dtype; the residual stream and what norms remember are
/// f32. What is cheap to recompute is not kept: see [`LayerScratch`].
pub(super) struct LayerActivations {
    /// 1 / rms of x `[T]`
    pub attend_rstd: Tensor,
    /// q, k, v before their norms `[T, (nh + 2 nkv)·hd]`, and 1 / rms of each norm `[T, nh + nkv]` or `[T, 2]`.
    pub raw_qkv: Option<(Tensor, Tensor)>,
    /// q, k, v `[T, (nh + 2 nkv)·hd]`
    pub qkv: Tensor,
    /// a, what the heads attend to `[T, nh·hd]`.
    pub attended: Tensor,
    /// Log-sum-exp of each query's scores `[T, nh]`.
    pub lse: Tensor,
    /// What attention gives before the norm after it `[T, H]`, and 1 / rms of it `[T]`; none without that norm.
    pub attention_out: Option<(Tensor, Tensor)>,
    /// What the MLP gives before the norm after it `[T, H]`, and 1 / rms of it `[T]`; none without that norm.
    pub mlp_out: Option<(Tensor, Tensor)>,
    /// m `[T, H]`
    pub mid: Tensor,
    /// 1 / rms of m `[T]`
    pub mlp_rstd: Tensor,
    /// g Wgateᵀ, g Wupᵀ `[T, 2F]`; none where there is no backward pass.
    pub gate_up: Option<Tensor>,
}

impl LayerActivations {
    /// Room for `rows` rows, and for the gates, if they are `kept`.
    pub fn new(memory: &Memory, c: &ModelConfig, rows: usize, kept: bool) -> LayerActivations {
        let zeros = |width: usize| Tensor::zeros(memory, &[rows, width], DType::F32);
        let fed = |width: usize| Tensor::zeros(memory, &[rows, width], c.compute);
        let column = || Tensor::zeros(memory, &[rows], DType::F32);
        LayerActivations {
            attend_rstd: column(),
            raw_qkv: c.qk_norm_widths().map(|(_, _, norms)| (zeros(c.qkv_width()), zeros(norms))),
            attention_out: c.norms.attention.after.map(|_| (zeros(c.hidden_size), column())),
            mlp_out: c.norms.mlp.after.map(|_| (zeros(c.hidden_size), column())),
            qkv: fed(c.qkv_width()),
            attended: fed(c.num_heads * c.head_dim),
            lse: zeros(c.num_heads),
            mid: zeros(c.hidden_size),
            mlp_rstd: column(),
            gate_up: kept.then(|| fed(2 * c.intermediate_size)),
        }
    }
}

/// What a half of a layer hands from one operation to the next, the same memory for all layers. The backward pass
/// recomputes `normed` and `gated`, to the same bits, from what was kept.
pub(super) struct LayerScratch {
    /// h or g, the normed input of a half `[T, H]`.
    pub normed: Tensor,
    /// u, act(gate) · up `[T, F]`.
    pub gated: Tensor,
    /// What matmuls write in f32 that is rounded, or not kept.
    pub wide: Scratch,
}

impl LayerScratch {
    /// Room for `rows` rows of a model whose gates are `kept`, or not.
    pub fn new(memory: &Memory, c: &ModelConfig, rows: usize, kept: bool) -> LayerScratch {
        let fed = |width: usize| Tensor::zeros(memory, &[rows, width], c.compute);
        let gates = 2 * c.intermediate_size * rows.min(memory.rows_at_once());
        let wide = match c.compute {
            DType::F32 if kept => 0,
            DType::F32 => gates,
            _ => gates.max(rows * c.qkv_width()),
        };
        LayerScratch { normed: fed(c.hidden_size), gated: fed(c.intermediate_size), wide: Scratch::new(memory, wide) }
    }
}

/// A layer's place: its input, what it computes, and the pages that hold its keys and values meanwhile.
pub(super) struct Buffers<'a> {
    /// `[T, H]`
    pub x: &'a mut Tensor,
    pub saved: &'a mut LayerActivations,
    pub pages: &'a mut LayerPages,
    pub scratch: &'a mut LayerScratch,
}

/// Buffers of the backward pass, for one layer at a time.
pub(super) struct BackwardBuffers {
    /// The gradient of the residual stream `[T, H]`.
    pub d_x: Tensor,
    /// The gradient of a norm's output `[T, H]`.
    pub d_normed: Tensor,
    /// The gradient of what a half gives, before the norm after it `[T, H]`; none without such a norm.
    pub d_out: Option<Tensor>,
    /// Gradients of a, of u, and of q, k, v before the norms of their heads.
    pub narrow: Scratch,
    /// Gradients of q, k, v, and of gate and up where they are f32.
    pub wide: Scratch,
    /// Gradients of gate and up `[T, 2F]`, rounded for the matmuls that read them; none where those are f32.
    pub d_gates: Option<Tensor>,
    /// Gradients of the pages.
    pub d_pages: LayerPages,
}

impl BackwardBuffers {
    /// Room for `rows` rows in `blocks` pages.
    pub fn new(memory: &Memory, c: &ModelConfig, rows: usize, blocks: usize) -> BackwardBuffers {
        let stream = || Tensor::zeros(memory, &[rows, c.hidden_size], DType::F32);
        let scratch = |width: usize| Scratch::new(memory, rows * width);
        let raw = if c.qk_norm == QkNorm::Off { 0 } else { c.qkv_width() };
        let gates = if c.compute == DType::F32 { rows } else { rows.min(memory.rows_at_once()) };
        BackwardBuffers {
            d_x: stream(),
            d_normed: stream(),
            d_out: (c.norms.attention.after.or(c.norms.mlp.after)).map(|_| stream()),
            narrow: scratch(c.intermediate_size.max(c.num_heads * c.head_dim).max(raw)),
            wide: Scratch::new(memory, (rows * c.qkv_width()).max(2 * c.intermediate_size * gates)),
            d_gates: (c.compute != DType::F32)
                .then(|| Tensor::zeros(memory, &[rows, 2 * c.intermediate_size], c.compute)),
            d_pages: LayerPages::of(memory, c, blocks, DType::F32),
        }
    }
}

/// Memory for rows of one width, then of another.
pub(super) struct Scratch(Tensor);

impl Scratch {
    /// f32, for so many elements.
    pub fn new(memory: &Memory, elements: usize) -> Scratch {
        Scratch(Tensor::zeros(memory, &[elements], DType::F32))
    }
    /// `[rows, width]`, to read.
    pub fn view(&self, rows: usize, width: usize) -> View<'_> {
        self.0.rows(0..rows * width).reshape(&[rows, width])
    }
    /// `[rows, width]`, to write.
    pub fn view_mut(&mut self, rows: usize, width: usize) -> ViewMut<'_> {
        self.0.rows_mut(0..rows * width).reshape(&[rows, width])
    }
}

/// The forward pass of layer `layer`: from `x` (written first, if `input` says so) to `saved.mid` and `delta`.
pub(super) fn forward(
    pass: &Pass<'_>,
    layer: usize,
    w: &Layer,
    input: Input<'_>,
    buffers: &mut Buffers<'_>,
    delta: &mut Tensor,
) -> Result<()> {
    attend::forward(pass, layer, w, input, buffers, delta)?;
    mlp::forward(pass, layer, w, buffers, delta)
}

/// The backward pass of [`forward`]: `b.d_x` is the gradient of x' and becomes that of x; `g` accumulates the weights'.
/// `groups: [G + 1]` are the first rows of the batch's independent groups.
pub(super) fn backward(
    pass: &Pass<'_>,
    layer: usize,
    w: &Layer,
    g: &mut Layer,
    buffers: &mut Buffers<'_>,
    groups: View<'_>,
    b: &mut BackwardBuffers,
) -> Result<()> {
    mlp::backward(pass, layer, w, g, buffers, groups, b)?;
    attend::backward(pass, layer, w, g, buffers, groups, b)
}
