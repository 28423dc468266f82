//! Judges untrusted programs: takes a program with its tests and limits, and returns a verdict.
//!
//! A [`Judge`] is built once from [`Options`] (language, limits, isolation). It then runs any number of
//! [`Submission`]s, texts that contain a program, each with its [`Tests`]. For each it returns a [`Verdict`]: the
//! number of tests that passed, and the reason for the first failure. **A failure of the machine is never a failed
//! test**: it is an [`Error`]. If no isolation works, no judge is built, unless the options allow programs without
//! isolation. This crate does not depend on rewards or models, and knows only the test formats of datasets. It judges
//! only on Linux.
//!
//! Read first: `judge` (the path of a submission), then `sandbox`, which isolates a program in bubblewrap or, with
//! `confined`, by landlock and `seccomp`. `running` waits for the end of a program; `cgroup` or `memory` limits the
//! total memory of its processes; `group` and `user` ensure that none of them outlives this process; `place` manages
//! its files. `source` and `output` parse tests; `language` describes how a language is compiled and run. The folders
//! `python` and `ocaml` run unit tests, which call functions of a program, from a second sandbox.
//!
//! `cargo run -p lockstep-sandbox --example judge -- LANGUAGE PROGRAM TESTS.json` judges one program.

mod inexact;

#[cfg(target_os = "linux")]
mod cgroup;
#[cfg(target_os = "linux")]
mod confined;
#[cfg(target_os = "linux")]
mod group;
#[cfg(target_os = "linux")]
mod judge;
#[cfg(target_os = "linux")]
mod language;
#[cfg(target_os = "linux")]
mod memory;
#[cfg(target_os = "linux")]
mod ocaml;
#[cfg(target_os = "linux")]
mod options;
#[cfg(target_os = "linux")]
mod output;
#[cfg(target_os = "linux")]
mod place;
#[cfg(target_os = "linux")]
mod python;
#[cfg(target_os = "linux")]
mod running;
#[cfg(target_os = "linux")]
mod sandbox;
#[cfg(target_os = "linux")]
mod seccomp;
#[cfg(target_os = "linux")]
mod source;
#[cfg(target_os = "linux")]
mod staged;
#[cfg(target_os = "linux")]
mod user;
#[cfg(target_os = "linux")]
mod verdict;

pub use inexact::{Inexact, inexact};
#[cfg(target_os = "linux")]
pub use {
    judge::{Error, Judge, Result, Submission},
    language::{Language, LanguageOption},
    options::Options,
    output::Output,
    sandbox::Isolation,
    source::{StreamTest, Tests, UnitTests},
    staged::Staged,
    verdict::Verdict,
};
