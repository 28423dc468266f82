//! Compares advantages, losses, gradients with respect to log-probabilities, metrics, AdamW and the schedules with TRL
//! 1.16 and torch, given TRL's log-probabilities. `trl_step.rs` makes the same comparison through the model.

use crate::common::{Fixture, close, distance, get};
use train::loss::{LossSums, Normalizer, Sequence, policy};
use train::{Schedule, ScheduleArguments, ScheduleKind};

#[test]
fn advantages_and_reward_metrics_match_trl() {
    let fixture = Fixture::load();
    for case in &fixture.cases {
        let ours = fixture.advantages(case);
        let theirs: Vec<f64> = get(&case.json["advantages"]);
        for (a, b) in ours.advantages.iter().zip(&theirs) {
            close(a.mean().unwrap_or(f64::NAN), *b, 1e-5, &case.title);
        }
        assert_eq!(ours.metrics.len(), 7);
        for (name, value) in &ours.metrics {
            let theirs = case.metric(name).unwrap_or_else(|| panic!("{} has no {name}", case.title));
            close(value.expect("a number"), theirs, 1e-5, &format!("{} {name}", case.title));
        }
    }
}

#[test]
fn losses_gradients_and_metrics_match_trl() {
    let fixture = Fixture::load();
    assert_eq!(fixture.cases.len(), 112);
    let mut clipped = 0;
    for case in &fixture.cases {
        let samples = fixture.samples(case, &fixture.logps, model::Updates(0));
        let masks: Vec<Vec<bool>> = samples.iter().map(|s| case.loss.loss_mask(s)).collect();
        let normalizer = Normalizer::of(&masks);
        let mut sums = LossSums::default();
        let mut d_logps = Vec::new();
        for (i, sample) in samples.iter().enumerate() {
            let sequence = Sequence {
                logps: &fixture.logps[i],
                entropies: &fixture.entropies[i],
                old_logps: sample.old_logps(),
                sampler_logps: sample.columns.sampler_logps().expect("recorded"),
                ref_logps: sample.columns.ref_logps(),
                mask: &masks[i],
                advantage: &sample.advantage,
            };
            let mut d = vec![f32::NAN; masks[i].len()];
            policy(&case.loss, &normalizer, &sequence, &mut d, &mut sums);
            d_logps.push(d);
        }
        close(sums.loss, get(&case.json["loss"]), 1e-5, &case.title);
        let error = distance(&d_logps, &case.d_logps);
        assert!(error < 1e-5, "{}: gradient {error}", case.title);
        if case.loss.beta != 0.0 {
            close(sums.kl_mean().expect("tokens"), case.metric("kl").expect("kl"), 1e-5, &case.title);
        }
        let clip = sums.clip_ratios().expect("tokens");
        for (name, ours) in [
            ("clip_ratio/low_mean", clip.low_mean),
            ("clip_ratio/low_min", clip.low_min),
            ("clip_ratio/high_mean", clip.high_mean),
            ("clip_ratio/high_max", clip.high_max),
            ("clip_ratio/region_mean", clip.region_mean),
        ] {
            close(ours, case.metric(name).expect(name), 1e-6, &format!("{} {name}", case.title));
        }
        clipped += u32::from(clip.low_mean > 0.0 && clip.high_mean > 0.0);
    }
    assert!(clipped > 40, "only {clipped} cases clip on both sides");
}

#[test]
fn schedules_match_transformers() {
    let fixture = Fixture::load();
    for (name, rates) in fixture.json["schedules"].as_object().expect("schedules") {
        let mut words = name.split(' ');
        let kind: ScheduleKind = get(&words.next().expect("kind").into());
        let mut number = || words.next().expect("number").parse().expect("number");
        let arguments = ScheduleArguments::of(kind);
        let schedule = Schedule { kind, arguments, learning_rate: 0.5, warmup_steps: number(), total_steps: number() };
        for (step, rate) in get::<Vec<f64>>(rates).iter().enumerate() {
            assert!(
                (schedule.at(step as u64) - rate).abs() < 1e-15,
                "{name} at {step}: {} {rate}",
                schedule.at(step as u64)
            );
        }
    }
}
