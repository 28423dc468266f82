//! LoRA adapters, which have their own versions and leave the base weights unchanged.

use super::files::{AdapterFiles, AdapterFilesMut};
use super::lora::{LoraConfig, adapter_name};
use super::{Params, Weights};
use crate::io::TensorSource;
use crate::{ModelConfig, Result, Updates};
use kernels::Memory;
use std::sync::Arc;

/// A LoRA adapter over [`Weights`]. The adapter of a reward or value model includes the score head, which is trained
/// with it.
#[derive(Debug)]
pub struct Adapter {
    /// Rank, scale and target modules.
    pub lora: LoraConfig,
    /// The low-rank matrices and, for a reward or value model, the score head. The base model's own parameters have no
    /// elements in this tree.
    pub params: Params,
    /// Number of updates so far, like [`Weights::version`].
    pub version: Updates,
    /// Configuration of the base model.
    pub config: Arc<ModelConfig>,
}

impl Adapter {
    /// A new adapter with random A and zero B, so that it does not change the model yet. Its memory is charged to
    /// "adapter".
    pub fn new(memory: &Memory, base: &Weights, lora: &LoraConfig, seed: u64) -> Result<Adapter> {
        let mut adapter = Adapter::zeros(memory, base, lora)?;
        if memory.has_values() {
            crate::init::adapter(seed, &mut AdapterFilesMut(&mut adapter.params))?;
        }
        Ok(adapter)
    }

    /// An adapter of zeros, with a copy of the score head of `base` if it has one. Its memory is charged to
    /// "adapter".
    pub fn zeros(memory: &Memory, base: &Weights, lora: &LoraConfig) -> Result<Adapter> {
        lora.check(&base.config)?;
        let params = Params::adapter(&memory.part("adapter"), &base.config, lora);
        memory.check()?;
        let mut adapter = Adapter { lora: lora.clone(), params, version: Updates(0), config: base.config.clone() };
        if let (Some(own), Some(head)) = (&mut adapter.params.head, &base.params.head)
            && own.rows() > 0
            && memory.has_values()
        {
            own.data_mut().view_mut().copy_from_f32(&head.data().to_vec_f32());
        }
        Ok(adapter)
    }

    /// Increases the version. Call it after changing `params`.
    pub fn publish(&mut self) {
        self.version = self.version.next();
    }

    /// Number of elements of the adapter's tensors.
    pub fn len(&self) -> usize {
        AdapterFiles(&self.params).tensors().iter().map(|t| t.shape.iter().product::<usize>()).sum()
    }

    /// Whether the adapter has no elements, which [`LoraConfig::check`] rejects.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Weights {
    /// Merges the adapter into the weights: W ← W + s · B A (summed in f64, then rounded), and replaces the score head
    /// by the adapter's. The merged model computes the same function up to rounding, without the extra matmuls.
    pub fn merge(&mut self, adapter: &Adapter) {
        let (scale, r) = (f64::from(adapter.lora.scale()), adapter.lora.r);
        let parts: Vec<_> = adapter.lora.targets(self.params.specs()).into_iter().flatten().collect();
        for part in parts {
            let read = |which: &str| {
                adapter.params.read(&adapter_name(&part, which)).expect("the adapter belongs to this model")
            };
            let (a, b) = (read("A"), read("B"));
            let mut w = self.params.read(&part.name).expect("the target is a parameter of this model");
            let cols = part.shape[1];
            for (w, b) in w.chunks_exact_mut(cols).zip(b.chunks_exact(r)) {
                for (k, w) in w.iter_mut().enumerate() {
                    let product: f64 =
                        b.iter().zip(a.chunks_exact(cols)).map(|(&b, a)| f64::from(b) * f64::from(a[k])).sum();
                    *w = (f64::from(*w) + scale * product) as f32;
                }
            }
            self.params.write(&part.name, &w);
        }
        if let Some(head) = adapter.params.read(super::spec::SCORES) {
            self.params.write(super::spec::SCORES, &head);
        }
        self.publish();
    }
}
