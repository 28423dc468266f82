//! The configuration of a run: one flat table of keys, most of them named as in TRL.
//!
//! The files of `keys/` contain the rows of the table, by topic. From the rows come the type [`Config`], its parsing
//! and checks, the notes on unused keys, the rules on resume, and the documentation of each [`Key`]. `layers` merges a
//! configuration from defaults, file, environment and flags, and records where each value came from. This module does
//! not open models or data; it only reads the configuration of an adapter if its training continues.

mod adopt;
mod engine;
mod key;
pub(crate) mod keys;
mod layers;
mod methods;
mod older_runs;
mod paths;
pub(crate) mod profiles;
pub(crate) mod report_to;
mod resolved;
mod resume;
mod rollout_activations;
mod row;
mod save_dtype;
mod show;
mod tasks;
mod unsupported_keys;
mod unused_keys;
mod validate;
mod values;

pub use engine::{WorkloadBounds, engine_config, engine_config_of_rank, eval_sampling, sampling, trainer_config};
pub(crate) use keys::data::TEMPLATE_COLUMNS;
pub use keys::{Config, Key, keys};
pub use layers::{Layers, refuse_environment, unknown_key};
pub use methods::{Algorithm, Purpose};
pub(crate) use profiles::listed;
pub use profiles::{SamplingPlan, WorkerKind, worker_kinds};
pub use resolved::Resolved;
pub(crate) use resume::changes;
pub(crate) use resume::changes_on_resume;
pub(crate) use resume::settings_of_weights;
pub(crate) use resume::undo;
pub use rollout_activations::RolloutActivations;
pub use row::OnResume;
pub use save_dtype::SaveDType;
pub use show::hyperparameters;
pub use unsupported_keys::{UnsupportedKey, unsupported_key, unsupported_keys};
pub use values::{
    ComputeDType, EvalSampling, OptimizerName, RefAdapter, RewardErrors, SftLoss, Strategy, Task, Trust,
    toml_on_one_line,
};

#[cfg(test)]
mod tests;
