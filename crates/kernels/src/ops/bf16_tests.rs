//! Tests that bf16 tensors change only the rounding. An operation on bf16 tensors gives the bits of the same operation
//! on the widened values, on every instruction set, and rounds its outputs once. Matmuls with f32 gradients equal those
//! with rounded gradients. Matmuls on tiles have a different formula ([`chains`]; see `linear/tiles_tests.rs`).

use crate::check::{normal, relative_error};
use crate::ops::{adamw, attention, embedding, glu, linear, lm_head, lora, rmsnorm, rope, rows};
use crate::simd::{Element, Kernel, LANES, Simd};
use crate::tensor::rounded_to_bf16;
use crate::{Context, DType, Device, Isa, Matrix, Memory, Tensor};
use half::bf16;

fn memory() -> Memory {
    Memory::new(Device::Cpu)
}

/// Numbers that bf16 can represent.
fn numbers(seed: u64, len: usize) -> Vec<f32> {
    rounded_to_bf16(&normal(seed, len))
}

/// The same numbers in f32 and in bf16.
fn both(shape: &[usize], data: &[f32]) -> [Tensor; 2] {
    let mut narrow = Tensor::zeros(&memory(), shape, DType::Bf16);
    narrow.view_mut().copy_from_f32(data);
    [Tensor::from_f32(&memory(), shape, data), narrow]
}

fn both_matrices(rows: usize, cols: usize, data: &[f32]) -> [Matrix; 2] {
    let mut narrow = Matrix::zeros_of(&memory(), rows, cols, DType::Bf16);
    narrow.pack_rows(0, data);
    [Matrix::from_f32(&memory(), rows, cols, data), narrow]
}

/// A tensor filled with NaN, so that unwritten elements are detected.
fn poisoned(shape: &[usize], dtype: DType) -> Tensor {
    let mut t = Tensor::zeros(&memory(), shape, dtype);
    t.view_mut().fill(f32::NAN);
    t
}

fn contexts() -> impl Iterator<Item = Context> {
    Isa::present()
        .into_iter()
        .chain([Isa::DOTS_EMULATED])
        .flat_map(|isa| [1, 3].map(|threads| Context::cpu(isa, threads)))
}

/// Contexts whose bf16 matmuls are chains, as in f32.
fn chains() -> impl Iterator<Item = Context> {
    contexts().filter(|ctx| ctx.arithmetic(DType::Bf16) == "bf16-chain")
}

struct RoundTrip([f32; LANES]);

impl Kernel for RoundTrip {
    type Output = ([bf16; LANES], [f32; LANES], [f32; LANES]);
    #[inline(always)]
    fn run<V: Simd>(self) -> Self::Output {
        let mut stored = [bf16::ZERO; LANES];
        bf16::store(V::load(&self.0), &mut stored);
        (stored, bf16::load::<V>(&stored).to_array(), bf16::rounded(V::load(&self.0)).to_array())
    }
}

#[test]
fn bf16_rounds_to_nearest_even_and_widens_exactly() {
    // Tests every seventh bit pattern of the upper half, with lower halves below, at and above the midpoint.
    for upper in (0..=u16::MAX).step_by(7) {
        let lanes: [f32; LANES] = std::array::from_fn(|i| {
            let lower = [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff][i % 6];
            f32::from_bits(u32::from(upper.wrapping_add(i as u16 / 6)) << 16 | lower)
        });
        for isa in Isa::present() {
            let (stored, loaded, rounded) = isa.run(RoundTrip(lanes));
            assert_eq!(loaded.map(f32::to_bits), rounded.map(f32::to_bits), "{isa:?} {lanes:?}");
            for ((x, stored), loaded) in lanes.into_iter().zip(stored).zip(loaded) {
                assert_eq!(stored.to_bits(), bf16::from_f32(x).to_bits(), "{isa:?} {x:e}");
                assert_eq!(loaded.to_bits(), stored.to_f32().to_bits(), "{isa:?} {x:e}");
            }
        }
    }
}

#[test]
fn bf16_matmuls_give_the_bits_of_the_widened_values() {
    for [m, n, k] in [[1, 1, 2], [3, 5, 6], [2, 129, 34], [13, 31, 64], [1, 300, 450], [5, 70, 520], [251, 34, 4]] {
        let (x, w, d_y) = (numbers(1, m * k), numbers(2, n * k), normal(3, m * n));
        let (x, w) = (both(&[m, k], &x), both_matrices(n, k, &w));
        // The f32 matmuls get the gradient rounded to bf16; the bf16 matmuls get it unrounded.
        let d_ys = [rounded_to_bf16(&d_y), d_y].map(|d_y| Tensor::from_f32(&memory(), &[m, n], &d_y));
        for ctx in chains() {
            let results = [0, 1].map(|i| {
                let (mut y, mut d_x) = (poisoned(&[m, n], DType::F32), poisoned(&[m, k], DType::F32));
                let mut d_w = Matrix::zeros(&memory(), n, k);
                let (x, w) = (x[i].view(), &w[i]);
                let args = linear::Forward { x, w, bias: None, y: y.view_mut(), accumulate: false };
                linear::forward(&ctx, args).unwrap();
                let (d_y, d_x_mut) = (d_ys[i].view(), d_x.view_mut());
                let args = linear::BackwardInput { d_y, w, d_x: d_x_mut, accumulate: false };
                linear::backward_input(&ctx, args).unwrap();
                let args = linear::BackwardWeight { x, d_y, d_w: &mut d_w, d_bias: None, segments: None };
                linear::backward_weight(&ctx, args).unwrap();
                [y.to_vec_f32(), d_x.to_vec_f32(), d_w.data().to_vec_f32()]
            });
            assert!(results[0] == results[1], "{:?} {m}×{n}×{k}", ctx.describe());
        }
    }
}

/// A gradient that was rounded beforehand gives the same results in matmuls that round it themselves.
#[test]
fn matmuls_accept_gradients_in_bf16() {
    for [m, n, k] in [[3, 5, 6], [33, 64, 32], [70, 160, 40]] {
        let (x, w) = (both(&[m, k], &numbers(1, m * k)), both_matrices(n, k, &numbers(2, n * k)));
        let d_ys = both(&[m, n], &numbers(3, m * n));
        for ctx in contexts().chain([Context::cpu(Isa::AMX_EMULATED, 2)]) {
            let of = |d_y: &Tensor| {
                let mut d_x = poisoned(&[m, k], DType::F32);
                let (d_y, w) = (d_y.view(), &w[1]);
                let args = linear::BackwardInput { d_y, w, d_x: d_x.view_mut(), accumulate: false };
                linear::backward_input(&ctx, args).unwrap();
                let (mut d_w, mut d_b) = (Matrix::zeros(&memory(), n, k), Tensor::zeros(&memory(), &[n], DType::F32));
                let (x, d_bias) = (x[1].view(), Some(d_b.view_mut()));
                let args = linear::BackwardWeight { x, d_y, d_w: &mut d_w, d_bias, segments: None };
                linear::backward_weight(&ctx, args).unwrap();
                [d_x.to_vec_f32(), d_w.data().to_vec_f32(), d_b.to_vec_f32()]
            };
            assert!(of(&d_ys[0]) == of(&d_ys[1]), "{:?} {m}×{n}×{k}", ctx.describe());
        }
        // The other operand is f32, so a bf16 gradient is refused.
        let mut d_x = poisoned(&[m, k], DType::F32);
        let args = linear::BackwardInput { d_y: d_ys[1].view(), w: &w[0], d_x: d_x.view_mut(), accumulate: false };
        assert!(linear::backward_input(&Context::cpu(Isa::PORTABLE, 1), args).is_err());
    }
}

#[test]
fn adapters_accept_bf16_inputs() {
    let (m, k, n, r) = (5, 70, 33, 4);
    let x = both(&[m, k], &numbers(1, m * k));
    let a = Matrix::from_f32(&memory(), r, k, &normal(2, r * k));
    let b = [Matrix::from_f32(&memory(), n, r, &normal(3, n * r))];
    let adapter = lora::Adapter { a: &a, b: &b, first: &[0], scale: 0.5 };
    let places = Tensor::from_u32(&memory(), &[m], &[0, 1, 2, 3, 4]);
    let dropout = lora::Dropout { p: 0.3, key: 7, samples: places.view(), positions: places.view() };
    for ctx in contexts() {
        for dropout in [None, Some(dropout)] {
            let results = [0, 1].map(|i| {
                let mut y = Tensor::zeros(&memory(), &[m, n], DType::F32);
                let args = lora::Forward { x: x[i].view(), adapter, dropout, y: y.view_mut() };
                lora::forward(&ctx, args).unwrap();
                y.to_vec_f32()
            });
            assert!(results[0] == results[1], "{:?}", ctx.describe());
        }
    }
}

#[test]
fn embeddings_and_row_gathers_widen_bf16() {
    let (v, h) = (70, 38);
    let tables = both_matrices(v, h, &numbers(1, v * h));
    let ids = Tensor::from_u32(&memory(), &[4], &[69, 0, 33, 33]);
    let x = both(&[v, h], &numbers(2, v * h));
    for ctx in contexts() {
        let results = [0, 1].map(|i| {
            let mut out = poisoned(&[4, h], DType::F32);
            let args = embedding::Forward { ids: ids.view(), table: &tables[i], scale: 4.5, out: out.view_mut() };
            embedding::forward(&ctx, args).unwrap();
            let mut gathered = poisoned(&[4, h], x[i].dtype());
            let args = rows::Gather { x: x[i].view(), rows: ids.view(), out: gathered.view_mut() };
            rows::gather(&ctx, args).unwrap();
            [out.to_vec_f32(), gathered.to_vec_f32()]
        });
        assert!(results[0] == results[1], "{:?}", ctx.describe());
    }
}

#[test]
fn norms_rope_and_gates_round_to_bf16_once() {
    let (t, heads, hd) = (9, 5, 20);
    let h = heads * hd;
    let x = Tensor::from_f32(&memory(), &[t, h], &normal(1, t * h));
    let weight = Tensor::from_f32(&memory(), &[h], &normal(2, h));
    let positions = Tensor::from_u32(&memory(), &[t], &(0..t as u32).collect::<Vec<_>>());
    let d_y = Tensor::from_f32(&memory(), &[t, h], &normal(3, t * h));
    let gate_up = Tensor::from_f32(&memory(), &[t, 2 * h], &normal(4, 2 * t * h));
    for ctx in contexts() {
        let table = rope::Table::new(&memory(), &[1.0, 0.5, 0.25, 0.1, 0.01, 0.3, 0.2, 0.7, 0.9, 0.4], 1.0, t);
        let of = |dtype: DType| {
            let (mut y, mut rstd) = (poisoned(&[t, h], dtype), poisoned(&[t], DType::F32));
            let (x, weight, offset, eps) = (x.view(), weight.view(), 1.0, 1e-6);
            let (y_out, rstd_out) = (y.view_mut(), rstd.view_mut());
            let args = rmsnorm::Forward { x, delta: None, sum: None, weight, offset, eps, y: y_out, rstd: rstd_out };
            rmsnorm::forward(&ctx, args).unwrap();
            let mut again = poisoned(&[t, h], dtype);
            let args = rmsnorm::Recompute { x, weight, offset, rstd: rstd.view(), y: again.view_mut() };
            rmsnorm::recompute(&ctx, args).unwrap();
            assert!(again.to_vec_f32() == y.to_vec_f32());
            let mut rotated = poisoned(&[t, h], dtype);
            let (positions, table, y_mut) = (positions.view(), &table, rotated.view_mut());
            let into = rope::RotateInto { x, y: y_mut, heads: heads - 2, head_dim: hd, positions, table };
            rope::forward_into(&ctx, into).unwrap();
            [y.to_vec_f32(), rotated.to_vec_f32()]
        };
        let ([norm, rotated], narrow) = (of(DType::F32), of(DType::Bf16));
        assert!([rounded_to_bf16(&norm), rounded_to_bf16(&rotated)] == narrow, "{:?}", ctx.describe());
        // Writing to another tensor gives the same result as in place.
        let mut in_place = Tensor::from_f32(&memory(), &[t, h], &x.to_vec_f32());
        let (positions, table, x) = (positions.view(), &table, in_place.view_mut());
        rope::forward(&ctx, rope::Rotate { x, heads: heads - 2, head_dim: hd, positions, table }).unwrap();
        assert!(in_place.to_vec_f32() == rotated, "{:?}", ctx.describe());

        // Gate and up are rounded, then gated; the backward pass reads the rounded values.
        let gate = |activation: glu::Activation, gate_up: &Tensor, dtype: DType| {
            let (mut y, mut kept) = (poisoned(&[t, h], dtype), poisoned(&[t, 2 * h], dtype));
            let (gate_up, kept_out) = (gate_up.view(), Some(kept.view_mut()));
            let args = glu::Forward { activation, gate_up, kept: kept_out, y: y.view_mut() };
            glu::forward(&ctx, args).unwrap();
            // Recomputing from the kept values gives the same result.
            let mut again = poisoned(&[t, h], dtype);
            let args = glu::Forward { activation, gate_up: kept.view(), kept: None, y: again.view_mut() };
            glu::forward(&ctx, args).unwrap();
            assert!(again.to_vec_f32() == y.to_vec_f32());
            let mut d = poisoned(&[t, 2 * h], DType::F32);
            again.view_mut().fill(f32::NAN);
            let (gate_up, d_y, y_again) = (kept.view(), d_y.view(), Some(again.view_mut()));
            let d_gate_up = d.view_mut();
            glu::backward(&ctx, glu::Backward { activation, gate_up, rows: None, d_y, d_gate_up, y: y_again }).unwrap();
            assert!(again.to_vec_f32() == y.to_vec_f32());
            [y.to_vec_f32(), kept.to_vec_f32(), d.to_vec_f32()]
        };
        let first = Tensor::from_f32(&memory(), &[t, 2 * h], &rounded_to_bf16(&gate_up.to_vec_f32()));
        for activation in [glu::Activation::Silu, glu::Activation::GeluTanh] {
            let [y, kept, d] = gate(activation, &first, DType::F32);
            let narrow = gate(activation, &gate_up, DType::Bf16);
            assert!([rounded_to_bf16(&y), kept, d] == narrow, "{:?}", ctx.describe());
        }
    }
}

#[test]
fn bf16_logits_have_the_bits_of_the_widened_values() {
    let (r, h, v) = (7, 40, 1100);
    let (hidden, weight) = (both(&[r, h], &numbers(1, r * h)), both_matrices(v, h, &numbers(2, v * h)));
    let targets = Tensor::from_u32(&memory(), &[r], &[0, 1099, 511, 512, 7, 7, 600]);
    let d_logps = Tensor::from_f32(&memory(), &[r], &normal(3, r));
    let mut gradients: Option<[Vec<f32>; 2]> = None;
    for ctx in chains() {
        let results = [0, 1].map(|i| {
            let [mut logps, mut lse] = [(); 2].map(|()| poisoned(&[r], DType::F32));
            let (hidden, weight, targets, inv_temperature) = (hidden[i].view(), &weight[i], targets.view(), 1.25);
            let args = lm_head::Forward {
                hidden,
                weight,
                targets,
                inv_temperature,
                logps: logps.view_mut(),
                lse: lse.view_mut(),
                entropies: None,
            };
            lm_head::forward(&ctx, args).unwrap();
            let mut d_hidden = poisoned(&[r, h], DType::F32);
            let mut d_weight = Matrix::zeros(&memory(), v, h);
            let args = lm_head::Backward {
                hidden,
                weight,
                targets,
                inv_temperature,
                lse: lse.view(),
                d_logps: d_logps.view(),
                d_entropies: None,
                entropies: None,
                d_hidden: d_hidden.view_mut(),
                d_weight: Some(&mut d_weight),
                segments: None,
            };
            lm_head::backward(&ctx, args).unwrap();
            let outputs = [logps.to_vec_f32(), lse.to_vec_f32()];
            (outputs, [d_hidden.to_vec_f32(), d_weight.data().to_vec_f32()])
        });
        let [(outputs, wide), (narrow_outputs, narrow)] = results;
        assert!(outputs == narrow_outputs, "{:?}", ctx.describe());
        // The gradients of the logits are rounded (`lm_head/tests.rs` has the formula), in the same way on every
        // instruction set.
        for (wide, narrow) in wide.iter().zip(&narrow) {
            let exact: Vec<f64> = wide.iter().map(|&x| x.into()).collect();
            let error = relative_error(narrow, &exact);
            assert!(error > 1e-4 && error < 4e-3, "{:?}: {error}", ctx.describe());
        }
        assert!(*gradients.get_or_insert(narrow.clone()) == narrow, "{:?}", ctx.describe());
    }
}

/// One sequence of 150 positions in three pages. The unwritten slots of the last page contain NaN.
#[test]
fn attention_reads_and_writes_bf16() {
    let (t, heads, kv_heads, hd) = (150, 4, 2, 20);
    let geometry = attention::Geometry { heads, kv_heads, head_dim: hd, scale: 0.2, window: None };
    let width = (heads + 2 * kv_heads) * hd;
    let qkv = both(&[t, width], &numbers(1, t * width));
    let indices = |data: Vec<u32>| Tensor::from_u32(&memory(), &[data.len()], &data);
    let positions = indices((0..t as u32).collect());
    let (tables_of_rows, slots, groups) =
        (indices(vec![0; t]), indices((64..64 + t as u32).collect()), indices(vec![0, t as u32]));
    let tables = Tensor::from_u32(&memory(), &[1, 3], &[1, 2, 3]);
    let d_out = Tensor::from_f32(&memory(), &[t, heads * hd], &normal(2, t * heads * hd));
    let mut first = None;
    for ctx in chains() {
        let at = attention::Rows {
            positions: positions.view(),
            tables_of_rows: tables_of_rows.view(),
            tables: tables.view(),
        };
        let pages = |dtype: DType| {
            [
                poisoned(&[4, kv_heads, hd, attention::BLOCK], dtype),
                poisoned(&[4, kv_heads, attention::BLOCK, hd], dtype),
            ]
        };
        let forward = |qkv: &Tensor| {
            let [mut keys, mut values] = pages(qkv.dtype());
            let pages = attention::PagesMut { keys: keys.view_mut(), values: values.view_mut() };
            let write =
                attention::WriteKv { qkv: qkv.view(), geometry, rows: positions.view(), slots: slots.view(), pages };
            attention::write_kv(&ctx, write).unwrap();
            let (mut out, mut lse) = (poisoned(&[t, heads * hd], qkv.dtype()), poisoned(&[t, heads], DType::F32));
            let pages = attention::Pages { keys: keys.view(), values: values.view() };
            let (qkv, rows, out_mut, lse_mut) = (qkv.view(), at, out.view_mut(), Some(lse.view_mut()));
            let args = attention::Forward { qkv, geometry, rows, pages, out: out_mut, lse: lse_mut };
            attention::forward(&ctx, args).unwrap();
            (keys, values, out, lse)
        };
        let (wide, narrow) = (forward(&qkv[0]), forward(&qkv[1]));
        // Scores and their sum are the same as in f32; only exp(z − m) and the output are rounded.
        assert!(wide.3.to_vec_f32() == narrow.3.to_vec_f32(), "{:?}", ctx.describe());
        let exact: Vec<f64> = wide.2.to_vec_f32().into_iter().map(f64::from).collect();
        let error = relative_error(&narrow.2.to_vec_f32(), &exact);
        assert!(error > 1e-4 && error < 4e-3, "{:?}: {error}", ctx.describe());

        // The backward pass uses the same scores, and rounds its factors (`attention/tests/bf16.rs` has the formula).
        let backward = |dtype: DType, qkv: &Tensor, keys: &Tensor, values: &Tensor, out: &Tensor| {
            let mut d_qkv = poisoned(&[t, width], DType::F32);
            let [mut d_keys, mut d_values] = pages(DType::F32);
            assert_eq!(out.dtype(), dtype);
            let args = attention::Backward {
                qkv: qkv.view(),
                geometry,
                rows: at,
                pages: attention::Pages { keys: keys.view(), values: values.view() },
                write_rows: positions.view(),
                write_slots: slots.view(),
                out: out.view(),
                lse: narrow.3.view(),
                d_out: d_out.view(),
                d_qkv: d_qkv.view_mut(),
                d_pages: attention::PagesMut { keys: d_keys.view_mut(), values: d_values.view_mut() },
                groups: groups.view(),
            };
            attention::backward(&ctx, args).unwrap();
            d_qkv.to_vec_f32()
        };
        let widened = Tensor::from_f32(&memory(), &[t, heads * hd], &narrow.2.to_vec_f32());
        let d = backward(DType::Bf16, &qkv[1], &narrow.0, &narrow.1, &narrow.2);
        let exact = backward(DType::F32, &qkv[0], &wide.0, &wide.1, &widened);
        let error = relative_error(&d, &exact.into_iter().map(f64::from).collect::<Vec<_>>());
        assert!(error > 1e-4 && error < 4e-3, "{:?}: {error}", ctx.describe());

        let bits = (narrow.2.to_vec_f32(), d);
        assert!(*first.get_or_insert(bits.clone()) == bits, "{:?} {}", ctx.describe(), ctx.threads());
    }
}

#[test]
fn adamw_steps_in_f32_and_writes_a_rounded_copy() {
    let n = 31_360;
    let (start, grad) = (normal(1, n), Tensor::from_f32(&memory(), &[n], &normal(2, n)));
    let norm = Tensor::from_f32(&memory(), &[2], &[1.0, 1.0]);
    let hyper = adamw::Hyper { lr: 1e-2, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.1, step: 1 };
    for ctx in contexts() {
        for moments in [DType::F32, DType::Bf16] {
            let step = |rounded: Option<&mut Tensor>| {
                let mut param = Tensor::from_f32(&memory(), &[n], &start);
                let [mut m, mut v] = [(); 2].map(|()| Tensor::zeros(&memory(), &[n], moments));
                let args = adamw::Step {
                    param: param.view_mut(),
                    from: None,
                    rounded: rounded.map(|t| t.view_mut()),
                    grad: grad.view(),
                    m: m.view_mut(),
                    v: v.view_mut(),
                    hyper,
                    norm: norm.view(),
                    max_norm: 0.0,
                    rounding: adamw::Rounding::default(),
                };
                adamw::step(&ctx, args).unwrap();
                param.to_vec_f32()
            };
            let alone = step(None);
            for dtype in [DType::Bf16, DType::F32] {
                let mut rounded = poisoned(&[n], dtype);
                assert!(step(Some(&mut rounded)) == alone, "{:?}", ctx.describe());
                let mut expected = rounded_to_bf16(&alone);
                if dtype == DType::Bf16 {
                    // Panels become pairs: the two inputs of each row are side by side.
                    expected = expected.chunks(64).flat_map(|c| (0..64).map(|i| c[i % 2 * 32 + i / 2])).collect();
                }
                assert!(rounded.to_vec_f32() == expected, "{:?} {dtype:?}", ctx.describe());
            }
        }
    }
}
