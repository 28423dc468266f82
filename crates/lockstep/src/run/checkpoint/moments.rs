//! What a checkpoint holds of an optimizer: both moments, and the f32 masters of weights that compute in bf16.

use crate::error::BadInput;
use crate::models::WriteFiles;
use std::path::Path;
use train::Trainer;

const MOMENTS: [&str; 2] = ["optimizer_exp_avg.safetensors", "optimizer_exp_avg_sq.safetensors"];

/// The f32 masters of weights that compute in bf16.
const MASTERS: &str = "optimizer_masters.safetensors";

/// What moments are saved in: every bit that they have, and no more.
fn moments_dtype(trainer: &Trainer) -> model::FileDType {
    match trainer.config().optimizer.moments {
        train::MomentsDType::F32 => model::FileDType::F32,
        train::MomentsDType::Bf16 => model::FileDType::Bf16,
    }
}

/// Reads a trainer's moments, and masters where it has some, from a checkpoint; `prefix` tells one trainer's files from
/// another's.
pub fn restore_moments(dir: &Path, prefix: &str, trainer: &mut Trainer) -> anyhow::Result<()> {
    let state = trainer.optimizer_mut().state_mut()?;
    if let Some(mut masters) = state.masters_mut() {
        let file = dir.join(format!("{prefix}{MASTERS}"));
        model::io::load_tensors(&file, &mut masters).map_err(|e| BadInput::new(e.to_string()))?;
    }
    for (name, mut moments) in MOMENTS.iter().zip(state.moments_mut()) {
        let file = dir.join(format!("{prefix}{name}"));
        model::io::load_tensors(&file, &mut moments).map_err(|e| BadInput::new(e.to_string()))?;
    }
    Ok(())
}

/// Writes them. No step is taken until that is done.
pub fn write_moments(prefix: &'static str, trainer: &Trainer) -> WriteFiles {
    let (state, dtype) = (trainer.optimizer().hold(), moments_dtype(trainer));
    Box::new(move |dir| {
        if let Some(masters) = state.masters() {
            model::io::save_tensors(&dir.join(format!("{prefix}{MASTERS}")), &masters, model::FileDType::F32)?;
        }
        for (name, moments) in MOMENTS.iter().zip(state.moments()) {
            model::io::save_tensors(&dir.join(format!("{prefix}{name}")), &moments, dtype)?;
        }
        Ok(())
    })
}
