//! Tables for rotary position embedding (rope) on the device.

use crate::ModelConfig;
use crate::config::LayerRope;
use kernels::Memory;
use kernels::ops::rope;

/// Tables of cosines and sines for rotary position embedding, for positions `0..max_positions`. There is one table for
/// each kind of rope in the model's layers.
pub struct Rope {
    tables: Vec<(LayerRope, rope::Table)>,
}

impl Rope {
    /// Computes the tables of `config`'s rotary frequencies. Their memory is charged to "workspace".
    pub fn new(memory: &Memory, config: &ModelConfig, max_positions: usize) -> Rope {
        let memory = memory.part("workspace");
        let mut tables: Vec<(LayerRope, rope::Table)> = Vec::new();
        for &kind in &config.layer_ropes {
            if tables.iter().all(|(other, _)| *other != kind) {
                let (inv_freq, scaling) = config.inv_freq(kind);
                tables.push((kind, rope::Table::new(&memory, &inv_freq, scaling, max_positions)));
            }
        }
        Rope { tables }
    }

    /// The table for layers of this kind. Panics if the model has no such layer.
    pub(super) fn of(&self, kind: LayerRope) -> &rope::Table {
        let (_, table) =
            self.tables.iter().find(|(other, _)| *other == kind).expect("a table for every kind of rope in the model");
        table
    }
}
