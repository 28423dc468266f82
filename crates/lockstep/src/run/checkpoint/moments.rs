//! What a checkpoint holds of an optimizer: both moments, and the f32 masters of weights that compute in bf16.

use crate::error::BadInput;
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
    if let Some(mut masters) = trainer.optimizer_mut().masters_mut() {
        let file = dir.join(format!("{prefix}{MASTERS}"));
        model::io::load_tensors(&file, &mut masters).map_err(|e| BadInput::new(e.to_string()))?;
    }
    for (name, mut moments) in MOMENTS.iter().zip(trainer.optimizer_mut().moments_mut()) {
        let file = dir.join(format!("{prefix}{name}"));
        model::io::load_tensors(&file, &mut moments).map_err(|e| BadInput::new(e.to_string()))?;
    }
    Ok(())
}

/// Writes them.
pub fn save_moments(dir: &Path, prefix: &str, trainer: &Trainer) -> anyhow::Result<()> {
    if let Some(masters) = trainer.optimizer().masters() {
        model::io::save_tensors(&dir.join(format!("{prefix}{MASTERS}")), &masters, model::FileDType::F32)?;
    }
    for (name, moments) in MOMENTS.iter().zip(trainer.optimizer().moments()) {
        model::io::save_tensors(&dir.join(format!("{prefix}{name}")), &moments, moments_dtype(trainer))?;
    }
    Ok(())
}
