//! A generation: groups of completions with their rewards, before advantages. Where they came from (the policy, or a
//! file) is forgotten here.

use super::lineage::Lineage;
use crate::data::prompts::Prompt;
use rewards::{Content, Problem};
use rollout::Completion;
use serde_json::{Map, Value};
use std::sync::Arc;
use train::{RewardMatrix, RewardRow, StepRewards};

/// Tokens of a completion, by their places, and their scores.
pub type TokenScores = Vec<(usize, f64)>;

/// A completion and what the rewards say of it.
#[derive(Clone, Debug)]
pub struct ScoredCompletion {
    /// The completion.
    pub completion: Completion,
    /// As rewards saw it.
    pub content: Content,
    /// One per reward function; `None` where it gave no score.
    pub rewards: Vec<Option<f64>>,
    /// One per reward function that gave scores of steps: the last token of each step, and its score. Empty where none
    /// did.
    pub steps: Vec<Option<TokenScores>>,
    /// What rewards add to the completions table, by column.
    pub extra: Map<String, Value>,
}

/// A rollout group with its scores.
#[derive(Clone, Debug)]
pub struct ScoredGroup {
    /// The group's number in the run.
    pub id: u64,
    /// The row of the dataset that it answers.
    pub prompt: Arc<Prompt>,
    /// Its completions.
    pub completions: Vec<ScoredCompletion>,
    /// What kept rewards from scoring completions, these by their places in the group.
    pub problems: Vec<Problem>,
    /// What the weights come from that sampled it, where that is not the run that it is part of.
    pub lineage: Option<Lineage>,
}

/// Scored groups.
#[derive(Clone, Debug, Default)]
pub struct Rollouts {
    /// The groups.
    pub groups: Vec<ScoredGroup>,
    /// Names of the reward functions.
    pub reward_names: Vec<String>,
    /// Weight of each.
    pub reward_weights: Vec<f64>,
}

impl Rollouts {
    /// The completions of all groups.
    pub fn completions(&self) -> impl Iterator<Item = &ScoredCompletion> + Clone {
        self.groups.iter().flat_map(|group| &group.completions)
    }

    /// The rewards of all completions.
    pub fn rewards(&self) -> RewardMatrix {
        let row = |group: u64, c: &ScoredCompletion| RewardRow { group, scores: c.rewards.clone() };
        let rows = self.groups.iter().flat_map(|group| group.completions.iter().map(|c| row(group.id, c))).collect();
        RewardMatrix { rows, names: self.reward_names.clone(), weights: self.reward_weights.clone() }
    }

    /// How many completions each reward scored.
    pub fn scored(&self) -> Vec<(String, usize)> {
        let scored = |k: usize| self.completions().filter(|c| c.rewards[k].is_some()).count();
        self.reward_names.iter().enumerate().map(|(k, name)| (name.clone(), scored(k))).collect()
    }

    /// The weighted rewards of a group's completions, of those that have one.
    pub fn totals<'a>(&'a self, group: &'a ScoredGroup) -> impl Iterator<Item = f64> {
        group.completions.iter().filter_map(|c| self.total(c))
    }

    /// The weighted rewards of the steps of each completion, where it has such.
    pub fn step_rewards(&self) -> Vec<Option<StepRewards>> {
        let of = |c: &ScoredCompletion| {
            if c.steps.iter().all(Option::is_none) {
                return None;
            }
            let mut rewards = StepRewards::default();
            for (k, weight) in self.reward_weights.iter().enumerate() {
                match (&c.steps[k], c.rewards[k]) {
                    (Some(steps), _) => {
                        rewards.steps.extend(steps.iter().map(|(token, score)| (*token, score * weight)))
                    }
                    (None, Some(score)) => *rewards.at_end.get_or_insert(0.0) += score * weight,
                    (None, None) => {}
                }
            }
            Some(rewards)
        };
        self.completions().map(of).collect()
    }

    /// The weighted reward of a completion, if it has one.
    pub fn total(&self, completion: &ScoredCompletion) -> Option<f64> {
        let rewards = &completion.rewards;
        let scored = rewards.iter().any(Option::is_some);
        scored.then(|| rewards.iter().zip(&self.reward_weights).filter_map(|(r, w)| r.map(|r| r * w)).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollouts::generation::tests::round;

    #[test]
    fn rewards_of_steps_have_the_weights_of_their_functions() {
        let mut rollouts = round(&[(3, [Some(1.0), Some(2.0)])]);
        rollouts.reward_names.push("whole".into());
        rollouts.reward_weights = vec![0.5, 3.0];
        for completion in &mut rollouts.groups[0].completions {
            completion.rewards.push(Some(0.25));
            completion.steps = vec![None, None];
        }
        rollouts.groups[0].completions[0].steps[0] = Some(vec![(0, 1.0), (2, -4.0)]);
        let weighted = StepRewards { steps: vec![(0, 0.5), (2, -2.0)], at_end: Some(0.75) };
        assert_eq!(rollouts.step_rewards(), [Some(weighted), None]);
    }
}
