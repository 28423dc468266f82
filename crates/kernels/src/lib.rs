//! Numbers only: tensors, threads, and the operations of one family of language models, forward and backward.
//!
//! Knows no model, no prompt, no reward. Everything above this crate holds [`Tensor`]s and calls [`ops`]; it never
//! touches the memory behind them except by an explicit copy.
//!
//! Read first: [`tensor`] (what is computed on), [`context`] (with what), `simd` (how one formula serves every
//! instruction set), then any folder of [`ops`]: equation and shapes in `mod.rs`, the fast code in `cpu.rs`, the slow
//! and obvious one in `reference.rs`.

#![cfg_attr(test, allow(clippy::disallowed_methods))] // expectations may come from std's functions

pub mod ceilings;
pub mod check;
pub mod context;
pub mod cores;
pub(crate) mod device;
mod dtype;
pub mod error;
pub(crate) mod gemm;
pub mod isa;
pub(crate) mod math;
pub mod matrix;
pub mod memory;
pub mod ops;
pub(crate) mod pool;
pub mod rng;
pub(crate) mod simd;
pub mod tensor;

pub use context::Context;
pub use device::{CudaDevice, CudaDriver, CudaProbe, Device, DeviceEvent, DeviceMemory, Range};
pub use dtype::DType;
pub use error::{Error, Result};
pub use isa::Isa;
pub use matrix::{Layout, Matrix};
pub use memory::{Copies, Memory};
pub use tensor::{Tensor, View, ViewMut};
