//! Reinforcement-learning post-training for language models, as a library. It knows no command line, and no terminal
//! beyond the console that it is given.
//!
//! A program makes a [`Config`] and [`RunOptions`] and drives a [`Run`]; `examples/reward_closure.rs` does it in thirty
//! lines.
//!
//! | what | public items |
//! |---|---|
//! | a run | [`Run`], [`RunOptions`], [`RunResult`], [`StopReason`], [`StopSignal`], [`context()`] |
//! | what it injects | [`RewardInput`], [`Rows`], [`LogRecord`], [`RunEvent`], [`Flow`]; `telemetry::Sink`, `rewards::Reward` |
//! | metrics of its own | [`EvalMetrics`], [`EvalBatch`], [`SetSize`] |
//! | completions of its own | [`RolloutFunction`], [`RolloutRequest`], [`Generate`], [`RolloutPrompt`], [`GivenCompletion`] |
//! | the configuration of a run | [`Config`], [`Purpose`], [`config`] (its layers, the table of its keys) |
//! | its directory | [`RunDir`], [`ResumeFrom`], [`find_run`], [`find_model`], [`resolve_resumed`], [`check_command`], [`check_base`], [`write_atomically`] |
//! | the file of a result | [`OutFile`], [`Input`] |
//! | scored groups on disk and between processes | [`wire`] |
//! | before and after it | [`plan`], [`MemoryPlan`], [`Available`], [`Evaluator`], [`Outcome`], [`score_file`], [`ScoredFile`], [`ScoredRow`] |
//! | a recorded run, replayed | [`verify()`], [`VerifyOptions`], [`Choice`], [`Report`], [`Difference`], [`Interval`]; [`fork()`], [`ForkOptions`] |
//! | models | [`Policy`], [`Snapshot`], [`load_config`], [`load_weights`], [`locate`], [`locate_model`], [`HubKind`], [`samples_of_groups`] |
//! | what is wrong with an input | [`BadInput`], [`error`], [`bad_input!`] |
//!
//! Rooms, from the ground up: `config` (every key), `algorithms` (what each minimises and needs), `models` (what a run
//! trains), `data` (prompts and pairs), `rollouts` (completions, scored), `run` (the directory, steps, logs,
//! checkpoints), `trainers` (GRPO, PPO, supervised, DPO, reward models), `session` (all of it as a [`Run`]) and
//! `verify` (a run's record against a replay).

#![cfg_attr(test, allow(clippy::disallowed_methods))] // expectations may come from std's functions

mod algorithms;
pub mod config;
mod data;
mod distributed;
pub mod error;
mod models;
mod out_file;
mod rollouts;
mod run;
mod session;
mod stop;
mod trainers;
mod verify;

pub use config::{Config, Purpose};
pub use data::Rows;
pub use distributed::{NatsServer, Network, is_server};
pub use error::BadInput;
pub use model::hub::HubKind;
pub use models::{Policy, Snapshot, check_base, load_config, load_weights, locate, locate_model};
pub use out_file::{Input, OutFile};
pub use rewards::RewardInput;
pub use rollouts::evaluate::Outcome;
pub use rollouts::function::{Generate, GivenCompletion, RolloutFunction, RolloutPrompt, RolloutRequest};
pub use rollouts::pieces::TokenTexts;
pub use rollouts::samples::of_groups as samples_of_groups;
pub use rollouts::wire;
pub use run::board::write_board;
pub use run::eval_metrics::{EvalBatch, EvalMetrics, SetSize};
pub use run::inputs::{Flow, LogRecord, RunEvent};
pub use run::memory_plan::{Available, MemoryPlan};
pub use run::profile::ProfileRecord;
pub use run::provenance::check_command;
pub use run::resume::{ResumeFrom, find_model, find_run, resolve_resumed};
pub use run::run_dir::write_atomically;
pub use run::{RunDir, StopReason, context};
pub use session::{
    Evaluator, Expelled, MakeFunctions, Run, RunOptions, RunResult, ScoredFile, ScoredRow, WorkerOptions, plan,
    score_file, work,
};
pub use stop::{StopSignal, Stopped, is_stopped};
pub use verify::{Choice, Difference, ForkOptions, Interval, Report, VerifyOptions, fork, verify};
