//! The groups whose log-probabilities are compared with the sampler's in every run.

use model::GroupId;

/// Whether this group's forward pass is always computed and compared: one group in 64, spread evenly over consecutive
/// groups by Fibonacci hashing (multiplication by 2⁶⁴ / φ). So the checked prompts change from epoch to epoch even if
/// the length of the dataset is a power of two.
pub(super) fn is_checked(group: GroupId) -> bool {
    group.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58 == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_group_in_64_is_checked() {
        for first in [0, 1000, u64::MAX / 2] {
            let checked = (first..first + 6400).filter(|&n| is_checked(GroupId(n))).count();
            assert!((98..=102).contains(&checked), "{checked} from {first}");
        }
        // In a dataset of 64 prompts, the same prompt is checked about once in 64 epochs.
        for prompt in 0..64 {
            let checked = (0..640).filter(|epoch| is_checked(GroupId(64 * epoch + prompt))).count();
            assert!((5..=16).contains(&checked), "{checked} of prompt {prompt}");
        }
        assert!(is_checked(GroupId(0)));
    }
}
