//! What a test needs that a machine may lack: real models and data beside the repository, a program, a right.
//!
//! Where it is missing the test is skipped, which is said on standard error though the test passes, with a count. With
//! `CI=true` it fails: there nothing may be missing without a word.

pub mod foreign;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// `name` among the files that are shared by checkouts and too large for the repository: in `LOCKSTEP_SHARED`, or in
/// `../shared` beside the repository. `None` if it is not there: return from the test.
pub fn shared(name: &str) -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let path = std::env::var_os("LOCKSTEP_SHARED").map_or(beside, PathBuf::from).join(name);
    match path.exists() {
        true => Some(path),
        false => skip(&format!("{} is missing", path.display())),
    }
}

/// Whether `name` can be run, asked for its version; if not, return from the test.
pub fn program(name: &str) -> Option<()> {
    match Command::new(name).arg("--version").output() {
        Ok(_) => Some(()),
        Err(error) => skip(&format!("{name}: {error}")),
    }
}

/// Says that the test is skipped, and why; fails it in CI.
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
    // Past the test harness, which swallows what a passing test prints; a closed pipe is no reason to fail.
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
