//! The importance ratio r = e^ρ between the current and the old policy, per token or per sequence. m is the mask of
//! tokens in the loss:
//!
//! - token: ρ_t = log π_θ(t) − log π_old(t);
//! - sequence (GSPO, Zheng et al. 2025, arXiv:2507.18071): ρ = Σ_t m_t (log π_θ(t) − log π_old(t)) / max(1, Σ_t m_t),
//!   one for all tokens. Its gradient goes to every token of the sequence: ∂ρ/∂log π_θ(t) = m_t / max(1, Σ m).

use super::ImportanceSamplingLevel;
use kernels::check::Float;

/// The importance ratios of one sequence.
#[derive(Clone, Debug)]
pub struct Ratio {
    /// One ratio per token, or a single one for the sequence.
    ratios: Vec<f64>,
    tokens: usize,
}

impl Ratio {
    /// Computes the ratios per token or per sequence, over the tokens that `mask` keeps.
    pub fn new<T: Float>(level: ImportanceSamplingLevel, logps: &[T], old_logps: &[T], mask: &[bool]) -> Ratio {
        let tokens = mask.iter().filter(|&&m| m).count();
        let log_ratio = |t: usize| if mask[t] { logps[t].f64() - old_logps[t].f64() } else { 0.0 };
        let ratios = match level {
            ImportanceSamplingLevel::Token => (0..mask.len()).map(|t| libm::exp(log_ratio(t))).collect(),
            ImportanceSamplingLevel::Sequence => {
                let sum: f64 = (0..mask.len()).map(log_ratio).sum();
                vec![libm::exp(sum / tokens.max(1) as f64)]
            }
        };
        Ratio { ratios, tokens }
    }

    /// The importance ratio of token `t`.
    pub fn at(&self, t: usize) -> f64 {
        if self.ratios.len() == 1 { self.ratios[0] } else { self.ratios[t] }
    }

    /// Number of tokens that the mask keeps.
    pub fn tokens(&self) -> usize {
        self.tokens
    }
}

/// Adds the gradient with respect to a sequence's log-ratio ρ to the gradients `d_logps` of its tokens.
pub fn spread<T: Float>(d_log_ratio: f64, mask: &[bool], d_logps: &mut [T]) {
    let tokens = mask.iter().filter(|&&m| m).count().max(1) as f64;
    for (d, &m) in d_logps.iter_mut().zip(mask) {
        if m {
            *d = T::of(d.f64() + d_log_ratio / tokens);
        }
    }
}
