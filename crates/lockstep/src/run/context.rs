//! What a run computes with.

use crate::error::BadInput;
use kernels::Context;

/// The device as the configuration and the environment ask for it.
pub fn context(threads: Option<usize>) -> anyhow::Result<Context> {
    Context::from_env_with_threads(threads).map_err(|e| BadInput::new(e.to_string()))
}
