//! Tests of the losses of preference pairs: gradients in f64, and edge cases computed by hand.

use super::*;
use kernels::check::{directional_error, normal};

pub(in crate::loss) const ALL: [DpoLoss; 12] = [
    DpoLoss::Sigmoid,
    DpoLoss::Hinge,
    DpoLoss::Ipo,
    DpoLoss::ExoPair,
    DpoLoss::NcaPair,
    DpoLoss::Robust,
    DpoLoss::BcoPair,
    DpoLoss::SppoHard,
    DpoLoss::ApoZero,
    DpoLoss::ApoDown,
    DpoLoss::Discopop,
    DpoLoss::SigmoidNorm,
];

fn config(loss_type: DpoLoss) -> DpoConfig {
    DpoConfig { beta: 0.3, loss_type, label_smoothing: 0.1, discopop_tau: 0.5 }
}

/// Evaluates J and its gradient on three pairs of 5 and 3, 1 and 7, and 4 and 4 tokens. Some tokens are not in the
/// loss.
fn evaluate(config: &DpoConfig, flat: &[f64]) -> (LossSums, Vec<f64>) {
    let reference: Vec<f64> = normal::<f64>(5, flat.len()).iter().map(|x| 0.7 * x - 2.0).collect();
    let (mut sums, mut gradient, mut rest, mut start) = (LossSums::default(), vec![f64::NAN; flat.len()], 0, 0);
    for [c, r] in [[5, 3], [1, 7], [4, 4]] {
        let masks = [c, r].map(|n| (0..n).map(|t| t % 4 != 2).collect::<Vec<bool>>());
        let ranges = [start..start + c, start + c..start + c + r];
        let answers = [0, 1].map(|k| Answer {
            logps: &flat[ranges[k].clone()],
            ref_logps: &reference[ranges[k].clone()],
            mask: &masks[k],
        });
        let (chosen, rejected) = gradient[start..start + c + r].split_at_mut(c);
        dpo(config, 3, [&answers[0], &answers[1]], [chosen, rejected], &mut sums);
        rest += masks.concat().iter().filter(|m| **m).count();
        start += c + r;
    }
    assert_eq!(sums.tokens, rest as u64);
    (sums, gradient)
}

fn point() -> Vec<f64> {
    normal::<f64>(3, 24).iter().map(|x| x - 2.0).collect()
}

#[test]
fn gradients_match_numeric_derivatives() {
    for loss in ALL {
        let (x, config) = (point(), config(loss));
        let value = |x: &[f64]| evaluate(&config, x).0.loss;
        let error = directional_error(&x, &evaluate(&config, &x).1, value);
        assert!(error <= 1e-7, "{loss:?}: {error}");
        let mut spoiled = evaluate(&config, &x).1;
        spoiled[0] += 0.01;
        assert!(directional_error(&x, &spoiled, value) > 1e-5, "{loss:?}");
    }
}

fn one(config: &DpoConfig, chosen: f64, rejected: f64) -> PairLoss {
    let answer = |x| Answer { logps: x, ref_logps: &[0.0], mask: &[true] };
    let (c, r) = ([chosen], [rejected]);
    pair(config, [&answer(&c), &answer(&r)])
}

#[test]
fn dpo_losses_match_hand_computed_values() {
    let plain = |loss_type| DpoConfig { beta: 0.5, loss_type, label_smoothing: 0.2, discopop_tau: 0.5 };
    // At the reference model every sigmoid is ½, and a tie does not count as correct.
    for (loss, value, slope) in [
        (DpoLoss::Sigmoid, 2f64.ln(), -0.25),
        (DpoLoss::SigmoidNorm, 2f64.ln(), -0.25),
        (DpoLoss::Robust, 2f64.ln(), -0.25 / 0.6),
        (DpoLoss::Hinge, 1.0, -0.5),
        (DpoLoss::Ipo, 1.0, -2.0),
    ] {
        let got = one(&plain(loss), -1.5, -1.5);
        assert!((got.value - value).abs() < 1e-15 && (got.d_chosen - slope).abs() < 1e-15, "{loss:?}: {got:?}");
        assert_eq!((got.d_rejected, got.rewards, got.metrics()[2].1), (-got.d_chosen, [-0.75; 2], 0.0));
    }
    // Losses that depend on more than the difference: ∂φ/∂ρ_c and ∂φ/∂ρ_r at the reference model.
    for (loss, value, chosen, rejected) in [
        (DpoLoss::NcaPair, 2.0 * 2f64.ln(), -0.125, 0.125),
        (DpoLoss::BcoPair, 2.0 * 2f64.ln(), -0.25, 0.25),
        (DpoLoss::SppoHard, 2.0, -2.0, 2.0),
        (DpoLoss::ApoZero, 1.0, -0.125, 0.125),
        (DpoLoss::ApoDown, 1.0, 0.0, 0.125),
    ] {
        let got = one(&plain(loss), 0.0, 0.0);
        assert!((got.value - value).abs() < 1e-15, "{loss:?}: {got:?}");
        assert_eq!((got.d_chosen, got.d_rejected), (chosen, rejected), "{loss:?}");
    }
    // EXO's loss is smallest if the policy's preference equals that of the data: x = log((1 − ε)/ε).
    let least = one(&plain(DpoLoss::ExoPair), 2.0 * 4f64.ln(), 0.0);
    assert!(least.value.abs() < 1e-15 && least.d_chosen.abs() < 1e-15, "{least:?}");
    // A blend of log 2 and 1. Far to the right φ is e^{−x}, far to the left −log σ(x).
    let blend = one(&plain(DpoLoss::Discopop), 1.0, 1.0);
    assert!((blend.value - 0.5 * (1.0 + 2f64.ln())).abs() < 1e-15, "{blend:?}");
    assert!((one(&plain(DpoLoss::Discopop), 40.0, 0.0).value - (-20f64).exp()).abs() < 1e-15);
    let wrong = one(&plain(DpoLoss::Discopop), -2000.0, 2000.0);
    assert_eq!((wrong.value, wrong.d_chosen), (2000.0, -0.5));
    // Beyond the hinge the gradient is 0. IPO reduces a difference that is too large.
    assert_eq!(
        (one(&plain(DpoLoss::Hinge), 3.0, 0.5).value, one(&plain(DpoLoss::Hinge), 3.0, 0.5).d_chosen),
        (0.0, 0.0)
    );
    assert_eq!((one(&plain(DpoLoss::Ipo), 3.0, 0.5).value, one(&plain(DpoLoss::Ipo), 3.0, 0.5).d_chosen), (2.25, 3.0));
    // Extreme log-ratios do not overflow.
    let far = one(&plain(DpoLoss::Sigmoid), -2000.0, 2000.0);
    assert_eq!((far.value, far.d_chosen), (2000.0, -0.5));
    assert_eq!(one(&plain(DpoLoss::Sigmoid), 2000.0, -2000.0).value, 0.0);
}

#[test]
fn an_answer_without_a_token_in_the_loss_has_log_ratio_zero() {
    for loss in ALL {
        let empty = Answer { logps: &[f64::NAN], ref_logps: &[f64::NAN], mask: &[false] };
        let (mut c, mut r, mut sums) = ([1.0], [1.0], LossSums::default());
        dpo(&config(loss), 1, [&empty, &empty], [&mut c, &mut r], &mut sums);
        assert!(sums.loss.is_finite() && sums.tokens == 0, "{loss:?}");
        assert_eq!((c, r), ([0.0], [0.0]));
    }
}

#[test]
fn every_dpo_loss_is_finite_far_from_the_reference() {
    for loss in ALL {
        for (chosen, rejected) in [(3000.0, -3000.0), (-3000.0, 3000.0), (3000.0, 3000.0), (-3000.0, -3000.0)] {
            let got = one(&config(loss), chosen, rejected);
            let all = [got.value, got.d_chosen, got.d_rejected];
            assert!(all.iter().all(|x| x.is_finite()), "{loss:?} {chosen} {rejected}: {got:?}");
        }
    }
}

#[test]
fn a_nan_log_ratio_makes_every_dpo_loss_nan() {
    for loss in ALL {
        let got = one(&config(loss), f64::NAN, 0.0);
        assert!(got.value.is_nan() && got.rewards[0].is_nan() && got.metrics()[2].1 == 0.0, "{loss:?}: {got:?}");
    }
}
