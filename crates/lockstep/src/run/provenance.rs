//! What a run was made of, for `record.json`: which command, versions, instruction set, hashes of model and data, each
//! start.

use crate::config::Config;
use crate::error::BadInput;
use crate::models::Policy;
use crate::run::run_dir::RunDir;
use kernels::Context;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use telemetry::record::{FileHash, RunRecord, Start, hash_file, sha256};

/// What of the record the caller of [`write()`] knows.
pub struct RunMetadata<'a> {
    /// The subcommand that makes such runs.
    pub command: &'a str,
    /// The resolved configuration.
    pub config: &'a Config,
    /// The same as its file says it.
    pub config_toml: &'a str,
    /// What it computes with.
    pub ctx: &'a Context,
    /// The model that it trains.
    pub policy: &'a Policy,
    /// SHA-256 of the training data.
    pub data_hash: &'a str,
    /// The step that this start continues after.
    pub step: u64,
}

/// Writes the record of a run that starts, or adds this start to it.
pub fn write(run: &RunDir, metadata: &RunMetadata<'_>) -> anyhow::Result<()> {
    let RunMetadata { config, ctx, .. } = metadata;
    let mut record = RunRecord::read(&run.record()).unwrap_or_default();
    record.versions.insert("lockstep".into(), env!("CARGO_PKG_VERSION").into());
    record.kind = metadata.command.to_owned();
    record.isa = ctx.describe().into();
    record.dtype = config.dtype.name().into();
    record.threads = ctx.threads();
    record.seed = config.seed;
    record.config_sha256 = sha256(metadata.config_toml.as_bytes());
    record.data = vec![FileHash {
        name: match &config.replay {
            Some(file) => file.display().to_string(),
            None => config.dataset_name.clone().unwrap_or_default(),
        },
        bytes: None,
        sha256: metadata.data_hash.to_owned(),
    }];
    record.data.retain(|file| !file.sha256.is_empty());
    if record.model.is_empty() {
        let mut files = model_files(&metadata.policy.dir)?;
        if let Some(adapter) =
            config.model_name_or_path.as_ref().map(Path::new).filter(|dir| model::peft::is_adapter(dir))
        {
            files.extend(model_files(adapter)?);
        }
        record.model = files.iter().map(|f| hash_file(f)).collect::<Result<_, _>>()?;
    }
    record.command = std::env::args().collect();
    let time_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    record.starts.push(Start { time_s, step: metadata.step, isa: ctx.describe().into() });
    Ok(record.write(&run.record())?)
}

/// The files that make a model what it is, sorted: shape, tokenizer, and all weights, which may be in several files.
fn model_files(dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    let decides = |file: &PathBuf| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let listed = ["config.json", "tokenizer.json", "model.safetensors.index.json", model::peft::ADAPTER_CONFIG];
        listed.contains(&&*name) || name.ends_with(".safetensors")
    };
    let files: std::io::Result<Vec<PathBuf>> = std::fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect();
    let mut files: Vec<PathBuf> = files?.into_iter().filter(|f| f.is_file() && decides(f)).collect();
    files.sort();
    Ok(files)
}

/// Refuses to go on with a run of another command: its checkpoints would not mean the same.
pub fn check_command(run: &RunDir, command: &str) -> anyhow::Result<()> {
    match RunRecord::read(&run.record()) {
        Ok(record) if !record.kind.is_empty() && record.kind != command => Err(BadInput::new(format!(
            "{} is a run of `lockstep {}`: resume it with that, not with `lockstep {command}`",
            run.root().display(),
            record.kind
        ))),
        _ => Ok(()),
    }
}
