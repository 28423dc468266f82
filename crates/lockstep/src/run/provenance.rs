//! Writes `record.json`, the record of a run's origin: its command, versions, instruction set, hashes of model and
//! data, and each of its starts.

use crate::algorithms::Reference;
use crate::bad_input;
use crate::config::{Config, Purpose};
use crate::error::BadInput;
use crate::models::{
    ModelSource, hashes, hashes_of, hashes_of_reference, is_moved_adapter, locate, prompt_hashes, separate_reference,
    weights_hash,
};
use crate::run::run_dir::RunDir;
use crate::stop::StopSignal;
use kernels::Context;
use model::Head;
use model::chat::PromptTime;
use model::hub::HubKind;
use model::io::ModelFiles;
use model::peft::is_adapter;
use std::cell::RefCell;
use std::path::Path;
use telemetry::build::Build;
use telemetry::record::{FileHash, RunRecord, Start, hash_file_until, sha256};
use telemetry::{Step, system};

/// The fields of the record that the caller of [`write()`] supplies.
pub struct RunMetadata<'a> {
    /// The subcommand of the run, such as `train` or `sft`.
    pub command: &'a str,
    /// The resolved configuration.
    pub config: &'a Config,
    /// The text of `config.toml`.
    pub config_toml: &'a str,
    /// The device and threads of the run.
    pub ctx: &'a Context,
    /// Hashes of the model files with which the run began.
    pub models: &'a Models,
    /// The time that chat templates use as the current time.
    pub prompt_time: PromptTime,
    /// SHA-256 of the training data.
    pub data_hash: &'a str,
    /// The last step before this start; 0 for a new run.
    pub step: Step,
    /// The configuration keys changed by this start.
    pub changed: Vec<String>,
}

/// Writes the record of a new run, or adds this start to an existing record.
pub fn write(run: &RunDir, metadata: RunMetadata<'_>) -> anyhow::Result<()> {
    let RunMetadata { config, ctx, mut changed, .. } = metadata;
    changed.extend(metadata.models.changed_rewards.iter().cloned());
    let mut record = RunRecord::read(&run.record()).unwrap_or_default();
    record.versions.insert("lockstep".into(), env!("CARGO_PKG_VERSION").into());
    record.kind = metadata.command.to_owned();
    record.isa = ctx.describe().into();
    let device = ctx.memory().device().name().to_owned();
    record.device.clone_from(&device);
    record.arithmetic = ctx.arithmetic(config.dtype.dtype()).into();
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
    // A run that was killed before its first checkpoint restarts from step 0, with the model's current files.
    let begins = metadata.step == Step::START;
    if begins || record.model.is_empty() {
        record.model = metadata.models.model.clone();
        if let Some(adapter) = config.model_name_or_path.as_ref().map(Path::new).filter(|dir| is_adapter(dir)) {
            record.model.extend(hashes(adapter, &StopSignal::new(), |_| true)?);
        }
    }
    if begins || record.prompt_files.is_none() {
        record.prompt_files = Some(metadata.models.prompt_files.clone());
    }
    // A resumed run has the same reference model, but if this is the adapter from which training began, its path may
    // have changed.
    if begins || !metadata.models.reference.is_empty() {
        record.reference.clone_from(&metadata.models.reference);
    }
    record.rewards.clone_from(&metadata.models.rewards);
    record.isolation = isolation(config, metadata.command).into_iter().map(|(name, by)| (name, by.into())).collect();
    let command = system::command_line();
    if record.starts.is_empty() {
        record.command.clone_from(&command);
    }
    let (time_s, prompt_time_s) = (system::since_1970().as_secs(), metadata.prompt_time.0);
    let build = Some(Build::current());
    record.build.clone_from(&build);
    record.starts.push(Start {
        time_s,
        step: metadata.step,
        prompt_time_s,
        isa: ctx.describe().into(),
        device,
        build,
        command,
        changed,
    });
    Ok(run.write(&run.record(), &record.to_bytes()?)?)
}

/// For each reward that runs programs: its name and the kind of isolation.
pub fn isolation(config: &Config, command: &str) -> Vec<(String, String)> {
    let names = rewards::names(&config.reward_funcs).unwrap_or_default();
    let rewards = names.into_iter().zip(&config.reward_funcs).filter(|_| command == Purpose::Grpo.command());
    rewards.filter_map(|(name, spec)| Some((name, spec.isolation()?))).collect()
}

/// The time with which the run in `run` has rendered prompts since its first start; `None` if its record is missing.
pub fn prompt_time(run: &RunDir) -> Option<PromptTime> {
    let record = RunRecord::read(&run.record()).ok()?;
    Some(PromptTime(record.starts.first()?.time_of_prompts_s()))
}

/// Hashes of the model files that a run reads when it starts.
pub struct Models {
    model: Vec<FileHash>,
    /// Hashes of the files, besides those in `model`, that affect prompts.
    prompt_files: Vec<FileHash>,
    reference: Vec<FileHash>,
    /// Hashes of the rewards' files, named by path.
    rewards: Vec<FileHash>,
    /// Reward files that have changed since the last start, with both hashes.
    pub changed_rewards: Vec<String>,
    /// A warning about a check that was not possible, if any.
    pub unchecked: Option<String>,
    /// A note if an older version wrote the record, without hashes of the files that affect prompts.
    pub older: Option<String>,
}

impl Models {
    /// Hashes the files of the model in `dir` (`files` are those that have been read) and of a separate reference or
    /// teacher model. If the run `resumes`, the model's shape and all files that affect prompts must match the record
    /// of `run`, and so must the model's weights if the run still reads them.
    pub fn hashed(
        run: &RunDir,
        config: &Config,
        purpose: Purpose,
        (dir, files): (&Path, &ModelFiles),
        resumes: bool,
        stop: &StopSignal,
    ) -> anyhow::Result<Models> {
        let reference = match purpose {
            Purpose::Dpo => Some(Reference::Policy),
            _ => config.reference(),
        };
        let reads_weights = !resumes || config.use_peft || reference == Some(Reference::Policy);
        let model = hashes(dir, stop, |name| reads_weights || !name.ends_with(".safetensors"))?;
        let prompt_files = hashes_of(files.prompt_files());
        let (what, other) = match reference {
            Some(Reference::Teacher { name, .. }) => ("teacher", Some(name)),
            // A reference model that was updated is in the checkpoint.
            Some(Reference::Policy) if resumes && config.sync_ref_model => ("", None),
            Some(Reference::Policy) => ("reference model", separate_reference(config)),
            None => ("", None),
        };
        let other = other.map(|name| locate(name, HubKind::Model)).transpose()?;
        let reference = other.as_ref().map_or(Ok(Vec::new()), |dir| hashes_of_reference(dir, stop))?;
        let record = RunRecord::read(&run.record()).unwrap_or_default();
        let unchecked = (resumes && record.model.is_empty()).then(|| {
            format!(
                "{} is missing or does not record the run's first model, so there is no check that {} is the same",
                run.record().display(),
                dir.display()
            )
        });
        let older = resumes && unchecked.is_none() && record.prompt_files.is_none();
        let older = older.then(|| {
            format!(
                "{} is from an older version, which recorded no hashes of chat templates and tokenizer settings, so \
                 changes to them go unnoticed; from now on they are recorded, with the date of the prompts",
                run.record().display()
            )
        });
        if resumes {
            check_unchanged("model", dir, &record.model, &model)?;
            check_files(run, dir, files)?;
            if let Some(dir) = &other {
                check_unchanged(what, dir, &record.reference, &reference)?;
            }
        }
        let has_rewards = purpose == Purpose::Grpo;
        let rewards = if has_rewards { reward_files(config, stop)? } else { Vec::new() };
        let changed = |file: &FileHash| {
            let old = record.rewards.iter().find(|old| old.name == file.name && old.sha256 != file.sha256)?;
            Some(format!("{}: its SHA-256 is {}, but was {}", file.name, file.sha256, old.sha256))
        };
        let changed_rewards = rewards.iter().filter_map(changed).collect();
        Ok(Models { model, prompt_files, reference, rewards, changed_rewards, unchecked, older })
    }

    /// The hash of the model's weights, which adapters trained on these weights record.
    pub fn weights_sha256(&self) -> String {
        weights_hash(&self.model)
    }
}

/// Hashes of the files of the configured rewards: programs, scripts, Python files, reward models.
fn reward_files(config: &Config, stop: &StopSignal) -> anyhow::Result<Vec<FileHash>> {
    let files = RefCell::new(Vec::new());
    for spec in &config.reward_funcs {
        spec.clone().map_paths(|path| -> anyhow::Result<String> {
            let target = Path::new(path);
            let found = match target.is_dir() {
                true => reward_model_hashes(target, stop)?,
                false if target.is_file() => {
                    let hash = hash_file_until(target, &|| stop.is_requested())?;
                    hash.into_iter().map(|file| FileHash { name: path.to_owned(), ..file }).collect()
                }
                false => Vec::new(),
            };
            files.borrow_mut().extend(found);
            Ok(path.to_owned())
        })?;
    }
    Ok(files.into_inner())
}

/// Hashes of the files of the reward model in `dir`, by path: weights, shape, and the files that determine how it reads
/// a prompt (for an adapter, those of its base model).
fn reward_model_hashes(dir: &Path, stop: &StopSignal) -> anyhow::Result<Vec<FileHash>> {
    let place = |dir: &Path, file: FileHash| FileHash { name: dir.join(&file.name).display().to_string(), ..file };
    let mut found: Vec<_> = hashes(dir, stop, |_| true)?.into_iter().map(|file| place(dir, file)).collect();
    let below =
        if is_adapter(dir) { ModelSource::named(&dir.to_string_lossy(), Head::Score(1))?.dir } else { dir.to_owned() };
    if below != dir {
        let shape = hashes(&below, stop, |name| !name.ends_with(".safetensors"))?;
        found.extend(shape.into_iter().map(|file| place(&below, file)));
    }
    found.extend(prompt_hashes(&below)?.into_iter().map(|file| place(&below, file)));
    Ok(found)
}

/// Refuses to resume `run` if a file of the model in `dir` (`files` have been read) differs from the file at the first
/// start. Called before the data is read: otherwise a changed template would appear as an error of a row.
pub fn check_files(run: &RunDir, dir: &Path, files: &ModelFiles) -> anyhow::Result<()> {
    let record = RunRecord::read(&run.record()).unwrap_or_default();
    check_unchanged("model", dir, &record.model, &hashes_of(files.used()))?;
    let Some(recorded) = &record.prompt_files else { return Ok(()) };
    check_prompt_files(dir, recorded, &hashes_of(files.prompt_files()))
}

/// Refuses a file that affects prompts if, compared with the record, it has changed, is missing, or is new.
fn check_prompt_files(dir: &Path, recorded: &[FileHash], found: &[FileHash]) -> anyhow::Result<()> {
    check_unchanged("model", dir, recorded, found)?;
    let is_in = |files: &[FileHash], file: &FileHash| files.iter().any(|other| other.name == file.name);
    if let Some(new) = found.iter().find(|file| !is_in(recorded, file)) {
        bad_input!(
            "{}: the model has changed since the run began: this file is new (not in record.json), but affects \
             prompts. Remove it, or start a new run",
            dir.join(&new.name).display()
        );
    }
    if let Some(old) = recorded.iter().find(|file| !is_in(found, file)) {
        bad_input!(
            "{}: the model has changed since the run began: this file is missing, but affects prompts (its SHA-256 in \
             record.json is {}). Restore the old file, or start a new run",
            dir.join(&old.name).display(),
            old.sha256
        );
    }
    Ok(())
}

/// Refuses files whose hashes differ from the record. Files that are not in the record are accepted.
fn check_unchanged(what: &str, dir: &Path, recorded: &[FileHash], found: &[FileHash]) -> anyhow::Result<()> {
    for file in found {
        if let Some(old) = recorded.iter().find(|old| old.name == file.name)
            && old.sha256 != file.sha256
            && !is_moved_adapter(file, recorded, found)
        {
            bad_input!(
                "{}: the {what} has changed since the run began: its SHA-256 is {}, but in record.json it is {}. \
                 Restore the old file, or start a new run",
                dir.join(&file.name).display(),
                file.sha256,
                old.sha256
            );
        }
    }
    Ok(())
}

/// A line for the user if a different build resumes the run, or if the build of the last start is unknown.
pub fn other_build(run: &RunDir) -> Option<String> {
    let (record, here) = (RunRecord::read(&run.record()).ok()?, Build::current());
    match &record.build {
        None => Some(format!("the run's record does not name the build that trained it so far; this is {here}")),
        Some(before) => match before.is_same(&here) {
            Some(true) => None,
            Some(false) => Some(format!(
                "the run is resumed by another build: {before} trained it so far, and this is {here}. Identical bits \
                 are promised only within one build; docs/versions.md lists the changes between versions"
            )),
            None if before == &here => None,
            None => Some(format!(
                "it is unknown whether the same build trained the run so far: that was {before}, and this is {here}"
            )),
        },
    }
}

/// Refuses to resume a run of another subcommand, because its checkpoints have a different kind of state.
pub fn check_command(run: &RunDir, command: &str) -> anyhow::Result<()> {
    match RunRecord::read(&run.record()) {
        Ok(record) if !record.kind.is_empty() && record.kind != command => Err(BadInput::new(format!(
            "{} is a run of `lockstep {}`: resume it with that command, not with `lockstep {command}`",
            run.root().display(),
            record.kind
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
