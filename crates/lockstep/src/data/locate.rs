//! From a name to files: paths as they are, and Hub ids in the local cache that Hugging Face's tools fill.

use super::rows::ENDINGS;
use crate::bad_input;
use crate::error::BadInput;
use std::path::{Path, PathBuf};

/// What a Hub id names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HubKind {
    /// A model.
    Model,
    /// A data set.
    Dataset,
}

/// The path that `name` stands for: itself if it exists, else a Hub id's snapshot in the cache.
///
/// The cache is laid out as Hugging Face's tools lay it: `hub/models--ORG--NAME/refs/main` names the commit, and
/// `snapshots/COMMIT/` has the files.
pub fn locate(name: &str, kind: HubKind) -> anyhow::Result<PathBuf> {
    locate_in(name, kind, &hub_cache())
}

fn locate_in(name: &str, kind: HubKind, cache: &Path) -> anyhow::Result<PathBuf> {
    let path = PathBuf::from(name);
    if path.exists() {
        return Ok(path);
    }
    let what = match kind {
        HubKind::Model => "model",
        HubKind::Dataset => "data set",
    };
    if !is_hub_id(name) {
        bad_input!("the {what} {name} does not exist: no such file or directory");
    }
    let folder = match kind {
        HubKind::Model => "models",
        HubKind::Dataset => "datasets",
    };
    let repository = cache.join(format!("{folder}--{}", name.replace('/', "--")));
    let commit = std::fs::read_to_string(repository.join("refs/main")).unwrap_or_default();
    let snapshot = repository.join("snapshots").join(commit.trim());
    if !commit.trim().is_empty() && snapshot.is_dir() {
        return Ok(snapshot);
    }
    let flag = if kind == HubKind::Dataset { " --repo-type dataset" } else { "" };
    bad_input!(
        "the {what} {name} is neither a path nor in the Hub cache ({}); `hf download {name}{flag}` puts it there",
        cache.display()
    )
}

/// `HF_HUB_CACHE`, else `HF_HOME/hub`, else `~/.cache/huggingface/hub`, as huggingface_hub looks.
fn hub_cache() -> PathBuf {
    let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    variable("HF_HUB_CACHE")
        .or_else(|| variable("HF_HOME").map(|home| home.join("hub")))
        .or_else(|| variable("XDG_CACHE_HOME").map(|cache| cache.join("huggingface/hub")))
        .or_else(|| variable("HOME").map(|home| home.join(".cache/huggingface/hub")))
        .unwrap_or_default()
}

/// `NAME` or `ORG/NAME`, in the Hub's letters.
fn is_hub_id(name: &str) -> bool {
    let word = |part: &str| {
        !part.is_empty()
            && !part.starts_with(['.', '-'])
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    let parts: Vec<&str> = name.split('/').collect();
    let ending = Path::new(name).extension().and_then(|e| e.to_str()).is_some_and(|e| ENDINGS.contains(&e));
    parts.len() <= 2 && parts.into_iter().all(word) && !ending
}

/// The files of a data set: `path` itself, or in a directory those of the configuration and the split, sorted.
///
/// A file belongs to split `train` if its name, or its directory's, begins with `train` (`train.jsonl`,
/// `train-00000-of-00002.parquet`, `train/0.parquet`). A directory that has no file of any split but data is one split.
pub fn files(path: &Path, configuration: Option<&str>, split: &str) -> anyhow::Result<Vec<PathBuf>> {
    if path.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    let mut all = Vec::new();
    collect(path, &mut all, 3).map_err(|e| BadInput::new(format!("cannot list {}: {e}", path.display())))?;
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
        bad_input!("{} has no data file{of} ({})", path.display(), ENDINGS.map(|e| format!(".{e}")).join(", "));
    }
    bad_input!(
        "{} has no file of split `{split}`{of}; it has: {} (dataset_split, eval_dataset_split and dataset_config choose)",
        path.display(),
        present.join(", ")
    )
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>, depth: usize) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() && depth > 0 {
            collect(&path, files, depth - 1)?;
        } else if path.is_file()
            && path.extension().and_then(|e| e.to_str()).is_some_and(|e| e == "jsonl" || e == "parquet")
        {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hub_id_is_found_in_the_cache_by_its_reference() {
        let cache = tempfile::tempdir().unwrap();
        let repository = cache.path().join("datasets--openai--gsm8k");
        let snapshot = repository.join("snapshots/abc/main");
        std::fs::create_dir_all(&snapshot).unwrap();
        std::fs::create_dir_all(repository.join("refs")).unwrap();
        std::fs::write(repository.join("refs/main"), "abc\n").unwrap();
        for name in ["train-00000-of-00001.parquet", "test-00000-of-00001.parquet"] {
            std::fs::write(snapshot.join(name), "").unwrap();
        }
        let found = locate_in("openai/gsm8k", HubKind::Dataset, cache.path()).unwrap();
        assert_eq!(found, repository.join("snapshots/abc"));
        let names = |split| files(&found, Some("main"), split).unwrap();
        assert_eq!(names("train"), [snapshot.join("train-00000-of-00001.parquet")]);
        assert_eq!(names("test"), [snapshot.join("test-00000-of-00001.parquet")]);
        let error = files(&found, Some("main"), "validation").unwrap_err().to_string();
        assert!(error.contains("`validation`") && error.contains("train-00000"), "{error}");
        let error = files(&found, Some("socratic"), "train").unwrap_err().to_string();
        assert!(error.contains("`socratic`"), "{error}");

        let error = locate_in("openai/other", HubKind::Dataset, cache.path()).unwrap_err().to_string();
        assert!(error.contains("hf download openai/other --repo-type dataset"), "{error}");
        let error = locate_in("./no/such/file.jsonl", HubKind::Dataset, cache.path()).unwrap_err().to_string();
        assert!(error.contains("does not exist"), "{error}");
        assert!(!is_hub_id("train.jsonl") && is_hub_id("gpt2") && is_hub_id("Qwen/Qwen2.5-0.5B"));
    }

    #[test]
    fn a_directory_without_splits_is_one() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b.jsonl", "a.jsonl", "readme.md"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let found = files(dir.path(), None, "train").unwrap();
        assert_eq!(found, [dir.path().join("a.jsonl"), dir.path().join("b.jsonl")]);
    }
}
