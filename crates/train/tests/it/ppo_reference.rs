//! Compares PPO's rewards, advantages, losses, gradients and metrics with `conformance/ppo_reference.py`, a slow
//! reference in f64.

use kernels::check::relative_error;
use serde_json::Value;
use train::Advantage;
use train::gae::{self, KlEstimator};
use train::loss::ppo::{self, Actions, PpoConfig, States, ValueConfig};
use train::loss::{LossSums, Normalizer};

/// Tolerance for f32 inputs of the losses (advantages, returns); everything else is f64 on both sides.
const TOLERANCE: f64 = 1e-6;

type Rows<T> = Vec<Vec<T>>;

fn get<T: serde::de::DeserializeOwned>(json: &Value) -> T {
    serde_json::from_value(json.clone()).expect("fixture")
}

fn rows_close(got: &Rows<f64>, expected: &Value, what: &str) {
    let error = relative_error(&got.concat(), &get::<Rows<f64>>(expected).concat());
    assert!(error <= TOLERANCE, "{what}: {error}");
}

fn close(got: f64, expected: &Value, what: &str) {
    let expected = expected.as_f64().unwrap_or_else(|| panic!("the reference lacks {what}"));
    assert!((got - expected).abs() <= TOLERANCE * expected.abs().max(1e-3), "{what}: {got}, reference {expected}");
}

fn narrow(rows: &Rows<f64>) -> Rows<f32> {
    rows.iter().map(|row| row.iter().map(|&x| x as f32).collect()).collect()
}

#[test]
fn all_ppo_quantities_match_the_reference() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/ppo/cases.json");
    let fixture: Value = serde_json::from_str(&std::fs::read_to_string(path).expect("fixture")).expect("fixture");
    let inputs = &fixture["inputs"];
    let rows = |name: &str| get::<Rows<f64>>(&inputs[name]);
    let masks: Rows<bool> = get(&inputs["masks"]);
    let scores: Vec<f64> = get(&inputs["scores"]);
    let (old_logps, ref_logps) = (rows("old_logps"), rows("ref_logps"));
    let (logps, entropies, old_values, values) = (rows("logps"), rows("entropies"), rows("old_values"), rows("values"));
    let n = masks.len();
    let normalizer = Normalizer::of(&masks);
    let cases = fixture["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 6);
    for case in cases {
        let c = &case["config"];
        let number = |name: &str| c[name].as_f64().expect("a number");
        let estimator: KlEstimator = get(&c["kl_estimator"]);

        let kl: Rows<f64> = narrow(&old_logps)
            .iter()
            .zip(&narrow(&ref_logps))
            .zip(&masks)
            .map(|((old, reference), mask)| gae::kl(estimator, old, reference, mask))
            .collect();
        rows_close(&kl, &case["kl"], "kl");
        let token_rewards = |i: usize| gae::token_rewards(number("kl_coef"), &kl[i], scores[i], &masks[i]);
        let mut rewards: Rows<f64> = (0..n).map(token_rewards).collect();
        if c["whiten_rewards"] == true {
            gae::whiten(&mut rewards, &masks, false);
        }
        rows_close(&rewards, &case["rewards"], "rewards");
        let estimate = |i: usize| gae::estimate(number("gamma"), number("lam"), &rewards[i], &old_values[i], &masks[i]);
        let (mut advantages, returns): (Rows<f64>, Rows<f64>) =
            (0..n).map(estimate).map(|e| (e.advantages, e.returns)).unzip();
        gae::whiten(&mut advantages, &masks, true);
        rows_close(&advantages, &case["advantages"], "advantages");
        rows_close(&returns, &case["returns"], "returns");
        let explained = gae::explained_variance(&returns, &old_values, &masks).expect("the returns must vary");
        close(explained, &case["metrics"]["val/explained_variance"], "explained variance");

        let policy = PpoConfig { cliprange: number("cliprange"), entropy_coef: number("entropy_coef") };
        let value = ValueConfig { cliprange_value: number("cliprange_value"), vf_coef: number("vf_coef") };
        let advantages: Vec<Advantage> = narrow(&advantages).into_iter().map(Advantage::Tokens).collect();
        let returns: Rows<f64> = narrow(&returns).iter().map(|r| r.iter().map(|&x| f64::from(x)).collect()).collect();
        let zeros = || -> Rows<f64> { masks.iter().map(|m| vec![f64::NAN; m.len()]).collect() };
        let (mut d_logps, mut d_entropies, mut d_values) = (zeros(), zeros(), zeros());
        let (mut policy_sums, mut value_sums) = (LossSums::default(), LossSums::default());
        for i in 0..n {
            let actions = Actions {
                logps: &logps[i],
                old_logps: &old_logps[i],
                entropies: &entropies[i],
                mask: &masks[i],
                advantage: &advantages[i],
            };
            ppo::policy(&policy, &normalizer, &actions, &mut d_logps[i], &mut d_entropies[i], &mut policy_sums);
            let states =
                States { values: &values[i], old_values: &old_values[i], returns: &returns[i], mask: &masks[i] };
            ppo::value(&value, &normalizer, &states, &mut d_values[i], &mut value_sums);
        }
        close(policy_sums.loss, &case["policy_loss"], "policy loss");
        close(value_sums.loss, &case["value_loss"], "value loss");
        rows_close(&d_logps, &case["d_logps"], "d_logps");
        rows_close(&d_entropies, &case["d_entropies"], "d_entropies");
        rows_close(&d_values, &case["d_values"], "d_values");
        let means: Vec<(&str, f64)> = policy_sums.means.entries().chain(value_sums.means.entries()).collect();
        assert_eq!(means.len(), 7);
        for (name, mean) in means {
            close(mean, &case["metrics"][name], name);
        }
        let kl_per_completion = kl.iter().flatten().sum::<f64>() / n as f64;
        close(kl_per_completion, &case["metrics"]["objective/kl"], "objective/kl");
    }
}
