//! The identity of the running build: the commit of its sources, uncommitted changes, and cargo features. The program
//! announces its identity at its start. Libraries do not contain it, so a new commit rebuilds only the program.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::OnceLock;

static OF_PROCESS: OnceLock<Build> = OnceLock::new();

/// A build of the program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    /// The version of the package.
    pub version: String,
    /// The commit of the sources; `None` if the program was built without git.
    #[serde(default)]
    pub commit: Option<String>,
    /// A hash of the uncommitted changes, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified: Option<String>,
    /// The cargo features, sorted. Results do not depend on them.
    #[serde(default)]
    pub features: Vec<String>,
}

impl Build {
    /// The build of this process. If the program has not announced its build, only the version is known.
    pub fn current() -> Build {
        let unknown = || Build { version: env!("CARGO_PKG_VERSION").to_owned(), ..Build::default() };
        OF_PROCESS.get().cloned().unwrap_or_else(unknown)
    }

    /// Announces the build of this process. Later calls have no effect.
    pub fn announce(self) {
        let _ = OF_PROCESS.set(self);
    }

    /// Whether both builds have the same sources; `None` if the sources of either are unknown.
    pub fn is_same(&self, other: &Build) -> Option<bool> {
        if self.version != other.version {
            return Some(false);
        }
        match (&self.commit, &other.commit) {
            (Some(own), Some(others)) => Some((own, &self.modified) == (others, &other.modified)),
            _ => None,
        }
    }

    /// The sources and features, for example `commit 0123456789ab, modified 456789abcdef; features hub, parquet`.
    pub fn sources(&self) -> String {
        let short = |hash: &str| hash.chars().take(12).collect::<String>();
        let commit =
            self.commit.as_deref().map_or("commit unknown (no git)".to_owned(), |c| format!("commit {}", short(c)));
        let modified = self.modified.as_deref().map_or(String::new(), |hash| format!(", modified {}", short(hash)));
        let features = if self.features.is_empty() {
            "no features".to_owned()
        } else {
            format!("features {}", self.features.join(", "))
        };
        format!("{commit}{modified}; {features}")
    }
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.version, self.sources())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(version: &str, commit: &str, modified: &str, features: &[&str]) -> Build {
        let known = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let features = features.iter().map(|name| (*name).to_owned()).collect();
        Build { version: version.to_owned(), commit: known(commit), modified: known(modified), features }
    }

    #[test]
    fn builds_with_the_same_sources_are_the_same() {
        let own = build("1", "a", "", &["hub"]);
        let rows = [
            (build("1", "a", "", &["hub"]), Some(true)),
            (build("1", "a", "", &["hub", "nats"]), Some(true)),
            (build("1", "b", "", &["hub"]), Some(false)),
            (build("1", "a", "d", &["hub"]), Some(false)),
            (build("2", "a", "", &["hub"]), Some(false)),
            (build("1", "", "", &["hub"]), None),
            (build("2", "", "", &["hub"]), Some(false)),
        ];
        let found: Vec<_> = rows.iter().map(|(other, _)| (own.is_same(other), other.is_same(&own))).collect();
        let expected: Vec<_> = rows.iter().map(|(_, same)| (*same, *same)).collect();
        assert_eq!(found, expected);
        assert_eq!(build("1", "", "", &[]).is_same(&build("1", "", "", &[])), None);
        let (modified, other) = (build("1", "a", "d", &[]), build("1", "a", "e", &[]));
        assert_eq!((modified.is_same(&modified), modified.is_same(&other)), (Some(true), Some(false)));
    }

    #[test]
    fn a_build_is_formatted_as_one_line_and_round_trips_as_json() {
        let full = build("0.1.0", "0123456789abcdef", "fedcba9876543210", &["hub", "nats"]);
        let text = "0.1.0 (commit 0123456789ab, modified fedcba987654; features hub, nats)";
        assert_eq!(full.to_string(), text);
        let unknown = build("0.1.0", "", "", &[]);
        assert_eq!(unknown.to_string(), "0.1.0 (commit unknown (no git); no features)");
        for build in [full, unknown] {
            let json = serde_json::to_string(&build).unwrap();
            assert_eq!(serde_json::from_str::<Build>(&json).unwrap(), build, "{json}");
        }
        let old: Build = serde_json::from_str("{\"version\": \"1\"}").unwrap();
        assert_eq!((old.commit, old.features.len()), (None, 0));
    }
}
