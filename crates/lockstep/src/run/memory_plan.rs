//! What memory a run will take, by part, before it starts: the parts are built on [`Device::Meta`], which only counts.
//!
//! The sizes are those of the worst case that the configuration allows: every prompt as long as the longest, every
//! completion as long as its limit, or as the longest of the data. It does not know what is allocated outside tensors
//! but for an allowance.

use crate::algorithms::Estimator;
use crate::bad_input;
use crate::config::{Config, WorkloadBounds};
use crate::config::{engine_config, eval_sampling, sampling, trainer_config};
use crate::data::DatasetSpec;
use crate::data::prompt_dataset::{PromptDataset, context};
use crate::error::OrBadInput;
use crate::models::{ModelSource, load_config, value_model_shape};
use crate::rollouts::replay::{Limits, Replay};
use kernels::context::threads_from_env;
use kernels::ops::Passes;
use kernels::{Context, Device, Memory};
use model::{Adapter, Capacity, Head, LoraConfig, ModelAssets, ModelConfig, Scorer, Weights};
use rollout::{Engine, SamplingParams};
use std::sync::Arc;
use train::{Objective, Trainer};

/// Allowance for a thread: its stack as far as it is touched, and what products and attention hold while they run.
const THREAD_BYTES: u64 = 2 << 20;
/// What the head's backward pass holds: gradients of 256 rows × 4096 logits.
const LOGITS_BYTES: u64 = 256 * 4096 * 4;
/// Allowance for what CUDA's memory pool takes more than it is asked for: it takes memory from the device in pieces.
/// Not measured on hardware yet.
const POOL_BYTES: u64 = 64 << 20;
/// Bytes for each element of the largest tensor while it is read or written: its elements as f32, and as they lie in
/// the file.
const WIDENED_BYTES: u64 = 8;

/// Memory of one part of a run.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Part {
    /// What it is.
    #[serde(rename = "part")]
    pub name: String,
    /// How much.
    pub bytes: u64,
    /// The keys that make it smaller, if any do.
    pub lowered_by: &'static str,
    /// The device whose memory it is in, where that is not the host's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on: Option<&'static str>,
}

/// Memory of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// By part.
    pub parts: Vec<Part>,
    /// Of all parts in the host's memory: the peak of resident memory, in bytes.
    pub total: u64,
    /// Of all parts in the device's, where it has its own.
    pub device_total: Option<u64>,
    /// Of these, what this process has resident already.
    pub resident: u64,
    /// The sequences that it is made for.
    pub longest: Longest,
    /// Tensors among the parts: the first ones.
    tensors: usize,
    /// What operations on a device hold beside them.
    scratch: u64,
}

/// Memory that can still be taken, in bytes, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Available {
    /// The host's.
    pub host: Option<u64>,
    /// The device's, and what this process holds of it already.
    pub device: Option<u64>,
}

/// Plans a run of `lockstep train`. Allocates nothing.
pub fn plan(config: &Config, assets: &ModelAssets, bounds: WorkloadBounds) -> anyhow::Result<MemoryPlan> {
    let model = &assets.config;
    let longest = Longest { prompt: bounds.longest_prompt, completion: config.max_completion_length };
    let mut planner =
        Planner { config, group: config.num_generations, longest, parts: Vec::new(), passes: Passes::default() };
    let (step, generation) = (config.completions_per_step(), config.generation_batch());
    planner.training(["", "training"], model, config.objective(), step)?;
    if let Estimator::ValueModel = config.policy_gradient().estimator() {
        let shape = value_model_shape(config, model)?;
        planner.training(["value model", "value training"], &shape, Objective::Value(config.value_loss()), step)?;
        planner.count("values", |planner, memory| Ok(planner.scorer(memory, &shape, generation)))?;
    }
    if config.loads_reference(bounds.ref_logps) {
        // The model without its adapter is there already.
        let own = config.ref_model.is_some() || !config.use_peft;
        planner.count("reference", |planner, memory| {
            Ok((own.then(|| Weights::zeros(memory, model)), planner.scorer(memory, model, generation)))
        })?;
    }
    if config.replay.is_some() || bounds.given {
        // They may lack log-probabilities.
        planner.count("given rollouts", |planner, memory| Ok(planner.scorer(memory, model, generation)))?;
    }
    if generates(config) {
        let training = sampling(config, &[]);
        let evaluation = config.has_eval_data().then(|| eval_sampling(config, &training));
        let training = config.replay.is_none().then_some(training);
        planner.generation(assets, bounds, training.iter().chain(&evaluation))?;
    }
    planner.reward_models(generation)?;
    planner.finish(model)
}

/// Plans an evaluation outside a run. Allocates nothing.
pub fn plan_evaluation(config: &Config, assets: &ModelAssets, bounds: WorkloadBounds) -> anyhow::Result<MemoryPlan> {
    let longest = Longest { prompt: bounds.longest_prompt, completion: config.max_completion_length };
    let mut planner =
        Planner { config, group: config.generations_eval(), longest, parts: Vec::new(), passes: Passes::default() };
    planner.count("", |_, memory| weights(memory, &assets.config, None))?;
    planner.generation(assets, bounds, [&eval_sampling(config, &sampling(config, &[]))].into_iter())?;
    planner.reward_models(bounds.sequences)?;
    planner.finish(&assets.config)
}

/// A model among the rewards.
struct RewardModel {
    name: String,
    shape: Arc<ModelConfig>,
    /// Its adapter, if it is one.
    lora: Option<LoraConfig>,
}

/// The models among the rewards.
fn reward_models(config: &Config) -> anyhow::Result<Vec<RewardModel>> {
    let mut found = Vec::new();
    let names = rewards::names(&config.reward_funcs).or_bad_input()?;
    for (spec, name) in config.reward_funcs.iter().zip(names) {
        if let Some(model) = spec.model().or_bad_input()? {
            let ModelSource { dir, adapter } = ModelSource::named(&model, Head::Score(1))?;
            let shape = match load_config(&dir, kernels::DType::F32)? {
                // Below an adapter, whose head it gets.
                model if model.head == Head::Lm => model.with_score_head(1),
                scorer => scorer,
            };
            let lora = adapter.map(|dir| model::peft::load_adapter_config(&dir)).transpose().or_bad_input()?;
            found.push(RewardModel { name, shape: Arc::new(shape), lora: lora.map(|adapter| adapter.lora) });
        }
    }
    Ok(found)
}

/// Whether a run needs an engine: one that replays a file does not, unless it evaluates.
pub fn generates(config: &Config) -> bool {
    config.replay.is_none() || config.has_eval_data()
}

/// Plans a run on rows of data of `sequences` sequences each, of which `evaluated` are scored at once. Allocates
/// nothing.
pub fn plan_rows(
    config: &Config,
    model: &Arc<ModelConfig>,
    objective: Objective,
    sequences: usize,
    longest: Longest,
    evaluated: usize,
) -> anyhow::Result<MemoryPlan> {
    let mut planner = Planner { config, group: sequences, longest, parts: Vec::new(), passes: Passes::default() };
    planner.training(["", "training"], model, objective, sequences * config.completions_per_step())?;
    if evaluated > 0 {
        planner.count("evaluation", |planner, memory| Ok(planner.scorer(memory, model, sequences * evaluated)))?;
    }
    planner.finish(model)
}

/// The longest prompt and the longest completion that meet in a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Longest {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens of the completion.
    pub completion: usize,
}

impl Longest {
    /// Tokens of both.
    pub fn positions(self) -> usize {
        self.prompt + self.completion
    }
}

/// Weights with their adapter, if they have one.
fn weights(
    memory: &Memory,
    model: &Arc<ModelConfig>,
    lora: Option<&LoraConfig>,
) -> anyhow::Result<(Weights, Option<Adapter>)> {
    let weights = Weights::zeros(memory, model);
    let adapter = lora.map(|lora| Adapter::zeros(memory, &weights, lora)).transpose().or_bad_input()?;
    Ok((weights, adapter))
}

/// Parts of a run on groups of `group` completions.
struct Planner<'a> {
    config: &'a Config,
    group: usize,
    longest: Longest,
    parts: Vec<Part>,
    passes: Passes,
}

impl Planner<'_> {
    /// Builds a part on memory that only counts, and adds what it takes.
    fn count<T>(&mut self, whose: &str, build: impl FnOnce(&Self, &Memory) -> anyhow::Result<T>) -> anyhow::Result<()> {
        let memory = Memory::new(Device::Meta);
        // Alive while it is counted.
        let _part = build(self, &memory)?;
        add(&mut self.parts, &memory, whose);
        Ok(())
    }

    /// Weights, and what an optimizer step on `completions` completions takes; under these two names.
    fn training(
        &mut self,
        names: [&str; 2],
        model: &Arc<ModelConfig>,
        objective: Objective,
        completions: usize,
    ) -> anyhow::Result<()> {
        let settings = trainer_config(self.config, objective);
        self.passes_through(model, self.capacity(completions));
        self.count(names[0], |_, memory| weights(memory, model, settings.adapter.as_ref()))?;
        self.count(names[1], |planner, memory| {
            let mut trainer = Trainer::new(memory, model, settings)?;
            let tokens = completions.div_ceil(planner.group) * planner.of_group(planner.group).tokens;
            trainer.reserve(model, tokens, planner.capacity(completions), planner.longest.positions());
            Ok(trainer)
        })
    }

    /// What generates, and draws tokens in these ways.
    fn generation<'a>(
        &mut self,
        assets: &ModelAssets,
        bounds: WorkloadBounds,
        mut drawn: impl Iterator<Item = &'a SamplingParams>,
    ) -> anyhow::Result<()> {
        let sizes = engine_config(self.config, context(self.config, assets), bounds);
        // It computes nothing here.
        let ctx = Context::meta();
        let tokens = sizes.max_batched_tokens.max(sizes.max_num_seqs);
        let tokens = if sizes.chunked_prefill { tokens } else { tokens.max(sizes.max_model_len) };
        self.passes_through(&assets.config, Capacity { tokens, blocks: sizes.kv_blocks, score_rows: 0 });
        self.passes.sequences = self.passes.sequences.max(sizes.max_num_seqs);
        self.passes.whole |= drawn.any(SamplingParams::needs_logits);
        self.passes.positions = self.passes.positions.max(sizes.max_model_len);
        self.count("generation", |_, memory| Engine::on(&ctx, memory, &assets.config, sizes).or_bad_input())
    }

    /// The models among the rewards, which score `completions` completions at once.
    fn reward_models(&mut self, completions: usize) -> anyhow::Result<()> {
        let longest = self.longest;
        // Its own words may cut the text into more tokens; a completion has one more for what ends the text.
        self.longest.completion += 1;
        for RewardModel { name, shape, lora } in reward_models(self.config)? {
            self.passes_through(&shape, self.capacity(completions));
            self.count(&format!("reward {name}"), |planner, memory| {
                Ok((weights(memory, &shape, lora.as_ref())?, planner.scorer(memory, &shape, completions)))
            })?;
        }
        self.longest = longest;
        Ok(())
    }

    /// Takes note of the largest pass through a model.
    fn passes_through(&mut self, model: &ModelConfig, capacity: Capacity) {
        let lora = self.config.adapter();
        let passes = &mut self.passes;
        let mut most = |of: fn(&mut Passes) -> &mut usize, n: usize| *of(passes) = n.max(*of(passes));
        most(|p| &mut p.tokens, capacity.tokens);
        most(|p| &mut p.pages, capacity.blocks);
        most(|p| &mut p.positions, self.longest.positions());
        most(|p| &mut p.vocab, model.vocab_size);
        most(|p| &mut p.heads, model.num_heads);
        if let Some(lora) = lora {
            // The adapters of queries, keys and values lie one below the other.
            most(|p| &mut p.rank, 3 * lora.r);
            let widest = model.intermediate_size.max(model.hidden_size);
            most(|p| &mut p.dropped, if lora.dropout > 0.0 { widest } else { 0 });
        }
    }

    fn scorer(&self, memory: &Memory, model: &ModelConfig, completions: usize) -> Scorer {
        let mut scorer = Scorer::new(memory, self.config.micro_batch_tokens(), self.config.prefix_sharing);
        scorer.reserve(model, self.capacity(completions), self.longest.positions());
        scorer
    }

    /// The largest group of `group` completions.
    fn of_group(&self, group: usize) -> Capacity {
        Capacity::of_group(self.longest.prompt, &vec![self.longest.completion; group], self.config.prefix_sharing)
    }

    /// The largest micro-batch that `completions` completions can be cut into.
    fn capacity(&self, completions: usize) -> Capacity {
        let group = self.group.min(completions).max(1);
        let groups = completions.div_ceil(group);
        Capacity::of_micro_batch(self.of_group(group), groups, completions, self.config.micro_batch_tokens())
    }

    /// Adds what no tensor of a run accounts for, and sums up.
    fn finish(self, model: &ModelConfig) -> anyhow::Result<MemoryPlan> {
        let Planner { config, longest, mut parts, passes, .. } = self;
        let tensors = parts.len();
        let threads = config.threads.map_or_else(threads_from_env, Ok)? as u64;
        let resident = telemetry::system::rss_bytes().unwrap_or(0);
        let widened = model.largest_tensor() as u64 * WIDENED_BYTES;
        let widened = match config.adapter() {
            None => widened,
            // Only the adapter is written; the model is read before anything of the training is touched.
            Some(lora) => {
                let of_model = |p: &&Part| ["weights", "adapter"].contains(&p.name.as_str());
                let later: u64 = parts.iter().filter(|p| !of_model(p)).map(|p| p.bytes).sum();
                widened.saturating_sub(later).max(lora.largest_tensor(model) as u64 * WIDENED_BYTES)
            }
        };
        let rest = [
            ("reading and writing: largest tensor", widened, ""),
            ("threads", threads * THREAD_BYTES + LOGITS_BYTES, "threads"),
            ("program, tokenizer, data", resident, ""),
        ];
        parts.extend(rest.map(|(name, bytes, lowered_by)| Part::of_host(name, bytes, lowered_by)));
        let total = parts.iter().map(|p| p.bytes).sum();
        let (device_total, scratch) = (None, passes.scratch_bytes());
        Ok(MemoryPlan { parts, total, device_total, resident, longest, tensors, scratch })
    }
}

/// What was booked on `memory`, as parts.
fn add(parts: &mut Vec<Part>, memory: &Memory, whose: &str) {
    for (part, usage) in memory.usage() {
        let lowered_by = match (whose, part) {
            ("training" | "value training", "activations") => "max_tokens_per_micro_batch, gradient_checkpointing",
            ("training" | "value training" | "values" | "reference" | "evaluation", "workspace") => {
                "max_tokens_per_micro_batch"
            }
            ("reference", "weights") => "beta = 0 (PPO: kl_coef = 0)",
            (reward, "workspace") if reward.starts_with("reward ") => "max_tokens_per_micro_batch",
            (reward, "weights") if reward.starts_with("reward ") => "reward_funcs",
            ("generation", "kv cache") => "max_num_seqs, kv_cache_blocks, max_completion_length",
            _ => "",
        };
        let name = if whose.is_empty() { part.to_owned() } else { format!("{whose}: {part}") };
        parts.push(Part { name, bytes: usage.bytes as u64, lowered_by, on: None });
    }
}

impl Part {
    fn of_host(name: &str, bytes: u64, lowered_by: &'static str) -> Part {
        Part { name: name.to_owned(), bytes, lowered_by, on: None }
    }
}

impl Available {
    /// What there is for a run on this context.
    pub fn of(ctx: &Context) -> Available {
        let free = ctx.device_memory().ok().flatten().and_then(|memory| memory.total_and_free);
        let held: u64 = ctx.memory().usage().values().map(|usage| usage.bytes as u64).sum();
        Available { host: MemoryPlan::available_bytes(), device: free.map(|[_, free]| free + held) }
    }
}

impl MemoryPlan {
    /// The plan on a device: where it has memory of its own, the tensors are there, with what its operations take for
    /// themselves, and the host has what travels between them.
    pub fn on(mut self, device: Device) -> MemoryPlan {
        if !device.is_cuda() {
            return self;
        }
        let on = Some(device.name());
        self.parts.iter_mut().take(self.tensors).for_each(|part| part.on = on);
        let mut at = self.tensors;
        let mut add = |name: &str, bytes, lowered_by| {
            self.parts.insert(at, Part { name: name.to_owned(), bytes, lowered_by, on });
            at += 1;
        };
        add("scratch of operations", self.scratch, "max_tokens_per_micro_batch, max_num_seqs");
        if device != Device::CudaEmulated {
            add("memory pool: rounding", POOL_BYTES, "");
        }
        self.parts.retain(|part| part.name != "threads");
        self.parts.push(Part::of_host("staging of copies", Passes::staging_bytes(), ""));
        let sum = |there: bool| self.parts.iter().filter(|p| p.on.is_some() == there).map(|p| p.bytes).sum::<u64>();
        (self.total, self.device_total) = (sum(false), Some(sum(true)));
        self
    }

    /// Memory that this process can still take: what the machine has available, and what its control group leaves.
    pub fn available_bytes() -> Option<u64> {
        let (_, available) = telemetry::system::memory_bytes();
        let resident = telemetry::system::rss_bytes().unwrap_or(0);
        let left = telemetry::system::memory_limit_bytes().map(|limit| limit.saturating_sub(resident));
        available.into_iter().chain(left).min()
    }

    /// Bytes that are still to be taken.
    pub fn needed(&self) -> u64 {
        self.total.saturating_sub(self.resident)
    }

    /// Refuses a run that cannot fit in what is `available`, and says what to lower.
    pub fn check(&self, available: Available, config: &Config) -> anyhow::Result<()> {
        if let Some(available) = available.host.filter(|&a| a < self.needed()) {
            let fixed = self.fixed(None).saturating_sub(self.resident);
            return self.refuse("memory", self.needed(), available, fixed, config);
        }
        let on = self.parts.iter().find_map(|part| part.on).unwrap_or_default();
        match (self.device_total, available.device) {
            (Some(needed), Some(available)) if available < needed => {
                self.refuse(&format!("{on}'s memory"), needed, available, self.fixed(Some(on)), config)
            }
            _ => Ok(()),
        }
    }

    /// What no key lowers, in the memory of a device or of the host.
    fn fixed(&self, on: Option<&str>) -> u64 {
        self.parts.iter().filter(|p| p.on == on && p.lowered_by.is_empty()).map(|p| p.bytes).sum()
    }

    fn refuse(&self, what: &str, needed: u64, available: u64, fixed: u64, config: &Config) -> anyhow::Result<()> {
        let (needed, available_mib) = (mib(needed), mib(available));
        if fixed > available {
            bad_input!(
                "the run needs {needed} MiB of {what} and {available_mib} MiB are available; weights, gradients and \
                 the optimizer's moments alone need {} MiB, which no key lowers: train a smaller model, or on a \
                 machine with more memory",
                mib(fixed)
            );
        }
        let mut mend = vec![
            format!("max_tokens_per_micro_batch (now {})", config.max_tokens_per_micro_batch),
            format!("max_num_seqs (now {})", config.max_num_seqs),
            format!("kv_cache_blocks{}", config.kv_cache_blocks.map_or(String::new(), |n| format!(" (now {n})"))),
        ];
        if !config.gradient_checkpointing {
            mend.push("or set gradient_checkpointing = true".to_owned());
        }
        bad_input!(
            "the run needs {needed} MiB of {what} and {available_mib} MiB are available: lower {} (`lockstep plan` \
             shows the parts)",
            mend.join(", ")
        )
    }
}

/// Bytes as MiB with one decimal.
fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

/// The longest sequence and the longest completion among `rows` of (prompt, completion) tokens.
pub fn longest_of(rows: &[(usize, usize)]) -> Longest {
    let total = rows.iter().map(|(p, c)| p + c).max().unwrap_or(0);
    let completion = rows.iter().map(|(_, c)| *c).max().unwrap_or(0);
    Longest { prompt: total - completion, completion }
}

/// What the run's data say; without data, the longest prompt is what the context and the configuration allow.
pub fn bounds(config: &Config, assets: &ModelAssets) -> anyhow::Result<WorkloadBounds> {
    let replay = match &config.replay {
        Some(path) => Some(Replay::load(path, assets, &Limits::of(config, assets))?.bounds()),
        None => None,
    };
    let mut longest = replay.map(|bounds| bounds.longest_prompt);
    let mut sequences = if replay.is_some() { 0 } else { config.generation_batch() };
    let train = if config.replay.is_some() { None } else { DatasetSpec::train(config) };
    let load = |spec: &DatasetSpec| PromptDataset::load(spec, config, assets, config.max_completion_length);
    if let Some(spec) = &train {
        longest = longest.max(Some(load(spec)?.longest()));
    }
    for (_, spec) in &DatasetSpec::eval_sets(config) {
        let questions = load(spec)?;
        longest = longest.max(Some(questions.longest()));
        sequences = sequences.max(questions.all.len() * config.generations_eval());
    }
    let context = context(config, assets);
    let room = context.saturating_sub(config.max_completion_length);
    let longest_prompt = match longest {
        Some(longest) => longest,
        None if room == 0 => bad_input!(
            "max_completion_length = {} leaves no room for a prompt in the context of {context} tokens: lower it",
            config.max_completion_length
        ),
        None => config.max_prompt_length.map_or(room, |n| n.min(room)),
    };
    Ok(WorkloadBounds { longest_prompt, sequences, ref_logps: replay.is_some_and(|b| b.ref_logps), given: false })
}
