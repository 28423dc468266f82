//! Rotary inverse frequencies, as transformers 5.23 computes them: in f32, step by step. The power itself is rounded
//! correctly here; torch's is so but for about one in two hundred, which it misses by one unit in the last place.
//!
//! Sources: Su et al. 2021 (RoPE); Chen et al. 2023 (linear position interpolation); the Llama 3.1 release (llama3);
//! Peng et al. 2023 (YaRN).

/// Rotary position settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base wavelength.
    pub theta: f64,
    /// How the frequencies are changed for longer contexts.
    pub scaling: RopeScaling,
}

/// How rotary frequencies are changed for contexts longer than those of pretraining.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    Default,
    /// Divided by a factor.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Long wavelengths divided by a factor, short ones kept, those between interpolated.
    Llama3 {
        /// The factor.
        factor: f64,
        /// Wavelengths longer than the original context over this are divided.
        low_freq_factor: f64,
        /// Wavelengths shorter than the original context over this are kept.
        high_freq_factor: f64,
        /// Context length of pretraining.
        original_max_position_embeddings: f64,
    },
    /// YaRN.
    Yarn {
        /// The factor.
        factor: f64,
        /// The factor on cos and sin.
        attention_factor: f64,
        /// Rotations over the original context above which a frequency is kept.
        beta_fast: f64,
        /// Rotations below which it is divided.
        beta_slow: f64,
        /// Context length of pretraining.
        original_max_position_embeddings: f64,
        /// Whether the bounds of the ramp are rounded to whole dimensions.
        truncate: bool,
    },
}

impl Rope {
    /// Inverse frequencies `[head_dim / 2]`, and the factor on cos and sin.
    pub fn inv_freq(&self, head_dim: usize) -> (Vec<f32>, f32) {
        let dim = head_dim as f32;
        // θ^(i / dim) in f32: the power of the rounded exponent, rounded once.
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
                // A number over a tensor is, in torch, the reciprocal times the number.
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
                // The dimension that turns `rotations` times over the original context.
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
