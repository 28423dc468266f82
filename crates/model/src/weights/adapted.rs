//! Weights with a low-rank adapter: giving them one, switching it off, merging it.

use super::lora::{LoraConfig, adapter_name};
use super::{AdapterFiles, AdapterFilesMut, Weights};
use crate::Result;
use crate::io::TensorSource;
use kernels::Memory;

impl Weights {
    /// Gives it a new adapter, drawn with `seed`, which changes nothing yet (B is 0). Booked under "adapter".
    pub fn add_adapter(&mut self, memory: &Memory, lora: &LoraConfig, seed: u64) -> Result<()> {
        self.add_zero_adapter(memory, lora)?;
        crate::init::adapter(seed, &mut AdapterFilesMut(&mut self.params))
    }

    /// Gives it an adapter of zeros, replacing one that it has. Booked under "adapter".
    pub fn add_zero_adapter(&mut self, memory: &Memory, lora: &LoraConfig) -> Result<()> {
        lora.check(&self.config)?;
        self.drop_adapter();
        self.params.add_adapter(&memory.part("adapter"), lora);
        self.lora = Some(lora.clone());
        Ok(())
    }

    /// What its adapter is, if it has one.
    pub fn lora(&self) -> Option<&LoraConfig> {
        self.lora.as_ref()
    }

    /// Parameters of its adapter.
    pub fn adapter_len(&self) -> usize {
        AdapterFiles(&self.params).tensors().iter().map(|t| t.shape.iter().product::<usize>()).sum()
    }

    /// The weights with the adapter switched off: the model that it was put on. Nothing is copied.
    pub fn without_adapter<T>(&mut self, look: impl FnOnce(&Weights) -> T) -> T {
        let adapters = self.params.detach();
        let seen = look(self);
        self.params.attach(adapters);
        seen
    }

    /// Adds the adapter to the matrices, W ← W + s · B A (summed in f64, then rounded), and drops it: the same
    /// function, but for rounding, without the adapter's work.
    pub fn merge_adapter(&mut self) {
        let Some(lora) = self.lora.clone() else { return };
        let (scale, r) = (f64::from(lora.scale()), lora.r);
        let parts: Vec<_> = lora.targets(self.params.specs()).into_iter().flatten().collect();
        for part in parts {
            let read = |name: &str| self.params.read(name).expect("a parameter of this model");
            let (a, b) = (read(&adapter_name(&part, "A")), read(&adapter_name(&part, "B")));
            let mut w = read(&part.name);
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
        self.drop_adapter();
        self.publish();
    }

    fn drop_adapter(&mut self) {
        drop(self.params.detach());
        self.params.forget_adapter();
        self.lora = None;
    }
}
