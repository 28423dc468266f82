//! The groups of a generation batch: completions with their rewards, before advantages are computed. Groups that the
//! policy generated and groups read from a file have the same type.

use super::lineage::Lineage;
use crate::data::prompts::Prompt;
use model::GroupId;
use rewards::{Content, Problem};
use rollout::Completion;
use serde_json::{Map, Value};
use std::sync::Arc;
use train::{RewardMatrix, RewardRow, StepRewards};

/// Scores of some tokens of a completion: (index of the token, score).
pub type TokenScores = Vec<(usize, f64)>;

/// A completion with its rewards.
#[derive(Clone, Debug)]
pub struct ScoredCompletion {
    /// The completion as the engine returned it.
    pub completion: Completion,
    /// The text or message as reward functions read it.
    pub content: Content,
    /// One reward per reward function; `None` without a score.
    pub rewards: Vec<Option<f64>>,
    /// Process rewards: for each reward function, the last token of each step with its score, or `None`. Empty if no
    /// reward function scores steps.
    pub steps: Vec<Option<TokenScores>>,
    /// Columns that reward functions add to the completions table.
    pub extra: Map<String, Value>,
}

/// The completions of one prompt, with their rewards.
#[derive(Clone, Debug)]
pub struct ScoredGroup {
    /// The number of the group, unique in the run.
    pub group: GroupId,
    /// The dataset row of the prompt.
    pub prompt: Arc<Prompt>,
    /// The scored completions of the prompt.
    pub completions: Vec<ScoredCompletion>,
    /// Errors of reward functions; they refer to completions by index in the group.
    pub problems: Vec<Problem>,
    /// The lineage of the weights that sampled the group, if they belong to another run.
    pub lineage: Option<Lineage>,
}

/// The scored groups of a generation batch.
#[derive(Clone, Debug, Default)]
pub struct Rollouts {
    /// The scored groups.
    pub groups: Vec<ScoredGroup>,
    /// Names of the reward functions.
    pub reward_names: Vec<String>,
    /// The weight of each reward function.
    pub reward_weights: Vec<f64>,
}

impl Rollouts {
    /// The completions of all groups.
    pub fn completions(&self) -> impl Iterator<Item = &ScoredCompletion> + Clone {
        self.groups.iter().flat_map(|group| &group.completions)
    }

    /// The rewards of all completions, as a matrix with one column per reward function.
    pub fn rewards(&self) -> RewardMatrix {
        let row = |group: GroupId, c: &ScoredCompletion| RewardRow { group, scores: c.rewards.clone() };
        let rows = self.groups.iter().flat_map(|group| group.completions.iter().map(|c| row(group.group, c))).collect();
        RewardMatrix { rows, names: self.reward_names.clone(), weights: self.reward_weights.clone() }
    }

    /// The name of each reward function, with the number of completions that it scored.
    pub fn scored(&self) -> Vec<(String, usize)> {
        let scored = |k: usize| self.completions().filter(|c| c.rewards[k].is_some()).count();
        self.reward_names.iter().enumerate().map(|(k, name)| (name.clone(), scored(k))).collect()
    }

    /// The total (weighted) rewards of a group's completions; completions without any score are left out.
    pub fn totals<'a>(&'a self, group: &'a ScoredGroup) -> impl Iterator<Item = f64> {
        group.completions.iter().filter_map(|c| self.total(c))
    }

    /// For each completion whose steps were scored: the weighted process rewards.
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

    /// The total (weighted) reward of a completion; `None` if no reward function scored it.
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
    fn totals_leave_out_completions_without_a_score() {
        let mut rollouts = round(&[(3, [Some(1.0), None]), (5, [None, Some(2.0)])]);
        rollouts.reward_names.push("other".into());
        rollouts.reward_weights = vec![0.5, 3.0];
        for (place, c) in rollouts.groups.iter_mut().flat_map(|group| &mut group.completions).enumerate() {
            c.rewards.push([Some(1.0), Some(-1.0), None, None][place]);
        }
        let totals: Vec<Option<f64>> = rollouts.completions().map(|c| rollouts.total(c)).collect();
        assert_eq!(totals, [Some(3.5), Some(-3.0), None, Some(1.0)]);
        let of = |place: usize| rollouts.totals(&rollouts.groups[place]).collect::<Vec<_>>();
        assert_eq!((of(0), of(1)), (vec![3.5, -3.0], vec![1.0]));
        assert_eq!(rollouts.scored(), [("r".to_owned(), 2), ("other".to_owned(), 2)]);
        let matrix = rollouts.rewards();
        assert_eq!(matrix.rows.iter().map(|row| row.group.0).collect::<Vec<_>>(), [3, 3, 5, 5]);
        assert_eq!((matrix.names, matrix.weights), (rollouts.reward_names.clone(), vec![0.5, 3.0]));
    }

    #[test]
    fn rewards_of_steps_are_weighted_by_function() {
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
