//! The optimizer's part of a checkpoint: the moments of each parameter, and the f32 master weights of bf16 weights.

use crate::error::BadInput;
use crate::models::WriteFiles;
use std::path::Path;
use train::Optimizer;

/// The file of the f32 master weights.
const MASTERS: &str = "optimizer_masters.safetensors";

/// The file name of the optimizer state that torch calls `name`, such as `exp_avg`.
fn file(prefix: &str, name: &str) -> String {
    format!("{prefix}optimizer_{name}.safetensors")
}

/// Reads an optimizer's moments, and the f32 master weights if there are any, from the checkpoint directory `dir`.
/// `prefix` distinguishes several trainers, such as policy and value model.
pub fn restore_moments(dir: &Path, prefix: &str, optimizer: &mut Optimizer) -> anyhow::Result<()> {
    let state = optimizer.state_mut()?;
    if let Some(mut masters) = state.masters_mut() {
        let file = dir.join(format!("{prefix}{MASTERS}"));
        model::io::load_tensors(&file, &mut masters).map_err(|e| BadInput::new(e.to_string()))?;
    }
    for (name, mut tree) in state.trees_mut() {
        let file = dir.join(file(prefix, name));
        model::io::load_tensors(&file, &mut tree).map_err(|e| BadInput::new(e.to_string()))?;
    }
    Ok(())
}

/// A function that writes the optimizer's moments and master weights to a checkpoint. No optimizer step may be taken
/// until it has run.
pub fn write_moments(prefix: &'static str, optimizer: &Optimizer) -> WriteFiles {
    let state = optimizer.hold();
    Box::new(move |dir| {
        if let Some(masters) = state.masters() {
            model::io::save_tensors(&dir.join(format!("{prefix}{MASTERS}")), &masters, model::FileDType::F32)?;
        }
        for tree in state.trees() {
            // The file has the tensors' dtype, so every bit is kept.
            model::io::save_tensors(&dir.join(file(prefix, tree.name)), &tree.tensors, tree.dtype)?;
        }
        Ok(())
    })
}
