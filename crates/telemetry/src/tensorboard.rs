//! TensorBoard event files.

use std::path::Path;

use crate::Result;

/// An open event file.
#[derive(Debug)]
pub struct EventWriter {}

impl EventWriter {
    /// Opens the event file of `directory` to append (the directory and the file are created if missing).
    pub fn open(_directory: &Path) -> Result<Self> {
        unimplemented!()
    }
    /// Appends a number.
    pub fn scalar(&mut self, _step: u64, _tag: &str, _value: f64) -> Result<()> {
        unimplemented!()
    }
    /// Appends a text (Markdown).
    pub fn text(&mut self, _step: u64, _tag: &str, _text: &str) -> Result<()> {
        unimplemented!()
    }
    /// Length in bytes: what a checkpoint records.
    pub fn len(&self) -> u64 {
        unimplemented!()
    }
    /// Never true: the file begins with its version.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Cuts the file back to `len` bytes.
    pub fn truncate_to(&mut self, _len: u64) -> Result<()> {
        unimplemented!()
    }
    /// Hands everything to the operating system.
    pub fn flush(&mut self) -> Result<()> {
        unimplemented!()
    }
}
