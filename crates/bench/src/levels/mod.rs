//! The same GRPO steps at levels of optimization, from nothing to everything on. Each level is a training run of its
//! own: it begins with the same weights, draws with the same noise, and is scored by the same reward.
//!
//! Every level is a real configuration, and each is measured. Levels are compared step by step: whether they drew the
//! same tokens with the same log-probabilities, and whether the updated weights have the same bits.

mod ladder;
pub(crate) mod naive;
#[cfg(test)]
mod tests;

use crate::report::column;
use crate::workload::timed;
use crate::{Machine, Report, Shape, Subject, Workload, median};
use anyhow::ensure;
use kernels::rng::Stream;
use kernels::{Context, Isa};
use ladder::{Generation, Update};
pub use ladder::{LEVELS, Level};
use lockstep::config::ComputeDType;
use model::io::TensorSource;
use model::{Prompt, Weights, columns};
use naive::Naive;
use rollout::{Engine, ModelVersion, Request, RolloutGroup, SamplingParams};
use serde_json::{Value, json};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Instant;
use train::{RewardMatrix, RewardRow, Sample, ScaleRewards, Trainer, advantages};

/// By how much loss and gradient norm of levels may differ that update on the same tokens: relatively, or absolutely
/// near 0.
const TOLERANCE: (f64, f64) = (1e-3, 1e-6);
/// The draws of completion lengths.
const STREAM: u64 = 0x6c65_7665_6c73;
/// Of a model that has learned nothing; its rewards should move within a few steps.
const LEARNING_RATE: f64 = 1e-3;

/// What is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The size of the model.
    pub shape: Shape,
    /// In the order in which they are run.
    pub levels: Vec<Level>,
    /// GRPO steps of each.
    pub steps: usize,
    /// Threads of the levels that have several; all cores if not given.
    pub threads: Option<usize>,
}

/// Hears of the start, of each level and of each step as JSON, while they go on.
pub type Listener<'a> = &'a mut dyn FnMut(&Value) -> anyhow::Result<()>;

/// What a step of a level came to.
struct Step {
    rollout_s: f64,
    update_s: f64,
    reward: f64,
    loss: f64,
    grad_norm: f64,
    /// Tokens and log-probabilities of every completion.
    drawn: Vec<(Vec<u32>, Vec<u32>)>,
    /// A hash of the bits of all weights after the update.
    weights: u64,
}

impl Step {
    fn seconds(&self) -> f64 {
        self.rollout_s + self.update_s
    }
}

/// Runs the levels one after another.
pub fn run(options: &Options, hear: Listener<'_>) -> anyhow::Result<Report> {
    let workload = Workload { prompts: 2, prompt_tokens: 32, ..Workload::grpo(8, 16) };
    let workload = Workload { generations: 4, max_num_seqs: 4, ..workload };
    let ctx = lockstep::context(None, options.threads, ComputeDType::F32)?;
    let machine = Machine::measure(&ctx)?;
    let what = format!(
        "{}, {} prompts of {} tokens × {} completions of up to {} tokens, in {} seats, {} steps; the reward is the \
         share of tokens from the lower half of the vocabulary",
        options.shape.name(),
        workload.prompts,
        workload.prompt_tokens,
        workload.generations,
        workload.new_tokens,
        workload.max_num_seqs,
        options.steps
    );
    let list: Vec<Value> = options.levels.iter().map(Level::json).collect();
    hear(&json!({
        "event": "start", "shape": options.shape.name(), "steps": options.steps, "levels": list, "what": what,
        "machine": machine.json(),
    }))?;
    let mut runs: Vec<(Level, Vec<Step>)> = Vec::new();
    let (began, own, all) = (Instant::now(), telemetry::system::cpu_s(), telemetry::system::machine_cpu_s());
    for level in &options.levels {
        hear(&json!({ "event": "level", "level": level.id }))?;
        let before = runs.last();
        let mut run = Run::new(level, &workload, options)?;
        let mut steps: Vec<Step> = Vec::new();
        for i in 0..options.steps {
            let step = run.step(i as u64)?;
            let other = before.map(|(_, steps)| &steps[i]);
            hear(&json!({
                "event": "step", "level": level.id, "step": i + 1, "rollout_s": step.rollout_s,
                "update_s": step.update_s, "reward": step.reward, "loss": step.loss, "grad_norm": step.grad_norm,
                "same_completions": other.map(|other| other.drawn == step.drawn),
                "same_weights": other.map(|other| other.weights == step.weights),
            }))?;
            steps.push(step);
        }
        if let Some((other, theirs)) = before {
            agree((other, &theirs[0]), (level, &steps[0]))?;
        }
        runs.push((*level, steps));
    }
    let mut report = table(machine, &runs);
    report.note(what);
    if let (Some(before), Some(after)) = (all, telemetry::system::machine_cpu_s()) {
        let others = (after - before - (telemetry::system::cpu_s() - own)).max(0.0) / began.elapsed().as_secs_f64();
        report.note(format!("{others:.2} cores were busy with other processes meanwhile"));
    }
    hear(&json!({ "event": "end", "report": report.json() }))?;
    Ok(report)
}

/// The first step of levels that drew the same: what they made of it may differ by rounding alone.
fn agree((other, theirs): (&Level, &Step), (level, ours): (&Level, &Step)) -> anyhow::Result<()> {
    let (relative, absolute) = TOLERANCE;
    let differ = |a: f64, b: f64| (a - b).abs() > (relative * b.abs()).max(absolute);
    ensure!(
        theirs.drawn != ours.drawn || !(differ(theirs.loss, ours.loss) || differ(theirs.grad_norm, ours.grad_norm)),
        "{}: loss {} and gradient norm {} are not those of {}, {} and {}, which drew the same tokens",
        level.id,
        ours.loss,
        ours.grad_norm,
        other.id,
        theirs.loss,
        theirs.grad_norm
    );
    Ok(())
}

fn table(machine: Machine, runs: &[(Level, Vec<Step>)]) -> Report {
    let columns = [
        column("level", "level", 0),
        column("rollout_s", "rollout s", 3),
        column("update_s", "update s", 3),
        column("step_s", "step s", 3),
        column("speedup", "× the first", 1),
        column("gain", "× the one before", 2),
        column("first_reward", "reward, first", 3),
        column("last_reward", "reward, last", 3),
        column("same_completions", "same completions", 0),
        column("same_weights", "same weights", 0),
    ];
    let mut report = Report::new("levels", machine, &columns);
    let middle = |steps: &[Step], of: fn(&Step) -> f64| median(&steps.iter().map(of).collect::<Vec<_>>());
    let mut before: Option<&Vec<Step>> = None;
    for (level, steps) in runs {
        let step_s = middle(steps, Step::seconds);
        let same = |is_same: fn(&Step, &Step) -> bool| match before {
            None => Value::Null,
            Some(before) => json!(if before.iter().zip(steps).all(|(a, b)| is_same(a, b)) { "yes" } else { "no" }),
        };
        report.row([
            json!(level.id),
            json!(middle(steps, |step| step.rollout_s)),
            json!(middle(steps, |step| step.update_s)),
            json!(step_s),
            json!(middle(&runs[0].1, Step::seconds) / step_s),
            before.map_or(Value::Null, |before| json!(middle(before, Step::seconds) / step_s)),
            json!(steps.first().map(|step| step.reward)),
            json!(steps.last().map(|step| step.reward)),
            same(|a, b| a.drawn == b.drawn),
            same(|a, b| a.weights == b.weights),
        ]);
        before = Some(steps);
    }
    report
}

impl Level {
    /// The level of this name.
    pub fn find(id: &str) -> Option<Level> {
        LEVELS.into_iter().find(|level| level.id == id)
    }

    /// What people read of it.
    pub fn json(&self) -> Value {
        json!({
            "id": self.id, "name": self.name, "stage": self.stage, "idea": self.idea, "code": self.code,
        })
    }

    fn context(&self, threads: Option<usize>) -> anyhow::Result<Context> {
        let threads = if self.threads { threads } else { Some(1) };
        Ok(match self.vectors {
            true => lockstep::context(None, threads, self.dtype())?,
            false => Context::cpu(Isa::PORTABLE, threads.unwrap_or(1)),
        })
    }

    fn dtype(&self) -> ComputeDType {
        if self.bf16 { ComputeDType::Bf16 } else { ComputeDType::F32 }
    }
}

/// Computes the updates of a level.
enum Updater {
    Naive(Box<Naive>, Option<usize>),
    Trainer(Box<Trainer>),
}

/// A level's training run.
struct Run {
    level: Level,
    workload: Workload,
    ctx: Context,
    weights: Weights,
    engine: Engine,
    updater: Updater,
}

impl Run {
    fn new(level: &Level, workload: &Workload, options: &Options) -> anyhow::Result<Run> {
        let (level, ctx) = (*level, level.context(options.threads)?);
        let weights = Subject { shape: options.shape, dtype: level.dtype() }.weights(&ctx)?;
        let sharing = |is_shared: bool| Workload { prefix_sharing: is_shared, ..workload.clone() };
        let engine = sharing(level.generation == Generation::SharedPrompt).engine(&ctx, &weights.config)?;
        let trainer =
            |is_shared| anyhow::Ok(Updater::Trainer(Box::new(sharing(is_shared).trainer(&ctx, &weights.config)?)));
        let naive = |width| Updater::Naive(Box::new(Naive::new(&ctx, &weights)), width);
        let updater = match level.update {
            Update::Padded => naive(Some(workload.new_tokens)),
            Update::Packed => naive(None),
            Update::FusedHead => trainer(false)?,
            Update::SharedPrompt => trainer(true)?,
        };
        Ok(Run { level, workload: workload.clone(), ctx, weights, engine, updater })
    }

    fn step(&mut self, number: u64) -> anyhow::Result<Step> {
        let prompts = self.workload.random_prompts(&self.weights.config, number);
        let lengths = lengths(&self.workload, number);
        let (mut groups, rollout_s, _) = timed(|| self.generate(&prompts, &lengths, number))?;
        // What a static batch generated beyond a completion's own end is thrown away.
        for (group, &length) in groups.iter_mut().zip(&lengths) {
            group.completions.iter_mut().for_each(|c| cut(c, length));
        }
        let (samples, reward) = self.scored(&groups);
        let ((loss, grad_norm), update_s, _) = timed(|| self.update(&samples))?;
        let bits = |logps: &[f32]| logps.iter().map(|logp| logp.to_bits()).collect();
        let completions = groups.iter().flat_map(|group| &group.completions);
        let drawn = completions.map(|c| (c.ids.clone(), bits(c.logps()))).collect();
        Ok(Step { rollout_s, update_s, reward, loss, grad_norm, drawn, weights: hashed(&self.weights)? })
    }

    fn generate(&mut self, prompts: &[Arc<Prompt>], lengths: &[usize], seed: u64) -> anyhow::Result<Vec<RolloutGroup>> {
        let longest = vec![lengths.iter().copied().max().unwrap_or(1); lengths.len()];
        match self.level.generation {
            Generation::Continuous | Generation::SharedPrompt => {
                Ok(self.engine.generate(&self.weights, requests(&self.workload, prompts, lengths, seed))?)
            }
            Generation::Static => {
                let mut groups = Vec::new();
                for request in requests(&self.workload, prompts, &longest, seed) {
                    groups.extend(self.engine.generate(&self.weights, vec![request])?);
                }
                Ok(groups)
            }
            Generation::WithoutCache => {
                let mut groups = Vec::new();
                for request in requests(&self.workload, prompts, &longest, seed) {
                    self.engine.submit(request)?;
                    groups.extend(self.without_cache()?);
                }
                Ok(groups)
            }
        }
    }

    /// Ends what was submitted. After every token all keys and values are dropped: the weights get another number, and
    /// what was computed with an earlier one is computed again.
    fn without_cache(&mut self) -> anyhow::Result<Vec<RolloutGroup>> {
        let mut groups = Vec::new();
        while !self.engine.is_idle() {
            groups.extend(self.engine.step(&self.weights)?);
            self.weights.publish();
            let model = ModelVersion { base: self.weights.version, adapter: None };
            let drawn: Vec<_> = self.engine.drawn().iter().map(|drawn| drawn.sequence).collect();
            for sequence in drawn {
                self.engine.set_model(sequence, model);
            }
        }
        Ok(groups)
    }

    /// Samples with the advantages of their rewards, and the mean reward.
    fn scored(&self, groups: &[RolloutGroup]) -> (Vec<Sample>, f64) {
        let half = (self.weights.config.vocab_size / 2) as u32;
        let mut samples = lockstep::samples_of_groups(groups);
        let score =
            |s: &Sample| s.completion.iter().filter(|&&id| id < half).count() as f64 / s.completion.len() as f64;
        let rows = samples.iter().map(|s| RewardRow { group: s.group, scores: vec![Some(score(s))] }).collect();
        let mean = samples.iter().map(score).sum::<f64>() / samples.len() as f64;
        let matrix = RewardMatrix { rows, names: vec!["lower_half".into()], weights: vec![1.0] };
        let computed = advantages::compute(&matrix, ScaleRewards::Group);
        samples.iter_mut().zip(computed.advantages).for_each(|(s, advantage)| s.advantage = advantage);
        (samples, mean)
    }

    /// Loss and gradient norm.
    fn update(&mut self, samples: &[Sample]) -> anyhow::Result<(f64, f64)> {
        let (ctx, weights) = (&self.ctx, &mut self.weights);
        match &mut self.updater {
            Updater::Naive(naive, width) => naive.update(ctx, weights, samples, *width, LEARNING_RATE),
            Updater::Trainer(trainer) => {
                let metrics = trainer.update(ctx, weights, samples, LEARNING_RATE)?;
                Ok((metrics.loss, metrics.grad_norm))
            }
        }
    }
}

/// Of the numbers as files have them: instruction sets keep them in another order.
fn hashed(weights: &Weights) -> anyhow::Result<u64> {
    let mut hasher = DefaultHasher::new();
    for tensor in weights.tensors() {
        weights.read(&tensor.name, &mut |piece| {
            piece.iter().for_each(|x| x.to_bits().hash(&mut hasher));
            Ok(())
        })?;
    }
    Ok(hasher.finish())
}

/// Tokens of the completions of each prompt: between a quarter of the limit and all of it; one has all.
fn lengths(workload: &Workload, seed: u64) -> Vec<usize> {
    let mut stream = Stream::new(seed, STREAM);
    let (most, least) = (workload.new_tokens, workload.new_tokens.div_ceil(4));
    let drawn = |_| least + (stream.next_f64() * (most - least + 1) as f64) as usize;
    let mut lengths: Vec<usize> = (0..workload.prompts).map(drawn).collect();
    lengths[0] = most;
    lengths
}

fn requests(workload: &Workload, prompts: &[Arc<Prompt>], lengths: &[usize], seed: u64) -> Vec<Request> {
    let mut requests = workload.requests(prompts, seed);
    for (request, &max_new_tokens) in requests.iter_mut().zip(lengths) {
        request.sampling = Arc::new(SamplingParams { max_new_tokens, ..(*request.sampling).clone() });
    }
    requests
}

fn cut(completion: &mut rollout::Completion, length: usize) {
    completion.ids.truncate(length);
    completion.mask.truncate(length);
    completion.versions.truncate(length);
    let logps: Vec<f32> = completion.logps().iter().copied().take(length).collect();
    completion.columns.set(columns::SAMPLER_LOGPS, logps);
}
