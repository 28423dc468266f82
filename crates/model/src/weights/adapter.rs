//! A low-rank adapter: an object of its own, with its own version, over base weights that it does not change.

use super::files::{AdapterFiles, AdapterFilesMut};
use super::lora::{LoraConfig, adapter_name};
use super::{Params, Weights};
use crate::io::TensorSource;
use crate::{ModelConfig, Result};
use kernels::Memory;
use std::sync::Arc;

/// A low-rank adapter over [`Weights`]. A model of scores has its head in it, which is trained beside it.
#[derive(Debug)]
pub struct Adapter {
    /// Rank, scale and target modules.
    pub lora: LoraConfig,
    /// The low-rank matrices and, of a reward model, the head of scores. The model's own parameters have no elements
    /// here.
    pub params: Params,
    /// Counts the updates, as [`Weights::version`].
    pub version: u64,
    /// The shape of the model that it is for.
    pub config: Arc<ModelConfig>,
}

impl Adapter {
    /// A new adapter, drawn with `seed`, which changes nothing yet (B is 0). Booked under "adapter".
    pub fn new(memory: &Memory, base: &Weights, lora: &LoraConfig, seed: u64) -> Result<Adapter> {
        let mut adapter = Adapter::zeros(memory, base, lora)?;
        if memory.has_values() {
            crate::init::adapter(seed, &mut AdapterFilesMut(&mut adapter.params))?;
        }
        Ok(adapter)
    }

    /// An adapter of zeros, under the head of scores that `base` has. Booked under "adapter".
    pub fn zeros(memory: &Memory, base: &Weights, lora: &LoraConfig) -> Result<Adapter> {
        lora.check(&base.config)?;
        let params = Params::adapter(&memory.part("adapter"), &base.config, lora);
        memory.check()?;
        let mut adapter = Adapter { lora: lora.clone(), params, version: 0, config: base.config.clone() };
        if let (Some(own), Some(head)) = (&mut adapter.params.head, &base.params.head)
            && own.rows() > 0
            && memory.has_values()
        {
            own.data_mut().view_mut().copy_from_f32(&head.data().to_vec_f32());
        }
        Ok(adapter)
    }

    /// Makes what `params` now hold the next version.
    pub fn publish(&mut self) {
        self.version += 1;
    }

    /// Numbers in its files.
    pub fn len(&self) -> usize {
        AdapterFiles(&self.params).tensors().iter().map(|t| t.shape.iter().product::<usize>()).sum()
    }

    /// Whether it adapts nothing, which [`LoraConfig::check`] refuses.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Weights {
    /// Adds the adapter to the matrices, W ← W + s · B A (summed in f64, then rounded), and takes its head of scores:
    /// the same function, but for rounding, without the adapter's work.
    pub fn merge(&mut self, adapter: &Adapter) {
        let (scale, r) = (f64::from(adapter.lora.scale()), adapter.lora.r);
        let parts: Vec<_> = adapter.lora.targets(self.params.specs()).into_iter().flatten().collect();
        for part in parts {
            let read =
                |which: &str| adapter.params.read(&adapter_name(&part, which)).expect("an adapter of this model");
            let (a, b) = (read("A"), read("B"));
            let mut w = self.params.read(&part.name).expect("a parameter of this model");
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
