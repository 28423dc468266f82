//! Judges untrusted programs: a program, its tests and limits in; a verdict out.
//!
//! A [`Judge`] is built from [`Options`] (language, limits, isolation), once. It then runs any number of
//! [`Submission`]s: texts that contain a program, each with its [`Tests`], and returns a [`Verdict`] for each: how many
//! tests passed, and why the first failed. **A failure of the machine is never a failed test**: it is an [`Error`].
//! Where no isolation works, no judge is built, unless the options allow programs without isolation. This crate knows
//! no rewards and models, and of datasets only the formats of their tests. It judges only on Linux.
//!
//! Read first: `judge` (what happens to a submission), then `sandbox` (how a program is isolated, in bubblewrap or
//! `confined` by landlock and `seccomp`; `running` waits for its end, `cgroup` or `memory` limits what its processes
//! hold together, `group` and `user` let nothing of it outlive this process, `place` has its files). `source`
//! and `output` read tests; `language` is how a language is compiled and run. The folders `python` and `ocaml` run unit
//! tests, which call functions of a program, from a second sandbox.
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
