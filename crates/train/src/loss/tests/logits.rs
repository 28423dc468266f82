//! Tests of gradients through the logits: a softmax gives log-probabilities and entropies, from which each loss and the
//! entropy bonus are computed. The backward pass of the lm head from ∂J/∂log π and ∂J/∂H is implemented here in f64.

use super::*;
use crate::loss::rloo::{RlooConfig, rloo};

const WORDS: usize = 6;
const TEMPERATURE: f64 = 0.7;

/// Log-probabilities and entropies of every token of `case` for `logits: [tokens, WORDS]` at `temperature`. Token t has
/// id t mod `WORDS`.
fn head(logits: &[f64], temperature: f64) -> (Vec<f64>, Vec<f64>) {
    let row = |(t, z): (usize, &[f64])| {
        let lse = z.iter().map(|z| (z / temperature).exp()).sum::<f64>().ln();
        let entropy = -z.iter().map(|z| z / temperature - lse).map(|l| l.exp() * l).sum::<f64>();
        (z[t % WORDS] / temperature - lse, entropy)
    };
    logits.chunks(WORDS).enumerate().map(row).unzip()
}

/// Computes ∂J/∂logits from ∂J/∂log π and ∂J/∂H.
fn head_backward(logits: &[f64], temperature: f64, d_logps: &[f64], d_entropies: &[f64]) -> Vec<f64> {
    let (_, entropies) = head(logits, temperature);
    let mut gradient = Vec::with_capacity(logits.len());
    for (t, z) in logits.chunks(WORDS).enumerate() {
        let lse = z.iter().map(|z| (z / temperature).exp()).sum::<f64>().ln();
        for (v, z) in z.iter().enumerate() {
            let logp = z / temperature - lse;
            let chosen = if v == t % WORDS { 1.0 } else { 0.0 };
            // ∂H/∂z_v = −p_v (log p_v + H)
            let d = d_logps[t] * (chosen - logp.exp()) - d_entropies[t] * logp.exp() * (logp + entropies[t]);
            gradient.push(d / temperature);
        }
    }
    gradient
}

/// Maps log-probabilities and entropies to ∂J/∂log π and ∂J/∂H.
pub type Gradient<'a> = &'a dyn Fn(&[f64], &[f64]) -> (Vec<f64>, Vec<f64>);
/// Maps log-probabilities, entropies, and the point at which constants are evaluated, to J.
pub type Value<'a> = &'a dyn Fn(&[f64], &[f64], &[f64]) -> f64;

/// J with its bonus, and ∂J/∂(log π, H), of any objective.
type Objective<'a> = &'a dyn Fn(&Case, &Normalizer, &[f64], &mut [f64], &mut LossSums);

fn evaluate(
    case: &Case,
    normalizer: &Normalizer,
    objective: Objective<'_>,
    logps: &[f64],
    entropies: &[f64],
) -> (f64, Vec<f64>, Vec<f64>) {
    let (mut d_logps, mut d_entropies) = (vec![f64::NAN; logps.len()], vec![f64::NAN; logps.len()]);
    let (mut sums, mut start) = (LossSums::default(), 0);
    objective(case, normalizer, logps, &mut d_logps, &mut sums);
    for mask in &case.masks {
        let range = start..start + mask.len();
        entropy::bonus(normalizer, &entropies[range.clone()], mask, &mut d_entropies[range.clone()], &mut sums);
        start = range.end;
    }
    let bonus = normalizer.entropy_coef * sums.entropy / normalizer.entropy_tokens.max(1) as f64;
    (sums.loss - bonus, d_logps, d_entropies)
}

/// Logits of `tokens` tokens, with their log-probabilities and entropies.
pub fn point(tokens: usize) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let logits = normal::<f64>(99, tokens * WORDS);
    let (logps, entropies) = head(&logits, TEMPERATURE);
    (logits, logps, entropies)
}

/// Checks a loss's gradient at [`point`], taken through the lm head, against the slope of its value, and checks that a
/// wrong gradient is detected. Returns the gradient with respect to the logits.
pub fn verify(name: &str, tokens: usize, gradient: Gradient<'_>, value: Value<'_>) -> Vec<f64> {
    let (logits, frozen, entropies) = point(tokens);
    let (d_logps, d_entropies) = gradient(&frozen, &entropies);
    let gradient = head_backward(&logits, TEMPERATURE, &d_logps, &d_entropies);
    let through = |logits: &[f64]| {
        let (logps, entropies) = head(logits, TEMPERATURE);
        value(&logps, &entropies, &frozen)
    };
    let error = directional_error(&logits, &gradient, through);
    assert!(error < 1e-7, "{name}: {error}");
    let mut spoiled = gradient.clone();
    spoiled[3] += 1e-3 * gradient.iter().map(|g| g * g).sum::<f64>().sqrt().max(1.0);
    assert!(directional_error(&logits, &spoiled, through) > 1e-5, "{name}");
    gradient
}

fn check(
    case: &Case,
    name: &str,
    normalizer: &Normalizer,
    objective: Objective<'_>,
    value: &dyn Fn(&[f64], &[f64]) -> f64,
) {
    let gradient = |logps: &[f64], entropies: &[f64]| {
        let (_, d_logps, d_entropies) = evaluate(case, normalizer, objective, logps, entropies);
        (d_logps, d_entropies)
    };
    let with_bonus = |logps: &[f64], entropies: &[f64], frozen: &[f64]| {
        let kept: Vec<f64> = entropies.iter().zip(case.masks.concat()).filter(|(_, m)| *m).map(|(h, _)| *h).collect();
        value(logps, frozen) - normalizer.entropy_coef * kept.iter().sum::<f64>() / kept.len() as f64
    };
    verify(name, case.masks.concat().len(), &gradient, &with_bonus);
}

#[test]
fn gradients_of_policy_losses_through_the_logits_are_right() {
    let mut case = case();
    // The old policy and the reference are close to the softmax's own log-probabilities, so that ratios are inside and
    // outside the clip range.
    let near =
        |(i, m): (usize, &Vec<bool>)| normal::<f64>(70 + i as u64, m.len()).iter().map(|x| -2.0 + 0.5 * x).collect();
    case.old = case.masks.iter().enumerate().map(near).collect();
    case.reference = case.old.iter().map(|row| row.iter().map(|x| x - 0.1).collect()).collect();
    let normalizer = Normalizer { entropy_coef: 0.3, ..case.normalizer() };
    for (_, loss_type) in LossType::NAMES {
        for importance_sampling_level in LEVELS {
            let base = LossConfig { loss_type, importance_sampling_level, beta: 0.2, ..LossConfig::default() };
            let config = LossConfig { epsilon_high: Some(1.5), ..base };
            let objective =
                |case: &Case, normalizer: &Normalizer, logps: &[f64], d: &mut [f64], sums: &mut LossSums| {
                    let (own, gradient) = case.evaluate_with(&config, normalizer, logps);
                    d.copy_from_slice(&gradient);
                    *sums = own;
                };
            let value = |x: &[f64], frozen: &[f64]| oracle::loss(&case, &config, &normalizer, x, frozen);
            check(&case, &format!("{config:?}"), &normalizer, &objective, &value);
        }
    }
}

#[test]
fn the_gradient_of_rloo_through_the_logits_is_right() {
    let mut case = case();
    let near = |m: &Vec<bool>| vec![-2.2; m.len()];
    case.old = case.masks.iter().map(near).collect();
    let normalizer = Normalizer { entropy_coef: 0.1, ..case.normalizer() };
    let config = RlooConfig { epsilon_high: Some(0.5), ..RlooConfig::default() };
    let objective = |case: &Case, normalizer: &Normalizer, logps: &[f64], d: &mut [f64], sums: &mut LossSums| {
        family::each(case, logps, d, |sequence, d| rloo(&config, normalizer, sequence, d, sums));
    };
    let value = |x: &[f64], _: &[f64]| family::rloo_value(&case, &config, x);
    check(&case, "rloo", &normalizer, &objective, &value);
}
