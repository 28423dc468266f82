//! The code shared by SFT, DPO and reward models. All rows are loaded at the start of the run; training rows are drawn
//! in the sampler's order, and held-out rows are scored. Each method implements [`Offline`], which defines its rows and
//! metrics.

use crate::config::{Config, Purpose};
use crate::data::prompt_dataset::{context, encoder};
use crate::data::{DatasetSpec, Pair, Pairs};
use crate::error::{BadInput, OrBadInput};
use crate::models::{Builder, ModelSource, Policy, Work, load_assets, trained_weights};
use crate::rollouts::evaluate::{find, prefix};
use crate::run::begin::RunParts;
use crate::run::data_position::{DataPosition, sampler, sampler_of_rows};
use crate::run::eval_metrics::{EvalBatch, EvalMetrics, MetricsFailed, PADDING, SetSize};
use crate::run::evaluations::Evaluations;
use crate::run::inputs::RunInputs;
use crate::run::learner::Learner;
use crate::run::memory_advice::Replan;
use crate::run::memory_plan::{Available, MemoryPlan, longest_of, planned};
use crate::run::prepared::PreparedStep;
use crate::run::provenance;
use crate::run::task::{Task, TrainingTask};
use crate::run::training::TrainingRun;
use crate::trainers::Planner;
use anyhow::Context as _;
use model::{AdaptedWeights, Head, ModelAssets, ModelConfig, Scorer};
use serde_json::Value;
use telemetry::{Sinks, counted};
use train::{Objective, PreferencePair, Trainer};

mod rows;

pub use rows::Row;
use rows::RowsState;

/// A training method on a dataset's rows, without generation.
pub trait Offline {
    /// The type of the rows.
    type Row: Row + 'static;
    /// The subcommand of the method.
    const PURPOSE: Purpose;
    /// The output layer of the model: lm head or score head.
    const HEAD: Head;
    /// Names of the metrics of an evaluation, without the set's prefix (`eval_`).
    const EVALUATION_METRICS: &'static [&'static str];
    /// Names of the metrics that the progress line shows.
    const SHOWN_METRICS: &'static [&'static str];
    /// Whether the last step is evaluated even if no evaluation is due.
    const EVALUATES_AT_END: bool = false;
    /// Tokens that are added to each sequence, besides prompt and completion.
    const MORE_TOKENS: usize = 0;

    /// The loss that the trainer minimises.
    fn objective(config: &Config) -> Objective;

    /// Loads the rows of a dataset.
    fn load(
        config: &Config,
        spec: DatasetSpec,
        assets: &ModelAssets,
        sinks: &Sinks,
    ) -> anyhow::Result<Loaded<Self::Row>>;

    /// The largest number of rows that are scored at once, given the number of training rows and the size of the
    /// largest held-out set.
    fn scored([_, held_out]: [usize; 2]) -> usize {
        held_out
    }

    /// Computes values of the rows in advance, such as reference log-probabilities. Called before the trained weights
    /// are loaded.
    fn prepare(
        _inputs: &RunInputs,
        _model: (&ModelSource, &ModelAssets),
        _scorer: &mut Scorer,
        _rows: &mut Rows<Self::Row>,
    ) -> anyhow::Result<()> {
        Ok(())
    }

    /// A message about the numbers of training and held-out rows.
    fn describe(_rows: [usize; 2]) -> Option<String> {
        None
    }

    /// Computes the metrics of held-out rows: all or some of [`EVALUATION_METRICS`](Self::EVALUATION_METRICS).
    fn evaluate(
        config: &Config,
        learner: &Learner,
        scorer: &mut Scorer,
        rows: &[Self::Row],
    ) -> anyhow::Result<Vec<(String, f64)>>;
}

/// The rows of a dataset.
pub struct Loaded<R> {
    pub rows: Vec<R>,
    /// SHA-256 of the dataset.
    pub hash: String,
    /// True if every token of every row counts in the loss. User metrics then also include the first token, although
    /// nothing predicts it.
    pub whole: bool,
}

/// All rows of a run: training rows and held-out sets.
pub struct Rows<R> {
    /// Training rows.
    pub train: Vec<R>,
    /// Held-out sets, for evaluations.
    pub held_out: Vec<HeldOut<R>>,
    /// SHA-256 of the training data.
    hash: String,
}

/// A held-out set: one evaluation dataset.
pub struct HeldOut<R> {
    /// The name of the set in `eval_datasets`; empty for the set of `eval_dataset_name`.
    name: String,
    pub rows: Vec<R>,
    /// True if every token counts in the loss, as in [`Loaded::whole`].
    whole: bool,
}

impl<R: Row> Rows<R> {
    fn load<O: Offline<Row = R>>(
        config: &Config,
        train: Option<DatasetSpec>,
        sets: Vec<(String, DatasetSpec)>,
        assets: &ModelAssets,
        sinks: &Sinks,
    ) -> anyhow::Result<Rows<R>> {
        let Loaded { rows: train, hash, .. } = match train {
            Some(spec) => O::load(config, spec, assets, sinks)?,
            None => Loaded { rows: Vec::new(), hash: String::new(), whole: false },
        };
        let held_out = |(name, spec): (String, DatasetSpec)| -> anyhow::Result<HeldOut<R>> {
            let Loaded { rows, whole, .. } = O::load(config, spec, assets, sinks)?;
            Ok(HeldOut { name, rows, whole })
        };
        Ok(Rows { train, held_out: sets.into_iter().map(held_out).collect::<anyhow::Result<_>>()?, hash })
    }

    /// The number of held-out rows in all sets.
    pub fn held_out_rows(&self) -> usize {
        self.held_out.iter().map(|set| set.rows.len()).sum()
    }

    /// The largest batches that the trainer and the scorer receive at once.
    fn largest_work<O: Offline<Row = R>>(&self, config: &Config) -> [Work; 2] {
        let held_out = self.held_out.iter().flat_map(|set| R::sequences(&set.rows));
        let sequences = R::sequences(&self.train).into_iter().chain(held_out);
        let lengths = sequences.map(|s| (s.prompt.len(), s.completion.len() + O::MORE_TOKENS)).collect::<Vec<_>>();
        let largest = self.held_out.iter().map(|set| set.rows.len()).max().unwrap_or(0);
        // Rows that were read with a larger `max_length` are counted only up to the current limit.
        let longest = longest_of(&lengths).up_to(config.max_length.map_or(usize::MAX, |most| most + O::MORE_TOKENS));
        let work = |rows| Work { completions: R::SEQUENCES * rows, group: R::SEQUENCES, longest };
        [config.completions_per_step(), O::scored([self.train.len(), largest])].map(work)
    }

    fn memory<O: Offline<Row = R>>(
        &self,
        builder: &Builder<'_>,
        source: &ModelSource,
        assets: &ModelAssets,
    ) -> anyhow::Result<MemoryPlan> {
        let work = self.largest_work::<O>(builder.config);
        planned(builder, &assets.config, work[0].longest, |meta| {
            Ok((trained::<O>(meta, source, assets, work)?, scorer(meta, assets, work)))
        })
    }
}

/// The training task of SFT, DPO and reward models.
pub struct OfflineTask<O: Offline> {
    rows: Rows<O::Row>,
    state: RowsState,
    /// Scores held-out rows; `None` without held-out rows.
    scorer: Option<Scorer>,
    /// The user's own evaluation metrics, if any.
    metrics: Option<Box<dyn EvalMetrics>>,
}

/// The rows of one optimizer step.
pub struct Batch<R> {
    rows: Vec<R>,
    run: PreparedStep,
}

impl<O: Offline> TrainingTask for OfflineTask<O> {
    type Batch = Batch<O::Row>;

    fn next_batch(&mut self, run: &TrainingRun) -> anyhow::Result<Batch<O::Row>> {
        let _span = run.log.stages.span("batch");
        let mut next = PreparedStep::after(run);
        let drawn = next.data.sampler.next_batch();
        let rows: Vec<O::Row> = drawn.into_iter().map(|i| self.rows.train[i].clone()).collect();
        let tokens = O::Row::sequences(&rows).iter().map(|s| s.prompt.len() + s.completion.len()).sum::<usize>();
        next.data.num_tokens += tokens as u64;
        Ok(Batch { rows, run: next })
    }

    fn step(&mut self, run: &mut TrainingRun, batch: Batch<O::Row>) -> anyhow::Result<()> {
        run.policy_gradient(O::Row::samples(&batch.rows))?;
        run.check_ranks()?;
        run.commit(batch.run)?;
        run.step_policy()?;
        Ok(())
    }
}

impl<O: Offline> Task for OfflineTask<O> {
    fn evaluate(&mut self, run: &mut TrainingRun) -> anyhow::Result<Option<Vec<(String, f64)>>> {
        let Some(scorer) = &mut self.scorer else { return Ok(None) };
        let span = run.log.stages.span("evaluation");
        let mut metrics = Vec::new();
        for set in &self.rows.held_out {
            let mut set_metrics = O::evaluate(&run.config, &run.learner, scorer, &set.rows)?;
            if let Some((name, value)) = set_metrics.iter().find(|(_, value)| !value.is_finite()) {
                anyhow::bail!(
                    "the evaluation returned {}{name} = {value}: {}",
                    prefix(&set.name),
                    run.learner.policy.why_not_finite()
                );
            }
            if let Some(own) = &mut self.metrics {
                for (name, value) in measured::<O>(run, scorer, set, &mut **own)? {
                    set_metrics.retain(|(other, _)| *other != name);
                    set_metrics.push((name, value));
                }
            }
            metrics.extend(set_metrics.into_iter().map(|(name, value)| (prefix(&set.name) + &name, value)));
        }
        metrics.push(("eval_num_tokens".to_owned(), run.data.num_tokens as f64));
        let seconds = span.end();
        metrics.push(("eval_runtime".to_owned(), seconds));
        if self.rows.held_out_rows() > 0 {
            metrics.push(("eval_samples_per_second".to_owned(), self.rows.held_out_rows() as f64 / seconds));
        }
        Ok(Some(metrics))
    }

    fn evaluates_at_end(&self) -> bool {
        O::EVALUATES_AT_END
    }

    fn shown_metrics(&self) -> &'static [&'static str] {
        O::SHOWN_METRICS
    }

    fn state(&self) -> anyhow::Result<Value> {
        Ok(serde_json::to_value(&self.state)?)
    }
}

/// Builds the trained weights and their trainer.
fn trained<O: Offline>(
    builder: &mut Builder<'_>,
    source: &ModelSource,
    assets: &ModelAssets,
    [step, _]: [Work; 2],
) -> anyhow::Result<(AdaptedWeights, Trainer)> {
    let weights = trained_weights(builder, source, &assets.config)?;
    let trainer = builder.trainer("training", &assets.config, O::objective(builder.config), step, false)?;
    Ok((weights, trainer))
}

/// Builds the scorer of rows, if any rows are scored. May be called before weights are loaded.
fn scorer(builder: &mut Builder<'_>, assets: &ModelAssets, [_, scored]: [Work; 2]) -> Option<Scorer> {
    (scored.completions > 0).then(|| builder.scorer("evaluation", &assets.config, scored))
}

/// Builds the task and its run. All inputs are checked before anything is written.
pub fn build<O: Offline>(mut inputs: RunInputs) -> anyhow::Result<(OfflineTask<O>, TrainingRun)> {
    let (config, ctx) = (inputs.config().clone(), inputs.ctx.clone());
    let source = ModelSource::of(&config, O::HEAD)?;
    let assets = load_assets(&source.dir, O::HEAD, config.dtype, inputs.prompt_time)?;
    if inputs.resume_from.checkpoint().is_some() {
        provenance::check_files(&inputs.dir, &source.dir, &assets.files)?;
    }
    let train = match inputs.train_data() {
        _ if inputs.injected.only_evaluates => None,
        None => return Err(BadInput::new("no training data")),
        some => some,
    };
    let mut rows = Rows::load::<O>(&config, train, inputs.eval_sets(), &assets, &inputs.sinks)?;
    let builder = inputs.builder();
    let again = |changed: &Config| {
        let assets = assets.clone().computing_in(changed.dtype.dtype()).or_bad_input()?;
        Ok(rows.memory::<O>(&builder.with(changed), &source, &assets)?.on(ctx.memory().device()))
    };
    let (plan, available) = (again(&config)?, Available::of(&ctx));
    let resumes = builder.checkpoint.is_some();
    Replan { purpose: O::PURPOSE, config: &config, resumes, plan: &again }.check(&plan, &available)?;
    drop(builder);
    telemetry::system::reset_peak_rss();
    let metrics = inputs.injected.eval_metrics.take();
    if let Some(metrics) = &metrics {
        let sizes = rows.held_out.iter().map(|set| set_size::<O>(&set.rows, &assets.config));
        sizes.into_iter().try_for_each(|size| size.check(&**metrics, &available, plan.needed()))?;
    }
    let sampler = if inputs.injected.only_evaluates {
        sampler(1, 1, &config)?
    } else {
        sampler_of_rows(rows.train.len(), config.completions_per_step(), &config)?
    };
    let chunks = sampler.chunks_per_epoch();
    let (mut builder, work) = (inputs.builder(), rows.largest_work::<O>(&config));
    let mut scorer = scorer(&mut builder, &assets, work);
    if let Some(scorer) = &mut scorer {
        O::prepare(&inputs, (&source, &assets), scorer, &mut rows)?;
    }
    let scorer = scorer.filter(|_| !rows.held_out.is_empty());
    let (weights, trainer) = trained::<O>(&mut builder, &source, &assets, work)?;
    let policy = Policy::of(source.dir.clone(), assets, weights).exporting(&config, &source)?;
    inputs.sinks.info(&policy.describe(&ctx));
    if let Some(line) = O::describe([rows.train.len(), rows.held_out_rows()]) {
        inputs.sinks.info(&line);
    }
    let names = |set: &HeldOut<O::Row>| O::EVALUATION_METRICS.iter().map(|name| prefix(&set.name) + name).collect();
    let names: Vec<Vec<String>> = rows.held_out.iter().map(names).collect();
    let total_steps = if config.max_steps > 0 {
        config.max_steps as u64
    } else {
        (config.num_train_epochs * chunks as f64).ceil() as u64
    };
    let parts = RunParts {
        learner: Learner::new(ctx, policy, trainer, config.schedule(total_steps)),
        data: DataPosition::new(std::mem::take(&mut rows.hash), sampler, chunks as u64),
        evaluations: Evaluations::new(&config, &names.concat(), metrics.is_some())?,
        purpose: O::PURPOSE,
        label: O::PURPOSE.command(),
    };
    let state = RowsState::of(&rows.train);
    let sinks = inputs.sinks.clone();
    let name = config.dataset_name.clone().unwrap_or_default();
    let run = TrainingRun::begin(inputs, parts, |began, _| {
        state.differs_from(began, &name)?.iter().for_each(|words| sinks.warn(words));
        Ok(())
    })?;
    Ok((OfflineTask { rows, state, scorer, metrics }, run))
}

/// Computes the user's own metrics of a held-out set. The model's outputs are passed on batch by batch, so that only
/// those of one batch are in memory here.
fn measured<O: Offline>(
    run: &TrainingRun,
    scorer: &mut Scorer,
    set: &HeldOut<O::Row>,
    metrics: &mut dyn EvalMetrics,
) -> anyhow::Result<Vec<(String, f64)>> {
    let pad = run.learner.policy.tokenizer.pad_id().or(run.learner.policy.tokenizer.eos_id()).unwrap_or(0);
    metrics.begin(&set.name, set_size::<O>(&set.rows, run.learner.policy.config())).context(MetricsFailed)?;
    for rows in set.rows.chunks(metrics.batch_size()) {
        run.stop.check()?;
        let sequences = first_of_each(O::Row::sequences(rows), O::Row::SEQUENCES);
        let ids: Vec<Vec<u32>> = sequences.iter().map(|s| [s.prompt, s.completion].concat()).collect();
        let mut learned: Vec<Vec<bool>> = first_of_each(O::Row::learned(rows), O::Row::SEQUENCES);
        if set.whole {
            for row in &mut learned {
                row.fill(true);
            }
        }
        let (outputs, vocab) = match O::HEAD {
            Head::Lm => (logits(&run.learner, scorer, &ids)?, Some(run.learner.policy.config().vocab_size)),
            Head::Score(_) => {
                (scorer.sequence_scores(&run.learner.ctx, &run.learner.policy.weights, &sequences)?, None)
            }
        };
        let loss = if metrics.needs_loss() {
            find(&O::evaluate(&run.config, &run.learner, scorer, rows)?, "loss")
        } else {
            None
        };
        metrics.batch(EvalBatch { ids, learned, outputs, vocab, pad, loss }).context(MetricsFailed)?;
    }
    metrics.end().context(MetricsFailed)
}

/// Reorders the sequences of rows: first the first sequence of every row, then the second.
fn first_of_each<T: Clone>(all: Vec<T>, per_row: usize) -> Vec<T> {
    (0..per_row).flat_map(|at| all.iter().skip(at).step_by(per_row).cloned()).collect()
}

/// Logits of all `ids`, `[N, T, V]`: N sequences, T tokens of the longest one, V tokens of the vocabulary.
fn logits(learner: &Learner, scorer: &mut Scorer, ids: &[Vec<u32>]) -> anyhow::Result<Vec<f32>> {
    let (vocab, longest) = (learner.policy.config().vocab_size, ids.iter().map(Vec::len).max().unwrap_or(0));
    let mut all = vec![PADDING; ids.len() * longest * vocab];
    let mut next: Vec<usize> = (0..ids.len()).map(|i| i * longest * vocab).collect();
    let sequences: Vec<&[u32]> = ids.iter().map(Vec::as_slice).collect();
    scorer.logits(&learner.ctx, &learner.policy.weights, &sequences, |i, rows| {
        all[next[i]..next[i] + rows.len()].copy_from_slice(rows);
        next[i] += rows.len();
    })?;
    Ok(all)
}

fn set_size<O: Offline>(rows: &[O::Row], model: &ModelConfig) -> SetSize {
    let sequences = O::Row::sequences(rows);
    let longest = sequences.iter().map(|s| s.prompt.len() + s.completion.len()).max().unwrap_or(0);
    let vocab = (O::HEAD == Head::Lm).then_some(model.vocab_size);
    SetSize { rows: rows.len(), sequences: sequences.len(), longest, vocab }
}

/// Plans the memory of a configuration's run.
pub fn planner<'a, O: Offline>(
    builder: &'a Builder<'a>,
    source: &'a ModelSource,
    assets: &'a ModelAssets,
) -> anyhow::Result<Planner<'a>> {
    let (config, sinks) = (builder.config, builder.sinks);
    let (train, sets) = (DatasetSpec::train(config), DatasetSpec::eval_sets(config));
    if train.is_none() {
        return Err(BadInput::new("no training data"));
    }
    let rows = Rows::load::<O>(config, train, sets, assets, sinks)?;
    Ok(Box::new(move |config| {
        let assets = assets.clone().computing_in(config.dtype.dtype()).or_bad_input()?;
        rows.memory::<O>(&builder.with(config), source, &assets)
    }))
}

/// The maximum number of tokens in a prompt with its completion.
pub fn longest_row(config: &Config, assets: &ModelAssets) -> usize {
    config.max_length.unwrap_or(usize::MAX).min(context(config, assets))
}

/// Loads the preference pairs of a dataset, without those that are too long. For `needs_prompt` and `change` see
/// [`Pairs::load`].
pub fn load_pairs(
    config: &Config,
    spec: &DatasetSpec,
    assets: &ModelAssets,
    sinks: &Sinks,
    needs_prompt: bool,
    change: impl Fn(&mut Pair) -> anyhow::Result<()>,
) -> anyhow::Result<Loaded<PreferencePair>> {
    let most = longest_row(config, assets);
    let pairs = Pairs::load(spec, &encoder(config, assets)?, most, needs_prompt, change)?;
    pairs.notices.report(sinks);
    if pairs.left_out > 0 {
        let left_out = counted(pairs.left_out, "pair");
        sinks.info(&format!("{}: left out: {left_out} longer than {most} tokens (max_length)", spec.name));
    }
    let rows = pairs.all.into_iter().map(Pair::into_preference_pair).collect();
    Ok(Loaded { rows, hash: pairs.hash, whole: false })
}

#[cfg(test)]
mod tests;
