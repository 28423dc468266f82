//! `completions/completions_00010.parquet`: the sampled completions of a logged step, with TRL's columns.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::Result;

/// The completions of one step; all lists have the same length.
#[derive(Clone, Debug, Default)]
pub struct CompletionRows {
    /// The step.
    pub step: u64,
    /// Prompts: strings, or arrays of chat messages.
    pub prompts: Vec<Value>,
    /// Completions: strings, or arrays of chat messages.
    pub completions: Vec<Value>,
    /// Name of each reward and its scores.
    pub rewards: Vec<(String, Vec<Option<f64>>)>,
    /// Further columns that rewards gave.
    pub extra: Vec<(String, Vec<Value>)>,
    /// Advantages.
    pub advantages: Vec<f64>,
}

/// Writes `directory/completions_{step:05}.parquet` atomically (a temporary file, then a rename) and returns its path.
pub fn write(_directory: &Path, _rows: &CompletionRows) -> Result<PathBuf> {
    unimplemented!()
}
