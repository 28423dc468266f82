//! Where a program waits until it may start: a shell reads a line from a named pipe before it becomes the program.
//!
//! A shell that moved itself would need rights that neither the user of a program nor landlock has.

use std::fs::{File, Permissions};
use std::io::{Result, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// If this process ends before it opens the gate, the pipe closes, and the shell exits. A failure has the name of
/// bubblewrap, whose failures are distinguished from those of programs.
const SCRIPT: &str = r#"gate=$1; shift; unset PWD OLDPWD SHLVL; read -r line <"$gate" && exec "$@""#;

pub struct Gate {
    path: PathBuf,
    pipe: File,
    _directory: TempDir,
}

impl Gate {
    pub fn new() -> Result<Gate> {
        let directory = crate::place::directory()?;
        let path = directory.path().join("gate");
        let mode = 0o644;
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::from_raw_mode(mode))?;
        std::fs::set_permissions(&path, Permissions::from_mode(mode))?;
        // Opened for both: opening only for writing would wait for the reader.
        let pipe = File::options().read(true).write(true).open(&path)?;
        Ok(Gate { path, pipe, _directory: directory })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The command line of `program`, which waits here.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", SCRIPT, "bwrap"]).arg(&self.path).arg(program);
        command
    }

    pub fn open(&self) -> Result<()> {
        (&self.pipe).write_all(b"\n")
    }
}
