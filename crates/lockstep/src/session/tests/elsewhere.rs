//! Training runs that collect completions in another thread, which receives prompts and weights and answers only in
//! bytes, as a worker process does. The run must have the same bits as a run that collects in its own thread.

use super::stop::files;
use super::{config, directory, one_thread, rows};
use crate::config::{Algorithm, Config, Purpose, SamplingPlan, Strategy};
use crate::rollouts::collector::{Collect, CollectRequest, Collected, Collector, Observer, PlaceCollector};
use crate::rollouts::function::{Generate, GivenCompletion, RolloutFunction, RolloutPrompt, RolloutRequest};
use crate::rollouts::scoring::Prompts;
use crate::{Run, RunOptions, StopReason, StopSignal};
use model::{AdaptedWeights, HeldWeights};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use telemetry::{Stages, Step};

/// A request to the collecting thread.
struct Job {
    weights: HeldWeights,
    prompts: Prompts,
    num_generations: usize,
    sampling: SamplingPlan,
    reward_weights: Vec<f64>,
    step: Step,
    refuse_non_finite: bool,
}

/// The answer of the collecting thread.
type Answer = anyhow::Result<Vec<u8>>;

/// A collector that passes requests to the thread with the real collector.
struct Elsewhere {
    jobs: Sender<(Job, Sender<Answer>)>,
    seen: Seen,
}

/// Counts of answers, and the versions of the weights that were sent.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<(usize, Vec<u64>)>>);

impl Elsewhere {
    fn start(mut collector: Collector, seen: Seen) -> Elsewhere {
        let (jobs, work) = channel::<(Job, Sender<Answer>)>();
        std::thread::spawn(move || {
            // Keeps the weights until the next ones arrive, so that the optimizer writes to another slot until then.
            let mut before = None;
            for (
                Job { weights, prompts, num_generations, sampling, reward_weights, step, refuse_non_finite },
                answer,
            ) in work
            {
                let (sampling, reward_weights) = (&sampling, &reward_weights[..]);
                let request = CollectRequest {
                    prompts,
                    num_generations,
                    sampling,
                    reward_weights,
                    step,
                    refuse_non_finite,
                    activations: None,
                };
                let observer = Observer { stages: &Stages::default(), on_wait: &|_, _| {} };
                let collected = collector.collect_with(weights.view(), request, &observer);
                drop(before.replace(weights));
                // The run may have ended.
                let _ = answer.send(collected.map(|collected| collected.to_bytes()));
            }
        });
        Elsewhere { jobs, seen }
    }
}

impl Collect for Elsewhere {
    fn collect(
        &mut self,
        weights: &AdaptedWeights,
        request: CollectRequest<'_>,
        observer: &Observer<'_>,
    ) -> anyhow::Result<Collected> {
        let _span = observer.stages.span("rollout");
        let job = Job {
            weights: weights.hold(),
            prompts: request.prompts.clone(),
            num_generations: request.num_generations,
            sampling: request.sampling.clone(),
            reward_weights: request.reward_weights.to_vec(),
            step: request.step,
            refuse_non_finite: request.refuse_non_finite,
        };
        let (answer, answered) = channel();
        self.jobs.send((job, answer)).expect("the thread lives as long as its sender");
        let bytes = answered.recv().expect("the thread answers")?;
        let mut seen = self.seen.0.lock().unwrap();
        seen.0 += 1;
        seen.1.push(weights.version().0);
        Ok(Collected::from_bytes(&bytes, &request)?)
    }
}

/// Options with a reward for any vowel, so that many groups have equal rewards, and a reward for few words, which gives
/// no score to long texts.
fn options() -> RunOptions {
    let vowel = |text: &str| text.chars().any(|c| "aeiou".contains(c));
    let options = RunOptions::new().context(one_thread()).train_rows(rows()).eval_rows(rows());
    let options = options.reward("vowel", move |sample| Some(f64::from(u8::from(vowel(&sample.completion_text())))));
    options.reward("words", |sample| {
        let words = sample.completion_text().split(' ').count();
        (words < 4).then_some(words as f64 / 3.0)
    })
}

/// A configuration of four logged steps, with an evaluation after every second step.
fn small(dir: &Path, out: &str) -> Config {
    Config {
        max_steps: 4,
        eval_strategy: Strategy::Steps,
        eval_steps: Some(2),
        record_rollouts: true,
        log_completions: true,
        logging_steps: 1,
        ..config(dir, out)
    }
}

/// Checks that a run that collects in another thread has the same bits as a run that collects in its own. Returns the
/// number of collections.
#[track_caller]
fn same_elsewhere(change: impl Fn(&mut Config), options: impl Fn() -> RunOptions) -> usize {
    let dir = directory();
    let run = |out: &str, options: RunOptions| {
        let mut config = small(dir.path(), out);
        change(&mut config);
        Run::new(Purpose::Grpo, config, options).unwrap().run().unwrap()
    };
    let seen = Seen::default();
    let here = run("here", options());
    let elsewhere = run("elsewhere", options().collect_with(placed(&seen)));
    assert_eq!((elsewhere.stop_reason, elsewhere.num_tokens), (StopReason::Completed, here.num_tokens));
    same(here.dir.root(), elsewhere.dir.root(), here.step.0);
    let (collections, mut versions) = seen.0.lock().unwrap().clone();
    assert!(versions.is_sorted());
    versions.dedup();
    assert!(versions.len() > 1, "trained weights must be sent: {versions:?}");
    collections
}

fn placed(seen: &Seen) -> PlaceCollector {
    let seen = seen.clone();
    Box::new(move |collector| Box::new(Elsewhere::start(collector, seen)))
}

#[track_caller]
fn same(here: &Path, elsewhere: &Path, steps: u64) {
    let (expected, found) = (files(here, steps), files(elsewhere, steps));
    assert!(["metrics.jsonl", "rollouts.bin"].iter().all(|name| expected.contains_key(*name)));
    assert_eq!(expected.keys().collect::<Vec<_>>(), found.keys().collect::<Vec<_>>());
    let other: Vec<&String> = expected.keys().filter(|name| expected[*name] != found[*name]).collect();
    assert!(other.is_empty(), "{other:?}");
}

fn lora(config: &mut Config) {
    (config.use_peft, config.lora_r) = (true, 2);
}

fn ppo(config: &mut Config) {
    (config.algorithm, config.num_generations, config.max_steps) = (Algorithm::Ppo, 1, 8);
    (config.per_device_train_batch_size, config.num_mini_batches, config.num_ppo_epochs) = (2, 2, 2);
    (config.adap_kl_ctrl, config.kl_coef) = (true, 0.3);
}

#[test]
fn grpo_has_the_same_bits_with_a_collector_in_another_thread() {
    let with_reference = |config: &mut Config| config.beta = 0.1;
    assert_eq!(same_elsewhere(with_reference, options), 4 + 2);
    assert_eq!(same_elsewhere(lora, options), 4 + 2);
}

#[test]
fn ppo_has_the_same_bits_with_a_collector_in_another_thread() {
    // Each generation batch serves four steps.
    assert_eq!(same_elsewhere(ppo, options), 2 + 4);
    let with_lora = |config: &mut Config| {
        ppo(config);
        lora(config);
    };
    assert_eq!(same_elsewhere(with_lora, options), 2 + 4);
}

/// With dynamic sampling, each round is a separate collection.
#[test]
fn dynamic_sampling_has_the_same_bits_with_a_collector_in_another_thread() {
    let dynamic = |config: &mut Config| {
        (config.dynamic_sampling, config.dynamic_sampling_max_rounds) = (true, 3);
        config.reward_weights = Some(vec![1.0, 0.0]);
    };
    assert!(same_elsewhere(dynamic, options) > 4 + 2);
    let with_lora = |config: &mut Config| {
        dynamic(config);
        lora(config);
    };
    assert!(same_elsewhere(with_lora, options) > 4 + 2);
}

/// A rollout function that calls the engine, and omits the log-probabilities of every second completion.
struct Asks;

impl RolloutFunction for Asks {
    fn complete(
        &mut self,
        request: &RolloutRequest<'_>,
        generate: &mut Generate<'_>,
    ) -> anyhow::Result<Vec<GivenCompletion>> {
        let prompts = request.prompts.iter().step_by(request.num_generations);
        let prompts = prompts.map(|&prompt| RolloutPrompt::Content(prompt.clone())).collect();
        let groups = generate(prompts, request.num_generations, request.sampling.clone())?;
        let given = |(prompt_ids, one): (Vec<u32>, &rollout::Completion)| GivenCompletion {
            // The function returns a prompt that differs from the dataset's.
            prompt_ids: [vec![3], prompt_ids].concat(),
            logps: one.generation.is_multiple_of(2).then(|| one.logps().to_vec()),
            ids: one.ids.clone(),
            ..GivenCompletion::default()
        };
        let all = groups.iter().flat_map(|group| group.completions.iter().map(|one| (group.prompt.ids.clone(), one)));
        Ok(all.map(given).collect())
    }
}

#[test]
fn a_rollout_function_runs_in_another_thread() {
    let with_room = |config: &mut Config| {
        config.max_prompt_length = Some(16);
        config.vllm_importance_sampling_correction = true;
    };
    assert_eq!(same_elsewhere(with_room, || options().rollout_function(Asks)), 4 + 2);
}

/// Stops a run during a collection in another thread. The resumed run, which collects in its own thread, must have the
/// same bits as an uninterrupted run.
#[test]
fn a_run_stopped_during_a_collection_elsewhere_resumes_to_the_same_bits() {
    let dir = directory();
    let config = |out: &str| {
        let mut config = small(dir.path(), out);
        (config.dynamic_sampling, config.dynamic_sampling_max_rounds) = (true, 3);
        config.num_iterations = 2;
        config
    };
    // Requests a stop when it scores this completion.
    let stopping_at = |completion: usize| {
        let (count, stop) = (AtomicUsize::new(0), StopSignal::new());
        options().stop_signal(stop.clone()).reward("stops", move |_| {
            if count.fetch_add(1, Ordering::Relaxed) + 1 == completion {
                stop.request();
            }
            Some(0.0)
        })
    };
    let whole = Run::new(Purpose::Grpo, config("whole"), stopping_at(0)).unwrap().run().unwrap();
    let mut steps = Vec::new();
    for completion in [1, 6, 13, 20, 30] {
        let (out, seen) = (format!("stopped-{completion}"), Seen::default());
        let stops = stopping_at(completion).collect_with(placed(&seen));
        let stopped = Run::new(Purpose::Grpo, config(&out), stops).unwrap().run().unwrap();
        assert_eq!(stopped.stop_reason, StopReason::Interrupted, "at completion {completion}");
        steps.push(stopped.step.0);
        let resumed = Run::resume(Purpose::Grpo, stopped.dir.root(), stopping_at(0)).unwrap().run().unwrap();
        assert_eq!((resumed.stop_reason, resumed.num_tokens), (StopReason::Completed, whole.num_tokens));
        same(whole.dir.root(), resumed.dir.root(), whole.step.0);
    }
    // The stops were in the first generation, in an evaluation, and in the second generation.
    assert!(steps.contains(&0) && steps.contains(&2), "{steps:?}");
}
