//! Which weights a model has, by their hashes: an adapter is for the ones that it was trained on.

use crate::bad_input;
use crate::error::OrBadInput;
use crate::stop::{StopSignal, Stopped};
use std::path::Path;
use telemetry::record::{FileHash, hash_file_until, sha256};

/// Refuses to put the adapter in `adapter` on other weights than those that it was trained on. Where it does not say
/// which those are, `warn` is told that nothing was checked.
pub fn check_base(adapter: &Path, model: &Path, stop: &StopSignal, warn: impl FnOnce(&str)) -> anyhow::Result<()> {
    let found = || Ok(of_weights(&hashes(model, stop, |name| name.ends_with(".safetensors"))?));
    compare_base(adapter, model, found, warn)
}

/// [`check_base`] of weights whose hash is `found`.
pub(crate) fn compare_base(
    adapter: &Path,
    model: &Path,
    found: impl FnOnce() -> anyhow::Result<String>,
    warn: impl FnOnce(&str),
) -> anyhow::Result<()> {
    let base = model::peft::load_adapter_config(adapter).or_bad_input()?.base.unwrap_or_default();
    let Some(recorded) = model::peft::base_sha256(adapter).or_bad_input()? else {
        warn(&format!(
            "the adapter {} does not say with which weights it was trained (no base_model_sha256): that those of {} \
             are the same is not checked",
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
        "the adapter {} was trained on {base}, whose weights have the SHA-256 {recorded}, and those of {} have \
         {found}: give the model that it was trained on, or use this one all the same with --other-base \
         (allow_other_base = true)",
        adapter.display(),
        model.display()
    )
}

/// The hash of the only file of weights; of several, that of their hashes in the order of their names, a line each.
pub(crate) fn of_weights(files: &[FileHash]) -> String {
    let weights: Vec<&str> =
        files.iter().filter(|file| file.name.ends_with(".safetensors")).map(|file| &*file.sha256).collect();
    match weights[..] {
        [one] => one.to_owned(),
        _ => sha256(weights.iter().map(|hash| format!("{hash}\n")).collect::<String>().as_bytes()),
    }
}

/// Hashes of the files that make a model what it is, by name: shape, tokenizer, and all weights, which may be in
/// several files.
pub(crate) fn hashes(dir: &Path, stop: &StopSignal, which: impl Fn(&str) -> bool) -> anyhow::Result<Vec<FileHash>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).or_bad_input_in(dir.display())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let listed = ["config.json", "tokenizer.json", "model.safetensors.index.json", model::peft::ADAPTER_CONFIG];
        if path.is_file() && (listed.contains(&&*name) || name.ends_with(".safetensors")) && which(&name) {
            let Some(hash) = hash_file_until(&path, &|| stop.is_requested())? else { return Err(Stopped.into()) };
            files.push(hash);
        }
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}
