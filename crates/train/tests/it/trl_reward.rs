//! Compares a step of a reward model, trunk and head, with TRL 1.16's `RewardTrainer`. TRL's numbers come from
//! `conformance/reward_fixtures.py`.

use crate::common::model::{bits, config, context, policy};
use crate::common::{close, get};
use kernels::Memory;
use model::io::TensorSink;
use model::{Prompt, PromptCompletion, Scorer, Weights};
use serde_json::Value;
use std::collections::BTreeMap;
use train::{Error, Objective, OptimizerConfig, PreferencePair, RankingConfig, Trainer, TrainerConfig};

fn fixture() -> Value {
    let path = crate::common::directory().join("../reward/cases.json");
    serde_json::from_str(&std::fs::read_to_string(path).expect("fixture")).expect("fixture")
}

/// The policy's trunk with the fixture's score head.
fn scorer(memory: &Memory, fixture: &Value) -> Weights {
    let mut weights = Weights::scorer(memory, &policy(memory));
    weights.put("score.weight", &get::<Vec<f32>>(&fixture["head"])).expect("head");
    weights
}

fn pairs(fixture: &Value, margins: bool) -> Vec<PreferencePair> {
    let pair = |pair: &Value| PreferencePair {
        prompt: Prompt::new(get::<Vec<u32>>(&pair["prompt_ids"])),
        chosen: get::<Vec<u32>>(&pair["chosen_ids"]).into(),
        rejected: get::<Vec<u32>>(&pair["rejected_ids"]).into(),
        margin: if margins { get(&pair["margin"]) } else { 0.0 },
    };
    fixture["pairs"].as_array().expect("pairs").iter().map(pair).collect()
}

fn trainer_config(c: Option<f64>, max_tokens_per_micro_batch: usize, prefix_sharing: bool) -> TrainerConfig {
    TrainerConfig {
        objective: Objective::Ranking(RankingConfig { center_rewards_coefficient: c }),
        optimizer: OptimizerConfig::default(),
        adapter: None,
        temperature: 1.0,
        max_tokens_per_micro_batch,
        skip_zero_gradients: false,
        prefix_sharing,
        gradient_checkpointing: false,
        gradient_shares: 1,
    }
}

#[test]
fn every_step_matches_trl() {
    let (fixture, ctx) = (fixture(), context(1));
    let cases = fixture["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 7);
    for case in cases {
        let given = &case["config"];
        let pairs = pairs(&fixture, get(&given["margins"]));
        for (sharing, budget) in [(true, 1000), (true, 30), (false, 30)] {
            let mut weights = scorer(ctx.memory(), &fixture);
            let config = trainer_config(given["center_rewards_coefficient"].as_f64(), budget, sharing);
            let mut trainer = Trainer::new(ctx.memory(), &weights.config, config).expect("trainer");
            let metrics = trainer.update(&ctx, &mut weights, &pairs, 1e-3).expect("update");
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

/// Margin and centering must change the results of the fixture, so that a step which ignores them would be detected.
#[test]
fn margin_and_centering_change_the_results() {
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
fn threads_and_budget_change_no_bit_and_the_loss_falls() {
    let fixture = fixture();
    let run = |threads: usize, budget: usize| {
        let ctx = context(threads);
        let pairs = pairs(&fixture, true);
        let mut weights = scorer(ctx.memory(), &fixture);
        let config = trainer_config(Some(0.01), budget, true);
        let mut trainer = Trainer::new(ctx.memory(), &weights.config, config).expect("trainer");
        let mut update = || trainer.update(&ctx, &mut weights, &pairs, 1e-3).expect("update");
        let metrics: Vec<_> = (0..6).map(|_| update()).collect();
        assert!(metrics[5].loss < 0.7 * metrics[0].loss, "{metrics:?}");
        (metrics.iter().map(|m| m.loss.to_bits()).collect::<Vec<_>>(), bits(&weights))
    };
    let reference = run(1, 1000);
    for (threads, budget) in [(2, 1000), (1, 1), (2, 30)] {
        assert!(run(threads, budget) == reference, "{threads} threads, {budget} tokens: other bits");
    }
}

#[test]
fn pairs_without_prompt_or_responses_are_refused() {
    let (fixture, ctx) = (fixture(), context(1));
    let good = pairs(&fixture, true);
    let mut weights = scorer(ctx.memory(), &fixture);
    let mut trainer = Trainer::new(ctx.memory(), &weights.config, trainer_config(None, 1000, true)).expect("trainer");
    let mut refuse = |spoil: &dyn Fn(&mut PreferencePair)| {
        let mut bad = good.clone();
        spoil(&mut bad[1]);
        match trainer.update(&ctx, &mut weights, &bad, 1e-3) {
            Err(Error::Sample { index: 1, message }) => message,
            other => panic!("{other:?}"),
        }
    };
    assert!(refuse(&|p| p.rejected.ids.clear()).contains("at least one token"));
    assert!(refuse(&|p| p.prompt = Prompt::new([])).contains("the prompt is empty"));
}

/// Scoring held-out pairs uses another code path than training, and must give the same scores.
#[test]
fn held_out_scores_equal_the_scores_in_training() {
    let (fixture, ctx) = (fixture(), context(1));
    let weights = scorer(ctx.memory(), &fixture);
    let pairs = pairs(&fixture, false);
    let both = pairs.iter().flat_map(|p| [&p.chosen, &p.rejected].map(|r| (&p.prompt.ids, &r.ids)));
    let sequences: Vec<_> = both.map(|(prompt, completion)| PromptCompletion { prompt, completion }).collect();
    let scores = Scorer::new(ctx.memory(), 40, true).sequence_scores(&ctx, &weights, &sequences).expect("scores");
    let mean = scores.iter().map(|&r| f64::from(r)).sum::<f64>() / scores.len() as f64;
    close(mean, get(&fixture["cases"][0]["metrics"]["mean_reward"]), 1e-4, "mean_reward");
    assert_eq!(config().vocab_size, weights.config.vocab_size);
}
