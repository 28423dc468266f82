//! The operations. One folder each: `mod.rs` (equation, shapes, source, checks, dispatch by device), `cpu.rs` (fast),
//! `reference.rs` (slow, obvious, generic over f32 and f64: the oracle, kept forever). Forward and backward stand
//! together.

pub mod adamw;
pub(crate) mod args;
pub mod attention;
pub mod embedding;
pub mod glu;
pub mod grad_norm;
pub(crate) mod lanes;
pub mod lerp;
pub mod linear;
pub mod lm_head;
pub mod lora;
pub mod qk_norm;
pub mod residual;
pub mod rmsnorm;
pub mod rope;
pub mod rows;
pub mod sample;
mod scratch;
pub mod softmax;
mod zero;

pub use scratch::Passes;
pub use zero::zero;

#[cfg(test)]
mod bf16_tests;
#[cfg(test)]
mod small_tests;
