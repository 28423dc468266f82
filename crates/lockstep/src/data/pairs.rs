//! Preference pairs: reads rows with a prompt, a better and a worse answer, and encodes them as token ids.
//!
//! A row has the columns `chosen` and `rejected` (text or chat messages), and may have `prompt` and `margin`. The
//! prompt of a row without one, or with a text prompt and conversations as answers, is the common beginning of both
//! answers, as in TRL. A row may instead have token ids in `chosen_ids` and `rejected_ids`, and in `prompt_ids` if it
//! has a prompt. This module depends neither on models nor on losses.

use super::Row;
use super::notices::{Looking, Notices};
use super::preference::Preference;
use super::supervised::{OfTemplate, ids};
use super::{DatasetSpec, solutions};
use crate::bad_input;
use crate::config::Task;
use crate::error::{BadInput, OrBadInput, paragraph};
use model::chat::PromptEncoder;
use model::{Prompt, PromptSet};
use rewards::Content;
use serde_json::Value;
use std::sync::Arc;
use train::PreferencePair;

/// Columns of token ids, as TRL's preprocessing writes them.
const PROMPT_IDS: &str = "prompt_ids";
const CHOSEN_IDS: &str = "chosen_ids";
const REJECTED_IDS: &str = "rejected_ids";

/// A preference pair as token ids. No list is empty, and the two answers differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// The prompt, which both answers follow.
    pub prompt: Arc<Prompt>,
    /// The better answer.
    pub chosen: Vec<u32>,
    /// The worse answer.
    pub rejected: Vec<u32>,
    /// How much better the chosen answer is, if the data has a margin.
    pub margin: Option<f32>,
}

impl Pair {
    /// Converts the pair to the trainer's type; a missing margin becomes 0.
    pub fn into_preference_pair(self) -> PreferencePair {
        let Pair { prompt, chosen, rejected, margin } = self;
        PreferencePair { prompt, chosen: chosen.into(), rejected: rejected.into(), margin: margin.unwrap_or(0.0) }
    }
}

/// All preference pairs of a dataset.
#[derive(Clone, Debug)]
pub struct Pairs {
    /// The encoded pairs in the dataset's order, without pairs above the limit.
    pub all: Vec<Pair>,
    /// SHA-256 of the data files, in hexadecimal.
    pub hash: String,
    /// The number of pairs that were skipped because an answer is too long.
    pub left_out: usize,
    /// Notices for the user about the pairs.
    pub notices: Notices,
}

impl Pairs {
    /// Reads the dataset `spec` and encodes its pairs. A pair is skipped and counted if its prompt with either answer
    /// has more than `most` tokens. Answers are never truncated. `change` may change a kept pair or refuse it; an error
    /// of `change` is reported with the row's place.
    ///
    /// With `needs_prompt`, both conversations must begin with the same message, which becomes the prompt. Reward
    /// models do not need this, since they score whole conversations.
    pub fn load(
        spec: &DatasetSpec,
        encoder: &PromptEncoder<'_>,
        most: usize,
        needs_prompt: bool,
        change: impl Fn(&mut Pair) -> anyhow::Result<()>,
    ) -> anyhow::Result<Pairs> {
        let mut pairs = Pairs { all: Vec::new(), hash: String::new(), left_out: 0, notices: Notices::default() };
        let mut looking = Looking::new(encoder);
        let (mut number, mut prompts) = (0, PromptSet::default());
        pairs.hash = spec.read(&mut |row, place| {
            let row = with_present_names(row);
            let encoded = match spec.task {
                Some(Task::Gsm8kSolutions) => {
                    let preferences = solutions::preferences(spec, number, &row);
                    preferences.and_then(|all| all.iter().map(|one| encode_pair(encoder, one, most)).collect())
                }
                _ => encode_row(spec, encoder, &row, (most, needs_prompt), &mut |own, pair| {
                    look(&mut looking, own, number, pair)
                })
                .map(|pair| vec![pair]),
            };
            number += 1;
            spec.stop.check()?;
            let at = |e: anyhow::Error| BadInput::new(format!("{}: {}", place(), paragraph(&e)));
            let encoded: Vec<Option<Pair>> = encoded.map_err(at)?;
            for pair in encoded {
                let Some(mut pair) = pair else {
                    pairs.left_out += 1;
                    continue;
                };
                pair.prompt = prompts.share(pair.prompt);
                if pair.prompt.ids.len() + pair.chosen.len().max(pair.rejected.len()) <= most {
                    change(&mut pair).map_err(at)?;
                    pairs.all.push(pair);
                } else {
                    pairs.left_out += 1;
                }
            }
            Ok(())
        })?;
        pairs.notices = looking.end(&spec.name);
        if pairs.all.is_empty() && pairs.left_out > 0 {
            bad_input!("{}: every pair is longer than max_length = {most}: raise max_length", spec.name);
        }
        if pairs.all.is_empty() {
            bad_input!("the dataset {} contains no pairs", spec.name);
        }
        Ok(pairs)
    }
}

impl Preference {
    /// Reads the pair in the columns `prompt`, `chosen`, `rejected` and `margin`, or in the columns that `columns`
    /// names instead.
    fn from_row(spec: &DatasetSpec, row: &Row, needs_prompt: bool) -> anyhow::Result<Preference> {
        let named = |name: &str| spec.columns.iter().find(|(new, _)| new == name).map(|(_, old)| old.clone());
        let answer = |name: &str| -> anyhow::Result<Content> {
            let column = named(name).unwrap_or_else(|| name.to_owned());
            let Some(value) = row.get(&column) else {
                bad_input!(
                    "no column `{column}`; a pair has the columns `chosen` and `rejected`, and may have `{}` and \
                     `margin`; the row has {}. Rename one with columns = {{ {name} = \"…\" }}",
                    spec.prompt_column,
                    row.keys().map(|k| format!("`{k}`")).collect::<Vec<_>>().join(", ")
                );
            };
            spec.content(value).map_err(|e| BadInput::new(format!("`{column}`: {e}")))
        };
        let (chosen, rejected) = (answer("chosen")?, answer("rejected")?);
        if chosen == rejected {
            bad_input!("`chosen` and `rejected` are the same, so nothing can be learned from this pair: remove it");
        }
        let margin = margin(spec, row)?;
        let prompt = match row.get(&spec.prompt_column) {
            None | Some(Value::Null) => None,
            Some(value) => {
                Some(spec.content(value).map_err(|e| BadInput::new(format!("`{}`: {e}", spec.prompt_column)))?)
            }
        };
        let conversation = |content: &Content| matches!(content, Content::Messages(_));
        let (prompt, chosen, rejected) = match prompt {
            Some(prompt) if conversation(&prompt) == conversation(&chosen) => (prompt, chosen, rejected),
            None if !needs_prompt && conversation(&chosen) && conversation(&rejected) => {
                match Content::split_common(chosen.clone(), rejected.clone()) {
                    Ok(parts) => parts.into(),
                    Err(_) => {
                        return Ok(Preference { prompt: Content::Messages(Vec::new()), chosen, rejected, margin });
                    }
                }
            }
            _ => Content::split_common(chosen, rejected).map_err(BadInput::new)?.into(),
        };
        Ok(Preference { prompt: spec.with_system(prompt), chosen, rejected, margin })
    }
}

/// Encodes the pair of one row: strings, conversations or token ids. `None` if its text is certainly longer than `most`
/// tokens. `look` is called with each pair of strings or conversations, and the encoder for its row.
fn encode_row(
    spec: &DatasetSpec,
    encoder: &PromptEncoder<'_>,
    row: &Row,
    (most, needs_prompt): (usize, bool),
    look: &mut dyn FnMut(&PromptEncoder<'_>, &Preference),
) -> anyhow::Result<Option<Pair>> {
    if !(row.contains_key(CHOSEN_IDS) && row.contains_key(REJECTED_IDS)) {
        let row_template = OfTemplate::of(row, encoder.kwargs)?;
        let (own, pair) = (row_template.encoder(encoder), Preference::from_row(spec, row, needs_prompt)?);
        let encoded = encode_pair(&own, &pair, most)?;
        if encoded.is_some() {
            look(&own, &pair);
        }
        return Ok(encoded);
    }
    let vocab = encoder.tokenizer.vocab_size();
    let [mut chosen, mut rejected] = [ids(row, CHOSEN_IDS, vocab)?, ids(row, REJECTED_IDS, vocab)?];
    if chosen == rejected {
        bad_input!(
            "`{CHOSEN_IDS}` and `{REJECTED_IDS}` are the same, so nothing can be learned from this pair: remove \
            it"
        );
    }
    let prompt = if row.contains_key(PROMPT_IDS) {
        ids(row, PROMPT_IDS, vocab)?
    } else {
        let shared = chosen.iter().zip(&rejected).take_while(|(c, r)| c == r).count();
        let shared = shared.min(chosen.len().min(rejected.len()).saturating_sub(1));
        rejected.drain(..shared);
        chosen.drain(..shared).collect()
    };
    if prompt.is_empty() {
        bad_input!("the prompt has no tokens: add `{PROMPT_IDS}`, or let both answers begin with the same ids");
    }
    if chosen.is_empty() || rejected.is_empty() {
        bad_input!("`{CHOSEN_IDS}` or `{REJECTED_IDS}` is empty");
    }
    Ok(Some(Pair { prompt: Prompt::new(prompt), chosen, rejected, margin: margin(spec, row)? }))
}

/// Counts the conversation that ends with the chosen answer.
fn look(looking: &mut Looking<'_>, encoder: &PromptEncoder<'_>, row: usize, pair: &Preference) {
    let (Content::Messages(prompt), Content::Messages(chosen)) = (&pair.prompt, &pair.chosen) else { return };
    let whole = [&prompt[..], chosen].concat();
    if let Ok(text) = encoder.render_whole(&whole) {
        looking.look(encoder, row, &Content::Messages(whole), &text);
    }
}

/// Renames columns of ids from TRL's former names to its current names.
fn with_present_names(mut row: Row) -> Row {
    for (former, name) in [("chosen_input_ids", CHOSEN_IDS), ("rejected_input_ids", REJECTED_IDS)] {
        if !row.contains_key(name)
            && let Some(ids) = row.shift_remove(former)
        {
            row.insert(name.to_owned(), ids);
        }
    }
    row
}

/// The number in the column `margin`, or in the column that `columns` names instead.
fn margin(spec: &DatasetSpec, row: &Row) -> anyhow::Result<Option<f32>> {
    let named = spec.columns.iter().find(|(new, _)| new == "margin").map_or("margin", |(_, old)| old);
    match row.get(named) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_f64().map(|x| x as f32).filter(|x| x.is_finite()) {
            Some(margin) => Ok(Some(margin)),
            None => bad_input!("`margin` must be a number, but is {value}"),
        },
    }
}

/// Encodes a pair as token ids. `None` if its text is certainly longer than `most` tokens.
fn encode_pair(encoder: &PromptEncoder<'_>, preference: &Preference, most: usize) -> anyhow::Result<Option<Pair>> {
    let Preference { prompt, chosen, rejected, margin } = preference;
    let [bytes, chosen_bytes, rejected_bytes] = [prompt, chosen, rejected].map(|content| content.text().len());
    if encoder.tokenizer.is_beyond(bytes + chosen_bytes.max(rejected_bytes), most) {
        return Ok(None);
    }
    let [prompt, chosen, rejected] = encoder.encode_pair(prompt, chosen, rejected).or_bad_input()?;
    Ok(Some(Pair { prompt: Prompt::new(prompt), chosen, rejected, margin: *margin }))
}

#[cfg(test)]
mod tests;
