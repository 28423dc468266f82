use super::*;
use crate::check::{directional_error, normal, relative_error};
use crate::device::cuda::tests::contexts;
use crate::ops::linear::reference as linear;
use crate::tensor::rounded_to_bf16;
use crate::{Device, Isa, Memory, Tensor};
use reference::Outputs;

/// Odd shapes `[R, H, V]`: ones, tails of panels and chunks, several tiles, several chunks, several windows, and no
/// rows.
const SHAPES: [[usize; 3]; 9] = [
    [1, 1, 1],
    [3, 5, 7],
    [2, 129, 33],
    [5, 7, 512],
    [4, 9, 513],
    [3, 20, 1700],
    [70, 3, 1031],
    [2, 2, 4200],
    [0, 4, 40],
];

struct Case {
    /// The dtype of hidden rows and weight.
    dtype: DType,
    r: usize,
    h: usize,
    v: usize,
    beta: f32,
    hidden: Vec<f32>,
    weight: Vec<f32>,
    targets: Vec<u32>,
    d_logps: Vec<f32>,
    d_entropies: Vec<f32>,
    weight0: Vec<f32>,
}

impl Case {
    fn new([r, h, v]: [usize; 3], beta: f32) -> Case {
        Case {
            dtype: DType::F32,
            r,
            h,
            v,
            beta,
            hidden: normal(1, r * h),
            weight: normal(2, v * h),
            targets: (0..r as u32).map(|r| (r * 7919 + v as u32 - 1) % v as u32).collect(),
            d_logps: normal(4, r),
            d_entropies: normal(5, r),
            weight0: normal(6, v * h),
        }
    }
    /// The same case with hidden rows and weight rounded to bf16.
    fn in_bf16(self) -> Case {
        let (hidden, weight) = (rounded_to_bf16(&self.hidden), rounded_to_bf16(&self.weight));
        Case { dtype: DType::Bf16, hidden, weight, ..self }
    }
    fn operands(&self, ctx: &Context) -> (Tensor, Matrix) {
        let mut hidden = Tensor::zeros(ctx.memory(), &[self.r, self.h], self.dtype);
        hidden.view_mut().copy_from_f32(&self.hidden);
        let mut weight = Matrix::zeros_of(ctx.memory(), self.v, self.h, self.dtype);
        weight.pack_rows(0, &self.weight);
        (hidden, weight)
    }
    fn forward(&self, ctx: &Context, rows: std::ops::Range<usize>) -> Outputs<f32> {
        let m = ctx.memory();
        let (hidden, weight) = self.operands(ctx);
        let targets = Tensor::from_u32(m, &[self.r], &self.targets);
        let poisoned = || Tensor::from_f32(m, &[rows.len()], &vec![f32::NAN; rows.len()]);
        let (mut logps, mut lse, mut entropies) = (poisoned(), poisoned(), poisoned());
        let args = Forward {
            hidden: hidden.rows(rows.clone()),
            weight: &weight,
            targets: targets.rows(rows.clone()),
            inv_temperature: self.beta,
            logps: logps.view_mut(),
            lse: lse.view_mut(),
            entropies: Some(entropies.view_mut()),
        };
        forward(ctx, args).unwrap();
        Outputs { logps: logps.to_vec_f32(), lse: lse.to_vec_f32(), entropies: entropies.to_vec_f32() }
    }
    /// Computes `d_hidden` and `d_weight` in two calls, with the rows split at `cut`.
    fn backward(&self, ctx: &Context, cut: usize, spoil: impl Fn(&mut Vec<f32>)) -> (Vec<f32>, Vec<f32>) {
        self.backward_of(ctx, cut, &[], spoil)
    }
    /// Like `backward`, with segments that also begin at the rows `starts`.
    fn backward_of(
        &self,
        ctx: &Context,
        cut: usize,
        starts: &[usize],
        spoil: impl Fn(&mut Vec<f32>),
    ) -> (Vec<f32>, Vec<f32>) {
        let m = ctx.memory();
        let out = self.forward(ctx, 0..self.r);
        let vector = |data: &[f32]| Tensor::from_f32(m, &[data.len()], data);
        let mut spoiled = out.lse.clone();
        spoil(&mut spoiled);
        let (lse, entropies) = (vector(&spoiled), vector(&out.entropies));
        let (d_logps, d_entropies) = (vector(&self.d_logps), vector(&self.d_entropies));
        let (hidden, weight) = self.operands(ctx);
        let targets = Tensor::from_u32(m, &[self.r], &self.targets);
        let mut d_hidden = Tensor::from_f32(m, &[self.r, self.h], &vec![f32::NAN; self.r * self.h]);
        let mut d_weight = Matrix::from_f32(m, self.v, self.h, &self.weight0);
        for rows in [0..cut, cut..self.r] {
            let inside = starts.iter().filter(|s| rows.contains(s) && **s > rows.start);
            let mut segments: Vec<u32> = inside.map(|s| (s - rows.start) as u32).collect();
            segments.insert(0, 0);
            segments.push(rows.len() as u32);
            let segments = Tensor::from_u32(m, &[segments.len()], &segments);
            let args = Backward {
                hidden: hidden.rows(rows.clone()),
                weight: &weight,
                targets: targets.rows(rows.clone()),
                inv_temperature: self.beta,
                lse: lse.rows(rows.clone()),
                d_logps: d_logps.rows(rows.clone()),
                d_entropies: Some(d_entropies.rows(rows.clone())),
                entropies: Some(entropies.rows(rows.clone())),
                d_hidden: d_hidden.rows_mut(rows.clone()),
                d_weight: Some(&mut d_weight),
                segments: Some(segments.view()),
            };
            backward(ctx, args).unwrap();
        }
        (d_hidden.to_vec_f32(), d_weight.unpack_rows(0..self.v))
    }
    fn oracle_backward(&self) -> (Vec<f64>, Vec<f64>) {
        let (d_hidden, mut d_weight) = reference::backward(
            self.h,
            &f64s(&self.hidden),
            &f64s(&self.weight),
            &self.targets,
            self.beta.into(),
            &f64s(&self.d_logps),
            &f64s(&self.d_entropies),
        );
        d_weight.iter_mut().zip(&self.weight0).for_each(|(d, &start)| *d += f64::from(start));
        (d_hidden, d_weight)
    }
}

fn memory() -> Memory {
    Memory::new(Device::Cpu)
}

fn f64s(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| x.into()).collect()
}

#[test]
fn forward_matches_the_formula_bit_for_bit() {
    for shape in SHAPES {
        for beta in [1.0, 1.0 / 0.7] {
            let case = Case::new(shape, beta);
            let formula =
                reference::emulated(case.h, &case.hidden, &case.weight, &case.targets, beta, CHUNK, reference::chain);
            for isa in Isa::present() {
                assert_eq!(case.forward(&Context::cpu(isa, 1), 0..case.r), formula, "{isa:?} {shape:?}");
            }
        }
    }
}

/// Contexts with tiles: emulated, and with instructions if the machine has them.
fn on_tiles() -> impl Iterator<Item = Context> {
    let isas = [Isa::AMX_EMULATED].into_iter().chain(Isa::from_name("amx"));
    isas.flat_map(|isa| [1, 2].map(|threads| Context::cpu(isa, threads)))
}

#[test]
fn forward_on_tiles_matches_the_formula_bit_for_bit() {
    for shape in [[1, 2, 1], [3, 6, 7], [2, 130, 33], [4, 10, 513], [70, 34, 1031]] {
        let case = Case::new(shape, 1.0 / 0.7).in_bf16();
        let dot = reference::dot_on_tiles;
        let formula = reference::emulated(case.h, &case.hidden, &case.weight, &case.targets, case.beta, CHUNK, dot);
        for ctx in on_tiles() {
            assert_eq!(case.forward(&ctx, 0..case.r), formula, "{:?} {shape:?}", ctx.describe());
        }
    }
}

/// The gradients of the logits `[R, V]`, which the op never stores. The first input of every row is 1, so a row by
/// itself adds the gradients of its logits to the first column of `d_weight`.
fn d_logits(ctx: &Context, case: &Case) -> Vec<f32> {
    let row = |r: usize| {
        let hidden = case.hidden[r * case.h..][..case.h].to_vec();
        assert_eq!(hidden[0], 1.0);
        let (targets, weight, weight0) = (vec![case.targets[r]], case.weight.clone(), vec![0.0; case.v * case.h]);
        let (d_logps, d_entropies) = (vec![case.d_logps[r]], vec![case.d_entropies[r]]);
        let alone = Case { r: 1, hidden, targets, weight, weight0, d_logps, d_entropies, ..*case };
        alone.backward(ctx, 0, |_| {}).1.into_iter().step_by(case.h)
    };
    (0..case.r).flat_map(row).collect()
}

/// In bf16, only the gradients of the logits are rounded, before they are multiplied.
#[test]
fn backward_in_bf16_matches_the_formula_bit_for_bit() {
    let case = |dtype: DType| {
        let mut case = Case { dtype, ..Case::new([7, 40, 1100], 1.25).in_bf16() };
        case.hidden.iter_mut().step_by(40).for_each(|x| *x = 1.0);
        case
    };
    let (narrow, wide) = (case(DType::Bf16), case(DType::F32));
    let chains = Isa::present().into_iter().filter(|isa| !isa.has_tiles()).chain([Isa::DOTS_EMULATED]);
    for ctx in chains.map(|isa| Context::cpu(isa, 2)) {
        let d_z = rounded_to_bf16(&d_logits(&ctx, &wide));
        let d_hidden = linear::backward_input(40, &d_z, &wide.weight, None);
        let mut d_weight = wide.weight0.clone();
        linear::backward_weight(40, &wide.hidden, &d_z, &mut d_weight);
        assert!(narrow.backward(&ctx, 0, |_| {}) == (d_hidden, d_weight), "{:?}", ctx.describe());
        assert!(narrow.backward(&ctx, 0, |_| {}) != wide.backward(&ctx, 0, |_| {}), "{:?}", ctx.describe());
    }
    for ctx in on_tiles() {
        let d_z = d_logits(&ctx, &narrow);
        let d_hidden = linear::backward_input_on_tiles(40, &d_z, &wide.weight, None);
        let mut d_weight = wide.weight0.clone();
        linear::backward_weight_on_tiles(40, &wide.hidden, &d_z, &mut d_weight, &[0, 7]);
        assert!(narrow.backward(&ctx, 0, |_| {}) == (d_hidden, d_weight), "{:?}", ctx.describe());
    }
}

/// Tiles multiply rows in steps of 32 from the start of each segment. So splitting a batch between segments, or inside
/// the op, must not change a bit.
#[test]
fn a_cut_between_segments_changes_no_bit_on_tiles() {
    let case = Case::new([290, 6, 70], 1.3).in_bf16();
    let starts = [1, 40, 75, 200];
    let (d_hidden, d_weight) = case.oracle_backward();
    for ctx in on_tiles() {
        let whole = case.backward_of(&ctx, 0, &starts, |_| {});
        // The bounds are wide, because the gradients of the logits are rounded.
        assert!(relative_error(&whole.0, &d_hidden) < 4e-3 && relative_error(&whole.1, &d_weight) < 4e-3);
        for cut in starts {
            assert_eq!(case.backward_of(&ctx, cut, &starts, |_| {}), whole, "cut at {cut}");
        }
        assert!(
            case.backward_of(&ctx, 0, &[1, 40, 75], |_| {}).1 != whole.1,
            "different segments must give different bits"
        );
    }
}

#[test]
fn forward_is_near_the_f64_oracle() {
    for shape in SHAPES {
        let case = Case::new(shape, 0.8);
        let fast = case.forward(&Context::cpu(Isa::best(), 1), 0..case.r);
        let exact =
            reference::forward(case.h, &f64s(&case.hidden), &f64s(&case.weight), &case.targets, case.beta.into());
        for (fast, exact) in [(&fast.logps, &exact.logps), (&fast.lse, &exact.lse), (&fast.entropies, &exact.entropies)]
        {
            for (fast, exact) in fast.iter().zip(exact) {
                assert!((f64::from(*fast) - exact).abs() < 2e-5, "{shape:?}: {fast} {exact}");
            }
        }
    }
}

/// The bits must not depend on the threads, on the other rows, or on where a batch is split.
#[test]
fn bits_do_not_depend_on_threads_or_batch() {
    for shape in [[70, 20, 1031], [300, 3, 600]] {
        let case = Case::new(shape, 1.3);
        let one = Context::cpu(Isa::best(), 1);
        let (forward, backward) = (case.forward(&one, 0..case.r), case.backward(&one, 0, |_| {}));
        for threads in [2, 3] {
            let ctx = Context::cpu(Isa::best(), threads);
            assert_eq!(case.forward(&ctx, 0..case.r), forward);
            assert_eq!(case.backward(&ctx, 0, |_| {}), backward);
        }
        for row in [0, 1, 63, 64, 69] {
            assert_eq!(case.forward(&one, row..row + 1).logps, forward.logps[row..row + 1], "row {row} alone");
        }
        for cut in [1, 33, 65] {
            assert_eq!(case.backward(&one, cut, |_| {}), backward, "cut at {cut}");
        }
    }
}

#[test]
fn the_oracles_gradients_match_finite_differences() {
    for [r, h, v] in [[1, 1, 1], [3, 5, 7], [2, 3, 9]] {
        let (hidden, weight): (Vec<f64>, Vec<f64>) = (normal(1, r * h), normal(2, v * h));
        let (d_logps, d_entropies): (Vec<f64>, Vec<f64>) = (normal(3, r), normal(4, r));
        let targets: Vec<u32> = (0..r).map(|r| (r * 5 % v) as u32).collect();
        let beta = 1.0 / 0.7;
        let loss = |all: &[f64]| {
            let (hidden, weight) = all.split_at(r * h);
            let out = reference::forward(h, hidden, weight, &targets, beta);
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            dot(&out.logps, &d_logps) + dot(&out.entropies, &d_entropies)
        };
        let (d_hidden, d_weight) = reference::backward(h, &hidden, &weight, &targets, beta, &d_logps, &d_entropies);
        let (all, gradient) = ([hidden, weight].concat(), [d_hidden, d_weight].concat());
        if v == 1 {
            // With a vocabulary of one token, all gradients are 0.
            assert!(gradient.iter().all(|g| g.abs() < 1e-12));
            continue;
        }
        assert!(directional_error(&all, &gradient, loss) < 1e-7);
        // The check must detect an error of 1 % in one element.
        for spoiled in [0, r * h] {
            let mut g = gradient.clone();
            g[spoiled] = g[spoiled] * 1.01 + 1e-3;
            assert!(directional_error(&all, &g, loss) > 1e-6, "a wrong element {spoiled} passes");
        }
    }
}

#[test]
fn backward_is_near_the_f64_oracle_and_a_wrong_gradient_is_not() {
    for shape in SHAPES {
        let case = Case::new(shape, 0.9);
        let (d_hidden, d_weight) = case.oracle_backward();
        for ctx in contexts(&[1]) {
            let (fast_hidden, fast_weight) = case.backward(&ctx, 0, |_| {});
            if case.v > 1 {
                assert!(relative_error(&fast_hidden, &d_hidden) < 1e-5, "{} {shape:?}", ctx.describe());
            }
            assert!(relative_error(&fast_weight, &d_weight) < 1e-5, "{} {shape:?}", ctx.describe());
        }
    }
    // A wrong log-sum-exp, as if a chunk had not been counted, must be detected.
    let case = Case::new([3, 20, 1700], 0.9);
    let (d_hidden, d_weight) = case.oracle_backward();
    let spoiled = case.backward(&Context::cpu(Isa::best(), 1), 0, |lse| lse.iter_mut().for_each(|lse| *lse -= 0.3));
    assert!(relative_error(&spoiled.0, &d_hidden) > 1e-2);
    assert!(relative_error(&spoiled.1, &d_weight) > 1e-4);
}

#[test]
fn a_nan_in_a_hidden_row_affects_only_that_row() {
    let mut case = Case::new([3, 4, 600], 1.0);
    case.hidden[4] = f32::NAN;
    for isa in Isa::present() {
        let out = case.forward(&Context::cpu(isa, 1), 0..3);
        for outputs in [&out.logps, &out.lse, &out.entropies] {
            assert_eq!(outputs.iter().map(|x| x.is_nan()).collect::<Vec<_>>(), [false, true, false]);
        }
    }
}

#[test]
fn the_error_names_a_wrong_lm_head_argument() {
    let ctx = Context::cpu(Isa::PORTABLE, 1);
    let m = memory();
    let (hidden, weight) = (Tensor::zeros(&m, &[2, 4], DType::F32), Matrix::zeros(&m, 5, 4));
    let targets = Tensor::from_u32(&m, &[2], &[0, 5]);
    let (mut logps, mut lse) = (Tensor::zeros(&m, &[2], DType::F32), Tensor::zeros(&m, &[2], DType::F32));
    let args = Forward {
        hidden: hidden.view(),
        weight: &weight,
        targets: targets.view(),
        inv_temperature: 1.0,
        logps: logps.view_mut(),
        lse: lse.view_mut(),
        entropies: None,
    };
    let message = forward(&ctx, args).unwrap_err().to_string();
    assert_eq!(message, "lm_head::forward: targets[1] is 5, expected below 5");
}

#[test]
fn whole_rows_of_logits_give_the_log_probabilities_of_forward() {
    for ctx in contexts(&[2]) {
        for shape in SHAPES {
            let cases = [Case::new(shape, 0.8), Case::new(shape, 0.8).in_bf16()];
            // bf16 requires an even number of inputs, and this op has no bf16 on CUDA yet.
            let in_bf16 = ctx.memory().device() == Device::Cpu && shape[1].is_multiple_of(2);
            let computed = if in_bf16 { 2 } else { 1 };
            for case in &cases[..computed] {
                let (hidden, weight) = case.operands(&ctx);
                let mut z = Tensor::from_f32(ctx.memory(), &[case.r, case.v], &vec![f32::NAN; case.r * case.v]);
                let mut lse = Tensor::from_f32(ctx.memory(), &[case.r], &vec![f32::NAN; case.r]);
                let args = Logits {
                    hidden: hidden.view(),
                    weight: &weight,
                    inv_temperature: case.beta,
                    logits: z.view_mut(),
                    lse: lse.view_mut(),
                };
                logits(&ctx, args).unwrap();
                let (z, lse, forward) = (z.to_vec_f32(), lse.to_vec_f32(), case.forward(&ctx, 0..case.r));
                let target_logp = |r: usize| z[r * case.v + case.targets[r] as usize] - lse[r];
                assert_eq!((0..case.r).map(target_logp).collect::<Vec<_>>(), forward.logps, "{shape:?}");
                assert_eq!(lse, forward.lse, "{shape:?}");
            }
        }
    }
}
