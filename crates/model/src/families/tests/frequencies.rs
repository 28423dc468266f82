//! Rotary frequencies compared with the formulas of their papers, in f64.

use super::*;

fn near(found: &[f32], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len());
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((f64::from(*found) / expected - 1.0).abs() < 2e-5, "{what}, {i}: {found} {expected}");
    }
}

fn plain(theta: f64, dim: usize) -> Vec<f64> {
    (0..dim / 2).map(|i| libm::pow(theta, -2.0 * i as f64 / dim as f64)).collect()
}

#[test]
fn each_rope_type_matches_its_formula() {
    for (theta, dim) in [(10_000.0, 64), (500_000.0, 128), (10.0, 6)] {
        let base = plain(theta, dim);
        let (found, factor) = Rope { theta, scaling: RopeScaling::Default }.inv_freq(dim);
        near(&found, &base, "default");
        assert_eq!(factor, 1.0);
        let (found, factor) = Rope { theta, scaling: RopeScaling::Linear { factor: 4.0 } }.inv_freq(dim);
        near(&found, &base.iter().map(|f| f / 4.0).collect::<Vec<_>>(), "linear");
        assert_eq!(factor, 1.0);
        for (factor, low, high, context) in [(8.0, 1.0, 4.0, 8192.0), (32.0, 2.0, 3.0, 512.0)] {
            let scaling = RopeScaling::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings: context,
            };
            let of = |f: &f64| {
                let rotations = context * f / std::f64::consts::TAU;
                let smooth = ((rotations - low) / (high - low)).clamp(0.0, 1.0);
                f * (smooth + (1.0 - smooth) / factor)
            };
            let (found, attention) = Rope { theta, scaling }.inv_freq(dim);
            near(&found, &base.iter().map(of).collect::<Vec<_>>(), "llama3");
            assert_eq!(attention, 1.0);
        }
        for (factor, fast, slow, context) in [
            (4.0, 32.0, 1.0, 4096.0),
            (16.0, 8.0, 2.0, 1024.0),
            // The ends of this ramp are beyond the first and last dimension, so they are clamped.
            (2.0, 1e6, 1e-9, 2048.0),
            // This ramp has length 0.
            (2.0, 3.0, 3.0, 2048.0),
        ] {
            for truncate in [true, false] {
                let scaling = RopeScaling::Yarn {
                    factor,
                    attention_factor: 1.25,
                    beta_fast: fast,
                    beta_slow: slow,
                    original_max_position_embeddings: context,
                    truncate,
                };
                let dimension = |rotations: f64| {
                    let turns = context / (rotations * std::f64::consts::TAU);
                    dim as f64 * libm::log(turns) / (2.0 * libm::log(theta))
                };
                let (mut low, mut high) = (dimension(fast), dimension(slow));
                if truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                let (low, high) = (low.max(0.0), high.min(dim as f64 - 1.0));
                let length = if low == high { 0.001 } else { high - low };
                let of = |(i, f): (usize, &f64)| {
                    let ramp = ((i as f64 - low) / length).clamp(0.0, 1.0);
                    f * (1.0 - ramp) + f / factor * ramp
                };
                let (found, attention) = Rope { theta, scaling }.inv_freq(dim);
                near(&found, &base.iter().enumerate().map(of).collect::<Vec<_>>(), "yarn");
                assert_eq!(attention, 1.25);
            }
        }
    }
}
