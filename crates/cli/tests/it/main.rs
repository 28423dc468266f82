//! The program as its users run it. One binary for all of its tests, so that they are linked once.

mod alarms;
mod bad_input;
mod bench_algorithms;
mod bench_rollout;
mod best;
mod code_reward;
mod combined;
mod commands;
mod course;
mod dynamic_sampling;
mod eval;
mod failing_rewards;
mod failing_rows;
mod full_disk;
mod gemma3;
mod going_on;
#[cfg(feature = "hub")]
mod hub;
mod lora;
mod lora_continued;
mod lora_objectives;
mod one_writer;
mod paths;
mod ppo;
mod process_rewards;
mod reference;
mod replay;
mod resume;
mod reward;
mod reward_lora;
mod reward_names;
mod rewards_beside;
mod same_bits;
mod stopping;
mod support;
mod tools;
