//! Operations with matrices.

use super::*;
use crate::Matrix;
use crate::ops::sample::RowParams;
use crate::ops::{linear, lm_head, lora, sample};

/// FLOPs and bytes of a matmul of `[m, k]` by `[k, n]`, whose second operand moves `weight` bytes.
fn matmul(m: usize, n: usize, k: usize, weight: usize) -> [usize; 2] {
    [2 * m * n * k, weight + 4 * m * (n + k)]
}

/// Bytes of an f32 matrix of at most 32 rows and `k` inputs: one panel.
const fn panel(k: usize) -> usize {
    4 * 32 * k
}

fn sum<const N: usize>(counts: [[usize; 2]; N]) -> [usize; 2] {
    counts.into_iter().fold([0, 0], |sum, each| [sum[0] + each[0], sum[1] + each[1]])
}

#[test]
fn linear_layers_refuse_wrong_arguments_and_count_their_work() {
    let x = || floats("x", &[2, 3]).leads();
    let args = [x().blames(&["y", ""]), f32("bias", &[5]), f32("y", &[2, 5])];
    check("linear::forward", matmul(2, 5, 3, panel(3)), args, |ctx, [x, bias, y]| {
        let (w, x, bias, y) = (Matrix::zeros(ctx.memory(), 5, 3), x.view(), Some(bias.view()), y.view_mut());
        linear::forward(ctx, linear::Forward { x, w: &w, bias, y, accumulate: false })
    });
    let args = [f32("d_y", &[2, 5]).leads().blames(&["d_x", ""]), f32("d_x", &[2, 3])];
    check("linear::backward_input", matmul(2, 5, 3, panel(3)), args, |ctx, [d_y, d_x]| {
        let (w, d_y, d_x) = (Matrix::zeros(ctx.memory(), 5, 3), d_y.view(), d_x.view_mut());
        linear::backward_input(ctx, linear::BackwardInput { d_y, w: &w, d_x, accumulate: false })
    });
    let args = [
        x().blames(&["d_y", ""]),
        f32("d_y", &[2, 5]),
        f32("d_bias", &[5]),
        ids("segments", &[2], &[0, 2]).blames(&["segments must ascend from 0 to 2"]),
    ];
    // The bytes include the gradient of the weight twice, because it is read and written.
    check("linear::backward_weight", matmul(2, 5, 3, 2 * panel(3)), args, |ctx, [x, d_y, d_bias, segments]| {
        let (mut d_w, x, d_y) = (Matrix::zeros(ctx.memory(), 5, 3), x.view(), d_y.view());
        let (d_bias, segments) = (Some(d_bias.view_mut()), Some(segments.view()));
        linear::backward_weight(ctx, linear::BackwardWeight { x, d_y, d_w: &mut d_w, d_bias, segments })
    });
}

#[test]
fn the_lm_head_refuses_wrong_arguments_and_counts_its_work() {
    let weight = |ctx: &Context| Matrix::zeros(ctx.memory(), 5, 4);
    // Two rows: each matmul has 2 · 2 · 4 · 5 operations. The bytes are those of the hidden rows and of each pass over
    // the weight.
    let counts = |matmuls: usize, passes: usize| [matmuls * 80, passes * panel(4) + 4 * 8];
    let hidden = || floats("hidden", &[2, 4]).leads();
    let args = [hidden().blames(&["logits", ""]), f32("logits", &[2, 5]), f32("lse", &[2])];
    check("lm_head::logits", counts(1, 1), args, |ctx, [hidden, logits, lse]| {
        let (hidden, weight, logits, lse) = (hidden.view(), &weight(ctx), logits.view_mut(), lse.view_mut());
        lm_head::logits(ctx, lm_head::Logits { hidden, weight, inv_temperature: 1.0, logits, lse })
    });
    let args = [
        hidden().blames(&["targets", ""]),
        ids("targets", &[2], &[4, 1]),
        f32("logps", &[2]),
        f32("lse", &[2]),
        f32("entropies", &[2]),
    ];
    check("lm_head::forward", counts(1, 1), args, |ctx, [hidden, targets, logps, lse, entropies]| {
        let (hidden, weight, targets) = (hidden.view(), &weight(ctx), targets.view());
        let (logps, lse, entropies) = (logps.view_mut(), lse.view_mut(), Some(entropies.view_mut()));
        let inv_temperature = 1.0;
        lm_head::forward(ctx, lm_head::Forward { hidden, weight, targets, inv_temperature, logps, lse, entropies })
    });
    let args = || {
        [
            hidden().blames(&["targets", ""]),
            ids("targets", &[2], &[4, 1]),
            f32("lse", &[2]),
            f32("d_logps", &[2]),
            f32("d_entropies", &[2]),
            f32("entropies", &[2]),
            f32("d_hidden", &[2, 4]),
            ids("segments", &[2], &[0, 2]).blames(&["segments must ascend from 0 to 2"]),
        ]
    };
    let backward =
        |ctx: &Context, [hidden, targets, lse, d_logps, d, e, d_hidden, segments]: [&mut Tensor; 8], rows| {
            let mut d_weight = (rows > 0).then(|| Matrix::zeros(ctx.memory(), rows, 4));
            let args = lm_head::Backward {
                hidden: hidden.view(),
                weight: &weight(ctx),
                targets: targets.view(),
                inv_temperature: 1.0,
                lse: lse.view(),
                d_logps: d_logps.view(),
                d_entropies: Some(d.view()),
                entropies: Some(e.view()).filter(|e| e.shape() != [0]),
                d_hidden: d_hidden.view_mut(),
                d_weight: d_weight.as_mut(),
                segments: Some(segments.view()),
            };
            lm_head::backward(ctx, args)
        };
    // The three matmuls compute the logits, the gradient of the hidden rows, and the gradient of the weight. The latter
    // is read and written.
    check("lm_head::backward", counts(3, 4), args(), |ctx, all| backward(ctx, all, 5));
    check("lm_head::backward", counts(2, 2), args(), |ctx, all| backward(ctx, all, 0));
    let ctx = Context::cpu(Isa::PORTABLE, 1);
    let with = |rows: usize, change: &dyn Fn(&mut [Tensor; 8])| {
        let mut all = args().map(|arg| arg.of(&ctx, arg.shape, arg.dtype));
        change(&mut all);
        refused(backward(&ctx, all.each_mut(), rows))
    };
    let message = "lm_head::backward: d_weight has shape [6, 4], expected [5, 4]";
    assert_eq!(with(6, &|_| ()), message);
    let message = "lm_head::backward: targets[1] is 5, expected below 5";
    assert_eq!(with(5, &|all| all[1].view_mut().copy_from_u32(&[4, 5])), message);
    let message = "lm_head::backward: d_entropies requires entropies";
    assert_eq!(with(5, &|all| all[5] = zeros(&ctx, &[0], F32)), message);

    // A weight is read once for each block of 512 rows. An element of bf16 hidden rows has two bytes.
    let weight = Matrix::zeros(ctx.memory(), 3, 2);
    for (rows, dtype, bytes) in [(512, F32, 5 * panel(2) + 8 * 512), (513, Bf16, 10 * panel(2) + 4 * 513)] {
        let before = counted();
        lm_head::count_matmuls(zeros(&ctx, &[rows, 2], dtype).view(), &weight, 7, 5);
        let after = counted();
        assert_eq!([after.0 - before.0, after.1 - before.1], [2 * 7 * rows as u64 * 2 * 3, bytes as u64]);
    }
}

#[test]
fn sampling_refuses_wrong_arguments_and_counts_its_work() {
    let forward =
        |ctx: &Context, vocab: usize, [hidden, ids, logps, truncated, lse, entropies, packed]: [&mut Tensor; 7]| {
            let weight = Matrix::zeros(ctx.memory(), vocab, 4);
            let args = sample::Forward {
                hidden: hidden.view(),
                weight: &weight,
                rows: &[RowParams::GREEDY; 2],
                packed: Some(packed.view()),
                ids: ids.view_mut(),
                logps: logps.view_mut(),
                truncated_logps: Some(truncated.view_mut()),
                lse: Some(lse.view_mut()),
                entropies: Some(entropies.view_mut()),
            };
            sample::forward(ctx, args)
        };
    let args = || {
        let hidden = floats("hidden", &[2, 4]).leads().blames(&["rows has shape [2], expected [3]", ""]);
        let [logps, truncated] = [f32("logps", &[2]), f32("truncated_logps", &[2])];
        let [lse, entropies] = [f32("lse", &[2]), f32("entropies", &[2])];
        [hidden, ids("ids", &[2], &[]), logps, truncated, lse, entropies, ids("packed", &[0], &[])]
    };
    check("sample::forward", [80, panel(4) + 4 * 8], args(), |ctx, all| forward(ctx, 5, all));
    let ctx = Context::cpu(Isa::PORTABLE, 1);
    let mut all = args().map(|arg| arg.of(&ctx, arg.shape, arg.dtype));
    let message = refused(forward(&ctx, 0, all.each_mut()));
    assert_eq!(message, "sample::forward: the vocabulary is empty");
    assert!(forward(&ctx, 1, all.each_mut()).is_ok());
}

/// An adapter with two blocks: rank 2 for 3 of 5 columns, and rank 3 for one column.
struct Lora {
    a: Matrix,
    b: Vec<Matrix>,
    first: Vec<usize>,
    d_a: Matrix,
    d_b: Vec<Matrix>,
}

impl Lora {
    fn new(ctx: &Context) -> Lora {
        let zeros = |rows: usize, cols: usize| Matrix::zeros(ctx.memory(), rows, cols);
        let b = || vec![zeros(3, 2), zeros(1, 3)];
        Lora { a: zeros(5, 7), b: b(), first: vec![0, 4], d_a: zeros(5, 7), d_b: b() }
    }
    fn adapter(&self) -> lora::Adapter<'_> {
        lora::Adapter { a: &self.a, b: &self.b, first: &self.first, scale: 0.5 }
    }
    fn backward(&mut self, ctx: &Context, p: Option<f64>, all: [&mut Tensor; 5]) -> Result<()> {
        let [x, d_y, d_x, samples, positions] = all;
        let dropout = p.map(|p| lora::Dropout { p, key: 3, samples: samples.view(), positions: positions.view() });
        let Lora { a, b, first, d_a, d_b } = self;
        let adapter = lora::Adapter { a, b, first, scale: 0.5 };
        let (x, d_y, d_x) = (x.view(), d_y.view(), d_x.view_mut());
        lora::backward(ctx, lora::Backward { x, adapter, dropout, d_y, d_x, d_a, d_b })
    }
}

fn dropout_rows() -> [Arg; 2] {
    [ids("dropout.samples", &[2], &[1, 1]), ids("dropout.positions", &[2], &[0, 1])]
}

/// The cost of scaling 2 rows of 5 elements.
const SCALED: [usize; 2] = [10, 8 * 10];
/// The second block starts inside a panel of A, but its matmul starts at the beginning of the panel.
const WIDTHS: [usize; 2] = [2, 5];

#[test]
fn adapters_refuse_wrong_arguments_and_count_their_work() {
    const INPUTS: &str = "a has shape [5, 7], expected [5, 8]";
    for p in [None, Some(0.25)] {
        let [samples, positions] = dropout_rows();
        // Columns of y beyond the blocks are not changed.
        let args = [
            floats("x", &[2, 7]).leads().blames(&["y", INPUTS]),
            f32("y", &[2, 5]).leads().blames(&["", "-"]),
            samples,
            positions,
        ];
        let lowered = match p {
            None => matmul(2, 5, 7, panel(7)),
            Some(_) => sum(WIDTHS.map(|width| matmul(2, width, 7, 4 * width * 7))),
        };
        let counts = sum([lowered, SCALED, matmul(2, 3, 2, panel(2)), matmul(2, 1, 3, panel(3))]);
        let run = |ctx: &Context, [x, y, samples, positions]: [&mut Tensor; 4], p: Option<f64>| {
            let adapter = Lora::new(ctx);
            let dropout = p.map(|p| lora::Dropout { p, key: 3, samples: samples.view(), positions: positions.view() });
            let args = lora::Forward { x: x.view(), adapter: adapter.adapter(), dropout, y: y.view_mut() };
            lora::forward(ctx, args)
        };
        match p {
            Some(_) => check("lora::forward", counts, args, |ctx, all| run(ctx, all, p)),
            None => {
                let [x, y, ..] = args;
                check("lora::forward", counts, [x, y], |ctx, [x, y]| {
                    let [mut samples, mut positions] = [(); 2].map(|()| zeros(ctx, &[0], U32));
                    run(ctx, [x, y, &mut samples, &mut positions], p)
                });
            }
        }
    }
}

#[test]
fn adapter_gradients_refuse_wrong_arguments_and_count_their_work() {
    const INPUTS: &str = "a has shape [5, 7], expected [5, 8]";
    let args = || {
        let [samples, positions] = dropout_rows();
        [
            floats("x", &[2, 7]).leads().blames(&["d_y", INPUTS]),
            f32("d_y", &[2, 5]).leads().blames(&["", "-"]),
            f32("d_x", &[2, 7]),
            samples,
            positions,
        ]
    };
    // For each block: the gradient of xa, and the gradient of B, which is read and written.
    let block_costs = [
        matmul(2, 3, 2, panel(2)),
        matmul(2, 1, 3, panel(3)),
        matmul(2, 3, 2, 2 * panel(2)),
        matmul(2, 1, 3, 2 * panel(3)),
    ];
    // The recomputed xa, and the gradients of A (read and written) and of x.
    let dropped_cost =
        |width: usize| sum([matmul(2, width, 7, 4 * width * 7), matmul(2, width, 2 * 7, 3 * 4 * width * 7)]);
    let counts = sum([sum(block_costs), SCALED, SCALED, sum(WIDTHS.map(dropped_cost))]);
    check("lora::backward", counts, args(), |ctx, all| Lora::new(ctx).backward(ctx, Some(0.25), all));

    let ctx = Context::cpu(Isa::PORTABLE, 1);
    let with = |p: Option<f64>, change: &dyn Fn(&mut Lora)| {
        let (mut lora, mut all) = (Lora::new(&ctx), args().map(|arg| arg.of(&ctx, arg.shape, arg.dtype)));
        change(&mut lora);
        lora.backward(&ctx, p, all.each_mut())
    };
    let before = counted();
    with(None, &|_| ()).unwrap();
    let after = counted();
    let lowered = [matmul(2, 5, 7, panel(7)), matmul(2, 5, 2 * 7, 3 * panel(7))];
    let counts = sum([sum(block_costs), SCALED, SCALED, sum(lowered)]);
    assert_eq!([after.0 - before.0, after.1 - before.1], counts.map(|n| n as u64));

    let zeros = |rows: usize, cols: usize| Matrix::zeros(ctx.memory(), rows, cols);
    type Change<'a> = (&'a str, &'a dyn Fn(&mut Lora));
    let wrong: [Change<'_>; 9] = [
        ("a has shape [6, 7], expected [5, 7]", &|l| l.a = zeros(6, 7)),
        ("first has shape [1], expected [2]", &|l| l.first.truncate(1)),
        ("b (its last row) has shape [6], expected [5]", &|l| l.first[1] = 5),
        ("d_a has shape [4, 7], expected [5, 7]", &|l| l.d_a = zeros(4, 7)),
        ("d_a has shape [5, 6], expected [5, 7]", &|l| l.d_a = zeros(5, 6)),
        ("d_b has shape [1], expected [2]", &|l| l.d_b.truncate(1)),
        ("d_b has shape [1, 2], expected [1, 3]", &|l| l.d_b[1] = zeros(1, 2)),
        ("d_b has shape [2, 3], expected [1, 3]", &|l| l.d_b[1] = zeros(2, 3)),
        ("a has shape [5, 7], expected [2, 7]", &|l| l.b.truncate(1)),
    ];
    for (message, change) in wrong {
        assert_eq!(refused(with(None, change)), format!("lora::backward: {message}"));
    }
    for (p, shown) in [(1.0, "1"), (-0.5, "-0.5"), (f64::NAN, "NaN")] {
        let message = format!("lora::backward: dropout p must be in [0, 1), got {shown}");
        assert_eq!(refused(with(Some(p), &|_| ())), message);
    }
    // Without blocks or rows, no gradient changes, with or without dropout.
    let before = counted();
    for p in [None, Some(0.5)] {
        let none = |l: &mut Lora| {
            (l.a, l.d_a) = (zeros(0, 7), zeros(0, 7));
            (l.b, l.d_b, l.first) = (Vec::new(), Vec::new(), Vec::new());
        };
        with(p, &none).unwrap();
        let mut empty = args().map(|arg| arg.of(&ctx, &[&[0][..], &arg.shape[1..]].concat(), arg.dtype));
        Lora::new(&ctx).backward(&ctx, p, empty.each_mut()).unwrap();
    }
    assert_eq!(counted(), before);
}
