//! A generation in the making, round by round.
//!
//! Dynamic sampling (DAPO, Yu et al. 2025, arXiv:2503.14476): a group whose rewards are all equal has no advantage and
//! teaches nothing, so fresh prompts are drawn in its place until the batch is full of groups with a spread, or a number
//! of rounds is reached. At that bound, groups without a spread stay in the batch. A group keeps its place, so the order
//! depends on the prompts alone.

use crate::rollouts::Rollouts;
use crate::rollouts::judge::Judged;
use rollout::Completion;
use std::sync::Arc;

use crate::data::prompts::Prompt;

/// Rewards whose range is up to this are all equal (as the standard deviation that TRL calls zero).
const NO_SPREAD: f64 = 1e-8;

/// Groups, and how many rounds they took.
#[derive(Default)]
pub struct Generation {
    rollouts: Rollouts,
    /// Rounds done.
    rounds: usize,
    /// Groups that fresh prompts took the place of.
    replaced: usize,
    /// Sum and count of the rewards of everything drawn.
    reward: (f64, usize),
}

impl Generation {
    /// Rounds done.
    pub fn rounds(&self) -> usize {
        self.rounds
    }

    /// Places of the groups whose rewards do not differ.
    pub fn without_spread(&self) -> Vec<usize> {
        (0..self.rollouts.prompts.len()).filter(|&g| !self.has_spread(g)).collect()
    }

    fn has_spread(&self, group: usize) -> bool {
        let rewards = self.rollouts.group_rewards(group);
        let judged = || rewards.iter().flatten().copied();
        judged().fold(f64::NEG_INFINITY, f64::max) - judged().fold(f64::INFINITY, f64::min) > NO_SPREAD
    }

    /// Takes a round: the first, or one with a prompt for each place [`without_spread`](Self::without_spread).
    pub fn take(&mut self, prompts: Vec<Arc<Prompt>>, completions: Vec<Completion>, judged: Judged) {
        let fresh = Rollouts { prompts, completions, judged, ..Rollouts::default() };
        for reward in (0..fresh.prompts.len()).flat_map(|g| fresh.group_rewards(g)).flatten() {
            self.reward = (self.reward.0 + reward, self.reward.1 + 1);
        }
        self.rounds += 1;
        if self.rounds == 1 {
            self.rollouts = fresh;
            return;
        }
        let places = self.without_spread();
        assert_eq!(places.len(), fresh.prompts.len(), "a prompt for each place");
        self.replaced += places.len();
        self.rollouts.replace(&places, fresh);
    }

    /// The groups, and what dynamic sampling logs.
    pub fn finish(self) -> (Rollouts, [(&'static str, f64); 4]) {
        let metrics = [
            ("dynamic_sampling/rounds", self.rounds as f64),
            ("dynamic_sampling/groups_replaced", self.replaced as f64),
            ("dynamic_sampling/groups_without_spread", self.without_spread().len() as f64),
            ("dynamic_sampling/reward", self.reward.0 / self.reward.1.max(1) as f64),
        ];
        (self.rollouts, metrics)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rewards::Content;
    use rollout::FinishReason;
    use serde_json::{Map, Value};
    use train::RewardMatrix;

    /// A round of groups of two completions, each named by its first prompt id.
    fn round(groups: &[(u32, [Option<f64>; 2])], extra: &str) -> (Vec<Arc<Prompt>>, Vec<Completion>, Judged) {
        let prompt = |&(id, _): &(u32, _)| {
            let (ids, content) = (Arc::from([id].as_slice()), Content::Text(id.to_string()));
            Arc::new(Prompt { row: id as usize, ids, content, columns: Map::new() })
        };
        let completion = |id: u32| Completion {
            request: 0,
            generation: 0,
            ids: vec![id],
            logps: vec![-1.0],
            mask: vec![true],
            versions: vec![0],
            finish_reason: FinishReason::Stop,
        };
        let ids = || groups.iter().flat_map(|&(id, _)| [id, id]);
        let text = |id: u32| Content::Text(id.to_string());
        let rewards = groups.iter().flat_map(|(_, r)| r.map(|r| vec![r])).collect();
        let judged = Judged {
            matrix: RewardMatrix { rewards, names: vec!["r".into()], weights: vec![1.0] },
            prompts: ids().map(text).collect(),
            completions: ids().map(text).collect(),
            extra: vec![(extra.to_owned(), ids().map(Value::from).collect())],
            ..Judged::default()
        };
        (groups.iter().map(prompt).collect(), ids().map(completion).collect(), judged)
    }

    fn first(rollouts: &Rollouts) -> Vec<u32> {
        rollouts.prompts.iter().map(|p| p.ids[0]).collect()
    }

    #[test]
    fn groups_without_spread_are_replaced_in_their_places() {
        let (one, zero) = (Some(1.0), Some(0.0));
        let mut generation = Generation::default();
        let (p, c, j) = round(&[(1, [one, one]), (2, [one, zero]), (3, [None, one]), (4, [zero, zero])], "a");
        generation.take(p, c, j);
        assert_eq!(generation.without_spread(), [0, 2, 3], "one judged completion has no spread");
        let (p, c, j) = round(&[(5, [zero, one]), (6, [zero, zero]), (7, [one, zero])], "b");
        generation.take(p, c, j);
        assert_eq!((generation.without_spread(), generation.rounds()), (vec![2], 2));
        let (rollouts, metrics) = generation.finish();
        assert_eq!(first(&rollouts), [5, 2, 6, 7]);
        let ids: Vec<u32> = rollouts.completions.iter().map(|c| c.ids[0]).collect();
        assert_eq!(ids, [5, 5, 2, 2, 6, 6, 7, 7]);
        assert_eq!(rollouts.judged.matrix.rewards[0..2], [[zero], [one]]);
        assert_eq!(rollouts.judged.prompts[6], Content::Text("7".into()));
        let column = |name: &str| rollouts.judged.extra.iter().find(|(n, _)| n == name).unwrap().1.clone();
        assert_eq!(column("a")[1..4], [Value::Null, 2.into(), 2.into()]);
        assert_eq!(column("b")[1..4], [5.into(), Value::Null, Value::Null]);
        let values: Vec<f64> = metrics.iter().map(|m| m.1).collect();
        assert_eq!(values, [2.0, 3.0, 1.0, 6.0 / 13.0]);
    }
}
