//! Writes programs that tests then start.
//!
//! A file that any process has open for writing cannot be started ("Text file busy"). If the test process wrote the
//! file itself, another test could fork a child at the same time, and the child would inherit the open file until it
//! executes its own program. Therefore a child process writes the file, and the test process never opens it.

use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Writes `text` to the file `path` and makes the file executable for everybody. A script must begin with `#!`.
#[track_caller]
pub fn write_program(path: &Path, text: impl AsRef<[u8]>) {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "cat > \"$1\" && chmod 755 \"$1\"", "sh"]).arg(path).stdin(Stdio::piped());
    let mut child = shell.spawn().expect("start a shell");
    child.stdin.take().expect("standard input is a pipe").write_all(text.as_ref()).expect("write to the shell");
    let ended = child.wait().expect("wait for the shell");
    assert!(ended.success(), "{} cannot be written", path.display());
}

/// A command that starts `program` with the default effect of SIGHUP. A process inherits ignored signals, so without
/// this a test that sends SIGHUP would wait forever if the tests themselves run under `nohup`.
pub fn with_default_hangup(program: impl AsRef<OsStr>) -> Command {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|signals| u64::from_str_radix(signals.trim(), 16).ok());
    // Bit 0 is signal 1, SIGHUP. Only GNU's `env` can restore its default.
    let is_ignored = ignored.is_some_and(|signals| signals & 1 == 1);
    let mut probe = Command::new("env");
    let probe = probe.args(["--default-signal=HUP", "true"]).stderr(Stdio::null());
    if !is_ignored || !probe.status().is_ok_and(|status| status.success()) {
        return Command::new(program);
    }
    let mut command = Command::new("env");
    command.arg("--default-signal=HUP").arg(program);
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn a_program_does_not_ignore_the_hangup_that_its_parent_ignores() {
        let test = "programs::tests::a_program_does_not_ignore_the_hangup_that_its_parent_ignores";
        if std::env::var_os("HANGUP_IGNORED").is_some() {
            let status = with_default_hangup("sh").args(["-c", "kill -HUP $$; exit 3"]).status().unwrap();
            assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(1), "{status}");
            return;
        }
        let script = "trap '' HUP; exec \"$0\" --exact \"$1\"";
        let mut again = Command::new("sh");
        again.args(["-c", script]).arg(std::env::current_exe().unwrap()).arg(test).env("HANGUP_IGNORED", "1");
        let output = again.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
    }

    /// Several threads write and start programs at the same time, so each may fork while another program is being
    /// written.
    #[test]
    fn a_written_program_can_be_started_while_other_threads_fork() {
        let dir = std::env::temp_dir().join(format!("lockstep-programs-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let started = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (dir, started) = (&dir, &started);
                scope.spawn(move || {
                    for round in 0..15 {
                        let program = dir.join(format!("program {thread} {round}"));
                        write_program(&program, "#!/bin/sh\nexit 5\n");
                        assert_eq!(Command::new(&program).status().unwrap().code(), Some(5));
                        started.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(started.into_inner(), 60);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
