//! Checks that a row's bits depend on that row alone, and not on the other rows, their order, or how they are split
//! into calls. Only operations that process one row at a time are tested here; attention has separate tests.

use super::{device, schedules};
use crate::check::normal;
use crate::ops::sample::{self, RowParams};
use crate::ops::{embedding, glu, linear, lm_head, rmsnorm};
use crate::{Context, DType, Matrix, Tensor};

const ROWS: usize = 300;
const HIDDEN: usize = 18;
const FFN: usize = 33;
const VOCAB: usize = 70;

/// The results for a row, as bits: the hidden row, and the log-probability, the log-sum-exp, the entropy and the
/// sampled token.
type Row = Vec<u32>;

struct Weights {
    table: Matrix,
    norm: Tensor,
    gate_up: Matrix,
    down: Matrix,
}

impl Weights {
    fn new(ctx: &Context) -> Weights {
        let matrix = |seed, rows: usize, cols: usize| {
            let scale = 1.5 / (cols as f32).sqrt();
            let data: Vec<f32> = normal::<f32>(seed, rows * cols).iter().map(|x| x * scale).collect();
            Matrix::from_f32(ctx.memory(), rows, cols, &data)
        };
        let norm = Tensor::from_f32(ctx.memory(), &[HIDDEN], &normal(4, HIDDEN));
        Weights {
            table: matrix(1, VOCAB, HIDDEN),
            norm,
            gate_up: matrix(2, 2 * FFN, HIDDEN),
            down: matrix(3, HIDDEN, FFN),
        }
    }
}

/// The results of the rows with these numbers, computed together.
fn together(ctx: &Context, w: &Weights, numbers: &[usize]) -> Vec<Row> {
    let n = numbers.len();
    let ids = |f: fn(usize) -> usize| {
        let ids: Vec<u32> = numbers.iter().map(|&i| (f(i) % VOCAB) as u32).collect();
        Tensor::from_u32(ctx.memory(), &[n], &ids)
    };
    let zeros = |width: usize| Tensor::zeros(ctx.memory(), &[n, width], DType::F32);
    let column = || Tensor::zeros(ctx.memory(), &[n], DType::F32);
    let (mut x, mut normed, mut rstd) = (zeros(HIDDEN), zeros(HIDDEN), column());
    let (mut gates, mut gated, mut out) = (zeros(2 * FFN), zeros(FFN), zeros(HIDDEN));
    let (tokens, targets) = (ids(|i| i * 31 + i / 7), ids(|i| i * 17 + 5));
    let args = embedding::Forward { ids: tokens.view(), table: &w.table, scale: 3.0, out: x.view_mut() };
    embedding::forward(ctx, args).unwrap();
    let args = rmsnorm::Forward {
        x: x.view(),
        delta: None,
        sum: None,
        weight: w.norm.view(),
        offset: 1.0,
        eps: 1e-5,
        y: normed.view_mut(),
        rstd: rstd.view_mut(),
    };
    rmsnorm::forward(ctx, args).unwrap();
    let matmul = |x: &Tensor, w: &Matrix, y: &mut Tensor| {
        let args = linear::Forward { x: x.view(), w, bias: None, y: y.view_mut(), accumulate: false };
        linear::forward(ctx, args).unwrap();
    };
    matmul(&normed, &w.gate_up, &mut gates);
    let (activation, gate_up) = (glu::Activation::Silu, gates.view());
    glu::forward(ctx, glu::Forward { activation, gate_up, kept: None, y: gated.view_mut() }).unwrap();
    matmul(&gated, &w.down, &mut out);
    let (mut logps, mut lse, mut entropies, mut drawn) = (column(), column(), column(), column());
    let args = lm_head::Forward {
        hidden: out.view(),
        weight: &w.table,
        targets: targets.view(),
        inv_temperature: 1.25,
        logps: logps.view_mut(),
        lse: lse.view_mut(),
        entropies: Some(entropies.view_mut()),
    };
    lm_head::forward(ctx, args).unwrap();
    let row = |&i: &usize| RowParams {
        temperature: 0.8,
        top_k: if i % 100 == 1 { 9 } else { 0 },
        top_p: if i % 100 == 2 { 0.8 } else { 1.0 },
        min_p: 0.0,
        repetition_penalty: 1.0,
        history: &[],
        key: 5,
        counter: [i as u32, 0, 0, 0],
    };
    let rows: Vec<RowParams<'_>> = numbers.iter().map(row).collect();
    let mut ids = Tensor::zeros(ctx.memory(), &[n], DType::U32);
    let args = sample::Forward {
        hidden: out.view(),
        weight: &w.table,
        rows: &rows,
        packed: None,
        ids: ids.view_mut(),
        logps: drawn.view_mut(),
        truncated_logps: None,
        lse: None,
        entropies: None,
    };
    sample::forward(ctx, args).unwrap();
    let columns = [logps, lse, entropies, drawn].map(|column| column.to_vec_f32());
    let (out, ids) = (out.to_vec_f32(), ids.view().to_vec_u32());
    let row = |i: usize| {
        let numbers = columns.iter().map(|column| column[i]).chain(out[i * HIDDEN..(i + 1) * HIDDEN].iter().copied());
        numbers.map(f32::to_bits).chain([ids[i]]).collect()
    };
    (0..n).map(row).collect()
}

#[test]
fn a_rows_bits_do_not_depend_on_other_rows_their_order_or_the_split() {
    for schedule in 0..schedules() {
        let Some(ctx) = device(schedule).map(Context::cuda) else { return };
        let w = Weights::new(&ctx);
        let all: Vec<usize> = (0..ROWS).collect();
        let expected = together(&ctx, &w, &all);
        assert!(expected.iter().flatten().all(|&bits| f32::from_bits(bits).is_finite()));
        // The first 200 rows have distinct ids and counters, so their results must differ.
        assert!(expected.windows(2).all(|two| two[0] != two[1]));
        // Sizes around those at which kernels or numbers of blocks change, and some others.
        let edges = [8, 64, 128, 192, 256].into_iter().flat_map(|edge| edge - 1..=edge + 1);
        let sizes = (1..ROWS).filter(|n| *n < 10 || n.is_multiple_of(17)).chain(edges).chain([ROWS - 1]);
        for n in sizes {
            assert!(together(&ctx, &w, &all[..n]) == expected[..n], "{n} rows");
        }
        let backwards: Vec<usize> = all.iter().rev().copied().collect();
        let shuffled: Vec<usize> = all.iter().map(|i| i * 77 % ROWS).collect();
        for order in [backwards, shuffled] {
            for cut in [1, 7, 64, 65, ROWS] {
                // One row at a time is slow, so only a few rows are computed that way.
                let some = if cut == 1 { &order[..20] } else { &order[..] };
                for numbers in some.chunks(cut) {
                    let found = together(&ctx, &w, numbers);
                    assert!(numbers.iter().zip(&found).all(|(&i, row)| *row == expected[i]), "cut every {cut}");
                }
            }
        }
    }
}
