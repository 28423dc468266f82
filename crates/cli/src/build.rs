//! The version, commit and features of this build, which `build.rs` records.

use std::sync::LazyLock;
use telemetry::build::Build;

/// The version, commit and features of this build.
static BUILD: LazyLock<Build> = LazyLock::new(|| {
    let known = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let features =
        [("hub", cfg!(feature = "hub")), ("nats", cfg!(feature = "nats")), ("parquet", cfg!(feature = "parquet"))];
    Build {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: known(env!("GIT_COMMIT_OF_BUILD")),
        modified: known(env!("GIT_CHANGES_OF_BUILD")),
        features: features.iter().filter(|(_, is_on)| *is_on).map(|(name, _)| (*name).to_owned()).collect(),
    }
});

/// The output of `--version`, without the program's name.
pub(crate) static TEXT: LazyLock<String> = LazyLock::new(|| BUILD.to_string());

/// The build that each run records: engine version and cargo features.
pub fn build() -> Build {
    BUILD.clone()
}

#[cfg(test)]
#[path = "../build.rs"]
#[allow(dead_code, clippy::print_stdout)]
mod script;

#[cfg(test)]
mod tests;
