//! The options of a judge, as written in a configuration.

use super::language::LanguageOption;
use super::sandbox::{Isolation, Sandbox};
use serde::Deserialize;

/// The language, the limits and the isolation of programs, and the scoring of their tests.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// The language: the name of a built-in one, or a table such as `{ file = "main.lua", run = ["lua", "{source}"] }`.
    pub language: LanguageOption,
    /// The column of a dataset row with the tests.
    #[serde(default = "tests_column")]
    pub column: String,
    /// Whether the score is the share of passed tests, instead of 1 only if all pass.
    #[serde(default)]
    pub partial: bool,
    /// Whether OCaml solutions get the staged score (types, compilation, tests).
    #[serde(default)]
    pub staged: bool,
    /// For OCaml: whether tests that compile only because the solution redefines names of the standard library get no
    /// score (the default), instead of running with the solution's definitions.
    #[serde(default)]
    pub strict: Option<bool>,
    /// Seconds that one test may take.
    #[serde(default = "ten")]
    pub timeout_s: f64,
    /// Seconds that compiling may take.
    #[serde(default = "thirty")]
    pub compile_timeout_s: f64,
    /// Memory that all processes of a program may use together, and address space of each process, in MiB.
    #[serde(default = "half_a_gib")]
    pub memory_mb: u64,
    /// Processes and threads that a program may have at once.
    #[serde(default = "processes")]
    pub processes: u64,
    /// Bytes that a program may print on standard output.
    #[serde(default = "a_mib")]
    pub output_bytes: usize,
    /// Whether programs are run without isolation on a machine where none works.
    #[serde(default)]
    pub unsafe_no_sandbox: bool,
    /// The isolation that must be used; if not set, the best that works.
    #[serde(default)]
    pub isolation: Option<Isolation>,
    /// Name or path of the bubblewrap program.
    #[serde(default = "bwrap")]
    pub bwrap: String,
    /// Number of programs that run in parallel; if not set, one per core.
    #[serde(default)]
    pub workers: Option<usize>,
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

impl Options {
    /// The options of a built-in language (`"python"`, `"ocaml"`, `"rust"`, `"c"`, `"javascript"`, `"shell"`), each
    /// with its default.
    pub fn new(language: &str) -> Options {
        Options {
            language: LanguageOption::Named(language.to_owned()),
            column: tests_column(),
            partial: false,
            staged: false,
            strict: None,
            timeout_s: ten(),
            compile_timeout_s: thirty(),
            memory_mb: half_a_gib(),
            processes: processes(),
            output_bytes: a_mib(),
            unsafe_no_sandbox: false,
            isolation: None,
            bwrap: bwrap(),
            workers: None,
        }
    }

    /// Describes the isolation that a judge with these options uses now; `None` if there is none.
    pub fn isolation(&self) -> Option<String> {
        Some(self.sandbox(&[]).ok()?.name())
    }

    pub(crate) fn sandbox(&self, programs: &[&str]) -> std::result::Result<Sandbox, String> {
        Sandbox::find(&self.bwrap, self.isolation, self.unsafe_no_sandbox, programs)
    }
}
