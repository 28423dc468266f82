//! Gradients do not depend on how the work is split. Threads, checkpointing and micro-batches do not change a bit;
//! computing prompts once or per completion changes only the rounding.

use super::*;
use kernels::check::{normal, relative_error};

/// Three groups, whose prompts end inside a page, at the end of a page, and in a second page.
pub fn groups(vocab: u32) -> Vec<(Vec<u32>, Vec<Vec<u32>>)> {
    let mut next = 7u32;
    let mut ids = |len: usize| -> Vec<u32> {
        let mut id = || {
            next = next.wrapping_mul(1664525).wrapping_add(1013904223);
            (next >> 8) % vocab
        };
        (0..len).map(|_| id()).collect()
    };
    [(77, [3, 70, 1]), (64, [5, 2, 66]), (11, [60, 9, 40])]
        .into_iter()
        .map(|(prompt, branches)| (ids(prompt), branches.into_iter().map(&mut ids).collect()))
        .collect()
}

pub fn batch(groups: &[(Vec<u32>, Vec<Vec<u32>>)], sharing: bool) -> Batch {
    let branches: Vec<Vec<&[u32]>> = groups.iter().map(|(_, b)| b.iter().map(|b| b.as_slice()).collect()).collect();
    let segments: Vec<_> =
        groups.iter().zip(&branches).map(|((p, _), b)| GroupSegment { prefix: p, branches: b }).collect();
    Batch::new(&segments, sharing)
}

#[test]
fn bits_do_not_depend_on_threads_checkpointing_or_micro_batches() {
    for family in FAMILIES {
        let one = context(1);
        let weights = load(&one, family);
        let groups = groups(weights.config.vocab_size as u32);
        let whole = [batch(&groups, true)];
        let weight: Vec<f32> = normal(3, whole[0].targets.len());
        let expected = gradients(&one, &weights, &whole, &weight, false);
        let cut: Vec<Batch> = groups.chunks(1).map(|g| batch(g, true)).collect();
        let cut_once = [batch(&groups[..2], true), batch(&groups[2..], true)];
        let ways: [(&str, &Context, &[Batch], bool); 5] = [
            ("2 threads", &context(2), &whole, false),
            ("checkpointing", &one, &whole, true),
            ("one micro-batch per group", &one, &cut, false),
            ("two micro-batches", &one, &cut_once, false),
            ("one micro-batch for all groups", &context(2), &cut, true),
        ];
        for (way, ctx, batches, checkpointing) in ways {
            let got = gradients(ctx, &weights, batches, &weight, checkpointing);
            assert!(got.logps == expected.logps, "{family}, {way}: log-probabilities");
            assert!(got.entropies == expected.entropies, "{family}, {way}: entropies");
            assert!(got.hidden == expected.hidden, "{family}, {way}: hidden rows");
            assert!(bits(&got.grads) == bits(&expected.grads), "{family}, {way}: gradients");
        }
    }
}

#[test]
fn every_instruction_set_gives_the_same_bits() {
    // The design does not require this. It holds because in f32 all instruction sets share one formula of 16 lanes.
    for family in FAMILIES {
        let outcome = |isa| {
            let ctx = Context::cpu(isa, 2);
            let weights = load(&ctx, family);
            let whole = [batch(&groups(weights.config.vocab_size as u32), true)];
            gradients(&ctx, &weights, &whole, &normal(3, whole[0].targets.len()), false)
        };
        let expected = outcome(Isa::PORTABLE);
        for isa in Isa::present() {
            let got = outcome(isa);
            assert!(got.logps == expected.logps && got.hidden == expected.hidden, "{family} {isa:?}: forward");
            assert!(bits(&got.grads) == bits(&expected.grads), "{family} {isa:?}: gradients");
        }
    }
}

#[test]
fn a_prompt_computed_once_gives_the_same_scores_and_gradients() {
    for family in FAMILIES {
        let ctx = context(2);
        let weights = load(&ctx, family);
        let groups = groups(weights.config.vocab_size as u32);
        let (shared, apart) = (batch(&groups, true), batch(&groups, false));
        assert!(shared.ids.len() < apart.ids.len());
        let weight: Vec<f32> = normal(3, shared.targets.len());
        let a = gradients(&ctx, &weights, &[shared], &weight, false);
        let b = gradients(&ctx, &weights, &[apart], &weight, false);
        assert!(a.logps == b.logps && a.entropies == b.entropies, "{family}: bits of scores");
        for (i, (a, b)) in a.grads.params.tensors().iter().zip(b.grads.params.tensors()).enumerate() {
            let error = relative_error(&a.to_vec_f32(), &b.to_vec_f32());
            assert!(error <= 1e-5, "{family}, parameter {i}: {error:e}");
        }
    }
}

/// Asserts that the derivative of the objective (weighted log-probabilities plus half the weighted entropies) along its
/// gradient equals the gradient's squared norm. This is an end-to-end check without a fixture. `moved` computes the
/// outcome after moving the weights along the gradient.
pub fn is_the_slope(at: &Outcome, weight: &[f32], mut moved: impl FnMut(&[Vec<f32>], f64) -> Outcome) {
    let objective = |o: &Outcome| -> f64 {
        let terms = o.logps.iter().zip(&o.entropies).zip(weight);
        terms.map(|((l, e), w)| f64::from(*w) * (f64::from(*l) + 0.5 * f64::from(*e))).sum()
    };
    let g: Vec<Vec<f32>> = at.grads.params.tensors().iter().map(|t| t.to_vec_f32()).collect();
    let square: f64 = g.iter().flatten().map(|&g| f64::from(g) * f64::from(g)).sum();
    let step = 1e-3 / square.sqrt();
    let (up, down) = (objective(&moved(&g, step)), objective(&moved(&g, -2.0 * step)));
    let slope = (up - down) / (2.0 * step);
    assert!((slope / square - 1.0).abs() < 2e-2, "slope {slope}, |g|² {square}");
}

#[test]
fn the_gradient_is_the_slope() {
    let ctx = context(2);
    let mut weights = load(&ctx, "qwen3");
    let groups = groups(weights.config.vocab_size as u32);
    let whole = [batch(&groups, true)];
    let weight: Vec<f32> = normal::<f32>(3, whole[0].targets.len()).iter().map(|w| w / 100.0).collect();
    let at = gradients(&ctx, &weights, &whole, &weight, false);
    is_the_slope(&at, &weight, |g, by| {
        for (t, g) in weights.params.tensors_mut().into_iter().zip(g) {
            let to: Vec<f32> = t.to_vec_f32().iter().zip(g).map(|(w, g)| w + (by * f64::from(*g)) as f32).collect();
            t.view_mut().copy_from_f32(&to);
        }
        gradients(&ctx, &weights, &whole, &weight, false)
    });
}
