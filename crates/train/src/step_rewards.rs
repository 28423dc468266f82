//! Rewards for single steps of a completion, instead of one reward for the whole completion.

/// The weighted rewards of one completion, some of which belong to single steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepRewards {
    /// For each step, the index of its last token and its reward.
    pub steps: Vec<(usize, f64)>,
    /// A further reward of the whole completion, if any.
    pub at_end: Option<f64>,
}

impl StepRewards {
    /// The token to which each reward goes. A step's reward goes to the last token of the step. If `mask` excludes that
    /// token (the model did not sample it), the reward goes to the last kept token before it, or else to the first kept
    /// token. The reward of the whole completion goes to the last kept token. Steps that end at the same token stay
    /// separate.
    pub(crate) fn placed(&self, mask: &[bool]) -> Vec<(usize, f64)> {
        let Some(last) = mask.iter().rposition(|&m| m) else { return Vec::new() };
        let chosen = |token: usize| {
            let before = mask[..=token.min(mask.len() - 1)].iter().rposition(|&m| m);
            before.or_else(|| mask.iter().position(|&m| m)).unwrap_or(last)
        };
        let steps = self.steps.iter().map(|&(token, reward)| (chosen(token), reward));
        steps.chain(self.at_end.map(|reward| (last, reward))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_rewards_go_to_sampled_tokens() {
        let rewards = StepRewards { steps: vec![(0, 1.0), (2, 2.0), (3, 3.0)], at_end: Some(4.0) };
        assert_eq!(rewards.placed(&[true; 5]), [(0, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]);
        assert_eq!(rewards.placed(&[false, true, false, true, false]), [(1, 1.0), (1, 2.0), (3, 3.0), (3, 4.0)]);
        assert_eq!(rewards.placed(&[false; 5]), []);
        assert_eq!(StepRewards { at_end: None, ..rewards }.placed(&[]), []);
    }

    #[test]
    fn a_step_outside_the_sampled_tokens_is_moved_to_the_nearest_one() {
        let placed = |token: usize, mask: &[bool]| StepRewards { steps: vec![(token, 1.0)], at_end: None }.placed(mask);
        assert_eq!(placed(9, &[true, true, false]), [(1, 1.0)]);
        assert_eq!(placed(0, &[false, false, true, true]), [(2, 1.0)], "the first token that the model chose");
        assert_eq!(placed(1, &[true, false, true]), [(0, 1.0)]);
        assert_eq!(placed(2, &[true, false, true]), [(2, 1.0)]);
        let at_end = StepRewards { steps: vec![], at_end: Some(2.0) };
        assert_eq!(at_end.placed(&[true, true, false]), [(1, 2.0)]);
    }
}
