//! The directory that a command makes: whole, or not at all.

use anyhow::Context as _;
use lockstep::bad_input;
use lockstep::error::OrBadInput;
use std::fs;
use std::path::Path;

/// Makes the directory `out`, which must not exist or be empty: `fill` writes into one beside it, which gets the name
/// when it is whole, so that no half-written directory is ever found under it.
pub(crate) fn new_directory(out: &Path, fill: impl FnOnce(&Path) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let path = std::path::absolute(out).or_bad_input_in(out.display())?;
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        bad_input!("--out {}: give the name of a new directory", out.display());
    };
    let free = match fs::read_dir(&path) {
        Ok(mut entries) => entries.next().is_none(),
        Err(e) => e.kind() == std::io::ErrorKind::NotFound,
    };
    if !free {
        bad_input!("--out {}: exists and is no empty directory; nothing is overwritten", out.display());
    }
    let temporary = parent.join(format!(".{}.{}.partial", name.to_string_lossy(), std::process::id()));
    let written = fs::create_dir_all(parent)
        .with_context(|| format!("cannot create {}", parent.display()))
        .and_then(|()| fill(&temporary))
        .and_then(|()| fs::rename(&temporary, &path).with_context(|| format!("cannot create {}", path.display())));
    if written.is_err() {
        // The error that matters is the one that is returned.
        let _ = fs::remove_dir_all(&temporary);
    }
    written
}
