//! Reports of a training run: metrics, TensorBoard events, stage times, traces, sample completions, the console.
//!
//! A run emits [`Event`]s, and every [`Sink`] receives all of them. This crate takes numbers and text as arguments. It
//! does not depend on models, trainers or kernels, and no crate below the application imports it. On resume, every file
//! that a sink appends to is truncated to its length at the checkpoint. A partial record, left by a process that was
//! killed, is removed.
//!
//! Read first: [`event`], then [`sinks`], then [`stages`].

mod atomic_write;
pub mod build;
pub mod error;
pub mod event;
pub mod in_place;
mod load;
mod memory_limit;
pub mod outputs;
pub mod prometheus;
pub mod record;
mod rollout_line;
pub mod sinks;
pub mod stages;
mod step;
pub mod system;
pub mod table;
mod visible;
mod weight;

pub use error::{Error, Result};
pub use event::{Alarm, CompletionRows, Event, EventKind, Finding, Level, Record};
pub use load::CpuTimes;
pub use record::RunRecord;
pub use rollout_line::{RecordedCompletion, RolloutLine, number};
pub use sinks::completions::CompletionsSink;
pub use sinks::console::{Console, ConsoleOptions, ConsoleSink, Listener, LogFormat, Painted, Progress, Tone};
pub use sinks::console::{brief, counted, duration};
pub use sinks::metrics::{self, ClosedLog, MetricsSink, StepsSink};
pub use sinks::tensorboard::{HParam, TensorBoardSink};
pub use sinks::trace::TraceSink;
pub use sinks::{Sink, Sinks};
pub use stages::{Ceilings, DeviceMeter, DeviceWork, StageTotal, Stages, StepTotals, Summary};
pub use step::Step;
pub use table::{Align, Table};
pub use visible::{visible, visible_json};
pub use weight::Weight;
