//! A merged configuration, with the origin of each value.

use super::keys::Config;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// A merged configuration, with the origin of each value.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The configuration.
    pub config: Config,
    /// The origin of each key that some layer set; a key that is not in the map has its default.
    pub(super) origins: BTreeMap<&'static str, Origin>,
    /// Notes to print at the start of a run, on keys without effect and on doubtful values.
    pub notes: Vec<String>,
}

/// Where the value of a key came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// No layer set it.
    Default,
    /// The preset of `task`.
    Task,
    /// The algorithm's own default for the key.
    Algorithm,
    /// The adapter that the run continues to train.
    Adapter,
    /// A configuration file.
    File(PathBuf),
    /// An environment variable, by name.
    Environment(String),
    /// A command-line flag or `--set`.
    Flag,
    /// The program that made the configuration, through the library.
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
    /// The origin of the value of `key`.
    pub(super) fn origin(&self, key: &str) -> &Origin {
        self.origins.get(key).unwrap_or(&Origin::Default)
    }

    /// Sets `gradient_shares` to the number of ranks that a flag asks for, unless some layer has set it.
    pub(crate) fn share_among(&mut self, ranks: usize) {
        if !self.is_set("gradient_shares") {
            self.config.gradient_shares = ranks;
            self.origins.insert("gradient_shares", Origin::Flag);
        }
    }

    /// Whether some layer set `key`.
    pub(super) fn is_set(&self, key: &str) -> bool {
        self.origins.contains_key(key)
    }
}
