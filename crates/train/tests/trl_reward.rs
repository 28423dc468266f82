//! A step of a reward model, trunk and head, against TRL 1.16's `RewardTrainer`: `conformance/reward_fixtures.py` says how
//! TRL's numbers were made.

mod common;

use common::model::{bits, config, context, policy};
use common::{close, get};
use kernels::Memory;
use model::io::TensorSink;
use model::{PromptCompletion, Scorer, Weights};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use train::{Error, Objective, OptimizerConfig, RankingConfig, Sample, Trainer, TrainerConfig};

fn fixture() -> Value {
    let path = common::directory().join("../reward/cases.json");
    serde_json::from_str(&std::fs::read_to_string(path).expect("fixture")).expect("fixture")
}

/// The policy's trunk under the fixture's head of one score.
fn scorer(memory: &Memory, fixture: &Value) -> Weights {
    let mut weights = Weights::scorer(memory, &policy(memory));
    weights.put("score.weight", &get::<Vec<f32>>(&fixture["head"])).expect("head");
    weights
}

/// Chosen and rejected answers in turn.
fn samples(fixture: &Value, margins: bool) -> Vec<Sample> {
    let mut out = Vec::new();
    for pair in fixture["pairs"].as_array().expect("pairs") {
        let prompt: Arc<[u32]> = get::<Vec<u32>>(&pair["prompt_ids"]).into();
        let margin = if margins { get(&pair["margin"]) } else { 0.0 };
        out.push(Sample::ranked(prompt.clone(), get(&pair["chosen_ids"]), margin));
        out.push(Sample::ranked(prompt, get(&pair["rejected_ids"]), 0.0));
    }
    out
}

fn trainer_config(c: Option<f64>, max_tokens_per_micro_batch: usize, prefix_sharing: bool) -> TrainerConfig {
    TrainerConfig {
        objective: Objective::Ranking(RankingConfig { center_rewards_coefficient: c }),
        optimizer: OptimizerConfig::default(),
        adapter: None,
        temperature: 1.0,
        max_tokens_per_micro_batch,
        prefix_sharing,
        gradient_checkpointing: false,
    }
}

#[test]
fn every_step_is_trls() {
    let (fixture, ctx) = (fixture(), context(1));
    let cases = fixture["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 7);
    for case in cases {
        let given = &case["config"];
        let samples = samples(&fixture, get(&given["margins"]));
        for (sharing, budget) in [(true, 1000), (true, 30), (false, 30)] {
            let mut weights = scorer(ctx.memory(), &fixture);
            let config = trainer_config(given["center_rewards_coefficient"].as_f64(), budget, sharing);
            let mut trainer = Trainer::new(ctx.memory(), &weights.config, config).expect("trainer");
            let metrics = trainer.update(&ctx, &mut weights, &samples, 1e-3).expect("update");
            let title = format!("{given} sharing {sharing} budget {budget}");
            close(metrics.loss, get(&case["loss"]), 1e-4, &format!("{title} loss"));
            close(metrics.grad_norm, get(&case["grad_norm"]), 1e-3, &format!("{title} grad_norm"));
            let ours: BTreeMap<_, _> = metrics.entries().into_iter().collect();
            for (name, value) in case["metrics"].as_object().expect("metrics") {
                close(ours[name.as_str()], get(value), 1e-4, &format!("{title} {name}"));
            }
            assert!((metrics.micro_batches > 1) == (budget == 30) && !metrics.sampled && metrics.clip.is_none());
        }
    }
}

/// The cases tell the options apart: a step that forgot a margin or the centre would be seen.
#[test]
fn the_fixture_would_show_a_missing_option() {
    let fixture = fixture();
    let losses: Vec<f64> = fixture["cases"].as_array().expect("cases").iter().map(|c| get(&c["loss"])).collect();
    for (i, a) in losses[..6].iter().enumerate() {
        for b in &losses[..i] {
            assert!((a - b).abs() > 0.01 * a, "{losses:?}");
        }
    }
    let accuracy: f64 = get(&fixture["cases"][0]["metrics"]["accuracy"]);
    assert!(accuracy > 0.0 && accuracy < 1.0);
}

#[test]
fn threads_and_budget_change_no_bit_and_pairs_are_learned() {
    let fixture = fixture();
    let run = |threads: usize, budget: usize| {
        let ctx = context(threads);
        let samples = samples(&fixture, true);
        let mut weights = scorer(ctx.memory(), &fixture);
        let config = trainer_config(Some(0.01), budget, true);
        let mut trainer = Trainer::new(ctx.memory(), &weights.config, config).expect("trainer");
        let mut update = || trainer.update(&ctx, &mut weights, &samples, 1e-3).expect("update");
        let metrics: Vec<_> = (0..6).map(|_| update()).collect();
        assert!(metrics[5].loss < 0.7 * metrics[0].loss, "{metrics:?}");
        (metrics.iter().map(|m| m.loss.to_bits()).collect::<Vec<_>>(), bits(&weights))
    };
    let reference = run(1, 1000);
    for (threads, budget) in [(2, 1000), (1, 1), (2, 30)] {
        assert!(run(threads, budget) == reference, "{threads} threads, {budget} tokens: other bits");
    }
}

/// The score of an answer is that of its last token: what follows it is never looked at.
#[test]
fn the_token_behind_an_answer_does_not_matter() {
    let (fixture, ctx) = (fixture(), context(1));
    let run = |behind: Option<u32>| {
        let mut samples = samples(&fixture, true);
        for sample in &mut samples {
            *sample.completion.last_mut().expect("tokens") = behind.unwrap_or(sample.completion[0]);
        }
        let mut weights = scorer(ctx.memory(), &fixture);
        let mut trainer =
            Trainer::new(ctx.memory(), &weights.config, trainer_config(None, 1000, true)).expect("trainer");
        trainer.update(&ctx, &mut weights, &samples, 1e-3).expect("update").loss.to_bits()
    };
    assert_eq!(run(None), run(Some(7)));
}

#[test]
fn a_pair_needs_both_sides_of_one_prompt() {
    let (fixture, ctx) = (fixture(), context(1));
    let good = samples(&fixture, true);
    let mut weights = scorer(ctx.memory(), &fixture);
    let mut trainer = Trainer::new(ctx.memory(), &weights.config, trainer_config(None, 1000, true)).expect("trainer");
    let mut refuse = |spoil: &dyn Fn(&mut Vec<Sample>)| {
        let mut bad = good.clone();
        spoil(&mut bad);
        match trainer.update(&ctx, &mut weights, &bad, 1e-3) {
            Err(Error::Sample { index: 2, message }) => message,
            other => panic!("{other:?}"),
        }
    };
    assert!(refuse(&|s| s.truncate(3)).contains("rejected"));
    assert!(refuse(&|s| s[3].prompt = [7].into()).contains("rejected"));
    let empty = |s: &mut Vec<Sample>| (s[2].completion, s[2].mask) = (vec![], vec![]);
    assert!(refuse(&empty).contains("at least one token"));
}

/// Held-out pairs are scored by another path than training: the same scores.
#[test]
fn values_are_the_scores_that_training_sees() {
    let (fixture, ctx) = (fixture(), context(1));
    let weights = scorer(ctx.memory(), &fixture);
    let samples = samples(&fixture, false);
    let sequences: Vec<_> =
        samples.iter().map(|s| PromptCompletion { prompt: &s.prompt, completion: &s.completion }).collect();
    let values = Scorer::new(ctx.memory(), 40, true).values(&ctx, &weights, &sequences).expect("scores");
    let last: Vec<f64> = values.iter().map(|v| f64::from(*v.last().expect("score"))).collect();
    let mean = last.iter().sum::<f64>() / last.len() as f64;
    close(mean, get(&fixture["cases"][0]["metrics"]["mean_reward"]), 1e-4, "mean_reward");
    assert_eq!(config().vocab_size, weights.config.vocab_size);
}
