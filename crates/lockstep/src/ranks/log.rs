//! The log of a rank other than 0: a file in the run's directory, which rank 0 names once the directory exists. Lines
//! before are kept until then.

use std::fs::File;
use std::io::{Result, Write};
use std::path::Path;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The log of this process.
static LOG: LazyLock<Mutex<Log>> = LazyLock::new(|| Mutex::new(Log::new()));

struct Log {
    start: Instant,
    /// The lines before the file was opened.
    earlier: String,
    file: Option<File>,
}

impl Log {
    fn new() -> Log {
        Log { start: Instant::now(), earlier: String::new(), file: None }
    }

    /// Adds a line. A full disk does not end a rank.
    fn note(&mut self, text: &str) {
        let line = format!("[{:>8.1}s] {text}\n", self.start.elapsed().as_secs_f64());
        match &mut self.file {
            Some(file) => drop(file.write_all(line.as_bytes())),
            None => self.earlier += &line,
        }
    }

    /// Appends to this file from now on, beginning with the lines so far.
    fn open(&mut self, path: &Path) -> Result<()> {
        let mut file = disk::Options::new().write().create().append().open(path)?;
        file.write_all(std::mem::take(&mut self.earlier).as_bytes())?;
        self.file = Some(file);
        Ok(())
    }
}

fn log() -> MutexGuard<'static, Log> {
    LOG.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds a line to the log of this process.
pub(super) fn note(text: &str) {
    log().note(text);
}

/// Writes the log of this process to this file.
pub(super) fn open(path: &Path) -> Result<()> {
    log().open(path)
}

/// Also writes panics to the log.
pub(super) fn note_panics() {
    let other = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        note(&format!("{panic}"));
        other(panic);
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_before_the_file_come_first_and_an_earlier_log_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lockstep-1.log");
        for number in [1, 2] {
            let mut log = Log::new();
            log.note(&format!("start {number}"));
            log.open(&path).unwrap();
            log.note("later");
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().map(|line| line.split_once("s] ").unwrap().1).collect();
        assert_eq!(lines, ["start 1", "later", "start 2", "later"]);
        assert!(Log::new().open(&dir.path().join("none/lockstep-1.log")).is_err());
    }
}
