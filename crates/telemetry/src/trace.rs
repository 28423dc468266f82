//! `trace.json` for chrome://tracing and Perfetto.

use std::path::Path;

use crate::Result;

/// An open trace.
#[derive(Debug)]
pub struct TraceWriter {}

impl TraceWriter {
    /// Opens `path` to append, at most `max_bytes` long.
    pub fn open(_path: &Path, _max_bytes: u64) -> Result<Self> {
        unimplemented!()
    }
    /// Closes the JSON array.
    pub fn finish(&mut self) -> Result<()> {
        unimplemented!()
    }
}
