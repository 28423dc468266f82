//! Compares a whole optimizer step, through the model, with TRL 1.16's `GRPOTrainer` on the same rollouts, rewards and
//! weights. TRL's numbers come from `conformance/trl_fixtures.py`.

use crate::common::model::{context, elements, policy, scaled};
use crate::common::{Fixture, close, get};
use model::columns::REF_LOGPS;
use model::weights::NamedMut;
use model::{GroupId, Params, PromptCompletion, Scorer, Weights};
use train::{Objective, OptimizerConfig, Sample, Trainer, TrainerConfig};

/// Log-probabilities and entropies of the fixture's completions under `weights`.
fn score(fixture: &Fixture, weights: &Weights) -> (Vec<Vec<f32>>, Vec<Vec<f32>>) {
    let ctx = context(1);
    let pair = |(i, completion): (usize, _)| PromptCompletion {
        prompt: fixture.prompts[i / fixture.num_generations()].as_slice(),
        completion,
    };
    let sequences: Vec<_> = fixture.completions.iter().map(Vec::as_slice).enumerate().map(pair).collect();
    let mut scorer = Scorer::new(ctx.memory(), 1000, true);
    let temperature = get(&fixture.json["common"]["temperature"]);
    let scores = scorer.score(&ctx, weights, &sequences, temperature).expect("scores");
    scores.into_iter().map(|s| (s.logps, s.entropies)).unzip()
}

fn trainer_config(fixture: &Fixture, objective: Objective, optimizer: OptimizerConfig) -> TrainerConfig {
    TrainerConfig {
        objective,
        optimizer,
        adapter: None,
        temperature: get(&fixture.json["common"]["temperature"]),
        max_tokens_per_micro_batch: 30,
        skip_zero_gradients: false,
        prefix_sharing: true,
        gradient_checkpointing: false,
        gradient_shares: 1,
    }
}

fn reference_scale(fixture: &Fixture) -> f32 {
    get(&fixture.json["common"]["reference_scale"])
}

#[test]
fn log_probabilities_and_entropies_match_trl() {
    let fixture = Fixture::load();
    let memory = context(1).memory().clone();
    let (logps, entropies) = score(&fixture, &policy(&memory));
    let (ref_logps, _) = score(&fixture, &scaled(&memory, reference_scale(&fixture)));
    for (ours, theirs) in [(logps, &fixture.logps), (entropies, &fixture.entropies), (ref_logps, &fixture.ref_logps)] {
        assert_eq!(ours.len(), theirs.len());
        for (i, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
            assert_eq!(ours.len(), theirs.len());
            ours.iter()
                .zip(theirs)
                .for_each(|(a, b)| close(f64::from(*a), f64::from(*b), 1e-4, &format!("completion {i}")));
        }
    }
}

#[test]
fn every_step_matches_trl() {
    let fixture = Fixture::load();
    let ctx = context(1);
    let (on, _) = score(&fixture, &policy(ctx.memory()));
    let (reference, _) = score(&fixture, &scaled(ctx.memory(), reference_scale(&fixture)));
    for case in &fixture.cases {
        let mut weights = policy(ctx.memory());
        let mut samples: Vec<Sample> = fixture.samples(case, &on, weights.version);
        samples.iter_mut().zip(&reference).for_each(|(s, r)| s.columns.set(REF_LOGPS, r.clone()));
        let optimizer = OptimizerConfig {
            max_grad_norm: case.json["config"]["max_grad_norm"].as_f64().unwrap_or(0.0),
            weight_decay: case.json["config"]["weight_decay"].as_f64().unwrap_or(0.0),
            ..OptimizerConfig::default()
        };
        let config = trainer_config(&fixture, Objective::Policy(case.loss.clone()), optimizer);
        let mut trainer = Trainer::new(ctx.memory(), &weights.config, config).expect("trainer");
        let rate = get(&fixture.json["common"]["learning_rate"]);
        let metrics = trainer.update(&ctx, &mut weights, &samples, rate).expect("update");

        let title = &case.title;
        // On-policy, the terms of a loss cancel up to about 1e-7 in f32 log-probabilities.
        close(metrics.loss, get(&case.json["loss"]), 1e-4, &format!("{title} loss"));
        close(metrics.grad_norm, get(&case.json["grad_norm"]), 1e-3, &format!("{title} grad_norm"));
        let clip = metrics.clip.expect("a policy loss");
        assert_eq!(metrics.kl.is_some(), case.metric("kl").is_some(), "{title}");
        for (name, ours) in [
            ("entropy", metrics.entropy),
            ("kl", metrics.kl),
            ("clip_ratio/low_mean", Some(clip.low_mean)),
            ("clip_ratio/low_min", Some(clip.low_min)),
            ("clip_ratio/high_mean", Some(clip.high_mean)),
            ("clip_ratio/high_max", Some(clip.high_max)),
            ("clip_ratio/region_mean", Some(clip.region_mean)),
        ] {
            if let Some(ours) = ours {
                close(ours, case.metric(name).expect(name), 1e-4, &format!("{title} {name}"));
            }
        }
        assert!(metrics.micro_batches > 1 && !metrics.skipped && weights.version.0 == 2, "{title}: {metrics:?}");
        // One group in 64 is compared, including group 0.
        let counted = samples.iter().filter(|sample| sample.group == GroupId(0));
        let sampled = counted.flat_map(|s| &s.loss_mask).filter(|&&m| m).count() as u64;
        assert_eq!(metrics.logp_compared_tokens, if case.changed { 0 } else { sampled });
        assert_eq!(metrics.logp_mismatch_tokens, 0, "{title}");

        if case.json["name"] == "step" {
            let before = elements(&policy(ctx.memory()));
            let mut after = Params::zeros(ctx.memory(), &weights.config);
            let path = crate::common::directory().join("after.safetensors");
            model::io::load_tensors(&path, &mut NamedMut { params: &mut after }).expect("after");
            let theirs = elements(&model::weights::Named { params: &after });
            let change = |x: &[f32]| -> Vec<f32> { x.iter().zip(&before).map(|(a, b)| a - b).collect() };
            let error = kernels::check::relative_error(&change(&elements(&weights)), &change(&theirs));
            assert!(error < 1e-3, "the weights differ from TRL's: {error}");
        }
    }
}
