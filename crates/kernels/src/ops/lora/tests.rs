use super::*;
use crate::check::{directional_error, normal, relative_error};
use crate::device::Cpu;
use crate::device::cuda::tests::contexts;
use crate::ops::lm_head::cpu::with_workspace;
use crate::{Device, Isa, Memory, Tensor};
use reference::Block;

/// Number of rows, inputs and outputs; for each block: first output, number of outputs, and rank.
type Case = (usize, usize, usize, &'static [[usize; 3]]);

const CASES: [Case; 8] = [
    (1, 1, 1, &[[0, 1, 1]]),
    (3, 7, 5, &[[0, 5, 2]]),
    (2, 33, 129, &[[0, 129, 8]]),
    // Three blocks of a fused matmul, of odd sizes; the second is not adapted.
    (21, 50, 77, &[[0, 40, 16], [63, 14, 16]]),
    (9, 20, 70, &[[33, 37, 3], [0, 33, 5]]),
    (0, 3, 4, &[[0, 4, 2]]),
    // More rows than dropout computes at once, and more columns than one group of counters covers.
    (131, 67, 6, &[[0, 6, 4]]),
    // Blocks that begin and end inside panels of A.
    (4, 70, 9, &[[0, 4, 31], [4, 2, 7], [6, 3, 40]]),
];
const SCALE: f32 = 0.375;
const KEY: u64 = 0x0123_4567_89ab_cdef;

fn cpu(ctx: &Context) -> &Cpu {
    match ctx.backend() {
        Backend::Cpu(cpu) => cpu,
        Backend::Cuda(_) => unreachable!("these tests use CPU contexts"),
    }
}

fn blocks(seed: u64, k: usize, of: &[[usize; 3]]) -> Vec<Block<f32>> {
    let block = |(i, &[first, rows, rank]): (usize, &[usize; 3])| {
        let seed = seed + 2 * i as u64;
        Block { a: normal(seed, rank * k), b: normal(seed + 1, rows * rank), first, rank, factors: Vec::new() }
    };
    of.iter().enumerate().map(block).collect()
}

/// Samples and positions of m rows, in sequences of five.
fn rows_of(m: usize) -> (Vec<u32>, Vec<u32>) {
    (0..m as u32).map(|row| (7 + row / 5, row % 5)).unzip()
}

/// The same blocks with the factors of dropout with probability `p`.
fn dropping(p: Option<f64>, (m, k, _, of): Case, mut blocks: Vec<Block<f32>>) -> Vec<Block<f32>> {
    let (samples, positions) = rows_of(m);
    assert_eq!(blocks.len(), of.len());
    for (i, block) in blocks.iter_mut().enumerate() {
        block.factors = p.map_or(Vec::new(), |p| reference::factors(p, KEY, &samples, &positions, i as u32, k));
    }
    blocks
}

const DROPOUTS: [Option<f64>; 3] = [None, Some(0.3), Some(0.0)];

/// The stacked A matrix, and the B matrix of each block.
fn matrices(memory: &Memory, k: usize, blocks: &[Block<f32>]) -> (Matrix, Vec<Matrix>) {
    let rank: usize = blocks.iter().map(|b| b.rank).sum();
    let all: Vec<f32> = blocks.iter().flat_map(|b| b.a.clone()).collect();
    let b = blocks.iter().map(|b| Matrix::from_f32(memory, b.b.len() / b.rank, b.rank, &b.b));
    (Matrix::from_f32(memory, rank, k, &all), b.collect())
}

struct Out {
    y: Vec<f32>,
    d_x: Vec<f32>,
    d_a: Vec<f32>,
    d_b: Vec<Vec<f32>>,
}

fn fast(ctx: &Context, p: Option<f64>, (m, k, n, of): Case) -> Out {
    let memory = ctx.memory();
    let tensor = |seed, rows, columns| Tensor::from_f32(memory, &[rows, columns], &normal::<f32>(seed, rows * columns));
    let (a, b) = matrices(memory, k, &blocks(10, k, of));
    let (mut d_a, mut d_b) = matrices(memory, k, &blocks(20, k, of));
    let first: Vec<usize> = of.iter().map(|b| b[0]).collect();
    let adapter = Adapter { a: &a, b: &b, first: &first, scale: SCALE };
    let (x, d_y, mut y, mut d_x) = (tensor(1, m, k), tensor(4, m, n), tensor(5, m, n), tensor(6, m, k));
    let (samples, positions) = rows_of(m);
    let [samples, positions] = [samples, positions].map(|ids| Tensor::from_u32(memory, &[m], &ids));
    let dropout = |rows: std::ops::Range<usize>| {
        p.map(|p| Dropout { p, key: KEY, samples: samples.rows(rows.clone()), positions: positions.rows(rows) })
    };
    // Fills the workspace with NaN, to show that old contents are not read.
    with_workspace(1 << 17, |all| all.fill(f32::NAN));
    forward(ctx, Forward { x: x.view(), adapter, dropout: dropout(0..m), y: y.view_mut() }).unwrap();
    with_workspace(1 << 17, |all| all.fill(f32::NAN));
    // The batch is split into two calls, which must not change the gradients.
    for rows in [0..m / 3, m / 3..m] {
        let args = Backward {
            x: x.rows(rows.clone()),
            adapter,
            dropout: dropout(rows.clone()),
            d_y: d_y.rows(rows.clone()),
            d_x: d_x.rows_mut(rows),
            d_a: &mut d_a,
            d_b: &mut d_b,
        };
        backward(ctx, args).unwrap();
    }
    Out {
        y: y.to_vec_f32(),
        d_x: d_x.to_vec_f32(),
        d_a: d_a.unpack_rows(0..a.rows()),
        d_b: d_b.iter().map(|b| b.unpack_rows(0..b.rows())).collect(),
    }
}

#[test]
fn adapters_equal_the_oracle_bit_for_bit() {
    for (p, case) in DROPOUTS.into_iter().flat_map(|p| CASES.map(|case| (p, case))) {
        let (m, k, n, of) = case;
        let (x, mut g) = (normal::<f32>(1, m * k), blocks(20, k, of));
        let blocks = dropping(p, case, blocks(10, k, of));
        let y = reference::forward(k, n, &x, &blocks, SCALE, &normal::<f32>(5, m * n));
        let mut d_x = normal::<f32>(6, m * k);
        reference::backward(k, n, &x, &blocks, SCALE, &normal::<f32>(4, m * n), &mut d_x, &mut g);
        for isa in Isa::present() {
            for threads in 1..=3 {
                let out = fast(&Context::cpu(isa, threads), p, case);
                assert_eq!(out.y, y, "{isa:?} {p:?} {case:?}");
                assert_eq!(out.d_x, d_x, "{isa:?} {p:?} {case:?}");
                assert_eq!(out.d_a, g.iter().flat_map(|g| g.a.clone()).collect::<Vec<_>>(), "{isa:?} {p:?} {case:?}");
                assert_eq!(out.d_b, g.iter().map(|g| g.b.clone()).collect::<Vec<_>>(), "{isa:?} {p:?} {case:?}");
            }
        }
    }
}

#[test]
fn oracle_gradients_match_finite_differences_and_fast_gradients() {
    gradients(None);
}

#[test]
fn oracle_gradients_with_dropout_match_finite_differences() {
    gradients(Some(0.3));
}

fn gradients(p: Option<f64>) {
    let case @ (m, k, n, of) = CASES[4];
    let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    let wide_blocks = |seed| -> Vec<Block<f64>> {
        let widen = |b: Block<f32>| Block {
            a: wide(&b.a),
            b: wide(&b.b),
            first: b.first,
            rank: b.rank,
            factors: wide(&b.factors),
        };
        dropping(p, case, blocks(seed, k, of)).into_iter().map(widen).collect()
    };
    let flat = |x: &[f64], blocks: &[Block<f64>]| -> Vec<f64> {
        x.iter().copied().chain(blocks.iter().flat_map(|b| b.a.iter().chain(&b.b).copied())).collect()
    };
    let (x, d_y, scale) = (wide(&normal(1, m * k)), wide(&normal(4, m * n)), f64::from(SCALE));
    let at = wide_blocks(10);
    let loss = |all: &[f64]| {
        let (x, mut rest) = all.split_at(m * k);
        let mut blocks = at.clone();
        for block in &mut blocks {
            for part in [&mut block.a, &mut block.b] {
                let (mine, others) = rest.split_at(part.len());
                part.copy_from_slice(mine);
                rest = others;
            }
        }
        let y = reference::forward(k, n, x, &blocks, scale, &vec![0.0; m * n]);
        y.iter().zip(&d_y).map(|(y, d)| y * d).sum()
    };
    let gradients = |mut d_x: Vec<f64>, mut g: Vec<Block<f64>>| {
        reference::backward(k, n, &x, &at, scale, &d_y, &mut d_x, &mut g);
        flat(&d_x, &g)
    };
    let zero = |b: &Block<f64>| Block { a: vec![0.0; b.a.len()], b: vec![0.0; b.b.len()], ..b.clone() };
    let gradient = gradients(vec![0.0; m * k], at.iter().map(zero).collect());
    let all = flat(&x, &at);
    assert!(directional_error(&all, &gradient, loss) < 1e-7);
    let mut start = 0;
    for len in std::iter::once(m * k).chain(at.iter().flat_map(|b| [b.a.len(), b.b.len()])) {
        // A gradient without the scale is wrong.
        let mut spoiled = gradient.clone();
        spoiled[start..start + len].iter_mut().for_each(|g| *g /= scale);
        assert!(directional_error(&all, &spoiled, loss) > 1e-3);
        start += len;
    }
    if p.is_some() {
        // A backward pass without the dropout factors is wrong.
        let (mut spoiled, mut g) = (vec![0.0; m * k], at.iter().map(zero).collect::<Vec<_>>());
        let kept: Vec<_> = at.iter().map(|b| Block { factors: Vec::new(), ..b.clone() }).collect();
        reference::backward(k, n, &x, &kept, scale, &d_y, &mut spoiled, &mut g);
        let forgot_x: Vec<f64> = spoiled.iter().chain(&gradient[m * k..]).copied().collect();
        assert!(directional_error(&all, &forgot_x, loss) > 1e-3);
        let forgot_a = flat(&gradient[..m * k], &g);
        assert!(directional_error(&all, &forgot_a, loss) > 1e-3);
    }
    let oracle = gradients(wide(&normal(6, m * k)), wide_blocks(20));
    for ctx in contexts(&[1]) {
        let out = fast(&ctx, p, case);
        let (mut fast, mut at_a) = (out.d_x, 0);
        for (b, [_, _, rank]) in out.d_b.iter().zip(of) {
            fast.extend(&out.d_a[at_a..at_a + rank * k]);
            fast.extend(b);
            at_a += rank * k;
        }
        assert!(relative_error(&fast, &oracle) < 1e-5);
        fast[m * k] *= 1.1;
        assert!(relative_error(&fast, &oracle) > 1e-5, "a wrong element passes");
    }
}

#[test]
fn an_adapter_with_zero_b_changes_no_bit() {
    let ctx = Context::cpu(Isa::best(), 1);
    let memory = Memory::new(Device::Cpu);
    let x = Tensor::from_f32(&memory, &[3, 7], &normal::<f32>(1, 21));
    let start = normal::<f32>(5, 15);
    let mut y = Tensor::from_f32(&memory, &[3, 5], &start);
    let (a, b) =
        (Matrix::from_f32(&memory, 2, 7, &normal::<f32>(2, 14)), [Matrix::from_f32(&memory, 5, 2, &[0.0; 10])]);
    let adapter = Adapter { a: &a, b: &b, first: &[0], scale: SCALE };
    forward(&ctx, Forward { x: x.view(), adapter, dropout: None, y: y.view_mut() }).unwrap();
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&y.to_vec_f32()), bits(&start));
    // A block past the last column is refused.
    let adapter = Adapter { first: &[1], ..adapter };
    assert!(forward(&ctx, Forward { x: x.view(), adapter, dropout: None, y: y.view_mut() }).is_err());
}

#[test]
fn dropout_drops_a_fraction_p_with_independent_masks() {
    let (ctx, memory) = (Context::cpu(Isa::best(), 2), Memory::new(Device::Cpu));
    let (m, k) = (150, 200);
    let (samples, positions) = rows_of(m);
    let tensor = |ids: &[u32]| Tensor::from_u32(&memory, &[m], ids);
    let (samples, positions) = (tensor(&samples), tensor(&positions));
    let dropout = |p, key| Dropout { p, key, samples: samples.view(), positions: positions.view() };
    let n = (m * k) as f64;
    for p in [0.05, 0.5, 0.9] {
        let masks: Vec<Vec<f32>> = [(KEY, 0), (KEY, 1), (KEY + 1, 0)]
            .into_iter()
            .map(|(key, block)| {
                let mut f = vec![f32::NAN; m * k];
                dropout(p, key).factors(cpu(&ctx), 0, block, k, &mut f);
                f
            })
            .collect();
        for f in &masks {
            assert!(f.iter().all(|&f| f == 0.0 || f == (1.0 / (1.0 - p)) as f32));
            let dropped = f.iter().filter(|&&f| f == 0.0).count() as f64;
            // The bound is four standard deviations.
            assert!((dropped / n - p).abs() < 4.0 * (p * (1.0 - p) / n).sqrt(), "p = {p}: {}", dropped / n);
            let rows: Vec<&[f32]> = f.chunks(k).collect();
            assert!(rows.windows(2).all(|two| two[0] != two[1]));
        }
        for (a, b) in [(0, 1), (0, 2), (1, 2)] {
            let both = masks[a].iter().zip(&masks[b]).filter(|(a, b)| **a == 0.0 && **b == 0.0).count() as f64;
            let q = p * p;
            assert!((both / n - q).abs() < 4.0 * (q * (1.0 - q) / n).sqrt(), "p = {p}: {}", both / n);
        }
    }
    // An invalid probability, or samples of other rows, are refused.
    let x = Tensor::from_f32(&memory, &[m, 2], &normal::<f32>(1, 2 * m));
    let (a, b) = (Matrix::from_f32(&memory, 1, 2, &[1.0; 2]), [Matrix::from_f32(&memory, 1, 1, &[1.0])]);
    let adapter = Adapter { a: &a, b: &b, first: &[0], scale: SCALE };
    let mut y = Tensor::from_f32(&memory, &[m, 1], &vec![0.0; m]);
    let mut refused = |dropout| {
        forward(&ctx, Forward { x: x.view(), adapter, dropout: Some(dropout), y: y.view_mut() }).unwrap_err();
    };
    refused(dropout(1.0, KEY));
    refused(dropout(-0.1, KEY));
    refused(dropout(f64::NAN, KEY));
    refused(Dropout { samples: samples.rows(1..m), ..dropout(0.5, KEY) });
}

/// A row's mask does not depend on its index in the batch or on the other rows.
#[test]
fn the_dropout_mask_of_a_row_depends_only_on_its_identity() {
    let ctx = Context::cpu(Isa::best(), 1);
    let memory = Memory::new(Device::Cpu);
    let (m, k) = (9, 70);
    let (samples, positions) = rows_of(m);
    let of = |order: &[usize]| -> Vec<Vec<f32>> {
        let pick = |ids: &[u32]| order.iter().map(|&i| ids[i]).collect::<Vec<_>>();
        let tensor = |ids: &[u32]| Tensor::from_u32(&memory, &[ids.len()], ids);
        let (samples, positions) = (tensor(&pick(&samples)), tensor(&pick(&positions)));
        let dropout = Dropout { p: 0.4, key: KEY, samples: samples.view(), positions: positions.view() };
        let mut f = vec![f32::NAN; order.len() * k];
        dropout.factors(cpu(&ctx), 0, 1, k, &mut f);
        f.chunks(k).map(<[f32]>::to_vec).collect()
    };
    let all = of(&(0..m).collect::<Vec<_>>());
    let order = [7, 2, 3, 0];
    assert_eq!(of(&order), order.map(|i| all[i].clone()));
}

#[test]
fn a_range_of_dropout_rows_uses_their_samples_and_positions() {
    let memory = Memory::new(Device::Cpu);
    let (samples, positions) =
        (Tensor::from_u32(&memory, &[4], &[3, 1, 4, 1]), Tensor::from_u32(&memory, &[4], &[5, 9, 2, 6]));
    let part = Dropout { p: 0.5, key: KEY, samples: samples.view(), positions: positions.view() }.rows(1..3);
    assert_eq!((part.samples.to_vec_u32(), part.positions.to_vec_u32()), (vec![1, 4], vec![9, 2]));
    assert_eq!((part.p, part.key), (0.5, KEY));
    let of = |p: f64| Dropout { p, ..part };
    assert_eq!([0.0, 0.25, 0.5].map(|p| of(p).threshold()), [0, 1 << 30, 1 << 31]);
    assert_eq!([0.0, 0.75, 0.5].map(|p| of(p).kept()), [1.0, 4.0, 2.0]);
}

/// If factors or inputs differ in length from the output, the function panics and does not read past their end.
#[test]
fn dropout_multiplication_panics_on_different_lengths() {
    let ctx = Context::cpu(Isa::PORTABLE, 1);
    let with = |f: usize, x: usize| {
        let (f, x, mut y) = (vec![2.0f32; f], vec![3.0f32; x], vec![1.0f32; 20]);
        let both = std::panic::AssertUnwindSafe(|| {
            dropout::multiply_add(cpu(&ctx), &f, &x, &mut y);
            y.clone()
        });
        std::panic::catch_unwind(both).ok()
    };
    assert_eq!(with(20, 20), Some(vec![7.0; 20]));
    for (f, x) in [(19, 20), (20, 19), (21, 20), (20, 21), (21, 21)] {
        assert_eq!(with(f, x), None, "{f} {x}");
    }
}
