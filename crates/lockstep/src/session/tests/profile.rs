//! The profile of real runs.

use super::{config, directory, one_thread, rows};
use crate::config::{Config, Purpose, Strategy};
use crate::{Flow, Run, RunOptions};
use telemetry::Step;

/// Options with a reward that counts vowels, so that scores within a group differ.
fn options() -> RunOptions {
    let options = RunOptions::new().context(one_thread()).train_rows(rows()).eval_rows(rows()).profiled();
    options.reward("vowels", |sample| {
        Some(sample.completion_text().chars().filter(|c| "aeiou".contains(*c)).count() as f64)
    })
}

/// The findings of a run, without the finding that cores are shared, since other tests run at the same time.
fn found(change: impl FnOnce(&mut Config), options: RunOptions) -> (Vec<String>, crate::run::profile::ProfileRecord) {
    let dir = directory();
    let mut config = Config { max_steps: 8, save_strategy: Strategy::No, ..config(dir.path(), "run") };
    change(&mut config);
    let result = Run::new(Purpose::Grpo, config, options).unwrap().run().unwrap();
    let read = crate::run::profile::ProfileRecord::read(result.dir.root()).unwrap();
    assert_eq!(read, result.profile);
    let ids = read.findings.iter().map(|finding| finding.id.clone());
    (ids.filter(|id| !["cores_shared", "oversubscribed"].contains(&&**id)).collect(), read)
}

/// The slowest measured stage depends on the machine. The rules themselves are tested on given measurements
/// (`run/profile/tests.rs`).
#[test]
fn the_seconds_of_each_reward_are_measured() {
    let (_, profile) = found(|_| {}, options().reward("slow", |_| Some(1.0)));
    let names: Vec<&str> = profile.measured.rewards.keys().map(String::as_str).collect();
    assert_eq!(names, ["slow", "vowels"]);
    assert!(profile.measured.rewards.values().all(|seconds| *seconds > 0.0) && profile.measured.stage("rewards") > 0.0);
    assert_eq!(profile.measured.span(), (Step(2), Step(8)), "the first step is left out");
}

#[test]
fn a_constant_reward_is_a_finding() {
    let same = RunOptions::new().context(one_thread()).train_rows(rows()).profiled().reward("same", |_| Some(1.0));
    let (ids, profile) = found(|_| {}, same);
    assert!(ids.contains(&"zero_spread".to_owned()), "{ids:?} of {:?}", profile.measured);
}

#[test]
fn each_part_of_a_run_is_a_stage() {
    let with_all = |config: &mut Config| {
        (config.eval_strategy, config.eval_steps) = (Strategy::Steps, Some(1));
        (config.save_strategy, config.save_steps) = (Strategy::Steps, 1);
    };
    let (_, profile) = found(with_all, options().on_step(|_| Flow::Continue(())));
    let measured = &profile.measured;
    let stages = ["rollout", "rewards", "batch", "update", "log", "callbacks", "checkpoint", "evaluation"];
    for stage in stages {
        assert!(measured.stage(stage) > 0.0, "{stage}: {:?}", measured.stages);
    }
    let outermost: Vec<&str> =
        measured.stages.iter().map(|stage| &*stage.path).filter(|path| !path.contains('/')).collect();
    assert!(outermost.iter().all(|stage| stages.contains(stage)), "{outermost:?}");
}

/// An evaluation generates a hundred times as many completions as a step, so it takes longer on any machine. If it were
/// part of the steps, it could not take more than half of their seconds.
#[test]
fn an_evaluation_is_not_part_of_a_steps_seconds() {
    let evaluates = |config: &mut Config| {
        (config.eval_strategy, config.eval_steps, config.num_generations_eval) = (Strategy::Steps, Some(1), Some(64));
    };
    let (_, profile) = found(evaluates, options());
    let measured = &profile.measured;
    assert!(measured.stage("evaluation") > measured.seconds, "{measured:?}");
}

#[test]
fn sequences_per_decode_step_and_tails_are_counted() {
    let long = |config: &mut Config| {
        config.max_completion_length = 56;
        config.per_device_train_batch_size = 2;
        config.gradient_accumulation_steps = 1;
        config.num_generations = 2;
    };
    // (Decoding is not the slow part of such a small model.)
    let (_, profile) = found(long, options());
    let live = profile.measured.count("decode_passes") / profile.measured.count("decode_steps");
    assert!((1.0..=2.0).contains(&live), "{:?}", profile.measured.counts);
    assert!(profile.measured.stage("rollout/decode") > 0.0 && profile.measured.tail.completions == 14);
    // With a model of 64 tokens each sequence needs one page, so none is preempted.
    assert_eq!(profile.measured.count("preemptions"), 0.0);
}
