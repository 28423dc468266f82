//! The KV cache stores attention's keys and values in pages of 64 positions. Each layer has its own pages, or, for
//! batches of whole sequences, all layers use the pages of one layer in turn.

use crate::ModelConfig;
use kernels::ops::attention::{self, Pages, PagesMut};
use kernels::{Context, DType, Memory, Result, Tensor};

/// Positions in one page of the KV cache: 64.
pub use kernels::ops::attention::BLOCK;

/// A KV cache: a pool of pages with keys and values. The cache does not know which sequence uses which page; the
/// caller's block tables map sequences to pages.
#[derive(Debug)]
pub struct KvCache {
    layers: Vec<LayerPages>,
}

/// The KV-cache pages of one layer.
#[derive(Debug)]
pub(crate) struct LayerPages {
    /// Keys: `[pages, KV heads, head dim, 64 positions]`.
    pub keys: Tensor,
    /// Values: `[pages, KV heads, 64 positions, head dim]`.
    pub values: Tensor,
}

impl LayerPages {
    pub(crate) fn zeros(memory: &Memory, c: &ModelConfig, blocks: usize) -> LayerPages {
        LayerPages::of(memory, c, blocks, c.compute)
    }
    /// KV-cache pages of the given dtype. Gradients of keys and values are always f32.
    pub(crate) fn of(memory: &Memory, c: &ModelConfig, blocks: usize, dtype: DType) -> LayerPages {
        let zeros = |shape: &[usize]| Tensor::zeros(memory, shape, dtype);
        LayerPages {
            keys: zeros(&[blocks, c.num_kv_heads, c.head_dim, BLOCK]),
            values: zeros(&[blocks, c.num_kv_heads, BLOCK, c.head_dim]),
        }
    }
    pub(crate) fn view(&self) -> Pages<'_> {
        Pages { keys: self.keys.view(), values: self.values.view() }
    }
    pub(crate) fn view_mut(&mut self) -> PagesMut<'_> {
        PagesMut { keys: self.keys.view_mut(), values: self.values.view_mut() }
    }
}

impl KvCache {
    /// A KV cache with `blocks` pages in every layer, for sequences that grow from step to step (decoding). Its memory
    /// is charged to "kv cache".
    pub fn new(memory: &Memory, config: &ModelConfig, blocks: usize) -> KvCache {
        let memory = memory.part("kv cache");
        KvCache { layers: (0..config.num_layers).map(|_| LayerPages::zeros(&memory, config, blocks)).collect() }
    }
    /// A KV cache with `blocks` pages that all layers use in turn, for batches of whole sequences (training and
    /// scoring).
    pub(crate) fn one_layer(memory: &Memory, config: &ModelConfig, blocks: usize) -> KvCache {
        KvCache { layers: vec![LayerPages::zeros(memory, config, blocks)] }
    }
    /// Bytes of one KV-cache page, summed over all layers of the model.
    pub fn block_bytes(c: &ModelConfig) -> usize {
        2 * c.num_layers * c.num_kv_heads * c.head_dim * BLOCK * c.compute.bytes()
    }
    /// Copies KV-cache page `from` over page `to`, in every layer.
    pub fn copy_block(&mut self, ctx: &Context, from: u32, to: u32) -> Result<()> {
        self.layers.iter_mut().try_for_each(|layer| attention::copy_block(ctx, from, to, layer.view_mut()))
    }
    /// The KV-cache pages of layer `layer`.
    pub(crate) fn layer_mut(&mut self, layer: usize) -> &mut LayerPages {
        let shared = self.layers.len() == 1;
        &mut self.layers[if shared { 0 } else { layer }]
    }
    /// Overwrites every key and value with `x`. Tests fill the cache with NaN to detect reads of unwritten positions.
    pub fn fill(&mut self, x: f32) {
        for layer in &mut self.layers {
            layer.keys.view_mut().fill(x);
            layer.values.view_mut().fill(x);
        }
    }
}
