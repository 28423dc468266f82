//! Packs groups (a prompt with its completions) into micro-batches. Batches are split only between groups.
//!
//! Every sum over tokens runs in the order of the sequences and continues from micro-batch to micro-batch, so the split
//! points do not change a bit of the result. A group is never split, because its prompt is computed once for all its
//! completions.

use crate::{Batch, Capacity, Error, GroupSegment, ModelConfig, Result};
use std::ops::Range;

/// One sequence: a prompt and its completion.
#[derive(Clone, Copy, Debug)]
pub struct PromptCompletion<'a> {
    /// Token ids of the prompt; not empty.
    pub prompt: &'a [u32],
    /// Token ids of the completion. They are scored. A sequence with an empty completion is skipped.
    pub completion: &'a [u32],
}

/// A prompt and the completions that share its computation. The caller decides which completions form a group: two
/// groups may have equal prompts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptGroup<'a> {
    /// Token ids of the prompt; not empty.
    pub prompt: &'a [u32],
    /// Token ids of each completion. They are scored. Empty completions are skipped.
    pub completions: Vec<&'a [u32]>,
}

impl<'a> PromptGroup<'a> {
    /// Forms groups from a list of sequences: consecutive sequences with equal prompts become one group.
    pub fn by_prompt(sequences: &[PromptCompletion<'a>]) -> Vec<PromptGroup<'a>> {
        let mut out: Vec<PromptGroup<'a>> = Vec::new();
        for sequence in sequences {
            match out.last_mut() {
                Some(last) if last.prompt == sequence.prompt => last.completions.push(sequence.completion),
                _ => out.push(PromptGroup { prompt: sequence.prompt, completions: vec![sequence.completion] }),
            }
        }
        out
    }

    /// The space that the group takes in a micro-batch.
    pub fn capacity(&self, sharing: bool) -> Capacity {
        let lengths: Vec<usize> = self.branches().map(<[u32]>::len).collect();
        Capacity::for_group(self.prompt.len(), &lengths, sharing)
    }

    /// A placeholder for a group that is skipped in the update. It has the same prompt and as many completions, all
    /// empty, so that all sequences keep their indices but nothing of this group is computed.
    pub fn left_out(&self) -> PromptGroup<'a> {
        PromptGroup { prompt: self.prompt, completions: vec![&[]; self.completions.len()] }
    }

    fn branches(&self) -> impl Iterator<Item = &'a [u32]> {
        self.completions.iter().copied().filter(|c| !c.is_empty())
    }
}

/// The sequences of all groups, in order.
pub(crate) fn sequences<'a>(groups: &'a [PromptGroup<'a>]) -> impl Iterator<Item = PromptCompletion<'a>> {
    groups
        .iter()
        .flat_map(|g| g.completions.iter().map(|&completion| PromptCompletion { prompt: g.prompt, completion }))
}

/// The completion with one more token appended. A head's output at a token belongs to the text *before* that token, so
/// the score of a whole sequence is read at an extra token. The extra token itself is never computed, so its id does
/// not matter.
pub fn followed(prompt: &[u32], completion: &[u32]) -> Vec<u32> {
    let last = completion.last().or(prompt.last());
    completion.iter().chain(last).copied().collect()
}

/// Length of the longest sequence in tokens; at least 1.
pub fn longest(groups: &[PromptGroup<'_>]) -> usize {
    sequences(groups).map(|s| s.prompt.len() + s.completion.len()).max().unwrap_or(0).max(1)
}

/// Fails with [`Error::Sequence`] if a prompt is empty or a token id is outside the model's vocabulary.
pub fn check_groups(config: &ModelConfig, groups: &[PromptGroup<'_>]) -> Result<()> {
    for (index, PromptCompletion { prompt, completion }) in sequences(groups).enumerate() {
        if prompt.is_empty() {
            let message = "the prompt is empty; it must have at least one token, such as the start token".into();
            return Err(Error::Sequence { index, message });
        }
        if let Some(id) = prompt.iter().chain(completion).copied().find(|&id| id as usize >= config.vocab_size) {
            let message = format!("token id {id} is outside the vocabulary of {} tokens", config.vocab_size);
            return Err(Error::Sequence { index, message });
        }
    }
    Ok(())
}

/// A micro-batch: groups that are computed in one forward pass. Sequences are counted over all groups, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MicroBatch<'a> {
    /// Each group, and the indices of its sequences (including those with an empty completion).
    groups: Vec<(&'a PromptGroup<'a>, Range<usize>)>,
    capacity: Capacity,
}

/// Splits `groups` into micro-batches of at most `max_tokens` rows. A larger group gets a separate micro-batch.
pub fn micro_batches<'a>(groups: &'a [PromptGroup<'a>], max_tokens: usize, sharing: bool) -> Vec<MicroBatch<'a>> {
    micro_batches_by(groups, max_tokens, sharing, |_| ()).into_iter().map(|((), micro)| micro).collect()
}

/// Like [`micro_batches`], but groups of different kinds never share a micro-batch. `kind` maps a group's index to its
/// kind. Returns the kind of each micro-batch.
pub fn micro_batches_by<'a, K: PartialEq>(
    groups: &'a [PromptGroup<'a>],
    max_tokens: usize,
    sharing: bool,
    kind: impl Fn(usize) -> K,
) -> Vec<(K, MicroBatch<'a>)> {
    let mut out: Vec<(K, MicroBatch<'a>)> = Vec::new();
    let mut first = 0;
    for (index, group) in groups.iter().enumerate() {
        let sequences = first..first + group.completions.len();
        first = sequences.end;
        if group.branches().next().is_none() {
            continue;
        }
        let (capacity, kind) = (group.capacity(sharing), kind(index));
        match out.last_mut() {
            Some((of, last)) if *of == kind && last.capacity.tokens + capacity.tokens <= max_tokens => {
                last.groups.push((group, sequences));
                last.capacity = last.capacity + capacity;
            }
            _ => out.push((kind, MicroBatch { groups: vec![(group, sequences)], capacity })),
        }
    }
    out
}

impl MicroBatch<'_> {
    /// Size of the micro-batch.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// The groups, each with the indices of its sequences, including those with an empty completion.
    pub fn groups(&self) -> impl Iterator<Item = (&PromptGroup<'_>, Range<usize>)> {
        self.groups.iter().map(|(group, sequences)| (*group, sequences.clone()))
    }

    /// Packs the micro-batch. The scores of its [`scored`](Self::scored) sequences are contiguous and in order.
    pub fn batch(&self, sharing: bool) -> Batch {
        let branches: Vec<Vec<&[u32]>> = self.groups.iter().map(|(group, _)| group.branches().collect()).collect();
        let both = self.groups.iter().zip(&branches);
        let segments: Vec<_> =
            both.map(|((group, _), branches)| GroupSegment { prefix: group.prompt, branches }).collect();
        Batch::new(&segments, sharing)
    }

    /// Indices of the sequences with a non-empty completion, group by group, in order.
    pub fn scored_groups(&self) -> impl Iterator<Item = impl Iterator<Item = usize>> {
        self.groups.iter().map(|(group, sequences)| {
            let taking_part = group.completions.iter().zip(sequences.clone()).filter(|(c, _)| !c.is_empty());
            taking_part.map(|(_, sequence)| sequence)
        })
    }

    /// Indices of the sequences with a non-empty completion, in order.
    pub fn scored(&self) -> impl Iterator<Item = usize> {
        self.scored_groups().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &[u32] = &[1, 2, 3];
    const B: &[u32] = &[4];

    fn groups() -> Vec<PromptGroup<'static>> {
        let of = |prompt, completion| PromptCompletion { prompt, completion };
        PromptGroup::by_prompt(&[
            of(A, &[5, 6]),
            of(A, &[]),
            of(A, &[7]),
            of(B, &[]),
            of(A, &[8, 8, 8]),
            of(B, &[9]),
            of(B, &[9, 9]),
        ])
    }

    #[test]
    fn different_prompts_of_equal_length_are_separate_groups() {
        let of = |prompt, completion| PromptCompletion { prompt, completion };
        let groups = PromptGroup::by_prompt(&[of(A, &[5]), of(&[1, 2, 4], &[6]), of(&[1, 2, 4], &[7])]);
        assert_eq!(groups.iter().map(|g| g.completions.len()).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn micro_batches_are_split_only_between_groups() {
        let groups = groups();
        let cut = |budget| -> Vec<String> {
            let list =
                |m: &MicroBatch<'_>| format!("{:?}", m.groups.iter().map(|(_, s)| s.clone()).collect::<Vec<_>>());
            micro_batches(&groups, budget, true).iter().map(list).collect()
        };
        // The groups have 3 + 1 + 0, none, 3 + 2, and 1 + 0 + 1 rows.
        assert_eq!(cut(100), ["[0..3, 4..5, 5..7]"]);
        assert_eq!(cut(9), ["[0..3, 4..5]", "[5..7]"]);
        assert_eq!(cut(8), ["[0..3]", "[4..5, 5..7]"]);
        assert_eq!(cut(1), ["[0..3]", "[4..5]", "[5..7]"]);
        let apart = micro_batches_by(&groups, 100, true, |group| group == 2);
        let list = |(kind, micro): &(bool, MicroBatch<'_>)| (*kind, micro.scored().collect::<Vec<_>>());
        assert_eq!(
            apart.iter().map(list).collect::<Vec<_>>(),
            [(false, vec![0, 2]), (true, vec![4]), (false, vec![5, 6])]
        );
    }

    #[test]
    fn the_scores_of_a_micro_batch_are_in_completion_order() {
        let groups = groups();
        let sequences: Vec<&[u32]> = groups.iter().flat_map(|g| g.completions.clone()).collect();
        for sharing in [true, false] {
            let micro = &micro_batches(&groups, 100, sharing)[0];
            let batch = micro.batch(sharing);
            assert_eq!(batch.capacity(), micro.capacity);
            assert_eq!(micro.scored().collect::<Vec<_>>(), [0, 2, 4, 5, 6]);
            let targets: Vec<u32> = micro.scored().flat_map(|i| sequences[i].to_vec()).collect();
            assert_eq!(batch.targets, targets);
        }
    }

    #[test]
    fn groups_with_equal_prompts_are_not_merged() {
        let group = |completion| PromptGroup { prompt: A, completions: vec![completion] };
        let groups = [group(&[5, 6][..]), group(&[7, 8])];
        let [one] = &micro_batches(&groups, 100, true)[..] else { panic!("one micro-batch") };
        assert_eq!((one.capacity().tokens, one.batch(true).groups), (8, vec![0, 4, 8]));
    }

    #[test]
    fn check_groups_refuses_empty_prompts_and_unknown_ids() {
        let json = r#"{"model_type": "llama", "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1,
            "num_attention_heads": 2, "vocab_size": 10}"#;
        let config = ModelConfig::parse(json).unwrap();
        let of = |prompt: &'static [u32], completions: &[&'static [u32]]| PromptGroup {
            prompt,
            completions: completions.to_vec(),
        };
        let good = of(A, &[&[9], &[], &[0, 9]]);
        assert!(check_groups(&config, &[good.clone(), of(B, &[&[]])]).is_ok() && check_groups(&config, &[]).is_ok());
        let error = |group: PromptGroup<'_>| match check_groups(&config, &[good.clone(), group]) {
            Err(Error::Sequence { index, message }) => (index, message),
            other => panic!("{other:?}"),
        };
        let outside = |id: u32| format!("token id {id} is outside the vocabulary of 10 tokens");
        assert_eq!(error(of(&[1, 10], &[&[3]])), (3, outside(10)));
        assert_eq!(error(of(A, &[&[3], &[4, 11, 12]])), (4, outside(11)));
        let empty = "the prompt is empty; it must have at least one token, such as the start token".to_owned();
        assert_eq!(error(of(&[], &[&[3]])), (3, empty));

        assert_eq!((longest(&[]), longest(&[of(&[], &[&[]])])), (1, 1));
        assert_eq!(longest(&[of(B, &[&[1, 2]]), of(A, &[&[], &[1, 2], &[1]]), of(A, &[&[3]])]), 5);
        assert_eq!((followed(A, &[7, 8]), followed(A, &[]), followed(&[], &[])), (vec![7, 8, 8], vec![3], vec![]));
        let left = good.left_out();
        assert_eq!((left.prompt, left.completions), (A, vec![&[][..]; 3]));
        assert_eq!(good.capacity(true), Capacity { tokens: 4, blocks: 2, score_rows: 3 });
        assert_eq!(good.capacity(false), Capacity { tokens: 7, blocks: 2, score_rows: 3 });
    }
}
