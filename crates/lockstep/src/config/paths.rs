//! Makes the paths in a configuration absolute, so that a run can be resumed from any directory. Paths in a
//! configuration file are relative to that file. Paths from the command line, the environment or a program are relative
//! to the working directory.

use super::keys::{Config, KEYS};
use super::report_to;
use super::resolved::{Origin, Resolved};
use crate::bad_input;
use crate::error::{BadInput, OrBadInput};
use rewards::outside::absolute_line;
use std::path::{Path, PathBuf, absolute};

type PathOf = fn(&mut Config) -> Option<&mut PathBuf>;

/// Keys that always hold a path. Keys that also accept other names are marked in their rows.
const PATHS: [(&str, PathOf); 2] = [("output_dir", |c| c.output_dir.as_mut()), ("replay", |c| c.replay.as_mut())];

/// Makes the paths of all keys absolute.
pub(super) fn make_absolute(resolved: &mut Resolved) -> anyhow::Result<()> {
    let working = std::env::current_dir().or_bad_input_in("the working directory")?;
    for (key, path) in PATHS {
        let base = base(resolved.origin(key), &working)?;
        if let Some(path) = path(&mut resolved.config) {
            *path = absolute(base.join(&*path)).or_bad_input_in(format!("`{key}`"))?;
        }
    }
    let default = Config::default();
    for key in KEYS.iter().filter(|key| key.row.is_name) {
        // A default value is not a path.
        let value = key.value(&resolved.config).filter(|value| key.value(&default).as_ref() != Some(value));
        if let Some(toml::Value::String(name)) = value {
            let name = located(key.name, &name, resolved.origin(key.name), &working)?;
            (key.read)(&mut resolved.config, &name.into()).map_err(BadInput::new)?;
        }
    }
    let origin = resolved.origin("eval_datasets").clone();
    for name in resolved.config.eval_datasets.values_mut() {
        if let serde_json::Value::String(name) = name {
            *name = located("eval_datasets", name, &origin, &working)?;
        }
    }
    let origin = resolved.origin("report_to").clone();
    for entry in &mut resolved.config.report_to {
        if let Some(line) = report_to::command(entry) {
            let line = absolute_line(line, |path| located("report_to", path, &origin, &working))?;
            *entry = report_to::command_entry(&line);
        }
    }
    let origin = resolved.origin("reward_funcs").clone();
    for spec in &mut resolved.config.reward_funcs {
        spec.map_paths(|path| located("reward_funcs", path, &origin, &working))?;
    }
    Ok(())
}

/// The directory to which paths from `origin` are relative.
fn base(origin: &Origin, working: &Path) -> anyhow::Result<PathBuf> {
    let Origin::File(file) = origin else { return Ok(working.to_owned()) };
    let file = absolute(file).or_bad_input_in(file.display())?;
    Ok(file.parent().unwrap_or(working).to_owned())
}

/// The absolute path of `name` if that file exists, else `name` unchanged (a Hub id, for example).
fn located(key: &str, name: &str, origin: &Origin, working: &Path) -> anyhow::Result<String> {
    let (path, base) = (Path::new(name), base(origin, working)?);
    if name.is_empty() || path.is_absolute() {
        return Ok(name.to_owned());
    }
    let beside = base.join(path);
    if beside.exists() {
        return Ok(absolute(&beside).or_bad_input_in(beside.display())?.display().to_string());
    }
    if working.join(path).exists() {
        bad_input!(
            "{origin}: `{key}` = {name}: paths in a file are relative to the file's directory, and {} does not exist, \
             but {name} exists in the working directory: write {}, or set the key on the command line",
            beside.display(),
            working.join(path).display()
        );
    }
    Ok(name.to_owned())
}
