//! Direct preference optimization (Rafailov et al. 2023, arXiv:2305.18290): pairs of answers to one prompt, no reward
//! model.
//!
//! J = 1/P Σ_pairs φ(β (ρ_c − ρ_r)), ρ = Σ_t m (log π_θ − log π_ref) of the chosen and of the rejected answer
//!
//! [`DpoLoss`] lists φ. The pull on a token of the chosen answer is ∂φ/∂ρ_c, and on one of the rejected answer
//! −∂φ/∂ρ_c; where a loss takes means instead of sums over tokens, each divided by its answer's tokens. Knows no model
//! and no data.

use super::LossSums;
use kernels::check::Float;
use serde::{Deserialize, Serialize};

/// What is made of a pair's difference x = β (ρ_c − ρ_r).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DpoLoss {
    /// DPO's own: −log σ(x).
    #[default]
    Sigmoid,
    /// max(0, 1 − x) (SLiC, Zhao et al. 2023, arXiv:2305.10425).
    Hinge,
    /// (ρ̄_c − ρ̄_r − 1/(2β))², ρ̄ the mean over tokens (Azar et al. 2023, arXiv:2310.12036).
    Ipo,
    /// −((1 − ε) log σ(x) − ε log σ(−x)) / (1 − 2ε), ε = `label_smoothing`: unbiased where that share of the pairs is
    /// the wrong way round (Chowdhury et al. 2024, arXiv:2403.00409).
    Robust,
    /// −log σ(β (ρ̄_c − ρ̄_r)), ρ̄ the mean over tokens.
    SigmoidNorm,
}

/// The loss; names, meanings and defaults are those of TRL's `DPOConfig`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DpoConfig {
    /// How strongly the policy is held to the reference; above 0.
    pub beta: f64,
    /// φ
    pub loss_type: DpoLoss,
    /// ε of [`DpoLoss::Robust`], from 0 to below 0.5; the others do not read it.
    pub label_smoothing: f64,
}

impl Default for DpoConfig {
    fn default() -> Self {
        DpoConfig { beta: 0.1, loss_type: DpoLoss::Sigmoid, label_smoothing: 0.0 }
    }
}

/// One answer of a pair; the slices have one element per completion token.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a, T> {
    /// log π_θ
    pub logps: &'a [T],
    /// log π_ref
    pub ref_logps: &'a [T],
    /// Which tokens the loss uses. The values of the others are never read.
    pub mask: &'a [bool],
}

impl<T: Float> Answer<'_, T> {
    fn tokens(&self) -> u64 {
        self.mask.iter().filter(|&&m| m).count() as u64
    }

    fn sum(&self, of: &[T]) -> f64 {
        of.iter().zip(self.mask).filter(|(_, m)| **m).map(|(x, _)| x.f64()).sum()
    }
}

/// What a pair says: the loss's value with the metrics that go with it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairLoss {
    /// φ
    pub value: f64,
    /// ∂φ/∂log π_θ of a token of the chosen answer.
    pub d_chosen: f64,
    /// ∂φ/∂log π_θ of a token of the rejected answer.
    pub d_rejected: f64,
    /// Σ_t m log π_θ of chosen and rejected.
    pub logps: [f64; 2],
    /// β ρ of chosen and rejected: the rewards that the policy stands for.
    pub rewards: [f64; 2],
}

/// The loss of one pair.
pub fn pair<T: Float>(config: &DpoConfig, [chosen, rejected]: [&Answer<'_, T>; 2]) -> PairLoss {
    let beta = config.beta;
    let logps = [chosen.sum(chosen.logps), rejected.sum(rejected.logps)];
    let ratios = [logps[0] - chosen.sum(chosen.ref_logps), logps[1] - rejected.sum(rejected.ref_logps)];
    let per = match config.loss_type {
        DpoLoss::Ipo | DpoLoss::SigmoidNorm => [chosen, rejected].map(|a| 1.0 / a.tokens().max(1) as f64),
        DpoLoss::Sigmoid | DpoLoss::Hinge | DpoLoss::Robust => [1.0; 2],
    };
    let difference = ratios[0] * per[0] - ratios[1] * per[1];
    let x = beta * difference;
    let (value, slope) = match config.loss_type {
        DpoLoss::Sigmoid | DpoLoss::SigmoidNorm => (softplus(-x), -beta * sigmoid(-x)),
        // Written so that what is not a number stays so.
        DpoLoss::Hinge if x >= 1.0 => (0.0, 0.0),
        DpoLoss::Hinge => (1.0 - x, -beta),
        DpoLoss::Ipo => {
            let away = difference - 0.5 / beta;
            (away * away, 2.0 * away)
        }
        DpoLoss::Robust => {
            let e = config.label_smoothing;
            let scale = 1.0 / (1.0 - 2.0 * e);
            let value = scale * ((1.0 - e) * softplus(-x) - e * softplus(x));
            (value, -beta * scale * ((1.0 - e) * sigmoid(-x) + e * sigmoid(x)))
        }
    };
    PairLoss {
        value,
        d_chosen: slope * per[0],
        d_rejected: -slope * per[1],
        logps,
        rewards: ratios.map(|ratio| beta * ratio),
    }
}

/// Adds a pair's part of J, one of `pairs`, to `sums` with the metrics of TRL's `DPOTrainer`, and overwrites `d_logps`,
/// chosen first, with ∂J/∂log π_θ.
pub fn dpo<T: Float>(
    config: &DpoConfig,
    pairs: usize,
    answers: [&Answer<'_, T>; 2],
    d_logps: [&mut [T]; 2],
    sums: &mut LossSums,
) {
    let loss = pair(config, answers);
    let weight = 1.0 / pairs.max(1) as f64;
    for ((answer, d_logps), slope) in answers.into_iter().zip(d_logps).zip([loss.d_chosen, loss.d_rejected]) {
        for (d, &m) in d_logps.iter_mut().zip(answer.mask) {
            *d = T::of(if m { weight * slope } else { 0.0 });
        }
        sums.tokens += answer.tokens();
    }
    sums.loss += weight * loss.value;
    for (name, value) in loss.metrics() {
        sums.means.add(name, value, 1);
    }
}

impl PairLoss {
    /// What TRL logs of a pair, by its names. Accuracy is 1 where the chosen answer's reward is the higher one.
    pub fn metrics(&self) -> [(&'static str, f64); 6] {
        let [chosen, rejected] = self.rewards;
        [
            ("rewards/chosen", chosen),
            ("rewards/rejected", rejected),
            ("rewards/accuracies", f64::from(u8::from(chosen > rejected))),
            ("rewards/margins", chosen - rejected),
            ("logps/chosen", self.logps[0]),
            ("logps/rejected", self.logps[1]),
        ]
    }
}

/// log(1 + e^x) without overflow.
fn softplus(x: f64) -> f64 {
    x.max(0.0) + libm::log1p(libm::exp(-x.abs()))
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + libm::exp(-x))
}

#[cfg(test)]
mod tests;
