//! From prompts to token ids, as transformers makes them: the chat template for conversations, plain encoding for text.

use super::{Dataset, Example};
use crate::bad_input;
use crate::error::{BadInput, OrBadInput};
use model::PromptSet;
use model::chat::{Chat, ChatTemplate};
use model::tokenizer::Tokenizer;
use rewards::Content;
use serde_json::{Map, Value};
use std::sync::Arc;

/// Encodes prompts.
#[derive(Clone, Copy, Debug)]
pub struct PromptEncoder<'a> {
    /// The tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// The chat template, where the model has one.
    pub template: Option<&'a ChatTemplate>,
    /// `chat_template_kwargs`.
    pub kwargs: &'a Map<String, Value>,
}

/// A prompt as the model and the rewards see it.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// The row of the data set, from 0.
    pub row: usize,
    /// Its tokens; equal ones of a dataset are the same.
    pub tokens: Arc<model::Prompt>,
    /// What it says.
    pub content: Content,
    /// The other columns, for the rewards.
    pub columns: Map<String, Value>,
}

/// The prompts of a data set as ids.
#[derive(Clone, Debug, Default)]
pub struct Encoded {
    /// Those that are used, in the data set's order.
    pub prompts: Vec<Arc<Prompt>>,
    /// How many were left out because they are longer than `max_prompt_length`.
    pub left_out: usize,
}

impl PromptEncoder<'_> {
    /// What the model is shown: the rendered conversation ending in the header of the assistant's answer, or the text itself.
    ///
    /// A model without a chat template can be given a system message and one user message: they become two paragraphs.
    pub fn render(&self, prompt: &Content) -> anyhow::Result<String> {
        let messages = match prompt {
            Content::Text(text) => return Ok(text.clone()),
            Content::Messages(messages) => messages,
        };
        if let Some(template) = self.template {
            // As TRL: a conversation that ends in an assistant's message is continued, any other is answered.
            let continued = messages.last().is_some_and(|m| m["role"] == "assistant");
            let chat = Chat {
                messages,
                add_generation_prompt: !continued,
                continue_final_message: continued,
                kwargs: Some(self.kwargs),
                ..Chat::default()
            };
            return template.render(&chat).or_bad_input();
        }
        let text = |m: &Value| m["content"].as_str().map(str::to_owned);
        match messages.as_slice() {
            [system, user] if system["role"] == "system" && user["role"] == "user" => {
                match (text(system), text(user)) {
                    (Some(system), Some(user)) => Ok(format!("{system}\n\n{user}\n")),
                    _ => bad_input!("the model has no chat template, and the prompt's messages are not plain text"),
                }
            }
            _ => bad_input!(
                "the data has conversations, but the model has no chat template (chat_template.jinja or tokenizer_config.json): \
                 use a model that has one, or text prompts"
            ),
        }
    }

    /// The ids of a prompt.
    pub fn encode(&self, prompt: &Content) -> anyhow::Result<Vec<u32>> {
        let text = self.render(prompt)?;
        // A rendered conversation has its start token already.
        let rendered = matches!(prompt, Content::Messages(_)) && self.template.is_some();
        let ids = if rendered { self.tokenizer.encode_rendered(&text) } else { self.tokenizer.encode(&text) };
        ids.or_bad_input()
    }

    /// The ids of what supervised fine-tuning learns after `prompt`: for a conversation the answer as the template renders
    /// it, for a text the text; then the end token, unless it is there already.
    pub fn encode_completion(&self, example: &Example) -> anyhow::Result<Vec<u32>> {
        let mut ids = match (&example.prompt, &example.completion) {
            (_, None) => bad_input!("row {} has no completion", example.row),
            (_, Some(Content::Text(text))) => self.tokenizer.encode_rendered(text).or_bad_input()?,
            (Content::Text(_), Some(Content::Messages(_))) => {
                bad_input!("row {}: the prompt is a text, but the completion is a conversation", example.row)
            }
            (Content::Messages(prompt), Some(Content::Messages(answer))) => {
                let Some(template) = self.template else {
                    bad_input!("the data has conversations, but the model has no chat template");
                };
                let messages: Vec<Value> = prompt.iter().chain(answer).cloned().collect();
                let chat = Chat { messages: &messages, kwargs: Some(self.kwargs), ..Chat::default() };
                let whole = template.render(&chat).or_bad_input()?;
                let before = self.render(&example.prompt)?;
                let Some(rest) = whole.strip_prefix(&before) else {
                    bad_input!(
                        "row {}: the chat template does not render the prompt alone as it renders it before the answer, so that where the completion begins is unknown",
                        example.row
                    );
                };
                self.tokenizer.encode_rendered(rest).or_bad_input()?
            }
        };
        if let Some(eos) = self.tokenizer.eos_id()
            && !ids.contains(&eos)
        {
            ids.push(eos);
        }
        Ok(ids)
    }

    /// All prompts of `data`. One that has more than `max_prompt_length` tokens is left out and counted; one that has no
    /// room for `room` more tokens within `context`, the longest sequence, is an error. Nothing is ever cut.
    pub fn encode_all(
        &self,
        data: &Dataset,
        max_prompt_length: Option<usize>,
        context: usize,
        room: usize,
    ) -> anyhow::Result<Encoded> {
        let (mut encoded, mut prompts) = (Encoded::default(), PromptSet::default());
        for example in &data.examples {
            let ids = self.encode(&example.prompt).map_err(|e| {
                BadInput::new(format!("{}, row {}: {}", data.name, example.row + 1, crate::error::paragraph(&e)))
            })?;
            if max_prompt_length.is_some_and(|most| ids.len() > most) {
                encoded.left_out += 1;
                continue;
            }
            if ids.is_empty() {
                bad_input!("{}, row {}: the prompt is empty: it has no token", data.name, example.row + 1);
            }
            if ids.len() + room > context {
                let fits = context.saturating_sub(room);
                let mend = if fits == 0 {
                    format!("lower max_completion_length below {context}")
                } else {
                    format!("set max_prompt_length = {fits} to leave such rows out, or lower max_completion_length")
                };
                bad_input!(
                    "{}, row {}: the prompt has {} tokens, and with max_completion_length = {room} that is more than the context of {context} tokens: {mend}",
                    data.name,
                    example.row + 1,
                    ids.len()
                );
            }
            let (content, columns) = (example.prompt.clone(), example.columns.clone());
            let tokens = prompts.share(model::Prompt::new(ids));
            encoded.prompts.push(Arc::new(Prompt { row: example.row, tokens, content, columns }));
        }
        if encoded.prompts.is_empty() {
            bad_input!(
                "{}: all {} prompts have more than max_prompt_length = {} tokens, and nothing is left to train on: raise it",
                data.name,
                encoded.left_out,
                max_prompt_length.unwrap_or(0)
            );
        }
        Ok(encoded)
    }
}
