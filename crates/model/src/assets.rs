//! The files of a model directory that are read before its weights: configuration, tokenizer, chat template.

use crate::io::{CopiedFiles, check_listed};
use crate::scoring::padding_token;
use crate::{ChatTemplate, Error, Head, ModelConfig, Result, Tokenizer};
use kernels::DType;
use std::path::Path;
use std::sync::Arc;

/// All of a model directory but the weights: enough to plan a training run.
pub struct ModelAssets {
    /// The model's configuration.
    pub config: Arc<ModelConfig>,
    /// The tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// The chat template, if the model has one.
    pub chat: Option<Arc<ChatTemplate>>,
    /// Token ids that end a completion.
    pub eos_ids: Vec<u32>,
    /// Files that are copied beside the weights when the model is saved.
    pub copied: CopiedFiles,
    /// Whether the directory holds a language model whose head is replaced by a new score head of one label; `config`
    /// then describes the score model.
    pub head_is_new: bool,
}

impl ModelAssets {
    /// Loads the files of `dir` and checks that they fit together. If `head` asks for scores and the directory holds a
    /// language model, [`ModelAssets::config`] gets a new score head.
    pub fn load(dir: &Path, head: Head) -> Result<ModelAssets> {
        check_listed(dir, CopiedFiles::has)?;
        let config = ModelConfig::load(&dir.join("config.json"))?;
        let refused = |message: String| Err(Error::file(dir.join("config.json"), message));
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
        let config = match head {
            Head::Score(_) => Arc::new(config.padded_with(padding_token(&tokenizer, &config))),
            Head::Lm => config,
        };
        tokenizer.check_fits(&config)?;
        let chat = ChatTemplate::load(dir, tokenizer.special())?.map(Arc::new);
        let eos_ids = tokenizer.eos_ids(dir, &config)?;
        let copied = CopiedFiles::read(dir)?;
        Ok(ModelAssets { config, tokenizer: Arc::new(tokenizer), chat, eos_ids, copied, head_is_new })
    }

    /// The same assets, for a model that computes in `dtype`.
    pub fn computing_in(self, dtype: DType) -> Result<ModelAssets> {
        Ok(ModelAssets { config: Arc::new(self.config.computing_in(dtype)?), ..self })
    }
}
