//! The bytes of batches that are generated in chunks of tokens. The bytes of a batch are a first record, followed by
//! the answer to the latest job of each group ([`GroupAnswer`]).
//!
//! | column of the first record | kind | values |
//! |---|---|---|
//! | `begun` (must be known) | varint | 3 values: optimizer steps done when the batch was begun, the number of its first group, how many groups it has |
//! | `rows` (must be known) | varint | for each group, the index of its dataset row |
//! | `rewards` | text | names of the reward functions that workers have called for the groups that have ended |

use super::group::Group;
use super::job::{answered, numbers, size, texts};
use super::record::{RecordReader, RecordWriter, WireError};
use crate::data::prompts::Prompt;
use crate::rollouts::collector::CollectRequest;
use crate::rollouts::jobs::{BegunBatch, GroupJob};
use model::{GroupId, Updates};
use rollout::SamplingParams;
use std::sync::Arc;
use telemetry::Step;

impl BegunBatch {
    /// The batch as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let BegunBatch { step, prompts, answers, rewards } = self;
        let first = prompts.first_key_value().map_or(0, |(first, _)| first.0);
        let mut head = RecordWriter::new();
        head.must_be_known().uints("begun", 1, [step.0, first, answers.len() as u64]);
        head.must_be_known().uints("rows", 1, prompts.values().map(|prompt| prompt.row as u64));
        head.texts("rewards", rewards);
        let mut bytes = Vec::new();
        head.finish(&mut bytes);
        for answer in answers {
            bytes.extend(answer.to_bytes());
        }
        bytes
    }

    /// Reads the first batch in `bytes`, and also returns the bytes after it. Settings are taken from the request
    /// `like`; `row` finds a dataset row by its index.
    pub fn take<'a>(
        bytes: &'a [u8],
        like: &CollectRequest<'_>,
        row: impl Fn(u64) -> Option<Arc<Prompt>>,
    ) -> Result<(BegunBatch, &'a [u8]), WireError> {
        let (head, mut rest) = head(bytes)?;
        let ([step, first, groups], rewards) = (numbers(&head, "begun")?, texts(&head, "rewards")?);
        let rows = head.uints("rows")?.unwrap_or_default();
        if rows.len() as u64 != groups || first.checked_add(groups).is_none() {
            return Err(WireError::new("column `rows` must have one row per group"));
        }
        let (mut prompts, mut answers) = (std::collections::BTreeMap::new(), Vec::new());
        for (group, wanted) in GroupId(first).and_after().zip(rows) {
            let prompt = row(wanted).ok_or_else(|| {
                WireError::new(format!("group {group}: column `rows` names a row that the data lacks"))
            })?;
            let job = GroupJob {
                group,
                prompt: Prompt::clone(&prompt),
                num_generations: like.num_generations,
                sampling: SamplingParams::clone(like.sampling.of(group)),
                updates: Updates(0),
                step: Step(step),
                rewards: rewards.clone(),
                so_far: Vec::new(),
                until: None,
            };
            let (answer, behind) = answered(rest, &job, false)?;
            answers.push(answer);
            rest = behind;
            prompts.insert(group, prompt);
        }
        Ok((BegunBatch { step: Step(step), prompts, answers, rewards }, rest))
    }
}

fn head(bytes: &[u8]) -> Result<(RecordReader<'_>, &[u8]), WireError> {
    let (head, rest) = RecordReader::take(bytes)?;
    head.refuse_unknown(|name| ["begun", "rows"].contains(&name))?;
    Ok((head, rest))
}

/// The optimizer steps done when a batch began, its first group number, and its rows.
pub(crate) type HeadOfBegun = ([u64; 2], Vec<u64>);

/// The first records of the concatenated batches in `bytes`, without scores: which groups have been scored depends on
/// when workers answered.
pub(crate) fn heads_of_begun(mut bytes: &[u8]) -> Result<Vec<HeadOfBegun>, WireError> {
    let mut heads = Vec::new();
    while !bytes.is_empty() {
        let (batch_head, rest) = head(bytes)?;
        let [step, first, count] = numbers(&batch_head, "begun")?;
        heads.push(([step, first], batch_head.uints("rows")?.unwrap_or_default()));
        bytes = rest;
        for _ in 0..size("begun", count)? {
            // Skips the group's answer, which is two records.
            let (_, rest) = RecordReader::take(bytes)?;
            let (_, rest) = RecordReader::take(rest)?;
            bytes = rest;
        }
    }
    Ok(heads)
}

/// All groups of the concatenated batches in `bytes`.
pub(crate) fn groups_of_begun(mut bytes: &[u8]) -> Result<Vec<Group>, WireError> {
    let mut groups = Vec::new();
    while !bytes.is_empty() {
        let (batch_head, rest) = head(bytes)?;
        let [_, _, count] = numbers(&batch_head, "begun")?;
        bytes = rest;
        for _ in 0..size("begun", count)? {
            let (_, rest) = RecordReader::take(bytes)?;
            let (group, rest) = Group::read(rest)?;
            groups.push(group);
            bytes = rest;
        }
    }
    Ok(groups)
}
