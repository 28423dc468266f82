//! Reading and writing parameters under the names that Hugging Face and PEFT files use.

use super::lora::PREFIX;
use super::spec::{HEAD, Role, SCORES, specs};
use super::{Params, Weights};
use crate::io::{TensorSink, TensorSource, TensorSpec, load_weights};
use crate::{Error, ModelConfig, Result};
use kernels::{DType, Memory};
use std::path::Path;
use std::sync::Arc;

/// Parameters by name, read-only: weights, gradients, or an optimizer's moments. Frozen parameters have no elements and
/// are left out.
pub struct Named<'a> {
    /// The parameters.
    pub params: &'a Params,
}

/// Parameters by name, writable.
pub struct NamedMut<'a> {
    /// The parameters.
    pub params: &'a mut Params,
}

/// Name and shape of every tensor in a model's weight files, in the order of the parameters.
pub fn tensor_specs(config: &ModelConfig) -> Vec<TensorSpec> {
    let parts = specs(config).into_iter().flat_map(|s| s.parts);
    parts.map(|p| TensorSpec { name: p.name, shape: p.shape }).collect()
}

/// Name and shape of the tensors of `params` that have elements, either of one role or of all roles.
fn listed(params: &Params, role: Option<Role>) -> Vec<TensorSpec> {
    let there = params.specs().iter().zip(params.tensors()).filter(|(_, tensor)| tensor.bytes() > 0);
    let matching = there.filter(|(spec, _)| role.is_none_or(|role| spec.role == role));
    let parts = matching.flat_map(|(spec, _)| &spec.parts);
    parts.map(|p| TensorSpec { name: p.name.clone(), shape: p.shape.clone() }).collect()
}

/// A callback that receives the pieces of a tensor.
type Take<'a> = &'a mut dyn FnMut(&[f32]) -> Result<()>;

fn read(params: &Params, name: &str, take: Take<'_>) -> Result<()> {
    params.read_pieces(name, take).ok_or_else(|| unknown(name))?
}

fn put(params: &mut Params, name: &str, data: &[f32]) -> Result<()> {
    if params.write(name, data) { Ok(()) } else { Err(unknown(name)) }
}

fn unknown(name: &str) -> Error {
    Error::Value(format!("the model has no tensor `{name}`"))
}

impl TensorSource for Named<'_> {
    fn tensors(&self) -> Vec<TensorSpec> {
        listed(self.params, None)
    }
    fn read(&self, name: &str, take: Take<'_>) -> Result<()> {
        read(self.params, name, take)
    }
}

impl TensorSink for NamedMut<'_> {
    fn tensors(&self) -> Vec<TensorSpec> {
        listed(self.params, None)
    }
    fn put(&mut self, name: &str, data: &[f32]) -> Result<()> {
        put(self.params, name, data)
    }
}

/// The tensors of the model itself, without adapters, as a source for writing files.
impl TensorSource for Weights {
    fn tensors(&self) -> Vec<TensorSpec> {
        tensor_specs(&self.config)
    }
    fn read(&self, name: &str, take: Take<'_>) -> Result<()> {
        read(&self.params, name, take)
    }
}

/// The tensors of the model itself, without adapters, as a sink for reading files.
impl TensorSink for Weights {
    fn tensors(&self) -> Vec<TensorSpec> {
        tensor_specs(&self.config)
    }
    fn put(&mut self, name: &str, data: &[f32]) -> Result<()> {
        put(&mut self.params, name, data)
    }
}

/// The tensors of a PEFT adapter file, as a source for writing it: the LoRA matrices, and a score head if there is one
/// (PEFT's `modules_to_save`).
pub(crate) struct AdapterFiles<'a>(pub &'a Params);

/// The tensors of a PEFT adapter file, as a sink for reading it.
pub(crate) struct AdapterFilesMut<'a>(pub &'a mut Params);

/// Lists the tensors of an adapter file: the score head under PEFT's name, if there is one, then the LoRA matrices.
fn adapter_file_specs(params: &Params) -> Vec<TensorSpec> {
    let mut specs = listed(params, Some(Role::Base));
    specs.retain(|s| s.name == SCORES);
    for s in &mut specs {
        s.name.insert_str(0, PREFIX);
    }
    specs.extend(listed(params, Some(Role::Adapter)));
    specs
}

/// Converts the name of a tensor in PEFT's files to this crate's name.
fn own_name(name: &str) -> &str {
    name.strip_prefix(PREFIX).filter(|n| *n == SCORES).unwrap_or(name)
}

impl TensorSource for AdapterFiles<'_> {
    fn tensors(&self) -> Vec<TensorSpec> {
        adapter_file_specs(self.0)
    }
    fn read(&self, name: &str, take: Take<'_>) -> Result<()> {
        read(self.0, own_name(name), take)
    }
}

impl TensorSink for AdapterFilesMut<'_> {
    fn tensors(&self) -> Vec<TensorSpec> {
        adapter_file_specs(self.0)
    }
    fn put(&mut self, name: &str, data: &[f32]) -> Result<()> {
        put(self.0, own_name(name), data)
    }
}

/// A sink that reads a language model's weight files without the head.
struct Trunk<'a>(&'a mut Weights, Vec<TensorSpec>);

impl TensorSink for Trunk<'_> {
    fn tensors(&self) -> Vec<TensorSpec> {
        self.1.clone()
    }
    fn put(&mut self, name: &str, data: &[f32]) -> Result<()> {
        if name == HEAD { Ok(()) } else { put(&mut self.0.params, name, data) }
    }
}

impl ModelConfig {
    /// Number of elements of the model's largest tensor.
    pub fn largest_tensor(&self) -> usize {
        tensor_specs(self).iter().map(|t| t.shape.iter().product()).max().unwrap_or(0)
    }
    /// Upper bound on the additional host memory, in bytes, for reading the weight files, beyond the memory of the
    /// weights themselves. While a tensor is read, memory contains its f32 array together with its bytes from the file
    /// (at most f32), and then together with its parameter. The memory of later parameters is still untouched at that
    /// time.
    pub fn reading_bytes(&self) -> usize {
        let own = self.compute.bytes();
        let (mut most, mut after) = (0usize, 0);
        for spec in tensor_specs(self).iter().rev() {
            let elements: usize = spec.shape.iter().product();
            most = most.max((elements * (2 * DType::F32.bytes() - own)).saturating_sub(after));
            after += elements * own;
        }
        most
    }
}

impl Weights {
    /// Loads the weights of a Hugging Face directory whose `config.json` is `config`. On `Device::Meta` no file is
    /// read.
    pub fn load(memory: &Memory, dir: &Path, config: &Arc<ModelConfig>) -> Result<Weights> {
        let mut weights = Weights::zeros(memory, config);
        memory.check()?;
        if memory.has_values() {
            load_weights(dir, config, &mut weights)?;
        }
        Ok(weights)
    }
    /// Loads the language model in a Hugging Face directory, whose `config.json` is `config`, with a new score head of
    /// one label (all 0) in place of its own head. The version is 0. On `Device::Meta` no file is read.
    pub fn load_scorer(memory: &Memory, dir: &Path, config: &ModelConfig) -> Result<Weights> {
        let mut weights = Weights::zeros(memory, &Arc::new(config.with_score_head(1)));
        memory.check()?;
        if memory.has_values() {
            load_weights(dir, config, &mut Trunk(&mut weights, tensor_specs(config)))?;
        }
        Ok(weights)
    }
    /// Copies `other` with a new score head of one label (all 0) in place of its own head. The version is 0.
    pub fn scorer(memory: &Memory, other: &Weights) -> Weights {
        let mut weights = Weights::zeros(memory, &Arc::new(other.config.with_score_head(1)));
        let mut own = weights.params.tensors_mut();
        own.pop(); // the score head
        for (own, other) in own.into_iter().zip(other.params.tensors()) {
            own.view_mut().copy_from_f32(&other.to_vec_f32());
        }
        weights
    }
    /// Random weights, as [`crate::init::random`] draws them.
    pub fn random(memory: &Memory, config: &Arc<ModelConfig>, seed: u64) -> Result<Weights> {
        let mut weights = Weights::zeros(memory, config);
        memory.check()?;
        crate::init::random(config, seed, &mut weights)?;
        Ok(weights)
    }
}
