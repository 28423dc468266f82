//! One layer of the decoder: the way forward, and beside it the way back.
//!
//! ```text
//! x         the layer's input, a residual stream                           [T, H]
//! h       = rmsnorm(x) · w₁                                                [T, H]
//! q, k, v = h Wqkvᵀ + b;  q, k normed per head (Qwen 3);  q, k rotated     [T, (nh + 2 nkv)·hd]
//! a       = softmax(q Kᵀ / √hd) V,  K and V from pages that k and v were written to    [T, nh·hd]
//! m       = x + a Woᵀ                                                      [T, H]
//! g       = rmsnorm(m) · w₂                                                [T, H]
//! x'      = m + (silu(g Wgateᵀ) ⊙ g Wupᵀ) Wdownᵀ                           [T, H]
//! ```
//!
//! The sum x' is formed where it is next read: by the norm that begins the next layer. Until then it is two tensors, `mid`
//! (m) and `delta`. Legend: T rows, H hidden, F ffn, nh heads, nkv kv heads, hd head width.

use super::{Rope, rows::RowViews};
use crate::ModelConfig;
use crate::kv::LayerPages;
use crate::weights::Layer;
use kernels::ops::{attention, qk_norm, rmsnorm, rope, swiglu};
use kernels::{Context, DType, Memory, Result, Tensor, View, ViewMut};

/// What all layers of a pass have in common.
#[derive(Clone, Copy)]
pub(super) struct Pass<'a> {
    pub ctx: &'a Context,
    pub config: &'a ModelConfig,
    pub rope: &'a Rope,
    pub rows: RowViews<'a>,
}

/// Where a layer finds its input.
pub(super) enum Input<'a> {
    /// `x` holds it: the first layer, or a layer computed again.
    Ready,
    /// It is `mid` of the layer before, plus `delta`.
    After(&'a Saved),
    /// The same, where all layers share one [`Saved`].
    AfterInPlace,
}

/// What a layer computes on its way forward, and reads on its way back. T rows of each are in use.
pub(super) struct Saved {
    /// h `[T, H]`
    attention_in: Tensor,
    /// 1 / rms of x `[T]`
    attention_rstd: Tensor,
    /// q, k, v before their norms `[T, (nh + 2 nkv)·hd]`, and 1 / rms of each q and k head `[T, nh + nkv]`.
    qk: Option<(Tensor, Tensor)>,
    /// q, k, v `[T, (nh + 2 nkv)·hd]`
    qkv: Tensor,
    /// a `[T, nh·hd]`
    attention: Tensor,
    /// Log-sum-exp of each query's scores `[T, nh]`.
    lse: Tensor,
    /// m `[T, H]`
    pub(super) mid: Tensor,
    /// g `[T, H]`
    mlp_in: Tensor,
    /// 1 / rms of m `[T]`
    mlp_rstd: Tensor,
    /// g Wgateᵀ, g Wupᵀ `[T, 2F]`
    gate_up: Tensor,
    /// Their product `[T, F]`.
    gated: Tensor,
}

/// A layer's place: its input, what it computes, and the pages that hold its keys and values meanwhile.
pub(super) struct Buffers<'a> {
    /// `[T, H]`
    pub x: &'a mut Tensor,
    pub saved: &'a mut Saved,
    pub pages: &'a mut LayerPages,
}

impl Saved {
    /// Room for `rows` rows.
    pub fn new(memory: &Memory, c: &ModelConfig, rows: usize) -> Saved {
        let zeros = |width: usize| Tensor::zeros(memory, &[rows, width], DType::F32);
        let column = || Tensor::zeros(memory, &[rows], DType::F32);
        let (h, f) = (c.hidden_size, c.intermediate_size);
        Saved {
            attention_in: zeros(h),
            attention_rstd: column(),
            qk: c.qk_norm.then(|| (zeros(c.qkv_width()), zeros(c.num_heads + c.num_kv_heads))),
            qkv: zeros(c.qkv_width()),
            attention: zeros(c.num_heads * c.head_dim),
            lse: zeros(c.num_heads),
            mid: zeros(h),
            mlp_in: zeros(h),
            mlp_rstd: column(),
            gate_up: zeros(2 * f),
            gated: zeros(f),
        }
    }
}

/// The way forward of layer `layer`: from `x` (written first, if `input` says so) to `saved.mid` and
/// `delta`.
pub(super) fn forward(
    pass: &Pass<'_>,
    layer: usize,
    w: &Layer,
    input: Input<'_>,
    buffers: &mut Buffers<'_>,
    delta: &mut Tensor,
) -> Result<()> {
    let Buffers { x, saved: s, pages } = buffers;
    let Pass { ctx, config, rope, rows } = *pass;
    let (t, eps, geometry) = (0..rows.len(), config.rms_norm_eps, geometry(config, layer));

    let previous = match input {
        Input::Ready => None,
        Input::After(previous) => Some(&previous.mid),
        Input::AfterInPlace => Some(&s.mid),
    };
    let attention_norm = |x: View<'_>, delta, sum, y, rstd| {
        rmsnorm::forward(ctx, rmsnorm::Forward { x, delta, sum, weight: w.attention_norm.view(), eps, y, rstd })
    };
    let (y, rstd) = (s.attention_in.rows_mut(t.clone()), s.attention_rstd.rows_mut(t.clone()));
    match previous {
        None => attention_norm(x.rows(t.clone()), None, None, y, rstd)?,
        Some(mid) => {
            let (delta, sum) = (delta.rows(t.clone()), x.rows_mut(t.clone()));
            attention_norm(mid.rows(t.clone()), Some(delta), Some(sum), y, rstd)?;
        }
    }

    match (&w.qk_norm, &mut s.qk) {
        (Some((q_weight, k_weight)), Some((raw, rstd))) => {
            w.qkv.forward(ctx, s.attention_in.rows(t.clone()), raw.rows_mut(t.clone()))?;
            let (heads, kv_heads, head_dim) = (config.num_heads, config.num_kv_heads, config.head_dim);
            let (q_weight, k_weight) = (q_weight.view(), k_weight.view());
            let (x, y, rstd) = (raw.rows(t.clone()), s.qkv.rows_mut(t.clone()), rstd.rows_mut(t.clone()));
            qk_norm::forward(ctx, qk_norm::Forward { x, heads, kv_heads, head_dim, q_weight, k_weight, eps, y, rstd })?;
        }
        _ => w.qkv.forward(ctx, s.attention_in.rows(t.clone()), s.qkv.rows_mut(t.clone()))?,
    }
    rope::forward(ctx, rotate(config, rope, rows, s.qkv.rows_mut(t.clone())))?;
    write_kv(pass, layer, s, pages)?;
    attention::forward(
        ctx,
        attention::Forward {
            qkv: s.qkv.rows(t.clone()),
            geometry,
            rows: rows.attention(),
            pages: pages.view(),
            out: s.attention.rows_mut(t.clone()),
            lse: Some(s.lse.rows_mut(t.clone())),
        },
    )?;
    w.o.forward(ctx, s.attention.rows(t.clone()), delta.rows_mut(t.clone()))?;

    rmsnorm::forward(
        ctx,
        rmsnorm::Forward {
            x: x.rows(t.clone()),
            delta: Some(delta.rows(t.clone())),
            sum: Some(s.mid.rows_mut(t.clone())),
            weight: w.mlp_norm.view(),
            eps,
            y: s.mlp_in.rows_mut(t.clone()),
            rstd: s.mlp_rstd.rows_mut(t.clone()),
        },
    )?;
    w.gate_up.forward(ctx, s.mlp_in.rows(t.clone()), s.gate_up.rows_mut(t.clone()))?;
    let (gate_up, y) = (s.gate_up.rows(t.clone()), s.gated.rows_mut(t.clone()));
    swiglu::forward(ctx, swiglu::Forward { gate_up, y })?;
    w.down.forward(ctx, s.gated.rows(t.clone()), delta.rows_mut(t))
}

/// Buffers of the way back, for one layer at a time.
pub(super) struct Back {
    /// The gradient of the residual stream `[T, H]`.
    pub d_x: Tensor,
    /// The gradient of a norm's output `[T, H]`.
    d_normed: Tensor,
    /// Gradients of a's or the gated product's width, and of q, k, v before their norms.
    narrow: Tensor,
    /// Gradients of q, k, v, or of gate and up.
    wide: Tensor,
    /// Gradients of the pages.
    d_pages: LayerPages,
}

impl Back {
    /// Room for `rows` rows in `blocks` pages.
    pub fn new(memory: &Memory, c: &ModelConfig, rows: usize, blocks: usize) -> Back {
        let zeros = |shape: &[usize]| Tensor::zeros(memory, shape, DType::F32);
        let raw = if c.qk_norm { c.qkv_width() } else { 0 };
        let narrow = c.intermediate_size.max(c.num_heads * c.head_dim).max(raw);
        let wide = (2 * c.intermediate_size).max(c.qkv_width());
        Back {
            d_x: zeros(&[rows, c.hidden_size]),
            d_normed: zeros(&[rows, c.hidden_size]),
            narrow: zeros(&[rows * narrow]),
            wide: zeros(&[rows * wide]),
            d_pages: LayerPages::zeros(memory, c, blocks),
        }
    }
}

/// The way back of [`forward`]: `b.d_x` is the gradient of x' and becomes that of x; `g` accumulates the weights'.
/// `groups: [G + 1]` are the first rows of the batch's independent groups.
pub(super) fn backward(
    pass: &Pass<'_>,
    layer: usize,
    w: &Layer,
    g: &mut Layer,
    buffers: &mut Buffers<'_>,
    groups: View<'_>,
    b: &mut Back,
) -> Result<()> {
    let Buffers { x, saved: s, pages } = buffers;
    let Pass { ctx, config, rope, rows } = *pass;
    let (t, n, geometry) = (0..rows.len(), rows.len(), geometry(config, layer));

    // The MLP. x' = m + …, so d_x is m's gradient already, and the norm's way back adds to it.
    let f = config.intermediate_size;
    let d_gated = || 0..n * f;
    w.down.backward(
        ctx,
        s.gated.rows(t.clone()),
        b.d_x.rows(t.clone()),
        b.narrow.rows_mut(d_gated()).reshape(&[n, f]),
        &mut g.down,
    )?;
    swiglu::backward(
        ctx,
        swiglu::Backward {
            gate_up: s.gate_up.rows(t.clone()),
            d_y: b.narrow.rows(d_gated()).reshape(&[n, f]),
            d_gate_up: b.wide.rows_mut(0..n * 2 * f).reshape(&[n, 2 * f]),
        },
    )?;
    let d_gate_up = b.wide.rows(0..n * 2 * f).reshape(&[n, 2 * f]);
    w.gate_up.backward(ctx, s.mlp_in.rows(t.clone()), d_gate_up, b.d_normed.rows_mut(t.clone()), &mut g.gate_up)?;
    rmsnorm::backward(
        ctx,
        rmsnorm::Backward {
            x: s.mid.rows(t.clone()),
            weight: w.mlp_norm.view(),
            rstd: s.mlp_rstd.rows(t.clone()),
            d_y: b.d_normed.rows(t.clone()),
            d_x: b.d_x.rows_mut(t.clone()),
            d_weight: g.mlp_norm.view_mut(),
        },
    )?;

    // Attention. m = x + …: d_x is x's gradient already.
    let (width, qkv_width) = (config.num_heads * config.head_dim, config.qkv_width());
    w.o.backward(
        ctx,
        s.attention.rows(t.clone()),
        b.d_x.rows(t.clone()),
        b.narrow.rows_mut(0..n * width).reshape(&[n, width]),
        &mut g.o,
    )?;
    // The pages were overwritten by the layers above.
    write_kv(pass, layer, s, pages)?;
    attention::backward(
        ctx,
        attention::Backward {
            qkv: s.qkv.rows(t.clone()),
            geometry,
            rows: rows.attention(),
            pages: pages.view(),
            write_rows: rows.write_rows,
            write_slots: rows.write_slots,
            out: s.attention.rows(t.clone()),
            lse: s.lse.rows(t.clone()),
            d_out: b.narrow.rows(0..n * width).reshape(&[n, width]),
            d_qkv: b.wide.rows_mut(0..n * qkv_width).reshape(&[n, qkv_width]),
            d_pages: b.d_pages.view_mut(),
            groups,
        },
    )?;
    rope::backward(ctx, rotate(config, rope, rows, b.wide.rows_mut(0..n * qkv_width).reshape(&[n, qkv_width])))?;
    let mut d_qkv = b.wide.rows(0..n * qkv_width).reshape(&[n, qkv_width]);
    if let (Some((q_weight, k_weight)), Some((d_q_weight, d_k_weight)), Some((raw, rstd))) =
        (&w.qk_norm, &mut g.qk_norm, &s.qk)
    {
        qk_norm::backward(
            ctx,
            qk_norm::Backward {
                x: raw.rows(t.clone()),
                heads: config.num_heads,
                kv_heads: config.num_kv_heads,
                head_dim: config.head_dim,
                q_weight: q_weight.view(),
                k_weight: k_weight.view(),
                rstd: rstd.rows(t.clone()),
                d_y: d_qkv,
                d_x: b.narrow.rows_mut(0..n * qkv_width).reshape(&[n, qkv_width]),
                d_q_weight: d_q_weight.view_mut(),
                d_k_weight: d_k_weight.view_mut(),
            },
        )?;
        d_qkv = b.narrow.rows(0..n * qkv_width).reshape(&[n, qkv_width]);
    }
    w.qkv.backward(ctx, s.attention_in.rows(t.clone()), d_qkv, b.d_normed.rows_mut(t.clone()), &mut g.qkv)?;
    rmsnorm::backward(
        ctx,
        rmsnorm::Backward {
            x: x.rows(t.clone()),
            weight: w.attention_norm.view(),
            rstd: s.attention_rstd.rows(t.clone()),
            d_y: b.d_normed.rows(t.clone()),
            d_x: b.d_x.rows_mut(t),
            d_weight: g.attention_norm.view_mut(),
        },
    )
}

fn geometry(c: &ModelConfig, layer: usize) -> attention::Geometry {
    attention::Geometry {
        heads: c.num_heads,
        kv_heads: c.num_kv_heads,
        head_dim: c.head_dim,
        scale: (1.0 / (c.head_dim as f64).sqrt()) as f32,
        window: c.windows[layer],
    }
}

fn rotate<'a>(c: &ModelConfig, rope: &'a Rope, rows: RowViews<'a>, x: ViewMut<'a>) -> rope::Rotate<'a> {
    let heads = c.num_heads + c.num_kv_heads;
    rope::Rotate { x, heads, head_dim: c.head_dim, positions: rows.positions, table: &rope.table }
}

fn write_kv(pass: &Pass<'_>, layer: usize, s: &Saved, pages: &mut LayerPages) -> Result<()> {
    let Pass { ctx, config, rows, .. } = *pass;
    attention::write_kv(
        ctx,
        attention::WriteKv {
            qkv: s.qkv.rows(0..rows.len()),
            geometry: geometry(config, layer),
            rows: rows.write_rows,
            slots: rows.write_slots,
            pages: pages.view_mut(),
        },
    )
}
