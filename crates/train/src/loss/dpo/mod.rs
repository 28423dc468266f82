//! Direct preference optimization (Rafailov et al. 2023, arXiv:2305.18290) and its relatives: pairs of answers to one
//! prompt, no reward model.
//!
//! J = 1/P Σ_pairs φ(ρ_c, ρ_r), ρ = Σ_t m (log π_θ − log π_ref) of the chosen and of the rejected answer
//!
//! Each φ is a file here, with its derivatives; [`DpoLoss`] lists them. Names and formulas are those of TRL's
//! `DPOTrainer`. A token of the chosen answer has the gradient ∂φ/∂ρ_c, one of the rejected answer ∂φ/∂ρ_r. Knows no
//! model and no data.

mod apo_down;
mod apo_zero;
mod bco_pair;
mod discopop;
mod exo_pair;
mod hinge;
mod ipo;
mod nca_pair;
mod robust;
mod sigmoid;
mod sigmoid_norm;
mod sppo_hard;

use super::LossSums;
use kernels::check::Float;
use serde::{Deserialize, Serialize};

/// What is minimised of a pair, by TRL's names. x = β (ρ_c − ρ_r).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DpoLoss {
    /// DPO's own: −log σ(x).
    #[default]
    Sigmoid,
    /// SLiC's max(0, 1 − x).
    Hinge,
    /// IPO's square of the distance from 1/(2β), by means over tokens.
    Ipo,
    /// EXO's reverse KL divergence from the smoothed preference; needs `label_smoothing` > 0.
    ExoPair,
    /// NCA's: raises the likelihood of the chosen answer, too.
    NcaPair,
    /// −log σ(x) without the bias of pairs that are the wrong way round.
    Robust,
    /// BCO's: each answer is classified by itself.
    BcoPair,
    /// SPPO's squares, with the chosen answer the winner for certain.
    SppoHard,
    /// APO where chosen answers are better than the model's own.
    ApoZero,
    /// APO where chosen answers are worse than the model's own.
    ApoDown,
    /// DiscoPOP's blend of the logistic and the exponential loss.
    Discopop,
    /// −log σ of the difference of means over tokens.
    SigmoidNorm,
}

/// The loss; names, meanings and defaults are those of TRL's `DPOConfig`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DpoConfig {
    /// How strongly the policy is held to the reference; above 0.
    pub beta: f64,
    /// φ
    pub loss_type: DpoLoss,
    /// ε of [`DpoLoss::Robust`] and [`DpoLoss::ExoPair`], from 0 to below 0.5; the others do not read it.
    pub label_smoothing: f64,
    /// τ of [`DpoLoss::Discopop`], above 0; the others do not read it.
    pub discopop_tau: f64,
}

impl Default for DpoConfig {
    fn default() -> Self {
        DpoConfig { beta: 0.1, loss_type: DpoLoss::Sigmoid, label_smoothing: 0.0, discopop_tau: 0.05 }
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

/// What a loss reads of a pair.
#[derive(Clone, Copy, Debug)]
struct Ratios {
    /// ρ_c
    chosen: f64,
    /// ρ_r
    rejected: f64,
    /// Tokens of either answer in the loss; at least 1.
    tokens: [f64; 2],
}

/// φ and its derivatives.
#[derive(Clone, Copy, Debug)]
struct Phi {
    value: f64,
    /// ∂φ/∂ρ_c
    d_chosen: f64,
    /// ∂φ/∂ρ_r
    d_rejected: f64,
}

impl Phi {
    /// A function of ρ_c − ρ_r, by its value and its slope.
    fn of_difference(value: f64, slope: f64) -> Phi {
        Phi { value, d_chosen: slope, d_rejected: -slope }
    }
}

/// The loss of one pair.
pub fn pair<T: Float>(config: &DpoConfig, [chosen, rejected]: [&Answer<'_, T>; 2]) -> PairLoss {
    let logps = [chosen.sum(chosen.logps), rejected.sum(rejected.logps)];
    let ratios = [logps[0] - chosen.sum(chosen.ref_logps), logps[1] - rejected.sum(rejected.ref_logps)];
    let tokens = [chosen, rejected].map(|answer| answer.tokens().max(1) as f64);
    let phi = match config.loss_type {
        DpoLoss::Sigmoid => sigmoid::phi,
        DpoLoss::Hinge => hinge::phi,
        DpoLoss::Ipo => ipo::phi,
        DpoLoss::ExoPair => exo_pair::phi,
        DpoLoss::NcaPair => nca_pair::phi,
        DpoLoss::Robust => robust::phi,
        DpoLoss::BcoPair => bco_pair::phi,
        DpoLoss::SppoHard => sppo_hard::phi,
        DpoLoss::ApoZero => apo_zero::phi,
        DpoLoss::ApoDown => apo_down::phi,
        DpoLoss::Discopop => discopop::phi,
        DpoLoss::SigmoidNorm => sigmoid_norm::phi,
    };
    let Phi { value, d_chosen, d_rejected } = phi(config, &Ratios { chosen: ratios[0], rejected: ratios[1], tokens });
    PairLoss { value, d_chosen, d_rejected, logps, rewards: ratios.map(|ratio| config.beta * ratio) }
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

/// log(1 + e^x) = −log σ(−x), without overflow.
fn softplus(x: f64) -> f64 {
    x.max(0.0) + libm::log1p(libm::exp(-x.abs()))
}

/// σ(x)
fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + libm::exp(-x))
}

#[cfg(test)]
pub(super) mod tests;
