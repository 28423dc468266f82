//! Hashes of model weights. An adapter is refused if its base weights differ from those of its training, unless
//! `allow_other_base` is set.

use crate::bad_input;
use crate::error::OrBadInput;
use crate::stop::{StopSignal, Stopped};
use model::io::{ModelFiles, identifies_model};
use std::path::Path;
use telemetry::record::{FileHash, hash_file_until, sha256};

/// Checks that the adapter in the directory `adapter` was trained on the weights of the directory `model`. If the
/// adapter does not record a hash of its base, `warn` is called instead.
pub fn check_base(adapter: &Path, model: &Path, stop: &StopSignal, warn: impl FnOnce(&str)) -> anyhow::Result<()> {
    let found = || Ok(weights_hash(&hashes(model, stop, |name| name.ends_with(".safetensors"))?));
    compare_base(adapter, model, found, warn)
}

/// [`check_base`], where `found` computes the hash of the weights in `model`.
pub(crate) fn compare_base(
    adapter: &Path,
    model: &Path,
    found: impl FnOnce() -> anyhow::Result<String>,
    warn: impl FnOnce(&str),
) -> anyhow::Result<()> {
    let base = model::peft::load_adapter_config(adapter).or_bad_input()?.base.unwrap_or_default();
    let Some(recorded) = model::peft::base_sha256(adapter).or_bad_input()? else {
        warn(&format!(
            "the adapter {} does not record the weights that it was trained on (no base_model_sha256), so they are not \
             compared with those of {}",
            adapter.display(),
            model.display()
        ));
        return Ok(());
    };
    let found = found()?;
    if found == recorded {
        return Ok(());
    }
    bad_input!(
        "the adapter {} was trained on {base}, whose weights have the SHA-256 {recorded}, but those of {} have \
         {found}: use the model that it was trained on, or allow this one with --other-base (allow_other_base = true)",
        adapter.display(),
        model.display()
    )
}

/// One hash for all weight files of a model: the file's own hash if there is only one, else the hash of the list of
/// hashes, one per line, in the order of the file names.
pub(crate) fn weights_hash(files: &[FileHash]) -> String {
    let weights: Vec<&str> =
        files.iter().filter(|file| file.name.ends_with(".safetensors")).map(|file| &*file.sha256).collect();
    match weights[..] {
        [one] => one.to_owned(),
        _ => sha256(weights.iter().map(|hash| format!("{hash}\n")).collect::<String>().as_bytes()),
    }
}

/// Hashes of the files that identify a model, sorted by name: configuration, vocabulary and all weight files. `which`
/// selects files by name.
pub(crate) fn hashes(dir: &Path, stop: &StopSignal, which: impl Fn(&str) -> bool) -> anyhow::Result<Vec<FileHash>> {
    let mut files = Vec::new();
    for entry in disk::read_dir(dir).or_bad_input_in(dir.display())? {
        let path = entry.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_weights = ["model.safetensors.index.json", model::peft::ADAPTER_CONFIG].contains(&&*name)
            || name.ends_with(".safetensors");
        if path.is_file() && (is_weights || identifies_model(&name)) && which(&name) {
            let Some(hash) = hash_file_until(&path, &|| stop.is_requested())? else { return Err(Stopped.into()) };
            files.push(hash);
        }
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

/// The name of the hash of an adapter's settings. The path of the base is left out, since it may differ between
/// machines.
const SETTINGS: &str = "adapter_config.json without base_model_name_or_path";

/// Hashes of the files of a reference model or teacher: [`hashes`], and for an adapter the hash of its settings.
pub(crate) fn hashes_of_reference(dir: &Path, stop: &StopSignal) -> anyhow::Result<Vec<FileHash>> {
    let mut files = hashes(dir, stop, |_| true)?;
    if files.iter().any(|file| file.name == model::peft::ADAPTER_CONFIG) {
        let bytes = disk::read(dir.join(model::peft::ADAPTER_CONFIG), disk::most::STATE).or_bad_input()?;
        let mut settings: serde_json::Value = serde_json::from_slice(&bytes).or_bad_input()?;
        settings.as_object_mut().and_then(|settings| settings.remove("base_model_name_or_path"));
        files.extend(hashes_of([(SETTINGS, settings.to_string().as_bytes())].into_iter()));
    }
    Ok(files)
}

/// Whether `file` is an adapter's configuration with the recorded settings, apart from the path of its base.
pub(crate) fn is_moved_adapter(file: &FileHash, recorded: &[FileHash], found: &[FileHash]) -> bool {
    let settings = |files: &[FileHash]| files.iter().find(|file| file.name == SETTINGS).map(|file| file.sha256.clone());
    file.name == model::peft::ADAPTER_CONFIG
        && settings(recorded).is_some_and(|own| settings(found).as_deref() == Some(&*own))
}

/// Hashes of model files that were just read.
pub(crate) fn hashes_of<'a>(files: impl Iterator<Item = (&'a str, &'a [u8])>) -> Vec<FileHash> {
    let hash = |(name, bytes): (&str, &[u8])| FileHash {
        name: name.to_owned(),
        bytes: Some(bytes.len() as u64),
        sha256: sha256(bytes),
    };
    files.map(hash).collect()
}

/// Hashes of the files in `dir` that affect prompts, besides those that identify the model.
pub(crate) fn prompt_hashes(dir: &Path) -> anyhow::Result<Vec<FileHash>> {
    Ok(hashes_of(ModelFiles::read(dir).or_bad_input()?.prompt_files()))
}
