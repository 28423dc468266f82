//! What is minimised: from what the model says of every completion token to a loss, and back.
//!
//! The trainer hands over one group at a time, which is all samples of a prompt that lie behind one another, so that a
//! loss may compare them (pairs). A loss is a file in [`loss`](crate::loss); this one says which, what it needs of a
//! sample, and what it reports. It knows no weights.

use crate::loss::{LossConfig, LossSums, Sequence, Totals, policy, supervised::supervised};
use crate::{Advantage, Error, Result, Sample};

/// What is minimised.
#[derive(Clone, Debug, PartialEq)]
pub enum Objective {
    /// A policy-gradient loss.
    Policy(LossConfig),
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
    /// log π_θ of each token.
    pub logps: &'a [f32],
    /// Entropy of the distribution that each token comes from, in nats.
    pub entropies: &'a [f32],
    /// ∂J/∂log π_θ: overwritten.
    pub d_logps: &'a mut [f32],
}

impl Objective {
    /// The completion tokens of `sample` that the loss uses.
    pub fn loss_mask(&self, sample: &Sample) -> Vec<bool> {
        match self {
            Objective::Supervised => sample.mask.clone(),
            Objective::Policy(config) => config.loss_mask(sample),
        }
    }

    /// Adds a group's part of J to `sums`, and overwrites its gradient. `totals` are those of the whole optimizer batch.
    pub fn evaluate(&self, totals: &Totals, group: &mut [Scored<'_>], sums: &mut LossSums) {
        for scored in group {
            let Scored { sample, mask, logps, .. } = *scored;
            let d_logps = &mut *scored.d_logps;
            match self {
                Objective::Supervised => supervised(totals, logps, mask, d_logps, sums),
                Objective::Policy(config) => {
                    let sequence = Sequence {
                        logps,
                        old_logps: &sample.sampler_logps,
                        ref_logps: sample.ref_logps.as_deref(),
                        mask,
                        advantage: &sample.advantage,
                    };
                    policy(config, totals, &sequence, d_logps, sums);
                }
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
        let Objective::Policy(config) = self else { return Ok(()) };
        fits("sampler_logps", sample.sampler_logps.len())?;
        fits("versions", sample.versions.len())?;
        if let Advantage::Tokens(advantages) = &sample.advantage {
            fits("advantage", advantages.len())?;
        }
        match &sample.ref_logps {
            Some(ref_logps) if config.beta != 0.0 => fits("ref_logps", ref_logps.len()),
            None if config.beta != 0.0 => {
                Err(Error::Sample { index, message: "beta is not 0, and there are no ref_logps".into() })
            }
            _ => Ok(()),
        }
    }
}
