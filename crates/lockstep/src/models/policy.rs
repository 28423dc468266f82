//! A model directory, loaded: weights, tokenizer, chat template, and the ids that end a completion.

use super::{Builder, check_base, locate};
use crate::bad_input;
use crate::config::{ComputeDType, Config};
use crate::error::{BadInput, OrBadInput, paragraph};
use crate::stop::StopSignal;
use kernels::{Context, Memory};
use model::chat::ChatTemplate;
use model::hub::HubKind;
use model::io::{CopiedFiles, TensorSource};
use model::peft::{BaseModel, is_adapter};
use model::tokenizer::Tokenizer;
use model::{AdaptedWeights, Adapter, Head, HeldWeights, ModelAssets, ModelConfig, WeightSlots, Weights};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use telemetry::counted;

/// Writes files into a directory, from any thread: it holds what it writes.
pub type WriteFiles = Box<dyn FnOnce(&Path) -> anyhow::Result<()> + Send>;

/// A language model with its words.
pub struct Policy {
    /// Where it came from.
    pub dir: PathBuf,
    /// A hash of the weights there, if an adapter on them is to record it.
    pub base_sha256: Option<String>,
    /// What is written beside the weights when it is saved.
    pub copied: Arc<CopiedFiles>,
    /// The weights, and the adapter on them.
    pub weights: AdaptedWeights,
    /// Text to ids and back.
    pub tokenizer: Arc<Tokenizer>,
    /// How a conversation becomes text, if the model says so.
    pub chat: Option<Arc<ChatTemplate>>,
    /// Ids that end a completion.
    pub eos_ids: Vec<u32>,
}

impl Policy {
    /// The model of `dir` from its parts.
    pub(crate) fn of(dir: PathBuf, assets: ModelAssets, weights: AdaptedWeights) -> Policy {
        let ModelAssets { tokenizer, chat, eos_ids, copied, .. } = assets;
        Policy { dir, base_sha256: None, copied: Arc::new(copied), weights, tokenizer, chat, eos_ids }
    }

    /// Loads a directory. Whatever is wrong with it is the caller's input: exit code 2.
    pub fn load(ctx: &Context, dir: &Path, dtype: ComputeDType) -> anyhow::Result<Policy> {
        let assets = load_assets(dir, Head::Lm, dtype)?;
        let weights = load_weights(ctx, dir, &assets.config)?;
        Ok(Policy::of(dir.to_owned(), assets, AdaptedWeights::new(ctx.memory(), weights, None)))
    }

    /// Loads a policy with the adapter of a PEFT directory on it, which must have been trained on these weights. Where
    /// the adapter does not name them, `warn` is told.
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

    /// Loads a policy with an adapter, whatever weights the adapter says it was trained on.
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

    /// The model of `dir` with an adapter on it, of a language model or of a reward model, as the adapter says. On
    /// which weights it was trained is not looked at.
    pub fn load_below(ctx: &Context, dir: &Path, adapter: &Path, dtype: ComputeDType) -> anyhow::Result<Policy> {
        if !model::peft::load_adapter_config(adapter).or_bad_input()?.scores {
            return Policy::load_with_other(ctx, dir, Some(adapter), dtype);
        }
        let assets = load_assets(dir, Head::Score(1), dtype)?;
        let weights = AdaptedWeights::new(ctx.memory(), load_scorer(ctx, dir, assets.config.compute)?, None);
        let mut policy = Policy::of(dir.to_owned(), assets, weights);
        policy.adapt(ctx, adapter)?;
        Ok(policy)
    }

    /// Puts the adapter of a PEFT directory on it.
    pub fn adapt(&mut self, ctx: &Context, adapter: &Path) -> anyhow::Result<()> {
        let adapter = model::peft::load_adapter(ctx.memory(), adapter, self.weights.base.current()).or_bad_input()?;
        self.weights.adapter = Some(WeightSlots::new(ctx.memory(), adapter));
        Ok(())
    }

    /// Takes up the weights that [`save`](Self::save) wrote to `dir`: the adapter's, where there is one.
    pub fn restore(&mut self, dir: &Path) -> anyhow::Result<()> {
        self.weights.restore(dir).or_bad_input()
    }

    /// Writes a directory that loads again, here and in transformers; of a model with an adapter only that, as PEFT
    /// does. The weights are what they compute in: every bit of them, and no more.
    pub fn save(&self, dir: &Path) -> anyhow::Result<()> {
        self.writer()(dir)
    }

    /// Writes the weights as they are now, even if the policy changes meanwhile.
    pub(crate) fn writer(&self) -> WriteFiles {
        let snapshot = self.snapshot();
        Box::new(move |dir| snapshot.save(dir))
    }

    /// The weights as they are now, to be saved later. While it is there, the next step writes another slot.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            weights: self.weights.hold(),
            copied: self.copied.clone(),
            base: self.dir.display().to_string(),
            base_sha256: self.base_sha256.clone(),
        }
    }

    /// Whether every number of its weights is finite, an adapter's aside.
    pub(crate) fn weights_are_finite(&self) -> bool {
        not_finite_tensor(self.weights.base.current()).is_none()
    }

    /// Words for why it gives numbers that are not finite: the first tensor of its weights that has one, if any does.
    pub fn why_not_finite(&self) -> String {
        match not_finite_tensor(self.weights.base.current()) {
            Some(name) => {
                format!("`{name}` of {} has a value that is not finite: the model is broken", self.dir.display())
            }
            None => format!(
                "the weights of {} are finite, and activations overflow: they are too large, or the dtype is too small",
                self.dir.display()
            ),
        }
    }

    /// A line about what is trained, and on what.
    pub fn describe(&self, ctx: &Context) -> String {
        let parameters: usize =
            self.weights.base.current().tensors().iter().map(|t| t.shape.iter().product::<usize>()).sum();
        let trained = match self.weights.adapter.as_ref().map(WeightSlots::current) {
            Some(adapter) => {
                format!(" · {:.2} M of an adapter of rank {}", adapter.len() as f64 / 1e6, adapter.lora.r)
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

    /// The model's shape.
    pub fn config(&self) -> &Arc<ModelConfig> {
        self.weights.config()
    }
}

/// A policy's weights of one version.
pub struct Snapshot {
    weights: HeldWeights,
    copied: Arc<CopiedFiles>,
    base: String,
    base_sha256: Option<String>,
}

impl Snapshot {
    /// As [`Policy::save`].
    pub fn save(&self, dir: &Path) -> anyhow::Result<()> {
        let base = BaseModel { name: &self.base, sha256: self.base_sha256.as_deref() };
        Ok(self.weights.save(dir, base, &self.copied)?)
    }
}

/// The name of the first tensor that has a value which is not finite.
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

/// What is read of a model's directory before its weights, to become, or be, a model with this head that computes in
/// `dtype`.
pub fn load_assets(dir: &Path, head: Head, dtype: ComputeDType) -> anyhow::Result<ModelAssets> {
    if !dir.is_dir() {
        return Err(BadInput::new(format!(
            "model {} is not a directory; give one with config.json, model.safetensors and tokenizer.json",
            dir.display()
        )));
    }
    refuse_adapter(dir)?;
    let assets = ModelAssets::load(dir, head).and_then(|assets| assets.computing_in(dtype.dtype()));
    assets.map_err(|e| BadInput::new(e.to_string()))
}

/// The shape of the model in a directory, where its words are not needed, for computing in `compute`.
pub fn load_config(dir: &Path, compute: kernels::DType) -> anyhow::Result<ModelConfig> {
    refuse_adapter(dir)?;
    let config = ModelConfig::load(&dir.join("config.json")).map_err(|e| BadInput::new(e.to_string()))?;
    Ok(ModelConfig { compute, ..config })
}

/// The weights of a directory. On `Device::Meta` they have shapes alone, and no file is read.
pub fn load_weights(ctx: &Context, dir: &Path, config: &Arc<ModelConfig>) -> anyhow::Result<Weights> {
    Weights::load(ctx.memory(), dir, config).or_bad_input()
}

/// The weights that a run trains: those of the model, with the adapter that it continues, or that the configuration
/// asks for; as they were at the checkpoint that it begins from, if there is one. A new head of scores begins at 0.
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
            // It knows the tokenizer's padding token, too.
            weights.config = Arc::clone(model);
            Ok(weights)
        }
    };
    // A plan counts the slots, and makes none.
    let sharing = builder.sharing.as_ref().filter(|_| !builder.is_plan());
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
    let mut adapter = Adapter::new(ctx.memory(), &weights, &lora, config.seed).or_bad_input()?;
    let from = checkpoint.or(source.adapter.as_deref()).filter(|_| ctx.memory().has_values());
    // That of a checkpoint is compared when the run's files have been hashed.
    if let (None, Some(dir), false) = (checkpoint, from, config.allow_other_base) {
        check_base(dir, &source.dir, stop, |what| sinks.warn(what))?;
    }
    from.map_or(Ok(()), |dir| model::peft::read_adapter(dir, &mut adapter).or_bad_input())?;
    in_slots(builder, ctx, weights, Some(adapter), place)
}

/// What is trained in its slots: one; of a run with workers as many as versions may be in use, which they read.
fn in_slots(
    builder: &Builder<'_>,
    ctx: &Context,
    weights: Weights,
    adapter: Option<Adapter>,
    base: Option<PathBuf>,
) -> anyhow::Result<AdaptedWeights> {
    let Some(sharing) = &builder.sharing else { return Ok(AdaptedWeights::new(ctx.memory(), weights, adapter)) };
    let mut slots = match builder.is_plan() {
        true => AdaptedWeights::new(ctx.memory(), weights, adapter),
        false => AdaptedWeights::shared(ctx.memory(), weights, adapter, sharing, base).or_bad_input()?,
    };
    slots.reserve(builder.config.max_staleness + 1).or_bad_input()?;
    Ok(slots)
}

/// The model that a run is given: a model's directory, or an adapter's with that of the model below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSource {
    /// The model's directory.
    pub dir: PathBuf,
    /// The directory of the adapter on it whose training a run continues.
    pub adapter: Option<PathBuf>,
}

impl ModelSource {
    /// What `model_name_or_path` names, to become, or be, a model with this head.
    pub fn of(config: &Config, head: Head) -> anyhow::Result<ModelSource> {
        let name = config.model_name_or_path.as_deref().unwrap_or_default();
        let source = ModelSource::named(name, head)?;
        // Only then does the configuration know what adapter it is.
        if let Some(dir) = source.adapter.as_ref().filter(|_| !is_adapter(Path::new(name))) {
            bad_input!(
                "the model {name} is an adapter: to continue its training give its directory, {}",
                dir.display()
            );
        }
        Ok(source)
    }

    /// The model or the adapter of this name.
    pub fn named(name: &str, head: Head) -> anyhow::Result<ModelSource> {
        let dir = locate(name, HubKind::Model)?;
        if !is_adapter(&dir) {
            return Ok(ModelSource { dir, adapter: None });
        }
        let adapter = model::peft::load_adapter_config(&dir).or_bad_input()?;
        if adapter.scores != (head != Head::Lm) {
            let (is, needed) = match adapter.scores {
                true => ("a reward model (SEQ_CLS)", "a language model is needed here"),
                false => ("a language model", "a reward model begins from one of a reward model, or from a model"),
            };
            bad_input!(
                "{} is an adapter of {is}, and {needed}: make one model of it and what it was trained on (`lockstep \
                 merge`)",
                dir.display()
            );
        }
        let Some(base) = adapter.base else {
            bad_input!(
                "{}: `base_model_name_or_path` is missing: put the model there that the adapter was trained on",
                dir.join(model::peft::ADAPTER_CONFIG).display()
            );
        };
        let below = locate(&base, HubKind::Model).map_err(|e| {
            BadInput::new(format!(
                "{}: `base_model_name_or_path`: {}; put the model there that the adapter was trained on",
                dir.join(model::peft::ADAPTER_CONFIG).display(),
                paragraph(&e)
            ))
        })?;
        Ok(ModelSource { dir: below, adapter: Some(dir) })
    }
}

/// The directory of the language model that `name` names, and, where that is an adapter, the adapter's.
pub fn locate_model(name: &str) -> anyhow::Result<(PathBuf, Option<PathBuf>)> {
    let ModelSource { dir, adapter } = ModelSource::named(name, Head::Lm)?;
    Ok((dir, adapter))
}

/// An adapter is not a model: says so, before files are missed.
fn refuse_adapter(dir: &Path) -> anyhow::Result<()> {
    if is_adapter(dir) {
        return Err(BadInput::new(format!(
            "{} is an adapter: give the model that it was trained on as the model (generate, score and eval take the \
             adapter with --adapter; `lockstep merge` makes one model of both)",
            dir.display()
        )));
    }
    Ok(())
}

/// The weights of a reward model: of its directory, or the trunk of a language model under a head that begins at 0.
pub fn load_scorer(ctx: &Context, dir: &Path, compute: kernels::DType) -> anyhow::Result<Weights> {
    let config = load_config(dir, compute)?;
    match config.head {
        Head::Lm => Weights::load_scorer(ctx.memory(), dir, &config).or_bad_input(),
        Head::Score(_) => load_weights(ctx, dir, &Arc::new(config)),
    }
}
