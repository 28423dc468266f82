//! The tensor operations. Each has a folder: `mod.rs` (formula, shapes, references, argument checks, dispatch by
//! device), `cpu.rs` and `cuda.rs` (fast kernels), `reference.rs` (slow and simple, generic over f32 and f64; tests
//! compare the kernels to it). An operation's forward and backward passes are in the same files.

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
mod arguments_tests;
#[cfg(test)]
mod bf16_tests;
#[cfg(test)]
mod helpers_tests;
#[cfg(test)]
mod small_tests;
