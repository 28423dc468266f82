//! Operations that process rows or whole tensors.

use super::*;
use crate::Matrix;
use crate::ops::{adamw, embedding, glu, grad_norm, lerp, qk_norm, residual, rmsnorm, rope, rows, softmax, zero};

#[test]
fn row_gathers_refuse_wrong_arguments_and_count_their_work() {
    let args = [
        floats("x", &[4, 3]).leads().blames(&["-", "out"]),
        ids("rows", &[2], &[3, 1]).blames(&["out"]),
        f32("out", &[2, 3]),
    ];
    // Each chosen element is read and written once.
    check("rows::gather", [0, 8 * 6], args, |ctx, [x, rows, out]| {
        rows::gather(ctx, rows::Gather { x: x.view(), rows: rows.view(), out: out.view_mut() })
    });
    let args = [
        f32("d_out", &[2, 3]),
        ids("rows", &[2], &[3, 1]).blames(&["d_out"]),
        f32("d_x", &[4, 3]).leads().blames(&["-", "d_out"]),
    ];
    check("rows::scatter_add", [6, 12 * 6], args, |ctx, [d_out, rows, d_x]| {
        rows::scatter_add(ctx, rows::ScatterAdd { d_out: d_out.view(), rows: rows.view(), d_x: d_x.view_mut() })
    });
    let ctx = Context::cpu(Isa::PORTABLE, 1);
    let (d_out, mut d_x) = (zeros(&ctx, &[3, 2], F32), zeros(&ctx, &[4, 2], F32));
    let rows = Tensor::from_u32(ctx.memory(), &[3], &[3, 4, 9]);
    let args = rows::ScatterAdd { d_out: d_out.view(), rows: rows.view(), d_x: d_x.view_mut() };
    let message = refused(rows::scatter_add(&ctx, args));
    assert_eq!(
        message, "rows::scatter_add: rows[1] is 4, expected below 4",
        "the error names the first of two wrong indices"
    );
    // bf16 rows take half as many bytes, and the output is bf16.
    let (x, mut out) = (zeros(&ctx, &[10, 3], Bf16), zeros(&ctx, &[3, 3], Bf16));
    let before = counted();
    rows::gather(&ctx, rows::Gather { x: x.view(), rows: rows.view(), out: out.view_mut() }).unwrap();
    assert_eq!(counted().1 - before.1, 4 * 9);
}

#[test]
fn embeddings_refuse_wrong_arguments_and_count_their_work() {
    let args = [ids("ids", &[2], &[4, 1]).blames(&["out"]), f32("out", &[2, 3])];
    check("embedding::forward", [0, 8 * 6], args, |ctx, [ids, out]| {
        let table = Matrix::zeros(ctx.memory(), 5, 3);
        embedding::forward(ctx, embedding::Forward { ids: ids.view(), table: &table, scale: 2.0, out: out.view_mut() })
    });
    let args = [ids("ids", &[2], &[4, 1]).blames(&["d_out"]), f32("d_out", &[2, 3])];
    let backward = |ctx: &Context, ids: &Tensor, d_out: &Tensor| {
        let mut d_table = Matrix::zeros(ctx.memory(), 5, 3);
        let args = embedding::Backward { ids: ids.view(), d_out: d_out.view(), scale: 2.0, d_table: &mut d_table };
        embedding::backward(ctx, args)
    };
    check("embedding::backward", [6, 12 * 6], args, |ctx, [ids, d_out]| backward(ctx, ids, d_out));
    let ctx = Context::cpu(Isa::PORTABLE, 1);
    let ids = Tensor::from_u32(ctx.memory(), &[2], &[4, 5]);
    let message = refused(backward(&ctx, &ids, &zeros(&ctx, &[2, 3], F32)));
    assert_eq!(message, "embedding::backward: ids[1] is 5, expected below 5");
}

#[test]
fn softmax_refuses_wrong_arguments_and_counts_its_work() {
    let (first, end) = (ids("first", &[2], &[0, 1]), ids("end", &[2], &[5, 3]));
    let args = [f32("x", &[2, 5]).leads().blames(&["y", "y"]), first, end, f32("y", &[2, 5])];
    check("softmax::forward", [20 * 10, 8 * 10], args, |ctx, [x, first, end, y]| {
        let (first, end) = (first.view(), end.view());
        softmax::forward(ctx, softmax::Forward { x: x.view(), scale: 0.5, first, end, y: y.view_mut() })
    });
    let (first, end) = (ids("first", &[2], &[0, 1]), ids("end", &[2], &[5, 3]));
    let y = f32("y", &[2, 5]).leads().blames(&["d_y", "d_y"]);
    let args = [y, first, end, f32("d_y", &[2, 5]), f32("d_x", &[2, 5])];
    check("softmax::backward", [5 * 10, 12 * 10], args, |ctx, [y, first, end, d_y, d_x]| {
        let (y, first, end, d_y) = (y.view(), first.view(), end.view(), d_y.view());
        softmax::backward(ctx, softmax::Backward { y, scale: 0.5, first, end, d_y, d_x: d_x.view_mut() })
    });
    let ctx = Context::cpu(Isa::PORTABLE, 1);
    let (y, mut d_x) = (zeros(&ctx, &[1, 2], F32), zeros(&ctx, &[1, 2], F32));
    let end = Tensor::from_u32(ctx.memory(), &[1], &[3]);
    let (y, first) = (y.view(), end.view());
    let args = softmax::Backward { y, scale: 1.0, first, end: end.view(), d_y: y, d_x: d_x.view_mut() };
    assert_eq!(refused(softmax::backward(&ctx, args)), "softmax::backward: end[0] is 3, expected below 3");
}

#[test]
fn rope_refuses_wrong_arguments_and_counts_its_work() {
    let table = |ctx: &Context| rope::Table::new(ctx.memory(), &[1.0, 0.5], 1.0, 7);
    const WIDER: &str = "shapes do not fit: 2 heads of 4 in rows of 13 with a table of 2 angles";
    type Rotate = fn(&Context, rope::Rotate<'_>) -> Result<()>;
    // There are 2 · 2 · 2 pairs, with 6 operations and 16 bytes each.
    for (op, rotate) in [("rope::forward", rope::forward as Rotate), ("rope::backward", rope::backward)] {
        let args = [f32("x", &[2, 12]).leads().blames(&["positions", WIDER]), ids("positions", &[2], &[6, 3])];
        check(op, [6 * 8, 16 * 8], args, |ctx, [x, positions]| {
            let (x, positions) = (x.view_mut(), positions.view());
            rotate(ctx, rope::Rotate { x, heads: 2, head_dim: 4, positions, table: &table(ctx) })
        });
    }
    let x = f32("x", &[2, 12]).leads().blames(&["positions", WIDER]);
    let args = [x, floats("y", &[2, 12]), ids("positions", &[2], &[6, 3])];
    check("rope::forward_into", [6 * 8, 16 * 8], args, |ctx, [x, y, positions]| {
        let (x, y, positions) = (x.view(), y.view_mut(), positions.view());
        rope::forward_into(ctx, rope::RotateInto { x, y, heads: 2, head_dim: 4, positions, table: &table(ctx) })
    });
    let ctx = Context::cpu(Isa::PORTABLE, 1);
    let (mut x, positions) = (zeros(&ctx, &[1, 12], F32), Tensor::from_u32(ctx.memory(), &[1], &[0]));
    let mut with = |heads: usize, head_dim: usize, position: u32| {
        let positions = if position == 0 { &positions } else { &Tensor::from_u32(ctx.memory(), &[1], &[position]) };
        let (x, positions) = (x.view_mut(), positions.view());
        rope::backward(&ctx, rope::Rotate { x, heads, head_dim, positions, table: &table(&ctx) })
    };
    assert!(with(3, 4, 6).is_ok(), "all heads of a row and the last position are valid");
    assert_eq!(refused(with(3, 4, 7)), "rope::backward: positions[0] is 7, expected below 7");
    assert_eq!(
        refused(with(4, 4, 0)),
        "rope::backward: shapes do not fit: 4 heads of 4 in rows of 12 with a table of 2 angles",
        "more heads than a row has"
    );
    let wrong = "rope::backward: shapes do not fit: 2 heads of 6 in rows of 12 with a table of 2 angles";
    assert_eq!(refused(with(2, 6, 0)), wrong);
}

#[test]
fn gated_units_refuse_wrong_arguments_and_count_their_work() {
    let activation = glu::Activation::Silu;
    let args = [f32("gate_up", &[2, 6]), f32("kept", &[2, 6]), floats("y", &[2, 3]).leads().blames(&["kept", "kept"])];
    check("glu::forward", [20 * 6, 12 * 6], args, |ctx, [gate_up, kept, y]| {
        let (gate_up, kept) = (gate_up.view(), Some(kept.view_mut()));
        glu::forward(ctx, glu::Forward { activation, gate_up, kept, y: y.view_mut() })
    });
    let d_y = f32("d_y", &[2, 3]).leads().blames(&["gate_up", "gate_up"]);
    let args = [floats("gate_up", &[2, 6]), d_y, f32("d_gate_up", &[2, 6]), f32("y", &[2, 3])];
    check("glu::backward", [25 * 6, 20 * 6], args, |ctx, [gate_up, d_y, d_gate_up, y]| {
        let (gate_up, d_y, d_gate_up) = (gate_up.view(), d_y.view(), d_gate_up.view_mut());
        glu::backward(ctx, glu::Backward { activation, gate_up, rows: None, d_y, d_gate_up, y: Some(y.view_mut()) })
    });
    // The work is a matmul of [2, 4] by [4, 64], which reads 64 · 4 weights, and the gates.
    let args = [
        floats("x", &[2, 4]),
        f32("bias", &[64]),
        f32("kept", &[2, 64]),
        f32("y", &[2, 32]).leads().blames(&["x", "kept"]),
    ];
    let fused = |ctx: &Context, rows: usize, [x, bias, kept, y]: [&mut Tensor; 4]| {
        let (w, x, y) = (Matrix::zeros(ctx.memory(), rows, 4), x.view(), y.view_mut());
        let (bias, kept) = (Some(bias.view()), Some(kept.view_mut()));
        glu::fused(ctx, glu::Fused { activation, x, w: &w, bias, kept, y })
    };
    let counts = [2 * 2 * 64 * 4 + 20 * 64, 4 * (64 * 4 + 2 * (64 + 4))];
    check("glu::fused", counts, args, |ctx, all| fused(ctx, 64, all));

    let ctx = Context::cpu(Isa::PORTABLE, 1);
    let mut all = [&[2, 4][..], &[64], &[2, 64], &[2, 32]].map(|shape| zeros(&ctx, shape, F32));
    let message = "glu::fused: the weight has 128 rows, but 32 outputs need twice as many, in whole panels of 32";
    assert_eq!(refused(fused(&ctx, 128, all.each_mut())), message);
    // If `y` is bf16, gate and up and their gradients may be f32 or bf16, but no other dtype.
    let (words, mut y) = (zeros(&ctx, &[2, 6], U32), zeros(&ctx, &[2, 3], Bf16));
    let args = glu::Forward { activation, gate_up: words.view(), kept: None, y: y.view_mut() };
    assert_eq!(refused(glu::forward(&ctx, args)), "glu::forward: gate_up is U32, expected F32");
    let (narrow, d_y, mut words) = (zeros(&ctx, &[2, 6], Bf16), zeros(&ctx, &[2, 3], F32), zeros(&ctx, &[2, 6], U32));
    let (gate_up, d_y) = (narrow.view(), d_y.view());
    let args = glu::Backward { activation, gate_up, rows: None, d_y, d_gate_up: words.view_mut(), y: None };
    assert_eq!(refused(glu::backward(&ctx, args)), "glu::backward: d_gate_up is U32, expected F32");
    let (mut d, mut wide) = (zeros(&ctx, &[2, 6], F32), zeros(&ctx, &[2, 3], F32));
    let args =
        glu::Backward { activation, gate_up, rows: None, d_y, d_gate_up: d.view_mut(), y: Some(wide.view_mut()) };
    assert_eq!(refused(glu::backward(&ctx, args)), "glu::backward: y is F32, expected Bf16");
}

#[test]
fn norms_refuse_wrong_arguments_and_count_their_work() {
    let args = [
        f32("x", &[2, 3]).leads().blames(&["y", "weight"]),
        f32("delta", &[2, 3]),
        f32("sum", &[2, 3]),
        f32("weight", &[3]),
        floats("y", &[2, 3]),
        f32("rstd", &[2]),
    ];
    check("rmsnorm::forward", [4 * 6, 8 * 6], args, |ctx, [x, delta, sum, weight, y, rstd]| {
        let (x, delta, sum, weight) = (x.view(), Some(delta.view()), Some(sum.view_mut()), weight.view());
        let (y, rstd) = (y.view_mut(), rstd.view_mut());
        rmsnorm::forward(ctx, rmsnorm::Forward { x, delta, sum, weight, offset: 0.0, eps: 1e-6, y, rstd })
    });
    let x = f32("x", &[2, 3]).leads().blames(&["rstd", "weight"]);
    let args = [x, f32("weight", &[3]), f32("rstd", &[2]), floats("y", &[2, 3])];
    check("rmsnorm::recompute", [2 * 6, 8 * 6], args, |ctx, [x, weight, rstd, y]| {
        let (x, weight, rstd, y) = (x.view(), weight.view(), rstd.view(), y.view_mut());
        rmsnorm::recompute(ctx, rmsnorm::Recompute { x, weight, offset: 0.0, rstd, y })
    });
    let args = [
        f32("x", &[2, 3]).leads().blames(&["rstd", "weight"]),
        f32("weight", &[3]),
        f32("rstd", &[2]),
        f32("d_y", &[2, 3]),
        f32("d_x", &[2, 3]),
        f32("d_weight", &[3]),
        ids("segments", &[2], &[0, 2]).blames(&["segments must ascend from 0 to 2"]),
    ];
    check("rmsnorm::backward", [10 * 6, 16 * 6], args, |ctx, [x, weight, rstd, d_y, d_x, d_weight, segments]| {
        let (x, weight, rstd, d_y, d_x) = (x.view(), weight.view(), rstd.view(), d_y.view(), d_x.view_mut());
        let (d_weight, segments) = (Some(d_weight.view_mut()), Some(segments.view()));
        rmsnorm::backward(ctx, rmsnorm::Backward { x, weight, offset: 0.0, rstd, d_y, d_x, d_weight, segments })
    });
    let ctx = Context::cpu(Isa::PORTABLE, 1);
    let (x, weight) = (zeros(&ctx, &[2, 3], F32), zeros(&ctx, &[3], F32));
    let (mut sum, mut y, mut rstd) = (zeros(&ctx, &[2, 3], F32), zeros(&ctx, &[2, 3], F32), zeros(&ctx, &[2], F32));
    for with_sum in [false, true] {
        let (delta, sum) = ((!with_sum).then(|| x.view()), with_sum.then(|| sum.view_mut()));
        let (x, weight, y, rstd) = (x.view(), weight.view(), y.view_mut(), rstd.view_mut());
        let args = rmsnorm::Forward { x, delta, sum, weight, offset: 0.0, eps: 1e-6, y, rstd };
        assert_eq!(refused(rmsnorm::forward(&ctx, args)), "rmsnorm::forward: sum and delta must be given together");
    }
}

#[test]
fn residual_additions_refuse_wrong_arguments_and_count_their_work() {
    let x = f32("x", &[2, 3]).leads().blames(&["y", "y"]);
    let args = [x, f32("delta", &[2, 3]), f32("sum", &[2, 3]), floats("y", &[2, 3])];
    check("residual::forward", [6, 8 * 6], args, |ctx, [x, delta, sum, y]| {
        let (x, delta, sum) = (x.view(), Some(delta.view()), Some(sum.view_mut()));
        residual::forward(ctx, residual::Forward { x, delta, sum, y: y.view_mut() })
    });
    let args = [f32("d_y", &[2, 3]).leads().blames(&["d_x", "d_x"]), f32("d_x", &[2, 3])];
    check("residual::backward", [6, 12 * 6], args, |ctx, [d_y, d_x]| {
        residual::backward(ctx, residual::Backward { d_y: d_y.view(), d_x: d_x.view_mut() })
    });
    let ctx = Context::cpu(Isa::PORTABLE, 1);
    let [x, mut sum, mut y] = [(); 3].map(|()| zeros(&ctx, &[2, 3], F32));
    for with_sum in [false, true] {
        let (delta, sum) = ((!with_sum).then(|| x.view()), with_sum.then(|| sum.view_mut()));
        let message = refused(residual::forward(&ctx, residual::Forward { x: x.view(), delta, sum, y: y.view_mut() }));
        assert_eq!(message, "residual::forward: sum and delta must be given together");
    }
}

/// The rows have two query heads, a key head and a value head, of 3 elements each.
#[test]
fn qk_norms_refuse_wrong_arguments_and_count_their_work() {
    // A weight that is not as long as a head must be as long as all heads together.
    const WHOLE: &str = "q_weight has shape [4], expected [6]";
    let (heads, kv_heads, head_dim, offset) = (2, 1, 3, 0.0);
    let args = || {
        let q_weight = Arg { deepens: false, ..f32("q_weight", &[3]) };
        [f32("x", &[2, 12]).leads(), q_weight.blames(&[WHOLE]), f32("k_weight", &[3])]
    };
    let [x, q, k] = args();
    let args_of = [x.blames(&["y", ""]), q, k, f32("y", &[2, 12]), f32("rstd", &[2, 3])];
    check("qk_norm::forward", [4 * 2 * 9, 8 * 2 * 12], args_of, |ctx, [x, q, k, y, rstd]| {
        let (x, q_weight, k_weight, y, rstd) = (x.view(), q.view(), k.view(), y.view_mut(), rstd.view_mut());
        let args = qk_norm::Forward { x, heads, kv_heads, head_dim, q_weight, k_weight, offset, eps: 1e-6, y, rstd };
        qk_norm::forward(ctx, args)
    });
    let [x, q, k] = args();
    let args = [
        x.blames(&["rstd", ""]),
        q,
        k,
        f32("rstd", &[2, 3]),
        f32("d_y", &[2, 12]),
        f32("d_x", &[2, 12]),
        f32("d_q_weight", &[3]),
        f32("d_k_weight", &[3]),
        ids("segments", &[2], &[0, 2]).blames(&["segments must ascend from 0 to 2"]),
    ];
    check("qk_norm::backward", [10 * 2 * 9, 12 * 2 * 12], args, |ctx, [x, q, k, rstd, d_y, d_x, d_q, d_k, s]| {
        let (x, q_weight, k_weight, rstd) = (x.view(), q.view(), k.view(), rstd.view());
        let (d_y, d_x, d_weights) = (d_y.view(), d_x.view_mut(), Some((d_q.view_mut(), d_k.view_mut())));
        let segments = Some(s.view());
        let args = qk_norm::Backward {
            x,
            heads,
            kv_heads,
            head_dim,
            q_weight,
            k_weight,
            offset,
            rstd,
            d_y,
            d_x,
            d_weights,
            segments,
        };
        qk_norm::backward(ctx, args)
    });
}

#[test]
fn whole_tensor_operations_refuse_wrong_arguments_and_count_their_work() {
    let ctx = Context::cpu(Isa::PORTABLE, 1);
    let of = |shape: &[usize], dtype: DType| zeros(&ctx, shape, dtype);
    let counts = |run: &mut dyn FnMut()| {
        let before = counted();
        run();
        let after = counted();
        [after.0 - before.0, after.1 - before.1]
    };

    let norm = |grads: &[&Tensor], mut out: Tensor| {
        grad_norm::global(&ctx, &grads.iter().map(|g| g.view()).collect::<Vec<_>>(), out.view_mut())
    };
    let (a, b) = (of(&[2, 3], F32), of(&[5], F32));
    assert_eq!(counts(&mut || norm(&[&a, &b], of(&[2], F32)).unwrap()), [2 * 11, 4 * 11]);
    let message = refused(norm(&[&a], of(&[3], F32)));
    assert_eq!(message, "grad_norm::global: out has shape [3], expected [2]");
    assert_eq!(refused(norm(&[&a], of(&[2], U32))), "grad_norm::global: out is U32, expected F32");
    let message = refused(norm(&[&a, &of(&[5], Bf16)], of(&[2], F32)));
    assert_eq!(message, "grad_norm::global: a gradient is Bf16, expected F32");

    let blend =
        |mut y: Tensor, x: Tensor, alpha: f64| lerp::lerp(&ctx, lerp::Lerp { y: y.view_mut(), x: x.view(), alpha });
    // Only the lengths of the tensors must agree, not their shapes.
    assert_eq!(counts(&mut || blend(of(&[2, 3], F32), of(&[6], F32), 0.5).unwrap()), [3 * 6, 12 * 6]);
    let refusals = [
        (blend(of(&[6], F32), of(&[7], F32), 0.5), "lerp: x has shape [7], expected [6]"),
        (blend(of(&[6], Bf16), of(&[6], F32), 0.5), "lerp: y is Bf16, expected F32"),
        (blend(of(&[6], F32), of(&[6], U32), 0.5), "lerp: x is U32, expected F32"),
        (blend(of(&[6], F32), of(&[6], F32), -0.25), "lerp: alpha must be in 0 ..= 1, got -0.25"),
        (blend(of(&[6], F32), of(&[6], F32), f64::NAN), "lerp: alpha must be in 0 ..= 1, got NaN"),
    ];
    for (result, message) in refusals {
        assert_eq!(refused(result), message);
    }

    let mut x = of(&[3, 5], F32);
    assert_eq!(counts(&mut || zero(&ctx, x.view_mut())), [0, 4 * 15]);
}

/// The operation and its arguments: param, from, rounded, grad, m, v, norm.
fn adamw_with(t: [Tensor; 7], step: u64, max_norm: f32) -> Result<()> {
    let ctx = Context::cpu(Isa::PORTABLE, 1);
    let [mut param, from, mut rounded, grad, mut m, mut v, norm] = t;
    let hyper = adamw::Hyper { lr: 0.1, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.0, step };
    let args = adamw::Step {
        param: param.view_mut(),
        from: Some(from.view()),
        rounded: Some(rounded.view_mut()),
        grad: grad.view(),
        m: m.view_mut(),
        v: v.view_mut(),
        hyper,
        norm: norm.view(),
        max_norm,
        rounding: adamw::Rounding::default(),
    };
    adamw::step(&ctx, args)
}

#[test]
fn adamw_refuses_wrong_arguments_and_counts_its_work() {
    const NAMES: [&str; 7] = ["param", "from", "rounded", "grad", "m", "v", "norm"];
    let ctx = Context::cpu(Isa::PORTABLE, 1);
    let right = || [&[6][..], &[2, 3], &[6], &[3, 2], &[6], &[6], &[2]].map(|shape| zeros(&ctx, shape, F32));
    let before = counted();
    adamw_with(right(), 1, 0.0).unwrap();
    let after = counted();
    assert_eq!([after.0 - before.0, after.1 - before.1], [15 * 6, (3 * 4 + 4 * 4) * 6]);
    for (i, name) in NAMES.into_iter().enumerate() {
        let with = |shape: &[usize], dtype: DType| {
            let mut all = right();
            all[i] = zeros(&ctx, shape, dtype);
            refused(adamw_with(all, 1, 0.0))
        };
        let shape: &[usize] = if name == "norm" { &[2] } else { &[6] };
        assert_eq!(with(shape, U32), format!("adamw::step: {name} is U32, expected F32"));
        if !["m", "rounded"].contains(&name) {
            assert_eq!(with(shape, Bf16), format!("adamw::step: {} is Bf16, expected F32", name));
        }
        let (longer, blamed) = match name {
            "norm" => ([3], "norm has shape [3], expected [2]".to_owned()),
            // With a wrong parameter, the error names the gradient.
            "param" => ([7], "grad has shape [6], expected [7]".to_owned()),
            _ => ([7], format!("{name} has shape [7], expected [6]")),
        };
        assert_eq!(with(&longer, F32), format!("adamw::step: {blamed}"));
    }
    // bf16 moments take half as many bytes. Both moments must have the same dtype.
    let mut narrow = right();
    (narrow[4], narrow[5]) = (zeros(&ctx, &[6], Bf16), zeros(&ctx, &[6], Bf16));
    let before = counted();
    adamw_with(narrow, 1, 0.0).unwrap();
    assert_eq!(counted().1 - before.1, (3 * 4 + 4 * 2) * 6);
    let mut mixed = right();
    mixed[4] = zeros(&ctx, &[6], Bf16);
    assert_eq!(refused(adamw_with(mixed, 1, 0.0)), "adamw::step: v is F32, expected Bf16");
    // A bf16 matrix stores the inputs of 32 rows in pairs.
    let of = |len: usize| {
        let mut all = NAMES.map(|name| zeros(&ctx, &[if name == "norm" { 2 } else { len }], F32));
        all[2] = zeros(&ctx, &[len], Bf16);
        adamw_with(all, 1, 0.0)
    };
    assert!(of(64).is_ok() && of(128).is_ok());
    assert_eq!(
        refused(of(96)),
        "adamw::step: 96 elements to round to bf16 must be panels with an even number of inputs"
    );
    for (step, max_norm, shown) in [(0, 0.0, "0"), (1, -1.0, "-1"), (1, f32::NAN, "NaN")] {
        let message = format!(
            "adamw::step: step must be at least 1 and max_norm at least 0, got step {step} and max_norm {shown}"
        );
        assert_eq!(refused(adamw_with(right(), step, max_norm)), message);
    }
    assert!(adamw_with(right(), 1, f32::INFINITY).is_ok());
}
