//! Compares the formulas and steps of this crate with TRL, torch and slow references. One executable, which links once.

mod adamw;
mod common;
mod dropout;
mod ppo_reference;
mod skip;
mod slots;
mod trl_dpo;
mod trl_family;
mod trl_loss;
mod trl_reward;
mod trl_step;
mod update;
