//! Tests of runs whose groups are made by workers: threads with an engine and rewards each, which take jobs from one
//! queue, with jobs and answers as bytes. Timing decides which worker does which job. The run must have the bits of a
//! run in one process.

use super::stop::files;
use super::{config, directory, rows};
use crate::config::{Algorithm, ComputeDType, Config, Purpose, Strategy};
use crate::rollouts::collector::{Collect, CollectRequest, Collected, Collector, Observer, PlaceCollector};
use crate::rollouts::jobs::{Assembler, GroupAnswer, GroupJob, score};
use crate::{Run, RunOptions, StopReason, StopSignal};
use anyhow::ensure;
use model::tokenizer::Tokenizer;
use model::{AdaptedWeights, GroupId, HeldWeights, ModelView, Updates};
use rewards::{FunctionReward, Reward, RewardBatch, Scores};
use rollout::{Engine, EngineConfig};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::Duration;
use train::loss::sampling::CorrectionMode;

/// A reward that reports more than scores: a metric, a column that only one group has, a problem.
struct Talks;

impl Reward for Talks {
    fn name(&self) -> &str {
        "talks"
    }
    fn scores_by_group(&self) -> bool {
        true
    }
    fn score(&mut self, batch: &RewardBatch<'_>) -> Scores {
        let ids = batch.completion_ids;
        let mut scores = Scores::new(ids.iter().map(|ids| Some(ids.len() as f64 / 3.0)).collect());
        scores.metrics.push(("tokens".into(), ids.iter().map(Vec::len).sum::<usize>() as f64 / 7.0));
        if batch.rows[0] % 2 == 1 {
            scores.extra.push(("odd".into(), ids.iter().map(|ids| ids.len().into()).collect()));
            scores.values[0] = None;
            scores.problems.push(rewards::Problem::new("talks", 1, "odd").at(vec![0]));
        }
        // Reported with the first of all completions that have it.
        scores.values[1] = Some(if batch.rows[0] == 2 { f64::NEG_INFINITY } else { f64::INFINITY });
        scores.timed_out = batch.rows[0] % 3;
        // The first to end is not the first in order.
        sleep(Duration::from_millis(5 * (batch.rows[0] as u64 % 3)));
        scores
    }
}

/// A reward that compares completions of all prompts, so that the learner calls it and not the workers.
struct Rank;

impl Reward for Rank {
    fn name(&self) -> &str {
        "rank"
    }
    fn scores_by_group(&self) -> bool {
        false
    }
    fn score(&mut self, batch: &RewardBatch<'_>) -> Scores {
        let length = |ids: &Vec<u32>| ids.iter().map(|&id| u64::from(id)).sum::<u64>();
        let all: Vec<u64> = batch.completion_ids.iter().map(length).collect();
        Scores::new(all.iter().map(|own| Some(all.iter().filter(|other| *other < own).count() as f64)).collect())
    }
}

/// A number of workers, and counts of those that did something.
struct Threads {
    count: usize,
    engine: EngineConfig,
    dtype: ComputeDType,
    tokenizer: Arc<Tokenizer>,
    stop: StopSignal,
    queue: Option<Sender<Task>>,
    seen: Seen,
}

struct Task {
    job: Vec<u8>,
    weights: Arc<HeldWeights>,
    answers: Sender<anyhow::Result<Vec<u8>>>,
}

/// How many jobs were done, and which workers did any.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<(usize, BTreeSet<usize>)>>);

impl Threads {
    fn start(&self, weights: &AdaptedWeights) -> Sender<Task> {
        let (queue, tasks) = channel();
        let tasks = Arc::new(Mutex::new(tasks));
        for worker in 0..self.count {
            let ctx = crate::context(None, Some(1), self.dtype).unwrap();
            let mut engine = Engine::new(&ctx, weights.config(), self.engine.clone()).unwrap();
            engine.set_detokenizer(self.tokenizer.clone());
            let rewards: Vec<Box<dyn Reward>> = vec![Box::new(Talks)];
            let (tokenizer, stop) = (self.tokenizer.clone(), self.stop.clone());
            let mut collector = Collector { engine, function: None, rewards, tokenizer, stop };
            let (tasks, all): (Arc<Mutex<Receiver<Task>>>, _) = (tasks.clone(), self.seen.clone());
            let count = self.count;
            std::thread::spawn(move || {
                loop {
                    let task = tasks.lock().unwrap().recv();
                    let Ok(Task { job, weights, answers }) = task else { return };
                    let mut seen = all.0.lock().unwrap();
                    (seen.0, _) = (seen.0 + 1, seen.1.insert(worker));
                    drop(seen);
                    // The first one waits for a second, so that it does not do every job.
                    testing::wait_until("two workers have jobs", || all.0.lock().unwrap().1.len() >= 2.min(count));
                    let job = GroupJob::from_bytes(&job).unwrap();
                    let answer = work(&mut collector, weights.view(), &job);
                    drop(weights);
                    // The run may have ended.
                    let _ = answers.send(answer.map(|answer| answer.to_bytes()));
                }
            });
        }
        queue
    }
}

impl Threads {
    /// Has all jobs done with the current version of `weights`. The answers come in any order.
    fn answers(&mut self, weights: &AdaptedWeights, jobs: &[GroupJob]) -> anyhow::Result<Vec<Vec<u8>>> {
        let queue = match self.queue.take() {
            Some(queue) => queue,
            None => self.start(weights),
        };
        let (answers, answered) = channel();
        let held = Arc::new(weights.hold());
        for job in jobs {
            let task = Task { job: job.to_bytes(), weights: held.clone(), answers: answers.clone() };
            queue.send(task).unwrap_or_else(|_| panic!("threads wait for jobs"));
        }
        self.queue = Some(queue);
        drop(answers);
        answered.iter().collect()
    }
}

/// A collector that gives jobs to threads and waits for them.
struct JobCollector {
    workers: Threads,
    assembler: Assembler,
}

impl Collect for JobCollector {
    fn collect(
        &mut self,
        weights: &AdaptedWeights,
        request: CollectRequest<'_>,
        observer: &Observer<'_>,
    ) -> anyhow::Result<Collected> {
        let jobs = self.assembler.jobs(&request, weights.version());
        let span = observer.stages.span("rollout");
        let answers = self.workers.answers(weights, &jobs)?;
        let rollout_s = span.end();
        self.assembler.assemble(request, &jobs, &answers, rollout_s, observer)
    }
}

/// Does a job; `model` must have the version that the job names.
fn work(collector: &mut Collector, model: ModelView<'_>, job: &GroupJob) -> anyhow::Result<GroupAnswer> {
    let updates = model.version().trained();
    ensure!(updates == job.updates, "group {} is for weights of version {}, not {updates}", job.group, job.updates);
    let group = collector.engine.generate_with(model, vec![job.request(None)], |_| {})?.remove(0);
    let scores = score(&mut collector.rewards, &collector.tokenizer, &collector.stop, &group, job)?;
    Ok(GroupAnswer { group, scores, rollout_s: 0.0 })
}

fn placed(count: usize, dtype: ComputeDType, seen: &Seen) -> PlaceCollector {
    let seen = seen.clone();
    Box::new(move |Collector { engine, rewards, tokenizer, stop, .. }| {
        let engine = engine.config().clone();
        let (own, halt) = (tokenizer.clone(), stop.clone());
        let workers = Threads { count, engine, dtype, tokenizer: own, stop: halt, queue: None, seen };
        let of_workers = BTreeSet::from(["talks".to_owned(), "rank".to_owned()]);
        let assembler = Assembler { rewards, of_workers, tokenizer, stop };
        Box::new(JobCollector { workers, assembler })
    })
}

/// Options with a closure as one of several rewards, which workers do not have.
fn options(config: &Config) -> RunOptions {
    let ctx = crate::context(None, Some(1), config.dtype).unwrap();
    let vowels = |text: &str| text.chars().filter(|c| "aeiou".contains(*c)).count() as f64;
    let closure = FunctionReward::new("vowels", move |sample| {
        let text = sample.completion_text();
        (!text.starts_with('b')).then(|| vowels(&text))
    });
    let options = RunOptions::new().context(ctx).train_rows(rows()).eval_rows(rows());
    options.reward_of_batch(Rank).reward_of_batch(closure).reward_of_batch(Talks)
}

fn small(dir: &Path, out: &str) -> Config {
    Config {
        max_steps: 4,
        num_generations: 2,
        per_device_train_batch_size: 6,
        logging_steps: 1,
        record_rollouts: true,
        log_completions: true,
        eval_strategy: Strategy::Steps,
        eval_steps: Some(2),
        ..config(dir, out)
    }
}

#[track_caller]
fn same(counts: &[usize], change: impl Fn(&mut Config)) {
    let dir = directory();
    let run = |out: &str, place: Option<PlaceCollector>| {
        let mut config = small(dir.path(), out);
        change(&mut config);
        let options = options(&config);
        let options = match place {
            Some(place) => options.collect_with(place),
            None => options,
        };
        Run::new(Purpose::Grpo, config, options).unwrap().run().unwrap()
    };
    let mut config = small(dir.path(), "");
    change(&mut config);
    let here = run("here", None);
    let expected = files(here.dir.root(), here.step);
    assert!(["metrics.jsonl", "rollouts.bin"].iter().all(|name| expected.contains_key(*name)));
    for &count in counts {
        let seen = Seen::default();
        let found = run(&format!("by-{count}"), Some(placed(count, config.dtype, &seen)));
        assert_eq!((found.stop_reason, found.num_tokens), (StopReason::Completed, here.num_tokens));
        let found = files(found.dir.root(), here.step);
        let other: Vec<&String> = expected.keys().filter(|name| found.get(*name) != expected.get(*name)).collect();
        assert!(other.is_empty() && expected.len() == found.len(), "{count} workers: {other:?}");
        let (jobs, workers) = seen.0.lock().unwrap().clone();
        assert!(jobs > 12 && (workers.len() > 1 || count == 1), "{jobs} jobs by {workers:?} of {count}");
    }
}

fn lora(config: &mut Config) {
    (config.use_peft, config.lora_r) = (true, 2);
}

#[test]
fn any_number_of_workers_has_the_bits_of_one_process() {
    same(&[1, 2, 5], |config| config.beta = 0.1);
    same(&[2], |config| {
        lora(config);
        config.num_iterations = 2;
    });
    same(&[2], |config| config.dtype = ComputeDType::Bf16);
}

#[test]
fn stale_batches_have_the_bits_of_one_process() {
    same(&[1, 5], |config| config.max_staleness = 1);
    same(&[2], |config| {
        lora(config);
        (config.max_staleness, config.vllm_importance_sampling_correction) = (2, true);
        config.vllm_importance_sampling_mode = CorrectionMode::TokenTruncate;
    });
}

#[test]
fn ppo_and_dynamic_sampling_by_workers() {
    let ppo = |config: &mut Config| {
        (config.algorithm, config.num_generations, config.max_steps) = (Algorithm::Ppo, 2, 8);
        (config.per_device_train_batch_size, config.num_mini_batches, config.num_ppo_epochs) = (2, 2, 2);
        (config.adap_kl_ctrl, config.kl_coef) = (true, 0.3);
    };
    same(&[5], ppo);
    same(&[2], |config| {
        ppo(config);
        config.max_staleness = 2;
    });
    same(&[2], |config| {
        (config.dynamic_sampling, config.dynamic_sampling_max_rounds) = (true, 3);
        (config.reward_weights, config.per_device_train_batch_size) = (Some(vec![0.0, 1.0, 0.0]), 4);
    });
}

/// Gives a worker a job for another version of the weights, and a job with a reward that the worker lacks.
#[test]
fn a_worker_refuses_a_run_it_cannot_work_for() {
    let dir = directory();
    let config = small(dir.path(), "out");
    let run = Run::new(Purpose::Grpo, config.clone(), options(&config)).unwrap();
    let weights = run.policy().weights.hold();
    let ctx = crate::context(None, Some(1), config.dtype).unwrap();
    let engine = EngineConfig::new(4, 64);
    let engine = Engine::new(&ctx, &weights.base.config, engine).unwrap();
    let tokenizer = run.policy().tokenizer.clone();
    let mut collector =
        Collector { engine, function: None, rewards: vec![Box::new(Rank)], tokenizer, stop: StopSignal::new() };
    let prompt = crate::data::prompts::Prompt {
        row: 0,
        tokens: model::Prompt::new([1, 2]),
        content: "ab".into(),
        columns: serde_json::Map::new(),
    };
    let sampling = rollout::SamplingParams { max_new_tokens: 4, ..Default::default() };
    let rewards = Vec::new();
    let (group, so_far, until) = (GroupId(0), Vec::new(), None);
    let job =
        GroupJob { group, prompt, num_generations: 2, sampling, updates: Updates(0), step: 0, rewards, so_far, until };
    let mut refused = |job: &GroupJob| work(&mut collector, weights.view(), job).unwrap_err().to_string();
    assert!(refused(&GroupJob { updates: Updates(3), ..job.clone() }).contains("version 3, not 0"));
    assert!(refused(&GroupJob { rewards: vec!["rank".into()], ..job.clone() }).contains("no reward `rank`"));
    assert_eq!(work(&mut collector, weights.view(), &job).unwrap().group.completions.len(), 2);
}
