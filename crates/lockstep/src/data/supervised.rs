//! Encodes a row of supervised fine-tuning as token ids, and marks the learned tokens: the completion, the assistant's
//! turns, the tokens marked by the row's own `labels` or masks, or all. Names and meanings are TRL's.

use super::Example;
use super::load::INPUT_IDS;
use crate::bad_input;
use crate::error::{BadInput, OrBadInput};
use model::chat::{AssistantTokens, Completed, PromptEncoder};
use rewards::Content;
use serde_json::{Map, Value};

/// TRL's `labels` value for a token that is not learned.
const NOT_LEARNED: i64 = -100;
/// The column that marks the completion in a row of token ids.
const COMPLETION_MASK: &str = "completion_mask";

/// The settings that choose which tokens of a row are learned.
#[derive(Clone, Copy, Debug)]
pub struct Learned {
    /// `completion_only_loss`. If not set, it is true for rows that have a prompt and a completion.
    pub completion_only: Option<bool>,
    /// `assistant_only_loss`: learn only the assistant's turns.
    pub assistant_only: bool,
}

/// The token ids of a row.
#[derive(Clone, Debug, PartialEq)]
pub struct LearnedRow {
    /// The ids of prompt and completion, or of the whole text or conversation.
    pub ids: Vec<u32>,
    /// For each id, whether it is learned.
    pub learned: Vec<bool>,
    /// How many of the ids belong to the prompt, if the row has a completion.
    pub prompt: Option<usize>,
    /// Whether the prompt's last tokens differ when the prompt is encoded without the completion.
    pub prompt_differs: bool,
}

impl LearnedRow {
    fn whole(ids: Vec<u32>, learned: Vec<bool>) -> LearnedRow {
        LearnedRow { ids, learned, prompt: None, prompt_differs: false }
    }
}

impl Learned {
    /// The token ids of a row, and for each id whether it is learned: TRL's `input_ids` and `labels`. (The first token
    /// is never learned, even if it is marked, because nothing predicts it.)
    pub fn tokens(self, encoder: &PromptEncoder<'_>, example: &Example) -> anyhow::Result<LearnedRow> {
        if example.columns.contains_key(INPUT_IDS) {
            return self.id_row(&example.columns, encoder.tokenizer.vocab_size());
        }
        let row_template = OfTemplate::of(&example.columns, encoder.kwargs)?;
        let encoder = row_template.encoder(encoder);
        if self.assistant_only {
            return self.assistant_row(&encoder, example);
        }
        let Some(completion) = &example.completion else {
            let ids = encoder.encode_whole(&example.prompt).or_bad_input()?;
            let learned = vec![true; ids.len()];
            return Ok(LearnedRow::whole(ids, learned));
        };
        let Completed { ids, border, prompt_differs } =
            encoder.encode_completion(&example.prompt, completion).or_bad_input()?;
        let mut learned = vec![true; ids.len()];
        if self.completion_only != Some(false) {
            learned[..border].fill(false);
        }
        Ok(LearnedRow { ids, learned, prompt: Some(border), prompt_differs })
    }

    /// Learns the assistant's tokens, of the whole conversation or, if the row has a completion, of the completion
    /// alone.
    fn assistant_row(self, encoder: &PromptEncoder<'_>, example: &Example) -> anyhow::Result<LearnedRow> {
        let (prompt, completion) = match (&example.prompt, &example.completion) {
            (Content::Messages(prompt), Some(Content::Messages(completion))) => (prompt, &completion[..]),
            (Content::Messages(messages), None) => (messages, &[][..]),
            _ => bad_input!(
                "assistant_only_loss is for conversations, but this row is text: remove the key, or use lists of \
                 messages"
            ),
        };
        let AssistantTokens { ids, mask: mut learned, border } =
            encoder.encode_assistant(prompt, completion).or_bad_input()?;
        if completion.is_empty() {
            return Ok(LearnedRow::whole(ids, learned));
        }
        if self.completion_only != Some(false) {
            learned[..border].fill(false);
        }
        Ok(LearnedRow { ids, learned, prompt: Some(border), prompt_differs: false })
    }

    /// Whether `completion_mask` applies to a row of token ids. As in TRL, `completion_only_loss` defaults to true only
    /// if the row also has a prompt and a completion.
    fn applies_completion_mask(self, columns: &Map<String, Value>) -> bool {
        self.completion_only.unwrap_or(columns.contains_key("prompt") && columns.contains_key("completion"))
    }

    /// Whether a row has a `completion_mask` without effect on the learned tokens.
    pub fn leaves_out_completion_mask(self, columns: &Map<String, Value>) -> bool {
        let has = |name: &str| columns.get(name).is_some_and(|mask| !mask.is_null());
        has(INPUT_IDS) && has(COMPLETION_MASK) && !has("labels") && !self.applies_completion_mask(columns)
    }

    /// Reads a row of token ids, whose `labels`, or else masks, mark the learned tokens.
    fn id_row(self, columns: &Map<String, Value>, vocab: usize) -> anyhow::Result<LearnedRow> {
        let ids = ids(columns, INPUT_IDS, vocab)?;
        let marks = |name: &str, kept: &dyn Fn(usize, i64) -> bool| -> anyhow::Result<Option<Vec<bool>>> {
            let Some(values) = columns.get(name).filter(|values| !values.is_null()) else { return Ok(None) };
            let list: Option<Vec<i64>> = values.as_array().and_then(|list| list.iter().map(number).collect());
            match list.filter(|list| list.len() == ids.len()) {
                Some(list) => Ok(Some(list.into_iter().enumerate().map(|(at, value)| kept(at, value)).collect())),
                None => bad_input!("`{name}` must be a list of integers, as long as `{INPUT_IDS}`"),
            }
        };
        if let Some(learned) = marks("labels", &|_, label| label != NOT_LEARNED)? {
            let same = |at: usize, label: i64| label == NOT_LEARNED || label == i64::from(ids[at]);
            if marks("labels", &same)?.is_some_and(|same| same.contains(&false)) {
                bad_input!("`labels` must equal `{INPUT_IDS}`, or be -100 where nothing is learned");
            }
            return Ok(LearnedRow::whole(ids, learned));
        }
        let mut learned = vec![true; ids.len()];
        for (name, applies) in [(COMPLETION_MASK, self.applies_completion_mask(columns)), ("assistant_masks", true)] {
            if let Some(mask) = marks(name, &|_, mark| mark != 0)?.filter(|_| applies) {
                learned.iter_mut().zip(mask).for_each(|(learned, mark)| *learned &= mark);
            }
        }
        Ok(LearnedRow::whole(ids, learned))
    }
}

/// The token ids in a column of a row; each must be below `vocab`.
pub(super) fn ids(row: &Map<String, Value>, column: &str, vocab: usize) -> anyhow::Result<Vec<u32>> {
    let id = |value: &Value| number(value).and_then(|id| u32::try_from(id).ok()).filter(|&id| (id as usize) < vocab);
    match row.get(column).and_then(Value::as_array).and_then(|list| list.iter().map(id).collect::<Option<Vec<_>>>()) {
        Some(ids) => Ok(ids),
        None => bad_input!("`{column}` must be a list of token ids from 0 to {}", vocab.saturating_sub(1)),
    }
}

/// Converts a JSON number to an integer. A float such as 3.0 is accepted, since some files store integers as floats.
fn number(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_f64().filter(|x| x.fract() == 0.0).map(|x| x as i64))
}

/// A row's inputs to the chat template besides messages: `tools` (a list of JSON schemas, or a JSON string of one) and
/// `chat_template_kwargs`.
#[derive(Debug)]
pub struct OfTemplate {
    tools: Option<Vec<Value>>,
    kwargs: Map<String, Value>,
}

impl OfTemplate {
    /// Reads the two columns of a row; `kwargs` are the chat template's arguments for all rows.
    pub fn of(columns: &Map<String, Value>, kwargs: &Map<String, Value>) -> anyhow::Result<OfTemplate> {
        let tools = match columns.get("tools") {
            None | Some(Value::Null) => None,
            Some(Value::Array(tools)) => Some(tools.clone()),
            Some(Value::String(text)) => match serde_json::from_str(text) {
                Ok(Value::Array(tools)) => Some(tools),
                Ok(Value::Null) => None,
                _ => return Err(not_tools(text)),
            },
            Some(other) => return Err(not_tools(other)),
        };
        let mut kwargs = kwargs.clone();
        match columns.get("chat_template_kwargs") {
            None | Some(Value::Null) => {}
            Some(Value::Object(own)) => kwargs.extend(own.clone()),
            Some(other) => bad_input!("`chat_template_kwargs` must be an object, but is {other}"),
        }
        Ok(OfTemplate { tools, kwargs })
    }

    /// A copy of `encoder` that uses this row's tools and arguments.
    pub fn encoder<'a>(&'a self, encoder: &PromptEncoder<'a>) -> PromptEncoder<'a> {
        PromptEncoder { kwargs: &self.kwargs, tools: self.tools.as_deref(), ..*encoder }
    }
}

fn not_tools(what: impl std::fmt::Display) -> anyhow::Error {
    BadInput::new(format!("`tools` must be a list of JSON schemas, or a JSON string of one, but is {what:.80}"))
}

#[cfg(test)]
mod tests;
