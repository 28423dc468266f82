//! The options of a `code` reward.

use super::language::LanguageOption;
use super::sandbox::{Isolation, Sandbox};
use serde::Deserialize;

/// The options of [`super::Code`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CodeOptions {
    /// The language: the name of a built-in one, or a table such as `{ file = "main.lua", run = ["lua", "{source}"] }`.
    pub(super) language: LanguageOption,
    /// The dataset column with the tests.
    #[serde(default = "tests_column")]
    pub(super) column: String,
    /// Whether the score is the share of passed tests, instead of 1 only if all pass.
    #[serde(default)]
    pub(super) partial: bool,
    /// Whether OCaml solutions get the staged score (types, compilation, tests).
    #[serde(default)]
    pub(super) staged: bool,
    /// For OCaml: whether tests that compile only because the solution redefines names of the standard library get no
    /// score (the default), instead of running with the solution's definitions.
    #[serde(default)]
    pub(super) strict: Option<bool>,
    /// Seconds that one test may take.
    #[serde(default = "ten")]
    pub(super) timeout_s: f64,
    /// Seconds that compiling may take.
    #[serde(default = "thirty")]
    pub(super) compile_timeout_s: f64,
    /// Memory that all processes of a program may use together, and address space of each process, in MiB.
    #[serde(default = "half_a_gib")]
    pub(super) memory_mb: u64,
    /// Processes and threads that a program may have at once.
    #[serde(default = "processes")]
    pub(super) processes: u64,
    /// Bytes that a program may print on standard output.
    #[serde(default = "a_mib")]
    pub(super) output_bytes: usize,
    /// Whether programs are run without isolation on a machine where none works.
    #[serde(default)]
    pub(super) unsafe_no_sandbox: bool,
    /// The isolation that must be used; not set: the best that works.
    #[serde(default)]
    pub(super) isolation: Option<Isolation>,
    /// Name or path of the bubblewrap program.
    #[serde(default = "bwrap")]
    pub(super) bwrap: String,
    /// Number of programs that run in parallel; not set: one per core.
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
