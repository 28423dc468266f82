//! Atomic file writes: a reader sees the old contents or the new contents, never a part or a mixture of them.

use std::io::Write;
use std::path::Path;

use crate::{Error, Result};

/// Writes `bytes` to a temporary file next to `path`, syncs the file, and renames it to `path`.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let write = || {
        let mut file = disk::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        disk::rename(&temporary, path)
    };
    write().map_err(|source| {
        let _ = disk::remove_file(&temporary);
        Error::io("write", path)(source)
    })
}
