//! A pretrained model: `../shared/models/stories260k` must reproduce its story. The test is skipped with a message if
//! the model is missing.

#![allow(clippy::disallowed_methods)]

use super::*;
use model::net::Scores;

/// The model's directory.
pub fn directory() -> Option<PathBuf> {
    testing::shared("models/stories260k")
}

#[test]
fn stories260k_tells_its_story() {
    let Some(dir) = directory() else { return };
    let ctx = context(2);
    let config = Arc::new(ModelConfig::load(&dir.join("config.json")).unwrap());
    let weights = Weights::load(ctx.memory(), &dir, &config).unwrap();
    let mut ids = vec![1];
    for _ in 0..12 {
        let logits = logits(&ctx, &weights, &ids);
        let last = &logits[logits.len() - config.vocab_size..];
        let best = (0..last.len()).max_by(|&a, &b| last[a].total_cmp(&last[b])).unwrap();
        ids.push(best as u32);
    }
    assert_eq!(ids[1..], [403, 407, 261, 378, 432, 383, 286, 261, 376, 298, 315, 421]);

    let batch = Batch::new(&[GroupSegment { prefix: &ids[..1], branches: &[&ids[1..]] }], true);
    let mut tape = Tape::forward_only(ctx.memory(), &config, batch.capacity());
    let rope = Rope::new(ctx.memory(), &config, 64);
    let Scores { logps, entropies } = net::score(&ctx, &weights, &rope, &batch, &mut tape, 1.0).unwrap();
    for (got, expected) in logps.iter().zip([-0.24374, -0.01751, -0.01211, -0.00072, -0.0317, -0.06842]) {
        assert!((got - expected).abs() < 2e-4, "{got} {expected}");
    }
    assert_eq!(entropies.len(), 12);
    assert!(entropies.iter().all(|&e| e > 0.0 && e < (config.vocab_size as f32).ln()));
}
