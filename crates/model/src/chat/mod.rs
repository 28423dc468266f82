//! Chat templates: rendering messages to the text format that a model was trained on, as transformers does.
//!
//! Templates are written in Jinja for Python; the minijinja crate renders them. This module removes the differences:
//! how values print, `tojson`, Python's string methods, `{% generation %}` blocks, and the changes that transformers
//! makes to messages before rendering (it drops keys with null values and unifies the names of reasoning). The only
//! tokenizer data it reads is the names of special tokens.

mod assistant;
mod content;
mod environment;
mod formats;
mod letters;
mod limits;
mod methods;
mod operators;
mod parts;
mod prompt;
mod python;
#[cfg(test)]
mod tests;
mod tools;
mod training;
mod turns;

pub use assistant::AssistantTokens;
pub use content::Content;
pub use parts::{is_media_column, is_nothing, media_in, message_left_out};
pub use prompt::{Completed, PromptEncoder};
pub use python::strftime;
pub use tools::{Parsed, ToolCall, ToolFormat, ToolParser};

use crate::io::{ModelFiles, TOKENIZER_CONFIG};
use crate::tokenizer::SpecialTokens;
use crate::{Error, Result};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// Keys under which a message may contain its reasoning. Templates read the first key.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];
/// Mark at the end of the final message in the rendered text, where the model continues the message. The trailing space
/// shows whether the template trims messages.
const CONTINUE: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// The time that `strftime_now` returns in a chat template, in seconds since 1970. A run renders all prompts with the
/// time of its first start, so that a resumed run has the same prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptTime(pub u64);

impl PromptTime {
    /// The current time.
    pub fn now() -> PromptTime {
        PromptTime(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
    }
}

/// A conversation to render.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chat<'a> {
    /// The messages: objects with `role` and `content`, and other fields that the template reads.
    pub messages: &'a [Value],
    /// Tools that the model may call, as JSON schemas.
    pub tools: Option<&'a [Value]>,
    /// Whether the text ends with the header of an assistant's answer.
    pub add_generation_prompt: bool,
    /// Whether the text ends within the last message, so that the model continues that message.
    pub continue_final_message: bool,
    /// More variables for the template, such as `enable_thinking`: transformers' `chat_template_kwargs`.
    pub kwargs: Option<&'a Map<String, Value>>,
}

/// The chat template of a model, or several templates with names.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: minijinja::Environment<'static>,
    sources: BTreeMap<String, String>,
    /// Whether the default template is a well-known one, which has a training version.
    has_training_version: bool,
    special: SpecialTokens,
}

impl ChatTemplate {
    /// Compiles a template. `special` contains the special tokens that the template may print by name. `strftime_now`
    /// returns the time of this call.
    pub fn new(source: &str, special: &SpecialTokens) -> Result<ChatTemplate> {
        ChatTemplate::new_at(source, special, PromptTime::now())
    }

    /// Compiles a template whose `strftime_now` returns `time`.
    pub fn new_at(source: &str, special: &SpecialTokens, time: PromptTime) -> Result<ChatTemplate> {
        let sources = [("default".to_owned(), source.to_owned())];
        ChatTemplate::named(sources.into(), special, time)
    }

    fn named(mut sources: BTreeMap<String, String>, special: &SpecialTokens, time: PromptTime) -> Result<ChatTemplate> {
        for source in sources.values_mut() {
            *source = with_line_feeds(source);
        }
        let default = sources.get("default").filter(|source| !environment::marks_generation(source));
        let training = default.and_then(|source| training::version(source));
        let mut all = sources.clone();
        all.extend(training.clone().map(|source| (training::NAME.to_owned(), source)));
        let environment = environment::new(&all, time)?;
        Ok(ChatTemplate { environment, sources, has_training_version: training.is_some(), special: special.clone() })
    }

    /// The templates in a model's files: those of `chat_template.jinja` and `additional_chat_templates/`, or else those
    /// of `tokenizer_config.json`. `None` if the model has no template. `strftime_now` returns `time`.
    pub fn of(files: &ModelFiles, special: &SpecialTokens, time: PromptTime) -> Result<Option<ChatTemplate>> {
        let owned = |template: Result<(&str, &str)>| template.map(|(name, text)| (name.to_owned(), text.to_owned()));
        let mut sources = files.templates().map(owned).collect::<Result<BTreeMap<_, _>>>()?;
        if sources.is_empty() {
            sources = match files.object(TOKENIZER_CONFIG)?.as_ref().and_then(|c| c.get("chat_template")) {
                None | Some(Value::Null) => return Ok(None),
                Some(template) => config_templates(template).ok_or_else(|| {
                    let path = files.path(TOKENIZER_CONFIG);
                    Error::file(path, "`chat_template` must be a string or a list of named templates")
                })?,
            };
        }
        ChatTemplate::named(sources, special, time).map(Some)
    }

    /// The source of the template, or of the default template if there are several.
    pub fn source(&self) -> &str {
        self.sources.get("default").or(self.sources.values().next()).map_or("", String::as_str)
    }

    /// Renders a conversation.
    pub fn render(&self, chat: &Chat<'_>) -> Result<String> {
        self.render_as(self.choose(chat.tools.is_some())?, chat)
    }

    /// Renders a conversation with the template `name`.
    fn render_as(&self, name: &str, chat: &Chat<'_>) -> Result<String> {
        if chat.messages.is_empty() {
            return Err(Error::Chat("a conversation needs at least one message".into()));
        }
        if chat.continue_final_message && chat.add_generation_prompt {
            let message = "continue_final_message and add_generation_prompt cannot both be true";
            return Err(Error::Chat(message.into()));
        }
        parts::refuse_media(chat.messages)?;
        let mut messages = chat.messages.iter().map(plain_message).collect::<Result<Vec<_>>>()?;
        let continued = if chat.continue_final_message { Some(mark_final(&mut messages)?) } else { None };
        let mut variables = Map::new();
        variables.extend(self.special.named().map(|(name, token)| (name.to_owned(), token.into())));
        variables.extend(chat.kwargs.cloned().unwrap_or_default());
        variables.insert("messages".into(), messages.into());
        variables.insert("tools".into(), chat.tools.map_or(Value::Null, |t| t.into()));
        variables.entry("documents").or_insert(Value::Null);
        variables.insert("add_generation_prompt".into(), chat.add_generation_prompt.into());
        let variables = python::value(&Value::Object(variables));
        let text = operators::render(&self.environment, name, variables).map_err(environment::failed)?;
        parts::check_rendered(chat.messages, &text)?;
        match continued {
            None => Ok(text),
            Some(last) => cut_after_final(&text, &last),
        }
    }

    /// Whether the template that renders conversations with or without tools reads the variable `name`.
    pub fn reads(&self, name: &str, tools: bool) -> Result<bool> {
        let template = self.environment.get_template(self.choose(tools)?).map_err(environment::failed)?;
        Ok(template.undeclared_variables(false).contains(name))
    }

    /// Name of the template to render with: the one for tools if there are tools, else the default one.
    fn choose(&self, tools: bool) -> Result<&str> {
        let has = |name: &'static str| self.sources.contains_key(name).then_some(name);
        has("tool_use").filter(|_| tools).or_else(|| has("default")).ok_or_else(|| {
            let names: Vec<_> = self.sources.keys().cloned().collect();
            Error::Chat(format!("the model has several templates, but none is named `default`: {}", names.join(", ")))
        })
    }
}

impl ChatTemplate {
    /// The name of the template for conversations in which only the assistant's tokens are learned, and whether it
    /// marks these tokens. As in TRL, a default template without marks is replaced by its training version, even with
    /// tools.
    fn for_training(&self, tools: bool) -> Result<(String, bool)> {
        if self.has_training_version {
            return Ok((training::NAME.to_owned(), true));
        }
        let name = self.choose(tools)?;
        Ok((name.to_owned(), environment::marks_generation(&self.sources[name])))
    }
}

/// A template's source as Jinja reads it: line ends `\r\n` and `\r` become line feeds.
fn with_line_feeds(source: &str) -> String {
    source.replace("\r\n", "\n").replace('\r', "\n")
}

/// Reads the templates in `tokenizer_config.json`: one string, or a list of `{name, template}`.
fn config_templates(entry: &Value) -> Option<BTreeMap<String, String>> {
    match entry {
        Value::String(source) => Some([("default".to_owned(), source.clone())].into()),
        Value::Array(list) => list
            .iter()
            .map(|t| Some((t.get("name")?.as_str()?.to_owned(), t.get("template")?.as_str()?.to_owned())))
            .collect(),
        _ => None,
    }
}

/// Prepares a message for the template: drops null fields, and stores the reasoning under the keys that templates read.
fn plain_message(message: &Value) -> Result<Value> {
    let Value::Object(message) = message else {
        return Err(Error::Chat(format!("a message must be an object with `role` and `content`, got {message}")));
    };
    let mut fields: Map<_, _> =
        message.iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k.clone(), v.clone())).collect();
    if let Some(reasoning) = REASONING.iter().find_map(|name| fields.get(*name)).cloned() {
        fields.entry("thinking").or_insert_with(|| reasoning.clone());
        fields.insert("reasoning_content".into(), reasoning);
    }
    Ok(Value::Object(fields))
}

/// Appends the mark to the text of the last message, and returns that text without the mark.
fn mark_final(messages: &mut [Value]) -> Result<String> {
    let lacks = || Error::Chat("continue_final_message: the last message has no text to continue".into());
    let text = match messages.last_mut().and_then(|m| m.get_mut("content")).ok_or_else(lacks)? {
        Value::String(text) => text,
        // The last content part that has a text.
        Value::Array(blocks) => match blocks.iter_mut().rev().find_map(|b| b.get_mut("text")) {
            Some(Value::String(text)) => text,
            _ => return Err(lacks()),
        },
        _ => return Err(lacks()),
    };
    let before = text.clone();
    text.push_str(CONTINUE);
    Ok(before)
}

fn cut_after_final(text: &str, last: &str) -> Result<String> {
    let Some(at) = text.rfind(CONTINUE.trim()).filter(|_| text.contains(last.trim())) else {
        let message = "continue_final_message: the rendered text does not contain the last message unchanged";
        return Err(Error::Chat(message.into()));
    };
    // A template that trims messages has also trimmed the text before the mark.
    let trimmed = !text[at..].starts_with(CONTINUE);
    let head = &text[..at];
    Ok(if trimmed { head.trim_end().to_owned() } else { head.to_owned() })
}
