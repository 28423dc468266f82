//! Shows that the parity test detects faults. The trainer's forward pass, reimplemented here, gives the sampler's bits.
//! With any of three faults that look harmless, it gives other bits.

#![allow(clippy::disallowed_methods)]

use crate::*;
use kernels::ops::{attention, embedding, glu, linear, lm_head, qk_norm, rmsnorm, rope, rows};
use kernels::{DType, Tensor, View, ViewMut};
use model::kv::BLOCK;
use model::weights::{Layer, Linear};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// The log-sum-exp uses chunks of the vocabulary whose size depends on the number of threads, here three.
    ThreadDependentChunk,
    /// Attention to the first page and to the rest is computed separately, and merged by log-sum-exp (flash-decoding).
    MergedSoftmaxes,
    /// All completions share the page in which the prompt ends.
    SharedStraddlingBlock,
}

/// The rows of a batch, on the device.
struct Rows {
    positions: Tensor,
    tables_of_rows: Tensor,
    tables: Tensor,
    write_rows: Tensor,
    write_slots: Tensor,
}

struct Forward<'a> {
    ctx: &'a Context,
    config: &'a ModelConfig,
    batch: &'a Batch,
    rope: rope::Table,
    fault: Fault,
}

impl Forward<'_> {
    fn t(&self) -> usize {
        self.batch.ids.len()
    }
    fn zeros(&self, shape: &[usize]) -> Tensor {
        Tensor::zeros(self.ctx.memory(), shape, DType::F32)
    }
    fn u32s(&self, shape: &[usize], data: &[u32]) -> Tensor {
        Tensor::from_u32(self.ctx.memory(), shape, data)
    }
    /// Computes x + delta, and its norm.
    fn norm(&self, x: &Tensor, delta: Option<&Tensor>, weight: &Tensor) -> (Tensor, Tensor) {
        let (mut sum, mut y, mut rstd) = (self.zeros(x.shape()), self.zeros(x.shape()), self.zeros(&[self.t()]));
        let args = rmsnorm::Forward {
            x: x.view(),
            delta: delta.map(Tensor::view),
            sum: delta.is_some().then(|| sum.view_mut()),
            weight: weight.view(),
            offset: self.config.norm_offset,
            eps: self.config.rms_norm_eps,
            y: y.view_mut(),
            rstd: rstd.view_mut(),
        };
        rmsnorm::forward(self.ctx, args).unwrap();
        if delta.is_none() {
            sum.view_mut().copy_from_f32(&x.to_vec_f32());
        }
        (sum, y)
    }
    /// Computes y = x Wᵀ + b.
    fn matmul(&self, w: &Linear, x: &Tensor, y: &mut Tensor) {
        let (bias, y) = (w.bias.as_ref().map(Tensor::view), y.view_mut());
        let args = linear::Forward { x: x.view(), w: &w.matrix, bias, y, accumulate: false };
        linear::forward(self.ctx, args).unwrap();
    }
    /// Computes one layer. Returns the residual stream without the last matmul, and the result of that matmul.
    fn layer(&self, w: &Layer, x: &Tensor, delta: Option<&Tensor>, rows: &Rows) -> (Tensor, Tensor) {
        let (c, t) = (self.config, self.t());
        let (x, normed) = self.norm(x, delta, w.attention_norm.as_ref().unwrap());
        let (mut raw, mut qkv) = (self.zeros(&[t, c.qkv_width()]), self.zeros(&[t, c.qkv_width()]));
        self.matmul(&w.qkv, &normed, &mut raw);
        let (q_weight, k_weight) = w.qk_norm.as_ref().unwrap();
        let mut rstd = self.zeros(&[t, c.num_heads + c.num_kv_heads]);
        let args = qk_norm::Forward {
            x: raw.view(),
            heads: c.num_heads,
            kv_heads: c.num_kv_heads,
            head_dim: c.head_dim,
            q_weight: q_weight.view(),
            k_weight: k_weight.view(),
            offset: c.norm_offset,
            eps: c.rms_norm_eps,
            y: qkv.view_mut(),
            rstd: rstd.view_mut(),
        };
        qk_norm::forward(self.ctx, args).unwrap();
        let args = rope::Rotate {
            x: qkv.view_mut(),
            heads: c.num_heads + c.num_kv_heads,
            head_dim: c.head_dim,
            positions: rows.positions.view(),
            table: &self.rope,
        };
        rope::forward(self.ctx, args).unwrap();
        let attended = self.attend(&qkv, rows);
        let mut delta = self.zeros(&[t, c.hidden_size]);
        self.matmul(&w.o, &attended, &mut delta);
        let (x, normed) = self.norm(&x, Some(&delta), w.mlp_norm.as_ref().unwrap());
        let (mut gate_up, mut gated) =
            (self.zeros(&[t, 2 * c.intermediate_size]), self.zeros(&[t, c.intermediate_size]));
        self.matmul(&w.gate_up, &normed, &mut gate_up);
        let (activation, gate_up, y) = (c.activation, gate_up.view(), gated.view_mut());
        glu::forward(self.ctx, glu::Forward { activation, gate_up, kept: None, y }).unwrap();
        self.matmul(&w.down, &gated, &mut delta);
        (x, delta)
    }
    fn attend(&self, qkv: &Tensor, rows: &Rows) -> Tensor {
        let c = self.config;
        let page = [self.batch.blocks, c.num_kv_heads, c.head_dim, BLOCK];
        let (mut keys, mut values) = (self.zeros(&page), self.zeros(&[page[0], page[1], BLOCK, page[2]]));
        let geometry = attention::Geometry {
            heads: c.num_heads,
            kv_heads: c.num_kv_heads,
            head_dim: c.head_dim,
            scale: c.attention_scale(),
            window: None,
        };
        let args = attention::WriteKv {
            qkv: qkv.view(),
            geometry,
            rows: rows.write_rows.view(),
            slots: rows.write_slots.view(),
            pages: attention::PagesMut { keys: keys.view_mut(), values: values.view_mut() },
        };
        attention::write_kv(self.ctx, args).unwrap();
        let pages = attention::Pages { keys: keys.view(), values: values.view() };
        let forward = |positions: View<'_>, tables: View<'_>, out: ViewMut<'_>, lse: ViewMut<'_>| {
            let rows = attention::Rows { positions, tables_of_rows: rows.tables_of_rows.view(), tables };
            let args = attention::Forward { qkv: qkv.view(), geometry, rows, pages, out, lse: Some(lse) };
            attention::forward(self.ctx, args).unwrap();
        };
        let new = || (self.zeros(&[self.t(), c.num_heads * c.head_dim]), self.zeros(&[self.t(), c.num_heads]));
        let (mut out, mut lse) = new();
        if self.fault != Fault::MergedSoftmaxes {
            forward(rows.positions.view(), rows.tables.view(), out.view_mut(), lse.view_mut());
            return out;
        }
        // Rows attend to the first page, then to the other pages (with meaningless results for rows that see only the
        // first page).
        let shifted = |f: &dyn Fn(u32) -> u32| -> Tensor {
            self.u32s(&[self.t()], &self.batch.positions.iter().map(|&p| f(p)).collect::<Vec<_>>())
        };
        forward(shifted(&|p| p.min(63)).view(), rows.tables.view(), out.view_mut(), lse.view_mut());
        let (mut rest, mut rest_lse) = new();
        let len = self.batch.table_len;
        let tables: Vec<u32> =
            self.batch.tables.chunks_exact(len).flat_map(|t| t[1..].iter().copied().chain([0])).collect();
        let tables = self.u32s(&[tables.len() / len, len], &tables);
        forward(shifted(&|p| p.saturating_sub(64)).view(), tables.view(), rest.view_mut(), rest_lse.view_mut());
        let (mut merged, rest, a, b) = (out.to_vec_f32(), rest.to_vec_f32(), lse.to_vec_f32(), rest_lse.to_vec_f32());
        for (i, (merged, rest)) in merged.iter_mut().zip(rest).enumerate() {
            let pair = i / c.head_dim;
            if self.batch.positions[pair / c.num_heads] >= 64 {
                let (wa, wb) = ((a[pair] - a[pair].max(b[pair])).exp(), (b[pair] - a[pair].max(b[pair])).exp());
                *merged = (*merged * wa + rest * wb) / (wa + wb);
            }
        }
        out.view_mut().copy_from_f32(&merged);
        out
    }
    /// Log-probabilities of the scored tokens.
    fn logps(&self, w: &Weights, inv_temperature: f32) -> Vec<f32> {
        let (b, h) = (self.batch, self.config.hidden_size);
        let rows = Rows {
            positions: self.u32s(&[self.t()], &b.positions),
            tables_of_rows: self.u32s(&[self.t()], &b.tables_of_rows),
            tables: self.u32s(&[b.tables.len() / b.table_len, b.table_len], &b.tables),
            write_rows: self.u32s(&[b.write_rows.len()], &b.write_rows),
            write_slots: self.u32s(&[b.write_slots.len()], &b.write_slots),
        };
        let (ids, mut x) = (self.u32s(&[self.t()], &b.ids), self.zeros(&[self.t(), h]));
        let (table, scale) = (&w.params.embedding, self.config.embedding_scale());
        let args = embedding::Forward { ids: ids.view(), table, scale, out: x.view_mut() };
        embedding::forward(self.ctx, args).unwrap();
        let mut delta = None;
        for layer in &w.params.layers {
            let (next, matmul) = self.layer(layer, &x, delta.as_ref(), &rows);
            (x, delta) = (next, Some(matmul));
        }
        let (_, hidden) = self.norm(&x, delta.as_ref(), &w.params.norm);
        let (wanted, mut scored) =
            (self.u32s(&[b.score_rows.len()], &b.score_rows), self.zeros(&[b.score_rows.len(), h]));
        rows::gather(self.ctx, rows::Gather { x: hidden.view(), rows: wanted.view(), out: scored.view_mut() }).unwrap();
        // The formula of the lm head in scalars, with chunks of any size.
        let vocab = w.head().rows();
        let chunk = if self.fault == Fault::ThreadDependentChunk { vocab.div_ceil(3) } else { lm_head::CHUNK };
        let head = w.head().unpack_rows(0..vocab);
        let (hidden, dot) = (scored.to_vec_f32(), lm_head::emulated::chain);
        lm_head::emulated::emulated(h, &hidden, &head, &b.targets, inv_temperature, chunk, dot).logps
    }
}

/// Replaces every completion's page at the end of the prompt by the page of the first completion.
fn share_straddling_block(batch: &mut Batch, prompt: usize) {
    let (at, len) = (prompt / BLOCK, batch.table_len);
    let first = batch.tables[at];
    for table in 1..batch.tables.len() / len {
        let own = std::mem::replace(&mut batch.tables[table * len + at], first);
        for slot in &mut batch.write_slots {
            if *slot / BLOCK as u32 == own {
                *slot = first * BLOCK as u32 + *slot % BLOCK as u32;
            }
        }
    }
}

#[test]
fn each_planted_fault_is_detected() {
    let ctx = Context::cpu(Isa::best(), 1);
    let weights = qwen3(&ctx, 40, 2, 1100);
    let prompts = [prompt(1100, 1, 77)];
    let sampling = SamplingParams { max_new_tokens: 30, seed: 3, ..SamplingParams::default() };
    let mut engine = poisoned(&ctx, &weights, roomy(128));
    let groups = engine.generate(&weights, requests(&prompts, 3, sampling)).unwrap();
    let recorded: Vec<u32> = recorded(&groups).iter().map(|l| l.to_bits()).collect();
    let branches: Vec<&[u32]> = completions(&groups).map(|c| &c.ids[..]).collect();
    let prompt = &prompts[0].ids;
    let batch = Batch::new(&[GroupSegment { prefix: prompt, branches: &branches }], true);

    let mismatching = |fault: Fault| {
        let mut batch = batch.clone();
        if fault == Fault::SharedStraddlingBlock {
            share_straddling_block(&mut batch, prompt.len());
        }
        let (inv_freq, scaling) = weights.config.inv_freq(model::config::LayerRope::Global);
        let rope = rope::Table::new(ctx.memory(), &inv_freq, scaling, 256);
        let forward = Forward { ctx: &ctx, config: &weights.config, batch: &batch, rope, fault };
        let trainer = forward.logps(&weights, 1.0);
        assert_eq!(trainer.len(), recorded.len());
        trainer.iter().zip(&recorded).filter(|(a, b)| a.to_bits() != **b).count()
    };
    assert_eq!(mismatching(Fault::None), 0, "of {}", recorded.len());
    for fault in [Fault::ThreadDependentChunk, Fault::MergedSoftmaxes, Fault::SharedStraddlingBlock] {
        let mismatching = mismatching(fault);
        assert!(mismatching > recorded.len() / 20, "{fault:?}: {mismatching} of {}", recorded.len());
    }
}
