//! What a run computes with.

use crate::error::BadInput;
use kernels::Context;

/// The device as the configuration and the environment ask for it.
pub fn context(threads: Option<usize>) -> anyhow::Result<Context> {
    let isa = kernels::Isa::from_env().map_err(|e| BadInput::new(e.to_string()))?;
    let threads = match threads {
        Some(threads) => threads,
        None => kernels::context::threads_from_env().map_err(|e| BadInput::new(e.to_string()))?,
    };
    Ok(Context::cpu(isa, threads))
}
