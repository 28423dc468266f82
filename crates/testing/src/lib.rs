//! Helpers for tests: waits, written programs, corrupted input, and checks for resources that a machine may lack (real
//! models and data outside the repository, a program, a permission).
//!
//! If one of these is missing, the test is skipped: it passes, and prints a numbered line with the reason to standard
//! error. With `CI=true` the test fails instead, so that no skipped test goes unnoticed.

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

/// The path of the shared file `name`, or `None` if the file is missing; the test should then return. Shared files are
/// too large for the repository. They are in the directory `LOCKSTEP_SHARED`, or in `../shared` next to the repository.
pub fn shared(name: &str) -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let path = std::env::var_os("LOCKSTEP_SHARED").map_or(beside, PathBuf::from).join(name);
    if path.exists() { Some(path) } else { skip(&format!("{} is missing", path.display())) }
}

/// Checks that the program `name` can be run, with the option `--version`. Returns `None` if that fails; the test
/// should then return.
pub fn program(name: &str) -> Option<()> {
    match Command::new(name).arg("--version").output() {
        Ok(_) => Some(()),
        Err(error) => skip(&format!("{name}: {error}")),
    }
}

/// Checks that programs are installed under /usr, where sandboxed programs see them. Returns false if a program is
/// missing; the test should then return. With `CI=true` a missing program fails the test, unless CI never installs that
/// program, or `SANDBOX_TESTS=skip` is set (`.ci/run` sets it on machines that cannot isolate programs).
pub fn installed(programs: &[&str]) -> bool {
    let missing: Vec<_> = programs.iter().filter(|program| !Path::new("/usr/bin").join(program).exists()).collect();
    let is_skipped = std::env::var("SANDBOX_TESTS").as_deref() == Ok("skip");
    let why =
        format!("programs missing in /usr/bin: {missing:?} (apt install bubblewrap ocaml-nox python3 nodejs gcc)");
    match missing.is_empty() {
        true if is_skipped => eprintln!("skipped: programs cannot be isolated on this machine (SANDBOX_TESTS=skip)"),
        true => return true,
        false if is_skipped || missing == [&"node"] => eprintln!("skipped: {why}"),
        false => drop(skip::<()>(&why)),
    }
    false
}

/// Prints why a test is skipped; fails the test in CI.
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
    // The test harness would capture the output of `eprintln!`, and hide it if the test passes. A closed pipe is not an
    // error.
    let _ = writeln!(std::io::stderr(), "skipped {count}: {line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installed_program_is_found() {
        assert_eq!(program("cargo"), Some(()));
        refuse("this line tests the output of skipped tests", false);
    }

    #[test]
    #[should_panic(expected = "no_such_program")]
    fn a_missing_program_fails_the_test_in_ci() {
        let missing = Command::new("no_such_program").output().unwrap_err();
        refuse(&format!("no_such_program: {missing}"), true);
    }
}
