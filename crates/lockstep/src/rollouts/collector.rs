//! The collector generates completions of numbered prompts with given weights, scores them, and returns scored groups
//! with their metrics. Training, evaluation and `lockstep eval` all use it.
//!
//! A collection is a plain value. Apart from the order of calls to the reward functions, a call leaves no state behind,
//! so rolling back a step needs no undo here. The collector knows nothing of the run's steps, logs and configuration.

use super::divided::{self, DividedEngine, Division};
use super::function::FunctionRollouts;
use super::scoring::{GivenColumns, Prompts, RolloutScorer, ScoredRollouts, requests};
use crate::config::SamplingPlan;
use crate::stop::StopSignal;
use anyhow::Context as _;
use model::kept::RolloutActivations;
use model::tokenizer::Tokenizer;
use model::{AdaptedWeights, GroupId, ModelView};
use rewards::{Asked, Reward};
use rollout::{Completion, Counters, Engine, Request, RolloutGroup};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::Scope;
use std::time::Duration;
use telemetry::{Stages, Step, stages::Span};
use train::OtherRanks;

/// The interval of reports while waiting for reward functions.
const LONG_WAIT: Duration = Duration::from_secs(10);

/// Generates completions, and scores each group as soon as it is complete.
pub struct Collector {
    /// The engine that generates.
    pub engine: Engine,
    /// The engines of other ranks, which generate some of the groups; `None` if this process generates all.
    pub divided: Option<DividedEngine>,
    /// The caller's function that makes completions instead of the engine; it may call the engine.
    pub function: Option<FunctionRollouts>,
    /// The reward functions.
    pub rewards: Vec<Box<dyn Reward>>,
    /// Decodes completions for the reward functions.
    pub tokenizer: Arc<Tokenizer>,
    /// Cancels a collection.
    pub stop: StopSignal,
}

/// The groups to generate and score, with the settings.
pub struct CollectRequest<'a> {
    /// The dataset row of each group.
    pub prompts: Prompts,
    /// Completions of each prompt.
    pub num_generations: usize,
    /// The sampling parameters of each group.
    pub sampling: &'a SamplingPlan,
    /// The weight of each reward function in a completion's total reward.
    pub reward_weights: &'a [f64],
    /// Optimizer steps done so far; passed to reward functions.
    pub step: Step,
    /// Whether a non-finite log-probability raises the error [`NonFiniteLogp`]. If not, sampling from NaN logits
    /// returns an arbitrary token.
    pub refuse_non_finite: bool,
    /// Keeps the activations of the tokens, for the first update on them.
    pub activations: Option<&'a RolloutActivations>,
}

/// The state before a collection: groups to continue, and requests of later batches to run concurrently.
#[derive(Default)]
pub struct Begun {
    /// The state of groups that have already begun; all other groups start from the prompt.
    pub so_far: Vec<RolloutGroup>,
    /// Requests of later batches, which run in the same engine; no reward function scores them yet.
    pub beside: Vec<Request>,
}

/// Callbacks that observe a collection.
pub struct Observer<'a> {
    /// Records the spans "rollout" and "rewards", with the device operations counted in them.
    pub stages: &'a Stages,
    /// Called every ten seconds while waiting for reward functions, with the name of the slowest one and the time
    /// waited.
    pub on_wait: &'a (dyn Fn(&str, Duration) + Sync),
}

/// The result of a collection: scored groups, and how long they took.
#[derive(Clone)]
pub struct Collected {
    /// The groups, with the metrics and the errors of reward functions.
    pub scored: ScoredRollouts,
    /// The group number after the last group.
    pub next_group: GroupId,
    /// Seconds spent generating.
    pub rollout_s: f64,
    /// Seconds spent scoring after generation ended.
    pub reward_s: f64,
    /// Seconds spent scoring while generation ran.
    pub overlapped_s: f64,
}

impl Collected {
    /// Reports the spans of scoring that overlapped with generation.
    pub fn record_overlapped(&self, stages: &Stages) {
        for &(start, seconds) in &self.scored.overlapped {
            stages.record_overlapped("rewards", start, seconds);
        }
    }
}

/// The error of a model with non-finite logits.
#[derive(Debug, thiserror::Error)]
#[error("a token's log-probability is {0}")]
pub struct NonFiniteLogp(pub f32);

/// Collects scored groups: a [`Collector`] itself, or a proxy to one in another thread or process.
pub trait Collect {
    /// Generates `num_generations` completions of each prompt with the current version of `weights`, and scores them
    /// with every reward function.
    fn collect(
        &mut self,
        weights: &AdaptedWeights,
        request: CollectRequest<'_>,
        observer: &Observer<'_>,
    ) -> anyhow::Result<Collected>;

    /// Like `collect`, for groups that have already begun; also returns the groups of the concurrent requests, sorted
    /// by group.
    fn continue_with(
        &mut self,
        _weights: &AdaptedWeights,
        _request: CollectRequest<'_>,
        _begun: Begun,
        _observer: &Observer<'_>,
    ) -> anyhow::Result<(Collected, Vec<RolloutGroup>)> {
        anyhow::bail!("this collector cannot continue completions that have already begun")
    }

    /// Divides generation among the ranks of the run. A proxy to a collector elsewhere leaves generation undivided.
    fn divide(&mut self, _ranks: &OtherRanks, _division: &Division) -> anyhow::Result<()> {
        Ok(())
    }

    /// The engine's texts for drafting tokens, which a resumed run restores. Losing them costs time, but changes no
    /// bit.
    fn drafts(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Restores the bytes that [`drafts`](Self::drafts) returned.
    fn restore_drafts(&mut self, _bytes: &[u8]) {}
}

/// Moves a collector to the thread that will own it, and returns a proxy to it.
pub type PlaceCollector = Box<dyn FnOnce(Collector) -> Box<dyn Collect>>;

impl Collect for Collector {
    fn collect(
        &mut self,
        weights: &AdaptedWeights,
        request: CollectRequest<'_>,
        observer: &Observer<'_>,
    ) -> anyhow::Result<Collected> {
        self.share(weights)?;
        self.collect_with(weights.into(), request, observer)
    }

    fn continue_with(
        &mut self,
        weights: &AdaptedWeights,
        request: CollectRequest<'_>,
        begun: Begun,
        observer: &Observer<'_>,
    ) -> anyhow::Result<(Collected, Vec<RolloutGroup>)> {
        self.share(weights)?;
        self.generator().continue_with(weights.into(), request, begun, observer)
    }

    fn divide(&mut self, ranks: &OtherRanks, division: &Division) -> anyhow::Result<()> {
        let divided = DividedEngine::new(ranks.clone(), &self.engine, division)?;
        self.engine.compute_on(ranks.context().clone());
        self.divided = Some(divided);
        Ok(())
    }

    fn drafts(&self) -> Vec<u8> {
        self.engine.drafts()
    }

    fn restore_drafts(&mut self, bytes: &[u8]) {
        self.engine.restore_drafts(bytes);
    }
}

impl Collector {
    /// Generates `num_generations` completions of each prompt with `model`, and scores them. Reward functions that
    /// score each group separately run while other groups are still being generated.
    pub fn collect_with(
        &mut self,
        model: ModelView<'_>,
        request: CollectRequest<'_>,
        observer: &Observer<'_>,
    ) -> anyhow::Result<Collected> {
        self.generator().collect(model, request, observer)
    }

    fn share(&self, weights: &AdaptedWeights) -> anyhow::Result<()> {
        self.divided.as_ref().map_or(Ok(()), |divided| divided::share(divided.ranks(), weights))
    }

    fn generator(&mut self) -> Generator<'_> {
        let Collector { engine, divided, function, rewards, tokenizer, stop } = self;
        Generator { engine, divided: divided.as_mut(), function: function.as_mut(), rewards, tokenizer, stop }
    }
}

/// The fields of a [`Collector`], borrowed from their owners.
pub struct Generator<'a> {
    pub engine: &'a mut Engine,
    pub divided: Option<&'a mut DividedEngine>,
    pub function: Option<&'a mut FunctionRollouts>,
    pub rewards: &'a mut [Box<dyn Reward>],
    pub tokenizer: &'a Tokenizer,
    pub stop: &'a StopSignal,
}

impl Generator<'_> {
    /// Generates and scores completions, as [`Collector::collect_with`] does.
    pub fn collect(
        self,
        model: ModelView<'_>,
        request: CollectRequest<'_>,
        observer: &Observer<'_>,
    ) -> anyhow::Result<Collected> {
        Ok(self.continue_with(model, request, Begun::default(), observer)?.0)
    }

    /// Like `collect`, for groups that have already begun; also returns the groups of the concurrent requests.
    fn continue_with(
        self,
        model: ModelView<'_>,
        request: CollectRequest<'_>,
        Begun { so_far, beside }: Begun,
        Observer { stages, on_wait }: &Observer<'_>,
    ) -> anyhow::Result<(Collected, Vec<RolloutGroup>)> {
        let CollectRequest { mut prompts, num_generations, sampling, reward_weights, step, .. } = request;
        let CollectRequest { refuse_non_finite, activations, .. } = request;
        let Generator { engine, divided, function, rewards, tokenizer, stop } = self;
        let mut next_group = prompts.last_key_value().map_or(GroupId(0), |(last, _)| last.after(1));
        let (mut rollout_s, mut columns, mut given) = (0.0, GivenColumns::new(), None);
        if let Some(function) = function {
            let span = stages.span("rollout");
            let made = function.rollouts(engine, model, &prompts, num_generations, sampling.common())?;
            rollout_s = span.end();
            (prompts, columns, next_group) = (made.prompts, made.columns, made.next);
            given = Some(made.groups);
        }
        let scorer = RolloutScorer { rewards, weights: reward_weights, tokenizer, step, columns };
        let mut others = Vec::new();
        let (scored, reward_s) = std::thread::scope(|scope| -> anyhow::Result<_> {
            let mut job = scorer.start(scope, &prompts, &[])?;
            let groups = match given {
                Some(groups) => {
                    for group in &groups {
                        job.group_ended(group);
                    }
                    groups
                }
                None => {
                    let (ended, open) = so_far.into_iter().partition::<Vec<_>, _>(|group| !group.is_unfinished());
                    for group in &ended {
                        job.group_ended(group);
                    }
                    let mut requests = requests(&prompts, num_generations, sampling);
                    requests.retain(|request| !ended.iter().any(|group| group.group == request.group));
                    for group in open {
                        let found = requests.iter_mut().find(|request| request.group == group.group);
                        found.context("a group that has begun belongs to another batch")?.so_far = group.completions;
                    }
                    requests.extend(beside);
                    let span = stages.span("rollout");
                    let (before, counters) = (kernels::context::counted(), engine.counters());
                    let is_own = |group: &RolloutGroup| prompts.contains_key(&group.group);
                    engine.keep_activations(activations.cloned());
                    let on_end = |group: &RolloutGroup| {
                        if is_own(group) {
                            job.group_ended(group);
                        }
                    };
                    let (made, others_done) = match divided {
                        Some(divided) => {
                            let tokens = divided.tokens();
                            let made = divided.generate_with(engine, model, requests, activations, on_end)?;
                            stages.count("tokens_of_other_ranks", (divided.tokens() - tokens) as f64);
                            (made, Some(*divided.counters()))
                        }
                        None => (engine.generate_with(model, requests, on_end)?, None),
                    };
                    engine.keep_activations(None);
                    record_ops(&span, before);
                    let mut done = engine.counters() - counters;
                    if let Some(others) = others_done {
                        done.add_counts(&others);
                    }
                    record_counters(stages, &span, done);
                    rollout_s = span.end();
                    let mut groups = ended;
                    for group in made {
                        if is_own(&group) { groups.push(group) } else { others.push(group) }
                    }
                    groups.sort_unstable_by_key(|group| group.group);
                    if refuse_non_finite {
                        finite_logps(&groups)?;
                    }
                    groups
                }
            };
            // This span measures only the scoring that remains after generation.
            let span = stages.span("rewards");
            let scored = watched(scope, job.asked(), *on_wait, || job.finish(groups, BTreeMap::new()))?;
            Ok((scored, span.end()))
        })?;
        // After a stop request, reward functions may have returned early with invalid scores.
        stop.check()?;
        let overlapped_s = scored.overlapped.iter().map(|(_, seconds)| seconds).sum();
        others.sort_unstable_by_key(|group: &RolloutGroup| group.group);
        Ok((Collected { scored, next_group, rollout_s, reward_s, overlapped_s }, others))
    }
}

/// Adds the FLOPs and bytes of the operations since `before` to a span.
pub fn record_ops(span: &Span, before: (u64, u64)) {
    let now = kernels::context::counted();
    span.work((now.0 - before.0) as f64, (now.1 - before.1) as f64);
}

/// Adds the engine's times and counts to its span and to the step's counts.
fn record_counters(stages: &Stages, span: &Span, done: Counters) {
    span.part("prefill", done.prefill_time.as_secs_f64());
    span.part("decode", done.decode_time.as_secs_f64());
    span.part("sampling", done.sampling_time.as_secs_f64());
    let counts = [
        ("preemptions", done.preemptions),
        ("computed_tokens", done.computed_tokens),
        ("cached_tokens", done.cached_tokens),
        ("decode_steps", done.decode_steps),
        ("decode_passes", done.decode_passes),
        ("decoded_tokens", done.decoded_tokens),
        ("drafted_tokens", done.drafted_tokens),
        ("accepted_tokens", done.accepted_tokens),
    ];
    for (name, n) in counts {
        stages.count(name, n as f64);
    }
    stages.count("draft_saved_s", done.undrafted_time.as_secs_f64() - done.draft_time.as_secs_f64());
}

pub(super) fn finite_logps(groups: &[RolloutGroup]) -> Result<(), NonFiniteLogp> {
    let mut logps = groups.iter().flat_map(|group| &group.completions).flat_map(Completion::logps);
    logps.find(|logp| !logp.is_finite()).map_or(Ok(()), |&logp| Err(NonFiniteLogp(logp)))
}

/// Runs `wait`, which waits for reward functions. If this takes long, calls `on_wait` with the name of the slowest.
pub(super) fn watched<'scope, T>(
    scope: &'scope Scope<'scope, '_>,
    asked: Asked,
    on_wait: &'scope (dyn Fn(&str, Duration) + Sync),
    wait: impl FnOnce() -> T,
) -> T {
    let (done, ended) = channel::<()>();
    scope.spawn(move || {
        while ended.recv_timeout(LONG_WAIT) == Err(RecvTimeoutError::Timeout) {
            asked.longest().into_iter().for_each(|(reward, time)| on_wait(&reward, time));
        }
    });
    let given = wait();
    drop(done);
    given
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::columns::SAMPLER_LOGPS;
    use rollout::FinishReason;

    #[test]
    fn the_first_non_finite_log_probability_is_reported() {
        let group = |group: u64, logps: &[f32]| {
            let tokens = logps.len();
            let completion = Completion {
                generation: 0,
                ids: vec![4; tokens],
                sampled: vec![true; tokens],
                versions: vec![model::Updates(0); tokens],
                columns: model::Columns::of([(SAMPLER_LOGPS, logps.to_vec())]),
                finish_reason: FinishReason::Stop,
            };
            RolloutGroup::new(GroupId(group), model::Prompt::new([1]), vec![completion])
        };
        let refused = |groups: &[RolloutGroup]| finite_logps(groups).err().map(|error| error.to_string());
        assert_eq!((refused(&[]), refused(&[group(1, &[-0.5, 0.0]), group(2, &[])])), (None, None));
        let infinite = refused(&[group(1, &[-0.5]), group(2, &[-1.0, f32::NEG_INFINITY, f32::NAN])]);
        assert_eq!(infinite.as_deref(), Some("a token's log-probability is -inf"));
    }
}
