//! Writes programs that tests then start.
//!
//! A file that any process has open for writing cannot be started ("Text file busy"). If the test process wrote the
//! file itself, another test could fork a child at the same time, and the child would inherit the open file until it
//! executes its own program. Therefore a child process writes the file, and the test process never opens it.

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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

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
