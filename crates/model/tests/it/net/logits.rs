//! Logits of whole sequences are passed on in pieces of a few rows, and agree with the log-probabilities.

#![expect(clippy::disallowed_methods, reason = "expected values within a tolerance may use std's functions")]

use super::*;
use model::{Error, PromptCompletion};
use std::sync::atomic::AtomicBool;

const LARGE: &str = r#"{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 600000,
"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
"head_dim": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
"tie_word_embeddings": true, "attention_bias": false, "bos_token_id": null, "eos_token_id": 0}"#;

#[test]
fn logits_of_a_large_vocabulary_come_in_pieces() {
    let ctx = context(2);
    let config = Arc::new(ModelConfig::parse(LARGE).unwrap());
    let (vocab, weights) = (config.vocab_size, Weights::random(ctx.memory(), &config, 1).unwrap());
    let sequences: [&[u32]; 3] = [&[599_999, 7, 8, 300_000, 9, 1, 2, 3, 4, 5, 6], &[5], &[7, 8, 9]];
    let (mut all, mut pieces) = (vec![Vec::new(); 3], 0);
    let mut scorer = Scorer::new(ctx.memory(), 64, true);
    let take = |i: usize, rows: &[f32]| {
        let row_and_lse = |row: &[f32]| {
            let highest = f64::from(row.iter().copied().fold(f32::MIN, f32::max));
            let sum = row.iter().map(|&z| (f64::from(z) - highest).exp()).sum::<f64>();
            (row.to_vec(), highest + sum.ln())
        };
        all[i].extend(rows.chunks(vocab).map(row_and_lse));
        pieces += 1;
    };
    scorer.logits(&ctx, &weights, &sequences, take).unwrap();
    assert!(pieces > 3, "the longest sequence must come in several pieces, got {pieces}");
    assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [11, 1, 3]);
    let given = sequences.map(|ids| PromptCompletion { prompt: &ids[..1], completion: &ids[1..] });
    for ((rows, ids), scores) in all.iter().zip(sequences).zip(scorer.score(&ctx, &weights, &given, 1.0).unwrap()) {
        for (((row, lse), &next), logp) in rows.iter().zip(&ids[1..]).zip(scores.logps) {
            let error = f64::from(row[next as usize]) - lse - f64::from(logp);
            assert!(error.abs() < 1e-5, "{error:e}");
        }
    }
}

#[test]
fn logits_do_not_depend_on_other_sequences_and_can_be_stopped() {
    let ctx = context(2);
    let weights = load(&ctx, "gemma3");
    let (a, b): (Vec<u32>, Vec<u32>) = ((3..80).map(|i| i % 40).collect(), vec![9, 8, 7]);
    let mut scorer = Scorer::new(ctx.memory(), 64, true);
    let mut all = [Vec::new(), Vec::new()];
    scorer.logits(&ctx, &weights, &[&a, &b], |i, rows| all[i].extend_from_slice(rows)).unwrap();
    assert_eq!(all, [logits(&ctx, &weights, &a), logits(&ctx, &weights, &b)]);
    scorer.stop_with(Arc::new(AtomicBool::new(true)));
    let stopped = scorer.logits(&ctx, &weights, &[&a], |_, _| panic!("a stopped scorer must not pass on rows"));
    assert!(matches!(stopped, Err(Error::Stopped)));
    assert!(matches!(scorer.logits(&ctx, &weights, &[&[]], |_, _| ()), Err(Error::Sequence { index: 0, .. })));
}
