//! A generation: groups of completions with what the rewards say of them, before advantages. Where they came from (the
//! policy, or a file) is forgotten here.

use crate::data::prompts::Prompt;
use crate::rollouts::judge::Judged;
use crate::rollouts::replay::Recorded;
use rollout::{Completion, FinishReason};
use serde_json::{Map, Value};
use std::sync::Arc;
use train::Sample;

/// Groups of completions, judged.
#[derive(Default)]
pub struct Rollouts {
    /// The prompt of each group.
    pub prompts: Vec<Arc<Prompt>>,
    /// The completions, group by group.
    pub completions: Vec<Completion>,
    /// log π_ref of each completion's tokens, where a file gave it; empty where no file did.
    pub ref_logps: Vec<Option<Vec<f32>>>,
    /// What the rewards say.
    pub judged: Judged,
}

impl Rollouts {
    /// Completions of a group.
    pub fn group_size(&self) -> usize {
        self.completions.len() / self.prompts.len().max(1)
    }

    /// The weighted reward of each completion of group `g`; `None` where nothing judged it.
    pub fn group_rewards(&self, g: usize) -> Vec<Option<f64>> {
        let (matrix, size) = (&self.judged.matrix, self.group_size());
        let total = |row: &Vec<Option<f64>>| {
            let judged = row.iter().any(Option::is_some);
            judged.then(|| row.iter().zip(&matrix.weights).filter_map(|(r, w)| r.map(|r| r * w)).sum())
        };
        matrix.rewards[g * size..(g + 1) * size].iter().map(total).collect()
    }

    /// Puts the groups of `fresh`, in order, into these places.
    pub fn replace(&mut self, places: &[usize], fresh: Rollouts) {
        let size = self.group_size();
        let total = self.completions.len();
        for (name, _) in &fresh.judged.extra {
            if !self.judged.extra.iter().any(|(own, _)| own == name) {
                self.judged.extra.push((name.clone(), vec![Value::Null; total]));
            }
        }
        for (from, &to) in places.iter().enumerate() {
            self.prompts[to] = fresh.prompts[from].clone();
            for k in 0..size {
                let (from, to) = (from * size + k, to * size + k);
                self.completions[to] = fresh.completions[from].clone();
                self.judged.matrix.rewards[to] = fresh.judged.matrix.rewards[from].clone();
                self.judged.prompts[to] = fresh.judged.prompts[from].clone();
                self.judged.completions[to] = fresh.judged.completions[from].clone();
                for (name, column) in &mut self.judged.extra {
                    let found = fresh.judged.extra.iter().find(|(other, _)| other == name);
                    column[to] = found.map_or(Value::Null, |(_, values)| values[from].clone());
                }
            }
        }
    }

    /// The line of a rollout file for completion `i`, which became `sample`; `step` is the first optimizer step on it.
    pub fn line(&self, i: usize, sample: &Sample, step: u64) -> Map<String, Value> {
        let c = &self.completions[i];
        let recorded = Recorded {
            ids: c.ids.clone(),
            logps: Some(c.logps.clone()),
            ref_logps: sample.ref_logps.clone(),
            mask: c.mask.contains(&false).then(|| c.mask.clone()),
            truncated: Some(c.finish_reason == FinishReason::Length),
            rewards: self.judged.matrix.rewards[i].clone(),
        };
        recorded.line(step, &sample.prompt, &self.judged.matrix.names)
    }
}
