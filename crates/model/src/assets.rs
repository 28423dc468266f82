//! The files of a model directory that are read before its weights: configuration, tokenizer, chat template.

use crate::chat::PromptTime;
use crate::io::{CONFIG, ModelFiles, check_listed, is_listed};
use crate::scoring::padding_token;
use crate::{ChatTemplate, Error, Head, ModelConfig, Result, Tokenizer};
use kernels::DType;
use std::path::Path;
use std::sync::Arc;

/// The contents of a model directory except the weights: enough to plan a training run.
#[derive(Clone)]
pub struct ModelAssets {
    /// The model's configuration.
    pub config: Arc<ModelConfig>,
    /// The tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// The chat template, if the model has one.
    pub chat: Option<Arc<ChatTemplate>>,
    /// Token ids that end a completion.
    pub eos_ids: Vec<u32>,
    /// The other files of the directory (no weights), as they were read. They are saved with the weights.
    pub files: ModelFiles,
    /// Whether the directory holds a language model whose head is replaced by a new score head of one label; `config`
    /// then describes the score model.
    pub head_is_new: bool,
}

impl ModelAssets {
    /// Loads the files of `dir` and checks that they fit together. If `head` asks for scores and the directory holds a
    /// language model, [`ModelAssets::config`] gets a new score head. The chat template renders prompts with `time`.
    pub fn load(dir: &Path, head: Head, time: PromptTime) -> Result<ModelAssets> {
        check_listed(dir, is_listed)?;
        ModelAssets::of(ModelFiles::read(dir)?, head, time)
    }

    /// [`ModelAssets::load`] for files that have already been read.
    fn of(files: ModelFiles, head: Head, time: PromptTime) -> Result<ModelAssets> {
        let path = files.path(CONFIG);
        let config = match files.get(CONFIG) {
            Some(bytes) => ModelConfig::from_bytes(&path, bytes)?,
            None => return Err(Error::file(&path, "No such file or directory")),
        };
        let refused = |message: String| Err(Error::file(&path, message));
        let head_is_new = head != Head::Lm && config.head == Head::Lm;
        let config = match (head, config.head) {
            (Head::Score(labels), Head::Lm) => Arc::new(config.with_score_head(labels)),
            (Head::Lm, Head::Score(_)) => {
                return refused(
                    "this is a sequence-classification model (…ForSequenceClassification), expected a language model"
                        .into(),
                );
            }
            (Head::Score(1), Head::Score(labels)) if labels != 1 => {
                return refused(format!("the model has {labels} labels, but a reward model must have 1"));
            }
            _ => Arc::new(config),
        };
        let tokenizer = Tokenizer::of(&files)?;
        let config = match head {
            Head::Score(_) => Arc::new(config.padded_with(padding_token(&tokenizer, &config))),
            Head::Lm => config,
        };
        tokenizer.check_fits(&config)?;
        let chat = ChatTemplate::of(&files, tokenizer.special(), time)?.map(Arc::new);
        let eos_ids = tokenizer.eos_ids(&files, &config)?;
        Ok(ModelAssets { config, tokenizer: Arc::new(tokenizer), chat, eos_ids, files, head_is_new })
    }

    /// The same assets, for a model that computes in `dtype`.
    pub fn computing_in(self, dtype: DType) -> Result<ModelAssets> {
        Ok(ModelAssets { config: Arc::new(self.config.computing_in(dtype)?), ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::SpecialTokens;
    use serde_json::{Value, json};

    /// A model directory without weights, with these extra fields in its configuration.
    fn directory(fields: Value, pad: Option<&str>) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let special = SpecialTokens { pad: pad.map(str::to_owned), eos: Some("#".into()), ..SpecialTokens::default() };
        Tokenizer::characters("abc".chars(), &special).unwrap().save(dir.path()).unwrap();
        let mut config = json!({"model_type": "llama", "hidden_size": 4, "intermediate_size": 3,
            "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 5, "eos_token_id": 3, "pad_token_id": 2});
        config.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        dir
    }

    fn load(dir: &Path, head: Head) -> Result<ModelAssets> {
        ModelAssets::load(dir, head, PromptTime(0))
    }

    fn refused(fields: Value, head: Head) -> String {
        load(directory(fields, None).path(), head).err().unwrap().to_string()
    }

    #[test]
    fn assets_are_loaded_with_the_requested_head() {
        let scores = |labels: usize| {
            let names: serde_json::Map<_, _> = (0..labels).map(|l| (l.to_string(), json!("x"))).collect();
            json!({"architectures": ["LlamaForSequenceClassification"], "id2label": names})
        };
        let dir = directory(json!({}), None);
        std::fs::write(dir.path().join("chat_template.jinja"), "hi").unwrap();
        let lm = load(dir.path(), Head::Lm).unwrap();
        assert_eq!((lm.config.head, lm.config.pad_token_id, lm.head_is_new), (Head::Lm, Some(2), false));
        assert_eq!((lm.eos_ids, lm.tokenizer.vocab_size()), (vec![0, 3], 4));
        assert_eq!(lm.chat.unwrap().source(), "hi");
        // A model with a new score head gets the tokenizer's padding token, or else its end token.
        for (pad, id) in [(None, 0), (Some("c"), 0)] {
            let new = load(directory(json!({}), pad).path(), Head::Score(1)).unwrap();
            assert_eq!((new.config.head, new.config.pad_token_id, new.head_is_new), (Head::Score(1), Some(id), true));
            assert_eq!((&new.config.raw["pad_token_id"], new.chat.is_some()), (&json!(id), false));
        }
        for (labels, head) in [(1, Head::Score(1)), (3, Head::Score(3)), (3, Head::Score(2))] {
            let own = load(directory(scores(labels), None).path(), head).unwrap();
            assert_eq!((own.config.head, own.head_is_new), (Head::Score(labels), false));
        }
        let three = refused(scores(3), Head::Score(1));
        assert!(three.ends_with("config.json: the model has 3 labels, but a reward model must have 1"), "{three}");
        let lm = refused(scores(1), Head::Lm);
        let why = "this is a sequence-classification model (…ForSequenceClassification), expected a language model";
        assert!(lm.ends_with(&format!("config.json: {why}")), "{lm}");
        let small = refused(json!({"vocab_size": 3}), Head::Lm);
        assert!(small.contains("the vocabulary has ids up to 3"), "{small}");
        let even = load(directory(json!({"intermediate_size": 6}), None).path(), Head::Lm).unwrap();
        assert_eq!(even.computing_in(DType::Bf16).unwrap().config.compute, DType::Bf16);
        let odd = load(directory(json!({}), None).path(), Head::Lm).unwrap();
        assert!(odd.computing_in(DType::Bf16).is_err());
        // If `files.json` lists the files, a changed file is an error.
        crate::io::FileList::of(dir.path(), crate::Step(1)).unwrap().write(dir.path()).unwrap();
        assert!(load(dir.path(), Head::Lm).is_ok());
        std::fs::write(dir.path().join("chat_template.jinja"), "ho").unwrap();
        let error = load(dir.path(), Head::Lm).err().unwrap().to_string();
        assert!(error.contains("chat_template.jinja: not the file that was written at step"), "{error}");
    }
}
