//! Reinforcement-learning post-training for language models, as a library. The library parses no command line, and
//! prints only to the console sink that the caller passes in.
//!
//! A program creates a [`Config`] and [`RunOptions`] and drives a [`Run`]; `examples/reward_closure.rs` does so in
//! thirty lines.
//!
//! | what | where |
//! |---|---|
//! | a training run: built, driven, stopped | [`Run`], [`RunOptions`], [`RunResult`], [`RunDir`], [`ResumeFrom`], [`StopReason`], [`StopSignal`], [`Stopped`], [`context()`] |
//! | inputs of a run from a program, and its events | [`RewardInput`], [`Rows`], [`Policy`], [`LogRecord`], [`RunEvent`], [`Follow`], [`Flow`], [`Step`], [`functions`]; `telemetry::Sink`, `rewards::Reward` |
//! | the configuration of a run | [`Config`], [`Purpose`], [`config`] (its layers, the table of its keys) |
//! | errors in the user's input | [`BadInput`], [`error`], [`bad_input!`] |
//! | the files of a run and of its results | [`directory`], [`files`], [`wire`] (scored groups on disk and between processes) |
//! | before a run and without one | [`planning`], [`evaluation`], [`weights`] |
//! | a recorded run, replayed | [`replay`] |
//! | workers of a run | [`workers`] |
//! | completions for many clients, without a run | [`service`], [`access`] |
//!
//! The modules, from the lowest layer to the highest: `config` (every key), `algorithms` (what each algorithm minimises
//! and needs), `models` (what a run trains), `data` (prompts and preference pairs), `rollouts` (generated and scored
//! completions), `run` (the directory, steps, logs, checkpoints), `trainers` (GRPO, PPO, supervised, DPO, reward
//! models), `session` (all of these as a [`Run`]), `verify` (compares a run's record with a replay of the run) and
//! `service` (completions for many clients).

#![cfg_attr(test, allow(clippy::disallowed_methods))] // expectations may come from std's functions

pub mod access;
mod algorithms;
pub mod config;
mod data;
pub mod error;
mod models;
mod out_file;
pub mod ranks;
mod rollouts;
mod run;
pub mod service;
mod session;
mod sources;
mod step;
mod stop;
mod trainers;
mod verify;

pub use config::{Config, Purpose};
pub use data::Rows;
pub use error::BadInput;
pub use models::Policy;
pub use rewards::RewardInput;
pub use rollouts::wire;
pub use run::inputs::{Flow, Follow, LogRecord, ResumeFrom, RunEvent};
pub use run::{RunDir, StopReason, context};
pub use session::{Run, RunOptions, RunResult};
pub use stop::{StopSignal, Stopped, is_stopped};
pub use telemetry::Step;

/// User functions that a run calls, other than rewards.
pub mod functions {
    pub use crate::rollouts::function::{Generate, GivenCompletion, RolloutFunction, RolloutPrompt, RolloutRequest};
    pub use crate::run::eval_metrics::{EvalBatch, EvalMetrics, SetSize};
}

/// Finds, reads and writes the directory of a run.
pub mod directory {
    pub use crate::run::board::write_board;
    pub use crate::run::branch::Branch;
    pub use crate::run::lock::has_writer;
    pub use crate::run::profile::ProfileRecord;
    pub use crate::run::provenance::{check_command, prompt_time};
    pub use crate::run::reporter::JUDGED;
    pub use crate::run::resume::{find_model, find_run, resolve_resumed};
    pub use crate::run::run_dir::write_atomically;
}

/// The files that a command reads and writes.
pub mod files {
    pub use crate::data::rows::WHOLE_LINES;
    pub use crate::out_file::{Input, OutFile};
}

/// The memory that a run would take.
pub mod planning {
    pub use crate::run::memory_plan::{Available, MemoryPlan};
    pub use crate::session::{PlannedRun, plan};
}

/// Completions and their scores without training.
pub mod evaluation {
    pub use crate::rollouts::evaluate::Outcome;
    pub use crate::rollouts::pieces::TokenTexts;
    pub use crate::rollouts::samples::from_groups as samples_of_groups;
    pub use crate::session::{Evaluator, ScoredFile, ScoredRow, score_file};
}

/// Finds, reads and checks the files of models.
pub mod weights {
    pub use crate::models::{Snapshot, check_base, load_config, load_weights, locate, locate_model};
    pub use model::hub::HubKind;
}

/// A recorded run, compared with its replay, or continued with a change.
pub mod replay {
    pub use crate::verify::{Choice, Difference, ForkOptions, Interval, Report, VerifyOptions, fork, verify};
}

/// Processes that make a run's completions.
pub mod workers {
    pub use crate::session::{Expelled, MakeFunctions, WorkerOptions, work};
    pub use crate::sources::workers::{NatsServer, Network, groups_made, is_server, made_by_path};
}
