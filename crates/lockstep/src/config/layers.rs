//! Merges a configuration from its layers (defaults, file, environment, flags): a later layer wins. Records for each
//! key which layer its value came from.

use super::keys::{Config, KEYS, Key};
use super::methods::{Methods, ONLINE, Purpose};
use super::older_runs;
use super::resolved::{Origin, Resolved};
use super::unsupported_keys::{self, UnsupportedKey, unsupported_key};
use crate::bad_input;
use crate::error::BadInput;
use model::did_you_mean;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use toml::Value;

/// The layers of a configuration above the defaults, in ascending precedence.
#[derive(Clone, Debug, Default)]
pub struct Layers {
    /// The command that the configuration is for.
    pub purpose: Purpose,
    /// The caller's configuration; every value that differs from the default is treated as set.
    pub config: Option<Config>,
    /// The path of a TOML file.
    pub file: Option<PathBuf>,
    /// Values that the caller sets, by key name or TRL's name, in order.
    pub values: Vec<(String, Value)>,
    /// Environment variables: name and value; [`Layers::with_environment`] adds those of this process.
    pub environment: Vec<(String, String)>,
    /// The `key=value` pairs of command-line flags, in order.
    pub set: Vec<(String, String)>,
}

/// An error message for the unknown key `name`, with the most similar known key.
pub fn unknown_key(name: &str) -> String {
    let mut hint = did_you_mean(name, KEYS.iter().map(|key| key.name));
    if hint.is_empty() {
        hint = did_you_mean(name, unsupported_keys::names());
    }
    format!("unknown key `{name}`{hint}")
}

/// Names of `LOCKSTEP_` variables that do not set a configuration key. `LOCKSTEP_DEVICE` is the machine's default
/// device, as `LOCKSTEP_ISA` is its instruction set: unlike the variables of keys, it does not override a configuration
/// file.
const NOT_KEYS: [&str; 14] = [
    "DEVICE",
    "ISA",
    "LOG",
    "SHARED",
    "CACHE",
    "SUPERVISED",
    "LIBCUDA",
    "NVRTC",
    "NVTX",
    "CUBINS",
    "KERNEL_CACHE",
    "NATS_TOKEN",
    "API_KEY",
    "REPORT_TOKEN",
];

/// The `LOCKSTEP_*` environment variables of this process, sorted by name.
fn environment() -> anyhow::Result<Vec<(String, String)>> {
    let ours = std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"LOCKSTEP_"));
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| match (name.into_string(), value.into_string())
    {
        (Ok(name), Ok(value)) => Ok((name, value)),
        // The message does not print the value, which may be a secret token.
        (name, _) => Err(BadInput::new(format!(
            "environment variable {}: name and value must be UTF-8",
            name.unwrap_or_else(|name| name.display().to_string())
        ))),
    };
    let mut all = ours.map(text).collect::<anyhow::Result<Vec<_>>>()?;
    all.sort();
    Ok(all)
}

/// The part of the variable's name after `LOCKSTEP_`, if it must be the name of a configuration key. An empty variable
/// is treated as unset.
fn key_of_variable<'a>(variable: &'a str, text: &str) -> Option<&'a str> {
    let name = variable.trim_start_matches("LOCKSTEP_");
    let for_tests = name.starts_with("TEST_") || name.starts_with("EMULATOR_");
    (!NOT_KEYS.contains(&name) && !for_tests && !text.is_empty()).then_some(name)
}

/// Refuses `LOCKSTEP_` variables that name configuration keys, for a `command` that does not read a configuration.
/// `LOCKSTEP_THREADS` is allowed.
pub fn refuse_environment(command: &str) -> anyhow::Result<()> {
    for (variable, text) in environment()? {
        let Some(name) = key_of_variable(&variable, &text).filter(|name| *name != "THREADS") else { continue };
        let name = name.to_ascii_lowercase();
        if Config::key(&name).is_none() && unsupported_key(&name, &Value::String(text)).is_none() {
            bad_input!("environment variable {variable}: {}", unknown_key(&name));
        }
        bad_input!(
            "environment variable {variable} sets a configuration key, but `lockstep {command}` reads no \
             configuration: unset it, and pass the value as a flag"
        );
    }
    Ok(())
}

impl Layers {
    /// Adds the `LOCKSTEP_*` variables of this process as a layer.
    pub fn with_environment(mut self) -> anyhow::Result<Self> {
        self.environment = environment()?;
        Ok(self)
    }

    /// Merges the layers and checks the result, except for the algorithm's own rules. An error is a [`BadInput`] with
    /// the fix.
    pub(crate) fn put_together(&self) -> anyhow::Result<Resolved> {
        let mut resolved = Resolved { config: Config::default(), origins: BTreeMap::new(), notes: Vec::new() };
        if let Some(config) = &self.config {
            resolved.apply_config(config)?;
        }
        if let Some(path) = &self.file {
            resolved.apply_file(path)?;
        }
        for (name, value) in &self.values {
            resolved.apply_value(name, value, Origin::Program, "argument")?;
        }
        for (variable, text) in &self.environment {
            let Some(name) = key_of_variable(variable, text) else { continue };
            let origin = Origin::Environment(variable.clone());
            resolved.apply_text(
                &name.to_ascii_lowercase(),
                text,
                origin,
                &format!("environment variable {variable}"),
            )?;
        }
        for (name, text) in &self.set {
            resolved.apply_text(name, text, Origin::Flag, "command line")?;
        }
        super::paths::make_absolute(&mut resolved)?;
        // An evaluation uses an adapter as it is and trains nothing.
        if self.purpose != Purpose::Eval {
            super::adopt::adopt(&mut resolved, self.purpose)?;
        }
        super::tasks::apply(&mut resolved);
        if resolved.config.replay.is_some() && !resolved.is_set("num_train_epochs") {
            resolved.config.num_train_epochs = 1.0;
        }
        resolved.apply_defaults(Methods::of(self.purpose, resolved.config.algorithm));
        super::validate::validate(&mut resolved, self.purpose)?;
        // Only methods that generate completions can record them.
        resolved.config.record_rollouts &= Methods::for_command(self.purpose).meet(ONLINE);
        Ok(resolved)
    }
}

impl Resolved {
    /// Sets every key that no layer set to the default of `method`.
    fn apply_defaults(&mut self, method: Methods) {
        for key in KEYS {
            if !self.is_set(key.name) && key.set_default(&mut self.config, method) && ONLINE.contain(method) {
                self.origins.insert(key.name, Origin::Algorithm);
            }
        }
    }

    fn apply_config(&mut self, config: &Config) -> anyhow::Result<()> {
        let default = Config::default();
        for key in KEYS.iter().filter(|key| key.value(config) != key.value(&default)) {
            let value = key.value(config);
            let value = value.ok_or_else(|| BadInput::new(format!("`{}` cannot be unset", key.name)))?;
            (key.read)(&mut self.config, &value).map_err(|e| BadInput::new(format!("`{}`: {e}", key.name)))?;
            self.origins.insert(key.name, Origin::Program);
        }
        Ok(())
    }

    fn apply_file(&mut self, path: &Path) -> anyhow::Result<()> {
        if path.is_dir() {
            let run_config = path.join("config.toml");
            let fix = if run_config.is_file() { format!(": give {}", run_config.display()) } else { String::new() };
            bad_input!("the configuration {} is a directory, not a TOML file{fix}", path.display());
        }
        let text = disk::read_to_string(path, disk::most::STATE).map_err(|e| {
            BadInput::new(format!(
                "cannot read the configuration {}: {e}; `lockstep config show` prints one",
                path.display()
            ))
        })?;
        let table: toml::Table = text.parse().map_err(|e: toml::de::Error| {
            let span = e.span().unwrap_or_default();
            let line = text[..span.start.min(text.len())].matches('\n').count() + 1;
            let message = match (e.message(), text.get(span)) {
                ("duplicate key", Some(key)) => format!("duplicate key `{key}`"),
                (message, _) => message.replace('\n', " "),
            };
            // For example in `--reward command:python3 reward.py` without quotes, `reward.py` is parsed as another
            // argument.
            let hint = if path.extension().is_some_and(|ending| ending == "toml") {
                ""
            } else {
                "; it was read as a configuration file: a reward command of several words must be quoted"
            };
            BadInput::new(format!("{}, line {line}: not valid TOML: {message}{hint}", path.display()))
        })?;
        let place = path.display().to_string();
        older_runs::complete(self, &table, path);
        table.iter().try_for_each(|(name, value)| self.apply_value(name, value, Origin::File(path.to_owned()), &place))
    }

    fn apply_value(&mut self, name: &str, value: &Value, origin: Origin, place: &str) -> anyhow::Result<()> {
        let Some(key) = self.find(name, value, place)? else { return Ok(()) };
        (key.read)(&mut self.config, value).map_err(|e| BadInput::new(format!("{place}: `{name}`: {e}")))?;
        self.origins.insert(key.name, origin);
        Ok(())
    }

    fn apply_text(&mut self, name: &str, text: &str, origin: Origin, place: &str) -> anyhow::Result<()> {
        let value = super::values::toml_of_text(text);
        let Some(key) = self.find(name, &value, place)? else { return Ok(()) };
        (key.read_text)(&mut self.config, text).map_err(|e| BadInput::new(format!("{place}: `{name}`: {e}")))?;
        self.origins.insert(key.name, origin);
        Ok(())
    }

    /// The key `name`. If it is a TRL key without effect here, adds a note and returns `None`. Any other name is an
    /// error.
    fn find(&mut self, name: &str, value: &Value, place: &str) -> anyhow::Result<Option<&'static Key>> {
        if let Some(key) = Config::key(name) {
            return Ok(Some(key));
        }
        match unsupported_key(name, value) {
            Some(UnsupportedKey::Ignored(why)) => {
                self.notes.push(format!("{name} has no meaning here: {why}"));
                Ok(None)
            }
            Some(UnsupportedKey::Refused(what)) => bad_input!("{place}: `{name} = {value}`: {what}"),
            None => {
                let table = if value.is_table() { ". Keys are flat: there are no sections" } else { "" };
                bad_input!("{place}: {}{table} (`lockstep config show` lists all keys)", unknown_key(name))
            }
        }
    }
}
