use super::*;
use kernels::check::normal;

fn close(got: &[f64], expected: &[f64]) {
    assert_eq!(got.len(), expected.len());
    for (g, e) in got.iter().zip(expected) {
        assert!((g - e).abs() < 1e-12, "{got:?} {expected:?}");
    }
}

#[test]
fn gae_of_three_tokens_matches_hand_computed_values() {
    // γ = 0.9, λ = 0.5: δ₂ = 1 − 0.4 = 0.6, δ₁ = 0.5 + 0.36 − 0.3 = 0.56, δ₀ = −0.1 + 0.27 − 0.2 = −0.03.
    let e = estimate(0.9, 0.5, &[-0.1, 0.5, 1.0], &[0.2, 0.3, 0.4], &[true; 3]);
    close(&e.advantages, &[-0.03 + 0.45 * (0.56 + 0.45 * 0.6), 0.56 + 0.45 * 0.6, 0.6]);
    close(&e.advantages, &[0.3435, 0.83, 0.6]);
    close(&e.returns, &[0.5435, 1.13, 1.0]);
}

#[test]
fn lambda_1_gives_monte_carlo_returns_and_lambda_0_one_step_errors() {
    let (n, gamma) = (7, 0.93);
    let (rewards, values) = (normal::<f64>(1, n), normal::<f64>(2, n));
    let after = |t: usize| if t + 1 < n { values[t + 1] } else { 0.0 };
    let monte_carlo =
        |gamma: f64, t: usize| -> f64 { rewards[t..].iter().enumerate().map(|(k, r)| gamma.powi(k as i32) * r).sum() };
    for gamma in [1.0, gamma] {
        let e = estimate(gamma, 1.0, &rewards, &values, &vec![true; n]);
        close(&e.returns, &(0..n).map(|t| monte_carlo(gamma, t)).collect::<Vec<_>>());
        close(&e.advantages, &(0..n).map(|t| monte_carlo(gamma, t) - values[t]).collect::<Vec<_>>());
    }
    let e = estimate(gamma, 0.0, &rewards, &values, &vec![true; n]);
    close(&e.advantages, &(0..n).map(|t| rewards[t] + gamma * after(t) - values[t]).collect::<Vec<_>>());
    // With γ = 0, a token's return is its own reward.
    close(&estimate(0.0, 0.7, &rewards, &values, &vec![true; n]).returns, &rewards);
}

#[test]
fn tokens_outside_the_mask_are_skipped() {
    let inside = estimate(0.9, 0.8, &[0.1, 0.2, 1.0], &[0.5, -0.5, 0.3], &[true; 3]);
    let (x, mask) = (f64::NAN, [false, true, true, false, true, false]);
    let e = estimate(0.9, 0.8, &[x, 0.1, 0.2, x, 1.0, x], &[x, 0.5, -0.5, x, 0.3, x], &mask);
    let pick = |row: &[f64]| [row[1], row[2], row[4]];
    assert_eq!((pick(&e.advantages).to_vec(), pick(&e.returns).to_vec()), (inside.advantages, inside.returns));
    assert!([0, 3, 5].iter().all(|&t| e.advantages[t] == 0.0 && e.returns[t] == 0.0));
    assert_eq!(estimate(1.0, 1.0, &[x], &[x], &[false]).advantages, [0.0]);
    assert_eq!(estimate(1.0, 1.0, &[], &[], &[]), Estimates::default());
}

#[test]
fn the_score_goes_to_the_last_token_and_the_kl_to_each() {
    let (logps, reference, mask) =
        ([-1.0f32, -2.0, f32::NAN, -0.5], [-1.5f32, -1.0, 0.0, -0.5], [true, true, false, true]);
    let k1 = kl(KlEstimator::K1, &logps, &reference, &mask);
    close(&k1, &[0.5, -1.0, 0.0, 0.0]);
    close(&token_rewards(0.1, &k1, 2.0, &mask), &[-0.05, 0.1, 0.0, 2.0]);
    let k3 = kl(KlEstimator::K3, &logps, &reference, &mask);
    close(&k3, &[(-0.5f64).exp() - 0.5, 1f64.exp() - 2.0, 0.0, 0.0]);
    // The completion was truncated before a token outside the mask, so the score goes to the last sampled token.
    close(&token_rewards(0.0, &[1.0, 1.0], 3.0, &[true, false]), &[3.0, 0.0]);
    assert!(token_rewards(0.1, &[], 3.0, &[]).is_empty());
    close(&token_rewards(0.1, &[1.0], 3.0, &[false]), &[0.0]);
    assert!(token_rewards(0.1, &[0.0], f64::NAN, &[true])[0].is_nan());
}

#[test]
fn whitened_tokens_have_variance_1() {
    let masks = vec![vec![true, false, true], vec![], vec![true, true]];
    let rows = vec![vec![1.0, f64::NAN, 2.0], vec![], vec![3.0, 6.0]];
    // The values have mean 3 and squared deviations 4 + 1 + 0 + 9, so their variance is 14 / 3.
    let scale = 1.0 / (14.0f64 / 3.0 + 1e-8).sqrt();
    let mut shifted = rows.clone();
    whiten(&mut shifted, &masks, true);
    close(&[shifted[0][0], shifted[0][2]], &[-2.0 * scale, -scale]);
    close(&shifted[2], &[0.0, 3.0 * scale]);
    assert!(shifted[0][1].is_nan());
    let mut kept_mean = rows.clone();
    whiten(&mut kept_mean, &masks, false);
    close(&kept_mean[2], &[3.0, 3.0 + 3.0 * scale]);
    // Equal values become 0, not NaN. A single value is not changed.
    let mut equal = vec![vec![5.0, 5.0]];
    whiten(&mut equal, &[vec![true; 2]], true);
    assert_eq!(equal, [[0.0, 0.0]]);
    let mut single = vec![vec![5.0]];
    whiten(&mut single, &[vec![true]], true);
    assert_eq!(single, [[5.0]]);
}

#[test]
fn explained_variance_matches_known_values() {
    let (returns, masks) = (vec![vec![1.0, 2.0], vec![3.0, 99.0]], vec![vec![true, true], vec![true, false]]);
    let of = |values: [f64; 4]| explained_variance(&returns, &[values[..2].to_vec(), values[2..].to_vec()], &masks);
    assert_eq!(of([1.0, 2.0, 3.0, f64::NAN]), Some(1.0));
    assert_eq!(of([7.0, 7.0, 7.0, 0.0]), Some(0.0));
    assert_eq!(of([3.0, 2.0, 1.0, 0.0]), Some(-3.0));
    assert_eq!(explained_variance(&[vec![2.0, 2.0]], &[vec![0.0, 1.0]], &[vec![true; 2]]), None);
    assert_eq!(explained_variance(&[], &[], &[]), None);
}

#[test]
fn the_adaptive_beta_follows_the_kl() {
    let target = KlTarget { target: 6.0, horizon: 1000.0 };
    let after = |kl| {
        let mut controller = KlController { kl_coef: 0.2 };
        controller.update(&target, kl, 100);
        controller.kl_coef
    };
    close(&[after(6.0), after(6.6), after(600.0), after(0.0)], &[0.2, 0.2 * 1.01, 0.2 * 1.02, 0.2 * 0.98]);
    assert_eq!(after(f64::NAN), 0.2);
}

#[test]
fn step_rewards_match_hand_computed_values() {
    use crate::{Sample, StepRewards};
    use model::Columns;
    use model::columns::{REF_LOGPS, SAMPLER_LOGPS};
    let prompt = model::Prompt::new([1]);
    let sample = |logps: [f32; 3], reference: [f32; 3]| Sample {
        columns: Columns::of([(SAMPLER_LOGPS, logps.to_vec()), (REF_LOGPS, reference.to_vec())]),
        ..Sample::supervised(prompt.clone(), vec![7, 8, 9])
    };
    let samples = [sample([-1.0; 3], [-1.5, -1.0, -0.5]), sample([-1.0; 3], [-1.0; 3])];
    // One step ends at the first token and one at the second; −0.25 is the reward of the whole completion.
    let steps = [Some(StepRewards { steps: vec![(0, 1.0), (1, 0.5)], at_end: Some(-0.25) }), None];
    let scores = [Some(1.25), Some(2.0)];
    let placed = rewards_of_samples(KlEstimator::K1, 0.1, &samples, &scores, &steps);
    // k₁ = 0.5, 0, −0.5.
    close(&placed.rewards[0], &[1.0 - 0.05, 0.5, -0.25 + 0.05]);
    close(&placed.rewards[1], &[0.0, 0.0, 2.0]);
    // γ = 1, λ = 0.5, V = 0.5, 0.25, 0: δ = 0.7, 0.25, −0.2; A₂ = −0.2, A₁ = 0.25 − 0.1, A₀ = 0.7 + 0.075.
    let e = estimate(1.0, 0.5, &placed.rewards[0], &[0.5, 0.25, 0.0], &[true; 3]);
    close(&e.advantages, &[0.775, 0.15, -0.2]);
    close(&e.returns, &[1.275, 0.4, -0.2]);
    let metric = |name: &str| placed.metrics.iter().find(|(n, _)| *n == name).unwrap().1;
    close(&[metric("objective/scores")], &[(1.25 + 2.0) / 2.0]);
    // The same total reward, given as one number, goes to the last token.
    let whole = rewards_of_samples(KlEstimator::K1, 0.1, &samples, &scores, &[]);
    close(&whole.rewards[0], &[-0.05, 0.0, 1.25 + 0.05]);
}
