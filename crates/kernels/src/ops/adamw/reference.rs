//! Reference AdamW for tests, slow and simple.

#![allow(clippy::disallowed_methods)]

use super::Hyper;
use crate::check::Float;

/// Takes one AdamW step for every element. `clip` is the factor by which the gradient is scaled.
pub fn step<F: Float>(param: &mut [F], grad: &[F], m: &mut [F], v: &mut [F], h: &Hyper, clip: f64) {
    let t = h.step as f64;
    let (correct1, correct2) = (1.0 - h.beta1.powf(t), 1.0 - h.beta2.powf(t));
    for i in 0..param.len() {
        let g = F::of(clip) * grad[i];
        param[i] = param[i] * F::of(1.0 - h.lr * h.weight_decay);
        m[i] = (g - m[i]).mul_add(F::of(1.0 - h.beta1), m[i]);
        v[i] = (g * F::of(1.0 - h.beta2)).mul_add(g, v[i] * F::of(h.beta2));
        let denominator = v[i].sqrt() / F::of(correct2.sqrt()) + F::of(h.eps);
        param[i] += m[i] * F::of(-(h.lr / correct1)) / denominator;
    }
}
