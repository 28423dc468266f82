//! The model of a service, its adapters, and the sizes of its engine.

use crate::bad_input;
use crate::config::ComputeDType;
use crate::error::OrBadInput;
use crate::models::{Policy, check_base, locate};
use crate::run::memory_plan::Available;
use crate::stop::StopSignal;
use kernels::Context;
use model::Adapter;
use model::hub::HubKind;
use model::kv::{BLOCK, KvCache};
use rollout::{AdapterVersion, Engine, EngineConfig, ModelVersion};
use std::path::PathBuf;

/// The part of the available memory that the KV cache may take if its size is not given.
const KV_CACHE_SHARE: u64 = 4;

/// A directory, and the name by which clients ask for its model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedDir {
    /// The name in requests.
    pub name: String,
    /// A directory; for a model also a Hub id.
    pub dir: String,
}

/// The models of a service, and its sizes. Sizes change no bit of a completion.
#[derive(Clone, Debug)]
pub struct ServiceOptions {
    /// The base model.
    pub model: NamedDir,
    /// PEFT directories of adapters for the model.
    pub adapters: Vec<NamedDir>,
    /// Whether adapters that were trained on other base weights are allowed.
    pub other_base: bool,
    /// The dtype of matmuls.
    pub dtype: ComputeDType,
    /// The maximum number of tokens of a prompt with its completion; `None`: the model's context, or less if the KV
    /// cache has room for less.
    pub max_model_len: Option<usize>,
    /// The maximum number of completions in a step of the engine.
    pub max_num_seqs: usize,
    /// The maximum number of completions that wait for a slot in the engine.
    pub max_waiting: usize,
    /// The number of KV-cache pages; `None`: enough for `max_num_seqs` completions of `max_model_len` tokens, but at
    /// most a quarter of the available memory.
    pub kv_cache_blocks: Option<usize>,
    /// The seed of requests without one.
    pub seed: u64,
    /// The directory for states of models that clients train; it is made when something is saved.
    pub state: PathBuf,
}

/// The sizes of the engine and of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceSizes {
    /// The maximum number of tokens of a prompt with its completion.
    pub max_model_len: usize,
    /// The maximum number of completions in a step of the engine.
    pub max_num_seqs: usize,
    /// The maximum number of completions that wait.
    pub max_waiting: usize,
    /// The number of KV-cache pages.
    pub kv_cache_blocks: usize,
    /// The number of tokens in a KV-cache page.
    pub block_tokens: usize,
    /// The number of bytes of all KV-cache pages.
    pub kv_cache_bytes: usize,
}

impl ServiceSizes {
    /// The maximum number of open completions, running and waiting.
    pub fn most_open(&self) -> usize {
        self.max_num_seqs + self.max_waiting
    }
}

/// Everything that the owner thread has.
pub(super) struct Loaded {
    pub(super) policy: Policy,
    pub(super) engine: Engine,
    /// The adapters by their ids.
    pub(super) adapters: Vec<(u64, Adapter)>,
    /// The version of the weights for each name.
    pub(super) models: Vec<(String, ModelVersion)>,
    pub(super) sizes: ServiceSizes,
}

impl Loaded {
    pub(super) fn new(ctx: &Context, options: &ServiceOptions, mut warn: impl FnMut(&str)) -> anyhow::Result<Loaded> {
        check_names(options)?;
        let dir = locate(&options.model.dir, HubKind::Model)?;
        for adapter in options.adapters.iter().filter(|_| !options.other_base) {
            let path = PathBuf::from(&adapter.dir);
            check_base(&path, &dir, &StopSignal::new(), &mut warn)
                .or_bad_input_in(format_args!("adapter {}", adapter.name))?;
        }
        let policy = Policy::load(ctx, &dir, options.dtype)?;
        let base = policy.weights.base.current();
        let version = ModelVersion { base: base.version, adapter: None };
        let mut models = vec![(options.model.name.clone(), version)];
        let mut adapters = Vec::new();
        for (id, NamedDir { name, dir }) in options.adapters.iter().enumerate() {
            let adapter = model::peft::load_adapter(ctx.memory(), &PathBuf::from(dir), base)
                .or_bad_input_in(format_args!("adapter {name}"))?;
            let id = id as u64;
            let adapter_version = AdapterVersion { id, version: adapter.version };
            models.push((name.clone(), ModelVersion { adapter: Some(adapter_version), ..version }));
            adapters.push((id, adapter));
        }
        let config = engine_config(ctx, &policy, options)?;
        let block_bytes = KvCache::block_bytes(policy.config());
        let sizes = ServiceSizes {
            max_model_len: config.max_model_len,
            max_num_seqs: config.max_num_seqs,
            max_waiting: options.max_waiting,
            kv_cache_blocks: config.kv_blocks,
            block_tokens: BLOCK,
            kv_cache_bytes: config.kv_blocks * block_bytes,
        };
        let mut engine = Engine::new(ctx, policy.config(), config).or_bad_input()?;
        engine.set_detokenizer(policy.tokenizer.clone());
        Ok(Loaded { policy, engine, adapters, models, sizes })
    }
}

fn check_names(options: &ServiceOptions) -> anyhow::Result<()> {
    let names: Vec<&str> =
        std::iter::once(&options.model).chain(&options.adapters).map(|named| named.name.as_str()).collect();
    for (place, name) in names.iter().enumerate() {
        if name.is_empty() {
            bad_input!("the name of a model must not be empty: use NAME=DIR");
        }
        if names[..place].contains(name) {
            bad_input!("two models have the name {name}: give one of them another name with NAME=DIR");
        }
    }
    Ok(())
}

/// The sizes of the engine. The number of pages is bounded by the available memory, and the length of a sequence by the
/// pages.
fn engine_config(ctx: &Context, policy: &Policy, options: &ServiceOptions) -> anyhow::Result<EngineConfig> {
    let context = policy.config().max_position_embeddings;
    let ServiceOptions { max_num_seqs, .. } = *options;
    if max_num_seqs == 0 {
        bad_input!("--max-num-seqs 0: expected 1 or more");
    }
    if let Some(wanted) = options.max_model_len.filter(|wanted| !(2..=context).contains(wanted)) {
        bad_input!("--max-model-len {wanted}: expected 2 to {context}, the model's context");
    }
    let wanted_len = options.max_model_len.unwrap_or(context);
    let all = EngineConfig::blocks_for(max_num_seqs, wanted_len).max(EngineConfig::least_blocks(wanted_len));
    let kv_blocks = options.kv_cache_blocks.unwrap_or_else(|| {
        let Available { host, device, .. } = Available::of(ctx);
        let room = device.or(host).map_or(usize::MAX, |bytes| {
            let share = bytes / KV_CACHE_SHARE / KvCache::block_bytes(policy.config()) as u64;
            usize::try_from(share).unwrap_or(usize::MAX)
        });
        all.min(room)
    });
    let held = kv_blocks.saturating_sub(1) * BLOCK;
    if held < 2 || options.max_model_len.is_some_and(|wanted| held < wanted) {
        bad_input!(
            "a KV cache of {kv_blocks} pages cannot hold one sequence of {wanted_len} tokens, which needs {}: lower \
             --max-model-len, or set --kv-cache-blocks",
            EngineConfig::least_blocks(wanted_len)
        );
    }
    let max_model_len = wanted_len.min(held);
    let sizes = EngineConfig::new(max_num_seqs, max_model_len);
    Ok(EngineConfig { kv_blocks, prefix_caching: true, ..sizes })
}
