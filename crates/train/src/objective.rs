//! The training objective computes the loss from the model's log-probabilities and entropies of every completion token,
//! and the gradients with respect to them.
//!
//! The trainer passes one group at a time: consecutive sequences with the same prompt, so that a loss can compare the
//! two answers of a preference pair. Each loss has a file in [`loss`](crate::loss). This file selects the loss, checks
//! that the samples have the required columns, and collects metrics. It has no access to the weights.

use crate::loss::bradley_terry::{RankingConfig, ranking};
use crate::loss::dft::dft;
use crate::loss::dpo::{Answer, DpoConfig, dpo};
use crate::loss::entropy::{self, EntropyConfig};
use crate::loss::ppo::{self, Actions, PpoConfig, States, ValueConfig};
use crate::loss::rloo::{RlooConfig, rloo};
use crate::loss::{LossConfig, LossSums, LossType, Normalizer, Sequence, policy, supervised::supervised};
use crate::{Advantage, Error, PreferencePair, Result, Sample, Samples};
use model::Columns;

/// The loss that training minimises.
#[derive(Clone, Debug, PartialEq)]
pub enum Objective {
    /// A policy-gradient loss over tokens.
    Policy(LossConfig),
    /// RLOO's loss, a sum over completions.
    Rloo(RlooConfig),
    /// PPO's policy loss.
    Ppo(PpoConfig),
    /// PPO's value loss, for a value model (a model with a score head of one label).
    Value(ValueConfig),
    /// The loss of a reward model, on preference pairs. The model must have a score head of one label.
    Ranking(RankingConfig),
    /// DPO and its variants, on preference pairs.
    Preference(DpoConfig),
    /// The mean negative log-likelihood of the completion tokens of the optimizer batch.
    Supervised,
    /// Dynamic fine-tuning: the negative log-likelihood, with each token weighted by its probability.
    Dft,
}

/// The origin of a sequence of the optimizer batch: a sample or a preference pair.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// A single sample.
    Sample(&'a Sample),
    /// The chosen response of a preference pair. Its rejected response is the next sequence.
    Chosen(&'a PreferencePair),
    /// The rejected response of a preference pair.
    Rejected(&'a PreferencePair),
}

impl<'a> Source<'a> {
    /// The sample; `None` for a response of a preference pair.
    pub(crate) fn sample(self) -> Option<&'a Sample> {
        match self {
            Source::Sample(sample) => Some(sample),
            Source::Chosen(_) | Source::Rejected(_) => None,
        }
    }
}

/// A sequence and the model's output for it. Each slice has one element per completion token.
#[derive(Debug)]
pub struct Scored<'a> {
    /// The sample or preference pair that the sequence comes from.
    pub source: Source<'a>,
    /// The tokens that the loss uses ([`Objective::loss_mask`]).
    pub mask: &'a [bool],
    /// Log-probability of each token under the current policy. For a model with a score head: the score at the row that
    /// predicts the token.
    pub logps: &'a [f32],
    /// Entropy of the next-token distribution at each token, in nats; 0 for a model with a score head.
    pub entropies: &'a [f32],
    /// Gradient of the loss J with respect to `logps`. Overwritten.
    pub d_logps: &'a mut [f32],
    /// Gradient of the loss J with respect to `entropies`. Overwritten if [`Objective::has_entropy_grad`], otherwise
    /// unchanged.
    pub d_entropies: &'a mut [f32],
}

impl Objective {
    /// The completion tokens of `sample` that the loss uses.
    pub fn loss_mask(&self, sample: &Sample) -> Vec<bool> {
        match self {
            Objective::Policy(config) => config.loss_mask(sample),
            Objective::Rloo(config) => config.loss_mask(sample),
            Objective::Supervised
            | Objective::Dft
            | Objective::Ppo(_)
            | Objective::Value(_)
            | Objective::Ranking(_)
            | Objective::Preference(_) => sample.loss_mask.clone(),
        }
    }

    /// Whether the loss takes preference pairs.
    pub fn is_of_pairs(&self) -> bool {
        matches!(self, Objective::Preference(_) | Objective::Ranking(_))
    }

    /// Whether the loss needs a model with a score head.
    pub fn is_of_scores(&self) -> bool {
        matches!(self, Objective::Value(_) | Objective::Ranking(_))
    }

    /// Whether the samples come from a policy and have their sampler's log-probabilities.
    pub fn is_policy(&self) -> bool {
        !matches!(
            self,
            Objective::Supervised
                | Objective::Dft
                | Objective::Value(_)
                | Objective::Ranking(_)
                | Objective::Preference(_)
        )
    }

    /// Whether tokens outside the clip range lose their gradient. Their fraction is then reported (`clip_ratio/…`).
    pub fn clips(&self) -> bool {
        match self {
            Objective::Policy(config) => config.loss_type.clips(),
            Objective::Rloo(_) | Objective::Ppo(_) => true,
            _ => false,
        }
    }

    /// Whether the loss contains the KL divergence to the reference model.
    pub fn has_kl(&self) -> bool {
        matches!(self, Objective::Policy(config) if config.beta != 0.0)
    }

    /// The quantile of token entropies below which tokens are left out of the loss; `None` if no tokens are left out.
    pub fn entropy_quantile(&self) -> Option<f64> {
        match self {
            Objective::Policy(config) if config.top_entropy_quantile < 1.0 => Some(1.0 - config.top_entropy_quantile),
            _ => None,
        }
    }

    /// Settings of the entropy bonus that is added to the loss. (PPO's loss contains its own bonus instead.)
    pub fn entropy(&self) -> EntropyConfig {
        match self {
            Objective::Policy(config) => config.entropy,
            _ => EntropyConfig::default(),
        }
    }

    /// Whether the loss of this step has a gradient with respect to entropies.
    pub fn has_entropy_grad(&self, normalizer: &Normalizer) -> bool {
        match self {
            Objective::Ppo(config) => config.entropy_coef != 0.0,
            _ => self.entropy().is_on() && normalizer.entropy_coef != 0.0,
        }
    }

    /// Whether a sequence without an advantage, or without a token in the loss, has gradient 0 for any model output.
    /// This is not the case if the loss has terms other than the policy term (KL divergence, entropy), or if the
    /// entropies of all tokens decide which tokens are left out.
    pub fn can_skip(&self) -> bool {
        match self {
            Objective::Policy(config) => {
                config.beta == 0.0 && !config.entropy.is_on() && config.top_entropy_quantile >= 1.0
            }
            Objective::Rloo(_) => true,
            _ => false,
        }
    }

    /// Adds to `sums` the known values of a skipped sequence, which is not computed because its gradient is 0: its
    /// contribution to the loss (0 or a constant), no clipping, and the sampler's distance from the old policy. If
    /// `on_policy`, its importance ratio is 1. Otherwise the ratio is unknown, and metrics of ratios exclude the
    /// sequence.
    pub(crate) fn evaluate_skipped(
        &self,
        normalizer: &Normalizer,
        sample: &Sample,
        mask: &[bool],
        on_policy: bool,
        sums: &mut LossSums,
    ) {
        let needs_ratios = matches!(self, Objective::Policy(config) if config.loss_type == LossType::Vespo);
        let before = (needs_ratios && !on_policy && mask.contains(&true)).then(|| sums.means.clone());
        let zeros = || vec![0.0; mask.len()];
        let (entropies, mut d_logps, mut d_entropies) = (zeros(), zeros(), zeros());
        let (logps, d_logps, d_entropies) = (sample.old_logps(), &mut d_logps[..], &mut d_entropies[..]);
        let source = Source::Sample(sample);
        let scored = Scored { source, mask, logps, entropies: &entropies, d_logps, d_entropies };
        self.evaluate(normalizer, &mut [scored], sums);
        sums.means = before.unwrap_or_else(|| std::mem::take(&mut sums.means));
    }

    /// Adds a group's contribution to the loss J to `sums`, and overwrites the group's gradients. `normalizer` has the
    /// counts of the whole optimizer batch. [`LossSums::loss`] does not include the entropy bonus, whose entropies are
    /// in [`LossSums::entropy`].
    pub fn evaluate(&self, normalizer: &Normalizer, group: &mut [Scored<'_>], sums: &mut LossSums) {
        match self {
            Objective::Ranking(config) => {
                group.chunks_exact_mut(2).for_each(|pair| rank(config, normalizer, pair, sums));
                return;
            }
            Objective::Preference(config) => {
                group.chunks_exact_mut(2).for_each(|pair| preference(config, normalizer, pair, sums));
                return;
            }
            _ => {}
        }
        let bonus = self.entropy().is_on();
        for scored in group {
            let Scored { source, mask, logps, entropies, .. } = *scored;
            let sample = source.sample().expect("losses on samples get samples");
            let d_logps = &mut *scored.d_logps;
            let sequence = || Sequence {
                logps,
                entropies,
                old_logps: sample.old_logps(),
                sampler_logps: sample.columns.sampler_logps().unwrap_or_default(),
                ref_logps: sample.columns.ref_logps(),
                mask,
                advantage: &sample.advantage,
            };
            match self {
                Objective::Supervised => supervised(normalizer, logps, mask, d_logps, sums),
                Objective::Dft => dft(normalizer, logps, mask, d_logps, sums),
                Objective::Ranking(_) | Objective::Preference(_) => {
                    unreachable!("losses on pairs are evaluated elsewhere")
                }
                Objective::Policy(config) => policy(config, normalizer, &sequence(), d_logps, sums),
                Objective::Rloo(config) => rloo(config, normalizer, &sequence(), d_logps, sums),
                Objective::Ppo(config) => {
                    let (old_logps, advantage) = (sample.old_logps(), &sample.advantage);
                    let actions = Actions { logps, old_logps, entropies, mask, advantage };
                    ppo::policy(config, normalizer, &actions, d_logps, scored.d_entropies, sums);
                }
                Objective::Value(config) => {
                    let (old_values, returns) = sample.values_and_returns().unwrap_or_default();
                    let states = States { values: logps, old_values, returns, mask };
                    ppo::value(config, normalizer, &states, d_logps, sums);
                }
            }
            if bonus {
                entropy::bonus(normalizer, entropies, mask, scored.d_entropies, sums);
            }
        }
    }

    /// Checks that `samples` are of the kind that the loss takes (sequences or pairs) and have all required columns.
    pub fn check(&self, samples: Samples<'_>) -> Result<()> {
        match (samples, self.is_of_pairs()) {
            (Samples::Sequences(samples), false) => {
                samples.iter().enumerate().try_for_each(|(i, sample)| self.check_sample(i, sample))
            }
            (Samples::Pairs(pairs), true) => {
                pairs.iter().enumerate().try_for_each(|(i, pair)| self.check_pair(i, pair))
            }
            (Samples::Sequences(_), true) => {
                Err(Error::Config("the loss needs preference pairs, got single samples".into()))
            }
            (Samples::Pairs(_), false) => {
                Err(Error::Config("the loss needs single samples, got preference pairs".into()))
            }
        }
    }

    fn check_pair(&self, index: usize, pair: &PreferencePair) -> Result<()> {
        for response in [&pair.chosen, &pair.rejected] {
            let lacks = |message: &str| Err(Error::Sample { index, message: message.to_owned() });
            match (self, response.columns.ref_logps()) {
                _ if response.ids.is_empty() => return lacks("each response of a pair must have at least one token"),
                (Objective::Preference(_), None) => {
                    return lacks("ref_logps (the reference's log-probabilities) is missing");
                }
                _ => fits(index, response.ids.len(), &response.columns)?,
            }
        }
        Ok(())
    }

    fn check_sample(&self, index: usize, sample: &Sample) -> Result<()> {
        let tokens = sample.completion.len();
        let lacks = |message: &str| Err(Error::Sample { index, message: message.to_owned() });
        fit(index, tokens, "mask", sample.loss_mask.len())?;
        fits(index, tokens, &sample.columns)?;
        if let Objective::Value(_) = self {
            return match sample.values_and_returns() {
                Some(_) => Ok(()),
                None => lacks("values or returns are missing"),
            };
        }
        if !self.is_policy() {
            return Ok(());
        }
        if sample.columns.sampler_logps().is_none() {
            return lacks("sampler_logps is missing");
        }
        fit(index, tokens, "versions", sample.versions.len())?;
        match (&sample.advantage, self) {
            (Advantage::Tokens(_), Objective::Rloo(_)) => {
                return lacks("RLOO needs one advantage per completion, got one per token");
            }
            (Advantage::Tokens(advantages), _) => fit(index, tokens, "advantage", advantages.len())?,
            (Advantage::Sequence(_), _) => {}
        }
        match sample.columns.ref_logps() {
            None if self.has_kl() => lacks("ref_logps is missing, and beta is not 0"),
            _ => Ok(()),
        }
    }
}

/// Fails if a column does not have one row per token.
fn fits(index: usize, tokens: usize, columns: &Columns) -> Result<()> {
    columns.iter().try_for_each(|(name, column)| fit(index, tokens, name, column.tokens()))
}

fn fit(index: usize, tokens: usize, what: &str, len: usize) -> Result<()> {
    let message = || format!("{what} must have one element per completion token ({tokens}), got {len}");
    if len == tokens { Ok(()) } else { Err(Error::Sample { index, message: message() }) }
}

/// Evaluates the reward-model loss of a pair. The score of a response is the score at its last token.
fn rank(config: &RankingConfig, normalizer: &Normalizer, pair: &mut [Scored<'_>], sums: &mut LossSums) {
    let Source::Chosen(PreferencePair { margin, .. }) = pair[0].source else {
        unreachable!("the chosen response comes first")
    };
    let last = |scored: &Scored<'_>| scored.logps.last().map_or(0.0, |&r| f64::from(r));
    let rewards = [last(&pair[0]), last(&pair[1])];
    let gradient = ranking(config, normalizer.sequences / 2, rewards, f64::from(*margin), sums);
    for (scored, d) in pair.iter_mut().zip(gradient) {
        scored.d_logps.fill(0.0);
        if let Some(last) = scored.d_logps.last_mut() {
            *last = d as f32;
        }
    }
}

fn preference(config: &DpoConfig, normalizer: &Normalizer, pair: &mut [Scored<'_>], sums: &mut LossSums) {
    let [chosen, rejected] = pair else { unreachable!("a pair") };
    let (Source::Chosen(c), Source::Rejected(r)) = (chosen.source, rejected.source) else {
        unreachable!("the chosen response comes first")
    };
    let [c, r] = [(&*chosen, &c.chosen), (&*rejected, &r.rejected)].map(|(scored, response)| Answer {
        logps: scored.logps,
        ref_logps: response.columns.ref_logps().expect("checked"),
        mask: scored.mask,
    });
    dpo(config, normalizer.sequences / 2, [&c, &r], [&mut *chosen.d_logps, &mut *rejected.d_logps], sums);
}

#[cfg(test)]
mod tests;
