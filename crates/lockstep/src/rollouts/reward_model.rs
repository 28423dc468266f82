//! A reward model as one of the rewards of a run: `reward_funcs = ["model:DIR"]`.
//!
//! The model has its own tokenizer and chat template: it is shown the prompt and the completion as text, encoded as the
//! sides of the pairs that it learned from, the end token included. Knows nothing of who asks.

use crate::config::Config;
use crate::data::PromptEncoder;
use crate::data::pairs::strip_padding;
use crate::error::{BadInput, OrBadInput};
use crate::models::{Found, Words, load_scorer};
use kernels::Context;
use model::{Adapter, Head, ModelView, PromptCompletion, Scorer, Weights};
use rewards::{Content, Problem, Reward, RewardBatch, Scores};
use serde_json::{Map, Value};

/// A reward model of which all but the weights has been read.
pub struct Opened {
    name: String,
    found: Found,
    words: Words,
}

/// A reward model, loaded.
pub struct ModelReward {
    name: String,
    words: Words,
    weights: Weights,
    adapter: Option<Adapter>,
    scorer: Scorer,
    ctx: Context,
    kwargs: Map<String, Value>,
}

impl Opened {
    /// Looks into the directory or Hub id `model`.
    pub fn open(name: String, model: &str) -> anyhow::Result<Opened> {
        let found = Found::named(model, Head::Score(1))?;
        let words = Words::load_scorer(&found.dir)?;
        if words.head_is_new && found.adapter.is_none() {
            return Err(BadInput::new(format!(
                "reward model:{model}: {} is a language model, which gives no scores: make a reward model of it with `lockstep reward`",
                found.dir.display()
            )));
        }
        Ok(Opened { name, found, words })
    }

    /// Reads the weights.
    pub fn load(self, config: &Config, ctx: &Context) -> anyhow::Result<ModelReward> {
        let Opened { name, found, words } = self;
        let weights = load_scorer(ctx, &found.dir, words.config.compute)?;
        let load = |dir| model::peft::load_adapter(ctx.memory(), dir, &weights).or_bad_input();
        let adapter = found.adapter.as_deref().map(load).transpose()?;
        let scorer = Scorer::new(ctx.memory(), config.micro_batch_tokens(), config.prefix_sharing);
        let kwargs = config.chat_template_kwargs.clone();
        Ok(ModelReward { name, words, weights, adapter, scorer, ctx: ctx.clone(), kwargs })
    }
}

impl ModelReward {
    /// The ids of prompt and completion, cut where those of the prompt alone end.
    fn encode(&self, prompt: &Content, completion: &Content) -> anyhow::Result<(Vec<u32>, Vec<u32>)> {
        let encoder = PromptEncoder {
            tokenizer: &self.words.tokenizer,
            template: self.words.chat.as_deref(),
            kwargs: &self.kwargs,
        };
        let mut ids = encoder.encode_answered(prompt, completion)?;
        strip_padding(&mut ids, self.words.config.pad_token_id);
        let most = self.words.config.max_position_embeddings;
        if ids.is_empty() || ids.len() > most {
            return Err(BadInput::new(format!(
                "prompt and completion have {} tokens, and the reward model takes 1 to {most}",
                ids.len()
            )));
        }
        let alone = encoder.encode(prompt)?;
        let shared = ids.iter().zip(&alone).take_while(|(a, b)| a == b).count().clamp(1, ids.len());
        let rest = ids.split_off(shared);
        Ok((ids, rest))
    }

    fn scores(&mut self, batch: &RewardBatch<'_>) -> anyhow::Result<Scores> {
        let mut scores = Scores::new(vec![None; batch.len()]);
        let (mut places, mut encoded) = (Vec::new(), Vec::new());
        for (i, (prompt, completion)) in batch.prompts.iter().zip(batch.completions).enumerate() {
            match self.encode(prompt, completion) {
                Ok(ids) => {
                    places.push(i);
                    encoded.push(ids);
                }
                Err(e) => {
                    let message = crate::error::paragraph(&e);
                    scores.problems.push(Problem::new(&self.name, 1, message));
                }
            }
        }
        let sequences: Vec<PromptCompletion<'_>> =
            encoded.iter().map(|(prompt, completion)| PromptCompletion { prompt, completion }).collect();
        let model = ModelView::new(&self.weights, self.adapter.as_ref());
        let sequence_scores = self.scorer.sequence_scores(&self.ctx, model, &sequences)?;
        for (i, score) in places.into_iter().zip(sequence_scores) {
            scores.values[i] = Some(f64::from(score)).filter(|r| r.is_finite());
            if scores.values[i].is_none() {
                let message = "the score is not a finite number".to_owned();
                scores.problems.push(Problem::new(&self.name, 1, message));
            }
        }
        Ok(scores)
    }
}

impl Reward for ModelReward {
    fn name(&self) -> &str {
        &self.name
    }

    fn score(&mut self, batch: &RewardBatch<'_>) -> Scores {
        self.scores(batch).unwrap_or_else(|e| {
            let message = crate::error::paragraph(&e);
            Scores::failed(batch.len(), Problem::new(&self.name, batch.len(), message))
        })
    }
}
