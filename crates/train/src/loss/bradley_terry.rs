//! Reward models: the Bradley–Terry loss of pairs of answers (Bradley & Terry 1952; InstructGPT, arXiv:2203.02155).
//!
//! The reward r of an answer is the score at its last token; r_c and r_r are those of the chosen and the rejected
//! answer. P(chosen ≻ rejected) = σ(r_c − r_r). With margin m, centering coefficient c and P pairs:
//!
//! J = 1/P Σ_pairs [ −ln σ(r_c − r_r − m) + c (r_c + r_r)² ]
//!
//! ∂J/∂r_c = (−σ(m − r_c + r_r) + 2c (r_c + r_r)) / P; ∂J/∂r_r = (σ(m − r_c + r_r) + 2c (r_c + r_r)) / P.
//!
//! Margins come from Llama 2, arXiv:2307.09288, eq. 2. Centering (arXiv:2312.09244, eq. 2) fixes the additive constant
//! of the rewards, which the first term does not determine.

use super::LossSums;

/// Settings of the reward-model loss; the name and the default are TRL's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RankingConfig {
    /// Weight c of the centering term, which pulls the mean reward of a pair towards 0; `None` for no centering.
    pub center_rewards_coefficient: Option<f64>,
}

/// Adds one preference pair's contribution to the loss J to `sums`, and returns the gradients of J with respect to the
/// rewards of the chosen and the rejected answer. `pairs` is the number of pairs in the whole optimizer batch.
pub fn ranking(
    config: &RankingConfig,
    pairs: usize,
    [chosen, rejected]: [f64; 2],
    margin: f64,
    sums: &mut LossSums,
) -> [f64; 2] {
    let (x, c, p) = (chosen - rejected - margin, config.center_rewards_coefficient.unwrap_or(0.0), pairs as f64);
    let sum = chosen + rejected;
    sums.loss += (negative_log_sigmoid(x) + c * sum * sum) / p;
    let means = &mut sums.means;
    means.add("accuracy", f64::from(u8::from(chosen > rejected)), 1);
    means.add("margin", chosen - rejected, 1);
    means.add("mean_reward", sum, 2);
    means.least("min_reward", chosen.min(rejected));
    means.greatest("max_reward", chosen.max(rejected));
    let (pull, centre) = (sigmoid(-x), 2.0 * c * sum);
    [(centre - pull) / p, (centre + pull) / p]
}

/// −ln σ(x) with the sigmoid σ, without overflow.
pub fn negative_log_sigmoid(x: f64) -> f64 {
    (-x).max(0.0) + libm::log1p(libm::exp(-x.abs()))
}

/// The sigmoid σ(x), without overflow.
pub fn sigmoid(x: f64) -> f64 {
    let e = libm::exp(-x.abs());
    if x >= 0.0 { 1.0 / (1.0 + e) } else { e / (1.0 + e) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loss(config: &RankingConfig, rewards: [f64; 2], margin: f64) -> f64 {
        let mut sums = LossSums::default();
        ranking(config, 3, rewards, margin, &mut sums);
        sums.loss
    }

    #[test]
    fn the_gradient_matches_numeric_derivatives() {
        for c in [None, Some(0.01), Some(0.7)] {
            let config = RankingConfig { center_rewards_coefficient: c };
            for (rewards, margin) in [([0.3, -0.2], 0.0), ([-1.5, 2.0], 0.5), ([40.0, 1.0], 0.0), ([0.0, 0.0], 3.0)] {
                let d = ranking(&config, 3, rewards, margin, &mut LossSums::default());
                for side in 0..2 {
                    let at = |step: f64| {
                        let mut moved = rewards;
                        moved[side] += step;
                        loss(&config, moved, margin)
                    };
                    let h = 1e-5;
                    let numeric = (at(h) - at(-h)) / (2.0 * h);
                    assert!(
                        (d[side] - numeric).abs() < 1e-9 * (1.0 + numeric.abs()),
                        "{rewards:?} {} {numeric}",
                        d[side]
                    );
                }
            }
        }
    }

    #[test]
    fn the_ranking_loss_matches_hand_computed_values() {
        let mut sums = LossSums::default();
        let config = RankingConfig { center_rewards_coefficient: Some(0.5) };
        ranking(&config, 2, [1.0, 1.0], 0.0, &mut sums);
        assert!((sums.loss - (2f64.ln() + 0.5 * 4.0) / 2.0).abs() < 1e-15);
        ranking(&config, 2, [3.0, -3.0], 1.0, &mut sums);
        let second = (1.0 + (-5f64).exp()).ln() / 2.0;
        assert!((sums.loss - (2f64.ln() + 2.0) / 2.0 - second).abs() < 1e-15);
        let named: Vec<(&str, f64)> = sums.means.entries().collect();
        // A tie is not a win.
        let expected =
            [("accuracy", 0.5), ("margin", 3.0), ("max_reward", 3.0), ("mean_reward", 0.5), ("min_reward", -3.0)];
        assert_eq!(named, expected);
    }

    #[test]
    fn the_ranking_loss_is_finite_for_large_differences() {
        for x in [-1e4, -800.0, 800.0, 1e4] {
            assert!(negative_log_sigmoid(x).is_finite() && sigmoid(x).is_finite());
            assert_eq!(negative_log_sigmoid(x), (-x).max(0.0));
        }
    }
}
