//! The objective: from the model's log-probabilities and entropies of every completion token to a loss, and back to
//! their gradients.
//!
//! The trainer hands over one group at a time: sequences of a prompt that lie behind one another, so that a loss may
//! compare the two of a pair. A loss is a file in [`loss`](crate::loss); this one says which, what it needs of a
//! sample, and what it reports. It knows no weights.

use crate::loss::bradley_terry::{RankingConfig, ranking};
use crate::loss::dft::dft;
use crate::loss::dpo::{Answer, DpoConfig, dpo};
use crate::loss::entropy::{self, EntropyConfig};
use crate::loss::ppo::{self, Actions, PpoConfig, States, ValueConfig};
use crate::loss::rloo::{RlooConfig, rloo};
use crate::loss::{LossConfig, LossSums, LossType, Normalizer, Sequence, policy, supervised::supervised};
use crate::{Advantage, Error, PreferencePair, Result, Sample, Samples};
use model::Columns;

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
    /// A reward model's, for pairs: a model with a head of one score.
    Ranking(RankingConfig),
    /// DPO's, for pairs.
    Preference(DpoConfig),
    /// The mean negative log-likelihood of the completion tokens of the optimizer batch.
    Supervised,
    /// Dynamic fine-tuning: the negative log-likelihood with every token weighted by its probability.
    Dft,
}

/// What a sequence of the optimizer batch is.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// A sample.
    Sample(&'a Sample),
    /// The chosen response of a pair, behind which its rejected one comes.
    Chosen(&'a PreferencePair),
    /// The rejected response of a pair.
    Rejected(&'a PreferencePair),
}

impl<'a> Source<'a> {
    /// The sample, if it is one.
    pub(crate) fn sample(self) -> Option<&'a Sample> {
        match self {
            Source::Sample(sample) => Some(sample),
            Source::Chosen(_) | Source::Rejected(_) => None,
        }
    }
}

/// A sequence and the model's output for it; the slices have one element per completion token.
#[derive(Debug)]
pub struct Scored<'a> {
    /// The sequence.
    pub source: Source<'a>,
    /// Which tokens the loss uses ([`Objective::loss_mask`]).
    pub mask: &'a [bool],
    /// log π_θ of each token; of a model of scores, the score of the row that predicts it.
    pub logps: &'a [f32],
    /// Entropy of the distribution that each token comes from, in nats; 0 of a model of scores.
    pub entropies: &'a [f32],
    /// ∂J/∂logps: overwritten.
    pub d_logps: &'a mut [f32],
    /// ∂J/∂H of each entropy: overwritten where [`Objective::has_entropy_grad`], else not read.
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
            | Objective::Preference(_) => sample.mask.clone(),
        }
    }

    /// Whether it is of pairs.
    pub fn is_of_pairs(&self) -> bool {
        matches!(self, Objective::Preference(_) | Objective::Ranking(_))
    }

    /// Whether it is of a model with a head of scores.
    pub fn is_of_scores(&self) -> bool {
        matches!(self, Objective::Value(_) | Objective::Ranking(_))
    }

    /// Whether samples are the policy's own, with the record of their sampler.
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

    /// Whether it clips and reports how much.
    pub fn clips(&self) -> bool {
        match self {
            Objective::Policy(config) => config.loss_type.clips(),
            Objective::Rloo(_) | Objective::Ppo(_) => true,
            _ => false,
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
    pub fn has_entropy_grad(&self, normalizer: &Normalizer) -> bool {
        match self {
            Objective::Ppo(config) => config.entropy_coef != 0.0,
            _ => self.entropy().is_on() && normalizer.entropy_coef != 0.0,
        }
    }

    /// Whether the gradient of a sequence without an advantage, or without a token in the loss, is 0 whatever the model
    /// says of it. Not where the loss has more terms than the policy's (KL divergence, entropy), nor where the
    /// entropies of all tokens say which are left out.
    pub fn can_skip(&self) -> bool {
        match self {
            Objective::Policy(config) => {
                config.beta == 0.0 && !config.entropy.is_on() && config.top_entropy_quantile >= 1.0
            }
            Objective::Rloo(_) => true,
            _ => false,
        }
    }

    /// Adds to `sums` what is known of a sequence that is not computed and has no gradient: its part of J, 0 or a
    /// constant; how much of it is clipped, nothing; the sampler's distance from the old policy. Where `on_policy`, its
    /// ratio is 1; elsewhere it is not known, and what a loss reports of ratios is left out.
    pub(crate) fn evaluate_skipped(
        &self,
        normalizer: &Normalizer,
        sample: &Sample,
        mask: &[bool],
        on_policy: bool,
        sums: &mut LossSums,
    ) {
        let of_ratios = matches!(self, Objective::Policy(config) if config.loss_type == LossType::Vespo);
        let before = (of_ratios && !on_policy && mask.contains(&true)).then(|| sums.means.clone());
        let zeros = || vec![0.0; mask.len()];
        let (entropies, mut d_logps, mut d_entropies) = (zeros(), zeros(), zeros());
        let (logps, d_logps, d_entropies) = (sample.old_logps(), &mut d_logps[..], &mut d_entropies[..]);
        let source = Source::Sample(sample);
        let scored = Scored { source, mask, logps, entropies: &entropies, d_logps, d_entropies };
        self.evaluate(normalizer, &mut [scored], sums);
        sums.means = before.unwrap_or_else(|| std::mem::take(&mut sums.means));
    }

    /// Adds a group's part of J to `sums`, and overwrites its gradient. `normalizer` are those of the whole optimizer
    /// batch. The entropy bonus is not in [`LossSums::loss`], but its entropies in [`LossSums::entropy`].
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
            let sample = source.sample().expect("a loss of samples");
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
                Objective::Ranking(_) | Objective::Preference(_) => unreachable!("evaluated by pairs"),
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

    /// Whether `samples` are of the loss's kind and have what it needs.
    pub fn check(&self, samples: Samples<'_>) -> Result<()> {
        match (samples, self.is_of_pairs()) {
            (Samples::Sequences(samples), false) => {
                samples.iter().enumerate().try_for_each(|(i, sample)| self.check_sample(i, sample))
            }
            (Samples::Pairs(pairs), true) => {
                pairs.iter().enumerate().try_for_each(|(i, pair)| self.check_pair(i, pair))
            }
            (Samples::Sequences(_), true) => Err(Error::Config("the loss is of pairs, and there are none".into())),
            (Samples::Pairs(_), false) => Err(Error::Config("the loss is not of pairs".into())),
        }
    }

    fn check_pair(&self, index: usize, pair: &PreferencePair) -> Result<()> {
        for response in [&pair.chosen, &pair.rejected] {
            let lacks = |message: &str| Err(Error::Sample { index, message: message.to_owned() });
            match (self, response.columns.ref_logps()) {
                _ if response.ids.is_empty() => return lacks("a response of a pair needs at least one token"),
                (Objective::Preference(_), None) => {
                    return lacks("a pair needs the reference's log-probabilities (ref_logps)");
                }
                _ => fits(index, response.ids.len(), &response.columns)?,
            }
        }
        Ok(())
    }

    fn check_sample(&self, index: usize, sample: &Sample) -> Result<()> {
        let tokens = sample.completion.len();
        let lacks = |message: &str| Err(Error::Sample { index, message: message.to_owned() });
        fit(index, tokens, "mask", sample.mask.len())?;
        fits(index, tokens, &sample.columns)?;
        if let Objective::Value(_) = self {
            return match sample.values_and_returns() {
                Some(_) => Ok(()),
                None => lacks("it has no values and returns to learn from"),
            };
        }
        if !self.is_policy() {
            return Ok(());
        }
        if sample.columns.sampler_logps().is_none() {
            return lacks("it has no sampler_logps");
        }
        fit(index, tokens, "versions", sample.versions.len())?;
        match (&sample.advantage, self) {
            (Advantage::Tokens(_), Objective::Rloo(_)) => {
                return lacks("RLOO's advantage is one number per completion, not one per token");
            }
            (Advantage::Tokens(advantages), _) => fit(index, tokens, "advantage", advantages.len())?,
            (Advantage::Sequence(_), _) => {}
        }
        match sample.columns.ref_logps() {
            None if self.has_kl() => lacks("beta is not 0, and there are no ref_logps"),
            _ => Ok(()),
        }
    }
}

/// Whether every column has a row per token.
fn fits(index: usize, tokens: usize, columns: &Columns) -> Result<()> {
    columns.iter().try_for_each(|(name, column)| fit(index, tokens, name, column.tokens()))
}

fn fit(index: usize, tokens: usize, what: &str, len: usize) -> Result<()> {
    let message = || format!("{what} has {len} elements, and the completion {tokens} tokens");
    if len == tokens { Ok(()) } else { Err(Error::Sample { index, message: message() }) }
}

/// The score of a response is that of its last token.
fn rank(config: &RankingConfig, normalizer: &Normalizer, pair: &mut [Scored<'_>], sums: &mut LossSums) {
    let Source::Chosen(PreferencePair { margin, .. }) = pair[0].source else { unreachable!("the chosen one is first") };
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
        unreachable!("the chosen one is first")
    };
    let [c, r] = [(&*chosen, &c.chosen), (&*rejected, &r.rejected)].map(|(scored, response)| Answer {
        logps: scored.logps,
        ref_logps: response.columns.ref_logps().expect("checked"),
        mask: scored.mask,
    });
    dpo(config, normalizer.sequences / 2, [&c, &r], [&mut *chosen.d_logps, &mut *rejected.d_logps], sums);
}
