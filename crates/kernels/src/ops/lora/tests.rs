use super::*;
use crate::check::{directional_error, normal, relative_error};
use crate::{Device, Isa, Memory, Tensor};
use reference::Block;

/// Rows, inputs, outputs, and of each block its first output, its outputs and its rank.
type Case = (usize, usize, usize, &'static [[usize; 3]]);

const CASES: [Case; 6] = [
    (1, 1, 1, &[[0, 1, 1]]),
    (3, 7, 5, &[[0, 5, 2]]),
    (2, 33, 129, &[[0, 129, 8]]),
    // Three blocks of a fused product, of odd sizes; the second is not adapted.
    (21, 50, 77, &[[0, 40, 16], [63, 14, 16]]),
    (9, 20, 70, &[[33, 37, 3], [0, 33, 5]]),
    (0, 3, 4, &[[0, 4, 2]]),
];
const SCALE: f32 = 0.375;

fn blocks(seed: u64, k: usize, of: &[[usize; 3]]) -> Vec<Block<f32>> {
    let block = |(i, &[first, rows, rank]): (usize, &[usize; 3])| {
        let seed = seed + 2 * i as u64;
        Block { a: normal(seed, rank * k), b: normal(seed + 1, rows * rank), first, rank }
    };
    of.iter().enumerate().map(block).collect()
}

/// A as one matrix and the B.
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

fn fast(ctx: &Context, (m, k, n, of): Case) -> Out {
    let memory = Memory::new(Device::Cpu);
    let tensor =
        |seed, rows, columns| Tensor::from_f32(&memory, &[rows, columns], &normal::<f32>(seed, rows * columns));
    let (a, b) = matrices(&memory, k, &blocks(10, k, of));
    let (mut d_a, mut d_b) = matrices(&memory, k, &blocks(20, k, of));
    let first: Vec<usize> = of.iter().map(|b| b[0]).collect();
    let adapter = Adapter { a: &a, b: &b, first: &first, scale: SCALE };
    let (x, d_y, mut y, mut d_x) = (tensor(1, m, k), tensor(4, m, n), tensor(5, m, n), tensor(6, m, k));
    // What lies in the workspace from before is not read.
    with_workspace(1 << 12, |all| all.fill(f32::NAN));
    forward(ctx, Forward { x: x.view(), adapter, y: y.view_mut() }).unwrap();
    with_workspace(1 << 12, |all| all.fill(f32::NAN));
    // Two calls: the gradients of a batch may be cut anywhere.
    for rows in [0..m / 3, m / 3..m] {
        let args = Backward {
            x: x.rows(rows.clone()),
            adapter,
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
fn equals_the_oracle_bit_for_bit() {
    for case in CASES {
        let (m, k, n, of) = case;
        let (x, blocks, mut g) = (normal::<f32>(1, m * k), blocks(10, k, of), blocks(20, k, of));
        let y = reference::forward(k, n, &x, &blocks, SCALE, &normal::<f32>(5, m * n));
        let mut d_x = normal::<f32>(6, m * k);
        reference::backward(k, n, &x, &blocks, SCALE, &normal::<f32>(4, m * n), &mut d_x, &mut g);
        for isa in Isa::present() {
            for threads in 1..=3 {
                let out = fast(&Context::cpu(isa, threads), case);
                assert_eq!(out.y, y, "{isa:?} {case:?}");
                assert_eq!(out.d_x, d_x, "{isa:?} {case:?}");
                assert_eq!(out.d_a, g.iter().flat_map(|g| g.a.clone()).collect::<Vec<_>>(), "{isa:?} {case:?}");
                assert_eq!(out.d_b, g.iter().map(|g| g.b.clone()).collect::<Vec<_>>(), "{isa:?} {case:?}");
            }
        }
    }
}

#[test]
fn oracle_gradients_in_f64_and_the_fast_ones_near_them() {
    let case @ (m, k, n, of) = CASES[4];
    let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    let wide_blocks = |seed| -> Vec<Block<f64>> {
        let widen = |b: Block<f32>| Block { a: wide(&b.a), b: wide(&b.b), first: b.first, rank: b.rank };
        blocks(seed, k, of).into_iter().map(widen).collect()
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
        // The scale forgotten in one of them.
        let mut spoiled = gradient.clone();
        spoiled[start..start + len].iter_mut().for_each(|g| *g /= scale);
        assert!(directional_error(&all, &spoiled, loss) > 1e-3);
        start += len;
    }
    let oracle = gradients(wide(&normal(6, m * k)), wide_blocks(20));
    for isa in Isa::present() {
        let out = fast(&Context::cpu(isa, 1), case);
        let (mut fast, mut at_a) = (out.d_x, 0);
        for (b, [_, _, rank]) in out.d_b.iter().zip(of) {
            fast.extend(&out.d_a[at_a..at_a + rank * k]);
            fast.extend(b);
            at_a += rank * k;
        }
        assert!(relative_error(&fast, &oracle) < 1e-5);
        fast[m * k] *= 1.1;
        assert!(relative_error(&fast, &oracle) > 1e-5, "one spoiled element is seen");
    }
}

#[test]
fn a_zero_b_changes_no_bit() {
    let ctx = Context::cpu(Isa::best(), 1);
    let memory = Memory::new(Device::Cpu);
    let x = Tensor::from_f32(&memory, &[3, 7], &normal::<f32>(1, 21));
    let start = normal::<f32>(5, 15);
    let mut y = Tensor::from_f32(&memory, &[3, 5], &start);
    let (a, b) =
        (Matrix::from_f32(&memory, 2, 7, &normal::<f32>(2, 14)), [Matrix::from_f32(&memory, 5, 2, &[0.0; 10])]);
    let adapter = Adapter { a: &a, b: &b, first: &[0], scale: SCALE };
    forward(&ctx, Forward { x: x.view(), adapter, y: y.view_mut() }).unwrap();
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&y.to_vec_f32()), bits(&start));
    // A block past the last column is refused.
    let adapter = Adapter { first: &[1], ..adapter };
    assert!(forward(&ctx, Forward { x: x.view(), adapter, y: y.view_mut() }).is_err());
}
