//! The messages about generation between rank 0 and the other ranks. Jobs and answers have the bytes of those of
//! workers, and are sent as the numbers of a message.

use anyhow::Context as _;
use rollout::EngineConfig;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A request of rank 0.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Builds an engine of these sizes. The reply is [`Reply::Ready`].
    Build { sizes: EngineConfig, division: Division },
    /// Generates the groups of jobs with the shared weights. `jobs` has the number of bytes of each job. If `keeps` is
    /// set, the rank keeps their activations, and drops those of other generations than this one. The replies are a
    /// [`Reply::Group`] for each job as soon as it is done, and [`Reply::Done`]; they have the same number.
    Generate { number: u64, jobs: Vec<usize>, keeps: Option<u64> },
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
    Done {
        number: u64,
    },
}

/// A request or a reply as text.
pub(super) fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain data")
}

/// The request or reply of a text.
pub(super) fn value<T: DeserializeOwned>(text: &str) -> anyhow::Result<T> {
    serde_json::from_str(text).context("a message about generation cannot be read")
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

    #[test]
    fn a_message_of_another_build_is_an_error() {
        let reply = value(&text(&Reply::Group { number: 3, bytes: 7, kept: true })).unwrap();
        assert!(matches!(reply, Reply::Group { number: 3, bytes: 7, kept: true }));
        let error = format!("{:#}", value::<Request>(r#"{"Dance": 3}"#).unwrap_err());
        assert!(error.starts_with("a message about generation cannot be read: unknown variant `Dance`"), "{error}");
    }
}
