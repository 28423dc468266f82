//! Prompts in, completions with their log-probabilities out.
//!
//! Keys and values lie in pages of one preallocated pool. A group's prompt is computed once and its full pages are
//! shared; sequences join and leave the batch at every step; when pages run out the youngest one is preempted and
//! computed again later, to the same bits. It knows no text (but for stop strings, through [`Detokenize`]) and no
//! reward.
//!
//! Read in this order: `request.rs` (what goes in and out), `sequence.rs`, `blocks.rs`, `scheduler.rs` (schedule,
//! preempt, guess, postprocess), `engine.rs` (the step), `inputs.rs` (its rows), `sampler.rs` (its tokens).

mod blocks;
mod config;
mod cost;
mod drafts;
mod earlier;
mod engine;
mod error;
mod inputs;
mod lengths;
mod logprobs;
mod models;
mod prefix;
mod request;
mod reuse;
mod sampler;
mod scheduler;
mod sequence;
mod stop;

pub use config::{EngineConfig, Speculative};
pub use engine::Engine;
pub use error::{Error, Result};
pub use lengths::length_metrics;
pub use models::{AdapterVersion, ModelVersion, Models};
pub use request::{
    Completion, Detokenize, Drawn, FinishReason, Request, RequestId, RolloutGroup, SamplingParams, SequenceId,
};
pub use scheduler::Counters;
