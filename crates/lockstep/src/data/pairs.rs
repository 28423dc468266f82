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
            bad_input!("{}: all {} pairs are longer than max_length = {most}: raise it", spec.name, pairs.left_out);
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
                    "there is no column `{column}`; a pair has the columns `chosen` and `rejected`, and may have `{}` and \
                     `margin`; here are {}. Rename one with columns = {{ {name} = \"…\" }}",
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
            _ => common_beginning(chosen, rejected)?,
        };
        Ok(Preference { prompt: spec.with_system(prompt), chosen, rejected, margin })
    }
}

/// Splits off what both begin with: messages of conversations; characters of texts, without a space at the end.
fn common_beginning(chosen: Content, rejected: Content) -> anyhow::Result<(Content, Content, Content)> {
    match (chosen, rejected) {
        (Content::Text(chosen), Content::Text(rejected)) => {
            let (c, r): (Vec<char>, Vec<char>) = (chosen.chars().collect(), rejected.chars().collect());
            let mut at = common(&c, &r);
            if at > 0 && c[at - 1] == ' ' {
                at -= 1;
            }
            let text = |chars: &[char]| Content::Text(chars.iter().collect());
            Ok((text(&c[..at]), text(&c[at..]), text(&r[at..])))
        }
        (Content::Messages(c), Content::Messages(r)) => {
            let at = common(&c, &r);
            if at == 0 {
                bad_input!(
                    "there is no prompt, and `chosen` and `rejected` do not begin with the same message: give a `prompt` column"
                );
            }
            let messages = |messages: &[Value]| Content::Messages(messages.to_vec());
            Ok((messages(&c[..at]), messages(&c[at..]), messages(&r[at..])))
        }
        _ => bad_input!("one of `chosen` and `rejected` is a text and the other a conversation"),
    }
}

/// Elements that both begin with, but never all of either.
fn common<T: PartialEq>(a: &[T], b: &[T]) -> usize {
    let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    same.min(a.len().min(b.len()).saturating_sub(1))
}

/// The ids of a pair. Where a token spans the end of the prompt and the beginning of an answer, it is the answer's.
fn encode_pair(encoder: &PromptEncoder<'_>, preference: &Preference) -> anyhow::Result<Pair> {
    let Preference { prompt, chosen, rejected, margin } = preference;
    let (chosen, rejected) = (
        encoder.encode_answered(prompt, chosen).or_bad_input()?,
        encoder.encode_answered(prompt, rejected).or_bad_input()?,
    );
    if chosen == rejected {
        bad_input!(
            "`chosen` and `rejected` are the same tokens: there is nothing to learn from such a pair, remove it"
        );
    }
    let alone = encoder.encode(prompt).or_bad_input()?;
    let shared = alone.iter().zip(&chosen).zip(&rejected).take_while(|((p, c), r)| p == c && p == r).count();
    let shared = shared.min(chosen.len().min(rejected.len()).saturating_sub(1));
    if shared == 0 {
        bad_input!("the prompt has no token: give a `prompt` column, or answers that begin with the same text");
    }
    Ok(Pair {
        prompt: Prompt::new(&chosen[..shared]),
        chosen: chosen[shared..].to_vec(),
        rejected: rejected[shared..].to_vec(),
        margin: *margin,
    })
}

#[cfg(test)]
mod tests;
