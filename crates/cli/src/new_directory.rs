//! Creates a command's output directory atomically: either complete, or not at all.

use crate::signals::{Promise, set_partial, stop_on_signals};
use anyhow::Context as _;
use lockstep::Stopped;
use lockstep::bad_input;
use lockstep::error::OrBadInput;
use model::io::{lock_partial, sweep_partial};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use telemetry::{Console, ConsoleOptions};

/// Creates the directory `out`, which must be empty or not exist. `fill` writes to a temporary directory beside it,
/// which is renamed to `out` at the end, so `out` never has partial contents.
pub(crate) fn new_directory(out: &Path, fill: impl FnOnce(&Path) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let path = std::path::absolute(out).or_bad_input_in(out.display())?;
    match fs::read_dir(&path) {
        Ok(mut entries) => {
            if entries.next().is_some() {
                bad_input!("--out {}: the directory is not empty; existing files are not overwritten", out.display());
            }
        }
        Err(e) if e.kind() == ErrorKind::NotFound && !path.is_symlink() => {}
        Err(e) if e.kind() == ErrorKind::NotFound => {
            bad_input!("--out {} is a symbolic link without a target", out.display())
        }
        Err(e) if e.kind() == ErrorKind::NotADirectory => {
            bad_input!(
                "--out {}: this path or one of its parents is a file, and files are not overwritten",
                out.display()
            )
        }
        Err(e) => bad_input!("--out {}: {e}", out.display()),
    }
    // If `out` is a symbolic link, it is kept, and its target directory is filled.
    let path = path.canonicalize().unwrap_or(path);
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        bad_input!("--out {}: give the name of a new directory", out.display());
    };
    let temporary = parent.join(format!(".{}.{}.partial", name.to_string_lossy(), std::process::id()));
    sweep_partial(&path);
    let console = Console::new(ConsoleOptions::default())?;
    let stop = stop_on_signals(&console, Promise::Ends("nothing is written"))?;
    set_partial(Some(temporary.clone()));
    let written = fs::create_dir_all(parent)
        .and_then(|()| fs::create_dir_all(&temporary))
        .with_context(|| format!("cannot create {}", parent.display()))
        .and_then(|()| {
            let _writing = lock_partial(&temporary);
            fill(&temporary)
        })
        .and_then(|()| if stop.is_requested() { Err(Stopped.into()) } else { Ok(()) })
        .and_then(|()| fs::rename(&temporary, &path).with_context(|| format!("cannot create {}", path.display())));
    set_partial(None);
    if written.is_err() {
        // `written` already has the error to report.
        let _ = fs::remove_dir_all(&temporary);
    }
    written
}
