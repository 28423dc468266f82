//! The keys, one row each, by topic; beside them what keys of a topic must satisfy together, and what is built from
//! them.

pub(super) mod adapter;
pub(super) mod algorithms;
pub(super) mod batches;
pub(super) mod checkpoints;
pub(super) mod data;
pub(super) mod evaluation;
pub(super) mod logging;
pub(crate) mod loss;
pub(super) mod machine;
pub(super) mod model;
pub(super) mod optimizer;
pub(super) mod ppo;
pub(super) mod preferences;
pub(crate) mod rewards;
pub(crate) mod sampling;
