//! The LoRA matrices of one linear layer.

use super::lora::LoraConfig;
use super::spec::Part;
use kernels::ops::lora;
use kernels::{Matrix, Memory};

/// The LoRA matrices of one linear layer. A fused layer (such as q, k and v) has a block for each adapted part: block i
/// adds `s · B_i A_i` to the output rows from `first[i]`.
#[derive(Debug)]
pub struct LowRank {
    /// The matrices A_i stacked: `[sum of the ranks, inputs]`.
    pub a: Matrix,
    /// The matrices B_i, each `[outputs of part i, rank]`.
    pub b: Vec<Matrix>,
    /// First output row of each block.
    pub first: Vec<usize>,
    /// The scale s.
    pub scale: f32,
}

impl LowRank {
    /// LoRA matrices of zeros for these parts of a fused weight; `None` if there are no parts.
    pub(super) fn zeros(memory: &Memory, lora: &LoraConfig, parts: &[Part]) -> Option<LowRank> {
        let cols = parts.first()?.shape[1];
        let b = parts.iter().map(|p| Matrix::zeros(memory, p.rows.len(), lora.r));
        Some(LowRank {
            a: Matrix::zeros(memory, parts.len() * lora.r, cols),
            b: b.collect(),
            first: parts.iter().map(|p| p.rows.start).collect(),
            scale: lora.scale(),
        })
    }

    pub(super) fn args(&self) -> lora::Adapter<'_> {
        lora::Adapter { a: &self.a, b: &self.b, first: &self.first, scale: self.scale }
    }
}
