//! Runs every operation that contains `unsafe`, forward and backward, on the smallest shapes with tails in all
//! dimensions. The tests are for Miri (`cargo xtask miri`), which is a thousand times slower than native code. They
//! also check that threads and devices do not change a bit.

use super::attention::{self, BLOCK, Geometry, Pages, PagesMut, Rows};
use super::*;
use crate::DType::{Bf16, F32, U32};
use crate::check::normal;
use crate::device::cuda::tests::emulated;
use crate::{Context, DType, Isa, Matrix, Tensor, View};

/// Asserts that `run` gives the same bits on every context.
fn same(run: impl Fn(&Context, DType) -> Vec<u32>) {
    for isa in [Isa::PORTABLE, Isa::AMX_EMULATED] {
        for dtype in [F32, Bf16] {
            let one = run(&Context::cpu_checked(isa, 1), dtype);
            assert!(one.iter().all(|&x| f32::from_bits(x).is_finite()), "{isa:?} {dtype:?}");
            assert!(one == run(&Context::cpu(isa, 2), dtype), "{isa:?} {dtype:?}");
        }
    }
    // Miri cannot run a C++ compiler.
    if let Some(cuda) = (!cfg!(miri)).then(|| emulated(0)).flatten() {
        assert!(run(&Context::cuda(cuda), F32) == run(&Context::cpu(Isa::PORTABLE, 1), F32), "emulated CUDA");
    }
}

fn bits(tensors: &[&Tensor]) -> Vec<u32> {
    tensors.iter().flat_map(|t| t.to_vec_f32()).map(f32::to_bits).collect()
}

fn random(ctx: &Context, seed: u64, shape: &[usize], dtype: DType) -> Tensor {
    let mut tensor = Tensor::zeros(ctx.memory(), shape, dtype);
    tensor.view_mut().copy_from_f32(&normal(seed, shape.iter().product()));
    tensor
}

fn weight(ctx: &Context, seed: u64, rows: usize, cols: usize, dtype: DType) -> Matrix {
    let mut matrix = Matrix::zeros_of(ctx.memory(), rows, cols, dtype);
    matrix.pack_rows(0, &normal(seed, rows * cols));
    matrix
}

#[test]
fn linear_layers_give_the_same_bits_on_every_context() {
    same(|ctx, dtype| {
        let (m, k, n) = (3, 34, 33);
        let (x, w, d_y) = (random(ctx, 1, &[m, k], dtype), weight(ctx, 2, n, k, dtype), random(ctx, 3, &[m, n], F32));
        let (mut y, mut d_x) = (Tensor::zeros(ctx.memory(), &[m, n], F32), Tensor::zeros(ctx.memory(), &[m, k], F32));
        let (mut d_w, mut d_bias) = (Matrix::zeros(ctx.memory(), n, k), Tensor::zeros(ctx.memory(), &[n], F32));
        let bias = random(ctx, 4, &[n], F32);
        let args = linear::Forward { x: x.view(), w: &w, bias: Some(bias.view()), y: y.view_mut(), accumulate: false };
        linear::forward(ctx, args).unwrap();
        let args = linear::BackwardInput { d_y: d_y.view(), w: &w, d_x: d_x.view_mut(), accumulate: true };
        linear::backward_input(ctx, args).unwrap();
        let segments = Tensor::from_u32(ctx.memory(), &[3], &[0, 2, 3]);
        let args = linear::BackwardWeight {
            x: x.view(),
            d_y: d_y.view(),
            d_w: &mut d_w,
            d_bias: Some(d_bias.view_mut()),
            segments: Some(segments.view()),
        };
        linear::backward_weight(ctx, args).unwrap();
        bits(&[&y, &d_x, d_w.data(), &d_bias])
    });
}

#[test]
fn lm_head_and_sampling_give_the_same_bits_on_every_context() {
    same(|ctx, dtype| {
        let (r, h, v) = (3, 18, 37);
        let (hidden, weight) = (random(ctx, 1, &[r, h], dtype), weight(ctx, 2, v, h, dtype));
        let targets = Tensor::from_u32(ctx.memory(), &[r], &[36, 0, 7]);
        let column = || Tensor::zeros(ctx.memory(), &[r], F32);
        let (mut logps, mut lse, mut entropies, mut sampled) = (column(), column(), column(), column());
        let args = lm_head::Forward {
            hidden: hidden.view(),
            weight: &weight,
            targets: targets.view(),
            inv_temperature: 1.25,
            logps: logps.view_mut(),
            lse: lse.view_mut(),
            entropies: Some(entropies.view_mut()),
        };
        lm_head::forward(ctx, args).unwrap();
        let (mut d_hidden, mut d_weight) =
            (Tensor::zeros(ctx.memory(), &[r, h], F32), Matrix::zeros(ctx.memory(), v, h));
        let d_logps = random(ctx, 3, &[r], F32);
        let args = lm_head::Backward {
            hidden: hidden.view(),
            weight: &weight,
            targets: targets.view(),
            inv_temperature: 1.25,
            lse: lse.view(),
            d_logps: d_logps.view(),
            d_entropies: Some(d_logps.view()),
            entropies: Some(entropies.view()),
            d_hidden: d_hidden.view_mut(),
            d_weight: Some(&mut d_weight),
            segments: None,
        };
        lm_head::backward(ctx, args).unwrap();
        let mut ids = Tensor::zeros(ctx.memory(), &[r], U32);
        let row = |i: usize| sample::RowParams {
            temperature: 0.8,
            top_k: if i == 2 { 5 } else { 0 },
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: if i == 1 { 1.3 } else { 1.0 },
            history: &[3, 7],
            key: 9,
            counter: [i as u32, 0, 0, 0],
        };
        let args = sample::Forward {
            hidden: hidden.view(),
            weight: &weight,
            rows: &[row(0), row(1), row(2)],
            packed: None,
            ids: ids.view_mut(),
            logps: sampled.view_mut(),
            truncated_logps: None,
            lse: None,
            entropies: None,
        };
        sample::forward(ctx, args).unwrap();
        let mut all = bits(&[&logps, &lse, &entropies, &d_hidden, d_weight.data(), &sampled]);
        all.extend(ids.view().to_vec_u32());
        all
    });
}

#[test]
fn paged_attention_gives_the_same_bits_on_every_context() {
    same(|ctx, dtype| {
        let geometry = Geometry { heads: 2, kv_heads: 1, head_dim: 16, scale: 0.25, window: None };
        let (t, width) = (3, 4 * 16);
        let qkv = random(ctx, 1, &[t, width], dtype);
        let pages = |dtype: DType| {
            let zeros = |shape: [usize; 4]| Tensor::zeros(ctx.memory(), &shape, dtype);
            (zeros([2, 1, 16, BLOCK]), zeros([2, 1, BLOCK, 16]))
        };
        let ((mut keys, mut values), (mut d_keys, mut d_values)) = (pages(dtype), pages(F32));
        let list = |list: &[u32]| Tensor::from_u32(ctx.memory(), &[list.len()], list);
        let (rows, slots, groups) = (list(&[0, 1, 2]), list(&[0, 1, BLOCK as u32]), list(&[0, 2, 3]));
        let (positions, tables_of_rows) = (list(&[0, 1, 0]), list(&[0, 0, 1]));
        let tables = Tensor::from_u32(ctx.memory(), &[2, 1], &[0, 1]);
        let args = attention::WriteKv {
            qkv: qkv.view(),
            geometry,
            rows: rows.view(),
            slots: slots.view(),
            pages: PagesMut { keys: keys.view_mut(), values: values.view_mut() },
        };
        attention::write_kv(ctx, args).unwrap();
        let at = || Rows { positions: positions.view(), tables_of_rows: tables_of_rows.view(), tables: tables.view() };
        let (mut out, mut lse) =
            (Tensor::zeros(ctx.memory(), &[t, 32], dtype), Tensor::zeros(ctx.memory(), &[t, 2], F32));
        let pages = Pages { keys: keys.view(), values: values.view() };
        let args = attention::Forward {
            qkv: qkv.view(),
            geometry,
            rows: at(),
            pages,
            out: out.view_mut(),
            lse: Some(lse.view_mut()),
        };
        attention::forward(ctx, args).unwrap();
        let (d_out, mut d_qkv) = (random(ctx, 2, &[t, 32], F32), Tensor::zeros(ctx.memory(), &[t, width], F32));
        let args = attention::Backward {
            qkv: qkv.view(),
            geometry,
            rows: at(),
            pages,
            write_rows: rows.view(),
            write_slots: slots.view(),
            out: out.view(),
            lse: lse.view(),
            d_out: d_out.view(),
            d_qkv: d_qkv.view_mut(),
            d_pages: PagesMut { keys: d_keys.view_mut(), values: d_values.view_mut() },
            groups: groups.view(),
        };
        attention::backward(ctx, args).unwrap();
        bits(&[&out, &lse, &d_qkv])
    });
}

#[test]
fn row_operations_and_optimizer_steps_give_the_same_bits_on_every_context() {
    same(|ctx, dtype| {
        let (t, h) = (3, 18);
        let table = weight(ctx, 1, 5, h, dtype);
        let ids = Tensor::from_u32(ctx.memory(), &[t], &[4, 0, 4]);
        let stream = || Tensor::zeros(ctx.memory(), &[t, h], F32);
        let (mut x, mut chosen, mut d_table) = (stream(), stream(), Matrix::zeros(ctx.memory(), 5, h));
        let args = embedding::Forward { ids: ids.view(), table: &table, scale: 2.0, out: x.view_mut() };
        embedding::forward(ctx, args).unwrap();
        let args = embedding::Backward { ids: ids.view(), d_out: x.view(), scale: 2.0, d_table: &mut d_table };
        embedding::backward(ctx, args).unwrap();
        let last = Tensor::from_u32(ctx.memory(), &[t], &[2, 1, 2]);
        rows::gather(ctx, rows::Gather { x: x.view(), rows: last.view(), out: chosen.view_mut() }).unwrap();
        let args = rows::ScatterAdd { d_out: chosen.view(), rows: last.view(), d_x: x.view_mut() };
        rows::scatter_add(ctx, args).unwrap();

        let zeros = |dtype: DType| Tensor::zeros(ctx.memory(), d_table.data().shape(), dtype);
        let (mut param, mut m, mut v) = (zeros(F32), zeros(dtype), zeros(dtype));
        let mut norm = Tensor::zeros(ctx.memory(), &[2], F32);
        grad_norm::global(ctx, &[d_table.data().view()], norm.view_mut()).unwrap();
        let hyper = adamw::Hyper { lr: 0.1, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.1, step: 1 };
        let args = adamw::Step {
            param: param.view_mut(),
            from: None,
            rounded: None,
            grad: d_table.data().view(),
            m: m.view_mut(),
            v: v.view_mut(),
            hyper,
            norm: norm.view(),
            max_norm: 1.0,
            rounding: adamw::Rounding { key: 5, first_block: 0 },
        };
        adamw::step(ctx, args).unwrap();
        let grad: View<'_> = d_table.data().view();
        lerp::lerp(ctx, lerp::Lerp { y: param.view_mut(), x: grad, alpha: 0.25 }).unwrap();
        let all = bits(&[&x, &chosen, &param, &m, &v, &norm]);
        zero(ctx, x.view_mut());
        assert!(x.to_vec_f32().iter().all(|&x| x == 0.0));
        all
    });
}
