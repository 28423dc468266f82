//! A score head with one label: values, gradients and saved files.

use super::*;
use kernels::check::{normal, relative_error};
use model::Head;

/// The fixture of a family with a nonzero score head in place of its head.
fn scorer(ctx: &Context, family: &str) -> Weights {
    let mut weights = Weights::scorer(ctx.memory(), &load(ctx, family));
    let h = weights.config.hidden_size;
    weights.put("score.weight", &normal::<f32>(5, h)).unwrap();
    weights
}

fn batch() -> Batch {
    let (a, b): (Vec<u32>, Vec<u32>) = ((3..23).collect(), (5..12).collect());
    let branches: [&[u32]; 3] = [&a, &b[..1], &b];
    Batch::new(&[GroupSegment { prefix: &[7, 8, 9], branches: &branches }], true)
}

/// Scores of [`batch`], the hidden rows, and the gradients of Σ weightᵢ · scoreᵢ.
fn scores(ctx: &Context, weights: &Weights, weight: &[f32]) -> (Vec<f32>, Vec<f32>, Grads) {
    let (config, memory, batch) = (&weights.config, ctx.memory(), batch());
    let mut tape = Tape::new(memory, config, batch.capacity(), false);
    let rope = Rope::new(memory, config, 64);
    let mut grads = Grads::zeros(memory, config);
    let tensors = BatchTensors::new(memory, &batch);
    net::forward(ctx, weights, &rope, &tensors, &mut tape).unwrap();
    net::score_forward(ctx, weights, &tensors, &mut tape).unwrap();
    let (out, hidden) = (tape.scores().to_vec_f32(), tape.hidden().to_vec_f32());
    let d_scores = Tensor::from_f32(memory, &[weight.len()], weight);
    net::score_backward(ctx, weights, &tensors, d_scores.view(), &mut tape, &mut grads).unwrap();
    net::backward(ctx, weights, &rope, &tensors, &mut tape, &mut grads).unwrap();
    grads.finish(ctx).unwrap();
    (out, hidden, grads)
}

#[test]
fn the_hidden_state_times_the_head_is_the_score() {
    for family in FAMILIES {
        let ctx = context(2);
        let weights = scorer(&ctx, family);
        let (h, head) = (weights.config.hidden_size, weights.get("score.weight").unwrap());
        let batch = batch();
        let (scores, hidden, _) = scores(&ctx, &weights, &vec![0.0; batch.targets.len()]);
        let row_score = |&row: &u32| {
            let row = &hidden[row as usize * h..][..h];
            row.iter().zip(&head).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum::<f64>()
        };
        let expected: Vec<f64> = batch.score_rows.iter().map(row_score).collect();
        assert!(relative_error(&scores, &expected) < 1e-6, "{family}");
        // The first token of every completion follows the same prompt, so its values are equal.
        assert!(scores[0] == scores[20] && scores[0] == scores[21] && scores[1] != scores[0]);
        // A new score head gives scores of 0, and the trunk is unchanged.
        let fresh = Weights::scorer(ctx.memory(), &load(&ctx, family));
        let (zeros, same, _) = self::scores(&ctx, &fresh, &vec![0.0; batch.targets.len()]);
        assert!(zeros.iter().all(|&s| s == 0.0) && same == hidden, "{family}");
    }
}

#[test]
fn the_gradient_is_the_slope() {
    for family in ["llama3", "qwen2"] {
        let ctx = context(2);
        let mut weights = scorer(&ctx, family);
        let weight: Vec<f32> = normal::<f32>(3, batch().targets.len()).iter().map(|w| w / 100.0).collect();
        let g: Vec<Vec<f32>> =
            scores(&ctx, &weights, &weight).2.params.tensors().iter().map(|t| t.to_vec_f32()).collect();
        let square: f64 = g.iter().flatten().map(|&g| f64::from(g) * f64::from(g)).sum();
        assert!(g.last().unwrap().iter().any(|&g| g != 0.0) && g[0].iter().any(|&g| g != 0.0));
        let step = 1e-3 / square.sqrt();
        let mut moved = |by: f64| -> f64 {
            for (t, g) in weights.params.tensors_mut().into_iter().zip(&g) {
                let to: Vec<f32> = t.to_vec_f32().iter().zip(g).map(|(w, g)| w + (by * f64::from(*g)) as f32).collect();
                t.view_mut().copy_from_f32(&to);
            }
            scores(&ctx, &weights, &weight).0.iter().zip(&weight).map(|(s, w)| f64::from(*s) * f64::from(*w)).sum()
        };
        let (up, down) = (moved(step), moved(-2.0 * step));
        let slope = (up - down) / (2.0 * step);
        assert!((slope / square - 1.0).abs() < 2e-2, "{family}: slope {slope}, |g|² {square}");
    }
}

#[test]
fn a_saved_score_model_loads_again() {
    let (ctx, dir) = (context(1), tempfile::tempdir().unwrap());
    for family in FAMILIES {
        let weights = scorer(&ctx, family);
        model::io::save_model(dir.path(), &weights.config, &weights, None, Default::default()).unwrap();
        let config = Arc::new(ModelConfig::load(&dir.path().join("config.json")).unwrap());
        assert_eq!(config.head, Head::Score(1), "{family}");
        let again = Weights::load(ctx.memory(), dir.path(), &config).unwrap();
        let d = vec![0.0; batch().targets.len()];
        assert_eq!(scores(&ctx, &weights, &d).0, scores(&ctx, &again, &d).0, "{family}");
        // A language model is rejected.
        let lm = Arc::new(ModelConfig::load(&folder(family).join("config.json")).unwrap());
        assert_eq!(lm.head, Head::Lm);
        let error = Weights::load(ctx.memory(), dir.path(), &lm).unwrap_err().to_string();
        assert!(error.contains("score.weight") || error.contains("lm_head.weight"), "{error}");
    }
}
