//! A run's configuration: one flat table of keys, most of them TRL's.
//!
//! `keys` has the rows of the table, by topic. From them come the typed [`Config`], its parsing, its checks, the
//! notes on unused keys, `config explain`, the JSON Schema, docs/config.md and what may change on resume. `layers`
//! puts a configuration together (defaults, file, environment, flags) and remembers where each value came from. Knows
//! no model and no data beyond their names, but for an adapter to go on with, which says what it is.

mod algorithms;
mod engine;
mod explain;
mod from_trl;
mod key;
mod keys;
mod layers;
mod markdown;
mod methods;
mod nearest;
mod python;
mod resume;
mod show;
mod table;
mod tasks;
mod unsupported_keys;
mod unused_keys;
mod validate;
mod values;

pub use engine::{WorkloadBounds, engine_config, sampling, trainer_config};
pub use explain::{explain, schema};
pub use from_trl::translate as from_trl;
use layers::Origin;
pub use layers::{Layers, Purpose, Resolved};
pub use markdown::page as markdown;
pub(crate) use nearest::nearest;
pub use resume::changes_on_resume;
pub use table::Config;
pub use values::{Algorithm, ComputeDType, EvalSampling, Strategy, Task};

#[cfg(test)]
mod tests;
