//! The loss on held-out samples, without a gradient.

use super::TrainState;
use crate::loss::entropy::{quantile, with_bonus};
use crate::loss::{LossSums, Normalizer};
use crate::objective::{Scored, Source};
use crate::{Error, Result, Sample, Samples, Trainer, UpdateMetrics};
use kernels::mean::over;
use model::net::Scores;

/// The loss of held-out samples, and the metrics that a training step on them would report.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldOut {
    /// The loss, with its entropy bonus.
    pub loss: f64,
    /// Metrics of the loss, with TRL's names: `entropy`, `kl`, `clip_ratio/…` and those that only some losses report.
    pub metrics: Vec<(String, f64)>,
}

impl Trainer {
    /// The coefficient of the entropy bonus in the next step; `None` if the loss has no bonus.
    pub fn entropy_coef(&self) -> Option<f64> {
        self.state.entropy_coef()
    }

    /// See [`TrainState::held_out`].
    pub fn held_out(&self, samples: &[Sample], scores: &[Scores]) -> Result<Option<HeldOut>> {
        self.state.held_out(samples, scores)
    }
}

impl TrainState {
    /// The coefficient of the entropy bonus in the next step; `None` if the loss has no bonus.
    pub fn entropy_coef(&self) -> Option<f64> {
        self.config.objective.entropy().is_on().then_some(self.entropy.coef)
    }

    /// The loss of `samples`, treated as one optimizer batch, given the model's log-probabilities and entropies in
    /// `scores`. `None` if no token is in the loss. The entropy bonus has the coefficient of the next step.
    pub fn held_out(&self, samples: &[Sample], scores: &[Scores]) -> Result<Option<HeldOut>> {
        let objective = &self.config.objective;
        objective.check(Samples::Sequences(samples))?;
        if samples.len() != scores.len() {
            return Err(Error::Config(format!("expected scores for {} samples, got {}", samples.len(), scores.len())));
        }
        let masks: Vec<Vec<bool>> = samples.iter().map(|sample| objective.loss_mask(sample)).collect();
        let bonus = objective.entropy();
        let mut normalizer = Normalizer { entropy_coef: self.entropy.applied(&bonus), ..Normalizer::of(&masks) };
        if let Some(q) = objective.entropy_quantile() {
            let kept_entropies = |(scores, mask): (&Scores, &Vec<bool>)| -> Vec<f32> {
                scores.entropies.iter().zip(mask).filter(|(_, kept)| **kept).map(|(entropy, _)| *entropy).collect()
            };
            let entropies: Vec<f32> = scores.iter().zip(&masks).flat_map(kept_entropies).collect();
            normalizer.entropy_threshold = quantile(entropies.clone(), q);
            normalizer.entropy_tokens = entropies.iter().filter(|&&e| normalizer.keeps(f64::from(e))).count();
        }
        let (mut sums, mut all_entropies) = (LossSums::default(), 0.0);
        for ((sample, mask), Scores { logps, entropies }) in samples.iter().zip(&masks).zip(scores) {
            let used = entropies.iter().zip(mask).filter(|(_, used)| **used);
            all_entropies += used.map(|(entropy, _)| f64::from(*entropy)).sum::<f64>();
            let (mut d_logps, mut d_entropies) = (vec![0.0; logps.len()], vec![0.0; logps.len()]);
            let (d_logps, d_entropies) = (&mut d_logps[..], &mut d_entropies[..]);
            let scored = Scored { source: Source::Sample(sample), mask, logps, entropies, d_logps, d_entropies };
            objective.evaluate(&normalizer, &mut [scored], &mut sums);
        }
        let entropy = over(sums.entropy, normalizer.entropy_tokens as u64);
        if normalizer.tokens == 0 {
            return Ok(None);
        }
        let metrics = UpdateMetrics {
            entropy: over(all_entropies, normalizer.tokens as u64),
            kl: sums.kl_mean().filter(|_| objective.has_kl()),
            clip: sums.clip_ratios().filter(|_| objective.clips()),
            policy_loss: bonus.is_on().then_some(sums.loss),
            entropy_coef: self.entropy_coef(),
            ..UpdateMetrics::default()
        };
        Ok(Some(HeldOut {
            loss: with_bonus(sums.loss, &bonus, &normalizer, entropy),
            metrics: metrics
                .loss_entries()
                .into_iter()
                .chain(sums.means.entries())
                .map(|(name, x)| (name.to_owned(), x))
                .collect(),
        }))
    }
}
