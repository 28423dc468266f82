//! Chat templates: rendering messages to the text format that a model was trained on, as transformers does.
//!
//! Templates are written in Jinja for Python; the minijinja crate renders them. This module makes the differences
//! disappear: how values print, `tojson`, Python's string methods, `{% generation %}` blocks, and what transformers
//! does to messages before rendering (it drops keys with null values and unifies the names of reasoning). Of the
//! tokenizer it uses only the names of special tokens.

mod assistant;
mod content;
mod environment;
mod limits;
mod operators;
mod prompt;
mod python;
#[cfg(test)]
mod tests;

pub use content::Content;
pub use prompt::PromptEncoder;

use crate::tokenizer::{SpecialTokens, object};
use crate::{Error, Result};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;

/// Keys under which a message may have its reasoning. Templates read the first one.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];
/// Mark at the end of the final message in the rendered text, where the model continues it. The space at its end shows
/// whether the template trims messages.
const CONTINUE: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

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
    special: SpecialTokens,
}

impl ChatTemplate {
    /// Compiles a template. `special` has the special tokens that it may print by name.
    pub fn new(source: &str, special: &SpecialTokens) -> Result<ChatTemplate> {
        ChatTemplate::named([("default".to_owned(), source.to_owned())].into(), special)
    }

    fn named(sources: BTreeMap<String, String>, special: &SpecialTokens) -> Result<ChatTemplate> {
        let environment = environment::new(&sources)?;
        Ok(ChatTemplate { environment, sources, special: special.clone() })
    }

    /// Loads the templates of a model directory: from `chat_template.jinja` and `additional_chat_templates/`, or else
    /// from `tokenizer_config.json`. None if the model has no template.
    pub fn load(dir: &Path, special: &SpecialTokens) -> Result<Option<ChatTemplate>> {
        let mut sources = files(dir)?;
        if sources.is_empty() {
            let path = dir.join("tokenizer_config.json");
            sources = match object(&path)?.as_ref().and_then(|c| c.get("chat_template")) {
                None | Some(Value::Null) => return Ok(None),
                Some(template) => of_config(template).ok_or_else(|| {
                    Error::file(path, "`chat_template` is neither a template nor a list of named ones")
                })?,
            };
        }
        ChatTemplate::named(sources, special).map(Some)
    }

    /// The source text of the template; of several, the default one.
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
            let message = "continue_final_message and add_generation_prompt exclude each other";
            return Err(Error::Chat(message.into()));
        }
        let mut messages = chat.messages.iter().map(plain_message).collect::<Result<Vec<_>>>()?;
        let continued = match chat.continue_final_message {
            true => Some(mark_final(&mut messages)?),
            false => None,
        };
        let mut variables = Map::new();
        variables.extend(self.special.named().map(|(name, token)| (name.to_owned(), token.into())));
        variables.extend(chat.kwargs.cloned().unwrap_or_default());
        variables.insert("messages".into(), messages.into());
        variables.insert("tools".into(), chat.tools.map_or(Value::Null, |t| t.into()));
        variables.entry("documents").or_insert(Value::Null);
        variables.insert("add_generation_prompt".into(), chat.add_generation_prompt.into());
        let variables = python::value(&Value::Object(variables));
        let text = operators::render(&self.environment, name, variables).map_err(environment::failed)?;
        match continued {
            None => Ok(text),
            Some(last) => cut_after_final(&text, &last),
        }
    }

    /// Name of the template to render with: the one for tools if there are tools, else the default.
    fn choose(&self, tools: bool) -> Result<&str> {
        let has = |name: &'static str| self.sources.contains_key(name).then_some(name);
        has("tool_use").filter(|_| tools).or_else(|| has("default")).ok_or_else(|| {
            let names: Vec<_> = self.sources.keys().cloned().collect();
            Error::Chat(format!("there are several, and none is the default: {}", names.join(", ")))
        })
    }
}

/// Reads the template files of a directory.
fn files(dir: &Path) -> Result<BTreeMap<String, String>> {
    let mut sources = BTreeMap::new();
    let mut read = |name: &str, path: &Path| -> Result<()> {
        match std::fs::read_to_string(path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
            text => {
                sources.insert(name.to_owned(), text.map_err(|e| Error::io(path, e))?);
                Ok(())
            }
        }
    };
    read("default", &dir.join("chat_template.jinja"))?;
    let more = dir.join("additional_chat_templates");
    if more.is_dir() {
        for entry in std::fs::read_dir(&more).map_err(|e| Error::io(&more, e))? {
            let path = entry.map_err(|e| Error::io(&more, e))?.path();
            if path.extension().is_some_and(|e| e == "jinja")
                && let Some(name) = path.file_stem().and_then(|s| s.to_str())
            {
                read(name, &path)?;
            }
        }
    }
    Ok(sources)
}

/// Reads the templates in `tokenizer_config.json`: one text, or a list of `{name, template}`.
fn of_config(entry: &Value) -> Option<BTreeMap<String, String>> {
    match entry {
        Value::String(source) => Some([("default".to_owned(), source.clone())].into()),
        Value::Array(list) => list
            .iter()
            .map(|t| Some((t.get("name")?.as_str()?.to_owned(), t.get("template")?.as_str()?.to_owned())))
            .collect(),
        _ => None,
    }
}

/// Prepares a message for the template: drops null fields, and puts the reasoning under the keys that templates read.
fn plain_message(message: &Value) -> Result<Value> {
    let Value::Object(message) = message else {
        return Err(Error::Chat(format!("a message is an object with role and content, not {message}")));
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
        // The last part of the content that has a text.
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
        let message = "continue_final_message: the last message is not in the rendered text as it was given";
        return Err(Error::Chat(message.into()));
    };
    // A template that trims messages has trimmed the text before the mark, too.
    let trimmed = !text[at..].starts_with(CONTINUE);
    let head = &text[..at];
    Ok(if trimmed { head.trim_end().to_owned() } else { head.to_owned() })
}
