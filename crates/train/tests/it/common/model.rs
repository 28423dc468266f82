//! The fixture's model, loaded into memory.

use super::directory;
use kernels::{Context, Isa, Memory};
use model::io::{TensorSink, TensorSource};
use model::{ModelConfig, Weights};
use std::sync::Arc;

/// A CPU context of the best available instruction set.
pub fn context(threads: usize) -> Context {
    Context::cpu(Isa::best(), threads)
}

/// A CPU context of the instruction set `isa`.
pub fn context_of(isa: Isa, threads: usize) -> Context {
    Context::cpu(isa, threads)
}

/// The configuration of the fixture's model.
pub fn config() -> Arc<ModelConfig> {
    Arc::new(ModelConfig::load(&directory().join("config.json")).expect("config"))
}

/// The policy, as version 1.
pub fn policy(memory: &Memory) -> Weights {
    let mut weights = Weights::load(memory, &directory(), &config()).expect("weights");
    weights.publish();
    weights
}

/// The policy with all weights multiplied by `scale`.
pub fn scaled(memory: &Memory, scale: f32) -> Weights {
    let mut weights = policy(memory);
    for spec in TensorSource::tensors(&weights) {
        let data: Vec<f32> = weights.get(&spec.name).expect("tensor").iter().map(|x| x * scale).collect();
        weights.put(&spec.name, &data).expect("tensor");
    }
    weights
}

/// All parameters, in the order of the files.
pub fn elements(source: &dyn TensorSource) -> Vec<f32> {
    source.tensors().iter().flat_map(|s| source.get(&s.name).expect("tensor")).collect()
}

/// The bits of all parameters.
pub fn bits(source: &dyn TensorSource) -> Vec<u32> {
    elements(source).iter().map(|x| x.to_bits()).collect()
}
