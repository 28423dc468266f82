//! Compares a step on preference pairs, through the model, with TRL 1.16's `DPOTrainer`. TRL's numbers come from
//! `conformance/dpo_fixtures.py`.

use crate::common::model::{bits, context, policy, scaled};
use crate::common::{close, get};
use kernels::Context;
use model::columns::REF_LOGPS;
use model::{Columns, Prompt, PromptCompletion, Scorer};
use serde_json::Value;
use train::loss::dpo::DpoConfig;
use train::{
    Error, Objective, OptimizerConfig, PreferencePair, Response, Sample, Trainer, TrainerConfig, UpdateMetrics,
};

fn fixture() -> Value {
    let path = crate::common::directory().join("../dpo/cases.json");
    serde_json::from_str(&std::fs::read_to_string(path).expect("fixture")).expect("fixture")
}

/// The preference pairs, with the log-probabilities of the reference model.
fn pairs(ctx: &Context, fixture: &Value) -> Vec<PreferencePair> {
    let reference = scaled(ctx.memory(), get(&fixture["reference_scale"]));
    let mut scorer = Scorer::new(ctx.memory(), 40, true);
    let mut response = |prompt: &Prompt, ids: Vec<u32>| {
        let sequence = PromptCompletion { prompt: &prompt.ids, completion: &ids };
        let scores = scorer.score(ctx, &reference, &[sequence], 1.0).expect("scores").remove(0);
        Response { ids, columns: Columns::of([(REF_LOGPS, scores.logps)]) }
    };
    let pair = |pair: &Value| {
        let prompt = Prompt::new(get::<Vec<u32>>(&pair["prompt_ids"]));
        let [chosen, rejected] = ["chosen_ids", "rejected_ids"].map(|name| response(&prompt, get(&pair[name])));
        PreferencePair { prompt, chosen, rejected, margin: 0.0 }
    };
    fixture["pairs"].as_array().expect("pairs").iter().map(pair).collect()
}

fn trainer_config(config: DpoConfig, max_tokens_per_micro_batch: usize, prefix_sharing: bool) -> TrainerConfig {
    TrainerConfig {
        objective: Objective::Preference(config),
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
    let pairs = pairs(&ctx, &fixture);
    for case in fixture["cases"].as_array().expect("cases") {
        let given = &case["config"];
        let config = DpoConfig {
            beta: get(&given["beta"]),
            loss_type: get(&given["loss_type"][0]),
            label_smoothing: given["label_smoothing"].as_f64().unwrap_or(0.0),
            ..DpoConfig::default()
        };
        for sharing in [true, false] {
            let mut weights = policy(ctx.memory());
            let mut trainer =
                Trainer::new(ctx.memory(), &weights.config, trainer_config(config, 30, sharing)).expect("trainer");
            let metrics = trainer.update(&ctx, &mut weights, &pairs, 1e-3).expect("update");
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
        let pairs = pairs(&ctx, &fixture);
        let mut weights = policy(ctx.memory());
        let config = trainer_config(DpoConfig::default(), budget, true);
        let mut trainer = Trainer::new(ctx.memory(), &weights.config, config).expect("trainer");
        let mut update = || trainer.update(&ctx, &mut weights, &pairs, 1e-3).expect("update");
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
fn pairs_without_required_columns_are_refused() {
    let ctx = context(1);
    let good = pairs(&ctx, &fixture());
    let mut weights = policy(ctx.memory());
    let config = trainer_config(DpoConfig::default(), 1000, true);
    let mut trainer = Trainer::new(ctx.memory(), &weights.config, config).expect("trainer");
    let mut refuse = |spoil: &dyn Fn(&mut Response)| {
        let mut bad = good.clone();
        spoil(&mut bad[1].rejected);
        match trainer.update(&ctx, &mut weights, &bad, 1e-3) {
            Err(Error::Sample { index: 1, message }) => message,
            other => panic!("{other:?}"),
        }
    };
    assert!(refuse(&|r| drop(r.columns.remove(REF_LOGPS))).contains("ref_logps"));
    assert!(refuse(&|r| r.columns.set(REF_LOGPS, vec![])).contains("ref_logps"));
    assert!(refuse(&|r| *r = Response::from(vec![])).contains("at least one token"));
    assert!(refuse(&|r| r.ids[0] = 50).contains("token id 50"));
    let samples = [Sample::supervised(good[0].prompt.clone(), vec![3])];
    assert!(matches!(trainer.update(&ctx, &mut weights, &samples[..], 1e-3), Err(Error::Config(_))));
}
