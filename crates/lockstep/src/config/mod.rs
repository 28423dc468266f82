//! What a run is told: one flat table of keys, most of them TRL's.
//!
//! [`keys`] has the rows of the table, by topic. From them come the typed [`Config`], its parsing, its checks, the notes on
//! unused keys, `config explain`, the JSON Schema, docs/config.md and what may change on resume. [`layers`] puts a
//! configuration together (defaults, file, environment, flags) and remembers where each value came from. Knows no model
//! and no data beyond their names, but for an adapter to go on with, which says what it is.

pub mod algorithms;
mod engine;
pub mod from_trl;
mod key;
mod keys;
pub mod layers;
mod methods;
pub mod nearest;
pub mod python;
pub mod show;
mod table;
pub mod tasks;
mod unsupported_keys;
mod unused_keys;
mod validate;
pub mod values;

pub use engine::{Known, engine_config, sampling, trainer_config};
pub use layers::{Layers, Origin, Purpose, Resolved};
pub use show::changes_on_resume;
pub use table::Config;
pub use tasks::Preset;
pub use values::{Algorithm, EvalSampling, Strategy, Task};

#[cfg(test)]
mod tests;
