//! Finds the files of one split of a dataset.

use crate::bad_input;
use crate::error::BadInput;
use model::hub::DATA_ENDINGS;
use std::path::{Path, PathBuf};

/// The files of a dataset: `path` itself if it is a file, else the files of `configuration` and `split` in the
/// directory, sorted.
///
/// A file belongs to the split `train` if its name, or its directory's, begins with `train` (`train.jsonl`,
/// `train-00000-of-00002.parquet`, `train/0.parquet`). If the files of a directory do not name splits, the directory is
/// treated as one split.
pub(super) fn files(path: &Path, configuration: Option<&str>, split: &str) -> anyhow::Result<Vec<PathBuf>> {
    // `path` may also be standard input; other special files are refused when they are opened.
    if path.exists() && !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut all = Vec::new();
    collect(path, &mut all, 3).map_err(|e| BadInput::new(format!("cannot list {}: {e}", path.display())))?;
    // If there are other data files, `.json` files are their metadata.
    let is_json = |file: &Path| file.extension().is_some_and(|e| e == "json");
    if all.iter().any(|file| !is_json(file)) {
        all.retain(|file| !is_json(file));
    }
    all.sort();
    let relative = |file: &Path| file.strip_prefix(path).unwrap_or(file).to_string_lossy().into_owned();
    if let Some(configuration) = configuration {
        all.retain(|file| {
            let name = relative(file);
            name.split('/').any(|part| part == configuration || part.starts_with(&format!("{configuration}-")))
        });
    }
    let starts = |file: &Path, split: &str| {
        relative(file).split('/').any(|part| {
            part.strip_prefix(split).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '-', '_']))
        })
    };
    let any_split = |file: &PathBuf| ["train", "test", "validation", "dev"].iter().any(|s| starts(file, s));
    let found: Vec<PathBuf> = all.iter().filter(|file| starts(file, split)).cloned().collect();
    if !found.is_empty() {
        return Ok(found);
    }
    if !all.is_empty() && !all.iter().any(any_split) {
        return Ok(all);
    }
    let present: Vec<String> = all.iter().map(|file| relative(file)).take(12).collect();
    let of = configuration.map_or_else(String::new, |c| format!(" of configuration `{c}`"));
    if present.is_empty() {
        bad_input!("{} has no data file{of} ({})", path.display(), DATA_ENDINGS.map(|e| format!(".{e}")).join(", "));
    }
    bad_input!(
        "{} has no file of split `{split}`{of}; it has: {} (chosen by dataset_split, eval_dataset_split and \
         dataset_config)",
        path.display(),
        present.join(", ")
    )
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>, depth: usize) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() && depth > 0 {
            collect(&path, files, depth - 1)?;
        } else if path.is_file() && path.extension().and_then(|e| e.to_str()).is_some_and(|e| DATA_ENDINGS.contains(&e))
        {
            files.push(path);
        }
    }
    Ok(())
}
