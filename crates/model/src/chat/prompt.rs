//! Converts prompts and answers to token ids, as transformers and TRL do. Conversations go through the chat template;
//! strings are encoded directly.

use super::{Chat, ChatTemplate, Content};
use crate::tokenizer::Tokenizer;
use crate::{Error, Result};
use serde_json::{Map, Value};
use std::borrow::Cow;

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
    /// The text that the model sees: a string prompt itself, or a conversation rendered up to the header of the
    /// assistant's answer.
    pub fn render(&self, prompt: &Content) -> Result<String> {
        let messages = match prompt {
            Content::Text(text) => return Ok(text.clone()),
            Content::Messages(messages) => messages,
        };
        if let Some(template) = self.template {
            // As in TRL: if the last message is the assistant's, the model continues it; otherwise the model answers
            // it.
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
        Err(no_template())
    }

    /// The text of a complete conversation, without the header of another answer. Without a chat template a
    /// conversation has no such text.
    pub fn render_whole(&self, messages: &[Value]) -> Result<String> {
        let lacks = || Error::Value("the data has conversations, but the model has no chat template".into());
        self.template.ok_or_else(lacks)?.render(&self.whole(messages))
    }

    /// A complete conversation, without the header of another answer.
    pub(super) fn whole<'c>(&'c self, messages: &'c [Value]) -> Chat<'c> {
        Chat { messages, kwargs: Some(self.kwargs), tools: self.tools, ..Chat::default() }
    }

    /// Token ids of a prompt.
    pub fn encode(&self, prompt: &Content) -> Result<Vec<u32>> {
        self.encode_rendered(prompt, &self.render(prompt)?)
    }

    /// Token ids of a prompt that [`render`](Self::render) has rendered as `text`.
    pub fn encode_rendered(&self, prompt: &Content, text: &str) -> Result<Vec<u32>> {
        // A rendered conversation already contains its start token.
        let rendered = matches!(prompt, Content::Messages(_)) && self.template.is_some();
        if rendered { self.tokenizer.encode_rendered(text) } else { self.tokenizer.encode(text) }
    }

    /// Token ids of the prompt of a training row, as TRL encodes it to find where the answer begins. A conversation is
    /// followed by the header of an answer, regardless of the role of its last message.
    fn encode_prompt(&self, prompt: &Content) -> Result<Vec<u32>> {
        match (prompt, self.template) {
            (Content::Text(text), _) => self.tokenizer.encode_row(text),
            (Content::Messages(messages), Some(template)) => {
                let chat = Chat { add_generation_prompt: true, ..self.whole(messages) };
                self.tokenizer.encode_rendered(&template.render(&chat)?)
            }
            (Content::Messages(_), None) => Err(no_template()),
        }
    }

    /// Token ids of a whole text or a whole conversation, as TRL encodes a row without a prompt. A text gets the end
    /// token, unless it already ends with it. A conversation gets only the tokens that its template prints.
    pub fn encode_whole(&self, whole: &Content) -> Result<Vec<u32>> {
        match (whole, self.template) {
            (Content::Text(text), _) => self.tokenizer.encode_row(&self.ended(text)),
            (Content::Messages(messages), Some(template)) => {
                self.tokenizer.encode_rendered(&template.render(&self.whole(messages))?)
            }
            (Content::Messages(_), None) => Err(no_template()),
        }
    }

    /// Token ids of a prompt with an answer, encoded together, as TRL encodes a chosen or rejected answer. A
    /// conversation is rendered whole by the template. The text of an answer gets the end token, unless it already ends
    /// with it. A text answer to a conversation becomes the assistant's message; a model without a chat template gets
    /// the plain text.
    pub fn encode_answered(&self, prompt: &Content, answer: &Content) -> Result<Vec<u32>> {
        if let (Content::Messages(prompt), Some(_)) = (prompt, self.template) {
            let messages = match answer {
                Content::Messages(messages) => messages.clone(),
                Content::Text(text) => vec![serde_json::json!({"role": "assistant", "content": text})],
            };
            return self.encode_whole(&Content::Messages(prompt.iter().cloned().chain(messages).collect()));
        }
        self.tokenizer.encode_row(&(self.render(prompt)? + &self.ended(&answer.text())))
    }

    /// The text of an answer followed by the end token, unless the text already ends with that token.
    fn ended<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match &self.tokenizer.special().eos {
            Some(eos) if !text.ends_with(eos.as_str()) => Cow::Owned(text.to_owned() + eos),
            _ => Cow::Borrowed(text),
        }
    }

    /// Token ids of a prompt with two answers: the part that both share, and the rest of each answer. A token that
    /// spans the end of the prompt and the beginning of an answer belongs to the answer. No list is empty, and the
    /// answers differ.
    pub fn encode_pair(&self, prompt: &Content, chosen: &Content, rejected: &Content) -> Result<[Vec<u32>; 3]> {
        let bad = |message: &str| Err(Error::Value(message.to_owned()));
        let (chosen, rejected) = (self.encode_answered(prompt, chosen)?, self.encode_answered(prompt, rejected)?);
        if chosen == rejected {
            return bad("`chosen` and `rejected` have the same tokens, so the pair teaches nothing: remove it");
        }
        let shared = match prompt {
            // If both answers are whole conversations, the prompt is their common prefix.
            Content::Messages(messages) if messages.is_empty() => border(&chosen, &rejected),
            _ => {
                let alone = self.encode_prompt(prompt)?;
                border(&alone, &chosen).min(border(&alone, &rejected))
            }
        };
        let shared = shared.min(chosen.len().min(rejected.len()).saturating_sub(1));
        if shared == 0 {
            return bad(
                "the prompt has no tokens: add a `prompt` column, give answers that begin with the same text, or use a \
                 tokenizer that adds a start token (add_bos_token)",
            );
        }
        Ok([chosen[..shared].to_vec(), chosen[shared..].to_vec(), rejected[shared..].to_vec()])
    }

    /// Token ids of a prompt with the completion that supervised fine-tuning learns, as TRL encodes them: both
    /// together, as one text or one conversation. A text completion gets the end token, unless it already ends with it.
    ///
    /// A text completion after a conversation, which TRL does not accept, follows the header of the answer unchanged,
    /// as the model would generate it.
    pub fn encode_completion(&self, prompt: &Content, completion: &Content) -> Result<Completed> {
        let (alone, ids) = match (prompt, completion) {
            (Content::Text(before), Content::Text(text)) => {
                (self.encode_prompt(prompt)?, self.tokenizer.encode_row(&(before.clone() + &self.ended(text)))?)
            }
            (Content::Text(_), Content::Messages(_)) => {
                return Err(Error::Value(
                    "the prompt is a string, but the completion is a conversation: give two strings or two lists of \
                     messages"
                        .into(),
                ));
            }
            (Content::Messages(_), Content::Text(text)) => {
                let whole = self.render(prompt)? + &self.ended(text);
                (self.encode(prompt)?, self.tokenizer.encode_rendered(&whole)?)
            }
            (Content::Messages(before), Content::Messages(answer)) => {
                let whole = Content::Messages([&before[..], answer].concat());
                (self.encode_prompt(prompt)?, self.encode_whole(&whole)?)
            }
        };
        let border = border(&alone, &ids);
        Ok(Completed { prompt_differs: border < alone.len(), border, ids })
    }
}

/// The token ids of a prompt and a completion.
#[derive(Clone, Debug, PartialEq)]
pub struct Completed {
    /// The ids of prompt and completion.
    pub ids: Vec<u32>,
    /// The number of ids that belong to the prompt: the leading ids that the prompt encoded alone also has.
    pub border: usize,
    /// Whether the prompt encoded alone ends with different tokens, because the template renders it differently or a
    /// token spans its end.
    pub prompt_differs: bool,
}

/// The number of leading tokens that both lists share.
pub(super) fn border(prompt: &[u32], whole: &[u32]) -> usize {
    prompt.iter().zip(whole).take_while(|(a, b)| a == b).count()
}

pub(super) fn no_template() -> Error {
    Error::Value(
        "the data has conversations, but the model has no chat template (chat_template.jinja or \
         tokenizer_config.json): use a model that has one, or text prompts"
            .into(),
    )
}
