//! Buffers of a scorer, padding, and means over the vocabulary.

use super::*;
use crate::tokenizer::SpecialTokens;
use crate::{Error, Weights};
use kernels::{Device, Isa};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn config(vocab: usize) -> Arc<ModelConfig> {
    let json = format!(
        r#"{{"model_type": "llama", "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1,
        "num_attention_heads": 2, "vocab_size": {vocab}, "pad_token_id": 7}}"#
    );
    Arc::new(ModelConfig::parse(&json).unwrap())
}

#[test]
fn padding_is_removed_only_from_the_end() {
    let stripped = |ids: &[u32], pad: Option<u32>| {
        let mut ids = ids.to_vec();
        strip_padding(&mut ids, pad);
        ids
    };
    assert_eq!(stripped(&[0, 1, 0, 2, 0, 0], Some(0)), [0, 1, 0, 2]);
    assert!(stripped(&[0, 0], Some(0)).is_empty());
    assert_eq!(stripped(&[1, 0], Some(1)), [1, 0]);
    assert_eq!(stripped(&[1, 0], None), [1, 0]);
    let of = |pad: Option<&str>, eos: Option<&str>| {
        let special =
            SpecialTokens { pad: pad.map(str::to_owned), eos: eos.map(str::to_owned), ..SpecialTokens::default() };
        padding_token(&Tokenizer::characters("ab".chars(), &special).unwrap(), &config(10))
    };
    assert_eq!(of(Some("<p>"), Some("<e>")), Some(0));
    assert_eq!(of(Some("a"), Some("b")), Some(0));
    assert_eq!(of(None, Some("<e>")), Some(0), "the tokenizer's end token takes precedence over config.json");
    assert_eq!(of(None, None), Some(7));
}

#[test]
fn a_stopped_scorer_returns_an_error() {
    let ctx = Context::cpu(Isa::best(), 1);
    let weights = Weights::random(ctx.memory(), &config(10), 1).unwrap();
    let sequences = [PromptCompletion { prompt: &[1, 2], completion: &[3] }];
    for buffers in [false, true] {
        let mut scorer = Scorer::new(ctx.memory(), 100, true);
        if buffers {
            scorer.score(&ctx, &weights, &sequences, 1.0).unwrap();
        }
        let flag = Arc::new(AtomicBool::new(false));
        scorer.stop_with(flag.clone());
        let scores = scorer.score(&ctx, &weights, &sequences, 1.0).unwrap();
        assert_eq!((scores.len(), scores[0].logps.len(), scores[0].entropies.len()), (1, 1, 1));
        flag.store(true, Ordering::Relaxed);
        assert!(matches!(scorer.score(&ctx, &weights, &sequences, 1.0), Err(Error::Stopped)), "{buffers}");
        flag.store(false, Ordering::Relaxed);
        assert!(scorer.score(&ctx, &weights, &sequences, 1.0).is_ok());
        scorer.stop_with(StopCheck::new(|| true));
        assert!(matches!(scorer.score(&ctx, &weights, &sequences, 1.0), Err(Error::Stopped)));
    }
}

#[test]
fn sequences_are_scored_in_order_even_if_some_are_empty() {
    let ctx = Context::cpu(Isa::best(), 1);
    let weights = Weights::random(ctx.memory(), &config(10), 1).unwrap();
    let of = |prompt, completion| PromptCompletion { prompt, completion };
    let (a, b): (&[u32], &[u32]) = (&[1, 2], &[3]);
    let sequences = [of(a, &[4, 5]), of(a, &[]), of(b, &[]), of(b, &[6, 7, 8]), of(a, &[9])];
    let mut scorer = Scorer::new(ctx.memory(), 4, true);
    let all = scorer.score(&ctx, &weights, &sequences, 0.7).unwrap();
    assert_eq!(all.iter().map(|s| s.logps.len()).collect::<Vec<_>>(), [2, 0, 0, 3, 1]);
    for (sequence, scores) in sequences.iter().zip(&all) {
        let alone = Scorer::new(ctx.memory(), 100, false).score(&ctx, &weights, &[*sequence], 0.7).unwrap();
        assert_eq!(&alone[0], scores);
    }
    let compared = scorer.compare(&ctx, &weights, &sequences).unwrap();
    let mut logits = vec![Vec::new(); sequences.len()];
    let texts: Vec<Vec<u32>> = sequences.iter().map(|s| [s.prompt, s.completion].concat()).collect();
    let texts: Vec<&[u32]> = texts.iter().map(|text| &text[..]).collect();
    scorer.logits(&ctx, &weights, &texts, |i, rows| logits[i].extend_from_slice(rows)).unwrap();
    for ((sequence, compared), logits) in sequences.iter().zip(&compared).zip(&logits) {
        assert_eq!(logits.len(), 10 * (sequence.prompt.len() + sequence.completion.len()));
        assert_eq!(compared.is_likeliest.len(), sequence.completion.len());
        for (t, &id) in sequence.completion.iter().enumerate() {
            let row = &logits[10 * (sequence.prompt.len() + t - 1)..][..10];
            let mean = row.iter().map(|&z| f64::from(z)).sum::<f64>() / 10.0;
            assert!((compared.mean_logits[t] - mean).abs() < 1e-6, "{} {mean}", compared.mean_logits[t]);
            let first = (0..10).find(|&v| row.iter().all(|&z| z <= row[v])).unwrap();
            assert_eq!(compared.is_likeliest[t], first == id as usize);
            let sum: f64 = row.iter().map(|&z| libm::exp(f64::from(z))).sum();
            let logp = f64::from(row[id as usize]) - libm::log(sum);
            assert!((f64::from(compared.scores.logps[t]) - logp).abs() < 1e-5);
        }
    }
    let bad = scorer.score(&ctx, &weights, &[of(a, &[4]), of(&[], &[4])], 1.0).unwrap_err();
    assert!(matches!(bad, Error::Sequence { index: 1, .. }), "{bad}");
    let bad = scorer.logits(&ctx, &weights, &[&[1], &[10]], |_, _| {}).unwrap_err();
    assert!(matches!(bad, Error::Sequence { index: 1, .. }), "{bad}");
}

#[test]
fn the_score_of_a_sequence_is_read_at_its_last_token() {
    let ctx = Context::cpu(Isa::best(), 1);
    let mut scorer_model = Weights::random(ctx.memory(), &Arc::new(config(10).with_score_head(1)), 1).unwrap();
    scorer_model.params.write("score.weight", &[0.5, -1.0, 2.0, 0.25]);
    let of = |prompt, completion| PromptCompletion { prompt, completion };
    let sequences = [of(&[1, 2][..], &[4, 5][..]), of(&[1, 2], &[]), of(&[3], &[6])];
    let mut scorer = Scorer::new(ctx.memory(), 100, true);
    let scores = scorer.sequence_scores(&ctx, &scorer_model, &sequences).unwrap();
    // The value of the state before an extra token equals the score of the sequence.
    for (sequence, score) in sequences.iter().zip(&scores) {
        let longer = [sequence.completion, &[8, 9]].concat();
        let values = scorer
            .values(&ctx, &scorer_model, &[PromptCompletion { prompt: sequence.prompt, completion: &longer }])
            .unwrap();
        assert_eq!((values[0].len(), values[0][sequence.completion.len()]), (longer.len(), *score));
    }
    assert_eq!(scores.iter().filter(|s| s.is_nan()).count(), 0);
}

#[test]
fn mean_row_averages_all_rows() {
    let memory = Memory::new(Device::Cpu);
    for rows in [1, 33, 1024, 1025, 2500] {
        let data: Vec<f32> = (0..rows * 2).map(|i| if i % 2 == 0 { (i / 2) as f32 } else { 1.0 }).collect();
        let mean = mean_row(&Matrix::from_f32(&memory, rows, 2, &data));
        assert_eq!(mean, [(rows - 1) as f64 / 2.0, 1.0], "{rows}");
    }
}
