//! Dropout on the inputs of adapters in a complete model: comparison with PEFT in f64
//! (`conformance/dropout_fixtures.py`), and settings that must not change a bit.

use super::fixtures::{Expected, GRADIENT, LOGITS};
use super::gradients::{batch, groups};
use super::lora::{PEFT, adapted, lora, move_along, peft_reference, some, whole};
use super::*;
use kernels::check::{normal, relative_error};
use model::TargetModules;
use model::weights::Named;

const DROPOUT: Option<(f64, u64, u64)> = Some((0.2, 7, 3));

#[test]
fn bits_do_not_depend_on_threads_checkpointing_micro_batches_or_instruction_set() {
    let one = context(1);
    for family in FAMILIES {
        let weights = adapted(&one, family, &some());
        let (whole, weight) = whole(&weights);
        let expected = gradients_with(&one, &weights, &whole, &weight, false, DROPOUT);
        let cut: Vec<Batch> = groups(weights.config().vocab_size as u32).chunks(1).map(|g| batch(g, true)).collect();
        for isa in Isa::present() {
            let ctx = Context::cpu(isa, 2);
            for (batches, checkpointing) in [(&whole[..], false), (&cut[..], true)] {
                let got = gradients_with(&ctx, &weights, batches, &weight, checkpointing, DROPOUT);
                assert!(got.logps == expected.logps && got.hidden == expected.hidden, "{family} {isa:?}: forward");
                assert!(bits(&got.grads) == bits(&expected.grads), "{family} {isa:?}: gradients");
            }
        }
    }
}

#[test]
fn dropout_noise_depends_on_seed_and_step() {
    let ctx = context(2);
    let weights = adapted(&ctx, "qwen2", &lora(TargetModules::AllLinear));
    let (whole, weight) = whole(&weights);
    let of = |dropout| gradients_with(&ctx, &weights, &whole, &weight, false, dropout).logps;
    let plain = of(None);
    assert!(plain == gradients(&ctx, &weights, &whole, &weight, false).logps);
    let all: Vec<Vec<f32>> =
        [(0.2, 7, 3), (0.2, 8, 3), (0.2, 7, 4), (0.2, 7, 3 + (1 << 32)), (0.3, 7, 3)].map(|d| of(Some(d))).into();
    for (i, a) in all.iter().enumerate() {
        let moved = relative_error(a, &plain.iter().map(|&x| f64::from(x)).collect::<Vec<_>>());
        assert!((1e-4..1.0).contains(&moved), "{i}: {moved}");
        assert!(all[..i].iter().all(|b| a != b), "{i}");
    }
    // A model without an adapter drops nothing.
    let base = load(&ctx, "qwen2");
    let of = |dropout| gradients_with(&ctx, &base, &whole, &weight, false, dropout);
    let (a, b) = (of(None), of(DROPOUT));
    assert!(a.logps == b.logps && bits(&a.grads) == bits(&b.grads));
}

#[test]
fn dropout_is_the_same_with_and_without_prefix_sharing() {
    let ctx = context(2);
    for family in FAMILIES {
        let weights = adapted(&ctx, family, &some());
        let groups = groups(weights.config().vocab_size as u32);
        let (shared, apart) = (batch(&groups, true), batch(&groups, false));
        let weight: Vec<f32> = normal(3, shared.targets.len());
        let a = gradients_with(&ctx, &weights, &[shared], &weight, false, DROPOUT);
        let b = gradients_with(&ctx, &weights, &[apart], &weight, false, DROPOUT);
        assert!(a.logps == b.logps, "{family}: bits of scores");
        for (a, b) in a.grads.params.tensors().iter().zip(b.grads.params.tensors()).filter(|(a, _)| a.bytes() > 0) {
            let error = relative_error(&a.to_vec_f32(), &b.to_vec_f32());
            assert!(error <= 1e-5, "{family}: {error:e}");
        }
    }
}

#[test]
fn the_gradient_is_the_slope_under_fixed_dropout_noise() {
    let ctx = context(2);
    for family in ["qwen2", "qwen3"] {
        let mut weights = adapted(&ctx, family, &lora(TargetModules::AllLinear));
        let (whole, weight) = whole(&weights);
        let weight: Vec<f32> = weight.iter().map(|w| w / 100.0).collect();
        let objective = |o: &Outcome| -> f64 {
            let terms = o.logps.iter().zip(&o.entropies).zip(&weight);
            terms.map(|((l, e), w)| f64::from(*w) * (f64::from(*l) + 0.5 * f64::from(*e))).sum()
        };
        let at = gradients_with(&ctx, &weights, &whole, &weight, false, DROPOUT);
        let g: Vec<Vec<f32>> = at.grads.params.tensors().iter().map(|t| t.to_vec_f32()).collect();
        let square: f64 = g.iter().flatten().map(|&g| f64::from(g) * f64::from(g)).sum();
        let step = 1e-3 / square.sqrt();
        let mut moved = |by: f64, dropout| {
            move_along(&mut weights, &g, by);
            objective(&gradients_with(&ctx, &weights, &whole, &weight, false, dropout))
        };
        let (up, down) = (moved(step, DROPOUT), moved(-2.0 * step, DROPOUT));
        let slope = (up - down) / (2.0 * step);
        assert!((slope / square - 1.0).abs() < 2e-2, "{family}: slope {slope}, |g|² {square}");
        // The gradient is not the slope under different noise.
        let other = Some((0.2, 7, 4));
        let (up, down) = (moved(2.0 * step, other), moved(-2.0 * step, other));
        let slope = (up - down) / (2.0 * step);
        assert!((slope / square - 1.0).abs() > 4e-2, "{family}: slope {slope}, |g|² {square}");
    }
}

/// Errors of the log-probabilities and of every gradient against PEFT's, with PEFT's adapter and the dropout masks of
/// this probability, seed, step and first sequence index.
fn errors(ctx: &Context, family: &str, (p, seed, step, place): (f64, u64, u64, u32)) -> Vec<(String, f64)> {
    let (weights, _) = peft_reference(ctx, family);
    let expected = Expected::read(&folder(family).join("lora/dropout.safetensors"));
    let (ids, memory) = (expected.ids(), ctx.memory());
    let batch = Batch::new(&[GroupSegment { prefix: &ids[..1], branches: &[&ids[1..]] }], true);
    let mut tape = Tape::new(memory, weights.config(), batch.capacity(), true);
    let (rope, mut tensors) = (Rope::new(memory, weights.config(), ids.len()), BatchTensors::new(memory, &batch));
    tensors.set_dropout(Some(model::batch::Dropout::new(memory, p, seed, step, &batch, &[place])));
    let mut grads = Grads::trained(memory, weights.config(), weights.lora());
    net::forward(ctx, &weights, &rope, &tensors, &mut tape).unwrap();
    net::head_forward(ctx, &weights, &tensors, 1.0, &mut tape).unwrap();
    let mut found = vec![("logps".to_owned(), relative_error(&tape.logps().to_vec_f32(), &expected.f64("logps")))];
    let n = batch.targets.len();
    let d_logps = Tensor::from_f32(memory, &[n], &vec![-1.0 / n as f32; n]);
    net::head_backward(ctx, &weights, &tensors, d_logps.view(), None, &mut tape, &mut grads).unwrap();
    net::backward(ctx, &weights, &rope, &tensors, &mut tape, &mut grads).unwrap();
    grads.finish(ctx).unwrap();
    let named = Named { params: &grads.params };
    for name in expected.names().iter().filter_map(|n| n.strip_prefix("grad.")) {
        let error = relative_error(&named.get(name).unwrap(), &expected.f64(&format!("grad.{name}")));
        found.push((name.to_owned(), error));
    }
    assert_eq!(found.len(), 1 + named.tensors().len());
    found
}

#[test]
fn log_probabilities_and_gradients_match_peft_under_equal_masks() {
    let noise = (0.25, 11, (1 << 32) + 3, 5);
    for isa in Isa::present() {
        for family in PEFT {
            for (name, error) in errors(&Context::cpu(isa, 2), family, noise) {
                let bound = if name == "logps" { LOGITS } else { GRADIENT };
                assert!(error <= bound, "{family} {isa:?} {name}: {error:e}");
            }
        }
    }
    // Masks of a different probability, seed, step or sequence index must give large errors.
    for other in
        [(0.3, 11, (1 << 32) + 3, 5), (0.25, 12, (1 << 32) + 3, 5), (0.25, 11, 3, 5), (0.25, 11, (1 << 32) + 3, 4)]
    {
        for (name, error) in errors(&context(1), "qwen2", other) {
            assert!(error > 100.0 * GRADIENT, "{other:?} {name}: {error:e}");
        }
    }
}
