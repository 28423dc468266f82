//! Waits of a learner with workers. Only one core is left to the run, and the learner waits for something that needs
//! this core: a worker, or a reward or callback that takes the core. A learner that kept the core would wait forever,
//! however many cores the machine has. Workers must continue while a reward is slow, in a step, an evaluation or an
//! audit.

use super::liars::{Lie, join};
use super::{config, directory, rows};
use crate::config::{Algorithm, ComputeDType, Config, Purpose, Strategy, Trust};
use crate::sources::workers::cores_of;
use crate::{Run, RunOptions};
use kernels::cores::{CoreTokens, HeldCores};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use telemetry::Step;

/// Takes all cores of a run except one, until the result is dropped. Called after the run has created its directory and
/// before it begins.
pub(super) fn all_cores_but_one(out: &Path) -> Option<HeldCores> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let tokens = CoreTokens::create(&cores_of(out), cores).unwrap();
    let held = (cores > 1).then(|| tokens.acquire(cores - 1).unwrap());
    assert_eq!(held.as_ref().map_or(0, HeldCores::count), cores - 1);
    held
}

/// Waits until the workers have done every job that is available now. The learner publishes nothing while it waits, so
/// the workers must continue by themselves.
fn let_workers_go_on(out: &Path) {
    testing::wait_until("workers do what is offered while the learner waits", || {
        let Ok(status) = fleet::status::read(out) else { return false };
        status.pending.is_empty() && status.workers.iter().all(|worker| worker.processing.is_empty())
    });
}

/// Waits for the run's remaining core.
fn take_the_core(dir: &Path) {
    let (sender, taken) = std::sync::mpsc::channel();
    let tokens = CoreTokens::open(dir).unwrap();
    std::thread::spawn(move || sender.send(tokens.acquire(1).unwrap().count()));
    assert_eq!(testing::receive("the learner releases its core while it waits", &taken), 1);
}

type Change = fn(&mut Config);

fn nothing(_: &mut Config) {}
fn evaluates(config: &mut Config) {
    (config.eval_strategy, config.eval_steps) = (Strategy::Steps, Some(2));
}
fn saves_each_step(config: &mut Config) {
    (config.save_strategy, config.save_steps) = (Strategy::Steps, 1);
}
fn lora(config: &mut Config) {
    (config.use_peft, config.lora_r) = (true, 2);
}
fn bf16(config: &mut Config) {
    config.dtype = ComputeDType::Bf16;
}
fn audits(config: &mut Config) {
    (config.trust, config.audit_share, config.audit_stale) = (Trust::Audit, 1.0, 1.0);
}
fn in_chunks(config: &mut Config) {
    config.partial_rollout_tokens = Some(2);
}
fn ppo(config: &mut Config) {
    (config.algorithm, config.num_mini_batches, config.num_ppo_epochs) = (Algorithm::Ppo, 2, 2);
}
fn iterates(config: &mut Config) {
    (config.num_iterations, config.beta) = (2, 0.1);
}
fn pass_at_k(config: &mut Config) {
    (config.num_generations_eval, config.eval_pass_at_k) = (Some(2), vec![1, 2]);
}

/// The runs: a name, `max_staleness`, the number of workers, and further configuration.
const RUNS: [(&str, usize, usize, &[Change]); 22] = [
    ("rewards of the learner", 0, 1, &[nothing]),
    ("rewards, one batch ahead", 1, 1, &[nothing]),
    ("rewards, two batches ahead", 2, 1, &[nothing]),
    ("rewards, two workers", 1, 2, &[nothing]),
    ("rewards, in chunks", 2, 1, &[in_chunks]),
    ("rewards, LoRA", 1, 1, &[lora]),
    ("rewards, bf16", 1, 1, &[bf16]),
    ("rewards, several iterations and a reference", 1, 1, &[iterates]),
    ("rewards of PPO", 0, 1, &[ppo]),
    ("rewards of PPO, ahead", 1, 2, &[ppo]),
    ("an evaluation", 0, 1, &[evaluates]),
    ("an evaluation, ahead", 1, 1, &[evaluates]),
    ("an evaluation, two workers", 2, 2, &[evaluates]),
    ("an evaluation with pass@k", 1, 1, &[evaluates, pass_at_k]),
    ("an evaluation of PPO", 1, 1, &[evaluates, ppo]),
    ("an evaluation, LoRA", 0, 1, &[evaluates, lora]),
    ("a checkpoint with the batches ahead", 2, 1, &[saves_each_step]),
    ("a checkpoint with chunks", 2, 2, &[saves_each_step, in_chunks]),
    ("an audit", 0, 1, &[audits]),
    ("an audit, ahead", 2, 1, &[audits]),
    ("an audit of chunks, with evaluations", 2, 1, &[audits, in_chunks, evaluates]),
    ("an audit before a checkpoint", 1, 1, &[audits, saves_each_step]),
];

/// Trains with `workers` workers. Returns how often the learner's reward and callbacks have taken the core.
fn run_on_one_core(staleness: usize, workers: usize, changes: &[Change]) -> [usize; 2] {
    let dir = directory();
    let mut config = Config {
        max_staleness: staleness,
        reward_funcs: vec!["unique_chars".into(), "function:waits".into()],
        max_steps: 4,
        ..config(dir.path(), "out")
    };
    for change in changes {
        change(&mut config);
    }
    let (out, cores) = (dir.path().join("out"), cores_of(&dir.path().join("out")));
    let taken: [Arc<AtomicUsize>; 2] = Default::default();
    let take = |place: usize| {
        let (cores, taken): (PathBuf, _) = (cores.clone(), taken[place].clone());
        move || {
            take_the_core(&cores);
            taken.fetch_add(1, Ordering::SeqCst)
        }
    };
    let (by_reward, by_step, by_checkpoint) = (take(0), take(1), take(1));
    let ctx = crate::context(None, Some(1), config.dtype).unwrap();
    let options = RunOptions::new().context(ctx).train_rows(rows()).eval_rows(rows()).distributed(None);
    let root = out.clone();
    let options = options.reward("waits", move |_| {
        let calls = by_reward();
        let_workers_go_on(&root);
        Some(calls as f64 % 3.0)
    });
    let options = options.on_step(move |_| {
        by_step();
        ControlFlow::Continue(())
    });
    let options = options.on_checkpoint(move |_, _| {
        by_checkpoint();
        ControlFlow::Continue(())
    });
    let run = Run::new(Purpose::Grpo, config, options).unwrap();
    let _others = all_cores_but_one(&out);
    std::thread::scope(|scope| {
        for worker in 0..workers {
            let out = &out;
            scope.spawn(move || join(out, &format!("dev{worker}"), Lie::Nothing).unwrap());
        }
        let result = run.run().unwrap();
        assert_eq!(result.step, Step(4));
    });
    taken.map(|taken| taken.load(Ordering::SeqCst))
}

#[test]
fn a_learner_releases_its_cores_during_every_wait() {
    let mut failed = Vec::new();
    for (name, staleness, workers, changes) in RUNS {
        let ran = std::panic::catch_unwind(|| run_on_one_core(staleness, workers, changes));
        // At least 12 groups of two completions are scored, and there are four steps.
        if !ran.as_ref().is_ok_and(|[rewards, calls]| *rewards >= 8 && *calls >= 4) {
            failed.push((name, ran.ok()));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}
