//! Reinforcement-learning post-training for language models, as a library. The library parses no command line, and
//! prints only to the console sink that its caller passes in.
//!
//! A program makes a [`Config`] and [`RunOptions`] and drives a [`Run`]; `examples/reward_closure.rs` does it in thirty
//! lines.
//!
//! | what | public items |
//! |---|---|
//! | a training run | [`Run`], [`RunOptions`], [`RunResult`], [`StopReason`], [`StopSignal`], [`context()`] |
//! | what a program passes to a run | [`RewardInput`], [`Rows`], [`LogRecord`], [`RunEvent`], [`Follow`], [`Flow`]; `telemetry::Sink`, `rewards::Reward` |
//! | the program's own evaluation metrics | [`EvalMetrics`], [`EvalBatch`], [`SetSize`] |
//! | the program's own generation of completions | [`RolloutFunction`], [`RolloutRequest`], [`Generate`], [`RolloutPrompt`], [`GivenCompletion`] |
//! | the configuration of a run | [`Config`], [`Purpose`], [`config`] (its layers, the table of its keys) |
//! | the directory of a run | [`RunDir`], [`ResumeFrom`], [`find_run`], [`find_model`], [`resolve_resumed`], [`check_command`], [`prompt_time`], [`check_base`], [`write_atomically`]; by which metrics a run is judged: [`JUDGED`] |
//! | the file that a command writes its result into | [`OutFile`], [`Input`] |
//! | scored groups on disk and between processes | [`wire`] |
//! | before and after a run: memory plan, evaluation, scoring a file | [`plan`], [`PlannedRun`], [`MemoryPlan`], [`Available`], [`Evaluator`], [`Outcome`], [`score_file`], [`ScoredFile`], [`ScoredRow`] |
//! | replaying a recorded run | [`verify()`], [`VerifyOptions`], [`Choice`], [`Report`], [`Difference`], [`Interval`]; [`fork()`], [`ForkOptions`] |
//! | models | [`Policy`], [`Snapshot`], [`load_config`], [`load_weights`], [`locate`], [`locate_model`], [`HubKind`], [`samples_of_groups`] |
//! | errors in the user's input | [`BadInput`], [`error`], [`bad_input!`] |
//!
//! The modules, from the lowest layer to the highest: `config` (every key), `algorithms` (what each algorithm minimises
//! and needs), `models` (what a run trains), `data` (prompts and preference pairs), `rollouts` (generated and scored
//! completions), `run` (the directory, steps, logs, checkpoints), `trainers` (GRPO, PPO, supervised, DPO, reward
//! models), `session` (all of these as a [`Run`]) and `verify` (compares a run's record with a replay of the run).

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
pub use data::rows::WHOLE_LINES;
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
pub use run::branch::Branch;
pub use run::eval_metrics::{EvalBatch, EvalMetrics, SetSize};
pub use run::inputs::{Flow, Follow, LogRecord, RunEvent};
pub use run::lock::writer;
pub use run::memory_plan::{Available, MemoryPlan};
pub use run::profile::ProfileRecord;
pub use run::provenance::{check_command, prompt_time};
pub use run::reporter::JUDGED;
pub use run::resume::{ResumeFrom, find_model, find_run, resolve_resumed};
pub use run::run_dir::write_atomically;
pub use run::{RunDir, StopReason, context};
pub use session::{
    Evaluator, Expelled, MakeFunctions, PlannedRun, Run, RunOptions, RunResult, ScoredFile, ScoredRow, WorkerOptions,
    plan, score_file, work,
};
pub use stop::{StopSignal, Stopped, is_stopped};
pub use verify::{Choice, Difference, ForkOptions, Interval, Report, VerifyOptions, fork, verify};
