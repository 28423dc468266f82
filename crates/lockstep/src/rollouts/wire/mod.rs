//! The byte format of scored groups, for recorded runs (`rollouts.bin`), the unfinished generation batch of a
//! checkpoint, and messages between workers and their learner.
//!
//! A [`Group`] is a prompt, its completions and their data; [`Group::write`] and [`Group::read`] convert groups to
//! bytes and back without loss. The layer below is a record of named columns ([`RecordWriter`], [`RecordReader`]),
//! which knows nothing of groups and also serves other messages between processes. [`file`](mod@file) appends records
//! to a file and reads them by index.
//!
//! # Bytes
//!
//! All numbers are little-endian. A *varint* is an unsigned LEB128 number of at most 64 bits: seven bits a byte, the
//! lowest first, the high bit set in all bytes but the last. A file or a message is a sequence of records. A record is:
//!
//! | bytes | what |
//! |---|---|
//! | 4 | `LSG` and the version of this layout, 1 |
//! | 4 | u32: the length of the body in bytes |
//! | 8 | XXH3 (64 bits, no seed) of the body |
//! | length | the body: a directory, then the columns' bytes, concatenated in the directory's order |
//!
//! The directory is the number of columns as a varint, then an entry for each column:
//!
//! | bytes | what |
//! |---|---|
//! | 1 | length of the column's name in bytes |
//! | … | the name, UTF-8 |
//! | 1 | the kind of the column's values (below); plus 128 if a reader that does not know the column must refuse the record |
//! | varint | the column's width: values per element, such as a token (1 for most columns) |
//! | varint | the length in bytes of the column's values |
//!
//! | kind | values |
//! |---|---|
//! | 1 | varints |
//! | 2 | f32 |
//! | 3 | f64 |
//! | 4 | runs (run-length encoded): pairs of varints, a value and how often it is repeated (never 0 times) |
//! | 5 | texts: each its length as a varint, and UTF-8 |
//! | 6 | raw bytes |
//!
//! # Columns of a group
//!
//! C is the number of completions, T the number of tokens in all completions together, and R the number of reward
//! functions. Tokens are in the order of the completions. "1" means a single value. If a column is absent, its content
//! is unknown, or has the value in the last column of the table. Later versions may add columns, but do not change the
//! meaning of these.
//!
//! | column | kind | values | absent |
//! |---|---|---|---|
//! | `group` (must be known) | varint | 1: the group's number in the run | an error |
//! | `prompt_ids` (must be known) | varint | the prompt's tokens | an error |
//! | `lengths` (must be known) | varint | C: tokens of each completion | an error |
//! | `ids` (must be known) | varint | T: token ids | an error |
//! | `step` | varint | 1: the first optimizer step that trained on the group | |
//! | `prompt_id` | varint | 1: index of the dataset row | |
//! | `prompt` | text | 1: the prompt as reward functions read it, JSON: a string or a list of messages | |
//! | `prompt_in_batch` | varint | 1: index of the prompt among the distinct prompts of its batch | |
//! | `dataset` | text | 1: the row's other columns, a JSON object | |
//! | `sampling` | text | 1: the sampling parameters, a JSON object named by configuration keys | |
//! | `lineage` | bytes | 16: the [`Lineage`] of the weights that sampled the group | |
//! | `reward_names` | text | R: names of the reward functions | R = 0 |
//! | `reward_weights` | f64 | R: weights of the reward functions | |
//! | `problems` | text | why completions have no score, JSON objects as in [`Group::problems`] | none |
//! | `prompt.NAME` | f32 or varint | width × tokens of the prompt but the first; reserved, not written yet | |
//! | `generations` | varint | C: index of the completion's episode in the group | 0, 1, 2, … |
//! | `finish_reasons` | runs | C: 0 `stop`, 1 `length`; 2 `unfinished`, only for part of a completion in a checkpoint or a message | |
//! | `scored` | runs | C × R, the first completion's R first: 1 if there is a score, else 0 | R = 0 |
//! | `scores` | f64 | the scores where `scored` is 1 | R = 0 |
//! | `step_scores` | text | C: JSON, for each reward function null or a list of [last token of a step, score] | none |
//! | `completions` | text | C: the completion as reward functions read it, JSON as `prompt` | |
//! | `extra` | text | C: columns that reward functions add to the table of completions, JSON objects | none |
//! | `forks` | varint, width 2 | C × (1 + index of the completion with the same first tokens, or 0; how many tokens are the same); reserved like `prompt.NAME` | no forks |
//! | `advantages` | f32 | C: one advantage for all tokens of a completion | |
//! | `token_advantages` | f32 | T: one advantage for each token | |
//! | `mask` | runs | T: 1 if the loss may use the token | 1 for sampled tokens |
//! | `inserted` | runs | T: 1 if the model did not sample the token | 0 |
//! | `versions` | runs | T: the version of the weights that each token was sampled with | |
//! | `token.NAME` | f32 or varint | width × T: `sampler_logps`, `entropies`, `ref_logps`, … | |
//! | `has.NAME` | runs | C: 1 if the column `NAME` has values for the completion; it has none for the others | 1 |

use std::borrow::Borrow;

mod begun;
mod collected;
mod convert;
pub mod file;
mod group;
mod job;
mod lines;
mod read;
mod record;
mod view;
mod write;

#[cfg(test)]
mod file_tests;
#[cfg(test)]
mod job_tests;
#[cfg(test)]
pub(crate) mod lies;
#[cfg(test)]
pub(crate) use read::KNOWN;
#[cfg(test)]
mod tests;

/// The records of groups, one after another.
pub(crate) fn records<G: Borrow<Group>>(groups: impl IntoIterator<Item = G>) -> Vec<u8> {
    let mut bytes = Vec::new();
    groups.into_iter().for_each(|group| group.borrow().write(&mut bytes));
    bytes
}

/// The first column that a record in `bytes` has and the corresponding record in `others` lacks: the record's index and
/// the column's name.
pub(crate) fn column_beyond<'a>(mut bytes: &'a [u8], mut others: &[u8]) -> Result<Option<(usize, &'a str)>, WireError> {
    for place in 0.. {
        if bytes.is_empty() || others.is_empty() {
            break;
        }
        let ((record, rest), (other, rest_of_others)) = (RecordReader::take(bytes)?, RecordReader::take(others)?);
        if let Some(name) = record.names().find(|name| !other.names().any(|known| known == *name)) {
            return Ok(Some((place, name)));
        }
        (bytes, others) = (rest, rest_of_others);
    }
    Ok(None)
}

/// Whether bytes are records, as opposed to JSON lines.
pub fn is_records(bytes: &[u8]) -> bool {
    bytes.starts_with(record::MAGIC)
}

pub use crate::rollouts::lineage::Lineage;
pub(crate) use begun::{groups_of_begun, heads_of_begun};
pub(crate) use collected::{WrittenAnswer, groups_of_answers, written_answers};
pub(crate) use convert::{records_of_evaluation, records_of_rollouts};
pub use group::{Completion, Fork, Group};
pub use model::GroupId;
pub use model::columns::NEW_LOGPS;
pub use record::{Kind, RecordReader, RecordWriter, VERSION, WireError};
