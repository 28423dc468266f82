//! Converts prompts and answers to token ids, as transformers and TRL do: by the chat template for conversations, by
//! plain encoding for texts.

use super::{Chat, ChatTemplate, Content};
use crate::tokenizer::Tokenizer;
use crate::{Error, Result};
use serde_json::{Map, Value};

/// Encodes prompts, and prompts with answers, to token ids.
#[derive(Clone, Copy, Debug)]
pub struct PromptEncoder<'a> {
    /// The tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// The chat template, if the model has one.
    pub template: Option<&'a ChatTemplate>,
    /// More variables for the template: transformers' `chat_template_kwargs`.
    pub kwargs: &'a Map<String, Value>,
    /// Tools that the template describes to the model, as JSON schemas.
    pub tools: Option<&'a [Value]>,
}

impl PromptEncoder<'_> {
    /// The text that the model sees: a text prompt itself, or a conversation rendered up to the header of the
    /// assistant's answer.
    pub fn render(&self, prompt: &Content) -> Result<String> {
        let messages = match prompt {
            Content::Text(text) => return Ok(text.clone()),
            Content::Messages(messages) => messages,
        };
        if let Some(template) = self.template {
            // As in TRL: if the last message is the assistant's, it is continued; else it is answered.
            let continued = messages.last().is_some_and(|m| m["role"] == "assistant");
            let chat = Chat {
                messages,
                add_generation_prompt: !continued,
                continue_final_message: continued,
                kwargs: Some(self.kwargs),
                tools: self.tools,
            };
            return template.render(&chat);
        }
        Err(Error::Value(
            "the data has conversations, but the model has no chat template (chat_template.jinja or \
             tokenizer_config.json): use a model that has one, or text prompts"
                .into(),
        ))
    }

    /// The text of a conversation that is rendered whole, without the header of a further answer. A model without a chat
    /// template has no such text.
    pub fn render_whole(&self, messages: &[Value]) -> Result<String> {
        let lacks = || Error::Value("the data has conversations, but the model has no chat template".into());
        self.template.ok_or_else(lacks)?.render(&self.whole(messages))
    }

    /// A conversation that is rendered whole, without the header of a further answer.
    pub(super) fn whole<'c>(&'c self, messages: &'c [Value]) -> Chat<'c> {
        Chat { messages, kwargs: Some(self.kwargs), tools: self.tools, ..Chat::default() }
    }

    /// Token ids of a prompt.
    pub fn encode(&self, prompt: &Content) -> Result<Vec<u32>> {
        self.encode_rendered(prompt, &self.render(prompt)?)
    }

    /// Token ids of a prompt that [`render`](Self::render) has rendered as `text`.
    pub fn encode_rendered(&self, prompt: &Content, text: &str) -> Result<Vec<u32>> {
        // A rendered conversation contains its start token already.
        let rendered = matches!(prompt, Content::Messages(_)) && self.template.is_some();
        if rendered { self.tokenizer.encode_rendered(text) } else { self.tokenizer.encode(text) }
    }

    /// Token ids of a prompt with an answer, as TRL encodes a chosen or rejected answer. A conversation is rendered
    /// whole by the template. A text gets an end token, unless it ends with one. A text answer to a conversation
    /// becomes the assistant's message; a model without a chat template gets the plain text.
    pub fn encode_answered(&self, prompt: &Content, answer: &Content) -> Result<Vec<u32>> {
        if let (Content::Messages(prompt), Some(template)) = (prompt, self.template) {
            let said = match answer {
                Content::Messages(messages) => messages.clone(),
                Content::Text(text) => vec![serde_json::json!({"role": "assistant", "content": text})],
            };
            let messages: Vec<Value> = prompt.iter().cloned().chain(said).collect();
            return self.tokenizer.encode_rendered(&template.render(&self.whole(&messages))?);
        }
        let text = self.render(prompt)? + &answer.text();
        let mut ids = self.tokenizer.encode(&text)?;
        if let Some(eos) = self.tokenizer.eos_id()
            && ids.last() != Some(&eos)
        {
            ids.push(eos);
        }
        Ok(ids)
    }

    /// Token ids of a prompt with two answers: the part that both share, and the rest of each answer. A token that
    /// spans the end of the prompt and the beginning of an answer belongs to the answer. No list is empty, and the
    /// answers differ.
    pub fn encode_pair(&self, prompt: &Content, chosen: &Content, rejected: &Content) -> Result<[Vec<u32>; 3]> {
        let bad = |message: &str| Err(Error::Value(message.to_owned()));
        let (chosen, rejected) = (self.encode_answered(prompt, chosen)?, self.encode_answered(prompt, rejected)?);
        if chosen == rejected {
            return bad(
                "`chosen` and `rejected` are the same tokens: there is nothing to learn from such a pair, remove it",
            );
        }
        let alone = self.encode(prompt)?;
        let shared = alone.iter().zip(&chosen).zip(&rejected).take_while(|((p, c), r)| p == c && p == r).count();
        let shared = shared.min(chosen.len().min(rejected.len()).saturating_sub(1));
        if shared == 0 {
            return bad("the prompt has no token: give a `prompt` column, or answers that begin with the same text");
        }
        Ok([chosen[..shared].to_vec(), chosen[shared..].to_vec(), rejected[shared..].to_vec()])
    }

    /// Token ids that supervised fine-tuning learns after `prompt`: the answer as the template renders it in a
    /// conversation, or the plain text; then the end token, unless it is there already.
    pub fn encode_completion(&self, prompt: &Content, completion: &Content) -> Result<Vec<u32>> {
        let bad = |message: &str| Err(Error::Value(message.to_owned()));
        let mut ids = match (prompt, completion) {
            (_, Content::Text(text)) => self.tokenizer.encode_rendered(text)?,
            (Content::Text(_), Content::Messages(_)) => {
                return bad("the prompt is a text, but the completion is a conversation");
            }
            (Content::Messages(before), Content::Messages(answer)) => {
                let Some(template) = self.template else {
                    return bad("the data has conversations, but the model has no chat template");
                };
                let messages: Vec<Value> = before.iter().chain(answer).cloned().collect();
                let whole = template.render(&self.whole(&messages))?;
                let Some(rest) = whole.strip_prefix(&self.render(prompt)?) else {
                    return bad(
                        "the chat template does not render the prompt alone as it renders it before the answer, so \
                         that where the completion begins is unknown",
                    );
                };
                self.tokenizer.encode_rendered(rest)?
            }
        };
        if let Some(eos) = self.tokenizer.eos_id()
            && !ids.contains(&eos)
        {
            ids.push(eos);
        }
        Ok(ids)
    }
}
