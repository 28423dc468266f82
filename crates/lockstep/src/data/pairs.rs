//! Preference pairs: a prompt with a better and a worse answer, from rows to token ids.
//!
//! A row has the columns `chosen` and `rejected` (text or chat messages), and may have `prompt` and `margin`. Without a
//! prompt, or with one that is no conversation where the answers are, the prompt is what both begin with, as in TRL.
//! It knows no model and nothing of what is learned from a pair.

use super::rows::Row;
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

/// A pair as ids: the prompt, and what follows it in either answer. No list is empty, and the answers differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// What both share.
    pub prompt: Arc<Prompt>,
    /// What follows in the better one.
    pub chosen: Vec<u32>,
    /// What follows in the worse one.
    pub rejected: Vec<u32>,
    /// How much better it is, where the data says so.
    pub margin: Option<f32>,
}

impl Pair {
    /// As trainers take it.
    pub fn into_preference_pair(self) -> PreferencePair {
        let Pair { prompt, chosen, rejected, margin } = self;
        PreferencePair { prompt, chosen: chosen.into(), rejected: rejected.into(), margin: margin.unwrap_or(0.0) }
    }
}

/// The pairs of a dataset.
#[derive(Clone, Debug)]
pub struct Pairs {
    /// Those that are used, in the dataset's order.
    pub all: Vec<Pair>,
    /// SHA-256 of the data.
    pub hash: String,
    /// How many were left out because an answer is longer than allowed.
    pub left_out: usize,
}

/// A pair as the data says it.
#[derive(Clone, Debug, PartialEq)]
pub struct Preference {
    /// The prompt.
    pub prompt: Content,
    /// The better answer.
    pub chosen: Content,
    /// The worse answer.
    pub rejected: Content,
    /// How much better it is.
    pub margin: Option<f32>,
}

impl Pairs {
    /// Reads and encodes `spec`. A pair of which a side, prompt included, has more than `most` tokens is left out and
    /// counted: nothing is ever cut.
    pub fn load(spec: &DatasetSpec, encoder: &PromptEncoder<'_>, most: usize) -> anyhow::Result<Pairs> {
        let mut pairs = Pairs { all: Vec::new(), hash: String::new(), left_out: 0 };
        let (mut number, mut prompts) = (0, PromptSet::default());
        pairs.hash = spec.read(&mut |row, place| {
            let preferences = match spec.task {
                Some(Task::Gsm8kSolutions) => solutions::preferences(spec, number, &row),
                _ => Preference::of_row(spec, &row).map(|p| vec![p]),
            };
            number += 1;
            spec.stop.check()?;
            let at = |e: anyhow::Error| BadInput::new(format!("{}: {}", place(), paragraph(&e)));
            for preference in preferences.map_err(at)? {
                let mut pair = encode_pair(encoder, &preference).map_err(at)?;
                pair.prompt = prompts.share(pair.prompt);
                if pair.prompt.ids.len() + pair.chosen.len().max(pair.rejected.len()) <= most {
                    pairs.all.push(pair);
                } else {
                    pairs.left_out += 1;
                }
            }
            Ok(())
        })?;
        if pairs.all.is_empty() && pairs.left_out > 0 {
            bad_input!("{}: every pair is longer than max_length = {most}: raise it", spec.name);
        }
        if pairs.all.is_empty() {
            bad_input!("the dataset {} has no pair", spec.name);
        }
        Ok(pairs)
    }
}

impl Preference {
    /// From the columns `prompt`, `chosen`, `rejected` and `margin`, or those that `columns` names instead.
    fn of_row(spec: &DatasetSpec, row: &Row) -> anyhow::Result<Preference> {
        let named = |name: &str| spec.columns.iter().find(|(new, _)| new == name).map(|(_, old)| old.clone());
        let answer = |name: &str| -> anyhow::Result<Content> {
            let column = named(name).unwrap_or_else(|| name.to_owned());
            let Some(value) = row.get(&column) else {
                bad_input!(
                    "there is no column `{column}`; a pair has the columns `chosen` and `rejected`, and may have `{}` \
                     and `margin`; here are {}. Rename one with columns = {{ {name} = \"…\" }}",
                    spec.prompt_column,
                    row.keys().map(|k| format!("`{k}`")).collect::<Vec<_>>().join(", ")
                );
            };
            Content::read(value).map_err(|e| BadInput::new(format!("`{column}`: {e}")))
        };
        let (chosen, rejected) = (answer("chosen")?, answer("rejected")?);
        for (name, content) in [("chosen", &chosen), ("rejected", &rejected)] {
            if matches!(content, Content::Text(text) if text.is_empty()) {
                bad_input!("`{name}` is empty");
            }
        }
        if chosen == rejected {
            bad_input!("`chosen` and `rejected` are the same: there is nothing to learn from such a pair, remove it");
        }
        let margin = match row.get(&named("margin").unwrap_or_else(|| "margin".to_owned())) {
            None | Some(Value::Null) => None,
            Some(value) => match value.as_f64().map(|x| x as f32).filter(|x| x.is_finite()) {
                Some(margin) => Some(margin),
                None => bad_input!("`margin` must be a number, but is {value}"),
            },
        };
        let prompt = match row.get(&spec.prompt_column) {
            None | Some(Value::Null) => None,
            Some(value) => {
                Some(Content::read(value).map_err(|e| BadInput::new(format!("`{}`: {e}", spec.prompt_column)))?)
            }
        };
        let conversation = |content: &Content| matches!(content, Content::Messages(_));
        let (prompt, chosen, rejected) = match prompt {
            Some(prompt) if conversation(&prompt) == conversation(&chosen) => (prompt, chosen, rejected),
            _ => Content::split_common(chosen, rejected).map_err(BadInput::new)?.into(),
        };
        Ok(Preference { prompt: spec.with_system(prompt), chosen, rejected, margin })
    }
}

/// The ids of a pair.
fn encode_pair(encoder: &PromptEncoder<'_>, preference: &Preference) -> anyhow::Result<Pair> {
    let Preference { prompt, chosen, rejected, margin } = preference;
    let [prompt, chosen, rejected] = encoder.encode_pair(prompt, chosen, rejected).or_bad_input()?;
    Ok(Pair { prompt: Prompt::new(prompt), chosen, rejected, margin: *margin })
}

#[cfg(test)]
mod tests;
