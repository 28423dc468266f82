//! From prompts to token ids, as transformers makes them: the chat template for conversations, plain encoding for text.

use super::{Chat, ChatTemplate, Content};
use crate::tokenizer::Tokenizer;
use crate::{Error, Result};
use serde_json::{Map, Value};

/// Encodes prompts.
#[derive(Clone, Copy, Debug)]
pub struct PromptEncoder<'a> {
    /// The tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// The chat template, where the model has one.
    pub template: Option<&'a ChatTemplate>,
    /// `chat_template_kwargs`.
    pub kwargs: &'a Map<String, Value>,
    /// Tools that the template tells the model of, as JSON schemas.
    pub tools: Option<&'a [Value]>,
}

impl PromptEncoder<'_> {
    /// What the model is shown: the rendered conversation ending in the header of the assistant's answer, or the text
    /// itself.
    pub fn render(&self, prompt: &Content) -> Result<String> {
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

    /// A conversation that nobody has to answer.
    pub(super) fn whole<'c>(&'c self, messages: &'c [Value]) -> Chat<'c> {
        Chat { messages, kwargs: Some(self.kwargs), tools: self.tools, ..Chat::default() }
    }

    /// The ids of a prompt.
    pub fn encode(&self, prompt: &Content) -> Result<Vec<u32>> {
        let text = self.render(prompt)?;
        // A rendered conversation has its start token already.
        let rendered = matches!(prompt, Content::Messages(_)) && self.template.is_some();
        if rendered { self.tokenizer.encode_rendered(&text) } else { self.tokenizer.encode(&text) }
    }

    /// The ids of a prompt with an answer, as TRL encodes either side of a pair: a conversation as the template renders
    /// it whole; a text with the end token behind it, unless it ends so already. A text after a conversation is the
    /// assistant's message; a model without a chat template sees its text.
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

    /// The ids of a prompt that two answers share, and of what follows it in either. Where a token spans the end of the
    /// prompt and the beginning of an answer, it is the answer's. No list is empty, and the answers differ.
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

    /// The ids of what supervised fine-tuning learns after `prompt`: for a conversation the answer as the template
    /// renders it, for a text the text; then the end token, unless it is there already.
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
