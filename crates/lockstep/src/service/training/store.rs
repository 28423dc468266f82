//! Saved states and adapters: `STATE/{model}/weights/{name}` and `STATE/{model}/sampler_weights/{name}`.
//!
//! A state is a PEFT directory of the adapter, the optimizer's moments and `state.json`. An adapter for sampling is the
//! same without moments. Both outlive the server: their paths are valid after a restart with the same directory.

use super::failure::Failure;
use super::job::AdapterSpec;
use super::path::{Kind, StatePath, check_name};
use crate::models::{hashes, weights_hash};
use crate::rollouts::lineage::Lineage;
use crate::run::checkpoint::replace_dir;
use crate::run::moments::{restore_moments, write_moments};
use crate::run::run_dir::write_atomically;
use crate::stop::StopSignal;
use kernels::Memory;
use model::peft::{BaseModel, save_adapter};
use model::{Adapter, LoraConfig, Updates, Weights};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use telemetry::system::since_1970;
use train::Optimizer;

/// The file with [`Saved`].
const FILE: &str = "state.json";

/// The facts about a saved state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Saved {
    /// The name of the base model.
    pub base_model: String,
    /// The settings of the adapter.
    pub lora: LoraConfig,
    /// The client's request for the adapter.
    pub spec: AdapterSpec,
    /// The lineage of the weights.
    pub lineage: Lineage,
    /// The lineage of the weights alone; [`lineage`](Self::lineage) includes the gradient since the last step.
    pub weights: Lineage,
    /// The number of samplers of these weights so far.
    pub samplers: u64,
    /// The number of optimizer steps.
    pub steps: u64,
    /// The version of the adapter.
    pub version: Updates,
    /// Seconds since 1970.
    pub created: u64,
    /// When it is deleted, in seconds since 1970; `None`: not without a request.
    #[serde(default)]
    pub expires: Option<u64>,
    /// The client's own data about the model.
    #[serde(default)]
    pub user_metadata: Value,
}

/// A saved state in a list.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Its path.
    pub path: StatePath,
    /// The facts about it.
    pub saved: Saved,
    /// The bytes of its files.
    pub bytes: u64,
}

/// The directory of all saved states.
pub struct Store {
    dir: PathBuf,
    base: PathBuf,
    /// The hash of the base model's weights, once it is needed.
    base_sha256: OnceLock<Option<String>>,
    /// The states that expire, soonest first. Whoever writes or deletes a state has the lock.
    expiring: Mutex<Expiring>,
}

/// Paths with times in seconds since 1970. A state that was replaced or deleted may still be there.
type Expiring = BTreeSet<(u64, StatePath)>;

impl Store {
    /// The states in `dir`, of adapters of the model in `base`.
    pub(super) fn new(dir: PathBuf, base: PathBuf) -> Store {
        let store = Store { dir, base, base_sha256: OnceLock::new(), expiring: Mutex::default() };
        // Those whose time came while no server ran are deleted soon.
        let all = store.models().into_iter().flat_map(|model| store.all(&model));
        let expiring = all.filter_map(|listed| Some((listed.saved.expires?, listed.path)));
        store.lock().extend(expiring);
        store
    }

    fn lock(&self) -> MutexGuard<'_, Expiring> {
        self.expiring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The directory of a saved state.
    pub fn dir(&self, path: &StatePath) -> PathBuf {
        self.dir.join(&path.model).join(path.kind.name()).join(&path.name)
    }

    /// Saves an adapter, with its moments if it is a state for training.
    pub(super) fn save(
        &self,
        path: &StatePath,
        saved: &Saved,
        adapter: &Adapter,
        optimizer: &Optimizer,
        overwrite: bool,
    ) -> Result<(), Failure> {
        let target = self.dir(path);
        let mut expiring = self.lock();
        let has_expired = self.read(path).is_ok_and(|saved| saved.has_expired());
        if target.exists() && !overwrite && !has_expired {
            return Err(Failure::request(format!("{path} exists: choose another name, or set overwrite")));
        }
        let base_sha256 = self.base_sha256.get_or_init(|| {
            let files = hashes(&self.base, &StopSignal::new(), |name| name.ends_with(".safetensors"));
            files.ok().map(|files| weights_hash(&files))
        });
        let parent = target.parent().expect("a name is joined");
        let temporary = parent.join(format!(".unfinished-{}", path.name));
        let write = || {
            disk::create_dir_all(parent)?;
            replace_dir(&temporary, &target, |dir| {
                let base = self.base.display().to_string();
                save_adapter(dir, adapter, BaseModel { name: &base, sha256: base_sha256.as_deref() })?;
                if path.kind == Kind::Training {
                    write_moments("", optimizer)(dir)?;
                }
                Ok(disk::write(dir.join(FILE), serde_json::to_vec_pretty(saved)?)?)
            })
        };
        write()
            .inspect_err(|_| drop(disk::remove_dir_all(&temporary)))
            .map_err(|error| Failure::server(format!("cannot save {path} to {}: {error:#}", target.display())))?;
        expiring.extend(saved.expires.map(|at| (at, path.clone())));
        Ok(())
    }

    /// Lets a saved state expire after a number of seconds from now, or never.
    pub(in crate::service) fn expire(&self, path: &StatePath, ttl_seconds: Option<u64>) -> Result<(), Failure> {
        let mut expiring = self.lock();
        let saved = Saved { expires: expiry(ttl_seconds), ..self.saved(path)? };
        let bytes = serde_json::to_vec_pretty(&saved).map_err(Failure::server)?;
        write_atomically(&self.dir(path).join(FILE), &bytes).map_err(Failure::server)?;
        expiring.extend(saved.expires.map(|at| (at, path.clone())));
        Ok(())
    }

    /// Deletes the states that have expired. Returns the time until the next one expires.
    pub(super) fn sweep(&self) -> Option<Duration> {
        let mut expiring = self.lock();
        while let Some((at, path)) = expiring.first() {
            if let Some(left) = at.checked_sub(now()).filter(|left| *left > 0) {
                return Some(Duration::from_secs(left));
            }
            // It may have got another time, and a directory that cannot be deleted stays, but is not found.
            if self.read(path).is_ok_and(|saved| saved.has_expired()) {
                let _ = disk::remove_dir_all(self.dir(path));
            }
            expiring.pop_first();
        }
        None
    }

    /// The facts about a saved state that has not expired.
    pub fn saved(&self, path: &StatePath) -> Result<Saved, Failure> {
        let saved = self.read(path)?;
        if saved.has_expired() { Err(self.missing(path)) } else { Ok(saved) }
    }

    fn read(&self, path: &StatePath) -> Result<Saved, Failure> {
        let dir = self.dir(path);
        let bytes = disk::read(dir.join(FILE), disk::most::STATE).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => self.missing(path),
            _ => Failure::server(format!("cannot read {path}: {error}")),
        })?;
        serde_json::from_slice(&bytes)
            .map_err(|error| Failure::server(format!("{} is damaged: {error}", dir.join(FILE).display())))
    }

    /// The failure for a path at which nothing is saved. Weights that were not saved are lost with the server.
    fn missing(&self, path: &StatePath) -> Failure {
        let saved = self.list(&path.model);
        let known = match saved.iter().max_by_key(|listed| listed.saved.created) {
            Some(latest) => format!("the latest of this model is {}", latest.path),
            None => "this model has saved nothing here".to_owned(),
        };
        Failure::request(format!("nothing is saved as {path} in {}: {known}", self.dir.display()))
    }

    /// Loads a saved adapter of the model `base`, whose name is `base_model`.
    pub(super) fn load(
        &self,
        path: &StatePath,
        saved: &Saved,
        memory: &Memory,
        (base_model, base): (&str, &Weights),
    ) -> Result<Adapter, Failure> {
        if saved.base_model != base_model {
            let of = &saved.base_model;
            return Err(Failure::request(format!("{path} is an adapter of {of}, but this server has {base_model}")));
        }
        let mut adapter = Adapter::zeros(memory, base, &saved.lora).map_err(Failure::request_error)?;
        model::peft::read_adapter(&self.dir(path), &mut adapter).map_err(Failure::server)?;
        adapter.version = saved.version;
        Ok(adapter)
    }

    /// Reads the saved moments.
    pub(super) fn read_moments(&self, path: &StatePath, optimizer: &mut Optimizer) -> Result<(), Failure> {
        restore_moments(&self.dir(path), "", optimizer).map_err(|error| Failure::server(format!("{error:#}")))
    }

    /// The saved states of a model that have not expired, oldest first.
    pub fn list(&self, model: &str) -> Vec<Listed> {
        self.all(model).into_iter().filter(|listed| !listed.saved.has_expired()).collect()
    }

    /// The saved states of a model, also those that have expired.
    fn all(&self, model: &str) -> Vec<Listed> {
        let mut out = Vec::new();
        if check_name(model).is_err() {
            return out;
        }
        for kind in [Kind::Training, Kind::Sampler] {
            for entry in disk::read_dir(self.dir.join(model).join(kind.name())).unwrap_or_default() {
                let name = entry.file_name().to_string_lossy().into_owned();
                let path = StatePath { model: model.to_owned(), kind, name };
                if check_name(&path.name).is_ok()
                    && let Ok(saved) = self.read(&path)
                {
                    out.push(Listed { bytes: size(&entry.path()), path, saved });
                }
            }
        }
        out.sort_by(|a, b| (a.saved.created, &a.path).cmp(&(b.saved.created, &b.path)));
        out
    }

    /// The models that have saved something, in the order of their names.
    pub fn models(&self) -> Vec<String> {
        let entries = disk::read_dir(&self.dir).unwrap_or_default();
        let names = entries.iter().map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.filter(|name| check_name(name).is_ok()).collect();
        names.sort();
        names
    }

    /// Deletes a saved state.
    pub fn delete(&self, path: &StatePath) -> Result<(), Failure> {
        let _expiring = self.lock();
        self.saved(path)?;
        disk::remove_dir_all(self.dir(path)).map_err(|error| Failure::server(format!("cannot delete {path}: {error}")))
    }
}

impl Saved {
    fn has_expired(&self) -> bool {
        self.expires.is_some_and(|at| at <= now())
    }
}

/// When a state that is saved now expires.
pub(super) fn expiry(ttl_seconds: Option<u64>) -> Option<u64> {
    ttl_seconds.map(|seconds| now().saturating_add(seconds))
}

/// The number of bytes of the files in a directory.
fn size(dir: &Path) -> u64 {
    let entries = disk::read_dir(dir).unwrap_or_default();
    entries.iter().filter_map(|entry| std::fs::metadata(entry.path()).ok()).map(|file| file.len()).sum()
}

/// A time in seconds since 1970, as in RFC 3339.
pub fn rfc3339(seconds: u64) -> String {
    model::chat::strftime("%Y-%m-%dT%H:%M:%SZ", seconds)
}

/// The time at which something is saved.
pub(super) fn now() -> u64 {
    since_1970().as_secs()
}
