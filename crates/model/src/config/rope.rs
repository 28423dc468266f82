//! Rotary inverse frequencies, computed as in transformers 5.23: in f32, step by step. Only the power function differs:
//! here it is correctly rounded, while torch's result is off by one unit in the last place for about one input in two
//! hundred.
//!
//! Sources: Su et al. 2021 (RoPE); Chen et al. 2023 (linear position interpolation); the Llama 3.1 release (llama3);
//! Peng et al. 2023 (YaRN).

/// Settings of the rotary position embedding (rope).
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base θ of the frequencies: `rope_theta` in `config.json`.
    pub theta: f64,
    /// The change of the rotary frequencies for contexts longer than those of pretraining.
    pub scaling: RopeScaling,
}

/// The change of the rotary frequencies for contexts longer than those of pretraining.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Frequencies are not changed.
    Default,
    /// Linear: all frequencies are divided by a factor.
    Linear {
        /// Factor by which frequencies are divided.
        factor: f64,
    },
    /// Llama 3: frequencies of long wavelengths are divided by a factor, those of short wavelengths are kept, those
    /// between are interpolated.
    Llama3 {
        /// Factor by which frequencies are divided.
        factor: f64,
        /// Frequencies are divided for wavelengths longer than the original context length / this number.
        low_freq_factor: f64,
        /// Frequencies are kept for wavelengths shorter than the original context length / this number.
        high_freq_factor: f64,
        /// Context length of pretraining.
        original_max_position_embeddings: f64,
    },
    /// YaRN: a ramp over the dimensions between kept and divided frequencies.
    Yarn {
        /// Factor by which frequencies are divided.
        factor: f64,
        /// Multiplier of cosines and sines.
        attention_factor: f64,
        /// A dimension that makes more full rotations than this over the original context keeps its frequency.
        beta_fast: f64,
        /// A dimension that makes fewer full rotations than this over the original context has its frequency divided.
        beta_slow: f64,
        /// Context length of pretraining.
        original_max_position_embeddings: f64,
        /// Whether the ends of the ramp are rounded to integer dimensions.
        truncate: bool,
    },
}

impl Rope {
    /// Computes the inverse frequencies `[head_dim / 2]`, and the factor on cos and sin.
    pub fn inv_freq(&self, head_dim: usize) -> (Vec<f32>, f32) {
        let dim = head_dim as f32;
        // Computes θ^(2i / dim) in f32. The exponent is rounded, then the power is rounded once.
        let powers: Vec<f32> = (0..head_dim / 2)
            .map(|i| libm::pow(f64::from(self.theta as f32), f64::from((2 * i) as f32 / dim)) as f32)
            .collect();
        let plain = powers.iter().map(|p| 1.0 / p);
        match self.scaling {
            RopeScaling::Default => (plain.collect(), 1.0),
            RopeScaling::Linear { factor } => (plain.map(|f| f / factor as f32).collect(), 1.0),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } => {
                let (factor, context) = (factor as f32, original_max_position_embeddings);
                let longest = (context / low_freq_factor) as f32;
                let shortest = (context / high_freq_factor) as f32;
                // torch computes number / tensor as the tensor's reciprocal times the number.
                let scale = |f: f32| {
                    let wavelength = 1.0 / f * std::f64::consts::TAU as f32;
                    if wavelength > longest {
                        f / factor
                    } else if wavelength < shortest {
                        f
                    } else {
                        let smooth = (1.0 / wavelength * context as f32 - low_freq_factor as f32)
                            / (high_freq_factor - low_freq_factor) as f32;
                        (1.0 - smooth) * f / factor + smooth * f
                    }
                };
                (plain.map(scale).collect(), 1.0)
            }
            RopeScaling::Yarn {
                factor,
                attention_factor,
                beta_fast,
                beta_slow,
                original_max_position_embeddings: context,
                truncate,
            } => {
                let dim = head_dim as f64;
                // The dimension whose angle makes `rotations` full rotations over the original context.
                let dimension = |rotations: f64| {
                    dim * libm::log(context / (rotations * std::f64::consts::TAU)) / (2.0 * libm::log(self.theta))
                };
                let (mut low, mut high) = (dimension(beta_fast), dimension(beta_slow));
                if truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                let (low, mut high) = (low.max(0.0), high.min(dim - 1.0));
                if low == high {
                    high += 0.001;
                }
                let scale = |(i, p): (usize, &f32)| {
                    let ramp = ((i as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
                    let keep = 1.0 - ramp;
                    1.0 / (factor as f32 * p) * (1.0 - keep) + 1.0 / p * keep
                };
                (powers.iter().enumerate().map(scale).collect(), attention_factor as f32)
            }
        }
    }
}
