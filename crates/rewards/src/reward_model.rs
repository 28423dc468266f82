//! `model`: a reward that is the score of a reward model: `reward_funcs = ["model:DIR"]`.
//!
//! The reward model has its own tokenizer and chat template, and receives the prompt and the completion as text. A
//! conversation is formatted like the chosen and rejected responses in the reward model's training. A text prompt is
//! encoded as plain text, as in TRL, or with the tokenizer's special tokens and EOS, as in the reward model's training.
//! The caller loads the model's files.

use kernels::Context;
use model::chat::{ChatTemplate, Content, PromptEncoder};
use model::scoring::{padding_token, strip_padding};
use model::{Adapter, ModelView, PromptCompletion, Scorer, Tokenizer, Weights};
use serde_json::{Map, Value};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::{Problem, Reward, RewardBatch, Scores};

/// A loaded reward model.
pub struct RewardModel {
    /// The name under which the scores are logged.
    pub name: String,
    /// The device and threads that compute the scores.
    pub ctx: Context,
    /// A transformer with a score head.
    pub weights: Weights,
    /// The LoRA adapter of the model, if there is one.
    pub adapter: Option<Adapter>,
    /// The reward model's own tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// The chat template of the model, if it has one.
    pub template: Option<Arc<ChatTemplate>>,
    /// The arguments of the chat template (`chat_template_kwargs`).
    pub kwargs: Map<String, Value>,
    /// Whether a text prompt with its completion gets special tokens and EOS (`reward_model_end_token`).
    pub end_token: bool,
    /// Computes the scores of token sequences.
    pub scorer: Scorer,
}

impl RewardModel {
    /// The token ids of prompt and completion. They are encoded together, and split at the length of the prompt encoded
    /// alone.
    fn encode(&self, prompt: &Content, completion: &Content) -> model::Result<(Vec<u32>, Vec<u32>)> {
        let encoder = PromptEncoder {
            tokenizer: &self.tokenizer,
            template: self.template.as_deref(),
            kwargs: &self.kwargs,
            tools: None,
        };
        let is_plain = matches!(prompt, Content::Text(_)) && !self.end_token;
        let mut ids = if is_plain {
            self.tokenizer.encode_rendered(&(prompt.text().into_owned() + &completion.text()))?
        } else {
            encoder.encode_answered(prompt, completion)?
        };
        strip_padding(&mut ids, padding_token(&self.tokenizer, &self.weights.config));
        let most = self.weights.config.max_position_embeddings;
        if ids.is_empty() || ids.len() > most {
            return Err(model::Error::Value(format!(
                "prompt and completion must have 1 to {most} tokens for the reward model, got {}",
                ids.len()
            )));
        }
        let alone = if is_plain { self.tokenizer.encode_rendered(&prompt.text())? } else { encoder.encode(prompt)? };
        let shared = ids.iter().zip(&alone).take_while(|(a, b)| a == b).count().clamp(1, ids.len());
        let rest = ids.split_off(shared);
        Ok((ids, rest))
    }

    fn scores(&mut self, batch: &RewardBatch<'_>) -> model::Result<Scores> {
        let mut scores = Scores::new(vec![None; batch.len()]);
        let (mut places, mut encoded) = (Vec::new(), Vec::new());
        for (i, (prompt, completion)) in batch.prompts.iter().zip(batch.completions).enumerate() {
            match self.encode(prompt, completion) {
                Ok(ids) => {
                    places.push(i);
                    encoded.push(ids);
                }
                Err(error) => scores.problems.push(Problem::new(&self.name, 1, error.to_string()).at(vec![i])),
            }
        }
        let sequences: Vec<PromptCompletion<'_>> =
            encoded.iter().map(|(prompt, completion)| PromptCompletion { prompt, completion }).collect();
        let model = ModelView::new(&self.weights, self.adapter.as_ref());
        let sequence_scores = self.scorer.sequence_scores(&self.ctx, model, &sequences)?;
        for (i, score) in places.into_iter().zip(sequence_scores) {
            // Scores that are not finite are dropped and reported later, as for every reward.
            scores.values[i] = Some(f64::from(score));
        }
        Ok(scores)
    }
}

impl Reward for RewardModel {
    fn name(&self) -> &str {
        &self.name
    }

    fn stop_with(&mut self, stop: Arc<AtomicBool>) {
        self.scorer.stop_with(stop);
    }

    fn score(&mut self, batch: &RewardBatch<'_>) -> Scores {
        self.scores(batch)
            .unwrap_or_else(|e| Scores::failed(batch.len(), Problem::new(&self.name, batch.len(), e.to_string())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Columns;
    use kernels::Isa;
    use model::ModelConfig;
    use model::tokenizer::SpecialTokens;

    const CONFIG: &str = r#"{"model_type": "llama", "architectures": ["LlamaForSequenceClassification"],
        "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 12,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false,
        "num_labels": 1, "pad_token_id": 0, "eos_token_id": 0}"#;

    fn reward_model(config: &str, pad: Option<&str>) -> RewardModel {
        let ctx = Context::cpu(Isa::best(), 1);
        let weights = Weights::random(ctx.memory(), &Arc::new(ModelConfig::parse(config).unwrap()), 1).unwrap();
        let special =
            SpecialTokens { eos: Some("<e>".into()), pad: pad.map(str::to_owned), ..SpecialTokens::default() };
        RewardModel {
            name: "rm".into(),
            weights,
            adapter: None,
            tokenizer: Arc::new(Tokenizer::characters("abcdefghijklmnopqrstuvwxyz ".chars(), &special).unwrap()),
            template: None,
            kwargs: Map::new(),
            end_token: true,
            scorer: Scorer::new(ctx.memory(), 100, true),
            ctx,
        }
    }

    fn scores(reward: &mut RewardModel, completions: [&str; 2]) -> Scores {
        let (prompts, completions) = (["ab"; 2].map(Content::from), completions.map(Content::from));
        reward.score(&RewardBatch {
            prompts: &prompts,
            completions: &completions,
            completion_ids: &[vec![], vec![]],
            columns: &Columns::new(),
            rows: &[0, 1],
            step: model::Step(0),
        })
    }

    /// The padding token is chosen as in TRL. If it is EOS, the score is that of the token before EOS.
    #[test]
    fn the_padding_token_comes_from_the_tokenizer() {
        let silent = CONFIG.replace("\"pad_token_id\": 0, ", "");
        assert_ne!(silent, CONFIG);
        let of = |config: &str, pad| scores(&mut reward_model(config, pad), ["cd", "ce"]).values;
        let at_the_text = of(CONFIG, None);
        assert!(at_the_text[0].is_some() && at_the_text[0] != at_the_text[1]);
        assert_eq!(of(&silent, None), at_the_text);
        assert_eq!(of(&silent, Some("<e>")), at_the_text);
        let at_the_end = of(&silent, Some("<pad>"));
        assert!(at_the_end.iter().zip(&at_the_text).all(|(end, text)| end.is_some() && end != text));
        let other = CONFIG.replace("\"pad_token_id\": 0", "\"pad_token_id\": 1");
        assert_eq!(of(&other, Some("<pad>")), at_the_end, "token 1 is EOS here, regardless of config.json");
        // Without special tokens, as in TRL, the score is that of the last text token.
        let alone =
            |pad| scores(&mut RewardModel { end_token: false, ..reward_model(&silent, pad) }, ["cd", "ce"]).values;
        assert_eq!(alone(Some("<e>")), at_the_text);
        assert!(alone(Some("<pad>")).iter().zip(&at_the_end).all(|(text, end)| text.is_some() && text != end));
    }

    #[test]
    fn a_text_beyond_the_context_gets_no_score_and_affects_no_other() {
        let mut reward = reward_model(CONFIG, None);
        // The first completion makes 12 tokens, which is the limit; the second makes 13.
        let scores = scores(&mut reward, ["cdefghijkl", "cdefghijklm"]);
        assert!(scores.values[0].is_some() && scores.values[1].is_none(), "{:?}", scores.values);
        let [problem] = &scores.problems[..] else { panic!("{:?}", scores.problems) };
        assert!(problem.rows == 1 && problem.message.contains("1 to 12 tokens for the reward model, got 13"));
    }

    /// After a stop, scores are missing, not 0.
    #[test]
    fn a_stopped_reward_model_gives_no_score() {
        let mut reward = reward_model(CONFIG, None);
        assert_eq!(reward.name(), "rm");
        let stop = Arc::new(AtomicBool::new(false));
        reward.stop_with(stop.clone());
        assert!(scores(&mut reward, ["cd", "ce"]).problems.is_empty());
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let scores = scores(&mut reward, ["cd", "ce"]);
        assert_eq!(scores.values, [None, None]);
        let expected = Problem::new("rm", 2, model::Error::Stopped.to_string());
        assert_eq!(scores.problems, [expected]);
    }

    /// A completion that cannot be scored is reported with its index. An empty completion gets the score of its prompt.
    #[test]
    fn completions_without_a_score_do_not_shift_other_scores() {
        let mut reward = reward_model(CONFIG, None);
        let given = scores(&mut reward, ["cdefghijklm", "cd"]);
        let alone = scores(&mut reward, ["cd", ""]);
        assert_eq!((given.values[0], given.values[1]), (None, alone.values[0]));
        assert!(alone.values[1].is_some() && alone.values[0] != alone.values[1] && alone.problems.is_empty());
        let message = "prompt and completion must have 1 to 12 tokens for the reward model, got 13";
        assert_eq!(given.problems.len(), 1);
        assert!(given.problems[0].message.contains(message), "{}", given.problems[0]);
        assert_eq!((given.problems[0].rows, &given.problems[0].completions[..]), (1, &[0][..]));
    }
}
