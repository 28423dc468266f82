//! Rotary angles on the device.

use crate::ModelConfig;
use kernels::Memory;
use kernels::ops::rope;

/// Rotary angles of a model on the device, for positions `0..max_positions`.
pub struct Rope {
    pub(super) table: rope::Table,
}

impl Rope {
    /// The cosines and sines of `config`'s frequencies. Booked under "workspace".
    pub fn new(memory: &Memory, config: &ModelConfig, max_positions: usize) -> Rope {
        let (inv_freq, scaling) = config.inv_freq();
        Rope { table: rope::Table::new(&memory.part("workspace"), &inv_freq, scaling, max_positions) }
    }
}
