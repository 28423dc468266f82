//! The result of running a program on its tests.

use super::staged::Staged;

/// The result of running a program on its tests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// The number of tests that the program passed. Tests after the first failure are run only with the option
    /// `partial`.
    pub passed: usize,
    /// The number of tests.
    pub of: usize,
    /// The reason why the first failed test failed; empty if none failed.
    pub failure: String,
    /// Whether the program exceeded its time limit.
    pub timed_out: bool,
    /// OCaml's staged score, if the option `staged` is set.
    pub staged: Option<Staged>,
}
