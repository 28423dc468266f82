//! Tests with runs that waste time, each in one way; the profile's finding must name it.

use super::{config, directory, one_thread, rows};
use crate::config::{Config, Purpose, Strategy};
use crate::{Flow, Run, RunOptions};
use std::time::Duration;

/// Options with a reward that counts vowels, so that scores within a group differ.
fn options() -> RunOptions {
    let options = RunOptions::new().context(one_thread()).train_rows(rows()).eval_rows(rows()).profiled();
    options.reward("vowels", |sample| {
        Some(sample.completion_text().chars().filter(|c| "aeiou".contains(*c)).count() as f64)
    })
}

/// The findings of a run. The finding that cores are shared is left out, because other tests run at the same time.
fn found(change: impl FnOnce(&mut Config), options: RunOptions) -> (Vec<String>, crate::ProfileRecord) {
    let dir = directory();
    let mut config = Config { max_steps: 8, save_strategy: Strategy::No, ..config(dir.path(), "run") };
    change(&mut config);
    let result = Run::new(Purpose::Grpo, config, options).unwrap().run().unwrap();
    let read = crate::ProfileRecord::read(result.dir.root()).unwrap();
    assert_eq!(read, result.profile);
    let ids = read.findings.iter().map(|finding| finding.id.clone());
    (ids.filter(|id| !["cores_shared", "oversubscribed"].contains(&&**id)).collect(), read)
}

#[track_caller]
fn finds(id: &str, change: impl FnOnce(&mut Config), options: RunOptions) -> crate::ProfileRecord {
    let (ids, profile) = found(change, options);
    assert!(ids.contains(&id.to_owned()), "{id}: {ids:?} of {:?}", profile.measured);
    profile
}

#[test]
fn a_slow_reward_is_named() {
    let slow = options().reward("slow", |_| {
        std::thread::sleep(Duration::from_millis(20));
        Some(1.0)
    });
    let profile = finds("reward_bound", |_| {}, slow);
    assert!(profile.findings[0].evidence.contains("most of it for `slow`"), "{:?}", profile.findings[0]);
    assert_eq!(profile.measured.span(), (2, 8), "the first step is left out");
}

#[test]
fn a_reward_that_says_the_same_of_everything_is_named() {
    let same = RunOptions::new().context(one_thread()).train_rows(rows()).profiled().reward("same", |_| Some(1.0));
    finds("zero_spread", |_| {}, same);
}

#[test]
fn what_callbacks_evaluations_and_checkpoints_take_is_named() {
    let idle = options().on_step(|_| {
        std::thread::sleep(Duration::from_millis(50));
        Flow::Continue(())
    });
    finds("data_bound", |_| {}, idle);
    let evaluates = |config: &mut Config| {
        (config.eval_strategy, config.eval_steps, config.num_generations_eval) = (Strategy::Steps, Some(1), Some(64));
    };
    // (It could not be, were evaluations part of the steps' time.)
    finds("evaluation_bound", evaluates, options());
    let saves = |config: &mut Config| (config.save_strategy, config.save_steps) = (Strategy::Steps, 1);
    finds("checkpoint_bound", saves, options());
}

#[test]
fn sequences_of_a_step_and_tails_are_counted() {
    let long = |config: &mut Config| {
        config.max_completion_length = 56;
        config.per_device_train_batch_size = 2;
        config.gradient_accumulation_steps = 1;
        config.num_generations = 2;
    };
    // (Of so small a model decoding is not what takes long.)
    let (_, profile) = found(long, options());
    let live = profile.measured.count("decode_passes") / profile.measured.count("decode_steps");
    assert!((1.0..=2.0).contains(&live), "{:?}", profile.measured.counts);
    assert!(profile.measured.stage("rollout/decode") > 0.0 && profile.measured.tail.completions == 14);
    // A model of 64 tokens needs a page for each sequence, so none is ever taken from another.
    assert_eq!(profile.measured.count("preemptions"), 0.0);
}
