//! What is minimised: from what the model says of every completion token to a loss, and back.
//!
//! The trainer hands over one group at a time, which is all samples of a prompt that lie behind one another, so that a
//! loss may compare them (pairs). A loss is a file in [`loss`](crate::loss); this one says which, what it needs of a
//! sample, and what it reports. It knows no weights.

use crate::loss::bradley_terry::{RankingConfig, ranking};
use crate::loss::dpo::{Answer, DpoConfig, dpo};
use crate::loss::entropy::{self, EntropyConfig};
use crate::loss::ppo::{self, Actions, PpoConfig, States, ValueConfig};
use crate::loss::rloo::{RlooConfig, rloo};
use crate::loss::{LossConfig, LossSums, LossType, Sequence, Totals, policy, supervised::supervised};
use crate::{Advantage, Error, Result, Sample};

/// What is minimised.
#[derive(Clone, Debug, PartialEq)]
pub enum Objective {
    /// A policy-gradient loss over tokens.
    Policy(LossConfig),
    /// RLOO's, over completions.
    Rloo(RlooConfig),
    /// PPO's, for the policy.
    Ppo(PpoConfig),
    /// PPO's, for the value model: a model with a head of one score.
    Value(ValueConfig),
    /// A reward model's, for pairs ([`Sample::ranked`]): a model with a head of one score.
    Ranking(RankingConfig),
    /// DPO's, over pairs: the chosen and the rejected answer to a prompt, one behind the other.
    Preference(DpoConfig),
    /// The mean negative log-likelihood of the completion tokens of the optimizer batch.
    Supervised,
}

/// A sample with what the model says of it; the slices have one element per completion token.
#[derive(Debug)]
pub struct Scored<'a> {
    /// The sample.
    pub sample: &'a Sample,
    /// Which tokens the loss uses ([`Objective::loss_mask`]).
    pub mask: &'a [bool],
    /// log π_θ of each token; of a model of scores, the score of the row that predicts it.
    pub logps: &'a [f32],
    /// Entropy of the distribution that each token comes from, in nats; 0 of a model of scores.
    pub entropies: &'a [f32],
    /// ∂J/∂logps: overwritten.
    pub d_logps: &'a mut [f32],
    /// ∂J/∂H of each entropy: overwritten where [`Objective::pulls_at_entropies`], else not read.
    pub d_entropies: &'a mut [f32],
}

impl Objective {
    /// The completion tokens of `sample` that the loss uses.
    pub fn loss_mask(&self, sample: &Sample) -> Vec<bool> {
        match self {
            Objective::Supervised
            | Objective::Ppo(_)
            | Objective::Value(_)
            | Objective::Ranking(_)
            | Objective::Preference(_) => sample.mask.clone(),
            Objective::Policy(config) => config.loss_mask(sample),
            Objective::Rloo(config) => config.loss_mask(sample),
        }
    }

    /// Whether it is of a model with a head of scores.
    pub fn is_of_scores(&self) -> bool {
        matches!(self, Objective::Value(_) | Objective::Ranking(_))
    }

    /// Whether samples are the policy's own, with the record of their sampler.
    pub fn is_policy(&self) -> bool {
        !matches!(self, Objective::Supervised | Objective::Value(_) | Objective::Ranking(_) | Objective::Preference(_))
    }

    /// Whether it clips and reports how much.
    pub fn clips(&self) -> bool {
        match self {
            Objective::Supervised | Objective::Value(_) | Objective::Ranking(_) | Objective::Preference(_) => false,
            Objective::Policy(config) => {
                !matches!(config.loss_type, LossType::Cispo | LossType::Sapo | LossType::Vespo)
            }
            Objective::Rloo(_) | Objective::Ppo(_) => true,
        }
    }

    /// Whether the KL divergence to the reference is in the loss.
    pub fn has_kl(&self) -> bool {
        matches!(self, Objective::Policy(config) if config.beta != 0.0)
    }

    /// The quantile of entropy below which tokens are left out, if it leaves any out.
    pub fn entropy_quantile(&self) -> Option<f64> {
        match self {
            Objective::Policy(config) if config.top_entropy_quantile < 1.0 => Some(1.0 - config.top_entropy_quantile),
            _ => None,
        }
    }

    /// The entropy bonus beside a loss; PPO has its own in the loss.
    pub fn entropy(&self) -> EntropyConfig {
        match self {
            Objective::Policy(config) => config.entropy,
            _ => EntropyConfig::default(),
        }
    }

    /// Whether the gradient goes through entropies too in this step.
    pub fn pulls_at_entropies(&self, totals: &Totals) -> bool {
        match self {
            Objective::Ppo(config) => config.entropy_coef != 0.0,
            _ => self.entropy().is_on() && totals.entropy_coef != 0.0,
        }
    }

    /// Adds a group's part of J to `sums`, and overwrites its gradient. `totals` are those of the whole optimizer batch. The
    /// entropy bonus is not in [`LossSums::loss`], but its entropies in [`LossSums::entropy`].
    pub fn evaluate(&self, totals: &Totals, group: &mut [Scored<'_>], sums: &mut LossSums) {
        if let Objective::Ranking(config) = self {
            for pair in group.chunks_exact_mut(2) {
                rank(config, totals, pair, sums);
            }
            return;
        }
        if let Objective::Preference(config) = self {
            group.chunks_exact_mut(2).for_each(|pair| preference(config, totals, pair, sums));
            return;
        }
        let bonus = self.entropy().is_on();
        for scored in group {
            let Scored { sample, mask, logps, entropies, .. } = *scored;
            let d_logps = &mut *scored.d_logps;
            let sequence = || Sequence {
                logps,
                entropies,
                old_logps: sample.old_logps(),
                sampler_logps: &sample.sampler_logps,
                ref_logps: sample.ref_logps.as_deref(),
                mask,
                advantage: &sample.advantage,
            };
            match self {
                Objective::Supervised => supervised(totals, logps, mask, d_logps, sums),
                Objective::Ranking(_) | Objective::Preference(_) => unreachable!("evaluated by pairs"),
                Objective::Policy(config) => policy(config, totals, &sequence(), d_logps, sums),
                Objective::Rloo(config) => rloo(config, totals, &sequence(), d_logps, sums),
                Objective::Ppo(config) => {
                    let (entropies, old_logps, advantage) = (scored.entropies, sample.old_logps(), &sample.advantage);
                    let actions = Actions { logps, old_logps, entropies, mask, advantage };
                    ppo::policy(config, totals, &actions, d_logps, scored.d_entropies, sums);
                }
                Objective::Value(config) => {
                    let (old, returns) = sample.values.as_ref().map_or((&[][..], &[][..]), |v| (&v.old, &v.returns));
                    let states = States { values: logps, old_values: old, returns, mask };
                    ppo::value(config, totals, &states, d_logps, sums);
                }
            }
            if bonus {
                entropy::bonus(totals, entropies, mask, scored.d_entropies, sums);
            }
        }
    }

    /// Whether `samples` stand as the loss needs them: in pairs with one prompt each.
    pub fn check_order(&self, samples: &[Sample]) -> Result<()> {
        if !matches!(self, Objective::Preference(_) | Objective::Ranking(_)) {
            return Ok(());
        }
        let lone = |(_, pair): &(usize, &[Sample])| pair.len() < 2 || pair[0].prompt != pair[1].prompt;
        match samples.chunks(2).enumerate().find(lone) {
            None => Ok(()),
            Some((i, _)) => {
                let message = "has no rejected answer to the same prompt behind it".to_owned();
                Err(Error::Sample { index: 2 * i, message })
            }
        }
    }

    /// Whether `sample`, number `index` of its batch, has what the loss needs.
    pub fn check(&self, index: usize, sample: &Sample) -> Result<()> {
        let tokens = sample.completion.len();
        let fits = |what: &str, len: usize| {
            let message = || format!("{what} has {len} elements, and the completion {tokens} tokens");
            if len == tokens { Ok(()) } else { Err(Error::Sample { index, message: message() }) }
        };
        fits("mask", sample.mask.len())?;
        if let Objective::Value(_) = self {
            let Some(values) = &sample.values else {
                return Err(Error::Sample { index, message: "it has no values and returns to learn from".into() });
            };
            fits("values", values.old.len())?;
            return fits("returns", values.returns.len());
        }
        if let Objective::Preference(_) = self {
            let lacks = |message: &str| Err(Error::Sample { index, message: message.to_owned() });
            return match &sample.ref_logps {
                _ if tokens == 0 => lacks("an answer of a pair needs at least one token"),
                None => lacks("a pair needs the reference's log-probabilities (ref_logps)"),
                Some(ref_logps) => fits("ref_logps", ref_logps.len()),
            };
        }
        if matches!(self, Objective::Ranking(_)) && tokens == 0 {
            return Err(Error::Sample { index, message: "an answer of a pair needs at least one token".into() });
        }
        if !self.is_policy() {
            return Ok(());
        }
        fits("sampler_logps", sample.sampler_logps.len())?;
        fits("versions", sample.versions.len())?;
        sample.old_logps.as_ref().map_or(Ok(()), |old| fits("old_logps", old.len()))?;
        match (&sample.advantage, self) {
            (Advantage::Tokens(_), Objective::Rloo(_)) => {
                let message = "RLOO's advantage is one number per completion, not one per token".into();
                return Err(Error::Sample { index, message });
            }
            (Advantage::Tokens(advantages), _) => fits("advantage", advantages.len())?,
            (Advantage::Sequence(_), _) => {}
        }
        match &sample.ref_logps {
            Some(ref_logps) if self.has_kl() => fits("ref_logps", ref_logps.len()),
            None if self.has_kl() => {
                Err(Error::Sample { index, message: "beta is not 0, and there are no ref_logps".into() })
            }
            _ => Ok(()),
        }
    }
}

/// A pair, chosen first: the scores at the last places.
fn rank(config: &RankingConfig, totals: &Totals, pair: &mut [Scored<'_>], sums: &mut LossSums) {
    let last = |scored: &Scored<'_>| scored.logps.last().map_or(0.0, |&r| f64::from(r));
    let (rewards, margin) = ([last(&pair[0]), last(&pair[1])], f64::from(pair[0].sample.advantage.at(0)));
    let gradient = ranking(config, totals.sequences / 2, rewards, margin, sums);
    for (scored, d) in pair.iter_mut().zip(gradient) {
        scored.d_logps.fill(0.0);
        if let Some(last) = scored.d_logps.last_mut() {
            *last = d as f32;
        }
    }
}

/// A pair's part, the chosen answer first.
fn preference(config: &DpoConfig, totals: &Totals, pair: &mut [Scored<'_>], sums: &mut LossSums) {
    let [chosen, rejected] = pair else { unreachable!("a pair") };
    let [c, r] = [&*chosen, &*rejected].map(|s| Answer {
        logps: s.logps,
        ref_logps: s.sample.ref_logps.as_deref().expect("checked"),
        mask: s.mask,
    });
    dpo(config, totals.sequences / 2, [&c, &r], [&mut *chosen.d_logps, &mut *rejected.d_logps], sums);
}
