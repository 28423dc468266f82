//! The KL divergence from the policy to the reference, estimated at each sampled token (k3 of Schulman 2020,
//! <http://joschu.net/blog/kl-approx.html>):
//!
//! K = e^d − d − 1, d = log π_ref − log π_θ; ∂K/∂log π_θ = 1 − e^d.
//!
//! Bias-corrected (DeepSeek-V3.2, arXiv:2512.02556): r K, whose gradient also goes through r.

/// K of one token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kl {
    /// K, or r K.
    pub value: f64,
    /// The estimate's derivative with respect to log π_θ of the token, the ratio held constant.
    pub d_logp: f64,
    /// The estimate's derivative with respect to the ratio ρ.
    pub d_log_ratio: f64,
}

/// K of one token; times `ratio` if that is given.
pub fn token(logp: f64, ref_logp: f64, ratio: Option<f64>) -> Kl {
    let d = ref_logp - logp;
    // expm1 keeps the digits of a small divergence.
    let (k, d_k) = (libm::expm1(d) - d, -libm::expm1(d));
    match ratio {
        None => Kl { value: k, d_logp: d_k, d_log_ratio: 0.0 },
        Some(r) => Kl { value: r * k, d_logp: r * d_k, d_log_ratio: r * k },
    }
}
