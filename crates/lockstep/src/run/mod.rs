//! The common parts of all training runs: directory, steps, logs, checkpoints, and memory plan. The algorithm is in a
//! [`TrainingTask`](task::TrainingTask).

mod abandoned;
pub mod alarms;
pub mod begin;
pub(crate) mod bits64;
pub mod board;
pub mod branch;
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
pub mod lock;
pub mod log;
pub mod memory_advice;
pub mod memory_plan;
pub mod moments;
mod own_files;
pub mod prepared;
pub mod profile;
pub mod provenance;
mod receivers;
pub mod reporter;
pub mod resume;
pub mod reward_notes;
mod rollout_log;
pub mod run_dir;
mod save;
pub mod state;
pub mod task;
pub mod training;

pub use context::context;
pub use lock::RunLock;
pub use run_dir::RunDir;

/// The reason why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// All steps of the run were done.
    Completed,
    /// Evaluations no longer improved.
    EarlyStopping,
    /// A callback, or the code that drives the run, ended it.
    Requested,
    /// A signal stopped the run, which can be resumed from its last checkpoint; no final model was written.
    Interrupted,
}

impl StopReason {
    /// The reason as one word, for programs that read the log.
    pub fn name(self) -> &'static str {
        match self {
            StopReason::Completed => "completed",
            StopReason::EarlyStopping => "early_stopping",
            StopReason::Requested => "requested",
            StopReason::Interrupted => "interrupted",
        }
    }
}
