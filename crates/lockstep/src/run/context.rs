//! The compute context of a run: its device and its threads.

use crate::bad_input;
use crate::config::ComputeDType;
use crate::error::BadInput;
use kernels::{Context, DType, Device, Error};

/// Builds the compute context. The environment decides `device` and `threads` if they are `None`. A device without
/// matmul kernels for `dtype` is refused.
pub fn context(device: Option<Device>, threads: Option<usize>, dtype: ComputeDType) -> anyhow::Result<Context> {
    let ctx = Context::from_env_with(device, threads).map_err(|error| {
        let fix = if matches!(error, Error::Device(_)) { "; or compute on the CPU: --device cpu" } else { "" };
        BadInput::new(format!("{error}{fix}"))
    })?;
    check_dtype(&ctx, dtype)?;
    Ok(ctx)
}

/// Refuses a `dtype` for which the device has no matmul kernels.
pub(crate) fn check_dtype(ctx: &Context, dtype: ComputeDType) -> anyhow::Result<()> {
    if dtype.dtype() != DType::F32 && ctx.arithmetic(dtype.dtype()) == "none" {
        bad_input!(
            "{}: {} is not supported yet: use dtype = \"f32\" (--dtype f32), or the CPU (--device cpu)",
            ctx.describe(),
            dtype.name()
        );
    }
    Ok(())
}
