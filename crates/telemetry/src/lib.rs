//! Where a run's numbers go: metrics, TensorBoard events, stage times, traces, sample completions, the console.
//!
//! Takes numbers and text as arguments; knows no model, no trainer and no kernel. Nothing below the application imports
//! it. Every file that it appends to can say its length, be cut back to a length (exact resume), and recovers from a
//! record that a kill tore.
//!
//! Read first: [`metrics`], then [`stages`].

mod appended;
pub mod completions;
pub mod console;
pub mod error;
pub mod metrics;
pub mod record;
pub mod stages;
pub mod system;
pub mod table;
pub mod tensorboard;
pub mod trace;

pub use completions::CompletionRows;
pub use console::{Console, ConsoleOptions, Level, LogFormat, Progress};
pub use error::{Error, Result};
pub use metrics::{MetricsLog, Record};
pub use record::RunRecord;
pub use stages::{Ceilings, Stages, Summary};
pub use table::{Align, Table};
pub use tensorboard::EventWriter;
pub use trace::TraceWriter;
