use super::*;
use kernels::check::{directional_error, normal};

/// Three completions, the second without a token in the loss, with ratios and values inside and outside the clip
/// ranges.
struct Case {
    masks: [Vec<bool>; 3],
    advantages: [Advantage; 3],
    old_logps: Vec<f64>,
    logps_and_entropies: Vec<f64>,
    old_values: Vec<f64>,
    returns: Vec<f64>,
    values: Vec<f64>,
}

const LENGTHS: [usize; 3] = [9, 3, 7];
const ALL: usize = 19;

fn case() -> Case {
    let old_logps: Vec<f64> = normal::<f64>(1, ALL).iter().map(|x| x - 2.0).collect();
    let logps = old_logps.iter().zip(normal::<f64>(2, ALL)).map(|(l, x)| l + 0.7 * x);
    let entropies = normal::<f64>(3, ALL).into_iter().map(f64::abs);
    let old_values = normal::<f64>(4, ALL);
    let values = old_values.iter().zip(normal::<f64>(5, ALL)).map(|(v, x)| v + 0.4 * x).collect();
    Case {
        masks: [(0..9).map(|t| t % 4 != 2).collect(), vec![false; 3], (0..7).map(|t| t != 3).collect()],
        advantages: LENGTHS.map(|n| Advantage::Tokens(normal(n as u64, n))),
        logps_and_entropies: logps.chain(entropies).collect(),
        returns: old_values.iter().zip(normal::<f64>(6, ALL)).map(|(v, x)| v + x).collect(),
        old_logps,
        old_values,
        values,
    }
}

impl Case {
    fn normalizer(&self) -> Normalizer {
        Normalizer::of(&self.masks)
    }

    /// The policy loss J and its gradient with respect to log-probabilities, then entropies.
    fn policy(&self, config: &PpoConfig, x: &[f64]) -> (LossSums, Vec<f64>) {
        let (mut sums, mut first) = (LossSums::default(), 0);
        let (mut d_logps, mut d_entropies) = (vec![f64::NAN; ALL], vec![f64::NAN; ALL]);
        for (mask, advantage) in self.masks.iter().zip(&self.advantages) {
            let range = first..first + mask.len();
            let actions = Actions {
                logps: &x[range.clone()],
                old_logps: &self.old_logps[range.clone()],
                entropies: &x[ALL..][range.clone()],
                mask,
                advantage,
            };
            let (d_logps, d_entropies) = (&mut d_logps[range.clone()], &mut d_entropies[range.clone()]);
            policy(config, &self.normalizer(), &actions, d_logps, d_entropies, &mut sums);
            first = range.end;
        }
        (sums, [d_logps, d_entropies].concat())
    }

    fn value(&self, config: &ValueConfig, x: &[f64]) -> (LossSums, Vec<f64>) {
        let (mut sums, mut first, mut d_values) = (LossSums::default(), 0, vec![f64::NAN; ALL]);
        for mask in &self.masks {
            let range = first..first + mask.len();
            let states = States {
                values: &x[range.clone()],
                old_values: &self.old_values[range.clone()],
                returns: &self.returns[range.clone()],
                mask,
            };
            value(config, &self.normalizer(), &states, &mut d_values[range.clone()], &mut sums);
            first = range.end;
        }
        (sums, d_values)
    }
}

fn mean(sums: &LossSums, name: &str) -> f64 {
    sums.means.entries().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("no {name}")).1
}

#[test]
fn gradients_match_numeric_derivatives() {
    let case = case();
    for entropy_coef in [0.0, 0.01] {
        let (config, x) = (PpoConfig { cliprange: 0.2, entropy_coef }, &case.logps_and_entropies);
        let (sums, gradient) = case.policy(&config, x);
        let of = |x: &[f64]| case.policy(&config, x).0.loss;
        assert!(directional_error(x, &gradient, of) < 1e-7);
        let clipped = mean(&sums, "policy/clipfrac_avg");
        assert!(
            clipped > 0.0
                && clipped < 1.0
                && sums.clip_ratios().is_some_and(|clip| clip.low_mean > 0.0 && clip.high_mean > 0.0)
        );
        let mut spoiled = gradient;
        spoiled[0] += 1e-3;
        assert!(directional_error(x, &spoiled, of) > 1e-5);
    }
    let config = ValueConfig { cliprange_value: 0.2, vf_coef: 0.7 };
    let (sums, gradient) = case.value(&config, &case.values);
    let of = |x: &[f64]| case.value(&config, x).0.loss;
    assert!(directional_error(&case.values, &gradient, of) < 1e-7);
    let clipped = mean(&sums, "val/clipfrac_avg");
    assert!(clipped > 0.0 && clipped < 1.0);
    assert!((sums.loss - 0.7 * mean(&sums, "loss/value_avg")).abs() < 1e-12);
    let mut spoiled = gradient;
    spoiled[0] += 1e-3;
    assert!(directional_error(&case.values, &spoiled, of) > 1e-5);
}

/// In the first step nothing is clipped: the policy gradient is that of REINFORCE with the value as baseline,
/// −1/N Σ A ∇log π, and the value model does least squares.
#[test]
fn the_first_ppo_step_is_reinforce_with_a_baseline() {
    let mut case = case();
    case.logps_and_entropies[..ALL].copy_from_slice(&case.old_logps);
    case.values = case.old_values.clone();
    let n = case.normalizer().tokens as f64;
    for cliprange in [0.2, 1e9] {
        let (sums, gradient) = case.policy(&PpoConfig { cliprange, entropy_coef: 0.0 }, &case.logps_and_entropies);
        let mut first = 0;
        for (mask, advantage) in case.masks.iter().zip(&case.advantages) {
            for (t, &m) in mask.iter().enumerate() {
                let expected = if m { -f64::from(advantage.at(t)) / n } else { 0.0 };
                assert!((gradient[first + t] - expected).abs() < 1e-15);
            }
            first += mask.len();
        }
        assert!(gradient[ALL..].iter().all(|&g| g == 0.0));
        assert_eq!(
            ["policy/approxkl_avg", "policy/clipfrac_avg", "val/ratio"].map(|m| mean(&sums, m)),
            [0.0, 0.0, 1.0]
        );
    }
    let (_, gradient) = case.value(&ValueConfig { vf_coef: 1.0, ..ValueConfig::default() }, &case.values);
    let masks = case.masks.concat();
    for t in (0..ALL).filter(|&t| masks[t]) {
        assert!((gradient[t] - (case.values[t] - case.returns[t]) / n).abs() < 1e-15);
    }
}

/// The value loss of one token: maps (V, V_old, R) to (loss, gradient, clipped) with ε_V = 0.2 and c_V = 1.
#[test]
fn the_value_loss_is_clipped_on_both_sides() {
    let one = |v: f64, old: f64, target: f64| {
        let (mut sums, mut d) = (LossSums::default(), [f64::NAN]);
        let states = States { values: &[v], old_values: &[old], returns: &[target], mask: &[true] };
        let config = ValueConfig { cliprange_value: 0.2, vf_coef: 1.0 };
        value(&config, &Normalizer { sequences: 1, tokens: 1, ..Normalizer::default() }, &states, &mut d, &mut sums);
        (sums.loss, d[0], mean(&sums, "val/clipfrac_avg"))
    };
    let close = |got: (f64, f64, f64), expected: (f64, f64, f64)| {
        let ok = (got.0 - expected.0).abs() < 1e-12 && (got.1 - expected.1).abs() < 1e-12 && got.2 == expected.2;
        assert!(ok, "{got:?} {expected:?}");
    };
    close(one(1.1, 1.0, 2.0), (0.405, -0.9, 0.0)); // inside the range
    close(one(1.5, 1.0, 2.0), (0.32, 0.0, 1.0)); // above the range, towards R: clipped at 1.2
    close(one(0.5, 1.0, 0.0), (0.32, 0.0, 1.0)); // below the range, towards R: clipped at 0.8
    close(one(0.5, 1.0, 2.0), (1.125, -1.5, 0.0)); // below the range, away from R: not clipped
    close(one(1.0, 1.0, 1.0), (0.0, 0.0, 0.0));
    assert!(one(f64::NAN, 1.0, 1.0).0.is_nan() && one(1.0, 1.0, f64::NAN).0.is_nan());
}

#[test]
fn sequences_without_a_token_in_the_loss_contribute_nothing() {
    let mut case = case();
    case.masks.iter_mut().for_each(|m| m.fill(false));
    case.old_logps.fill(f64::NAN);
    case.returns.fill(f64::NAN);
    let (sums, gradient) =
        case.policy(&PpoConfig { entropy_coef: 0.1, ..PpoConfig::default() }, &case.logps_and_entropies);
    assert!(sums.loss == 0.0 && gradient.iter().all(|&g| g == 0.0) && sums.means.entries().next().is_none());
    let (sums, gradient) = case.value(&ValueConfig::default(), &case.values);
    assert!(sums.loss == 0.0 && gradient.iter().all(|&g| g == 0.0));
}

#[test]
fn a_nan_advantage_makes_the_ppo_loss_nan() {
    let mut case = case();
    case.advantages[0] = Advantage::Sequence(f32::NAN);
    assert!(case.policy(&PpoConfig::default(), &case.logps_and_entropies).0.loss.is_nan());
    case.advantages = [0.0, 0.0, 0.0].map(Advantage::Sequence);
    let (sums, gradient) = case.policy(&PpoConfig::default(), &case.logps_and_entropies);
    assert!(sums.loss == 0.0 && gradient.iter().all(|&g| g == 0.0));
}
