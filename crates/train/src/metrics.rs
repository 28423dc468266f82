//! Metrics of one optimizer step, under TRL's names.

use crate::loss::sampling::SamplingMetrics;
use crate::means::{ClipRatios, Means};
use serde::{Deserialize, Serialize};

/// Measurements of one optimizer step. Means are over the tokens (or sequences) of the whole optimizer batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UpdateMetrics {
    /// The loss. If no token is in the loss, it is 0 and has no entry.
    pub loss: f64,
    /// L2 norm of the gradient over all parameters, before clipping.
    pub grad_norm: f64,
    /// The learning rate of this step.
    pub learning_rate: f64,
    /// Mean entropy of the tokens in the loss, in nats. Tokens of skipped groups count only if the sampler recorded
    /// their entropies with the current weights. `None` if no token remains.
    pub entropy: Option<f64>,
    /// Mean KL divergence to the reference model (estimator k3), if `beta` ≠ 0. Like all means, extremes and fractions
    /// below, it is `None` if no token is in the loss.
    pub kl: Option<f64>,
    /// Further metrics of the loss.
    pub means: Means,
    /// Clip ratios, if the loss clips.
    pub clip: Option<ClipRatios>,
    /// Statistics of the importance-sampling correction, if it is on.
    pub sampling: Option<SamplingMetrics>,
    /// The loss without its entropy bonus, if it has one.
    pub policy_loss: Option<f64>,
    /// Coefficient of the entropy bonus after this step, if there is one.
    pub entropy_coef: Option<f64>,
    /// Whether the samples have their sampler's log-probabilities (all except supervised samples do).
    pub sampled: bool,
    /// Number of samples in the optimizer batch.
    pub sequences: u64,
    /// Number of completion tokens that the loss uses.
    pub loss_tokens: u64,
    /// Number of rows (tokens) that the model computed; a shared prompt counts once.
    pub computed_tokens: u64,
    /// Number of groups that were skipped because their gradient is known to be 0. `None` if the trainer does not skip
    /// groups.
    pub skipped_groups: Option<u64>,
    /// Number of rows that the model would have computed for the skipped groups.
    pub skipped_tokens: Option<u64>,
    /// Number of micro-batches of the step.
    pub micro_batches: u64,
    /// Number of tokens whose log-probability differs in any bit between sampler and trainer. Only sequences that were
    /// sampled entirely with the weights before this step and have a forward pass are compared. It must be 0.
    pub logp_mismatch_tokens: u64,
    /// Number of tokens whose log-probabilities were compared, in the groups that are always compared (one in 64).
    pub logp_compared_tokens: u64,
    /// Maximum difference between sampler's and trainer's log-probabilities in forward passes. If no token was
    /// compared, it is 0 and has no entry.
    pub max_logp_difference: f64,
    /// Number of rows (tokens) whose activations were copied from those that the engine kept. `None` if the trainer
    /// does not use kept activations.
    pub kept_rows: Option<u64>,
    /// Number of kept rows that were compared with a forward pass.
    pub compared_rows: u64,
    /// Number of compared rows that differ in any bit. It must be 0.
    pub activation_mismatch_rows: u64,
    /// Whether the step was skipped because the loss or the gradient was not finite.
    pub skipped: bool,
    /// Number of steps skipped so far in the training run.
    pub skipped_total: u64,
    /// Seconds in forward passes, including lm head, loss and copies of kept activations.
    pub forward_time_s: f64,
    /// Seconds in backward passes.
    pub backward_time_s: f64,
    /// Seconds in computing the gradient norm and in the optimizer.
    pub optimizer_time_s: f64,
}

/// The names of the metrics of clipping, for objectives that clip.
pub const CLIP_RATIOS: [&str; 5] = [
    "clip_ratio/low_mean",
    "clip_ratio/low_min",
    "clip_ratio/high_mean",
    "clip_ratio/high_max",
    "clip_ratio/region_mean",
];

impl UpdateMetrics {
    /// Whether any token is in the loss. If not, nothing was learned from the samples.
    pub fn learns(&self) -> bool {
        self.loss_tokens > 0
    }

    /// The metrics of the loss, which an evaluation also reports.
    pub(crate) fn loss_entries(&self) -> Vec<(&'static str, f64)> {
        let clip = self.clip.iter().flat_map(|clip| {
            let shares = [clip.low_mean, clip.low_min, clip.high_mean, clip.high_max, clip.region_mean];
            CLIP_RATIOS.into_iter().zip(shares)
        });
        let first = [("entropy", self.entropy), ("kl", self.kl)];
        let last = [("policy_loss", self.policy_loss), ("entropy_coef", self.entropy_coef)];
        let known = |(name, value): (&'static str, Option<f64>)| value.map(|value| (name, value));
        first.into_iter().filter_map(known).chain(clip).chain(last.into_iter().filter_map(known)).collect()
    }

    /// The logged metrics by name: TRL's, and Lockstep's own `sampling/logp_mismatch_tokens`,
    /// `sampling/logp_compared_tokens`, `sampling/max_logp_difference`, `sampling/activation_mismatch_rows`, `update/…`
    /// and `skipped_steps`. For a log interval of several optimizer steps, TRL logs the mean of each. A mean over no
    /// values has no entry. Times and counts are fields, not entries.
    pub fn entries(&self) -> Vec<(&str, f64)> {
        let mut out: Vec<(&str, f64)> = Vec::new();
        out.extend(self.learns().then_some(("loss", self.loss)));
        out.extend([("grad_norm", self.grad_norm), ("learning_rate", self.learning_rate)]);
        out.extend(self.loss_entries());
        if let Some(sampling) = &self.sampling {
            let [min, mean, max] = sampling.importance_sampling_ratio;
            out.extend([
                ("sampling/importance_sampling_ratio/min", min),
                ("sampling/importance_sampling_ratio/mean", mean),
                ("sampling/importance_sampling_ratio/max", max),
                ("sampling/importance_sampling_ratio/bounded", sampling.bounded_ratio),
                ("sampling/sampling_logp_difference/mean", sampling.sampling_logp_difference[0]),
                ("sampling/sampling_logp_difference/max", sampling.sampling_logp_difference[1]),
            ]);
        }
        if self.sampled {
            out.extend([
                ("sampling/logp_mismatch_tokens", self.logp_mismatch_tokens as f64),
                ("sampling/logp_compared_tokens", self.logp_compared_tokens as f64),
            ]);
            let compares = self.logp_compared_tokens > 0 || self.logp_mismatch_tokens > 0;
            out.extend(compares.then_some(("sampling/max_logp_difference", self.max_logp_difference)));
            out.push(("sampling/activation_mismatch_rows", self.activation_mismatch_rows as f64));
        }
        out.extend(self.skipped_groups.map(|n| ("update/skipped_groups", n as f64)));
        out.extend(self.skipped_tokens.map(|n| ("update/skipped_tokens", n as f64)));
        out.extend(self.means.entries());
        out.push(("skipped_steps", self.skipped_total as f64));
        out
    }
}

#[cfg(test)]
mod tests;
