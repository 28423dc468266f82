//! Finds model and dataset files by name. A name is a path, or an id of the Hugging Face Hub. Ids are looked up in the
//! Hub's local cache, in the layout that `huggingface_hub` uses, and downloaded into it if missing (feature `hub`).
//!
//! In the cache, `models--ORG--NAME/refs/main` contains the current commit, and `snapshots/COMMIT/` contains the files.
//! Other tools can use files that this program downloads, and vice versa. A marker file in the repository's folder
//! means that a download is incomplete; the next start continues the download.

use crate::{Error, Result};
use std::path::{Path, PathBuf};

/// File extensions of datasets that can be read.
pub const DATA_ENDINGS: [&str; 3] = ["jsonl", "json", "parquet"];

/// Returns from the function with an error that has this message.
macro_rules! bad {
    ($($format:tt)*) => { return Err(Error::Value(format!($($format)*))) };
}

/// The local path of a model or dataset: `name` itself if that path exists, else the snapshot of the Hub id `name`,
/// which is downloaded if it is not in the cache.
pub fn locate(name: &str, kind: HubKind) -> Result<PathBuf> {
    locate_on(&Hub::from_env(), name, kind)
}

fn locate_on(hub: &Hub, name: &str, kind: HubKind) -> Result<PathBuf> {
    let path = PathBuf::from(name);
    if path.exists() {
        return Ok(path);
    }
    if !is_hub_id(name) {
        bad!("the {} {name} does not exist: no such file or directory", kind.noun());
    }
    hub.find(name, kind)
}

/// The kind of repository on the Hugging Face Hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HubKind {
    /// A model.
    Model,
    /// A dataset.
    Dataset,
}

impl HubKind {
    /// The kind as a noun for messages.
    fn noun(self) -> &'static str {
        match self {
            HubKind::Model => "model",
            HubKind::Dataset => "dataset",
        }
    }
    fn folder(self) -> &'static str {
        match self {
            HubKind::Model => "models",
            HubKind::Dataset => "datasets",
        }
    }
}

/// The location of the Hub's cache, and whether downloads are allowed.
#[derive(Clone, Debug)]
struct Hub {
    /// Directory of the cache.
    cache: PathBuf,
    /// Whether downloads are forbidden.
    offline: bool,
}

/// Name of the marker file in a repository's folder while its download is incomplete.
const UNFINISHED: &str = ".lockstep-unfinished";

impl Hub {
    /// Reads the environment as `huggingface_hub` does: the cache is `HF_HUB_CACHE`, else `HF_HOME/hub`, else
    /// `~/.cache/huggingface/hub`; `HF_HUB_OFFLINE` forbids downloads.
    fn from_env() -> Hub {
        let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let cache = variable("HF_HUB_CACHE")
            .or_else(|| variable("HF_HOME").map(|home| home.join("hub")))
            .or_else(|| variable("XDG_CACHE_HOME").map(|cache| cache.join("huggingface/hub")))
            .or_else(|| variable("HOME").map(|home| home.join(".cache/huggingface/hub")))
            .unwrap_or_default();
        let yes = |text: String| ["1", "true", "yes", "on"].contains(&text.to_lowercase().as_str());
        Hub { cache, offline: std::env::var("HF_HUB_OFFLINE").is_ok_and(yes) }
    }

    /// The directory with the files of the Hub id `name`, which are downloaded if they are not in the cache.
    fn find(&self, name: &str, kind: HubKind) -> Result<PathBuf> {
        if let Some(snapshot) = self.cached(name, kind) {
            return Ok(snapshot);
        }
        let (what, cache) = (kind.noun(), self.cache.display());
        if self.offline {
            bad!(
                "the {what} {name} is neither a path nor in the Hub cache ({cache}), and HF_HUB_OFFLINE forbids \
                 downloads"
            );
        }
        self.fetch(name, kind)?;
        match self.cached(name, kind) {
            Some(snapshot) => Ok(snapshot),
            None => bad!("the {what} {name} was downloaded, but is not in the Hub cache ({cache})"),
        }
    }

    fn repository(&self, name: &str, kind: HubKind) -> PathBuf {
        self.cache.join(format!("{}--{}", kind.folder(), name.replace('/', "--")))
    }

    /// The cached snapshot of the branch `main`; `None` if it is missing or incomplete.
    fn cached(&self, name: &str, kind: HubKind) -> Option<PathBuf> {
        let repository = self.repository(name, kind);
        let commit = std::fs::read_to_string(repository.join("refs/main")).ok()?;
        let snapshot = repository.join("snapshots").join(commit.trim());
        let whole = !commit.trim().is_empty() && snapshot.is_dir() && !repository.join(UNFINISHED).exists();
        whole.then_some(snapshot)
    }

    #[cfg(not(feature = "hub"))]
    fn fetch(&self, name: &str, kind: HubKind) -> Result<()> {
        let flag = if kind == HubKind::Dataset { " --repo-type dataset" } else { "" };
        bad!(
            "the {} {name} is neither a path nor in the Hub cache ({}), and this program was built without the feature \
             `hub`: download it with `hf download {name}{flag}`",
            kind.noun(),
            self.cache.display()
        )
    }

    /// Downloads the repository's files that this program can read.
    #[cfg(feature = "hub")]
    fn fetch(&self, name: &str, kind: HubKind) -> Result<()> {
        use hf_hub::{Cache, Repo, api::sync::ApiBuilder};
        let endpoint = std::env::var("HF_ENDPOINT").unwrap_or_else(|_| "https://huggingface.co".to_owned());
        let cache = Cache::new(self.cache.clone());
        let token = std::env::var("HF_TOKEN").ok().filter(|t| !t.is_empty()).or_else(|| cache.token());
        let progress = std::io::IsTerminal::is_terminal(&std::io::stderr());
        let api = ApiBuilder::from_cache(cache).with_endpoint(endpoint.clone()).with_token(token);
        let failed = |error: hf_hub::api::sync::ApiError| {
            Error::Value(format!(
                "the {} {name} is not a path, and downloading it from {endpoint} failed: {error}. Gated and private \
                 repositories require HF_TOKEN",
                kind.noun()
            ))
        };
        let api = api.with_progress(progress).with_retries(3).build().map_err(failed)?;
        let repo = match kind {
            HubKind::Model => Repo::model(name.to_owned()),
            HubKind::Dataset => Repo::dataset(name.to_owned()),
        };
        let repo = api.repo(repo);
        let present: Vec<String> = repo.info().map_err(failed)?.siblings.into_iter().map(|s| s.rfilename).collect();
        let wanted: Vec<&String> = present.iter().filter(|file| wanted(file, kind)).collect();
        if wanted.is_empty() {
            bad!("the {} {name} on {endpoint} has no supported files", kind.noun());
        }
        let repository = self.repository(name, kind);
        let io = |error| Error::io(&repository, error);
        std::fs::create_dir_all(&repository).map_err(io)?;
        std::fs::write(repository.join(UNFINISHED), "").map_err(io)?;
        for file in wanted {
            repo.get(file).map_err(failed)?;
        }
        std::fs::remove_file(repository.join(UNFINISHED)).map_err(io)
    }
}

/// Whether this program can read `file`. For a model these are the listed files, and weights in its top directory; for
/// a dataset, its data files.
#[cfg(any(feature = "hub", test))]
fn wanted(file: &str, kind: HubKind) -> bool {
    let ending = Path::new(file).extension().and_then(|e| e.to_str()).unwrap_or_default();
    match kind {
        HubKind::Model => {
            crate::io::is_listed(file) || !file.contains('/') && ["json", "safetensors", "jinja"].contains(&ending)
        }
        HubKind::Dataset => DATA_ENDINGS.contains(&ending),
    }
}

/// Whether `name` has the form `ORG/NAME` of a Hub id. Old ids without ORG are not accepted: a single word is more
/// often a mistyped path.
fn is_hub_id(name: &str) -> bool {
    let word = |part: &str| {
        !part.is_empty()
            && !part.starts_with(['.', '-'])
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    let parts: Vec<&str> = name.split('/').collect();
    let ending = Path::new(name).extension().and_then(|e| e.to_str());
    parts.len() == 2 && parts.into_iter().all(word) && !ending.is_some_and(|e| DATA_ENDINGS.contains(&e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hub_id_resolves_to_the_cached_snapshot() {
        let cache = tempfile::tempdir().unwrap();
        let repository = cache.path().join("datasets--openai--gsm8k");
        std::fs::create_dir_all(repository.join("snapshots/abc")).unwrap();
        std::fs::create_dir_all(repository.join("refs")).unwrap();
        std::fs::write(repository.join("refs/main"), "abc\n").unwrap();
        let hub = Hub { cache: cache.path().to_owned(), offline: true };
        let found = locate_on(&hub, "openai/gsm8k", HubKind::Dataset).unwrap();
        assert_eq!(found, repository.join("snapshots/abc"));
        std::fs::write(repository.join(UNFINISHED), "").unwrap();
        let error = locate_on(&hub, "openai/gsm8k", HubKind::Dataset).unwrap_err().to_string();
        assert!(error.contains("HF_HUB_OFFLINE"), "an interrupted download is not used: {error}");
        let error = locate_on(&hub, "openai/other", HubKind::Dataset).unwrap_err().to_string();
        assert!(error.contains("HF_HUB_OFFLINE"), "{error}");
        let error = locate_on(&hub, "./no/such/file.jsonl", HubKind::Dataset).unwrap_err().to_string();
        assert!(error.contains("does not exist"), "{error}");
        assert!(!is_hub_id("data/train.jsonl") && !is_hub_id("modle") && is_hub_id("Qwen/Qwen2.5-0.5B"));
    }

    #[test]
    fn only_listed_files_and_weights_are_downloaded() {
        let model_files = ["config.json", "model-00001-of-00002.safetensors", "chat_template.jinja", "vocab.json"];
        let more = ["additional_chat_templates/tool_use.jinja", "merges.txt", "tokenizer.model"];
        let others = ["README.md", "original/model.safetensors", "additional_chat_templates/a/b.jinja", "model.bin"];
        let fetched = |files: &[&str]| files.iter().map(|file| wanted(file, HubKind::Model)).collect::<Vec<_>>();
        assert_eq!(
            (fetched(&model_files), fetched(&more), fetched(&others)),
            (vec![true; 4], vec![true; 3], vec![false; 4])
        );
        assert!(wanted("data/train.jsonl", HubKind::Dataset) && !wanted("config.json.txt", HubKind::Dataset));
    }

    #[test]
    fn a_hub_id_has_the_form_org_slash_name() {
        for id in ["a/b", "Qwen/Qwen2.5-0.5B", "org_1/name.v2", "org/model.json.bin", "org/-", "org/x.txt"] {
            assert_eq!(is_hub_id(id), !id.ends_with("/-"), "{id}");
        }
        let no_ids = ["", "a", "a/", "/b", "a/b/c", ".a/b", "a/.b", "-a/b", "a b/c", "a/b c", "a/ü", "a//b", "~/b"];
        assert!(no_ids.into_iter().chain(["o/d.json", "o/d.jsonl", "o/d.parquet"]).all(|name| !is_hub_id(name)));
    }

    #[test]
    fn the_error_for_a_missing_name_says_model_or_dataset() {
        let dir = tempfile::tempdir().unwrap();
        let cache = dir.path().join("hub");
        let hub = |offline| Hub { cache: cache.clone(), offline };
        let here = dir.path().to_str().unwrap();
        for (kind, noun, folder) in [(HubKind::Model, "model", "models"), (HubKind::Dataset, "dataset", "datasets")] {
            let error = |hub: &Hub, name: &str| locate_on(hub, name, kind).unwrap_err().to_string();
            assert_eq!(
                locate_on(&hub(true), here, kind).unwrap(),
                dir.path(),
                "an existing path is returned unchanged"
            );
            let missing = format!("the {noun} no/such/file does not exist: no such file or directory");
            assert_eq!(error(&hub(true), "no/such/file"), missing);
            let place = cache.display();
            let offline = format!(
                "the {noun} org/name is neither a path nor in the Hub cache ({place}), and HF_HUB_OFFLINE forbids \
                 downloads"
            );
            assert_eq!(error(&hub(true), "org/name"), offline);
            #[cfg(not(feature = "hub"))]
            {
                let flag = if kind == HubKind::Dataset { " --repo-type dataset" } else { "" };
                let without = format!(
                    "the {noun} org/name is neither a path nor in the Hub cache ({place}), and this program was built \
                     without the feature `hub`: download it with `hf download org/name{flag}`"
                );
                assert_eq!(error(&hub(false), "org/name"), without);
            }
            let repository = hub(true).repository("org/name", kind);
            assert_eq!(repository, cache.join(format!("{folder}--org--name")));
            // The reference is first empty, then names a missing snapshot, then an existing one.
            std::fs::create_dir_all(repository.join("refs")).unwrap();
            std::fs::create_dir_all(repository.join("snapshots/abc")).unwrap();
            for (reference, found) in [("", false), ("\n", false), ("abd", false), ("abc\n", true)] {
                std::fs::write(repository.join("refs/main"), reference).unwrap();
                let expected = found.then(|| repository.join("snapshots/abc"));
                assert_eq!(hub(true).find("org/name", kind).ok(), expected, "{reference:?}");
            }
        }
    }
}
