//! The result of running a program on its tests.

use super::staged::Staged;

/// The result of running a program on its tests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// How many tests the program passed. After the first failure no more are run, unless the options say `partial`.
    pub passed: usize,
    /// How many tests there are.
    pub of: usize,
    /// Why the first failed test failed; empty if none failed.
    pub failure: String,
    /// Whether the program exceeded its time limit.
    pub timed_out: bool,
    /// OCaml's staged score, if the option `staged` is set.
    pub staged: Option<Staged>,
}
