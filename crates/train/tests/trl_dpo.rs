//! A step on preference pairs, through the model, against TRL 1.16's `DPOTrainer`: `conformance/dpo_fixtures.py` says how TRL's
//! numbers were made.

mod common;

use common::model::{bits, context, policy, scaled};
use common::{close, get};
use kernels::Context;
use model::{PromptCompletion, Scorer};
use serde_json::Value;
use std::sync::Arc;
use train::loss::dpo::DpoConfig;
use train::{Error, Objective, OptimizerConfig, Sample, Trainer, TrainerConfig, UpdateMetrics};

fn fixture() -> Value {
    let path = common::directory().join("../dpo/cases.json");
    serde_json::from_str(&std::fs::read_to_string(path).expect("fixture")).expect("fixture")
}

/// Chosen and rejected answers in turn, with the reference's log-probabilities.
fn samples(ctx: &Context, fixture: &Value) -> Vec<Sample> {
    let mut out = Vec::new();
    for pair in fixture["pairs"].as_array().expect("pairs") {
        let ids = |name: &str| get::<Vec<u32>>(&pair[name]);
        let prompt: Arc<[u32]> = ids("prompt_ids").into();
        out.extend(["chosen_ids", "rejected_ids"].map(|name| Sample::supervised(prompt.clone(), ids(name))));
    }
    let reference = scaled(ctx.memory(), get(&fixture["reference_scale"]));
    let sequences: Vec<_> =
        out.iter().map(|s| PromptCompletion { prompt: &s.prompt, completion: &s.completion }).collect();
    let scores = Scorer::new(ctx.memory(), 40, true).score(ctx, &reference, &sequences, 1.0).expect("scores");
    out.iter_mut().zip(scores).for_each(|(sample, scores)| sample.ref_logps = Some(scores.logps));
    out
}

fn trainer_config(config: DpoConfig, max_tokens_per_micro_batch: usize, prefix_sharing: bool) -> TrainerConfig {
    TrainerConfig {
        objective: Objective::Preference(config),
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
    let samples = samples(&ctx, &fixture);
    for case in fixture["cases"].as_array().expect("cases") {
        let given = &case["config"];
        let config = DpoConfig {
            beta: get(&given["beta"]),
            loss_type: get(&given["loss_type"][0]),
            label_smoothing: given["label_smoothing"].as_f64().unwrap_or(0.0),
        };
        for sharing in [true, false] {
            let mut weights = policy(ctx.memory());
            let mut trainer =
                Trainer::new(ctx.memory(), &weights.config, trainer_config(config, 30, sharing)).expect("trainer");
            let metrics = trainer.update(&ctx, &mut weights, &samples, 1e-3).expect("update");
            let title = format!("{given} sharing {sharing}");
            close(metrics.loss, get(&case["loss"]), 1e-4, &format!("{title} loss"));
            close(metrics.grad_norm, get(&case["grad_norm"]), 1e-3, &format!("{title} grad_norm"));
            let ours: std::collections::BTreeMap<_, _> = metrics.entries().into_iter().collect();
            let theirs = case["metrics"].as_object().expect("metrics");
            assert!(theirs.len() == 7, "{theirs:?}");
            for (name, value) in theirs {
                close(ours[name.as_str()], get(value), 1e-4, &format!("{title} {name}"));
            }
            assert!(metrics.micro_batches > 1 && !metrics.sampled && metrics.clip.is_none());
        }
    }
}

#[test]
fn threads_and_budget_change_no_bit_and_margins_grow() {
    let fixture = fixture();
    let run = |threads: usize, budget: usize| {
        let ctx = context(threads);
        let samples = samples(&ctx, &fixture);
        let mut weights = policy(ctx.memory());
        let config = trainer_config(DpoConfig::default(), budget, true);
        let mut trainer = Trainer::new(ctx.memory(), &weights.config, config).expect("trainer");
        let mut update = || trainer.update(&ctx, &mut weights, &samples, 1e-3).expect("update");
        let metrics: Vec<_> = (0..6).map(|_| update()).collect();
        let loss = |m: &UpdateMetrics| m.loss.to_bits();
        assert!(metrics[5].loss < 0.5 * metrics[0].loss, "{metrics:?}");
        (metrics.iter().map(loss).collect::<Vec<_>>(), bits(&weights))
    };
    let reference = run(1, 1000);
    for (threads, budget) in [(2, 1000), (1, 1), (2, 30)] {
        assert!(run(threads, budget) == reference, "{threads} threads, {budget} tokens: other bits");
    }
}

#[test]
fn refuses_what_is_no_pair() {
    let ctx = context(1);
    let good = samples(&ctx, &fixture());
    let mut weights = policy(ctx.memory());
    let config = trainer_config(DpoConfig::default(), 1000, true);
    let mut trainer = Trainer::new(ctx.memory(), &weights.config, config).expect("trainer");
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
    assert!(refuse(&|s| s[2].ref_logps = None).contains("ref_logps"));
    assert!(refuse(&|s| s[2].ref_logps = Some(vec![])).contains("ref_logps"));
    let empty = |s: &mut Vec<Sample>| (s[2].completion, s[2].mask, s[2].ref_logps) = (vec![], vec![], Some(vec![]));
    assert!(refuse(&empty).contains("at least one token"));
}
