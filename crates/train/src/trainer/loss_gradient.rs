//! The loss of a micro-batch and its gradient, computed on the host from the model's outputs.

use super::passes::{LossBatch, Measured, OutputGrads, Outputs};
use crate::objective::Scored;
use crate::optimizer_batch::Sequence;
use model::{MicroBatch, Updates};

/// Adds a micro-batch's contribution to the loss J to the sums. Returns the gradients of J with respect to the
/// log-probability and the entropy of each scored token.
pub(super) fn loss_and_gradient(
    batch: &LossBatch<'_>,
    version: Updates,
    micro: &MicroBatch<'_>,
    outputs: &Outputs,
    measured: &mut Measured,
) -> OutputGrads {
    let Outputs { logps, entropies, slots } = outputs;
    let (mut d_logps, mut d_entropies) = (vec![0.0; logps.len()], vec![0.0; logps.len()]);
    let (mut first, mut rest, mut rest_entropies) = (0, d_logps.as_mut_slice(), d_entropies.as_mut_slice());
    for group in micro.scored_groups() {
        let mut scored = Vec::new();
        for i in group {
            batch.count_skipped(i, version, measured);
            let Sequence { source, completion, mask, .. } = &batch.sequences[i];
            let tokens = first..first + completion.len();
            let (own, others) = rest.split_at_mut(tokens.len());
            let (own_entropies, other_entropies) = rest_entropies.split_at_mut(tokens.len());
            let (logps, entropies) = (&logps[tokens.clone()], &entropies[tokens.clone()]);
            if !batch.loss.is_of_scores() {
                let used = entropies.iter().zip(mask).filter(|(_, m)| **m);
                measured.entropy += used.map(|(e, _)| f64::from(*e)).sum::<f64>();
                // The log-probabilities of kept activations are the sampler's own.
                if let Some(sample) = source.sample().filter(|_| slots.is_none()) {
                    measured.compare(sample, logps, version);
                }
            }
            let source = *source;
            scored.push(Scored { source, mask, logps, entropies, d_logps: own, d_entropies: own_entropies });
            (first, rest, rest_entropies) = (tokens.end, others, other_entropies);
        }
        batch.loss.evaluate(batch.normalizer, &mut scored, &mut measured.sums);
    }
    OutputGrads { d_logps, d_entropies: batch.loss.has_entropy_grad(batch.normalizer).then_some(d_entropies) }
}
