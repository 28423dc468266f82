//! Encodes the prompts of a dataset as token ids.

use super::notices::{Looking, Notices};
use super::supervised::OfTemplate;
use super::{Dataset, Example};
use crate::bad_input;
use crate::config::TEMPLATE_COLUMNS;
use crate::error::{BadInput, paragraph};
use crate::stop::StopSignal;
use model::PromptSet;
use model::chat::PromptEncoder;
use rewards::Content;
use serde_json::{Map, Value};
use std::sync::Arc;

/// A prompt: token ids for the model, text and columns for the rewards.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// The index of the prompt's row in the dataset, from 0.
    pub row: usize,
    /// The prompt's token ids. Equal prompts of a dataset share one list.
    pub tokens: Arc<model::Prompt>,
    /// The prompt's text or messages.
    pub content: Content,
    /// The row's other columns, which rewards read.
    pub columns: Map<String, Value>,
}

/// The prompts of a dataset, encoded as token ids.
#[derive(Clone, Debug, Default)]
pub struct Encoded {
    /// The encoded prompts in the dataset's order, without prompts above the limit.
    pub prompts: Vec<Arc<Prompt>>,
    /// The number of prompts that were skipped because they have more than `max_prompt_length` tokens.
    pub left_out: usize,
    /// Notices about the prompts, for the log.
    pub notices: Notices,
}

/// Encodes all prompts of `data`. A prompt with more than `max_prompt_length` tokens is skipped and counted. A prompt
/// that leaves no room for `room` more tokens in a sequence of `context` tokens is an error. Prompts are never
/// truncated.
pub fn encode_all(
    encoder: &PromptEncoder<'_>,
    data: &Dataset,
    max_prompt_length: Option<usize>,
    context: usize,
    room: usize,
    stop: &StopSignal,
) -> anyhow::Result<Encoded> {
    let (mut encoded, mut prompts) = (Encoded::default(), PromptSet::default());
    let mut looking = Looking::new(encoder);
    for example in &data.examples {
        stop.check()?;
        let (tokenizer, bytes) = (encoder.tokenizer, example.prompt.text().len());
        if max_prompt_length.is_some_and(|most| tokenizer.is_beyond(bytes, most)) {
            encoded.left_out += 1;
            continue;
        }
        if tokenizer.is_beyond(bytes, context) {
            bad_input!(
                "{}, row {}: the prompt has {bytes} bytes, too many for the context of {context} tokens (a token has \
                 at most {} bytes): set max_prompt_length to skip such rows",
                data.name,
                example.row + 1,
                tokenizer.longest_token()
            );
        }
        let bad = |e: &dyn std::fmt::Display| BadInput::new(format!("{}, row {}: {e}", data.name, example.row + 1));
        let row_template = template_of_row(encoder, data, example).map_err(|e| bad(&paragraph(&e)))?;
        let own = row_template.encoder(encoder);
        let text = own.render(&example.prompt).map_err(|e| bad(&e))?;
        let ids = own.encode_rendered(&example.prompt, &text).map_err(|e| bad(&e))?;
        looking.look(&own, example.row, &example.prompt, &text);
        if max_prompt_length.is_some_and(|most| ids.len() > most) {
            encoded.left_out += 1;
            continue;
        }
        if ids.is_empty() {
            bad_input!("{}, row {}: the prompt is empty: it has no tokens", data.name, example.row + 1);
        }
        if ids.len() + room > context {
            let fix = match (context.saturating_sub(room), context.saturating_sub(ids.len())) {
                (0, 0) => format!(
                    "lower max_completion_length below {context} and set max_prompt_length to the rest, or raise \
                     max_model_len up to the model's context"
                ),
                (0, left) => format!("lower max_completion_length to {left} (less if other prompts are longer)"),
                (fits, 0) => format!("set max_prompt_length = {fits} to skip such rows"),
                (fits, left) => format!(
                    "lower max_completion_length to {left}, or set max_prompt_length = {fits} to skip such rows"
                ),
            };
            bad_input!(
                "{}, row {}: the prompt's {} tokens and max_completion_length = {room} together exceed the context of \
                 {context} tokens: {fix}",
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
            "{}: every prompt has more than max_prompt_length = {} tokens: raise max_prompt_length",
            data.name,
            max_prompt_length.unwrap_or(0)
        );
    }
    encoded.notices = looking.end(&data.name);
    Ok(encoded)
}

/// The tools and arguments of a prompt's row for the chat template.
fn template_of_row(encoder: &PromptEncoder<'_>, data: &Dataset, example: &Example) -> anyhow::Result<OfTemplate> {
    let is_passed = |name: &&str| data.template_columns.iter().any(|passed| passed == name);
    let passed = TEMPLATE_COLUMNS.into_iter().filter(is_passed);
    let columns = passed.filter_map(|name| Some((name.to_owned(), example.columns.get(name)?.clone()))).collect();
    OfTemplate::of(&columns, encoder.kwargs)
}
