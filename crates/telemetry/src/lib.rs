//! Where a run's numbers go: metrics, TensorBoard events, stage times, traces, sample completions, the console.
//!
//! A run emits [`Event`]s; every [`Sink`] receives all of them. Takes numbers and text as arguments; knows no model,
//! no trainer and no kernel, and nothing below the application imports it. Every file that a sink appends to is cut
//! back to a checkpoint's length on resume, and recovers from a record that a kill tore.
//!
//! Read first: [`event`], then [`sinks`], then [`stages`].

mod atomic_write;
pub mod error;
pub mod event;
pub mod in_place;
pub mod outputs;
pub mod record;
mod rollout_line;
pub mod sinks;
pub mod stages;
pub mod system;
pub mod table;
mod visible;

pub use error::{Error, Result};
pub use event::{Alarm, CompletionRows, Event, EventKind, Finding, Level, Record};
pub use record::RunRecord;
pub use rollout_line::{RecordedCompletion, RolloutLine, number};
pub use sinks::completions::CompletionsSink;
pub use sinks::console::{Console, ConsoleOptions, ConsoleSink, LogFormat, Progress, counted, duration};
pub use sinks::metrics::{self, ClosedLog, MetricsSink};
pub use sinks::tensorboard::{HParam, TensorBoardSink};
pub use sinks::trace::TraceSink;
pub use sinks::{Sink, Sinks};
pub use stages::{Ceilings, DeviceMeter, DeviceWork, StageTotal, Stages, StepTotals, Summary};
pub use table::{Align, Table};
pub use visible::{visible, visible_json};
