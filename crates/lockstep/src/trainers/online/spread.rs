//! Distributions of a generation's rewards, lengths and log-probabilities: lists for histograms, quantiles for metrics.

use crate::rollouts::Rollouts;
use crate::run::reporter::finite;
use model::columns::{ENTROPIES, SAMPLER_LOGPS};
use train::{Advantage, Advantages};

/// Lists of rewards, lengths, advantages, log-probabilities and entropies in a generation, by name. Log-probabilities
/// and entropies are the sampler's; entropies are missing if they were not recorded.
pub fn distributions(rollouts: &Rollouts, advantages: &Advantages) -> Vec<(String, Vec<f64>)> {
    let completions = || rollouts.completions().map(|c| &c.completion);
    let tokens = |name: &'static str| {
        completions().filter_map(move |c| c.columns.f32(name)).flatten().map(|&x| f64::from(x)).collect::<Vec<f64>>()
    };
    finite([
        ("reward", rollouts.completions().filter_map(|c| rollouts.total(c)).collect()),
        ("length", completions().map(|c| c.ids.len() as f64).collect()),
        ("advantage", advantages.advantages.iter().filter_map(Advantage::mean).collect()),
        ("logprob", tokens(SAMPLER_LOGPS)),
        ("entropy", tokens(ENTROPIES)),
    ])
}

/// The 10th, 50th and 90th percentile of each distribution, except of advantages, whose spread is fixed by their
/// scaling. Percentiles use the nearest rank, so each is a value that occurred.
pub fn quantiles(distributions: &[(String, Vec<f64>)]) -> Vec<(String, f64)> {
    let mut metrics = Vec::new();
    for (name, values) in distributions.iter().filter(|(name, values)| name != "advantage" && !values.is_empty()) {
        let mut sorted = values.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        for percent in [10, 50, 90] {
            let metric = match name.as_str() {
                "length" => format!("completions/p{percent}_length"),
                name => format!("{name}_p{percent}"),
            };
            metrics.push((metric, sorted[(sorted.len() * percent).div_ceil(100) - 1]));
        }
    }
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_have_only_known_finite_values() {
        let mut rollouts =
            crate::rollouts::generation::tests::round(&[(3, [Some(1.0), None]), (5, [Some(2.0), Some(4.0)])]);
        rollouts.reward_weights = vec![0.5];
        for (place, c) in rollouts.groups.iter_mut().flat_map(|group| &mut group.completions).enumerate() {
            c.completion.ids = vec![1; place + 1];
            let logps = (0..=place).map(|t| -(t as f32) - if place == 2 { f32::INFINITY } else { 0.0 }).collect();
            c.completion.columns.set(SAMPLER_LOGPS, logps);
        }
        let advantages = [0.5, -0.5, 2.0, f32::NAN].map(Advantage::Sequence).into();
        let advantages = Advantages { advantages, rewards: Vec::new(), metrics: Vec::new() };
        let named = |name: &str, values: &[f64]| (name.to_owned(), values.to_vec());
        let mut expected = vec![
            named("reward", &[0.5, 1.0, 2.0]),
            named("length", &[1.0, 2.0, 3.0, 4.0]),
            named("advantage", &[0.5, -0.5, 2.0]),
            named("logprob", &[0.0, 0.0, -1.0, 0.0, -1.0, -2.0, -3.0]),
        ];
        assert_eq!(distributions(&rollouts, &advantages), expected);
        rollouts.groups[1].completions[0].completion.columns.set(ENTROPIES, vec![0.25, 0.5]);
        expected.push(named("entropy", &[0.25, 0.5]));
        assert_eq!(distributions(&rollouts, &advantages), expected);
    }

    #[test]
    fn quantiles_are_values_that_occurred() {
        let of =
            |name: &str, values: &[f64]| -> Vec<(String, f64)> { quantiles(&[(name.to_owned(), values.to_vec())]) };
        let ten: Vec<f64> = (1..=10).rev().map(f64::from).collect();
        let named = |name: &str, x: f64| (name.to_owned(), x);
        assert_eq!(of("reward", &ten), [named("reward_p10", 1.0), named("reward_p50", 5.0), named("reward_p90", 9.0)]);
        assert_eq!(of("length", &[7.0])[0], named("completions/p10_length", 7.0));
        assert_eq!(of("logprob", &[-1.0, -3.0, -2.0]).iter().map(|m| m.1).collect::<Vec<_>>(), [-3.0, -2.0, -1.0]);
        assert!(of("advantage", &ten).is_empty() && of("reward", &[]).is_empty());
        assert!(of("entropy", &ten).iter().all(|(name, _)| telemetry::outputs::metric(name).is_some()));
    }
}
