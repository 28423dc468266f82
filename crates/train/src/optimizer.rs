//! AdamW's settings and its state, as checkpoints hold them.

use serde::{Deserialize, Serialize};

/// AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) with clipping by the global gradient norm; names and defaults are
/// transformers'.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OptimizerConfig {
    /// Decay of the first moment.
    pub adam_beta1: f64,
    /// Decay of the second moment.
    pub adam_beta2: f64,
    /// Added to the root of the second moment.
    pub adam_epsilon: f64,
    /// Decoupled decay of matrices; biases and norm weights do not decay.
    pub weight_decay: f64,
    /// The gradient is scaled down to this L2 norm; 0 for no clipping.
    pub max_grad_norm: f64,
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        OptimizerConfig {
            adam_beta1: 0.9,
            adam_beta2: 0.999,
            adam_epsilon: 1e-8,
            weight_decay: 0.0,
            max_grad_norm: 1.0,
        }
    }
}

/// The optimizer's state in the canonical order: one entry per Hugging Face tensor name, elements row-major.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OptimizerState {
    /// Optimizer steps taken (skipped ones not counted): the exponent of AdamW's bias correction.
    pub steps: u64,
    /// Steps skipped in a row up to now.
    pub skipped_in_a_row: u32,
    /// Steps skipped in the run.
    pub skipped_total: u64,
    /// The moments, in the model's parameter order.
    pub moments: Vec<StateTensor>,
}

/// The moments of one tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct StateTensor {
    /// Its Hugging Face name.
    pub name: String,
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// The first moment.
    pub m: Vec<f32>,
    /// The second moment.
    pub v: Vec<f32>,
}
