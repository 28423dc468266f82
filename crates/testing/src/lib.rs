//! Helpers for tests: waits, programs written by a test, damaged input, and checks for what a machine may lack (real
//! models and data outside the repository, a program, a permission).
//!
//! If something is missing, the test is skipped: it passes, and a numbered line on standard error gives the reason.
//! With `CI=true` the test fails instead, so that no skipped test goes unnoticed.

pub mod foreign;
mod nats;
mod programs;
pub mod prometheus;
mod waits;

pub use nats::{NATS_TOKEN, NatsServer};
pub use programs::{with_default_hangup, write_program};
pub use waits::{HANG, receive, wait_for, wait_for_end, wait_until};

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The path of the shared file `name`, or `None` if it does not exist; the test should then return. Files that are too
/// large for the repository are shared by checkouts: in `LOCKSTEP_SHARED`, or in `../shared` beside the repository.
pub fn shared(name: &str) -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let path = std::env::var_os("LOCKSTEP_SHARED").map_or(beside, PathBuf::from).join(name);
    if path.exists() { Some(path) } else { skip(&format!("{} is missing", path.display())) }
}

/// Checks that the program `name` can be run, by asking for its version. If not, it returns `None`, and the test should
/// return.
pub fn program(name: &str) -> Option<()> {
    match Command::new(name).arg("--version").output() {
        Ok(_) => Some(()),
        Err(error) => skip(&format!("{name}: {error}")),
    }
}

/// Checks that programs are installed under /usr, where sandboxed programs see them. If one is missing, the result is
/// false, and the test should return. With `CI=true` a missing program fails the test, unless CI does not install that
/// program, or `SANDBOX_TESTS=skip` is set (by `.ci/run`, where programs cannot be isolated).
pub fn installed(programs: &[&str]) -> bool {
    let missing: Vec<_> = programs.iter().filter(|program| !Path::new("/usr/bin").join(program).exists()).collect();
    let is_skipped = std::env::var("SANDBOX_TESTS").as_deref() == Ok("skip");
    let why = format!("/usr/bin has no {missing:?} (apt install bubblewrap ocaml-nox python3 nodejs gcc)");
    match missing.is_empty() {
        true if is_skipped => eprintln!("skipped: nothing can be isolated here (SANDBOX_TESTS=skip)"),
        true => return true,
        false if is_skipped || missing == [&"node"] => eprintln!("skipped: {why}"),
        false => drop(skip::<()>(&why)),
    }
    false
}

/// Reports why a test is skipped; fails the test in CI.
pub fn skip<T>(why: &str) -> Option<T> {
    refuse(why, std::env::var("CI").as_deref() == Ok("true"));
    None
}

fn refuse(why: &str, ci: bool) {
    static SKIPPED: AtomicUsize = AtomicUsize::new(0);
    let test = std::thread::current();
    let line = format!("{} skipped: {why}", test.name().unwrap_or("a test"));
    assert!(!ci, "{line} (CI=true)");
    let count = SKIPPED.fetch_add(1, Ordering::Relaxed) + 1;
    // Writes to standard error directly, since the test harness hides the output of passing tests. A closed pipe is not
    // an error.
    let _ = writeln!(std::io::stderr(), "skipped {count}: {line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_found() {
        assert_eq!(program("cargo"), Some(()));
        refuse("only to be seen", false);
    }

    #[test]
    #[should_panic(expected = "no_such_program")]
    fn in_ci_nothing_may_be_missing() {
        let missing = Command::new("no_such_program").output().unwrap_err();
        refuse(&format!("no_such_program: {missing}"), true);
    }
}
