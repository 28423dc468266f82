//! Compares a recorded group with the same group made again, and finds the first bit that differs. The parts are
//! compared in the order in which they are made: weights, tokens, scores, columns of other models, advantages.

use super::report::{Difference, f32_bits, f64_bits};
use crate::rollouts::wire::{Completion, Group};
use model::Columns;
use model::columns::{SAMPLER_LOGPS, Values};
use std::fmt::{Debug, Display};
use train::Advantage;

/// The first difference between the recorded group and the one made again. The rewards in `recorded_rewards` are left
/// out, because their scores were taken from the record.
pub fn difference(recorded: &Group, remade: &Group, recorded_rewards: &[String]) -> Option<Difference> {
    let of_group = Difference { step: remade.step, group: Some(remade.id), ..Difference::default() };
    let found = whole(recorded, remade)
        .or_else(|| each(recorded, remade, tokens))
        .or_else(|| each(recorded, remade, |a, b| scores(a, b, recorded, recorded_rewards)))
        .or_else(|| each(recorded, remade, columns))
        .or_else(|| each(recorded, remade, advantages))?;
    Some(Difference { step: of_group.step, group: of_group.group, ..found })
}

fn differs(kind: impl Into<String>, recorded: impl Display, remade: impl Display) -> Difference {
    let (recorded, remade) = (recorded.to_string(), remade.to_string());
    Difference { kind: kind.into(), recorded, remade, ..Difference::default() }
}

fn unequal<T: PartialEq + Debug>(kind: &str, recorded: &T, remade: &T) -> Option<Difference> {
    (recorded != remade).then(|| differs(kind, format_args!("{recorded:?}"), format_args!("{remade:?}")))
}

/// Compares what all completions of a group have in common.
fn whole(a: &Group, b: &Group) -> Option<Difference> {
    unequal("lineage", &a.lineage, &b.lineage)
        .or_else(|| unequal("step", &a.step, &b.step))
        .or_else(|| unequal("row of the data", &a.prompt_id, &b.prompt_id))
        .or_else(|| list("token of the prompt", &a.prompt_ids, &b.prompt_ids, ToString::to_string))
        .or_else(|| unequal("sampling settings", &a.sampling, &b.sampling))
        .or_else(|| unequal("columns of the data", &a.dataset, &b.dataset))
        .or_else(|| unequal("names of rewards", &a.reward_names, &b.reward_names))
        .or_else(|| list("weight of a reward", &a.reward_weights, &b.reward_weights, |&x| f64_bits(x)))
        .or_else(|| unequal("number of completions", &a.completions.len(), &b.completions.len()))
}

fn each(a: &Group, b: &Group, compare: impl Fn(&Completion, &Completion) -> Option<Difference>) -> Option<Difference> {
    let pairs = a.completions.iter().zip(&b.completions).enumerate();
    pairs.filter_map(|(place, (a, b))| Some(Difference { completion: Some(place), ..compare(a, b)? })).next()
}

/// Compares two lists with one value for each token.
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

fn tokens(a: &Completion, b: &Completion) -> Option<Difference> {
    let logps = |c: &Completion| c.columns.sampler_logps().unwrap_or_default().to_vec();
    list("token", &a.ids, &b.ids, ToString::to_string)
        .or_else(|| floats("log-probability", &logps(a), &logps(b)))
        .or_else(|| list("version of the weights", &a.versions, &b.versions, ToString::to_string))
        .or_else(|| list("sampled", &a.sampled, &b.sampled, ToString::to_string))
        .or_else(|| unequal("finish reason", &a.finish_reason, &b.finish_reason))
        .or_else(|| unequal("generation", &a.generation, &b.generation))
        .or_else(|| list("mask", &a.mask, &b.mask, ToString::to_string))
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
    unequal("scores of steps", &steps(a), &steps(b))
}

/// Compares the columns that other models made: reference model, old policy, value model.
fn columns(a: &Completion, b: &Completion) -> Option<Difference> {
    let names = |columns: &Columns| columns.iter().map(|(name, _)| name.to_owned()).collect::<Vec<_>>();
    if let Some(found) = unequal("columns", &names(&a.columns), &names(&b.columns)) {
        return Some(found);
    }
    let pairs = a.columns.iter().zip(b.columns.iter()).filter(|((name, _), _)| *name != SAMPLER_LOGPS);
    pairs
        .filter_map(|((name, a), (_, b))| match (&a.values, &b.values) {
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
    let found = floats("advantage", &values(a), &values(b))?;
    let of_tokens = [a, b].iter().any(|c| matches!(c.advantage, Some(Advantage::Tokens(_))));
    Some(Difference { token: found.token.filter(|_| of_tokens), ..found })
}

#[cfg(test)]
mod tests;
