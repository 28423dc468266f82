//! Sequences to micro-batches: consecutive sequences with one prompt form a group, and micro-batches are cut between
//! groups only.
//!
//! Every sum over tokens runs in the order of the sequences and goes on from micro-batch to micro-batch, so where the cuts
//! lie changes no bit. A group is never cut: its prompt is computed once, forward and backward.

use model::{Batch, Capacity, GroupSegment};
use std::ops::Range;

/// A prompt and its completion.
#[derive(Clone, Copy, Debug)]
pub struct PromptCompletion<'a> {
    /// Prompt ids; not empty.
    pub prompt: &'a [u32],
    /// Completion ids; the scored tokens. An empty one takes no part.
    pub completion: &'a [u32],
}

/// Consecutive groups that go through the model together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MicroBatch {
    /// Sequences of each group (those with an empty completion among them).
    pub groups: Vec<Range<usize>>,
    /// What it takes.
    pub capacity: Capacity,
}

/// Cuts `sequences` into micro-batches of at most `max_tokens` rows. A larger group is a micro-batch of its own.
pub fn micro_batches(sequences: &[PromptCompletion<'_>], max_tokens: usize, sharing: bool) -> Vec<MicroBatch> {
    let mut out: Vec<MicroBatch> = Vec::new();
    for group in groups(sequences) {
        let lengths: Vec<usize> = branches(&sequences[group.clone()]).map(<[u32]>::len).collect();
        if lengths.is_empty() {
            continue;
        }
        let capacity = Capacity::of_group(sequences[group.start].prompt.len(), &lengths, sharing);
        match out.last_mut() {
            Some(last) if last.capacity.tokens + capacity.tokens <= max_tokens => {
                last.groups.push(group);
                last.capacity = last.capacity + capacity;
            }
            _ => out.push(MicroBatch { groups: vec![group], capacity }),
        }
    }
    out
}

impl MicroBatch {
    /// Packs it. The scores of its [`scored`](Self::scored) sequences come one behind the other.
    pub fn batch(&self, sequences: &[PromptCompletion<'_>], sharing: bool) -> Batch {
        let branches: Vec<Vec<&[u32]>> =
            self.groups.iter().map(|g| branches(&sequences[g.clone()]).collect()).collect();
        let segment =
            |(group, branches): (&Range<usize>, _)| GroupSegment { prefix: sequences[group.start].prompt, branches };
        let segments: Vec<_> = self.groups.iter().zip(branches.iter().map(Vec::as_slice)).map(segment).collect();
        Batch::new(&segments, sharing)
    }

    /// The sequences that take part, in order.
    pub fn scored<'a>(&'a self, sequences: &'a [PromptCompletion<'_>]) -> impl Iterator<Item = usize> + 'a {
        self.groups.iter().cloned().flatten().filter(|&i| !sequences[i].completion.is_empty())
    }
}

/// Runs of equal prompts.
fn groups(sequences: &[PromptCompletion<'_>]) -> Vec<Range<usize>> {
    let mut out: Vec<Range<usize>> = Vec::new();
    for (i, sequence) in sequences.iter().enumerate() {
        match out.last_mut() {
            Some(last) if sequences[last.start].prompt == sequence.prompt => last.end = i + 1,
            _ => out.push(i..i + 1),
        }
    }
    out
}

fn branches<'a>(group: &[PromptCompletion<'a>]) -> impl Iterator<Item = &'a [u32]> {
    group.iter().map(|s| s.completion).filter(|c| !c.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &[u32] = &[1, 2, 3];
    const B: &[u32] = &[4];

    fn sequences() -> Vec<PromptCompletion<'static>> {
        let of = |prompt, completion| PromptCompletion { prompt, completion };
        vec![of(A, &[5, 6]), of(A, &[]), of(A, &[7]), of(B, &[]), of(A, &[8, 8, 8]), of(B, &[9]), of(B, &[9, 9])]
    }

    #[test]
    fn cuts_between_groups_only() {
        let sequences = sequences();
        let cut = |budget| -> Vec<String> {
            micro_batches(&sequences, budget, true).into_iter().map(|m| format!("{:?}", m.groups)).collect()
        };
        // Rows: 3 + 1 + 0, none, 3 + 2, 1 + 0 + 1.
        assert_eq!(cut(100), ["[0..3, 4..5, 5..7]"]);
        assert_eq!(cut(9), ["[0..3, 4..5]", "[5..7]"]);
        assert_eq!(cut(8), ["[0..3]", "[4..5, 5..7]"]);
        assert_eq!(cut(1), ["[0..3]", "[4..5]", "[5..7]"]);
    }

    #[test]
    fn scores_are_those_of_the_completions_in_order() {
        let sequences = sequences();
        for sharing in [true, false] {
            let micro = &micro_batches(&sequences, 100, sharing)[0];
            let batch = micro.batch(&sequences, sharing);
            assert_eq!(batch.capacity(), micro.capacity);
            let targets: Vec<u32> = micro.scored(&sequences).flat_map(|i| sequences[i].completion.to_vec()).collect();
            assert_eq!(batch.targets, targets);
        }
    }
}
