//! Checks that tests notice bugs planted in the kernels of operations: some text of a source is replaced, and the
//! results must differ from those of the unchanged kernel. Sparse memory makes addresses beyond 4 Gi elements possible.

use super::emulated_with;
use crate::ops::attention::{self, Backward, Forward, Geometry, Pages, PagesMut, Rows, WriteKv};
use crate::ops::{linear, residual};
use crate::{Context, DType, Matrix, Tensor};

/// The emulator, with every text `from` of a source replaced by `to`.
fn planted(replaced: &[[&'static str; 2]]) -> Option<Context> {
    emulated_with(|driver| driver.replaced = replaced.to_vec()).map(Context::cuda)
}

/// The results of a forward and backward pass of attention in a KV cache of more than 2^32 elements, of which only the
/// page `page` has rows.
fn attention_in_page(ctx: &Context, page: u32) -> Vec<f32> {
    const ROWS: usize = 3;
    let geometry = Geometry { heads: 2, kv_heads: 1, head_dim: 256, scale: 0.1, window: None };
    let cache = |shape: [usize; 4]| Tensor::zeros(ctx.memory(), &shape, DType::F32);
    let (key_shape, value_shape) = ([262_150, 1, 256, attention::BLOCK], [262_150, 1, attention::BLOCK, 256]);
    let (mut keys, mut values, mut d_keys, mut d_values) =
        (cache(key_shape), cache(value_shape), cache(key_shape), cache(value_shape));
    let list = |list: &[u32]| Tensor::from_u32(ctx.memory(), &[list.len()], list);
    let (numbers, tables_of_rows) = (list(&[0, 1, 2]), list(&[0; ROWS]));
    let slots = list(&[0, 1, 2].map(|slot| page * attention::BLOCK as u32 + slot));
    let tables = Tensor::from_u32(ctx.memory(), &[1, 1], &[page]);
    let qkv = super::random(ctx, 1, &[ROWS, 4 * 256]);
    let (rows, slots) = (numbers.view(), slots.view());
    let pages = PagesMut { keys: keys.view_mut(), values: values.view_mut() };
    attention::write_kv(ctx, WriteKv { qkv: qkv.view(), geometry, rows, slots, pages }).unwrap();
    let [mut out, mut lse, mut d_qkv] =
        [512, 2, 4 * 256].map(|width| Tensor::zeros(ctx.memory(), &[ROWS, width], DType::F32));
    let (rows, qkv) =
        (Rows { positions: rows, tables_of_rows: tables_of_rows.view(), tables: tables.view() }, qkv.view());
    let pages = Pages { keys: keys.view(), values: values.view() };
    let (out_mut, lse_mut) = (out.view_mut(), Some(lse.view_mut()));
    attention::forward(ctx, Forward { qkv, geometry, rows, pages, out: out_mut, lse: lse_mut }).unwrap();
    let (d_out, groups) = (super::random(ctx, 2, &[ROWS, 512]), list(&[0, ROWS as u32]));
    let args = Backward {
        qkv,
        geometry,
        rows,
        pages,
        write_rows: numbers.view(),
        write_slots: slots,
        out: out.view(),
        lse: lse.view(),
        d_out: d_out.view(),
        d_qkv: d_qkv.view_mut(),
        d_pages: PagesMut { keys: d_keys.view_mut(), values: d_values.view_mut() },
        groups: groups.view(),
    };
    attention::backward(ctx, args).unwrap();
    [out, lse, d_qkv].iter().flat_map(Tensor::to_vec_f32).collect()
}

#[test]
fn pages_beyond_four_gi_elements_are_reached_by_64_bit_offsets() {
    let Some(ctx) = planted(&[]) else { return };
    let expected = attention_in_page(&ctx, 3);
    assert!(expected.iter().any(|&x| x != 0.0) && attention_in_page(&ctx, 262_147) == expected);
    let bug = planted(&[["(u64)kv_heads + kv_head)", "kv_heads + kv_head)"]]).expect("as above");
    let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| attention_in_page(&bug, 262_147)));
    assert!(found.is_err() || found.is_ok_and(|found| found != expected), "32-bit offsets of pages");
}

/// The last elements of a sum of two vectors of more than 2^32 elements.
fn last_of_a_long_sum(ctx: &Context) -> Vec<f32> {
    const ROWS: usize = 65_537;
    let vector = || Tensor::zeros(ctx.memory(), &[ROWS, 65_536], DType::F32);
    let (mut d_x, mut d_y) = (vector(), vector());
    d_y.rows_mut(ROWS - 1..ROWS).fill(3.0);
    d_x.rows_mut(ROWS - 1..ROWS).fill(4.0);
    residual::backward(ctx, residual::Backward { d_y: d_y.view(), d_x: d_x.view_mut() }).unwrap();
    d_x.rows(ROWS - 1..ROWS).to_vec_f32()[65_536 - 256..].to_vec()
}

#[test]
fn grids_beyond_four_gi_threads_are_counted_in_64_bits() {
    let last = |replaced: &[[&'static str; 2]]| {
        let set = |driver: &mut super::Emulated| (driver.last_blocks, driver.replaced) = (1, replaced.to_vec());
        emulated_with(set).map(|cuda| last_of_a_long_sum(&Context::cuda(cuda)))
    };
    let Some(found) = last(&[]) else { return };
    assert_eq!(found, [7.0; 256]);
    let bug = last(&[["(u64)blockIdx.x * blockDim.x", "blockIdx.x * blockDim.x"]]);
    assert_ne!(bug.expect("as above"), found);
}

/// The results of the three matmuls if every sum is -0: the sums start from -0, and every product is -0. A sum with one
/// more term 0 * 0 is +0.
fn sums_of_negative_zeros(ctx: &Context, m: usize) -> Vec<u32> {
    let (k, n) = (13, 11);
    let all = |rows: usize, cols: usize, x: f32| Tensor::from_f32(ctx.memory(), &[rows, cols], &vec![x; rows * cols]);
    let matrix = |x: f32| Matrix::from_f32(ctx.memory(), n, k, &vec![x; n * k]);
    let (x, d_y, w, mut d_w) = (all(m, k, -0.0), all(m, n, -0.0), matrix(1.0), matrix(-0.0));
    let (mut y, mut d_x, ones) = (all(m, n, -0.0), all(m, k, -0.0), all(m, n, 1.0));
    linear::forward(ctx, linear::Forward { x: x.view(), w: &w, bias: None, y: y.view_mut(), accumulate: true })
        .unwrap();
    let args = linear::BackwardInput { d_y: d_y.view(), w: &w, d_x: d_x.view_mut(), accumulate: true };
    linear::backward_input(ctx, args).unwrap();
    let args = linear::BackwardWeight { x: x.view(), d_y: ones.view(), d_w: &mut d_w, d_bias: None, segments: None };
    linear::backward_weight(ctx, args).unwrap();
    let d_w = d_w.unpack_rows(0..n);
    [y.to_vec_f32(), d_x.to_vec_f32(), d_w].concat().into_iter().map(f32::to_bits).collect()
}

#[test]
fn a_matmul_adds_no_term_beyond_its_depth() {
    let Some(ctx) = planted(&[]) else { return };
    for m in [3, 21, 70] {
        assert!(sums_of_negative_zeros(&ctx, m).iter().all(|&bits| bits == (-0.0f32).to_bits()), "{m} rows");
    }
    let steps = ["u32 steps = end - d0 < DEPTH ? end - d0 : DEPTH;", "u32 steps = DEPTH;"];
    let bug = planted(&[steps]).expect("as above");
    assert!(sums_of_negative_zeros(&bug, 21).contains(&0), "a tail that is padded with zeros");
}

fn product(ctx: &Context, [m, k, n]: [usize; 3]) {
    let w = Matrix::from_f32(ctx.memory(), n, k, &vec![1.0; n * k]);
    let (x, mut y) = (super::random(ctx, 1, &[m, k]), super::random(ctx, 2, &[m, n]));
    linear::forward(ctx, linear::Forward { x: x.view(), w: &w, bias: None, y: y.view_mut(), accumulate: false })
        .unwrap();
    y.to_vec_f32();
}

#[test]
fn a_missing_barrier_in_a_kernel_is_an_error() {
    let tile = "rights.store(right_tile + half * Rights::SIZE);\n        __syncthreads();";
    let staged = "__syncthreads();\n        for (u32 d = 0; d < here;";
    let page = "__syncthreads();\n#pragma unroll\n        for (u32 i = 0; i < FOURS; i++) store4(&tile[";
    type Run = fn(&Context);
    let runs: [(&str, &str, Run); 3] = [
        ("linear_forward_64", tile, |ctx| product(ctx, [9, 48, 64])),
        ("linear_decode_2", staged, |ctx| product(ctx, [2, 256, 33])),
        ("attention_forward_2", page, |ctx| drop(attention_in_page(ctx, 1))),
    ];
    for (kernel, text, run) in runs {
        let less: &'static str = Box::leak(text.replace("__syncthreads();", "").into());
        let Some(ctx) = planted(&[[text, less]]) else { return };
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&ctx)));
        assert!(panic.is_err(), "{kernel}");
        let found = ctx.memory().check().unwrap_err().to_string();
        assert!(found.contains(kernel) && found.contains("is not ordered after"), "{found}");
    }
}
