//! Compares a recorded group with the recomputed group, and returns the first bit that differs. Parts are compared in
//! the order in which they are computed: weights, tokens, scores, columns of other models, advantages.
//!
//! Every field of a group is compared. The functions here destructure groups without `..`, so a new field is either
//! compared or a compile error.

use super::report::{Difference, f32_bits, f64_bits};
use crate::rollouts::wire::{Completion, Group};
use model::Columns;
use model::columns::{SAMPLER_LOGPS, Values};
use serde_json::Value;
use std::fmt::{Debug, Display};
use train::Advantage;

/// The parts of groups that are left out of a comparison.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeftOut<'a> {
    /// Rewards whose scores come from the record.
    pub rewards: &'a [String],
    /// The texts of errors, which a different build may word differently.
    pub words: bool,
}

/// The first difference between the recorded group and the recomputed one.
pub fn difference(recorded: &Group, remade: &Group, left_out: LeftOut<'_>) -> Option<Difference> {
    let found = whole(recorded, remade)
        .or_else(|| each(recorded, remade, tokens))
        .or_else(|| each(recorded, remade, |a, b| scores(a, b, recorded, left_out.rewards)))
        .or_else(|| problems(&recorded.problems, &remade.problems, left_out.words))
        .or_else(|| each(recorded, remade, columns))
        .or_else(|| each(recorded, remade, advantages))?;
    Some(Difference { step: remade.step, group: Some(remade.group), ..found })
}

fn differs(kind: impl Into<String>, recorded: impl Display, remade: impl Display) -> Difference {
    let (recorded, remade) = (recorded.to_string(), remade.to_string());
    Difference { kind: kind.into(), recorded, remade, ..Difference::default() }
}

fn unequal<T: PartialEq + Debug>(kind: &str, recorded: &T, remade: &T) -> Option<Difference> {
    (recorded != remade).then(|| differs(kind, format_args!("{recorded:?}"), format_args!("{remade:?}")))
}

/// Compares the values that all completions of a group share, except its problems.
fn whole(a: &Group, b: &Group) -> Option<Difference> {
    let Group {
        group,
        step,
        prompt_ids,
        prompt_id,
        prompt,
        prompt_in_batch,
        prompt_columns,
        dataset,
        sampling,
        lineage,
        reward_names,
        reward_weights,
        problems: _,
        completions,
    } = b;
    unequal("number of the group", &a.group, group)
        .or_else(|| unequal("lineage", &a.lineage, lineage))
        .or_else(|| unequal("step", &a.step, step))
        .or_else(|| unequal("row of the data", &a.prompt_id, prompt_id))
        .or_else(|| list("token of the prompt", &a.prompt_ids, prompt_ids, ToString::to_string))
        .or_else(|| unequal("prompt", &a.prompt, prompt))
        .or_else(|| unequal("index of the prompt in its batch", &a.prompt_in_batch, prompt_in_batch))
        .or_else(|| named_columns("columns of the prompt", &a.prompt_columns, prompt_columns))
        .or_else(|| unequal("sampling settings", &a.sampling, sampling))
        .or_else(|| unequal("columns of the data", &a.dataset, dataset))
        .or_else(|| unequal("names of rewards", &a.reward_names, reward_names))
        .or_else(|| list("weight of a reward", &a.reward_weights, reward_weights, |&x| f64_bits(x)))
        .or_else(|| unequal("number of completions", &a.completions.len(), &completions.len()))
}

/// Compares the errors of rewards. With `without_words`, messages and examples are ignored.
pub(super) fn problems(a: &[Value], b: &[Value], without_words: bool) -> Option<Difference> {
    let plain = |problem: &Value| {
        let mut problem = problem.clone();
        if let (true, Some(fields)) = (without_words, problem.as_object_mut()) {
            fields.retain(|name, _| !["message", "example"].contains(&&**name));
        }
        problem
    };
    let [a, b] = [a, b].map(|all| all.iter().map(plain).collect::<Vec<_>>());
    let at = (0..a.len().max(b.len())).find(|&at| a.get(at) != b.get(at))?;
    let show = |all: &[Value]| all.get(at).map_or_else(|| "none".to_owned(), ToString::to_string);
    Some(differs("problem of a reward", show(&a), show(&b)))
}

fn each(a: &Group, b: &Group, compare: impl Fn(&Completion, &Completion) -> Option<Difference>) -> Option<Difference> {
    let pairs = a.completions.iter().zip(&b.completions).enumerate();
    pairs.filter_map(|(place, (a, b))| Some(Difference { completion: Some(place), ..compare(a, b)? })).next()
}

/// Compares two lists with one value per token.
fn list<T: PartialEq>(kind: &str, a: &[T], b: &[T], show: impl Fn(&T) -> String) -> Option<Difference> {
    let at = a.iter().zip(b).position(|(a, b)| a != b).unwrap_or(a.len().min(b.len()));
    let value = |list: &[T]| list.get(at).map_or_else(|| "none".to_owned(), &show);
    (a.len() != b.len() || at < a.len()).then(|| Difference { token: Some(at), ..differs(kind, value(a), value(b)) })
}

/// Compares two lists of floats by their bits.
fn floats(kind: &str, a: &[f32], b: &[f32]) -> Option<Difference> {
    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    list(kind, &bits(a), &bits(b), |&x| f32_bits(f32::from_bits(x)))
}

/// Compares the sampled values.
fn tokens(a: &Completion, b: &Completion) -> Option<Difference> {
    // Scores, columns and advantages of all completions are compared afterwards.
    let Completion {
        generation,
        ids,
        sampled,
        loss_mask,
        versions,
        columns: _,
        finish_reason,
        advantage: _,
        rewards: _,
        steps: _,
        content,
        extra: _,
        fork,
    } = b;
    let logps = |c: &Completion| c.columns.sampler_logps().unwrap_or_default().to_vec();
    list("token", &a.ids, ids, ToString::to_string)
        .or_else(|| floats("log-probability", &logps(a), &logps(b)))
        .or_else(|| list("version of the weights", &a.versions, versions, ToString::to_string))
        .or_else(|| list("sampled", &a.sampled, sampled, ToString::to_string))
        .or_else(|| unequal("finish reason", &a.finish_reason, finish_reason))
        .or_else(|| unequal("generation", &a.generation, generation))
        .or_else(|| list("mask", &a.loss_mask, loss_mask, ToString::to_string))
        .or_else(|| unequal("text of the completion", &a.content, content))
        .or_else(|| unequal("fork", &a.fork, fork))
}

fn scores(a: &Completion, b: &Completion, group: &Group, recorded: &[String]) -> Option<Difference> {
    let show = |score: &Option<f64>| score.map_or_else(|| "none".to_owned(), f64_bits);
    let bits = |score: &Option<f64>| score.map(f64::to_bits);
    if a.rewards.len() != b.rewards.len() {
        return unequal("number of scores", &a.rewards.len(), &b.rewards.len());
    }
    for (name, (a, b)) in group.reward_names.iter().zip(a.rewards.iter().zip(&b.rewards)) {
        if !recorded.contains(name) && bits(a) != bits(b) {
            return Some(differs(format!("score of `{name}`"), show(a), show(b)));
        }
    }
    let steps = |c: &Completion| format!("{:?}", c.steps);
    unequal("scores of steps", &steps(a), &steps(b)).or_else(|| unequal("columns of rewards", &a.extra, &b.extra))
}

/// Compares the columns computed by other models: reference model, old policy, value model.
fn columns(a: &Completion, b: &Completion) -> Option<Difference> {
    named_columns("columns", &a.columns, &b.columns)
}

fn named_columns(kind: &str, a: &Columns, b: &Columns) -> Option<Difference> {
    let names = |columns: &Columns| columns.iter().map(|(name, _)| name.to_owned()).collect::<Vec<_>>();
    if let Some(found) = unequal(kind, &names(a), &names(b)) {
        return Some(found);
    }
    let pairs = a.iter().zip(b.iter()).filter(|((name, _), _)| *name != SAMPLER_LOGPS);
    pairs
        .filter_map(|((name, a), (_, b))| match (&a.values, &b.values) {
            _ if a.width != b.width => unequal(&format!("width of {name}"), &a.width, &b.width),
            (Values::F32(a), Values::F32(b)) => floats(name, a, b),
            (Values::U32(a), Values::U32(b)) => list(name, a, b, ToString::to_string),
            _ => Some(differs(name, "values of another type", "")),
        })
        .next()
}

fn advantages(a: &Completion, b: &Completion) -> Option<Difference> {
    let values = |c: &Completion| match &c.advantage {
        Some(Advantage::Sequence(one)) => vec![*one],
        Some(Advantage::Tokens(each)) => each.clone(),
        None => Vec::new(),
    };
    let is_per_token = |c: &Completion| matches!(c.advantage, Some(Advantage::Tokens(_)));
    match floats("advantage", &values(a), &values(b)) {
        Some(found) => {
            Some(Difference { token: found.token.filter(|_| [a, b].into_iter().any(is_per_token)), ..found })
        }
        // The completion has one token, so both forms have the same number.
        None => unequal("advantage of each token", &is_per_token(a), &is_per_token(b)),
    }
}

#[cfg(test)]
mod tests;
