//! Direct preference optimization (DPO, Rafailov et al. 2023, arXiv:2305.18290) and its variants: losses on pairs of
//! answers to one prompt, without a reward model. With P pairs and mask m, and ρ_c and ρ_r for the chosen and the
//! rejected answer:
//!
//! J = 1/P Σ_pairs φ(ρ_c, ρ_r), where ρ = Σ_t m (log π_θ − log π_ref) over the tokens t of an answer
//!
//! Each function φ is in its own file, with its derivatives; [`DpoLoss`] lists them. Names and formulas are those of
//! TRL's `DPOTrainer`. A token of the chosen answer has the gradient ∂φ/∂ρ_c, a token of the rejected answer ∂φ/∂ρ_r.

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

/// The loss φ of a preference pair, by TRL's names. Here x = β (ρ_c − ρ_r), where ρ is log π_θ − log π_ref of the
/// chosen or the rejected answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DpoLoss {
    /// DPO's loss: −log σ(x).
    #[default]
    Sigmoid,
    /// SLiC's hinge loss: max(0, 1 − x).
    Hinge,
    /// IPO: the squared difference between ρ_c/n_c − ρ_r/n_r and 1/(2β), for answers of n_c and n_r tokens.
    Ipo,
    /// EXO: the reverse KL divergence to the smoothed preference; needs `label_smoothing` > 0.
    ExoPair,
    /// NCA: also raises the likelihood of the chosen answer.
    NcaPair,
    /// Robust DPO: −log σ(x), corrected for a fraction of pairs with swapped labels.
    Robust,
    /// BCO: each answer is classified separately.
    BcoPair,
    /// SPPO: squared distances, assuming that the chosen answer wins with probability 1.
    SppoHard,
    /// APO for chosen answers that are better than the model's own.
    ApoZero,
    /// APO for chosen answers that are worse than the model's own.
    ApoDown,
    /// DiscoPOP: a blend of the logistic and the exponential loss.
    Discopop,
    /// DPO's loss with mean log-ratios over tokens instead of sums.
    SigmoidNorm,
}

/// Settings of the DPO losses; names, meanings and defaults are those of TRL's `DPOConfig`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DpoConfig {
    /// β: how strongly the policy is kept close to the reference model; above 0.
    pub beta: f64,
    /// The loss φ of a pair.
    pub loss_type: DpoLoss,
    /// ε of [`DpoLoss::Robust`] and [`DpoLoss::ExoPair`], from 0 to below 0.5; other losses do not use it.
    pub label_smoothing: f64,
    /// τ of [`DpoLoss::Discopop`], above 0; other losses do not use it.
    pub discopop_tau: f64,
}

impl Default for DpoConfig {
    fn default() -> Self {
        DpoConfig { beta: 0.1, loss_type: DpoLoss::Sigmoid, label_smoothing: 0.0, discopop_tau: 0.05 }
    }
}

/// One answer of a preference pair. Each slice has one element per token of the answer.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a, T> {
    /// Log-probabilities under the current policy, log π_θ.
    pub logps: &'a [T],
    /// Log-probabilities under the reference model, log π_ref.
    pub ref_logps: &'a [T],
    /// The tokens that the loss uses. Elements of the slices at other tokens are never read.
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

/// The loss of a preference pair, its derivatives, and the inputs of its metrics.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairLoss {
    /// The loss φ of the pair.
    pub value: f64,
    /// Derivative of φ with respect to log π_θ of each token of the chosen answer.
    pub d_chosen: f64,
    /// Derivative of φ with respect to log π_θ of each token of the rejected answer.
    pub d_rejected: f64,
    /// Log-probabilities under the current policy of the chosen and the rejected answer, summed over tokens.
    pub logps: [f64; 2],
    /// Implicit rewards β ρ of the chosen and the rejected answer, where ρ is log π_θ − log π_ref of an answer.
    pub rewards: [f64; 2],
}

/// The log-ratios of a pair, on which its loss depends.
#[derive(Clone, Copy, Debug)]
struct Ratios {
    /// ρ_c: log π_θ − log π_ref of the chosen answer.
    chosen: f64,
    /// ρ_r: log π_θ − log π_ref of the rejected answer.
    rejected: f64,
    /// Number of tokens in the loss of the chosen and the rejected answer; at least 1.
    tokens: [f64; 2],
}

/// The loss φ of a pair and its derivatives.
#[derive(Clone, Copy, Debug)]
struct Phi {
    value: f64,
    /// Derivative ∂φ/∂ρ_c with respect to the log-ratio of the chosen answer.
    d_chosen: f64,
    /// Derivative ∂φ/∂ρ_r with respect to the log-ratio of the rejected answer.
    d_rejected: f64,
}

impl Phi {
    /// A loss that depends only on ρ_c − ρ_r, from its value and slope.
    fn from_difference(value: f64, slope: f64) -> Phi {
        Phi { value, d_chosen: slope, d_rejected: -slope }
    }
}

/// Evaluates the loss of one preference pair.
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

/// Adds one preference pair's contribution to the loss J over `pairs` pairs to `sums`, with the metrics of TRL's
/// `DPOTrainer`. Overwrites `d_logps` (chosen answer first) with ∂J/∂log π_θ.
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
    /// TRL's metrics of a pair. The accuracy is 1 if the chosen answer has the higher reward.
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

/// The sigmoid σ(x).
fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + libm::exp(-x))
}

#[cfg(test)]
pub(super) mod tests;
