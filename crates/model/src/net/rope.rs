//! Rotary angles on the device.

use crate::ModelConfig;
use crate::config::LayerRope;
use kernels::Memory;
use kernels::ops::rope;

/// Rotary angles of a model on the device, for positions `0..max_positions`: a table for each kind of layer that it
/// has.
pub struct Rope {
    tables: Vec<(LayerRope, rope::Table)>,
}

impl Rope {
    /// The cosines and sines of `config`'s frequencies. Booked under "workspace".
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

    /// The table of a kind of layer that the model has.
    pub(super) fn of(&self, kind: LayerRope) -> &rope::Table {
        let (_, table) = self.tables.iter().find(|(other, _)| *other == kind).expect("a table for every kind of layer");
        table
    }
}
