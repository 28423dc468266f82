//! Memory-mapped files, for reading weights.

use crate::{Error, Result};
use std::path::Path;

/// A read-only memory map of a file.
pub struct FileMap(Option<memmap2::Mmap>);

impl FileMap {
    /// Maps the file at `path`. It must not be truncated while the map lives (the process would be killed on access).
    pub fn open(path: &Path) -> Result<FileMap> {
        let fail = |source| Error::Map { path: path.to_owned(), source };
        let file = disk::open(path).map_err(fail)?;
        if file.metadata().map_err(fail)?.len() == 0 {
            return Ok(FileMap(None));
        }
        // SAFETY: the mapping is read-only, and the caller guarantees that the file is not truncated, as documented.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(fail)?;
        Ok(FileMap(Some(map)))
    }
    /// The file's bytes.
    pub fn bytes(&self) -> &[u8] {
        self.0.as_deref().unwrap_or(&[])
    }
    /// Frees the physical memory of these bytes. They stay readable: on access, the system reads their pages from the
    /// file again.
    pub fn release(&self, range: std::ops::Range<usize>) {
        #[cfg(target_os = "linux")]
        if let Some(map) = &self.0 {
            // Only whole pages are released, so that neighbouring bytes that have not been read yet stay in memory.
            let page = 4096;
            let (from, to) = (range.start.next_multiple_of(page), range.end / page * page);
            if from < to && to <= map.len() {
                // SAFETY: the mapping is a read-only mapping of a file, so released pages come back with the same
                // bytes. If the release fails, it only costs memory.
                let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, from, to - from) };
            }
        }
        #[cfg(not(target_os = "linux"))]
        let _ = range;
    }
}
