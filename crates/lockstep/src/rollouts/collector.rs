//! The collector: weights and numbered prompts in, scored groups with their metrics out. Training, evaluation and
//! `lockstep eval` share it.
//!
//! What it gives is a value. Nothing of a call stays behind but the order in which rewards were asked, so whoever rolls
//! a step back has nothing to undo here. It knows no run: not its steps, nor its logs, nor its configuration.

use super::function::FunctionRollouts;
use super::scoring::{GivenColumns, Prompts, RolloutScorer, ScoredRollouts, requests};
use crate::config::SamplingPlan;
use crate::stop::StopSignal;
use anyhow::Context as _;
use model::tokenizer::Tokenizer;
use model::{AdaptedWeights, ModelView};
use rewards::{Asked, Reward};
use rollout::{Completion, Counters, Engine, Request, RolloutGroup};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::Scope;
use std::time::Duration;
use telemetry::{Stages, stages::Span};

/// A wait for rewards that is longer is reported, and then again each time that it has passed.
const LONG_WAIT: Duration = Duration::from_secs(10);

/// Completes prompts, and asks rewards about each group as soon as it has ended.
pub struct Collector {
    /// Generates.
    pub engine: Engine,
    /// Makes completions in the engine's place, which it may ask.
    pub function: Option<FunctionRollouts>,
    /// Score them.
    pub rewards: Vec<Box<dyn Reward>>,
    /// Decodes completions for the rewards.
    pub tokenizer: Arc<Tokenizer>,
    /// Ends a collection.
    pub stop: StopSignal,
}

/// What is to be collected.
pub struct CollectRequest<'a> {
    /// The row of each group, by the group's number in the run, which names its noise.
    pub prompts: Prompts,
    /// Completions of a prompt.
    pub num_generations: usize,
    /// How tokens are drawn.
    pub sampling: &'a SamplingPlan,
    /// The weight of each reward in a completion's total.
    pub reward_weights: &'a [f64],
    /// Optimizer steps done: rewards receive the number.
    pub step: u64,
    /// Whether a log-probability of the engine that is not finite is an error, [`NonFiniteLogp`]: a sampler that sees
    /// NaN gives some token all the same.
    pub refuse_non_finite: bool,
}

/// What is there before a collection, and what is to be made beside it.
#[derive(Default)]
pub struct Begun {
    /// What groups of the request have so far; the others begin.
    pub so_far: Vec<RolloutGroup>,
    /// Of later batches, which no reward is asked about yet.
    pub beside: Vec<Request>,
}

/// Who looks on.
pub struct Observer<'a> {
    /// Gets a span "rollout" and a span "rewards": what a device did is counted between those.
    pub stages: &'a Stages,
    /// Told which reward is waited for, and since when, every ten seconds of such a wait.
    pub on_wait: &'a (dyn Fn(&str, Duration) + Sync),
}

/// Scored groups, and what they took.
#[derive(Clone)]
pub struct Collected {
    /// The groups, with the metrics and the problems of rewards.
    pub scored: ScoredRollouts,
    /// The first number that neither a group nor its noise has.
    pub next_number: u64,
    /// Seconds of generation.
    pub rollout_s: f64,
    /// Seconds of scoring after generation had ended.
    pub reward_s: f64,
    /// Seconds of scoring that overlapped generation.
    pub overlapped_s: f64,
}

impl Collected {
    /// Reports the scoring that overlapped generation.
    pub fn record_overlapped(&self, stages: &Stages) {
        for &(start, seconds) in &self.scored.overlapped {
            stages.record_overlapped("rewards", start, seconds);
        }
    }
}

/// The logits of a model are not finite.
#[derive(Debug, thiserror::Error)]
#[error("a token's log-probability is {0}")]
pub struct NonFiniteLogp(pub f32);

/// Who collects: a [`Collector`], or whoever passes the request on to one.
pub trait Collect {
    /// `num_generations` completions of each prompt by the current version of `weights`, scored by every reward.
    fn collect(
        &mut self,
        weights: &AdaptedWeights,
        request: CollectRequest<'_>,
        observer: &Observer<'_>,
    ) -> anyhow::Result<Collected>;

    /// The same of groups that have begun, and what the requests beside them give, in the order of their numbers.
    fn continue_with(
        &mut self,
        _weights: &AdaptedWeights,
        _request: CollectRequest<'_>,
        _begun: Begun,
        _observer: &Observer<'_>,
    ) -> anyhow::Result<(Collected, Vec<RolloutGroup>)> {
        anyhow::bail!("completions that have begun cannot be continued where this run collects")
    }

    /// What completions are guessed from, for whoever resumes the run. It may be lost.
    fn drafts(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Takes up what [`drafts`](Self::drafts) gave.
    fn restore_drafts(&mut self, _bytes: &[u8]) {}
}

/// Takes a collector to where it is asked, and gives who passes requests on to it.
pub type PlaceCollector = Box<dyn FnOnce(Collector) -> Box<dyn Collect>>;

impl Collect for Collector {
    fn collect(
        &mut self,
        weights: &AdaptedWeights,
        request: CollectRequest<'_>,
        observer: &Observer<'_>,
    ) -> anyhow::Result<Collected> {
        self.collect_with(weights.into(), request, observer)
    }

    fn continue_with(
        &mut self,
        weights: &AdaptedWeights,
        request: CollectRequest<'_>,
        begun: Begun,
        observer: &Observer<'_>,
    ) -> anyhow::Result<(Collected, Vec<RolloutGroup>)> {
        self.collect_begun(weights.into(), request, begun, observer)
    }

    fn drafts(&self) -> Vec<u8> {
        self.engine.drafts()
    }

    fn restore_drafts(&mut self, bytes: &[u8]) {
        self.engine.restore_drafts(bytes);
    }
}

impl Collector {
    /// `num_generations` completions of each prompt by `model`, scored by every reward. A group that has ended is
    /// scored while others are still generated, by the rewards that need no more than a group.
    pub fn collect_with(
        &mut self,
        model: ModelView<'_>,
        request: CollectRequest<'_>,
        observer: &Observer<'_>,
    ) -> anyhow::Result<Collected> {
        Ok(self.collect_begun(model, request, Begun::default(), observer)?.0)
    }

    fn collect_begun(
        &mut self,
        model: ModelView<'_>,
        request: CollectRequest<'_>,
        Begun { so_far, beside }: Begun,
        Observer { stages, on_wait }: &Observer<'_>,
    ) -> anyhow::Result<(Collected, Vec<RolloutGroup>)> {
        let CollectRequest { mut prompts, num_generations, sampling, reward_weights, step, refuse_non_finite } =
            request;
        let Collector { engine, function, rewards, tokenizer, stop } = self;
        let mut next_number = prompts.last_key_value().map_or(0, |(last, _)| last + 1);
        let (mut rollout_s, mut columns, mut given) = (0.0, GivenColumns::new(), None);
        if let Some(function) = function {
            let span = stages.span("rollout");
            let made = function.rollouts(engine, model, &prompts, num_generations, sampling.common())?;
            rollout_s = span.end();
            (prompts, columns, next_number) = (made.prompts, made.columns, made.next);
            given = Some(made.groups);
        }
        let scorer = RolloutScorer { rewards, weights: reward_weights, tokenizer, step, columns };
        let mut others = Vec::new();
        let (scored, reward_s) = std::thread::scope(|scope| -> anyhow::Result<_> {
            let mut job = scorer.start(scope, &prompts, &[])?;
            let groups = match given {
                Some(groups) => {
                    groups.iter().for_each(|group| job.group_ended(group));
                    groups
                }
                None => {
                    let (ended, open) = so_far.into_iter().partition::<Vec<_>, _>(|group| !group.is_unfinished());
                    ended.iter().for_each(|group| job.group_ended(group));
                    let mut requests = requests(&prompts, num_generations, sampling);
                    requests.retain(|request| !ended.iter().any(|group| group.id == request.id));
                    for group in open {
                        let found = requests.iter_mut().find(|request| request.id == group.id);
                        found.context("a group of another batch has begun")?.so_far = group.completions;
                    }
                    requests.extend(beside);
                    let span = stages.span("rollout");
                    let (before, counters) = (kernels::context::counted(), engine.counters());
                    let is_own = |group: &RolloutGroup| prompts.contains_key(&group.id);
                    let made = engine.generate_with(model, requests, |group| {
                        if is_own(group) {
                            job.group_ended(group);
                        }
                    })?;
                    record_ops(&span, before);
                    record_counters(stages, &span, engine.counters() - counters);
                    rollout_s = span.end();
                    let mut groups = ended;
                    for group in made {
                        if is_own(&group) { groups.push(group) } else { others.push(group) }
                    }
                    groups.sort_unstable_by_key(|group| group.id);
                    if refuse_non_finite {
                        finite_logps(&groups)?;
                    }
                    groups
                }
            };
            // What is left to score: this is what rewards cost beside generation.
            let span = stages.span("rewards");
            let scored = watched(scope, job.asked(), *on_wait, || job.finish(groups, BTreeMap::new()))?;
            Ok((scored, span.end()))
        })?;
        // After a stop request rewards may have returned early, with anything.
        stop.check()?;
        let overlapped_s = scored.overlapped.iter().map(|(_, seconds)| seconds).sum();
        others.sort_unstable_by_key(|group: &RolloutGroup| group.id);
        Ok((Collected { scored, next_number, rollout_s, reward_s, overlapped_s }, others))
    }
}

/// Enters what operations counted since `before` into a span.
pub fn record_ops(span: &Span, before: (u64, u64)) {
    let now = kernels::context::counted();
    span.work((now.0 - before.0) as f64, (now.1 - before.1) as f64);
}

/// Enters what an engine did into its span and the counts of the step.
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
    counts.into_iter().for_each(|(name, n)| stages.count(name, n as f64));
    stages.count("draft_saved_s", done.undrafted_time.as_secs_f64() - done.draft_time.as_secs_f64());
}

pub(super) fn finite_logps(groups: &[RolloutGroup]) -> Result<(), NonFiniteLogp> {
    let mut logps = groups.iter().flat_map(|group| &group.completions).flat_map(Completion::logps);
    logps.find(|logp| !logp.is_finite()).map_or(Ok(()), |&logp| Err(NonFiniteLogp(logp)))
}

/// Runs `wait`, which waits for rewards. While it takes long, `on_wait` gets the name of the slowest reward.
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
