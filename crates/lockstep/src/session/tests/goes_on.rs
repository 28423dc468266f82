//! Runs with workers that continue after a stop or after their last step. The tests vary the configuration, the time of
//! the stop, and whether workers or a single process did the steps before. A stop leaves a checkpoint of the last step.
//! Learner and workers are threads.

use super::super::worker::{WorkerOptions, work};
use super::{config, directory, rows};
use crate::config::{Algorithm, ComputeDType, Config, Purpose, Strategy, Trust};
use crate::sources::workers::NatsServer;
use crate::{Run, RunOptions, RunResult, StopReason, StopSignal};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use telemetry::Step;

type Change = fn(&mut Config);

/// The kinds of runs: a name, `max_staleness`, and further configuration.
const KINDS: [(&str, usize, Change); 14] = [
    ("no staleness", 0, |_| {}),
    ("one batch ahead", 1, |_| {}),
    ("two batches ahead", 2, |_| {}),
    ("more batches ahead than the run has", 9, |_| {}),
    ("chunks", 2, |c| c.partial_rollout_tokens = Some(2)),
    ("chunks of one batch ahead", 1, |c| (c.partial_rollout_tokens, c.num_iterations) = (Some(3), 2)),
    ("several iterations", 2, |c| (c.num_iterations, c.beta) = (2, 0.1)),
    ("several steps of a batch", 1, |c| c.steps_per_generation = Some(2)),
    ("an adapter", 1, |c| (c.use_peft, c.lora_r) = (true, 2)),
    ("bf16", 1, |c| c.dtype = ComputeDType::Bf16),
    ("PPO", 1, |c| (c.algorithm, c.num_mini_batches, c.num_ppo_epochs) = (Algorithm::Ppo, 2, 2)),
    ("evaluations", 1, |c| (c.eval_strategy, c.eval_steps) = (Strategy::Steps, Some(1))),
    ("audits", 2, |c| (c.trust, c.audit_share, c.audit_stale) = (Trust::Audit, 1.0, 1.0)),
    ("checkpoints only at stops", 1, |c| c.save_strategy = Strategy::No),
];

/// The learner and two workers, in a directory.
struct Place {
    dir: tempfile::TempDir,
    change: Change,
    staleness: usize,
}

/// The time of a stop request: after this step, or during this call of the learner's reward.
#[derive(Clone, Copy, Debug)]
enum Stop {
    Never,
    AfterStep(u64),
    InReward(usize),
}

impl Place {
    fn config(&self, out: &str, steps: i64) -> Config {
        let mut config = Config {
            max_staleness: self.staleness,
            reward_funcs: vec!["unique_chars".into(), "function:length".into()],
            record_rollouts: true,
            max_steps: steps,
            save_steps: 100,
            logging_steps: 1,
            ..config(self.dir.path(), out)
        };
        (self.change)(&mut config);
        config
    }

    /// Options with a reward that the learner calls.
    fn options(&self, stop: Stop) -> RunOptions {
        let (signal, calls) = (StopSignal::new(), Arc::new(AtomicUsize::new(0)));
        let ctx = crate::context(None, Some(1), self.config("", 1).dtype).unwrap();
        let options = RunOptions::new().context(ctx).train_rows(rows()).eval_rows(rows());
        let (in_reward, after_step) = (signal.clone(), signal.clone());
        let options = options.reward("length", move |sample| {
            let call = calls.fetch_add(1, Ordering::Relaxed);
            if matches!(stop, Stop::InReward(at) if at == call) {
                in_reward.request();
            }
            Some(sample.completion_ids().iter().map(|&id| f64::from(id)).sum())
        });
        options.stop_signal(signal).on_step(move |step| {
            if matches!(stop, Stop::AfterStep(at) if Step(at) == step) {
                after_step.request();
            }
            ControlFlow::Continue(())
        })
    }

    /// Starts the run, with or without workers.
    fn run(&self, out: &Path, by_workers: bool, stop: Stop, run: impl FnOnce(RunOptions) -> Run) -> RunResult {
        let options = self.options(stop);
        let run = run(if by_workers { options.distributed(None) } else { options });
        std::thread::scope(|scope| {
            let ended = StopSignal::new();
            for name in ["dev0", "dev1"].into_iter().filter(|_| by_workers) {
                let stop = ended.clone();
                scope.spawn(move || {
                    let worked = work(WorkerOptions {
                        run: out,
                        server: NatsServer::default(),
                        name,
                        threads: Some(1),
                        profiles: Vec::new(),
                        rewards: None,
                        allow_other_build: false,
                        waits: true,
                        stop,
                        say: &|_| {},
                    });
                    assert!(worked.as_ref().map_or_else(crate::is_stopped, |()| true), "{worked:?}");
                });
            }
            let result = run.run();
            ended.request();
            result.unwrap()
        })
    }

    fn begin(&self, out: &str, steps: i64, by_workers: bool, stop: Stop) -> RunResult {
        let config = self.config(out, steps);
        self.run(&self.dir.path().join(out), by_workers, stop, |options| {
            Run::new(Purpose::Grpo, config, options).unwrap()
        })
    }

    /// Resumes the run in `out`, with `steps` steps in all.
    fn resume(&self, out: &str, steps: i64, by_workers: bool) -> RunResult {
        let root = self.dir.path().join(out);
        let file = root.join("config.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        let lines = text.lines().map(|line| {
            if line.starts_with("max_steps") { format!("max_steps = {steps}\n") } else { format!("{line}\n") }
        });
        std::fs::write(&file, lines.collect::<String>()).unwrap();
        self.run(&root, by_workers, Stop::Never, |options| Run::resume(Purpose::Grpo, &root, options).unwrap())
    }
}

/// The files that must have the same bits: the weights, and the trained groups.
fn bits(run: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let model = ["model.safetensors", "adapter_model.safetensors"].map(|name| run.join("model").join(name));
    let all = model.into_iter().filter(|file| file.is_file()).chain([run.join("rollouts.bin")]);
    all.map(|file| (file.strip_prefix(run).unwrap().to_owned(), std::fs::read(&file).unwrap())).collect()
}

fn each_kind(try_it: impl Fn(&Place)) {
    let mut failed = Vec::new();
    for (name, staleness, change) in KINDS {
        let place = Place { dir: directory(), change, staleness };
        if let Err(why) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| try_it(&place))) {
            failed.push((name, why.downcast_ref::<String>().cloned()));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// A stop also leaves a checkpoint if the learner's own reward is called after it, to score groups generated ahead.
#[test]
fn a_stop_leaves_a_checkpoint_that_resumes() {
    each_kind(|place| {
        let whole = place.begin("whole", 6, false, Stop::Never);
        for (number, stop) in [Stop::AfterStep(1), Stop::AfterStep(3), Stop::InReward(9)].into_iter().enumerate() {
            let out = format!("stopped-{number}");
            let stopped = place.begin(&out, 6, true, stop);
            assert_eq!(stopped.stop_reason, StopReason::Interrupted, "{stop:?}");
            assert!(
                stopped.step >= Step(1) && stopped.dir.checkpoint(stopped.step).is_dir(),
                "{stop:?}: {}",
                stopped.step
            );
            // The run resumes with or without workers.
            let ended = place.resume(&out, 6, number != 1);
            assert_eq!((ended.stop_reason, ended.step.0), (StopReason::Completed, 6));
            assert!(bits(ended.dir.root()) == bits(whole.dir.root()), "{stop:?}");
        }
    });
}

#[test]
fn a_completed_run_resumes_with_more_steps() {
    each_kind(|place| {
        // Four steps end with a complete batch, but three do not if a batch serves two steps.
        let config = place.config("", 1);
        let serves_several = config.steps_per_pass() > 1 || config.num_iterations > 1;
        for steps in [4, 3].into_iter().filter(|steps| *steps == 4 || serves_several) {
            let done = |first: bool, second: bool| {
                let out = format!("{steps}-{first}-{second}");
                let begun = place.begin(&out, steps, first, Stop::Never);
                assert_eq!((begun.stop_reason, begun.step.0), (StopReason::Completed, steps as u64));
                if !begun.dir.checkpoint(begun.step).is_dir() {
                    return None;
                }
                let ended = place.resume(&out, 6, second);
                assert_eq!((ended.stop_reason, ended.step.0), (StopReason::Completed, 6));
                Some(bits(ended.dir.root()))
            };
            let Some(expected) = done(false, false) else { continue };
            assert!(done(false, true).as_ref() == Some(&expected), "one process, then workers, after {steps} steps");
            assert!(done(true, true).as_ref() == Some(&expected), "workers, then workers, after {steps} steps");
            assert!(done(true, false).as_ref() == Some(&expected), "workers, then one process, after {steps} steps");
        }
    });
}
