//! Computes the lineage, a hash of everything that determined the weights, at the start of a training run.

use super::inputs::ResumeFrom;
use super::training::TrainingRun;
use crate::config::{Config, settings_of_weights};
use crate::models::hashes;
use crate::rollouts::lineage::Lineage;
use kernels::Context;
use telemetry::record::{FileHash, RunRecord};

/// The digest of an optimizer step's inputs besides the weights and the batch: the configuration keys that affect bits,
/// and the arithmetic of the matmul kernels.
pub fn settings(config: &Config, ctx: &Context) -> Lineage {
    Lineage::of(&[settings_of_weights(config).as_bytes(), ctx.arithmetic(config.dtype.dtype()).as_bytes()])
}

/// The lineage of the weights with which `run` begins. The lineage hashes the model's files as the run's record lists
/// them. A checkpoint of an older version has no lineage; its files are hashed instead, and a message is printed.
pub fn at_start(run: &TrainingRun, from: &ResumeFrom, settings: &Lineage) -> anyhow::Result<Lineage> {
    let files = match from.checkpoint() {
        None => RunRecord::read(&run.checkpoints.dir.record())?.model,
        Some(checkpoint) => {
            run.log.sinks().info(&format!(
                "{} is from an older version, which recorded no lineage of the weights: the lineage begins there",
                checkpoint.display()
            ));
            hashes(checkpoint, &run.stop, |_| true)?
        }
    };
    let files: Vec<String> = files.iter().map(|FileHash { name, sha256, .. }| format!("{name} {sha256}")).collect();
    Ok(Lineage::of(&[files.join("\n").as_bytes(), run.data.hash.as_bytes(), &settings.0]))
}
