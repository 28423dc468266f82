//! A gate at which a program waits until it may start: a shell reads a line from a named pipe before it executes the
//! program.
//!
//! A shell could not move itself into a cgroup: neither the program's user nor landlock permits that.

use std::fs::{File, Permissions};
use std::io::{Result, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// If this process ends before it opens the gate, the pipe closes, and the shell exits. The shell reports errors under
/// the name of bubblewrap, so that they are not mistaken for failures of the program.
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
        // The pipe is opened for reading and writing, since opening it only for writing would block until the reader
        // opens it.
        let pipe = File::options().read(true).write(true).open(&path)?;
        Ok(Gate { path, pipe, _directory: directory })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The command line of `program`, which waits at this gate.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", SCRIPT, "bwrap"]).arg(&self.path).arg(program);
        command
    }

    pub fn open(&self) -> Result<()> {
        (&self.pipe).write_all(b"\n")
    }
}
