//! The KL divergence from the policy to the reference model, estimated at each sampled token (estimator k3 of Schulman
//! 2020, <http://joschu.net/blog/kl-approx.html>):
//!
//! K = e^d − d − 1, d = log π_ref − log π_θ; ∂K/∂log π_θ = 1 − e^d.
//!
//! With bias correction (DeepSeek-V3.2, arXiv:2512.02556) the estimate is r K with r the importance ratio, and the
//! gradient also goes through r.

/// The estimated KL divergence at one token, and its derivatives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kl {
    /// The estimate K, or r K with bias correction.
    pub value: f64,
    /// Derivative of the estimate with respect to log π_θ of the token, with the importance ratio held constant.
    pub d_logp: f64,
    /// Derivative of the estimate with respect to the log-ratio ρ.
    pub d_log_ratio: f64,
}

/// Estimates the KL divergence at one token; multiplied by the importance ratio `ratio` if given.
pub fn token(logp: f64, ref_logp: f64, ratio: Option<f64>) -> Kl {
    let d = ref_logp - logp;
    // expm1 keeps the digits of a small divergence.
    let (k, d_k) = (libm::expm1(d) - d, -libm::expm1(d));
    match ratio {
        None => Kl { value: k, d_logp: d_k, d_log_ratio: 0.0 },
        Some(r) => Kl { value: r * k, d_logp: r * d_k, d_log_ratio: r * k },
    }
}
