//! A model directory, loaded: weights, tokenizer, chat template, and the ids that end a completion.

use crate::bad_input;
use crate::config::ComputeDType;
use crate::config::Config;
use crate::error::{BadInput, OrBadInput, paragraph};
use crate::source::{HubKind, is_adapter, locate};
use kernels::Context;
use model::chat::ChatTemplate;
use model::io::{SaveOptions, TensorSource};
use model::tokenizer::Tokenizer;
use model::{AdaptedWeights, Adapter, Head, LoraConfig, ModelConfig, WeightSlots, Weights};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A language model with its words.
pub struct Policy {
    /// Where it came from: tokenizer files are copied from there when it is saved.
    pub dir: PathBuf,
    /// Its parameters.
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
        let ModelAssets { tokenizer, chat, eos_ids, .. } = assets;
        Policy { dir, weights, tokenizer, chat, eos_ids }
    }

    /// Loads a directory. Whatever is wrong with it is the caller's input: exit code 2.
    pub fn load(ctx: &Context, dir: &Path, dtype: ComputeDType) -> anyhow::Result<Policy> {
        let assets = ModelAssets::load(dir)?.computing_in(dtype)?;
        let weights = load_weights(ctx, dir, &assets.config)?;
        Ok(Policy {
            dir: dir.to_owned(),
            weights: AdaptedWeights::new(ctx.memory(), weights, None),
            tokenizer: assets.tokenizer,
            chat: assets.chat,
            eos_ids: assets.eos_ids,
        })
    }

    /// The same, with the adapter of a PEFT directory on it.
    pub fn load_with(ctx: &Context, dir: &Path, adapter: Option<&Path>, dtype: ComputeDType) -> anyhow::Result<Policy> {
        let mut policy = Policy::load(ctx, dir, dtype)?;
        adapter.map_or(Ok(()), |adapter| policy.adapt(ctx, adapter))?;
        Ok(policy)
    }

    /// The model of `dir` with an adapter on it, of a language model or of a reward model, as the adapter says.
    pub fn load_below(ctx: &Context, dir: &Path, adapter: &Path, dtype: ComputeDType) -> anyhow::Result<Policy> {
        if !model::peft::load_adapter_config(adapter).or_bad_input()?.scores {
            return Policy::load_with(ctx, dir, Some(adapter), dtype);
        }
        let assets = ModelAssets::load_scorer(dir)?.computing_in(dtype)?;
        let weights = AdaptedWeights::new(ctx.memory(), load_scorer(ctx, dir, assets.config.compute)?, None);
        let ModelAssets { tokenizer, chat, eos_ids, .. } = assets;
        let mut policy = Policy { dir: dir.to_owned(), weights, tokenizer, chat, eos_ids };
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
        let config = self.config().clone();
        match &mut self.weights.adapter {
            Some(adapter) => adapter.overwrite(|a| model::peft::read_adapter(dir, a)).or_bad_input(),
            None => self.weights.base.overwrite(|w| model::io::load_weights(dir, &config, w)).or_bad_input(),
        }
    }

    /// Writes a directory that loads again, here and in transformers; of a model with an adapter only that, as PEFT does.
    /// The weights are what they compute in: every bit of them, and no more.
    pub fn save(&self, dir: &Path) -> anyhow::Result<()> {
        if let Some(adapter) = &self.weights.adapter {
            model::peft::save_adapter(dir, adapter.current(), &self.dir.display().to_string())?;
            return Ok(model::io::copy_tokenizer(&self.dir, dir)?);
        }
        let options = SaveOptions::exact(self.config());
        Ok(model::io::save_model(dir, self.config(), self.weights.base.current(), Some(&self.dir), options)?)
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
            "{} · {:.2} M parameters{trained} · {} on {}{} · {} threads",
            self.config().family.model_type,
            parameters as f64 / 1e6,
            if self.config().compute == kernels::DType::Bf16 { "bf16" } else { "f32" },
            ctx.describe(),
            match ctx.memory().device() {
                kernels::Device::Cpu => String::new(),
                device => format!(" ({})", device.name()),
            },
            ctx.threads()
        )
    }

    /// Its shape.
    pub fn config(&self) -> &Arc<ModelConfig> {
        self.weights.config()
    }
}

/// All of a model directory but the weights: enough to plan a run.
pub struct ModelAssets {
    /// The shape of the model.
    pub config: Arc<ModelConfig>,
    /// Text to ids and back.
    pub tokenizer: Arc<Tokenizer>,
    /// How a conversation becomes text, if the model says so.
    pub chat: Option<Arc<ChatTemplate>>,
    /// Ids that end a completion.
    pub eos_ids: Vec<u32>,
    /// The directory is of a language model, and `config` has a head of one score in its place.
    pub head_is_new: bool,
}

impl ModelAssets {
    /// Loads them, and checks that they fit together.
    pub fn load(dir: &Path) -> anyhow::Result<ModelAssets> {
        ModelAssets::load_with(dir, Head::Lm)
    }

    /// The same, for computing in `dtype`.
    pub fn computing_in(self, dtype: ComputeDType) -> anyhow::Result<ModelAssets> {
        let config = Arc::new(self.config.computing_in(dtype.dtype()).or_bad_input()?);
        Ok(ModelAssets { config, ..self })
    }

    fn load_with(dir: &Path, head: Head) -> anyhow::Result<ModelAssets> {
        if !dir.is_dir() {
            return Err(BadInput::new(format!(
                "model {} is not a directory; give one with config.json, model.safetensors and tokenizer.json",
                dir.display()
            )));
        }
        refuse_adapter(dir)?;
        ModelAssets::read(dir, head).map_err(|e| BadInput::new(e.to_string()))
    }

    /// Those of a reward model, or of the language model that one is made of: [`ModelAssets::config`] has a head of one score.
    pub fn load_scorer(dir: &Path) -> anyhow::Result<ModelAssets> {
        ModelAssets::load_with(dir, Head::Score(1))
    }

    fn read(dir: &Path, head: Head) -> model::Result<ModelAssets> {
        let config = ModelConfig::load(&dir.join("config.json"))?;
        let refused = |message: String| Err(model::Error::file(dir.join("config.json"), message));
        let head_is_new = head != Head::Lm && config.head == Head::Lm;
        let config = match (head, config.head) {
            (Head::Score(labels), Head::Lm) => Arc::new(config.with_score_head(labels)),
            (Head::Lm, Head::Score(_)) => {
                return refused(
                    "is of a model that gives scores (…ForSequenceClassification); here a language model is needed"
                        .into(),
                );
            }
            (Head::Score(1), Head::Score(labels)) if labels != 1 => {
                return refused(format!("is of a model with {labels} labels; a reward model has one"));
            }
            _ => Arc::new(config),
        };
        let tokenizer = Tokenizer::load(dir)?;
        tokenizer.check_fits(&config)?;
        let chat = ChatTemplate::load(dir, tokenizer.special())?.map(Arc::new);
        let eos_ids = tokenizer.eos_ids(dir, &config)?;
        Ok(ModelAssets { config, tokenizer: Arc::new(tokenizer), chat, eos_ids, head_is_new })
    }
}

/// The shape of the model in a directory, where its words are not needed, for computing in `compute`.
pub fn load_config(dir: &Path, compute: kernels::DType) -> anyhow::Result<ModelConfig> {
    refuse_adapter(dir)?;
    let config = ModelConfig::load(&dir.join("config.json")).map_err(|e| BadInput::new(e.to_string()))?;
    Ok(ModelConfig { compute, ..config })
}

/// Ids to text as the engine looks for stop strings in it: special tokens are kept, so that one may be a stop string.
pub struct Detokenizer(pub Arc<Tokenizer>);

impl rollout::Detokenize for Detokenizer {
    fn decode(&self, ids: &[u32]) -> String {
        // Decoding fails for no ids of a vocabulary; text that cannot be made holds no stop string.
        self.0.decode(ids, false).unwrap_or_default()
    }
}

/// The weights of a directory.
pub fn load_weights(ctx: &Context, dir: &Path, config: &Arc<ModelConfig>) -> anyhow::Result<Weights> {
    let mut weights = Weights::zeros(ctx.memory(), config);
    model::io::load_weights(dir, config, &mut weights).map_err(|e| BadInput::new(e.to_string()))?;
    Ok(weights)
}

/// The weights that a run trains: those of the model, with the adapter that it goes on with, or that the configuration asks
/// for; as they were at a checkpoint, if one is given.
pub fn trained_weights(
    ctx: &Context,
    found: &ModelSource,
    checkpoint: Option<&Path>,
    config: &Config,
    model: &Arc<ModelConfig>,
) -> anyhow::Result<AdaptedWeights> {
    let Some(lora) = config.adapter() else {
        let weights = load_weights(ctx, checkpoint.unwrap_or(&found.dir), model)?;
        return Ok(AdaptedWeights::new(ctx.memory(), weights, None));
    };
    let weights = load_weights(ctx, &found.dir, model)?;
    with_adapter(ctx, weights, &lora, checkpoint.or(found.adapter.as_deref()), config.seed)
}

/// The weights of the reward model that a run trains: as [`trained_weights`]. A new head begins at 0.
pub fn trained_scorer(
    ctx: &Context,
    found: &ModelSource,
    checkpoint: Option<&Path>,
    config: &Config,
) -> anyhow::Result<AdaptedWeights> {
    let compute = config.dtype.dtype();
    let Some(lora) = config.adapter() else {
        let weights = load_scorer(ctx, checkpoint.unwrap_or(&found.dir), compute)?;
        return Ok(AdaptedWeights::new(ctx.memory(), weights, None));
    };
    let weights = load_scorer(ctx, &found.dir, compute)?;
    with_adapter(ctx, weights, &lora, checkpoint.or(found.adapter.as_deref()), config.seed)
}

/// `weights` with an adapter: that of the PEFT directory `from`, or else a new one.
fn with_adapter(
    ctx: &Context,
    weights: Weights,
    lora: &LoraConfig,
    from: Option<&Path>,
    seed: u64,
) -> anyhow::Result<AdaptedWeights> {
    let mut adapter = Adapter::new(ctx.memory(), &weights, lora, seed).or_bad_input()?;
    from.map_or(Ok(()), |dir| model::peft::read_adapter(dir, &mut adapter).or_bad_input())?;
    Ok(AdaptedWeights::new(ctx.memory(), weights, Some(adapter)))
}

/// The model that a run is given: a model's directory, or an adapter's with that of the model below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSource {
    /// The model's directory.
    pub dir: PathBuf,
    /// The directory of the adapter on it that a run goes on with.
    pub adapter: Option<PathBuf>,
}

impl ModelSource {
    /// What `model_name_or_path` names, to become, or be, a model with this head.
    pub fn of(config: &Config, head: Head) -> anyhow::Result<ModelSource> {
        let name = config.model_name_or_path.as_deref().unwrap_or_default();
        let found = ModelSource::named(name, head)?;
        // Only then does the configuration know what adapter it is.
        if let Some(dir) = found.adapter.as_ref().filter(|_| !is_adapter(Path::new(name))) {
            bad_input!("the model {name} is an adapter: to go on with it give its directory, {}", dir.display());
        }
        Ok(found)
    }

    /// The model or the adapter of this name.
    pub fn named(name: &str, head: Head) -> anyhow::Result<ModelSource> {
        let dir = locate(name, HubKind::Model)?;
        if !is_adapter(&dir) {
            return Ok(ModelSource { dir, adapter: None });
        }
        let told = model::peft::load_adapter_config(&dir).or_bad_input()?;
        if told.scores != (head != Head::Lm) {
            let (is, needed) = match told.scores {
                true => ("a reward model (SEQ_CLS)", "a language model is needed here"),
                false => ("a language model", "a reward model begins from one of a reward model, or from a model"),
            };
            bad_input!(
                "{} is an adapter of {is}, and {needed}: make one model of it and what it was trained on (`lockstep merge`)",
                dir.display()
            );
        }
        let Some(base) = told.base else {
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

/// An adapter is not a model: says so, before files are missed.
fn refuse_adapter(dir: &Path) -> anyhow::Result<()> {
    if is_adapter(dir) {
        return Err(BadInput::new(format!(
            "{} is an adapter: give the model that it was trained on as the model (generate, score and eval take the adapter with \
             --adapter; `lockstep merge` makes one model of both)",
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
