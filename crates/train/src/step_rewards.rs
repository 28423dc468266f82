//! Rewards for the steps of a completion, in place of one reward for the whole completion.

/// The weighted rewards of one completion, of which some belong to steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepRewards {
    /// The index of each step's last token, and its reward.
    pub steps: Vec<(usize, f64)>,
    /// What is said of the whole completion beside, if anything is.
    pub at_end: Option<f64>,
}

impl StepRewards {
    /// Each reward at its token, as far as `mask` keeps it: that of a token which the model did not choose goes to the
    /// last that it chose before (or, before the first, to the first), the whole completion's to the last. Steps that
    /// end at the same token stay apart.
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
    fn rewards_go_to_tokens_that_the_model_chose() {
        let rewards = StepRewards { steps: vec![(0, 1.0), (2, 2.0), (3, 3.0)], at_end: Some(4.0) };
        assert_eq!(rewards.placed(&[true; 5]), [(0, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]);
        assert_eq!(rewards.placed(&[false, true, false, true, false]), [(1, 1.0), (1, 2.0), (3, 3.0), (3, 4.0)]);
        assert_eq!(rewards.placed(&[false; 5]), []);
        assert_eq!(StepRewards { at_end: None, ..rewards }.placed(&[]), []);
    }
}
