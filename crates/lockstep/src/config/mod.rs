//! What a run is told: one flat table of keys, most of them TRL's.
//!
//! [`keys`] is the table: names, types, defaults, meanings. From it come the typed [`Config`], its parsing, `config
//! explain`, the JSON Schema and the errors. [`layers`] puts a configuration together (defaults, file, environment, flags)
//! and remembers where each value came from; [`validate`] refuses what cannot work and says how to mend it. Knows no model
//! and no data beyond their names, but for an adapter to go on with, which says what it is.

pub mod algorithms;
mod derived;
mod engine;
pub mod foreign;
pub mod from_trl;
mod idle;
pub mod keys;
pub mod layers;
mod lora;
pub mod nearest;
pub mod ppo;
pub mod python;
pub mod show;
pub mod tasks;
pub mod validate;
pub mod values;

pub use engine::{Known, engine_config, sampling, trainer_config};
pub use keys::{Config, KEYS, Key, OnResume};
pub use layers::{Layers, Origin, Purpose, Resolved};
pub use show::changes_on_resume;
pub use tasks::Preset;
pub use values::{Algorithm, EvalSampling, Strategy, Task};

#[cfg(test)]
mod tests;
