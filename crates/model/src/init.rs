//! Random initial weights for a model configuration: matrices are normal with mean 0 and standard deviation
//! `initializer_range`; norm weights multiply by 1; biases are 0.
//!
//! An element depends only on the seed, the name of its tensor and its position in the tensor. So a model with more
//! layers starts with the same first layers, and tensors can be filled in any order.

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

/// Initialises a new LoRA adapter as PEFT does. A is uniform in ±1/√K, where K is the number of inputs (Kaiming, a =
/// √5). B is 0, so that the adapter does not change the model yet.
pub(crate) fn adapter(seed: u64, sink: &mut dyn TensorSink) -> Result<()> {
    for spec in sink.tensors().into_iter().filter(|s| s.name.ends_with("lora_A.weight")) {
        let [r, k] = spec.shape[..] else { unreachable!("a matrix") };
        let (mut stream, bound) = (Stream::new(seed, fnv1a(&spec.name)), 1.0 / (k as f64).sqrt());
        let data: Vec<f32> = (0..r * k).map(|_| ((2.0 * stream.next_f64() - 1.0) * bound) as f32).collect();
        sink.put(&spec.name, &data)?;
    }
    Ok(())
}

/// The first `count` elements of the tensor `name`. A norm's weight is `norm`, a bias is 0, and everything else is
/// normal with standard deviation `std`.
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

/// The 64-bit FNV-1a hash of a tensor's name. It is the same on every platform and with every version of the standard
/// library.
fn fnv1a(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_weights_depend_on_tensor_name_and_seed_only() {
        let q = |count, seed| tensor("model.layers.0.self_attn.q_proj.weight", count, 0.02, 1.0, seed);
        assert_eq!(q(10, 7), q(20, 7)[..10]);
        assert_ne!(q(10, 7), q(10, 8));
        assert_ne!(q(10, 7), tensor("model.layers.1.self_attn.q_proj.weight", 10, 0.02, 1.0, 7));
    }

    #[test]
    fn random_weights_have_the_configured_mean_and_variance() {
        let x = tensor("lm_head.weight", 20_000, 0.02, 1.0, 1);
        let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / 20_000.0;
        let var = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / 20_000.0;
        assert!(mean.abs() < 6e-4 && (var.sqrt() - 0.02).abs() < 4e-4, "{mean} {var}");
        assert_eq!(tensor("model.norm.weight", 2, 0.02, 1.0, 1), [1.0; 2]);
        assert_eq!(tensor("model.layers.0.self_attn.q_norm.weight", 1, 0.02, 0.0, 1), [0.0]);
        assert_eq!(tensor("model.layers.0.self_attn.q_proj.bias", 1, 0.02, 1.0, 1), [0.0]);
    }

    struct Held(Vec<(crate::io::TensorSpec, Vec<f32>)>);

    impl TensorSink for Held {
        fn tensors(&self) -> Vec<crate::io::TensorSpec> {
            self.0.iter().map(|(spec, _)| spec.clone()).collect()
        }
        fn put(&mut self, name: &str, data: &[f32]) -> Result<()> {
            self.0.iter_mut().find(|(spec, _)| spec.name == name).unwrap().1 = data.to_vec();
            Ok(())
        }
    }

    /// Kaiming with a = √5 is uniform in ±1/√K.
    #[test]
    fn matrix_a_of_a_new_adapter_is_uniform_within_its_bound() {
        let spec = |name: &str, shape: [usize; 2]| {
            (crate::io::TensorSpec { name: name.into(), shape: shape.to_vec() }, vec![])
        };
        let of = |seed: u64| {
            let mut held = Held(vec![
                spec("q.lora_A.weight", [64, 16]),
                spec("q.lora_B.weight", [5, 64]),
                spec("v.lora_A.weight", [2, 400]),
            ]);
            adapter(seed, &mut held).unwrap();
            held.0.into_iter().map(|(_, data)| data).collect::<Vec<_>>()
        };
        let [q, b, v] = &of(3)[..] else { panic!("three tensors") };
        assert!(b.is_empty(), "B must be 0");
        for (data, len, bound) in [(q, 1024, 0.25), (v, 800, 0.05)] {
            let (least, most) = data.iter().fold((0.0_f32, 0.0_f32), |(a, b), &x| (a.min(x), b.max(x)));
            let mean = data.iter().sum::<f32>() / len as f32;
            assert_eq!(data.len(), len);
            assert!(least >= -bound && most < bound && least < -0.97 * bound && most > 0.97 * bound, "{least} {most}");
            assert!(mean.abs() < 0.06 * bound, "{mean}");
        }
        assert_eq!(q[0], {
            let mut stream = Stream::new(3, fnv1a("q.lora_A.weight"));
            ((2.0 * stream.next_f64() - 1.0) / 4.0) as f32
        });
        assert!(of(3)[0] == *q && of(4)[0] != *q);
    }

    #[test]
    fn fnv1a_matches_the_published_test_vectors() {
        assert_eq!(fnv1a(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a("a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a("foobar"), 0x8594_4171_f739_67e8);
    }
}
