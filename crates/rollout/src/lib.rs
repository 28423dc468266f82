//! The rollout engine: generates completions of prompts, with their log-probabilities.
//!
//! Keys and values are stored in pages of one preallocated pool (the KV cache). The prompt of a group is computed once,
//! and its full pages are shared by the group's completions. Sequences join and leave the batch at every step. When the
//! pages run out, the youngest sequence is preempted and recomputed later, with the same bits. The engine handles no
//! text (except for stop strings, through [`Detokenize`]) and no rewards.
//!
//! Suggested reading order: `request.rs` (inputs and outputs), `sequence.rs`, `blocks.rs`, `scheduler/` (schedule,
//! preempt, guess draft tokens, postprocess), `engine.rs` (the step), `inputs.rs` (the rows of a step), `sampler.rs`
//! (its tokens), `drive.rs` (steps for several owners: a collection, a worker, a server).

mod blocks;
mod config;
mod cost;
mod drafts;
mod drive;
mod earlier;
mod engine;
mod error;
mod inputs;
mod keep;
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
pub use drive::{Drive, Outcome};
pub use engine::Engine;
pub use error::{Error, Result};
pub use lengths::length_metrics;
pub use models::{AdapterVersion, ModelVersion, Models};
pub use request::{
    Completion, Detokenize, Drawn, FinishReason, Request, RequestId, RolloutGroup, SamplingParams, SequenceId,
};
pub use scheduler::Counters;
