//! Tensors, threads, and the forward and backward operations of one family of language models.
//!
//! This crate knows nothing about models, prompts or rewards. Callers hold [`Tensor`]s and call [`ops`]; they access
//! the memory behind a tensor only by explicit copies.
//!
//! Read first: [`tensor`] (the data), [`context`] (the device and its threads), `simd` (how one formula serves every
//! instruction set), then any folder of [`ops`]: `mod.rs` has the equation and the shapes, `cpu.rs` the fast code, and
//! `reference.rs` the slow and obvious version.

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
pub mod mean;
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
