//! What every run has: a directory, steps, logs, checkpoints, a plan of its memory, an end. Knows no algorithm.

pub mod checkpoint;
pub mod completion_log;
pub mod context;
pub mod course;
pub mod memory_plan;
pub mod provenance;
pub mod reporter;
pub mod run_dir;
pub mod signals;

pub use context::context;
