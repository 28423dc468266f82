//! Process supervision with GRPO (DeepSeekMath, Shao et al. 2024, arXiv:2402.03300, section 4.1.3): the rewards of all
//! steps of a group are normalised together, and a token's advantage is the sum over the steps that end at or after it.
//!
//! ```text
//! R = the rewards of all steps of all completions of a group
//! r̃ = (r − mean of R) / (s + 1e-4)       s as in [`super`]: of the group or the batch; no division without scaling
//! A_t = Σ over the completion's steps with end ≥ t of r̃
//! ```
//!
//! A reward of the whole completion counts as a step that ends with the completion.

use super::{Advantages, RewardMatrix, SMALL, ScaleRewards, all_equal, deviation, mean};
use crate::{Advantage, Sample, StepRewards};

/// How GRPO turns step rewards into advantages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProcessRewards {
    /// The completion's reward is the sum of its step rewards.
    #[default]
    Sum,
    /// Each step reward is normalised separately, and each token gets its own advantage.
    PerStep,
}

/// Replaces the advantages of completions by advantages of tokens in groups with step rewards. Completions without any
/// reward keep 0, and so do tokens outside the mask.
pub fn per_step(
    advantages: &mut Advantages,
    matrix: &RewardMatrix,
    samples: &[Sample],
    steps: &[Option<StepRewards>],
    scale: ScaleRewards,
) {
    let placed: Vec<Vec<(usize, f64)>> = (0..samples.len())
        .map(|i| {
            let whole = || StepRewards { steps: Vec::new(), at_end: advantages.rewards[i] };
            steps[i].clone().unwrap_or_else(whole).placed(&samples[i].loss_mask)
        })
        .collect();
    let rewards = |rows: std::ops::Range<usize>| -> Vec<Option<f64>> {
        placed[rows].iter().flatten().map(|(_, reward)| Some(*reward)).collect()
    };
    let batch_deviation = deviation(&rewards(0..samples.len()));
    for group in matrix.groups().filter(|group| steps[group.clone()].iter().any(Option::is_some)) {
        let all = rewards(group.clone());
        let mean = mean(&all).unwrap_or(0.0);
        let equal = all_equal(&all);
        let divisor = match scale {
            ScaleRewards::Group => deviation(&all).map(|s| s + SMALL),
            ScaleRewards::Batch => batch_deviation.map(|s| s + SMALL),
            ScaleRewards::None => Some(1.0),
        };
        for i in group {
            let mut to_go = vec![0.0; samples[i].loss_mask.len()];
            for &(token, reward) in &placed[i] {
                // A single step has no standard deviation, and no other step to compare with.
                let divisor = divisor.filter(|_| !equal);
                to_go[token] += divisor.map_or(0.0, |divisor| (reward - mean) / divisor);
            }
            for t in (1..to_go.len()).rev() {
                to_go[t - 1] += to_go[t];
            }
            let kept = to_go.iter().zip(&samples[i].loss_mask).map(|(a, &m)| if m { *a as f32 } else { 0.0 });
            advantages.advantages[i] = Advantage::Tokens(kept.collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RewardRow;
    use crate::advantages::compute;
    use model::GroupId;

    /// Computes advantages of completions, each given as (group, number of tokens, step rewards, total reward).
    fn of(rows: &[(u64, usize, Option<StepRewards>, Option<f64>)], scale: ScaleRewards) -> Vec<Advantage> {
        let prompt = model::Prompt::new([1]);
        let sample = |(group, tokens, _, _): &(u64, usize, Option<StepRewards>, Option<f64>)| Sample {
            group: GroupId(*group),
            ..Sample::supervised(prompt.clone(), vec![7; *tokens])
        };
        let samples: Vec<Sample> = rows.iter().map(sample).collect();
        let row = |(group, _, _, total): &(u64, usize, Option<StepRewards>, Option<f64>)| RewardRow {
            group: GroupId(*group),
            scores: vec![*total],
        };
        let rewards =
            RewardMatrix { rows: rows.iter().map(row).collect(), names: vec!["r".into()], weights: vec![1.0] };
        let steps: Vec<Option<StepRewards>> = rows.iter().map(|row| row.2.clone()).collect();
        let mut advantages = compute(&rewards, scale);
        per_step(&mut advantages, &rewards, &samples, &steps, scale);
        advantages.advantages
    }

    fn steps(steps: &[(usize, f64)]) -> Option<StepRewards> {
        Some(StepRewards { steps: steps.to_vec(), at_end: None })
    }

    fn tokens(advantages: &[f64]) -> Advantage {
        Advantage::Tokens(advantages.iter().map(|&a| a as f32).collect())
    }

    #[test]
    fn advantages_of_two_completions_match_hand_computed_values() {
        // R = {1, 0, 0.5}: mean 0.5, Bessel-corrected deviation 0.5; r̃ = {1, −1, 0} · 0.5 / 0.5001.
        let rows = [(3, 3, steps(&[(0, 1.0), (2, 0.0)]), Some(1.0)), (3, 2, steps(&[(1, 0.5)]), Some(0.5))];
        let one = 0.5 / 0.5001;
        assert_eq!(of(&rows, ScaleRewards::Group), [tokens(&[0.0, -one, -one]), tokens(&[0.0, 0.0])]);
        assert_eq!(of(&rows, ScaleRewards::Batch), of(&rows, ScaleRewards::Group), "the batch is one group");
        assert_eq!(of(&rows, ScaleRewards::None), [tokens(&[0.0, -0.5, -0.5]), tokens(&[0.0, 0.0])]);
    }

    #[test]
    fn advantages_of_two_groups_match_hand_computed_values() {
        let row = |group, reward| (group, 1, steps(&[(0, reward)]), Some(reward));
        let rows = [row(3, 1.0), row(3, 0.0), row(4, 0.0), row(4, 4.0)];
        // The rewards of the batch {1, 0, 0, 4} have mean 1.25 and squared deviations that sum to 10.75; the groups
        // have the means 0.5 and 2.
        let s = (10.75f64 / 3.0).sqrt() + 1e-4;
        let expected = [0.5, -0.5, -2.0, 2.0].map(|r| tokens(&[r / s]));
        assert_eq!(of(&rows, ScaleRewards::Batch), expected);
    }

    #[test]
    fn a_completion_without_steps_counts_as_one_step_in_a_group_with_steps() {
        let rows = [
            (1, 2, steps(&[(0, 3.0)]), Some(3.0)),
            // The reward of the whole completion is a step at its end.
            (1, 2, None, Some(1.0)),
            (1, 2, None, None),
            // Another group has no step rewards.
            (2, 2, None, Some(1.0)),
            (2, 2, None, Some(0.0)),
        ];
        let found = of(&rows, ScaleRewards::None);
        assert_eq!(found[..3], [tokens(&[1.0, 0.0]), tokens(&[-1.0, -1.0]), tokens(&[0.0, 0.0])]);
        assert_eq!(found[3..], [Advantage::Sequence(0.5), Advantage::Sequence(-0.5)]);
        assert_eq!(
            of(&rows[..1], ScaleRewards::Group),
            [tokens(&[0.0, 0.0])],
            "a single reward has nothing to compare with"
        );
    }
}
