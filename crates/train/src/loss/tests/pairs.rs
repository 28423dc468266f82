//! Tests of edge cases of the losses on pairs and scores: DPO through the logits, the value loss and Bradley–Terry
//! through the score head.

use super::*;
use crate::loss::bradley_terry::{RankingConfig, ranking};
use crate::loss::dpo::tests::ALL as DPO;
use crate::loss::dpo::{Answer, DpoConfig, DpoLoss, dpo};
use crate::loss::ppo::{self, States, ValueConfig};

/// The numbers of tokens of the chosen and the rejected answer of each pair.
const PAIRS: [[usize; 2]; 3] = [[5, 3], [1, 7], [4, 4]];

/// The token ranges of the chosen and the rejected answer of each pair.
fn places(pairs: &[[usize; 2]]) -> Vec<[std::ops::Range<usize>; 2]> {
    let mut start = 0;
    let mut next = |n: usize| {
        start += n;
        start - n..start
    };
    pairs.iter().map(|&[c, r]| [next(c), next(r)]).collect()
}

/// Evaluates DPO's J from its definition.
fn dpo_value(config: &DpoConfig, pairs: &[[usize; 2]], reference: &[f64], mask: &[bool], x: &[f64]) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let mut sum = 0.0;
    for places in places(pairs) {
        let [(c, nc), (r, nr)] = places.map(|range| {
            let kept: Vec<usize> = range.filter(|&t| mask[t]).collect();
            (kept.iter().map(|&t| x[t] - reference[t]).sum::<f64>(), kept.len().max(1) as f64)
        });
        let (beta, e) = (config.beta, config.label_smoothing);
        sum += match config.loss_type {
            DpoLoss::Sigmoid => -sigmoid(beta * (c - r)).ln(),
            DpoLoss::Hinge => (1.0 - beta * (c - r)).max(0.0),
            DpoLoss::Ipo => (c / nc - r / nr - 0.5 / beta).powi(2),
            DpoLoss::Robust => {
                let x = beta * (c - r);
                -((1.0 - e) * sigmoid(x).ln() - e * sigmoid(-x).ln()) / (1.0 - 2.0 * e)
            }
            DpoLoss::SigmoidNorm => -sigmoid(beta * (c / nc - r / nr)).ln(),
            DpoLoss::ExoPair => {
                let q = sigmoid(beta * (c - r));
                q * (q / (1.0 - e)).ln() + (1.0 - q) * ((1.0 - q) / e).ln()
            }
            DpoLoss::NcaPair => {
                let [chosen, rejected] = [sigmoid(beta * c), sigmoid(beta * r)];
                -chosen.ln() - 0.5 * (1.0 - chosen).ln() - 0.5 * (1.0 - rejected).ln()
            }
            DpoLoss::BcoPair => -sigmoid(beta * c).ln() - sigmoid(-beta * r).ln(),
            DpoLoss::SppoHard => (c - 0.5 / beta).powi(2) + (r + 0.5 / beta).powi(2),
            DpoLoss::ApoZero => 1.0 - sigmoid(beta * c) + sigmoid(beta * r),
            DpoLoss::ApoDown => sigmoid(beta * c) + 1.0 - sigmoid(beta * (c - r)),
            DpoLoss::Discopop => {
                let x = beta * (c - r);
                let m = sigmoid(x / config.discopop_tau);
                -(1.0 - m) * sigmoid(x).ln() + m * (-x).exp()
            }
        };
    }
    sum / pairs.len() as f64
}

/// The gradient of DPO with respect to log-probabilities.
fn dpo_gradient(
    config: &DpoConfig,
    pairs: &[[usize; 2]],
    reference: &[f64],
    mask: &[bool],
    x: &[f64],
) -> (f64, Vec<f64>) {
    let (mut sums, mut gradient) = (LossSums::default(), vec![f64::NAN; x.len()]);
    for [c, r] in places(pairs) {
        let answer = |range: &std::ops::Range<usize>| Answer {
            logps: &x[range.clone()],
            ref_logps: &reference[range.clone()],
            mask: &mask[range.clone()],
        };
        let (chosen, rejected) = gradient[c.start..r.end].split_at_mut(c.len());
        dpo(config, pairs.len(), [&answer(&c), &answer(&r)], [chosen, rejected], &mut sums);
    }
    (sums.loss, gradient)
}

#[test]
fn gradients_of_dpo_losses_through_the_logits_are_right() {
    for pairs in [&PAIRS[..], &PAIRS[..1]] {
        let tokens = pairs.iter().flatten().sum();
        let (_, at, _) = logits::point(tokens);
        let all = vec![true; tokens];
        let some: Vec<bool> = (0..tokens).map(|t| t % 4 != 2).collect();
        // How far the log-probabilities of the chosen and the rejected answers' tokens are above the reference's:
        // equal, slightly and strongly in the right order, strongly in the wrong order.
        for (chosen, rejected) in [(0.0, 0.0), (0.3, -0.2), (2.5, -2.5), (-2.5, 2.5)] {
            let mut reference = at.clone();
            for [c, r] in places(pairs) {
                reference[c].iter_mut().for_each(|x| *x -= chosen);
                reference[r].iter_mut().for_each(|x| *x -= rejected);
            }
            for loss_type in DPO {
                let config = DpoConfig { beta: 0.3, loss_type, label_smoothing: 0.1, discopop_tau: 0.5 };
                for (kind, mask) in [("all", &all), ("some", &some), ("none", &vec![false; tokens])] {
                    let name = format!("{loss_type:?} {chosen} {rejected} {kind} tokens, {} pairs", pairs.len());
                    let gradient = |x: &[f64], _: &[f64]| {
                        let (_, gradient) = dpo_gradient(&config, pairs, &reference, mask, x);
                        (gradient, vec![0.0; tokens])
                    };
                    let value = |x: &[f64], _: &[f64], _: &[f64]| dpo_value(&config, pairs, &reference, mask, x);
                    let gradient = logits::verify(&name, tokens, &gradient, &value);
                    let (got, plain) = (dpo_gradient(&config, pairs, &reference, mask, &at).0, value(&at, &at, &at));
                    assert!((got - plain).abs() < 1e-12 * plain.max(1.0), "{name}: {got} {plain}");
                    // Beyond the hinge, and if no token is in the loss, the gradient is 0.
                    let beyond = loss_type == DpoLoss::Hinge && chosen == 2.5;
                    let zero = gradient.iter().all(|&g| g == 0.0);
                    assert_eq!(zero, kind == "none" || beyond, "{name}");
                }
            }
        }
    }
}

/// The backward pass of scores: from the gradient with respect to each score to that of every h_t and of w, where
/// score_t = w · h_t.
fn through_scores(
    name: &str,
    scores: &[f64],
    gradient: &dyn Fn(&[f64]) -> Vec<f64>,
    value: &dyn Fn(&[f64]) -> f64,
) -> Vec<f64> {
    const HIDDEN: usize = 4;
    let (w, mut h) = (normal::<f64>(7, HIDDEN), normal::<f64>(8, HIDDEN * scores.len()));
    // Set the first feature so that the head gives the requested score.
    for (h, score) in h.chunks_mut(HIDDEN).zip(scores) {
        let rest: f64 = h[1..].iter().zip(&w[1..]).map(|(h, w)| h * w).sum();
        h[0] = (score - rest) / w[0];
    }
    let scores_at = |x: &[f64]| -> Vec<f64> {
        let (w, h) = x.split_at(HIDDEN);
        h.chunks(HIDDEN).map(|h| h.iter().zip(w).map(|(h, w)| h * w).sum()).collect()
    };
    let x = [w.clone(), h.clone()].concat();
    let d = gradient(&scores_at(&x));
    let mut d_x = vec![0.0; x.len()];
    for (t, d) in d.iter().enumerate() {
        for k in 0..HIDDEN {
            d_x[k] += d * h[t * HIDDEN + k];
            d_x[HIDDEN + t * HIDDEN + k] = d * w[k];
        }
    }
    let through = |x: &[f64]| value(&scores_at(x));
    let error = directional_error(&x, &d_x, through);
    assert!(error < 1e-7, "{name}: {error}");
    d_x[1] += 1e-3;
    assert!(directional_error(&x, &d_x, through) > 1e-5, "{name}");
    d
}

#[test]
fn the_gradient_of_the_value_loss_through_the_head_is_right() {
    let n = 6;
    let old = normal::<f64>(20, n);
    let all = vec![true; n];
    let some: Vec<bool> = (0..n).map(|t| t % 3 != 1).collect();
    // `moved` is V − V_old and `target` is R − V. If V has moved far towards R, its clip stops the gradient.
    for (moved, target) in [(0.0, 0.8), (0.5, 0.8), (0.5, -0.8), (-0.5, 0.8), (-0.5, -0.8), (0.1, -0.4), (0.0, 0.0)] {
        let values: Vec<f64> = old.iter().map(|v| v + moved).collect();
        let returns: Vec<f64> = values.iter().map(|v| v + target).collect();
        for (kind, mask) in [("all", &all), ("some", &some), ("none", &vec![false; n])] {
            let config = ValueConfig { cliprange_value: 0.2, vf_coef: 0.7 };
            let normalizer = Normalizer::of(std::slice::from_ref(mask));
            let run = |values: &[f64]| {
                let (mut sums, mut d) = (LossSums::default(), vec![f64::NAN; n]);
                let states = States { values, old_values: &old, returns: &returns, mask };
                ppo::value(&config, &normalizer, &states, &mut d, &mut sums);
                (sums.loss, d)
            };
            let plain = |values: &[f64]| {
                let term = |t: usize| {
                    let (v, r) = (values[t], returns[t]);
                    let near = v.max(old[t] - 0.2).min(old[t] + 0.2);
                    0.5 * (v - r).powi(2).max((near - r).powi(2))
                };
                let kept = (0..n).filter(|&t| mask[t]);
                0.7 * kept.clone().map(term).sum::<f64>() / kept.count().max(1) as f64
            };
            let name = format!("V moved by {moved}, R − V {target}, {kind} tokens");
            assert!((run(&values).0 - plain(&values)).abs() < 1e-12, "{name}");
            if target == 0.0 {
                assert!(run(&values).1.iter().all(|&d| d == 0.0), "{name}");
                continue;
            }
            let d = through_scores(&name, &values, &|v| run(v).1, &plain);
            // The gradient is stopped if V has moved out of the range towards R, since the clipped error is then
            // larger.
            let held = moved * target > 0.0 && f64::abs(moved) > 0.2;
            assert_eq!(d.iter().all(|&d| d.abs() < 1e-15), held || kind == "none", "{name}: {d:?}");
        }
    }
}

#[test]
fn the_gradient_of_the_ranking_loss_through_the_head_is_right() {
    for c in [None, Some(0.05), Some(0.7)] {
        let config = RankingConfig { center_rewards_coefficient: c };
        // Scores with a tie, and with small and large differences of either sign; a single pair; margins on both sides
        // of the difference.
        for scores in [&[0.3, 0.3][..], &[2.0, -1.0, -0.5, 1.5, 0.2, 0.1], &[9.0, -9.0], &[-9.0, 9.0]] {
            for margin in [0.0, 0.5, 12.0] {
                let pairs = scores.len() / 2;
                let run = |scores: &[f64]| {
                    let mut sums = LossSums::default();
                    let each = scores.chunks(2).map(|s| ranking(&config, pairs, [s[0], s[1]], margin, &mut sums));
                    let d: Vec<f64> = each.collect::<Vec<_>>().concat();
                    (sums.loss, d)
                };
                let plain = |scores: &[f64]| {
                    let pair = |s: &[f64]| {
                        let p = 1.0 / (1.0 + (-(s[0] - s[1] - margin)).exp());
                        -p.ln() + c.unwrap_or(0.0) * (s[0] + s[1]).powi(2)
                    };
                    scores.chunks(2).map(pair).sum::<f64>() / pairs as f64
                };
                let name = format!("{c:?} {scores:?} margin {margin}");
                let (got, expected) = (run(scores).0, plain(scores));
                assert!((got - expected).abs() < 1e-9 * expected.max(1.0), "{name}: {got} {expected}");
                // The plain formula loses the digits of 1 − σ(18), so this case is left out of the slope check.
                if scores[0] - scores[1] - margin < 10.0 {
                    through_scores(&name, scores, &|s| run(s).1, &plain);
                }
            }
        }
        let mut sums = LossSums::default();
        assert!(ranking(&config, 1, [f64::NAN, 0.0], 0.0, &mut sums)[0].is_nan() && sums.loss.is_nan());
    }
}
