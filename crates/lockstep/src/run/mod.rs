//! What every run has: a directory, steps, logs, checkpoints, a plan of its memory, an end. Knows no algorithm: that is
//! a [`TrainingTask`](task::TrainingTask).

mod abandoned;
pub mod alarms;
pub mod begin;
pub(crate) mod bits64;
pub mod board;
pub mod checkpoint;
pub mod completion_log;
pub mod context;
pub mod data_position;
mod device_meter;
pub mod eval_metrics;
pub mod evaluations;
pub mod inputs;
pub mod learner;
pub mod lineage;
mod lock;
pub mod log;
pub mod memory_plan;
pub mod prepared;
pub mod profile;
pub mod provenance;
pub mod reporter;
pub mod resume;
pub mod reward_notes;
mod rollout_log;
pub mod run_dir;
pub mod task;
pub mod training;

pub use context::context;
pub use run_dir::RunDir;

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// All steps are done.
    Completed,
    /// Evaluation stopped improving.
    EarlyStopping,
    /// A callback, or the program that drives the run, ended it.
    Requested,
    /// A signal; the run can be resumed from its last checkpoint, and no model was written.
    Interrupted,
}
