//! Builds one generation batch in rounds.
//!
//! Dynamic sampling (DAPO, Yu et al. 2025, arXiv:2503.14476): a group whose rewards are all equal has no advantage, so
//! its policy gradient is 0. Each round replaces these groups by groups of new prompts, until the rewards of every
//! group differ or the maximum number of rounds is reached. A new group takes the position of the replaced group, so
//! the order of groups depends only on the prompts.

use super::{Rollouts, ScoredGroup};
use kernels::mean::Mean;

/// Rewards whose range is at most this are treated as equal; TRL treats a standard deviation of this size as 0.
const ZERO_RANGE: f64 = 1e-8;

/// A generation batch being built, and the counts of its rounds.
#[derive(Default)]
pub struct Generation {
    rollouts: Rollouts,
    /// Rounds so far.
    rounds: usize,
    /// Groups that were replaced by groups of new prompts.
    replaced: usize,
    /// The mean reward of all completions, including those of replaced groups.
    reward: Mean,
}

impl Generation {
    /// Rounds so far.
    pub fn rounds(&self) -> usize {
        self.rounds
    }

    /// Indices of the groups whose rewards are all equal.
    pub fn zero_std_groups(&self) -> Vec<usize> {
        let groups = self.rollouts.groups.iter().enumerate();
        groups.filter(|(_, group)| !self.differs(group)).map(|(place, _)| place).collect()
    }

    fn differs(&self, group: &ScoredGroup) -> bool {
        let rewards = || self.rollouts.totals(group);
        rewards().fold(f64::NEG_INFINITY, f64::max) - rewards().fold(f64::INFINITY, f64::min) > ZERO_RANGE
    }

    /// Adds a round: the first round, or a round with a group for each of [`zero_std_groups`](Self::zero_std_groups).
    pub fn take(&mut self, fresh: Rollouts) {
        for reward in fresh.groups.iter().flat_map(|group| fresh.totals(group)) {
            self.reward.add(reward);
        }
        self.rounds += 1;
        if self.rounds == 1 {
            self.rollouts = fresh;
            return;
        }
        let places = self.zero_std_groups();
        assert_eq!(places.len(), fresh.groups.len(), "a group for each place");
        self.replaced += places.len();
        for (place, group) in places.into_iter().zip(fresh.groups) {
            self.rollouts.groups[place] = group;
        }
    }

    /// The finished groups, and the metrics of dynamic sampling, without a mean reward if nothing was scored.
    pub fn finish(self) -> (Rollouts, Vec<(&'static str, f64)>) {
        let counts = [
            ("dynamic_sampling/rounds", self.rounds),
            ("dynamic_sampling/groups_replaced", self.replaced),
            ("dynamic_sampling/groups_without_spread", self.zero_std_groups().len()),
        ];
        let mut metrics: Vec<_> = counts.into_iter().map(|(name, count)| (name, count as f64)).collect();
        metrics.extend(self.reward.get().map(|mean| ("dynamic_sampling/reward", mean)));
        (self.rollouts, metrics)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::data::prompts::Prompt;
    use crate::rollouts::ScoredCompletion;
    use model::GroupId;
    use rewards::Content;
    use rollout::{Completion, FinishReason};
    use serde_json::Map;
    use std::sync::Arc;

    /// A round of groups with two completions each, built from each group's number and its two rewards.
    pub fn round(groups: &[(u32, [Option<f64>; 2])]) -> Rollouts {
        let completion = |id: u32, reward: Option<f64>| ScoredCompletion {
            completion: Completion {
                generation: 0,
                ids: vec![id],
                sampled: vec![true],
                versions: vec![model::Updates(0)],
                columns: model::Columns::default(),
                finish_reason: FinishReason::Stop,
            },
            content: Content::Text(id.to_string()),
            rewards: vec![reward],
            steps: Vec::new(),
            extra: Map::new(),
        };
        let group = |&(id, rewards): &(u32, [Option<f64>; 2])| {
            let (tokens, content) = (model::Prompt::new([id]), Content::Text(id.to_string()));
            ScoredGroup {
                group: GroupId(u64::from(id)),
                prompt: Arc::new(Prompt { row: id as usize, tokens, content, columns: Map::new() }),
                completions: rewards.map(|reward| completion(id, reward)).to_vec(),
                problems: Vec::new(),
                lineage: None,
            }
        };
        let groups = groups.iter().map(group).collect();
        Rollouts { groups, reward_names: vec!["r".into()], reward_weights: vec![1.0] }
    }

    #[test]
    fn groups_with_equal_rewards_are_replaced_in_place() {
        let (one, zero) = (Some(1.0), Some(0.0));
        let mut generation = Generation::default();
        generation.take(round(&[(1, [one, one]), (2, [one, zero]), (3, [None, one]), (4, [zero, zero])]));
        assert_eq!(generation.zero_std_groups(), [0, 2, 3], "a single score has no standard deviation");
        generation.take(round(&[(5, [zero, one]), (6, [zero, zero]), (7, [one, zero])]));
        assert_eq!((generation.zero_std_groups(), generation.rounds()), (vec![2], 2));
        let (rollouts, metrics) = generation.finish();
        let ids: Vec<u32> = rollouts.completions().map(|c| c.completion.ids[0]).collect();
        assert_eq!(ids, [5, 5, 2, 2, 6, 6, 7, 7]);
        let matrix = rollouts.rewards();
        assert_eq!(matrix.groups().collect::<Vec<_>>(), [0..2, 2..4, 4..6, 6..8]);
        assert_eq!(matrix.totals(), [zero, one, one, zero, zero, zero, one, zero]);
        let values: Vec<f64> = metrics.iter().map(|m| m.1).collect();
        assert_eq!(values, [2.0, 3.0, 1.0, 6.0 / 13.0]);

        // Rewards that differ only by rounding are treated as equal.
        let mut generation = Generation::default();
        generation.take(round(&[(1, [Some(0.3), Some(0.1 + 0.2)]), (2, [Some(0.3), Some(0.3001)])]));
        assert_eq!(generation.zero_std_groups(), [0]);

        // The weighted sum of rewards is compared, so a reward with weight 0 makes no difference.
        for (weight, places) in [(0.5, vec![]), (0.0, vec![0])] {
            let mut generation = Generation::default();
            generation.take(Rollouts { reward_weights: vec![weight], ..round(&[(1, [one, zero])]) });
            assert_eq!(generation.zero_std_groups(), places);
            assert_eq!(generation.finish().1[3].1, weight / 2.0);
        }

        // Without scores, the mean reward is missing.
        let mut generation = Generation::default();
        generation.take(round(&[(1, [None, None])]));
        let names: Vec<&str> = generation.finish().1.into_iter().map(|(name, _)| name).collect();
        assert!(!names.contains(&"dynamic_sampling/reward") && names.len() == 3, "{names:?}");
    }
}
