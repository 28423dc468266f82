//! The messages about generation between rank 0 and the other ranks. Jobs and answers have the bytes of those of
//! workers, and are sent as the numbers of a message.

use anyhow::Context as _;
use rollout::{Counters, EngineConfig};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A request of rank 0.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Builds an engine of these sizes. The bytes are those of [`rollout::Engine::drafts`], of this length. The reply
    /// is [`Reply::Ready`].
    Build { sizes: EngineConfig, division: Division, drafts: usize },
    /// Generates the groups of jobs with the shared weights. `jobs` has the number of bytes of each job. If `keeps` is
    /// set, the rank keeps their activations, and drops those of other generations than this one. The last `texts`
    /// bytes are completions of other ranks, for drafts. The replies are a [`Reply::Group`] for each job as soon as it
    /// is done, and [`Reply::Done`]; they have the same number.
    Generate { number: u64, jobs: Vec<usize>, texts: usize, keeps: Option<u64> },
}

/// How generation is divided.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Division {
    /// The directory of the tokenizer, which stop strings need.
    pub tokenizer: PathBuf,
    /// The number of groups of an optimizer step.
    pub groups_per_step: usize,
    /// The number of rows (tokens) whose activations each rank keeps for the update.
    pub kept_rows: usize,
    /// The largest number of rows of a rank's part of a generation.
    pub most_rows: usize,
}

/// A reply of another rank.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    Ready,
    /// The answer to a job has this many bytes. If `kept` is true, the rank has kept the activations of the group.
    Group {
        number: u64,
        bytes: usize,
        kept: bool,
    },
    /// All jobs are done. The counts are those of the rank's engine.
    Done {
        number: u64,
        counters: Counters,
    },
}

/// Adds a prompt and its longest completion to `texts`, unless the completion is empty.
pub(super) fn add_text<'a>(texts: &mut Vec<u32>, prompt: &[u32], completions: impl Iterator<Item = &'a [u32]>) {
    let Some(longest) = completions.max_by_key(|ids| ids.len()).filter(|ids| !ids.is_empty()) else { return };
    texts.extend([prompt.len() as u32, longest.len() as u32]);
    texts.extend(prompt.iter().chain(longest));
}

/// The prompts and completions of [`add_text`], up to the first that is incomplete.
pub(super) fn texts(mut rest: &[u32]) -> Vec<(&[u32], &[u32])> {
    let mut found = Vec::new();
    while let [prompt, completion, ids @ ..] = rest
        && let Some((prompt, ids)) = ids.split_at_checked(*prompt as usize)
        && let Some((completion, ids)) = ids.split_at_checked(*completion as usize)
    {
        found.push((prompt, completion));
        rest = ids;
    }
    found
}

/// Bytes as the numbers of a message.
pub(super) fn numbers(bytes: &[u8]) -> Vec<u32> {
    let number = |chunk: &[u8]| {
        let mut four = [0; 4];
        four[..chunk.len()].copy_from_slice(chunk);
        u32::from_le_bytes(four)
    };
    bytes.chunks(4).map(number).collect()
}

/// The bytes of a message with `numbers`, split into parts of these lengths.
pub(super) fn bytes(numbers: &[u32], lengths: &[usize]) -> anyhow::Result<Vec<Vec<u8>>> {
    let all: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let mut rest = &all[..];
    let part = |&length: &usize| {
        let (part, others) = rest.split_at_checked(length).context("a message about generation is too short")?;
        rest = others;
        Ok(part.to_vec())
    };
    lengths.iter().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_completion_of_each_prompt_is_a_text() {
        let mut all = Vec::new();
        add_text(&mut all, &[1, 2], [&[3][..], &[4, 5], &[]].into_iter());
        add_text(&mut all, &[6], [&[][..]].into_iter());
        add_text(&mut all, &[7], [&[8][..]].into_iter());
        assert_eq!(texts(&all), [(&[1, 2][..], &[4, 5][..]), (&[7], &[8])]);
        assert_eq!(texts(&all[..all.len() - 1]), [(&[1, 2][..], &[4, 5][..])]);
        assert!(texts(&[]).is_empty() && texts(&[1]).is_empty());
    }

    #[test]
    fn bytes_sent_as_numbers_are_unchanged() {
        let parts = [vec![1, 2, 3, 4, 5], vec![], vec![255], vec![0; 9]];
        let lengths = parts.each_ref().map(Vec::len);
        let sent = numbers(&parts.concat());
        assert_eq!((sent.len(), sent[0]), (4, 0x0403_0201));
        assert_eq!(bytes(&sent, &lengths).unwrap(), parts);
        assert_eq!(bytes(&[], &[]).unwrap(), Vec::<Vec<u8>>::new());
        let error = bytes(&sent[..3], &lengths).unwrap_err().to_string();
        assert_eq!(error, "a message about generation is too short");
    }
}
