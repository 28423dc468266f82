//! Random initial weights for a model configuration: matrices are normal with mean 0 and standard deviation
//! `initializer_range`; norm weights multiply by 1; biases are 0.
//!
//! An element depends only on the seed, the name of its tensor and its position in the tensor. So a model with more
//! layers starts with the same first layers, and the order in which tensors are filled does not matter.

use crate::io::TensorSink;
use crate::{ModelConfig, Result};
use kernels::rng::Stream;

/// Fills every tensor of `sink` with random weights.
pub fn random(config: &ModelConfig, seed: u64, sink: &mut dyn TensorSink) -> Result<()> {
    for spec in sink.tensors() {
        let count = spec.shape.iter().product();
        let (std, norm) = (config.initializer_range, 1.0 - config.norm_offset);
        sink.put(&spec.name, &tensor(&spec.name, count, std, norm, seed))?;
    }
    Ok(())
}

/// Initialises a new LoRA adapter as PEFT does: A is uniform in ±1/√K, with K the number of inputs (Kaiming, a = √5); B
/// is 0, so that the adapter does not change the model yet.
pub(crate) fn adapter(seed: u64, sink: &mut dyn TensorSink) -> Result<()> {
    for spec in sink.tensors().into_iter().filter(|s| s.name.ends_with("lora_A.weight")) {
        let [r, k] = spec.shape[..] else { unreachable!("a matrix") };
        let (mut stream, bound) = (Stream::new(seed, fnv1a(&spec.name)), 1.0 / (k as f64).sqrt());
        let data: Vec<f32> = (0..r * k).map(|_| ((2.0 * stream.next_f64() - 1.0) * bound) as f32).collect();
        sink.put(&spec.name, &data)?;
    }
    Ok(())
}

/// The first `count` elements of the tensor `name`. A norm's weight is `norm`, a bias is 0, and all else is normal with
/// standard deviation `std`.
fn tensor(name: &str, count: usize, std: f32, norm: f32, seed: u64) -> Vec<f32> {
    if name.ends_with(".bias") {
        vec![0.0; count]
    } else if name.ends_with("norm.weight") {
        vec![norm; count]
    } else {
        let mut stream = Stream::new(seed, fnv1a(name));
        (0..count).map(|_| (stream.next_normal() * f64::from(std)) as f32).collect()
    }
}

/// The 64-bit FNV-1a hash of a tensor's name: the same number on every platform and with every version of the standard
/// library.
fn fnv1a(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_depend_on_name_and_seed_alone() {
        let q = |count, seed| tensor("model.layers.0.self_attn.q_proj.weight", count, 0.02, 1.0, seed);
        assert_eq!(q(10, 7), q(20, 7)[..10]);
        assert_ne!(q(10, 7), q(10, 8));
        assert_ne!(q(10, 7), tensor("model.layers.1.self_attn.q_proj.weight", 10, 0.02, 1.0, 7));
    }

    #[test]
    fn mean_and_variance_are_those_of_the_config() {
        let x = tensor("lm_head.weight", 20_000, 0.02, 1.0, 1);
        let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / 20_000.0;
        let var = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / 20_000.0;
        assert!(mean.abs() < 6e-4 && (var.sqrt() - 0.02).abs() < 4e-4, "{mean} {var}");
        assert_eq!(tensor("model.norm.weight", 2, 0.02, 1.0, 1), [1.0; 2]);
        assert_eq!(tensor("model.layers.0.self_attn.q_norm.weight", 1, 0.02, 0.0, 1), [0.0]);
        assert_eq!(tensor("model.layers.0.self_attn.q_proj.bias", 1, 0.02, 1.0, 1), [0.0]);
    }
}
