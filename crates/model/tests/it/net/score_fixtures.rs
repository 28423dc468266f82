//! Models with one score, compared with transformers' `…ForSequenceClassification` in f64
//! (`conformance/score_fixtures.py`). The directories were written by transformers.

use super::fixtures::{Expected, GRADIENT, LOGITS};
use super::*;
use kernels::check::relative_error;
use model::Head;
use model::weights::{Named, tensor_specs};

fn expected(family: &str) -> Expected {
    Expected::read(&folder(family).join("score/expected.safetensors"))
}

fn scorer(ctx: &Context, family: &str) -> Weights {
    load(ctx, &format!("{family}/score"))
}

/// The error of each compared value, by name: all scores, the last score, the loss Σ weightᵢ · scoreᵢ, and every
/// gradient.
fn errors(ctx: &Context, family: &str, weights: &Weights) -> Vec<(String, f64)> {
    let (config, memory, expected) = (&weights.config, ctx.memory(), expected(family));
    let (ids, factors) = (expected.ids(), expected.f64("weights"));
    // Scores exist for rows that predict a token. An extra last token gives the last row a score; no row attends to the
    // extra token.
    let mut rest = ids[1..].to_vec();
    rest.push(0);
    let batch = Batch::new(&[GroupSegment { prefix: &ids[..1], branches: &[&rest] }], true);
    let mut tape = Tape::new(memory, config, batch.capacity(), false);
    let (rope, tensors) = (Rope::new(memory, config, ids.len() + 1), BatchTensors::new(memory, &batch));
    let mut grads = Grads::zeros(memory, config);
    net::forward(ctx, weights, &rope, &tensors, &mut tape).unwrap();
    net::score_forward(ctx, weights, &tensors, &mut tape).unwrap();
    let scores = tape.scores().to_vec_f32();
    assert_eq!(scores.len(), ids.len());
    let loss: f64 = scores.iter().zip(&factors).map(|(s, w)| f64::from(*s) * w).sum();
    let d_scores: Vec<f32> = factors.iter().map(|w| *w as f32).collect();
    let d_scores = Tensor::from_f32(memory, &[d_scores.len()], &d_scores);
    net::score_backward(ctx, weights, &tensors, d_scores.view(), &mut tape, &mut grads).unwrap();
    net::backward(ctx, weights, &rope, &tensors, &mut tape, &mut grads).unwrap();
    grads.finish(ctx).unwrap();

    let named = Named { params: &grads.params };
    let of = |name: &str, got: &[f32]| (name.to_owned(), relative_error(got, &expected.f64(name)));
    // A single score can be near 0 by chance, so its error is relative to all scores.
    let (last, theirs) = (expected.f64("last")[0], expected.f64("scores"));
    let scale = (theirs.iter().map(|s| s * s).sum::<f64>() / theirs.len() as f64).sqrt();
    let last_error = (f64::from(scores[scores.len() - 1]) - last).abs() / scale;
    let mut errors = vec![of("scores", &scores), ("last".to_owned(), last_error)];
    errors.push(("loss".to_owned(), (loss / expected.f64("loss")[0] - 1.0).abs()));
    errors.extend(tensor_specs(config).iter().map(|s| of(&format!("grad.{}", s.name), &named.get(&s.name).unwrap())));
    // Every gradient that transformers computes is compared.
    let theirs = expected.names().iter().filter(|name| name.starts_with("grad.")).count();
    assert_eq!(theirs, errors.len() - 3, "{family}");
    errors
}

/// The terms of `loss` partly cancel, so `loss` gets the wider bound of gradients.
fn bound(name: &str) -> f64 {
    if name == "scores" || name == "last" { LOGITS } else { GRADIENT }
}

#[test]
fn scores_and_gradients_match_transformers() {
    for isa in Isa::present() {
        let ctx = Context::cpu(isa, 2);
        for family in FAMILIES {
            let weights = scorer(&ctx, family);
            assert_eq!(weights.config.head, Head::Score(1), "{family}");
            let errors = errors(&ctx, family, &weights);
            let worst = errors[3..].iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
            println!("{family} {isa:?}: scores {:.1e}, worst gradient {} {:.1e}", errors[0].1, worst.0, worst.1);
            for (name, error) in &errors {
                assert!(*error <= bound(name), "{family} {isa:?} {name}: {error:e}");
            }
        }
    }
}

#[test]
fn a_slightly_wrong_score_head_exceeds_the_bound() {
    let ctx = context(1);
    for family in FAMILIES {
        let mut weights = scorer(&ctx, family);
        let head: Vec<f32> = weights.get("score.weight").unwrap().iter().map(|w| w * 1.0002).collect();
        weights.put("score.weight", &head).unwrap();
        let errors = errors(&ctx, family, &weights);
        // The head's own gradient does not depend on the head's values; all other gradients do.
        for (name, error) in errors.iter().filter(|(name, _)| name != "grad.score.weight") {
            assert!(*error > bound(name), "{family} {name}: {error:e}");
        }
    }
}

/// Leaves the saved directory where `conformance/score_fixtures.py check` can load it with transformers.
#[test]
fn a_score_model_of_transformers_is_saved_unchanged() {
    let (ctx, out) = (context(1), Path::new(env!("CARGO_TARGET_TMPDIR")).join("score"));
    for family in FAMILIES {
        let (weights, dir) = (scorer(&ctx, family), out.join(family));
        model::io::save_model(&dir, &weights.config, &weights, None, Default::default()).unwrap();
        let config = |dir: &Path| -> serde_json::Value {
            serde_json::from_slice(&std::fs::read(dir.join("config.json")).unwrap()).unwrap()
        };
        let (theirs, ours) = (config(&folder(family).join("score")), config(&dir));
        for key in ["architectures", "id2label", "label2id", "model_type"] {
            assert_eq!(ours[key], theirs[key], "{family} {key}");
        }
        let again = Weights::load(ctx.memory(), &dir, &weights.config).unwrap();
        for spec in TensorSink::tensors(&weights) {
            assert_eq!(again.get(&spec.name).unwrap(), weights.get(&spec.name).unwrap(), "{family} {}", spec.name);
        }
        // The saved config of a language model with a new score head matches transformers'.
        let fresh = Weights::scorer(ctx.memory(), &load(&ctx, family));
        let dir = out.join(format!("{family}-fresh"));
        model::io::save_model(&dir, &fresh.config, &fresh, None, Default::default()).unwrap();
        for key in ["architectures", "id2label", "label2id", "model_type"] {
            assert_eq!(config(&dir)[key], theirs[key], "{family} fresh {key}");
        }
    }
}
