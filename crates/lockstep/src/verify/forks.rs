//! Forks of forks, for every kind of run: each can be verified from its first step.

use super::tests::{directory, run, verified};
use super::*;
use crate::config::{Algorithm, Config, Layers, Strategy};
use crate::run::resume::find_run;
use crate::run::state::RunState;
use std::fs;

/// A change of keys by a fork.
type Change = fn(&mut Config);

/// Forks the run `of` at a step, and trains the fork to its end with a change.
fn forked(dir: &Path, of: &str, at: u64, out: &str, change: Change) -> anyhow::Result<PathBuf> {
    let (of, out) = (dir.join(of), dir.join(out));
    let say = |_: &str| {};
    let from = fork(&of, &ForkOptions { at: Step(at), out: &out, stop: StopSignal::new(), say: &say })?;
    let (run, resume_from) = find_run(&from.to_string_lossy(), None)?;
    let layers = Layers { purpose: Purpose::Grpo, file: Some(out.join("config.toml")), ..Layers::default() };
    let mut resolved = layers.resolve()?;
    change(&mut resolved.config);
    let ctx = crate::context(None, Some(1), resolved.config.dtype)?;
    Run::resolved(Purpose::Grpo, resolved, run, resume_from, RunOptions::new().context(ctx))?.run()?;
    Ok(out)
}

#[track_caller]
fn proven(root: &Path, steps: u64) {
    let report = verified(root);
    let what = root.display();
    assert!(report.difference.is_none() && report.not_verified.is_empty(), "{what}: {report:?}");
    assert_eq!(report.proven.iter().map(Interval::steps).sum::<u64>(), steps, "{what}: {report:?}");
    assert!(report.result.is_some(), "{what}: {report:?}");
}

fn evaluates(config: &mut Config) {
    config.eval_dataset_name.clone_from(&config.dataset_name);
    (config.eval_strategy, config.eval_steps) = (Strategy::Steps, Some(2));
    (config.load_best_model_at_end, config.metric_for_best_model) = (true, Some("reward".into()));
}

/// The kinds of run.
const KINDS: [(&str, Change); 9] = [
    ("plain", |_| {}),
    ("best", evaluates),
    ("worst", |c| {
        evaluates(c);
        c.greater_is_better = Some(false);
    }),
    ("iterations", |c| (c.num_iterations, c.beta) = (2, 0.1)),
    ("LoRA", |c| (c.use_peft, c.lora_r) = (true, 2)),
    ("PPO", |c| (c.algorithm, c.num_generations) = (Algorithm::Ppo, 1)),
    ("ahead", |c| c.max_staleness = 2),
    ("chunks", |c| (c.max_staleness, c.partial_rollout_tokens) = (2, Some(2))),
    ("all", |c| {
        evaluates(c);
        (c.use_peft, c.lora_r, c.max_staleness, c.num_iterations) = (true, 2, 1, 2);
    }),
];

/// The steps of three forks, each a fork of the one before.
const STEPS: [[u64; 3]; 2] = [[4, 5, 7], [3, 4, 4]];

#[test]
fn every_fork_of_a_fork_is_proven() {
    let (rate, clip, warmer): (Change, Change, Change) =
        (|c| c.learning_rate = 3e-3, |c| c.epsilon = 0.1, |c| (c.learning_rate, c.weight_decay) = (1e-3, 0.1));
    let mut best_before_fork = 0;
    for (place, (kind, change)) in KINDS.into_iter().enumerate() {
        let dir = directory();
        let root = run(dir.path(), |config| {
            config.max_steps = 8;
            change(config);
        });
        assert_eq!(root, dir.path().join("run"));
        let mut of = "run";
        let steps = STEPS[place % 2];
        for ((out, at), change) in ["a", "b", "c"].into_iter().zip(steps).zip([rate, clip, warmer]) {
            let fork = forked(dir.path(), of, at, out, change).unwrap_or_else(|e| panic!("{kind}, {out}: {e:#}"));
            proven(&fork, 8);
            let best = RunState::read(&fork.join("checkpoints/step-000008")).unwrap().best;
            best_before_fork += u64::from(best.is_some_and(|best| best.step < Step(at)));
            of = out;
        }
    }
    assert!(best_before_fork > 0, "at least one result must be the model of a checkpoint before the fork");
}

/// Without a change, a fork has the result of the original, even if that is an earlier checkpoint's model.
#[test]
fn an_unchanged_fork_has_the_best_model_of_the_original() {
    let dir = directory();
    let mut earlier = 0;
    for (name, greater) in [("run", true), ("other", false)] {
        let root = run(dir.path(), |config| {
            evaluates(config);
            config.greater_is_better = Some(greater);
            config.output_dir = Some(dir.path().join(name));
        });
        assert!(root.ends_with("run"));
        let of = dir.path().join(name);
        let out = format!("{name}-5");
        let fork = forked(dir.path(), name, 5, &out, |_| {}).unwrap();
        let weights = |root: &Path| fs::read(root.join("model/model.safetensors")).unwrap();
        assert!(weights(&of) == weights(&fork), "{name}");
        proven(&fork, 6);
        let best = RunState::read(&of.join("checkpoints/step-000006")).unwrap().best.unwrap();
        earlier += u64::from(best.step < Step(4));
        if best.step < Step(4) {
            // If the fork's best checkpoint is missing, the fork reports this, and its result is its last model.
            let messages = std::cell::RefCell::new(Vec::new());
            let say = |text: &str| messages.borrow_mut().push(text.to_owned());
            fs::remove_dir_all(of.join(format!("checkpoints/step-{:06}", best.step))).unwrap();
            let out = dir.path().join(format!("{name}-gone"));
            fork_of_best(&of, &out, &say);
            let words = format!("the best checkpoint up to step 5, of step {}, is missing: unless", best.step);
            assert!(messages.borrow().iter().any(|text| text.starts_with(&words)), "{messages:?}");
        }
    }
    assert!(earlier > 0, "at least one run must be best before its end");
}

fn fork_of_best(of: &Path, out: &Path, say: &dyn Fn(&str)) {
    fork(of, &ForkOptions { at: Step(5), out, stop: StopSignal::new(), say }).unwrap();
}

/// A resume from an older checkpoint repeats the later steps, without the changes by earlier starts.
#[test]
fn a_run_resumed_from_an_older_checkpoint_can_be_proven_and_forked() {
    let dir = directory();
    let root = run(dir.path(), |_| {});
    let resumed = |from: &str, change: Change| {
        let (run, resume_from) = find_run(&root.join(from).to_string_lossy(), None).unwrap();
        let layers = Layers { purpose: Purpose::Grpo, file: Some(root.join("config.toml")), ..Layers::default() };
        let mut resolved = layers.resolve().unwrap();
        change(&mut resolved.config);
        let ctx = crate::context(None, Some(1), resolved.config.dtype).unwrap();
        Run::resolved(Purpose::Grpo, resolved, run, resume_from, RunOptions::new().context(ctx))
            .unwrap()
            .run()
            .unwrap();
    };
    resumed("checkpoints/step-000004", |c| (c.learning_rate, c.max_steps) = (3e-3, 8));
    resumed("checkpoints/step-000006", |c| c.epsilon = 0.1);
    resumed("checkpoints/step-000002", |c| (c.weight_decay, c.save_steps) = (0.1, 3));
    proven(&root, 8);
    for at in [1, 2, 5, 7] {
        let fork = forked(dir.path(), "run", at, &format!("fork-{at}"), |c| c.learning_rate = 1e-3).unwrap();
        // The first start had fewer steps.
        proven(&fork, if at > 2 { 8 } else { 6 });
    }
    // If the checkpoint of a start is missing, its interval cannot be replayed, and this is reported.
    fs::remove_dir_all(root.join("checkpoints/step-000002")).unwrap();
    let report = verified(&root);
    assert!(report.difference.is_none());
    let why = "steps 1 to 3: the configuration was changed after step 2, whose checkpoint no longer exists";
    assert_eq!(report.not_verified, [why]);
    let error = forked(dir.path(), "run", 3, "late", |_| {}).err().map(|error| error.to_string());
    assert!(error.is_none(), "{error:?}");
}
