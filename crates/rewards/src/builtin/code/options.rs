//! The options of a `code` reward.

use super::language::LanguageOption;
use super::sandbox::{Isolation, Sandbox};
use serde::Deserialize;

/// The options of [`super::Code`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CodeOptions {
    /// A name, or a table `{ file = "main.lua", run = ["lua", "{source}"] }`.
    pub(super) language: LanguageOption,
    /// The dataset column with the tests.
    #[serde(default = "tests_column")]
    pub(super) column: String,
    /// The share of passed tests is the score.
    #[serde(default)]
    pub(super) partial: bool,
    /// OCaml's score by stages.
    #[serde(default)]
    pub(super) staged: bool,
    /// Of OCaml: whether tests that only a solution's own names of the standard library fit are left without a score
    /// (the default), instead of running with what the solution means by these names.
    #[serde(default)]
    pub(super) strict: Option<bool>,
    /// Seconds that one test may take.
    #[serde(default = "ten")]
    pub(super) timeout_s: f64,
    /// Seconds that compiling may take.
    #[serde(default = "thirty")]
    pub(super) compile_timeout_s: f64,
    /// What all processes of a program use together, and the address space of each, in MiB.
    #[serde(default = "half_a_gib")]
    pub(super) memory_mb: u64,
    /// Processes and threads at once.
    #[serde(default = "processes")]
    pub(super) processes: u64,
    /// Bytes that a program may print.
    #[serde(default = "a_mib")]
    pub(super) output_bytes: usize,
    /// Where no isolation can be had, programs are run without.
    #[serde(default)]
    pub(super) unsafe_no_sandbox: bool,
    /// The only isolation that will do; not set: the best there is.
    #[serde(default)]
    pub(super) isolation: Option<Isolation>,
    /// Bubblewrap's program.
    #[serde(default = "bwrap")]
    pub(super) bwrap: String,
    /// Programs that run at once; not set: one for each core.
    #[serde(default)]
    pub(super) workers: Option<usize>,
}

fn bwrap() -> String {
    "bwrap".to_owned()
}
fn tests_column() -> String {
    "tests".to_owned()
}
fn ten() -> f64 {
    10.0
}
fn thirty() -> f64 {
    30.0
}
fn half_a_gib() -> u64 {
    512
}
fn processes() -> u64 {
    64
}
fn a_mib() -> usize {
    1 << 20
}

impl CodeOptions {
    pub(super) fn sandbox(&self, programs: &[&str]) -> std::result::Result<Sandbox, String> {
        Sandbox::find(&self.bwrap, self.isolation, self.unsafe_no_sandbox, programs)
    }
}
