//! Types that the layers of one pass share: arguments, activations and buffers. The letters in the shapes are defined
//! in `layer.rs`.

use super::Rope;
use crate::ModelConfig;
use crate::batch::{Dropout, RowViews};
use crate::config::QkNorm;
use crate::kv::LayerPages;
use crate::weights::{LowRankRows, RowAdapters};
use kernels::{Context, DType, Memory, Tensor, View, ViewMut};

/// Arguments that all layers of one pass share.
#[derive(Clone, Copy)]
pub(super) struct Pass<'a> {
    pub ctx: &'a Context,
    pub config: &'a ModelConfig,
    pub rope: &'a Rope,
    pub rows: RowViews<'a>,
    /// Index, in the kept activations, of the first row of the pass; 0 unless a [`RowStore`](super::RowStore) keeps
    /// them.
    pub first: usize,
    /// The LoRA adapter of each row.
    pub adapters: &'a RowAdapters<'a>,
    /// Dropout on the inputs of adapters; `None` in inference.
    pub dropout: Option<&'a Dropout>,
}

/// The four linear layers of a decoder layer, in the order of [`Layer::linears`](crate::weights::Layer::linears).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Linears {
    Qkv,
    O,
    GateUp,
    Down,
}

impl<'a> Pass<'a> {
    /// The rows of this pass in a tensor of kept activations.
    pub fn kept<'t>(&self, tensor: &'t Tensor) -> View<'t> {
        tensor.rows(self.first..self.first + self.rows.len())
    }
    /// Like [`kept`](Self::kept), writable.
    pub fn kept_mut<'t>(&self, tensor: &'t mut Tensor) -> ViewMut<'t> {
        tensor.rows_mut(self.first..self.first + self.rows.len())
    }
    /// The LoRA adapters of this linear layer for each range of rows.
    pub fn low_rank(&self, layer: usize, linear: Linears) -> LowRankRows<'a> {
        let place = 4 * layer as u32 + linear as u32;
        let dropout = self.dropout.map(|dropout| dropout.of(place, self.rows.positions));
        LowRankRows { adapters: self.adapters, layer, linear: linear as usize, dropout, first: 0 }
    }
}

/// The source of a decoder layer's input.
pub(super) enum Input<'a> {
    /// The buffer `x` already contains the input: for the first layer, or a layer that is recomputed.
    Ready,
    /// The input is the sum of `delta` and the previous layer's `mid`.
    After(&'a LayerActivations),
    /// Like `After`, if all layers share one [`LayerActivations`], which still contains the previous layer's `mid`.
    AfterInPlace,
}

/// The activations of one decoder layer, written by the forward pass and read by the backward pass. The first T rows of
/// each tensor are in use.
///
/// Inputs of matmuls and of attention have the model's compute dtype; the residual stream and the statistics of norms
/// are f32. Values that are cheap to recompute are not kept: see [`LayerScratch`].
pub(super) struct LayerActivations {
    /// 1 / rms of each row of the layer's input x `[T]`.
    pub attend_rstd: Tensor,
    /// Queries, keys and values before the q/k norms `[T, (nh + 2 nkv)·hd]`, and 1 / rms of each of these norms `[T, nh
    /// + nkv]` (a norm for each head) or `[T, 2]` (one for q, one for k).
    pub raw_qkv: Option<(Tensor, Tensor)>,
    /// Queries, keys and values as attention reads them `[T, (nh + 2 nkv)·hd]`.
    pub qkv: Tensor,
    /// a, the output of the attention heads before the output projection `[T, nh·hd]`.
    pub attended: Tensor,
    /// Log-sum-exp of each query's attention scores `[T, nh]`.
    pub lse: Tensor,
    /// Output of the attention part before the norm that follows it `[T, H]`, and 1 / rms of each row `[T]`; `None` if
    /// the model has no such norm.
    pub attention_out: Option<(Tensor, Tensor)>,
    /// Output of the MLP part before the norm that follows it `[T, H]`, and 1 / rms of each row `[T]`; `None` if the
    /// model has no such norm.
    pub mlp_out: Option<(Tensor, Tensor)>,
    /// m, the residual stream after the attention part `[T, H]`.
    pub mid: Tensor,
    /// 1 / rms of each row of m `[T]`.
    pub mlp_rstd: Tensor,
    /// The gate and up projections of the MLP's input g, side by side: [g Wgateᵀ, g Wupᵀ] `[T, 2F]`. `None` if no
    /// backward pass follows.
    pub gate_up: Option<Tensor>,
}

impl LayerActivations {
    /// Activations for `rows` rows. If `kept`, they include the gate and up projections.
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

    /// All tensors, always in the same order; without `gates`, all but the gate and up projections.
    pub fn tensors(&self, gates: bool) -> impl Iterator<Item = &Tensor> {
        let LayerActivations { attend_rstd, raw_qkv, qkv, attended, lse, mid, mlp_rstd, gate_up, .. } = self;
        let pairs = [raw_qkv, &self.attention_out, &self.mlp_out].into_iter().flatten();
        let pairs = pairs.flat_map(|(tensor, rstd)| [tensor, rstd]);
        let gate_up = gate_up.iter().filter(move |_| gates);
        [attend_rstd, qkv, attended, lse, mid, mlp_rstd].into_iter().chain(pairs).chain(gate_up)
    }
    /// Like [`tensors`](Self::tensors).
    pub fn tensors_mut(&mut self, gates: bool) -> impl Iterator<Item = &mut Tensor> {
        let LayerActivations { attend_rstd, raw_qkv, qkv, attended, lse, mid, mlp_rstd, gate_up, .. } = self;
        let pairs = [raw_qkv, &mut self.attention_out, &mut self.mlp_out].into_iter().flatten();
        let pairs = pairs.flat_map(|(tensor, rstd)| [tensor, rstd]);
        let gate_up = gate_up.iter_mut().filter(move |_| gates);
        [attend_rstd, qkv, attended, lse, mid, mlp_rstd].into_iter().chain(pairs).chain(gate_up)
    }
}

/// Scratch that all layers use. The backward pass recomputes `normed` and `gated` from the kept activations, with the
/// same bits.
pub(super) struct LayerScratch {
    /// The normed input of the attention part (h) or of the MLP part (g) `[T, H]`.
    pub normed: Tensor,
    /// u = act(gate) · up, the MLP's hidden activation `[T, F]`.
    pub gated: Tensor,
    /// f32 outputs of matmuls that are either rounded to the compute dtype afterwards or not kept.
    pub wide: Scratch,
}

impl LayerScratch {
    /// Scratch for `rows` rows; smaller in f32 if gate and up projections are `kept` as activations.
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

/// The buffers of one layer in a pass: its input, its activations, KV-cache pages for its keys and values, and scratch.
pub(super) struct Buffers<'a> {
    /// The layer's input, a residual stream `[T, H]`.
    pub x: &'a mut Tensor,
    pub saved: &'a mut LayerActivations,
    /// Kept gate and up projections that the backward pass reads instead of those in `saved`, and for each row of the
    /// pass its index in them.
    pub gates: Option<(View<'a>, View<'a>)>,
    pub pages: &'a mut LayerPages,
    pub scratch: &'a mut LayerScratch,
}

/// Gradient buffers of the backward pass, used for one layer at a time.
pub(super) struct BackwardBuffers {
    /// The gradient of the residual stream `[T, H]`.
    pub d_x: Tensor,
    /// The gradient of a norm's output `[T, H]`.
    pub d_normed: Tensor,
    /// The gradient of a part's output before the norm that follows it `[T, H]`; `None` if the model has no such norms.
    pub d_out: Option<Tensor>,
    /// Gradients of a (attention heads' output), of u (the MLP's hidden activation), and of q, k, v before the q/k
    /// norms.
    pub narrow: Scratch,
    /// Gradients of q, k, v as attention reads them, and of gate and up if they are f32.
    pub wide: Scratch,
    /// Gradients of gate and up `[T, 2F]`, rounded to bf16 for the matmuls that read them; `None` in f32.
    pub d_gates: Option<Tensor>,
    /// Gradients of the keys and values in the KV-cache pages.
    pub d_pages: LayerPages,
}

impl BackwardBuffers {
    /// Buffers for `rows` rows whose keys and values fill `blocks` KV-cache pages.
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

/// f32 memory that is viewed as matrices of different widths, one at a time.
pub(super) struct Scratch(Tensor);

impl Scratch {
    /// Scratch of `elements` f32 elements.
    pub fn new(memory: &Memory, elements: usize) -> Scratch {
        Scratch(Tensor::zeros(memory, &[elements], DType::F32))
    }
    /// The scratch as a read-only matrix `[rows, width]`.
    pub fn view(&self, rows: usize, width: usize) -> View<'_> {
        self.0.rows(0..rows * width).reshape(&[rows, width])
    }
    /// The scratch as a writable matrix `[rows, width]`.
    pub fn view_mut(&mut self, rows: usize, width: usize) -> ViewMut<'_> {
        self.0.rows_mut(0..rows * width).reshape(&[rows, width])
    }
}
