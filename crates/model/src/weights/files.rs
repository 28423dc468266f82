//! Parameters under the names that Hugging Face files give them.

use super::{Params, Weights};
use crate::io::{TensorSink, TensorSource, TensorSpec, load_weights};
use crate::{Error, ModelConfig, Result};
use kernels::Memory;
use std::path::Path;
use std::sync::Arc;

/// A tree of parameters to read: of weights, or of an optimizer's moments.
pub struct Named<'a> {
    /// The shape of the model.
    pub config: &'a ModelConfig,
    /// The tree.
    pub params: &'a Params,
}

/// A tree of parameters to write.
pub struct NamedMut<'a> {
    /// The shape of the model.
    pub config: &'a ModelConfig,
    /// The tree.
    pub params: &'a mut Params,
}

/// Every tensor of a model's files, in the order of its parameters.
pub fn tensor_specs(config: &ModelConfig) -> Vec<TensorSpec> {
    let parts = Params::specs(config).into_iter().flat_map(|s| s.parts);
    parts.map(|p| TensorSpec { name: p.name, shape: p.shape }).collect()
}

impl TensorSource for Named<'_> {
    fn tensors(&self) -> Vec<TensorSpec> {
        tensor_specs(self.config)
    }
    fn get(&self, name: &str) -> Result<Vec<f32>> {
        self.params.read(self.config, name).ok_or_else(|| unknown(name))
    }
}

impl TensorSink for NamedMut<'_> {
    fn tensors(&self) -> Vec<TensorSpec> {
        tensor_specs(self.config)
    }
    fn put(&mut self, name: &str, data: &[f32]) -> Result<()> {
        if self.params.write(self.config, name, data) { Ok(()) } else { Err(unknown(name)) }
    }
}

fn unknown(name: &str) -> Error {
    Error::Value(format!("the model has no tensor `{name}`"))
}

impl TensorSource for Weights {
    fn tensors(&self) -> Vec<TensorSpec> {
        tensor_specs(&self.config)
    }
    fn get(&self, name: &str) -> Result<Vec<f32>> {
        Named { config: &self.config, params: &self.params }.get(name)
    }
}

impl TensorSink for Weights {
    fn tensors(&self) -> Vec<TensorSpec> {
        tensor_specs(&self.config)
    }
    fn put(&mut self, name: &str, data: &[f32]) -> Result<()> {
        NamedMut { config: &self.config, params: &mut self.params }.put(name, data)
    }
}

impl Weights {
    /// The weights of a Hugging Face directory whose `config.json` is `config`.
    pub fn load(memory: &Memory, dir: &Path, config: &Arc<ModelConfig>) -> Result<Weights> {
        let mut weights = Weights::zeros(memory, config);
        load_weights(dir, config, &mut weights)?;
        Ok(weights)
    }
    /// The trunk of `other` under a head of one score that begins at 0. Version 0.
    pub fn scorer(memory: &Memory, other: &Weights) -> Weights {
        let mut weights = Weights::zeros(memory, &Arc::new(other.config.with_score_head(1)));
        let mut own = weights.params.tensors_mut();
        own.pop(); // the head of scores
        for (own, other) in own.into_iter().zip(other.params.tensors()) {
            own.view_mut().copy_from_f32(&other.to_vec_f32());
        }
        weights
    }
    /// Random weights, as [`crate::init::random`] draws them.
    pub fn random(memory: &Memory, config: &Arc<ModelConfig>, seed: u64) -> Result<Weights> {
        let mut weights = Weights::zeros(memory, config);
        crate::init::random(config, seed, &mut weights)?;
        Ok(weights)
    }
}
