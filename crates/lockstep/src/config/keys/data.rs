//! Configuration keys of the training data: a dataset, or recorded rollouts.

use crate::bad_input;
use crate::config::keys::Config;
use serde_json::{Map, Value};

/// Columns of a row that may be passed to the chat template along with the messages.
pub(crate) const TEMPLATE_COLUMNS: [&str; 2] = ["tools", "chat_template_kwargs"];

macro_rules! data_keys { ($collect:ident $($rows:tt)*) => { $collect! { $($rows)* "Data" {
    /// The training data: a JSONL or Parquet file, a directory of them, or a Hub id (fetched into the local cache).
    dataset_name: Option<String> = None => TRL.name().on_resume(Warn);
    /// The dataset's configuration: a sub-directory, or a part of the file names.
    dataset_config: Option<String> = None => TRL;
    /// The split; in a directory, the files whose names start with it.
    dataset_split: String = "train".to_owned() => TRL.trl_name("dataset_train_split");
    /// The column that holds the prompt: text, or a list of chat messages.
    prompt_column: String = "prompt".to_owned() => OURS;
    /// The column that holds the completion to learn (supervised fine-tuning only). Rows with neither this column nor
    /// the prompt's are learned whole: a column `text`, a conversation in `messages`, or token ids in `input_ids`, with
    /// `labels` (-100: not learned), `completion_mask` and `assistant_masks` as in TRL.
    completion_column: String = "completion".to_owned() => OURS.read_by(SFT);
    /// Supervised fine-tuning: learn only completions, not the prompts before them. Not set: true if rows have a prompt
    /// and a completion. In rows of token ids, `completion_mask` has an effect only if this is true.
    completion_only_loss: Option<bool> = None => TRL.read_by(SFT);
    /// Supervised fine-tuning on conversations: learn only the assistant's messages. If the chat template has no {%
    /// generation %}, docs/algorithms.md describes how these tokens are found.
    assistant_only_loss: bool = false => TRL.read_by(SFT);
    /// Renamed columns, new = "old": rewards read the new names. For example { answer = "ground_truth" }.
    columns: Map<String, Json> = Map::new() => OURS;
    /// A system message before every prompt. A text prompt then becomes a chat with this message and a user message.
    system_prompt: Option<String> = None => OURS;
    /// Use only this many rows, from the start.
    max_samples: Option<usize> = None => OURS.range(at_least(1.0));
    /// Skip rows whose prompt has more tokens; their number is reported. Not set: a prompt that does not fit the
    /// context is an error, except in supervised fine-tuning, where only max_length counts. Prompts are never
    /// truncated.
    max_prompt_length: Option<usize> = None
        => OURS.range(at_least(1.0)).read_by(ONLINE.and(SFT)).instead(&[(PAIRS, "max_length")]);
    /// The most tokens of prompt + completion in supervised fine-tuning, and of each side of a preference pair. Longer
    /// rows are skipped; their number is reported.
    max_length: Option<usize> = Some(1024)
        => TRL.range(at_least(1.0).at_most(LONG)).read_by(SFT.and(PAIRS))
            .instead(&[(ONLINE, "max_prompt_length and max_completion_length")]);
    /// Train on the rollouts in this file instead of generating (`lockstep train --replay FILE`). The run then needs no
    /// dataset and no reward, and num_train_epochs defaults to 1. See docs/algorithms.md for the format.
    replay: Option<PathBuf> = None => OURS.read_by(ONLINE).on_resume(Warn);
    /// Draw prompts in a new random order each epoch.
    shuffle_dataset: bool = true => TRL.trl_defaults(&[(SFT, "false")]);
    /// Additional values for the chat template, for example { enable_thinking = false }.
    chat_template_kwargs: Map<String, Json> = Map::new() => TRL;
    /// The columns of a prompt's row that are passed to the chat template: tools (a list of JSON schemas) and
    /// chat_template_kwargs (values that override those of the key chat_template_kwargs). Rewards can read both
    /// columns, too. TRL's trainers that generate completions pass neither column; [] does the same. Runs from versions
    /// without this key resume with []. Supervised fine-tuning, preference pairs and reward models always pass both, as
    /// in TRL.
    template_columns: Vec<String> = TEMPLATE_COLUMNS.map(str::to_owned).to_vec() => OURS.read_by(ONLINE);
} } } }
pub(in crate::config) use data_keys;

impl Config {
    /// The seed of shuffling, or `None` to keep the order of the files. Replayed rollouts are never shuffled.
    pub(crate) fn shuffle_seed(&self) -> Option<u64> {
        (self.shuffle_dataset && self.replay.is_none()).then(|| self.data_seed.unwrap_or(self.seed))
    }
}

/// Refuses names of columns that cannot be passed to the chat template.
pub(in crate::config) fn check_template_columns(c: &Config) -> anyhow::Result<()> {
    match c.template_columns.iter().find(|name| !TEMPLATE_COLUMNS.contains(&name.as_str())) {
        None => Ok(()),
        Some(other) => {
            bad_input!("`template_columns` has \"{other}\", but may contain only {}", TEMPLATE_COLUMNS.join(" and "))
        }
    }
}

/// `columns` as a list of (new name, old name). Each value must be a string.
pub(in crate::config) fn renames(columns: &Map<String, Value>) -> Result<Vec<(String, String)>, String> {
    let pair = |(new, old): (&String, &Value)| match old {
        Value::String(old) => Ok((new.clone(), old.clone())),
        other => Err(format!("`columns`: {new} = {other}: expected the old column's name in quotes")),
    };
    columns.iter().map(pair).collect()
}
