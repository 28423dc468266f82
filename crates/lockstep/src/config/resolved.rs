//! A configuration together with where each of its values came from.

use super::keys::Config;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// A configuration and where it came from.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The values.
    pub config: Config,
    /// Where each key's value came from; a key that is not in it has its default.
    pub(super) origins: BTreeMap<&'static str, Origin>,
    /// Lines to report at the start: keys without meaning here, doubtful values.
    pub notes: Vec<String>,
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// Nobody set it.
    Default,
    /// The task's preset.
    Task,
    /// The algorithm's own default.
    Algorithm,
    /// The adapter that is the run's model.
    Adapter,
    /// A file.
    File(PathBuf),
    /// An environment variable.
    Environment(String),
    /// A flag or `--set`.
    Flag,
    /// The program that made the configuration.
    Program,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::Task => f.write_str("task"),
            Origin::Algorithm => f.write_str("algorithm"),
            Origin::Adapter => f.write_str("the adapter"),
            Origin::File(path) => write!(f, "{}", path.display()),
            Origin::Environment(name) => write!(f, "{name}"),
            Origin::Flag => f.write_str("command line"),
            Origin::Program => f.write_str("program"),
        }
    }
}

impl Resolved {
    /// Where the value of `key` came from.
    pub(super) fn origin(&self, key: &str) -> &Origin {
        self.origins.get(key).unwrap_or(&Origin::Default)
    }

    /// Whether anybody set `key`.
    pub(super) fn is_set(&self, key: &str) -> bool {
        self.origins.contains_key(key)
    }
}
