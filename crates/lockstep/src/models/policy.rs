//! Loads a model directory: weights, tokenizer, chat template, and the token ids that end a completion.

use super::{Builder, check_base, locate};
use crate::bad_input;
use crate::config::{ComputeDType, Config};
use crate::error::{BadInput, OrBadInput, paragraph};
use crate::stop::StopSignal;
use kernels::{Context, Memory};
use model::chat::{ChatTemplate, PromptTime};
use model::hub::HubKind;
use model::io::{CONFIG, ModelFiles, TensorSource, dtype_of_files};
use model::peft::{BaseModel, is_adapter};
use model::tokenizer::Tokenizer;
use model::{AdaptedWeights, Adapter, FileDType, Head, HeldWeights, ModelAssets, ModelConfig, WeightSlots, Weights};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use telemetry::counted;

/// A closure that writes files into a directory. The closure owns its data, so it can run on any thread.
pub type WriteFiles = Box<dyn FnOnce(&Path) -> anyhow::Result<()> + Send>;

/// A language model with its tokenizer, chat template and end-of-sequence ids.
pub struct Policy {
    /// The directory that the model was loaded from.
    pub dir: PathBuf,
    /// The hash of the weights in `dir`, set if an adapter trained on them must record it.
    pub base_sha256: Option<String>,
    /// Files other than weights that are copied into a saved model.
    pub files: Arc<ModelFiles>,
    /// The base weights, and the adapter on them, if there is one.
    pub weights: AdaptedWeights,
    /// Converts text to token ids and back.
    pub tokenizer: Arc<Tokenizer>,
    /// The chat template, if the model has one; it renders a conversation as text.
    pub chat: Option<Arc<ChatTemplate>>,
    /// The token ids that end a completion.
    pub eos_ids: Vec<u32>,
    /// The dtype in which [`export`](Self::export) writes weights.
    pub exported: FileDType,
}

impl Policy {
    /// A policy of the model in `dir`, from parts that are already loaded.
    pub(crate) fn of(dir: PathBuf, assets: ModelAssets, weights: AdaptedWeights) -> Policy {
        let ModelAssets { tokenizer, chat, eos_ids, files, .. } = assets;
        let exported = weights.hold().exact_dtype();
        Policy { dir, base_sha256: None, files: Arc::new(files), weights, tokenizer, chat, eos_ids, exported }
    }

    /// Makes [`export`](Self::export) write the dtype that the configuration asks for. `source` is the model that the
    /// run began with.
    pub(crate) fn exporting(mut self, config: &Config, source: &ModelSource) -> anyhow::Result<Policy> {
        let adapts = self.weights.adapter.is_some();
        let loaded = match (&source.adapter, adapts) {
            (None, true) => None,
            (adapter, _) => Some(dtype_of_files(adapter.as_ref().unwrap_or(&source.dir)).or_bad_input()?),
        };
        self.exported = config.save_dtype.file_dtype(config.dtype == ComputeDType::Bf16, adapts, loaded);
        Ok(self)
    }

    /// Loads a model directory. The chat template renders prompts with the current time. All errors are bad input (exit
    /// code 2).
    pub fn load(ctx: &Context, dir: &Path, dtype: ComputeDType) -> anyhow::Result<Policy> {
        let assets = load_assets(dir, Head::Lm, dtype, PromptTime::now())?;
        let weights = load_weights(ctx, dir, &assets.config)?;
        Ok(Policy::of(dir.to_owned(), assets, AdaptedWeights::new(ctx.memory(), weights, None)))
    }

    /// Loads a policy with the adapter of a PEFT directory, and checks that the adapter was trained on these weights.
    /// If the adapter does not record its base, `warn` is called instead.
    pub fn load_with(
        ctx: &Context,
        dir: &Path,
        adapter: Option<&Path>,
        dtype: ComputeDType,
        warn: impl FnOnce(&str),
    ) -> anyhow::Result<Policy> {
        adapter.map_or(Ok(()), |adapter| check_base(adapter, dir, &StopSignal::new(), warn))?;
        Policy::load_with_other(ctx, dir, adapter, dtype)
    }

    /// Loads a policy with an adapter, without checking which base weights the adapter was trained on.
    pub fn load_with_other(
        ctx: &Context,
        dir: &Path,
        adapter: Option<&Path>,
        dtype: ComputeDType,
    ) -> anyhow::Result<Policy> {
        let mut policy = Policy::load(ctx, dir, dtype)?;
        adapter.map_or(Ok(()), |adapter| policy.adapt(ctx, adapter))?;
        Ok(policy)
    }

    /// Loads the model in `dir` with an adapter, whose own configuration decides whether the result is a language model
    /// or a reward model. The base weights are not checked.
    pub fn load_below(ctx: &Context, dir: &Path, adapter: &Path, dtype: ComputeDType) -> anyhow::Result<Policy> {
        if !model::peft::load_adapter_config(adapter).or_bad_input()?.scores {
            return Policy::load_with_other(ctx, dir, Some(adapter), dtype);
        }
        let assets = load_assets(dir, Head::Score(1), dtype, PromptTime::now())?;
        let weights = AdaptedWeights::new(ctx.memory(), load_scorer(ctx, dir, assets.config.compute)?, None);
        let mut policy = Policy::of(dir.to_owned(), assets, weights);
        policy.adapt(ctx, adapter)?;
        Ok(policy)
    }

    /// Adds the adapter of a PEFT directory to this policy.
    pub fn adapt(&mut self, ctx: &Context, adapter: &Path) -> anyhow::Result<()> {
        let adapter = model::peft::load_adapter(ctx.memory(), adapter, self.weights.base.current()).or_bad_input()?;
        self.weights.adapter = Some(WeightSlots::new(ctx.memory(), adapter));
        Ok(())
    }

    /// Loads the weights that [`save`](Self::save) wrote to `dir`: the adapter's, or else the model's.
    pub fn restore(&mut self, dir: &Path) -> anyhow::Result<()> {
        self.weights.restore(dir).or_bad_input()
    }

    /// Writes a directory that this program and transformers can load. With an adapter, only the adapter is written, as
    /// in PEFT. Weights keep the dtype of the computation, so nothing is rounded.
    pub fn save(&self, dir: &Path) -> anyhow::Result<()> {
        self.writer()(dir)
    }

    /// Writes the final model for users: like [`save`](Self::save), but weights are rounded to the dtype
    /// [`exported`](Self::exported).
    pub fn export(&self, dir: &Path) -> anyhow::Result<()> {
        self.snapshot().export(dir)
    }

    /// The dtype that [`export`](Self::export) rounds to; `None` if it keeps every bit in the dtype of checkpoints.
    pub(crate) fn rounds_to(&self) -> Option<FileDType> {
        (self.exported != self.weights.hold().exact_dtype()).then_some(self.exported)
    }

    /// A closure that saves the current weights, even if it runs after an update.
    pub(crate) fn writer(&self) -> WriteFiles {
        let snapshot = self.snapshot();
        Box::new(move |dir| snapshot.save(dir))
    }

    /// A snapshot of the current weights, to be saved later. While it exists, updates write to another memory slot.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            weights: self.weights.hold(),
            files: self.files.clone(),
            base: self.dir.display().to_string(),
            base_sha256: self.base_sha256.clone(),
            exported: self.exported,
        }
    }

    /// Whether all base weights are finite; an adapter's weights are not checked.
    pub(crate) fn weights_are_finite(&self) -> bool {
        not_finite_tensor(self.weights.base.current()).is_none()
    }

    /// An explanation of non-finite outputs: the first tensor with a non-finite weight, or else an overflow of
    /// activations.
    pub fn why_not_finite(&self) -> String {
        match not_finite_tensor(self.weights.base.current()) {
            Some(name) => {
                format!("`{name}` of {} has a value that is not finite: the model is damaged", self.dir.display())
            }
            None => format!(
                "the weights of {} are finite, but activations overflow: the weights are too large for this dtype",
                self.dir.display()
            ),
        }
    }

    /// One line for the console, with the numbers of parameters of the model and of its adapter.
    pub fn describe(&self, ctx: &Context) -> String {
        let parameters: usize =
            self.weights.base.current().tensors().iter().map(|t| t.shape.iter().product::<usize>()).sum();
        let trained = match self.weights.adapter.as_ref().map(WeightSlots::current) {
            Some(adapter) => {
                format!(" · {:.2} M in an adapter of rank {}", adapter.len() as f64 / 1e6, adapter.lora.r)
            }
            None => String::new(),
        };
        format!(
            "{} · {:.2} M parameters{trained} · {} on {}{} · {}",
            self.config().family.model_type,
            parameters as f64 / 1e6,
            if self.config().compute == kernels::DType::Bf16 { "bf16" } else { "f32" },
            ctx.describe(),
            match ctx.memory().device() {
                kernels::Device::Cpu => String::new(),
                device => format!(" ({})", device.name()),
            },
            counted(ctx.threads(), "thread")
        )
    }

    /// The model's architecture and sizes.
    pub fn config(&self) -> &Arc<ModelConfig> {
        self.weights.config()
    }
}

/// A policy's weights of one version, which later updates do not change.
pub struct Snapshot {
    weights: HeldWeights,
    files: Arc<ModelFiles>,
    base: String,
    base_sha256: Option<String>,
    exported: FileDType,
}

impl Snapshot {
    /// Saves the snapshot as [`Policy::save`] does.
    pub fn save(&self, dir: &Path) -> anyhow::Result<()> {
        self.save_in(self.weights.exact_dtype(), dir)
    }

    /// Saves the snapshot as [`Policy::export`] does.
    pub fn export(&self, dir: &Path) -> anyhow::Result<()> {
        self.save_in(self.exported, dir)
    }

    fn save_in(&self, dtype: FileDType, dir: &Path) -> anyhow::Result<()> {
        let base = BaseModel { name: &self.base, sha256: self.base_sha256.as_deref() };
        Ok(self.weights.save_in(dtype, dir, base, &self.files)?)
    }
}

/// The name of the first tensor that contains NaN or an infinity, if any does.
fn not_finite_tensor(source: &dyn TensorSource) -> Option<String> {
    source.tensors().into_iter().map(|tensor| tensor.name).find(|name| {
        let mut finite = true;
        let read = source.read(name, &mut |piece| {
            finite &= piece.iter().all(|x| x.is_finite());
            Ok(())
        });
        read.is_ok() && !finite
    })
}

/// Reads everything in a model directory except the weights, for a model with this head that computes in `dtype`. The
/// model in the directory may have a different head. The chat template uses `time` as the current time.
pub fn load_assets(dir: &Path, head: Head, dtype: ComputeDType, time: PromptTime) -> anyhow::Result<ModelAssets> {
    if !dir.is_dir() {
        return Err(BadInput::new(format!(
            "model {} must be a directory with config.json, model.safetensors and tokenizer.json",
            dir.display()
        )));
    }
    refuse_adapter(dir)?;
    let assets = ModelAssets::load(dir, head, time).and_then(|assets| assets.computing_in(dtype.dtype()));
    assets.map_err(|e| BadInput::new(e.to_string()))
}

/// Like [`load_assets`], for a language model whose completions reward functions read. Completions keep their special
/// tokens if the configuration requests this.
pub fn load_generator(dir: &Path, config: &Config, time: PromptTime) -> anyhow::Result<ModelAssets> {
    let mut assets = load_assets(dir, Head::Lm, config.dtype, time)?;
    if !config.skip_special_tokens {
        let hidden = assets.eos_ids.iter().copied().chain(assets.tokenizer.pad_id()).collect();
        assets.tokenizer = Arc::new(Tokenizer::clone(&assets.tokenizer).showing_special(hidden));
    }
    Ok(assets)
}

/// Reads the model configuration in `dir`, without the tokenizer. The model will compute in `compute`.
pub fn load_config(dir: &Path, compute: kernels::DType) -> anyhow::Result<ModelConfig> {
    refuse_adapter(dir)?;
    let config = ModelConfig::load(&dir.join(CONFIG)).map_err(|e| BadInput::new(e.to_string()))?;
    Ok(ModelConfig { compute, ..config })
}

/// Loads the weights in `dir`. On `Device::Meta` the tensors have no data, and no file is read.
pub fn load_weights(ctx: &Context, dir: &Path, config: &Arc<ModelConfig>) -> anyhow::Result<Weights> {
    Weights::load(ctx.memory(), dir, config).or_bad_input()
}

/// The weights that a run trains: the model's, with a new adapter if the configuration asks for one, or the adapter
/// that the run continues to train. A resumed run loads them from its checkpoint. A new score head begins at 0.
pub fn trained_weights(
    builder: &mut Builder<'_>,
    source: &ModelSource,
    model: &Arc<ModelConfig>,
) -> anyhow::Result<AdaptedWeights> {
    let ctx = &builder.part("");
    let Builder { config, checkpoint, sinks, stop, .. } = *builder;
    let load = |dir: &Path| match model.head {
        Head::Lm => load_weights(ctx, dir, model),
        Head::Score(_) => {
            let mut weights = load_scorer(ctx, dir, model.compute)?;
            // `model` also contains the tokenizer's padding token.
            weights.config = Arc::clone(model);
            Ok(weights)
        }
    };
    // A plan counts shared memory slots and allocates none.
    let sharing = builder.shared_weights().filter(|_| !builder.is_plan());
    let Some(lora) = config.adapter() else {
        let weights = load(checkpoint.unwrap_or(&source.dir))?;
        return in_slots(builder, ctx, weights, None, None);
    };
    let (weights, place) = match sharing {
        Some(sharing) => {
            let load = |memory: &Memory| Weights::load(memory, &source.dir, model);
            let (weights, place) = sharing.base(ctx.memory(), model, load).or_bad_input()?;
            (weights, Some(place))
        }
        None => (load(&source.dir)?, None),
    };
    if checkpoint.is_none() && source.adapter.is_none() {
        lora.check_new(model).or_bad_input()?;
    }
    let mut adapter = Adapter::new(ctx.memory(), &weights, &lora, config.seed).or_bad_input()?;
    let from = checkpoint.or(source.adapter.as_deref()).filter(|_| ctx.memory().has_values());
    // The base of a checkpoint's adapter is compared later, after the run's files have been hashed.
    if let (None, Some(dir), false) = (checkpoint, from, config.allow_other_base) {
        check_base(dir, &source.dir, stop, |what| sinks.warn(what))?;
    }
    from.map_or(Ok(()), |dir| model::peft::read_adapter(dir, &mut adapter).or_bad_input())?;
    in_slots(builder, ctx, weights, Some(adapter), place)
}

/// Puts the trained weights into memory slots: one slot, or with workers one slot per version that a worker may still
/// read. Other ranks read only the current version.
fn in_slots(
    builder: &Builder<'_>,
    ctx: &Context,
    weights: Weights,
    adapter: Option<Adapter>,
    base: Option<PathBuf>,
) -> anyhow::Result<AdaptedWeights> {
    let Some(sharing) = builder.shared_weights() else {
        return Ok(AdaptedWeights::new(ctx.memory(), weights, adapter));
    };
    let mut slots = if builder.is_plan() {
        AdaptedWeights::new(ctx.memory(), weights, adapter)
    } else {
        AdaptedWeights::shared(ctx.memory(), weights, adapter, sharing, base).or_bad_input()?
    };
    if builder.sharing.is_some() {
        slots.reserve(builder.config.max_staleness + 1).or_bad_input()?;
    }
    Ok(slots)
}

/// The source of a run's model: a model directory, or an adapter's directory and that of its base model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSource {
    /// The directory of the base model.
    pub dir: PathBuf,
    /// The directory of the adapter whose training the run continues.
    pub adapter: Option<PathBuf>,
}

impl ModelSource {
    /// Finds the model that `model_name_or_path` names, for a run whose model has this head.
    pub fn of(config: &Config, head: Head) -> anyhow::Result<ModelSource> {
        let name = config.model_name_or_path.as_deref().unwrap_or_default();
        let source = ModelSource::named(name, head)?;
        // The configuration takes its adapter keys only from a local directory, not from a Hub id.
        if let Some(dir) = source.adapter.as_ref().filter(|_| !is_adapter(Path::new(name))) {
            bad_input!(
                "the model {name} is an adapter: to continue its training, use its directory, {}",
                dir.display()
            );
        }
        Ok(source)
    }

    /// Finds the model or the adapter of this name, a path or Hub id.
    pub fn named(name: &str, head: Head) -> anyhow::Result<ModelSource> {
        let dir = locate(name, HubKind::Model)?;
        if !is_adapter(&dir) {
            return Ok(ModelSource { dir, adapter: None });
        }
        let adapter = model::peft::load_adapter_config(&dir).or_bad_input()?;
        if adapter.scores != (head != Head::Lm) {
            let (is, needed) = if adapter.scores {
                ("a reward model (SEQ_CLS)", "a language model is needed here")
            } else {
                ("a language model", "a reward model must start from a reward model's adapter or from a full model")
            };
            bad_input!(
                "{} is an adapter of {is}, but {needed}: merge it into its base model (`lockstep merge`)",
                dir.display()
            );
        }
        let Some(base) = adapter.base else {
            bad_input!(
                "{}: `base_model_name_or_path` is missing: set it to the model that the adapter was trained on",
                dir.join(model::peft::ADAPTER_CONFIG).display()
            );
        };
        let below = locate(&base, HubKind::Model).map_err(|e| {
            BadInput::new(format!(
                "{}: `base_model_name_or_path`: {}; set it to the model that the adapter was trained on",
                dir.join(model::peft::ADAPTER_CONFIG).display(),
                paragraph(&e)
            ))
        })?;
        Ok(ModelSource { dir: below, adapter: Some(dir) })
    }
}

/// Finds the language model `name`: its directory, and the adapter's directory if `name` is an adapter.
pub fn locate_model(name: &str) -> anyhow::Result<(PathBuf, Option<PathBuf>)> {
    let ModelSource { dir, adapter } = ModelSource::named(name, Head::Lm)?;
    Ok((dir, adapter))
}

/// Refuses an adapter's directory where a model is needed; otherwise the error would be about missing files.
fn refuse_adapter(dir: &Path) -> anyhow::Result<()> {
    if is_adapter(dir) {
        return Err(BadInput::new(format!(
            "{} is an adapter: use the model that it was trained on, and --adapter for the adapter (in generate, score \
             and eval), or merge the two with `lockstep merge`",
            dir.display()
        )));
    }
    Ok(())
}

/// Loads the weights of a reward model. If `dir` has a language model, a score head of zeros is added.
pub fn load_scorer(ctx: &Context, dir: &Path, compute: kernels::DType) -> anyhow::Result<Weights> {
    let config = load_config(dir, compute)?;
    match config.head {
        Head::Lm => Weights::load_scorer(ctx.memory(), dir, &config).or_bad_input(),
        Head::Score(_) => load_weights(ctx, dir, &Arc::new(config)),
    }
}
