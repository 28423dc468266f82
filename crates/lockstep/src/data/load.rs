//! Converts rows to examples: chooses and renames columns, and puts the system prompt before each prompt.

use super::Row;
use super::files::files;
use super::media;
use super::rows::{self, Rows};
use super::{Dataset, Example};
use crate::Config;
use crate::bad_input;
use crate::config::{TEMPLATE_COLUMNS, Task};
use crate::error::{BadInput, OrBadInput};
use crate::models::locate;
use crate::stop::StopSignal;
use model::hub::HubKind;
use rewards::Content;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The column of a row that already has token ids instead of text.
pub(crate) const INPUT_IDS: &str = "input_ids";

/// The standard input of `score-rewards --input -`.
const STDIN: &str = "/dev/stdin";

/// Files are read and hashed in pieces of this size, with a check for a stop request after each piece.
const PIECE_BYTES: usize = 16 << 20;

/// A callback that receives each row, with a function that returns the row's place (file and line) for errors.
pub(super) type Take<'a> = dyn FnMut(Row, &dyn Fn() -> String) -> anyhow::Result<()> + 'a;

/// Which dataset to read, and how.
#[derive(Clone, Debug)]
pub struct DatasetSpec {
    /// A file, a directory or a Hub id.
    pub name: String,
    /// The configuration of the Hub dataset, such as `main`.
    pub config: Option<String>,
    /// The split, such as `train`.
    pub split: String,
    /// The name of the column that holds the prompt.
    pub prompt_column: String,
    /// The name of the column that holds the completion.
    pub completion_column: String,
    /// Whether a row without a completion is an error.
    pub needs_completion: bool,
    /// Whether a row may have one `text`, or one conversation in `messages` or `conversations`, instead of a prompt and
    /// a completion.
    pub whole_texts: bool,
    /// Renamed columns: (new name, old name).
    pub columns: Vec<(String, String)>,
    /// The system prompt that is put before every prompt.
    pub system_prompt: Option<String>,
    /// If set, only this many rows are read, from the start.
    pub max_samples: Option<usize>,
    /// The task preset, which decides how a row is read.
    pub task: Option<Task>,
    /// The columns of a prompt's row that are passed to the chat template.
    pub template_columns: Vec<String>,
    /// Whether the rows are only scored by reward functions, which, unlike the models, may read images, video and
    /// audio.
    pub only_scored: bool,
    /// Rows that the caller supplies; if set, no file is read.
    pub rows: Option<Rows>,
    /// Cancels reading and encoding once it is set.
    pub stop: StopSignal,
}

impl DatasetSpec {
    /// The training dataset that `config` names, if any.
    pub fn train(config: &Config) -> Option<DatasetSpec> {
        let name = config.dataset_name.clone()?;
        Some(Self::of(config, name, config.dataset_split.clone(), config.max_samples))
    }

    /// The dataset of `eval_dataset_name`, if it is set.
    fn eval(config: &Config) -> Option<DatasetSpec> {
        let name = config.eval_dataset_name.clone()?;
        let split = config.eval_dataset_split.clone().unwrap_or_else(|| "test".to_owned());
        Some(Self::of(config, name, split, config.eval_max_samples))
    }

    /// The evaluation datasets of `config` with their names: first `eval_dataset_name`, with an empty name, then
    /// `eval_datasets`.
    pub fn eval_sets(config: &Config) -> Vec<(String, DatasetSpec)> {
        let named = config.eval_datasets.iter().filter_map(|(set, data)| {
            let split = config.eval_dataset_split.clone().unwrap_or_else(|| "test".to_owned());
            Some((set.clone(), Self::of(config, data.as_str()?.to_owned(), split, config.eval_max_samples)))
        });
        Self::eval(config).into_iter().map(|spec| (String::new(), spec)).chain(named).collect()
    }

    /// A file of completions to be scored, with the column names of `config`.
    pub fn completions(config: &Config, name: String) -> DatasetSpec {
        let spec = Self::of(config, name, config.dataset_split.clone(), config.max_samples);
        DatasetSpec { needs_completion: true, only_scored: true, system_prompt: None, ..spec }
    }

    fn of(config: &Config, name: String, split: String, max_samples: Option<usize>) -> DatasetSpec {
        let text = |v: &serde_json::Value| v.as_str().map(str::to_owned);
        DatasetSpec {
            name,
            config: config.dataset_config.clone(),
            split,
            prompt_column: config.prompt_column.clone(),
            completion_column: config.completion_column.clone(),
            needs_completion: false,
            whole_texts: false,
            columns: config.columns.iter().filter_map(|(new, old)| Some((new.clone(), text(old)?))).collect(),
            system_prompt: config.system_prompt.clone(),
            max_samples,
            task: config.task,
            template_columns: config.template_columns.clone(),
            only_scored: false,
            rows: None,
            stop: StopSignal::default(),
        }
    }

    /// Reads the dataset. The [`crate::BadInput`] of invalid data names file and line.
    pub fn load(&self) -> anyhow::Result<Dataset> {
        self.load_with(&mut |_| {})
    }

    /// Reads the dataset; `change` may change each row before it is checked.
    pub fn load_with(&self, change: &mut dyn FnMut(&mut Row)) -> anyhow::Result<Dataset> {
        let mut examples = Vec::new();
        let mut columns = BTreeSet::new();
        let hash = self.read(&mut |mut row, place| {
            change(&mut row);
            let example = self.example(examples.len(), row, place)?;
            columns.extend(example.columns.keys().cloned());
            examples.push(example);
            Ok(())
        })?;
        let columns = columns.into_iter().collect();
        let template_columns = self.template_columns.clone();
        Ok(Dataset { name: self.name.clone(), examples, columns, template_columns, hash })
    }

    /// Calls `take` for each row, and returns the SHA-256 of the files.
    pub(super) fn read(&self, take: &mut Take<'_>) -> anyhow::Result<String> {
        let take: &mut Take<'_> = &mut |row, place| {
            if !self.only_scored {
                media::refuse_columns(&self.columns, &row, place)?;
            }
            take(row, place)
        };
        let mut hash = Sha256::new();
        let limit = self.max_samples.unwrap_or(usize::MAX);
        let taken = match &self.rows {
            Some(rows) => self.read_rows(rows, limit, &mut hash, take)?,
            None => self.read_files(limit, &mut hash, take)?,
        };
        if taken == 0 {
            bad_input!("the dataset {} is empty: it has no rows", self.name);
        }
        Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    fn read_rows(&self, rows: &Rows, limit: usize, hash: &mut Sha256, take: &mut Take<'_>) -> anyhow::Result<usize> {
        for (i, row) in rows.0.iter().take(limit).enumerate() {
            self.stop.check()?;
            hash.update(serde_json::to_vec(row)?);
            hash.update(b"\n");
            take(row.clone(), &|| format!("{}, row {}", self.name, i + 1))?;
        }
        Ok(rows.0.len().min(limit))
    }

    fn read_files(&self, limit: usize, hash: &mut Sha256, take: &mut Take<'_>) -> anyhow::Result<usize> {
        let path = locate(&self.name, HubKind::Dataset)?;
        let mut taken = 0;
        for file in files(&path, self.config.as_deref(), &self.split)? {
            if taken == limit {
                break;
            }
            let content = self.bytes(&file)?;
            for piece in content.chunks(PIECE_BYTES) {
                self.stop.check()?;
                hash.update(piece);
            }
            for (place, row) in rows::read(&file, &content, limit - taken, &self.stop)? {
                self.stop.check()?;
                let place = || {
                    format!("{}, {} {place}", file.display(), if is_lines(&file, &content) { "line" } else { "row" })
                };
                take(row, &place)?;
                taken += 1;
            }
        }
        Ok(taken)
    }

    fn bytes(&self, path: &Path) -> anyhow::Result<Vec<u8>> {
        let cannot = || format!("cannot read {}", path.display());
        // `score-rewards --input -` reads standard input, which may be a pipe.
        let mut file = if path == Path::new(STDIN) {
            File::open(path)
        } else {
            disk::open(path).and_then(|file| disk::refuse_holes(&file).map(|()| file))
        }
        .or_bad_input_in(cannot())?;
        let mut content = Vec::new();
        loop {
            self.stop.check()?;
            if file.by_ref().take(PIECE_BYTES as u64).read_to_end(&mut content).or_bad_input_in(cannot())? == 0 {
                return Ok(content);
            }
        }
    }

    /// Parses a text or a conversation. The error does not name the row.
    pub(super) fn content(&self, value: &Value) -> Result<Content, String> {
        let content = Content::read(value)?;
        if self.only_scored { Ok(content) } else { media::refuse_parts(content) }
    }

    /// Converts a row to an example: renames columns, and separates prompt and completion from the other columns.
    fn example(&self, index: usize, mut row: Row, place: &dyn Fn() -> String) -> anyhow::Result<Example> {
        if self.whole_texts && row.contains_key(INPUT_IDS) {
            let nothing = Content::Text(String::new());
            return Ok(Example { row: index, prompt: nothing, completion: None, columns: row });
        }
        if let Some(whole) = self.whole_text(&row) {
            let content =
                self.content(&row[whole]).map_err(|e| BadInput::new(format!("{}: `{whole}`: {e}", place())))?;
            let columns = row.into_iter().filter(|(name, _)| TEMPLATE_COLUMNS.contains(&name.as_str())).collect();
            return Ok(Example { row: index, prompt: content, completion: None, columns });
        }
        let present = || row.keys().map(|k| format!("`{k}`")).collect::<Vec<_>>().join(", ");
        let Some(prompt) = row.get(&self.prompt_column) else {
            bad_input!(
                "{}: no column `{}` for the prompt; the columns are {}. Set prompt_column (or task) to the prompt's \
                 column",
                place(),
                self.prompt_column,
                present()
            );
        };
        let prompt =
            self.content(prompt).map_err(|e| BadInput::new(format!("{}: `{}`: {e}", place(), self.prompt_column)))?;
        if let Some((_, old)) = self.columns.iter().find(|(_, old)| !row.contains_key(old)) {
            bad_input!("{}: no column `{old}`, which `columns` renames; the columns are {}", place(), present());
        }
        let completion = match row.get(&self.completion_column) {
            Some(completion) => Some(
                self.content(completion)
                    .map_err(|e| BadInput::new(format!("{}: `{}`: {e}", place(), self.completion_column)))?,
            ),
            None if self.needs_completion => bad_input!(
                "{}: no column `{}` for the completion; the columns are {}. Set completion_column to the completion's \
                 column",
                place(),
                self.completion_column,
                present()
            ),
            None => None,
        };
        // Columns are renamed first, so that one column can serve both as prompt and under another name.
        let renamed: Vec<(String, Value)> =
            self.columns.iter().map(|(new, old)| (new.clone(), row[old].clone())).collect();
        for (_, old) in &self.columns {
            row.shift_remove(old);
        }
        row.extend(renamed);
        row.shift_remove(&self.prompt_column);
        if self.needs_completion {
            row.shift_remove(&self.completion_column);
        }
        Ok(Example { row: index, prompt: self.with_system(prompt), completion, columns: row })
    }

    /// The name of the column with the row's whole text or conversation, if the row has no prompt and completion.
    fn whole_text<'a>(&'a self, row: &Row) -> Option<&'a str> {
        if !self.whole_texts || [&self.prompt_column, &self.completion_column].iter().any(|c| row.contains_key(*c)) {
            return None;
        }
        let column =
            |name: &'static str| self.columns.iter().find(|(new, _)| new == name).map_or(name, |(_, old)| old.as_str());
        ["text", "messages", "conversations"].map(column).into_iter().find(|name| row.contains_key(*name))
    }

    /// The prompt with the system prompt before it, unless the prompt has a system message of its own.
    pub(super) fn with_system(&self, prompt: Content) -> Content {
        match &self.system_prompt {
            Some(system) => prompt.after_system(system),
            None => prompt,
        }
    }
}

/// Whether errors name line numbers; for Parquet and for a JSON list of objects, errors name row numbers.
fn is_lines(path: &Path, content: &[u8]) -> bool {
    let ending = path.extension().and_then(|e| e.to_str());
    ending != Some("parquet") && !(ending == Some("json") && rows::is_list(content))
}
