//! Notices about a dataset's conversations, logged before the run: the number of rows whose content the chat template
//! drops or changes. The run still uses these rows, as TRL does.

use super::supervised::OfTemplate;
use super::{Dataset, Example};
use crate::stop::StopSignal;
use model::chat::{PromptEncoder, message_left_out};
use rewards::Content;
use serde_json::Value;
use std::collections::BTreeMap;
use telemetry::Sinks;

/// Numbers of rows of each kind, each with a description of the first such row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Notices {
    /// The name of the dataset.
    dataset: String,
    /// The number of rows seen.
    rows: usize,
    /// Rows whose prompt contains the text of a special token, with the first such token.
    spelled: Option<Counted>,
    /// Rows with a message that the chat template drops.
    left_out: Option<Counted>,
    /// For each column for the chat template: the rows that have the column although their prompt is plain text.
    without_template: BTreeMap<&'static str, Counted>,
    /// Rows with tools, which the chat template does not print.
    tools: Option<Counted>,
    /// For each argument that the chat template does not read: the rows that have it.
    arguments: BTreeMap<String, Counted>,
}

/// A number of rows, with a description of the first.
#[derive(Clone, Debug, Default, PartialEq)]
struct Counted {
    rows: usize,
    first: String,
}

fn count(counted: &mut Counted, first: impl FnOnce() -> String) {
    if counted.rows == 0 {
        counted.first = first();
    }
    counted.rows += 1;
}

/// Collects the counts of a dataset, row by row.
pub struct Looking<'a> {
    /// Special tokens as text, except end tokens.
    special: Vec<String>,
    /// Arguments from the configuration, which apply to every row.
    configured: Vec<&'a str>,
    notices: Notices,
}

impl<'a> Looking<'a> {
    /// Counts rows that `encoder` encodes.
    pub fn new(encoder: &PromptEncoder<'a>) -> Looking<'a> {
        let tokenizer = encoder.tokenizer;
        let special = tokenizer.special_ids().into_iter().filter_map(|id| tokenizer.token(id));
        // A character tokenizer may have special tokens of one character, which are not counted.
        let special = special.filter(|token| token.chars().count() > 1).collect();
        Looking {
            special,
            configured: encoder.kwargs.keys().map(String::as_str).collect(),
            notices: Notices::default(),
        }
    }

    /// Counts a row: its prompt or whole conversation, and the rendered text. `encoder` has the row's own tools and
    /// arguments.
    pub fn look(&mut self, encoder: &PromptEncoder<'_>, row: usize, content: &Content, rendered: &str) {
        let notices = &mut self.notices;
        let at = || format!("row {}", row + 1);
        notices.rows += 1;
        if let Some(token) = spelled(&self.special, content) {
            count(notices.spelled.get_or_insert_default(), || format!("{token:?} in row {}", row + 1));
        }
        // An empty list selects the template for tools, as in transformers, but nothing is printed.
        let has_tools = encoder.tools.is_some_and(|tools| !tools.is_empty());
        let own = encoder.kwargs.keys().filter(|name| !self.configured.contains(&name.as_str()));
        let Content::Messages(messages) = content else {
            let has = [("tools", has_tools), ("chat_template_kwargs", own.count() > 0)];
            for (name, _) in has.into_iter().filter(|(_, has)| *has) {
                count(notices.without_template.entry(name).or_default(), at);
            }
            return;
        };
        if let Some(message) = message_left_out(messages, rendered) {
            let role = messages[message]["role"].as_str().unwrap_or_default().to_owned();
            let first = || format!("message {} ({role}) of row {}", message + 1, row + 1);
            count(notices.left_out.get_or_insert_default(), first);
        }
        let Some(template) = encoder.template else { return };
        // Without a template for this row, rendering has already failed.
        let reads = |name: &str| template.reads(name, encoder.tools.is_some()).unwrap_or(true);
        if has_tools && !reads("tools") {
            count(notices.tools.get_or_insert_default(), at);
        }
        for name in encoder.kwargs.keys().filter(|name| !reads(name)) {
            count(notices.arguments.entry(name.clone()).or_default(), at);
        }
    }

    /// The counts of all rows; `dataset` is the dataset's name.
    pub fn end(self, dataset: &str) -> Notices {
        Notices { dataset: dataset.to_owned(), ..self.notices }
    }
}

/// Counts the conversations of a dataset for supervised fine-tuning. Rows that cannot be rendered are skipped, since
/// the encoder reports their error.
pub fn count_conversations(encoder: &PromptEncoder<'_>, data: &Dataset, stop: &StopSignal) -> anyhow::Result<Notices> {
    let mut looking = Looking::new(encoder);
    for example in &data.examples {
        stop.check()?;
        if encoder.tokenizer.is_beyond(example.bytes(), LONGEST) {
            continue;
        }
        let (Some(whole), Ok(row_template)) = (conversation(example), OfTemplate::of(&example.columns, encoder.kwargs))
        else {
            continue;
        };
        let own = row_template.encoder(encoder);
        if let Ok(text) = own.render_whole(&whole) {
            looking.look(&own, example.row, &Content::Messages(whole), &text);
        }
    }
    Ok(looking.end(&data.name))
}

/// Conversations with more tokens are not rendered.
const LONGEST: usize = 1 << 20;

/// The messages of the prompt and of the completion.
fn conversation(example: &Example) -> Option<Vec<Value>> {
    match (&example.prompt, &example.completion) {
        (Content::Messages(prompt), Some(Content::Messages(completion))) => Some([&prompt[..], completion].concat()),
        (Content::Messages(messages), _) => Some(messages.clone()),
        _ => None,
    }
}

/// The first special token whose text is in the prompt. The assistant's messages of a conversation are not searched.
fn spelled<'a>(special: &'a [String], content: &Content) -> Option<&'a String> {
    let find = |text: &str| special.iter().find(|token| text.contains(token.as_str()));
    match content {
        Content::Text(text) => find(text),
        Content::Messages(messages) => {
            let given = messages.iter().filter(|message| message["role"] != "assistant");
            given.filter_map(|message| message.get("content")).find_map(|content| match content {
                Value::String(text) => find(text),
                Value::Array(parts) => parts.iter().find_map(|part| find(part.get("text")?.as_str()?)),
                _ => None,
            })
        }
    }
}

impl Notices {
    /// Logs the counts above 0, as a warning if a part of a row is not used.
    pub fn report(&self, sinks: &Sinks) {
        self.info().iter().for_each(|line| sinks.info(line));
        self.warnings().iter().for_each(|line| sinks.warn(line));
    }

    fn of(&self, counted: &Counted) -> String {
        format!("{}: {} of {} rows", self.dataset, counted.rows, self.rows)
    }

    /// Notices about rows whose encoding may surprise the user, although it is the same as in transformers.
    fn info(&self) -> Option<String> {
        let spelled = self.spelled.as_ref()?;
        let rows = self.of(spelled);
        Some(format!(
            "{rows} have the text of a special token in the prompt ({}): it is encoded as that token, as in \
             transformers",
            spelled.first
        ))
    }

    /// Notices about parts of rows that the model does not see.
    fn warnings(&self) -> Vec<String> {
        let left_out = self.left_out.iter().map(|counted| {
            let rows = self.of(counted);
            format!("{rows} have a message whose text the chat template drops or changes: {}", counted.first)
        });
        let without_template = self.without_template.iter().map(|(column, counted)| {
            let rows = self.of(counted);
            format!(
                "{rows} have `{column}` and a plain-text prompt, to which no chat template is applied, so the model \
                 does not see `{column}`: first {}",
                counted.first
            )
        });
        let tools = self.tools.iter().map(|counted| {
            let rows = self.of(counted);
            format!(
                "{rows} have `tools`, which the chat template does not print, so the model does not see them: first {}",
                counted.first
            )
        });
        let arguments = self.arguments.iter().map(|(argument, counted)| {
            let rows = self.of(counted);
            format!(
                "{rows} have `{argument}` in chat_template_kwargs, which the chat template does not read: first {}",
                counted.first
            )
        });
        left_out.chain(without_template).chain(tools).chain(arguments).collect()
    }
}

#[cfg(test)]
mod tests;
