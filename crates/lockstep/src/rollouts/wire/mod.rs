//! The one form of a scored group outside a process: in a recorded run (`rollouts.bin`), in a checkpoint's unfinished
//! generation batch, and between a worker and its learner.
//!
//! A [`Group`] is a prompt, its completions and what is known of them; [`Group::write`] and [`Group::read`] make
//! bytes of it and a group again, to the same bits. Below that lies a record of named columns ([`RecordWriter`],
//! [`RecordReader`]), which knows no group: a message between processes may be one, too. [`file`](mod@file) appends
//! records to a file and finds them again.
//!
//! # Bytes
//!
//! All numbers are little-endian. A *varint* is an unsigned LEB128 number of at most 64 bits: seven bits a byte, the
//! lowest first, the high bit set in all bytes but the last. A file or a message is any number of records, one behind
//! the other:
//!
//! | bytes | what |
//! |---|---|
//! | 4 | `LSG` and the version of this layout, 1 |
//! | 4 | the length of the body |
//! | 8 | XXH3 (64 bits, no seed) of the body |
//! | length | the body: a directory, then the columns' bytes one behind the other, in the directory's order |
//!
//! The directory is the number of columns as a varint, then of each column:
//!
//! | bytes | what |
//! |---|---|
//! | 1 | length of the name |
//! | … | the name, UTF-8 |
//! | 1 | the kind of its values; 128 more where a reader that does not know the column must refuse the record |
//! | varint | its width: how many values stand side by side (1 for most) |
//! | varint | the length of its bytes |
//!
//! | kind | values |
//! |---|---|
//! | 1 | varints |
//! | 2 | f32 |
//! | 3 | f64 |
//! | 4 | runs: pairs of varints, a value and how often it stands there (never 0 times) |
//! | 5 | texts: a varint, the length, and UTF-8 |
//! | 6 | bytes |
//!
//! # Columns of a group
//!
//! C completions; T tokens, those of all completions together, the first completion's first. A column that is absent
//! says that the thing is not known, or is as the last column of the table says. More columns may follow in later
//! versions; none of these changes its meaning.
//!
//! | column | kind | values | absent |
//! |---|---|---|---|
//! | `group` (must be known) | varint | 1: the group's number in the run | an error |
//! | `prompt_ids` (must be known) | varint | the prompt's tokens | an error |
//! | `lengths` (must be known) | varint | C: tokens of each completion | an error |
//! | `ids` (must be known) | varint | T: token ids | an error |
//! | `step` | varint | 1: the first optimizer step on it | |
//! | `prompt_id` | varint | 1: the dataset's row | |
//! | `prompt` | text | 1: what rewards saw of it, JSON: a string or a list of messages | |
//! | `prompt_in_batch` | varint | 1: which of a batch's distinct prompts it is | |
//! | `dataset` | text | 1: the row's other columns, a JSON object | |
//! | `sampling` | text | 1: how tokens were drawn, a JSON object with the configuration's keys | |
//! | `lineage` | bytes | 16: what the weights come from that sampled it ([`Lineage`]) | |
//! | `reward_names` | text | R: the reward functions | R = 0 |
//! | `reward_weights` | f64 | R | |
//! | `problems` | text | why completions have no score, JSON objects as [`Group::problems`] says | none |
//! | `prompt.NAME` | f32 or varint | width × tokens of the prompt but the first; reserved: nothing fills it yet | |
//! | `generations` | varint | C: which episode of the group | 0, 1, 2, … |
//! | `finish_reasons` | runs | C: 0 `stop`, 1 `length`; 2 `unfinished`, of a part of a completion in a checkpoint or a message | |
//! | `scored` | runs | C × R, the first completion's R first: 1 where there is a score | R = 0 |
//! | `scores` | f64 | the scores where `scored` is 1 | R = 0 |
//! | `step_scores` | text | C: per reward null or a list of [token, score], JSON | none |
//! | `completions` | text | C: what rewards saw, JSON as `prompt` | |
//! | `extra` | text | C: what rewards add to the table of completions, JSON objects | none |
//! | `forks` | varint, width 2 | C × (1 + the parent's place or 0, tokens shared with it); reserved as `prompt.NAME` | no forks |
//! | `advantages` | f32 | C: one for all tokens of a completion | |
//! | `token_advantages` | f32 | T: one for each token | |
//! | `mask` | runs | T: 1 where the loss may use the token | 1 where it was sampled |
//! | `inserted` | runs | T: 1 where the model did not sample the token | 0 |
//! | `versions` | runs | T: the version of the weights that each token was sampled with | |
//! | `token.NAME` | f32 or varint | width × T: `sampler_logps`, `entropies`, `ref_logps`, … | |
//! | `has.NAME` | runs | C: 1 where the column `NAME` has the completion; what the others would have is left out of it | 1 |

mod begun;
mod collected;
mod convert;
pub mod file;
mod group;
mod job;
mod lines;
mod read;
mod record;
mod write;

#[cfg(test)]
mod file_tests;
#[cfg(test)]
mod job_tests;
#[cfg(test)]
mod tests;

/// Whether bytes are records, and no text.
pub fn is_records(bytes: &[u8]) -> bool {
    bytes.starts_with(record::MAGIC)
}

pub use crate::rollouts::lineage::Lineage;
pub(crate) use begun::groups_of_begun;
pub(crate) use collected::groups_of_answers;
pub(crate) use convert::{of_evaluation, of_rollouts};
pub use group::{Completion, Fork, Group};
pub use model::columns::NEW_LOGPS;
pub use record::{Kind, RecordReader, RecordWriter, VERSION, WireError};
