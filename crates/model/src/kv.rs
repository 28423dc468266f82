//! Keys and values in pages: for each layer, or one layer's at a time where a batch needs no other.

use crate::ModelConfig;
use kernels::ops::attention::{self, Pages, PagesMut};
use kernels::{Context, DType, Memory, Result, Tensor};

/// Positions of a page.
pub use kernels::ops::attention::BLOCK;

/// Pages of keys and values. It knows no sequence: block tables say whose a page is.
#[derive(Debug)]
pub struct KvCache {
    layers: Vec<LayerPages>,
    blocks: usize,
}

/// One layer's pages.
#[derive(Debug)]
pub(crate) struct LayerPages {
    /// `[blocks, nkv, hd, 64]`
    pub keys: Tensor,
    /// `[blocks, nkv, 64, hd]`
    pub values: Tensor,
}

impl LayerPages {
    pub(crate) fn zeros(memory: &Memory, c: &ModelConfig, blocks: usize) -> LayerPages {
        LayerPages::of(memory, c, blocks, c.compute)
    }
    /// Pages of this dtype: gradients are f32 whatever the model computes in.
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
    /// `blocks` pages for every layer, for sequences that continue. Booked under "kv cache".
    pub fn new(memory: &Memory, config: &ModelConfig, blocks: usize) -> KvCache {
        let memory = memory.part("kv cache");
        KvCache { layers: (0..config.num_layers).map(|_| LayerPages::zeros(&memory, config, blocks)).collect(), blocks }
    }
    /// `blocks` pages that the layers use one after the other, for batches that hold whole sequences.
    pub(crate) fn one_layer(memory: &Memory, config: &ModelConfig, blocks: usize) -> KvCache {
        KvCache { layers: vec![LayerPages::zeros(memory, config, blocks)], blocks }
    }
    /// Pages of each layer.
    pub fn blocks(&self) -> usize {
        self.blocks
    }
    /// Bytes of one page over all layers of a model.
    pub fn block_bytes(c: &ModelConfig) -> usize {
        2 * c.num_layers * c.num_kv_heads * c.head_dim * BLOCK * c.compute.bytes()
    }
    /// Copies page `from` over page `to`, in every layer.
    pub fn copy_block(&mut self, ctx: &Context, from: u32, to: u32) -> Result<()> {
        self.layers.iter_mut().try_for_each(|layer| attention::copy_block(ctx, from, to, layer.view_mut()))
    }
    /// The pages of layer `layer`.
    pub(crate) fn layer_mut(&mut self, layer: usize) -> &mut LayerPages {
        let shared = self.layers.len() == 1;
        &mut self.layers[if shared { 0 } else { layer }]
    }
    /// Overwrites every page with `x`: tests poison it with NaN.
    pub fn fill(&mut self, x: f32) {
        for layer in &mut self.layers {
            layer.keys.view_mut().fill(x);
            layer.values.view_mut().fill(x);
        }
    }
}
