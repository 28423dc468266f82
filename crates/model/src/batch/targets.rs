//! Batches whose scored tokens are not the tokens of their sequences: each row predicts tokens of the caller's choice.

use super::Batch;

/// The tokens to score in one sequence (a prefix and a branch): `width` for each of its rows, those of the prefix
/// first.
#[derive(Clone, Copy, Debug)]
pub struct Targets<'a> {
    /// Token ids `[rows, width]`.
    pub ids: &'a [u32],
    /// The number of tokens for each row; at least 1.
    pub width: usize,
}

impl Batch {
    /// Replaces the scored tokens by those of `targets`, which has one element for each branch. Branches must share
    /// their prefix. Rows of a shared prefix are scored for each of its branches.
    pub fn with_targets(mut self, targets: &[Targets<'_>]) -> Batch {
        assert_eq!(targets.len(), self.scores_of_branches.len(), "one element for each branch");
        self.score_rows.clear();
        self.targets.clear();
        for group in 0..self.groups.len() - 1 {
            self.score_groups[group] = self.targets.len() as u32;
            let rows = self.groups[group]..self.groups[group + 1];
            let branches = self.branch_groups[group]..self.branch_groups[group + 1];
            for branch in branches {
                let is_own = |row: &u32| self.branches_of_rows[*row as usize] == branch;
                let own: Vec<u32> = rows.clone().filter(is_own).collect();
                let Targets { ids, width } = targets[branch as usize];
                assert!(width > 0 && ids.len().is_multiple_of(width), "{width} tokens for each row");
                // The prefix's rows come first in the group, and belong to its first branch.
                let prefix = (ids.len() / width).checked_sub(own.len()).expect("a token for each row");
                let start = self.targets.len();
                for row in (rows.start..rows.start + prefix as u32).chain(own) {
                    self.score_rows.extend(std::iter::repeat_n(row, width));
                }
                self.targets.extend(ids);
                self.scores_of_branches[branch as usize] = start..self.targets.len();
            }
        }
        let groups = self.groups.len() - 1;
        self.score_groups[groups] = self.targets.len() as u32;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::super::GroupSegment;
    use super::*;

    #[test]
    fn each_row_of_a_sequence_has_its_targets() {
        let groups = [
            GroupSegment { prefix: &[1, 2, 3], branches: &[&[4, 5, 0], &[0], &[6, 0]] },
            GroupSegment { prefix: &[7], branches: &[&[8, 0]] },
        ];
        let ids: Vec<u32> = (10..40).collect();
        let of = |from: usize, len: usize, width| Targets { ids: &ids[from..from + len], width };
        let batch = Batch::new(&groups, true).with_targets(&[of(0, 5, 1), of(5, 3, 1), of(8, 8, 2), of(16, 2, 1)]);
        // The rows are 1 2 3 | 4 5 | 6 | 7 | 8.
        assert_eq!(batch.ids, [1, 2, 3, 4, 5, 6, 7, 8]);
        let rows = [&[0, 1, 2, 3, 4][..], &[0, 1, 2], &[0, 0, 1, 1, 2, 2, 5, 5], &[6, 7]].concat();
        assert_eq!((batch.score_rows, batch.targets), (rows, (10..28).collect()));
        assert_eq!(batch.scores_of_branches, [0..5, 5..8, 8..16, 16..18]);
        assert_eq!(batch.score_groups, [0, 16, 18]);
    }
}
