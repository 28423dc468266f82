//! The messages between rank 0 and the other ranks. The text of a message is a value of these types as JSON; its
//! numbers are token ids or the bits of f32 numbers.

use crate::OptimizerConfig;
use crate::trainer::passes::ForwardSums;
use model::{GroupId, LoraConfig, MicroBatch, PromptGroup};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The part of one model's training that a rank computes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Start {
    pub(super) rank: usize,
    pub(super) world_size: usize,
    /// The instruction set, and the number of threads.
    pub(super) isa: String,
    pub(super) threads: usize,
    /// Id of the training run.
    pub(super) run: [u8; 16],
    /// The model's `config.json`, and whether it computes in bf16.
    pub(super) model: String,
    pub(super) is_bf16: bool,
    pub(super) adapter: Option<LoraConfig>,
    pub(super) temperature: f64,
    pub(super) prefix_sharing: bool,
    pub(super) gradient_checkpointing: bool,
    pub(super) gradient_shares: usize,
    /// Settings of the optimizer, with the seed of dropout.
    pub(super) optimizer: OptimizerConfig,
    /// The slots with the optimizer's state, the master weights first.
    pub(super) state: Vec<PathBuf>,
}

/// A request about the model with this index. (PPO trains two models.)
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ModelRequest {
    pub(super) model: usize,
    pub(super) request: Request,
}

/// A request of rank 0.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Prepares for the model. The reply is [`Reply::Ready`].
    Start(Box<Start>),
    /// Reads this version of the trained parameters until the gradient is complete; and the base weights below an
    /// adapter, if they are given. No reply.
    Weights { trained: PathBuf, base: Option<PathBuf> },
    /// Begins an optimizer step with a gradient of zeros. The reply is [`Reply::Begun`] with the same number. (After a
    /// cancelled step, other replies may still come before it.)
    Begin { number: u64 },
    /// Runs a forward pass on the token ids in the numbers. The reply is [`Reply::Outputs`].
    Forward(Pass),
    /// Runs the backward pass of the last forward pass. The numbers are the gradients of the log-probabilities (or
    /// scores), followed by those of the entropies if `has_entropies`. No reply.
    Backward { has_entropies: bool },
    /// Completes the gradient of the rank's shares, and releases the weights. The reply is [`Reply::Finished`].
    Finish,
    /// Adds the gradients of all ranks on the rank's part of the parameters. The reply is [`Reply::Reduced`].
    Reduce { gradients: Vec<PathBuf> },
    /// Takes the optimizer step on the rank's part of the parameters, from the weights in the first slot to those in
    /// the second, which may be the same. The reply is [`Reply::Stepped`].
    Step { step: PartStep, from: PathBuf, to: PathBuf },
    /// Work besides training, which [`OtherWork`](super::OtherWork) does. All replies are [`Reply::Other`].
    Other(String),
    /// Opens the rank's log file. The reply is [`Reply::Logs`].
    Log { file: PathBuf },
}

/// A rank's answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    /// The rank is prepared; it is this build of the program.
    Ready {
        build: String,
    },
    Begun {
        number: u64,
    },
    /// The numbers are log-probabilities (or scores), followed by as many entropies. The sums count kept rows.
    Outputs(ForwardSums),
    /// The gradient of the rank's shares is complete, in this slot.
    Finished {
        gradient: PathBuf,
        ops: Ops,
    },
    /// The numbers are the sums of squares of the part's chunks, two for each f64.
    Reduced {
        ops: Ops,
    },
    Stepped {
        ops: Ops,
    },
    /// A reply to [`Request::Other`].
    Other {
        text: String,
        ops: Ops,
    },
    Logs,
    /// The rank has failed and exits.
    Failed {
        why: String,
    },
}

/// Floating-point operations and bytes of memory traffic of a rank, since the reply before that has them.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Ops {
    pub(super) flops: u64,
    pub(super) bytes: u64,
}

/// An optimizer step.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(in crate::trainer) struct PartStep {
    pub(in crate::trainer) learning_rate: f64,
    /// Number of steps taken before.
    pub(in crate::trainer) before: u64,
    /// The gradient norm as bits, in the form of [`kernels::ops::grad_norm::from_chunks`].
    pub(in crate::trainer) norm: [u32; 2],
}

/// The forward pass of a micro-batch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Pass {
    /// The share of the gradient to which all groups belong.
    pub(super) share: usize,
    pub(super) is_of_scores: bool,
    pub(super) dropout: Option<DropoutOfPass>,
    /// If the rank has kept the activations of all groups: the group of each completion, and whether the kept
    /// activations are compared with a forward pass (otherwise they replace it).
    pub(super) kept: Option<(Vec<GroupId>, bool)>,
    /// For each group, the length of its prompt and of its completions. No completion is empty.
    pub(super) groups: Vec<(usize, Vec<usize>)>,
}

/// Dropout of an adapter's inputs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct DropoutOfPass {
    pub(super) step: u64,
    /// The index in the optimizer batch of each sequence.
    pub(super) samples: Vec<u32>,
    /// Whether only a second forward pass has dropout, which is then differentiated.
    pub(super) second: bool,
}

impl Pass {
    /// The request for the forward pass of `micro`, and its numbers.
    pub(super) fn request(
        share: usize,
        is_of_scores: bool,
        dropout: Option<DropoutOfPass>,
        kept: Option<(Vec<GroupId>, bool)>,
        micro: &MicroBatch<'_>,
    ) -> (Request, Vec<u32>) {
        let (mut groups, mut numbers) = (Vec::new(), Vec::new());
        for (group, _) in micro.groups() {
            let completions = || group.completions.iter().filter(|completion| !completion.is_empty());
            groups.push((group.prompt.len(), completions().map(|completion| completion.len()).collect()));
            numbers.extend(group.prompt);
            completions().for_each(|completion| numbers.extend(*completion));
        }
        (Request::Forward(Pass { share, is_of_scores, dropout, kept, groups }), numbers)
    }

    /// The groups, whose ids are in `numbers`; `None` if there are not as many numbers.
    pub(super) fn groups<'a>(&self, numbers: &'a [u32]) -> Option<Vec<PromptGroup<'a>>> {
        let mut rest = numbers;
        let mut take = |len: usize| {
            let (first, others) = rest.split_at_checked(len)?;
            rest = others;
            Some(first)
        };
        let mut group = |(prompt, completions): &(usize, Vec<usize>)| {
            let prompt = take(*prompt)?;
            let completions = completions.iter().map(|len| take(*len)).collect::<Option<_>>()?;
            Some(PromptGroup { prompt, completions })
        };
        self.groups.iter().map(&mut group).collect()
    }
}

/// The bits of f32 numbers, to send.
pub(super) fn bits(numbers: &[f32]) -> impl Iterator<Item = u32> {
    numbers.iter().map(|number| number.to_bits())
}

/// The f32 numbers that were sent as their bits.
pub(super) fn floats(bits: &[u32]) -> Vec<f32> {
    bits.iter().map(|&number| f32::from_bits(number)).collect()
}

/// f64 numbers as numbers of a message.
pub(super) fn halves(numbers: &[f64]) -> Vec<u32> {
    numbers.iter().flat_map(|x| [x.to_bits() as u32, (x.to_bits() >> 32) as u32]).collect()
}

/// The f64 numbers of [`halves`].
pub(super) fn doubles(halves: &[u32]) -> Vec<f64> {
    let (pairs, _) = halves.as_chunks::<2>();
    pairs.iter().map(|[low, high]| f64::from_bits(u64::from(*high) << 32 | u64::from(*low))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::packing::micro_batches;
    use ranks::Message;

    #[test]
    fn a_pass_read_back_has_the_same_groups_without_empty_completions() {
        let groups = [
            PromptGroup { prompt: &[1, 2], completions: vec![&[3], &[], &[4, 5]] },
            PromptGroup { prompt: &[6], completions: vec![&[]] },
            PromptGroup { prompt: &[7], completions: vec![&[8, 9, 1]] },
        ];
        let micro = &micro_batches(&groups, 100, true)[0];
        let (request, numbers) = Pass::request(3, false, None, None, micro);
        let Request::Forward(pass) = Message::json(&request, Vec::new()).unwrap().value().unwrap() else { panic!() };
        let found = pass.groups(&numbers).unwrap();
        assert_eq!(found[0], PromptGroup { prompt: &[1, 2], completions: vec![&[3], &[4, 5]] });
        assert_eq!((found.len(), &found[1], pass.share), (2, &groups[2], 3));
        assert_eq!(micro_batches(&found, usize::MAX, true)[0].batch(true), micro.batch(true));
        assert!(pass.groups(&numbers[..5]).is_none());
        let numbers = [f32::NAN, -0.0, 1e-45];
        assert_eq!(floats(&bits(&numbers).collect::<Vec<_>>()).map_bits(), numbers.to_vec().map_bits());
        let sums = [0.1, f64::INFINITY, 5e-324];
        assert_eq!(doubles(&halves(&sums)), sums);
    }

    trait MapBits {
        fn map_bits(&self) -> Vec<u32>;
    }
    impl MapBits for Vec<f32> {
        fn map_bits(&self) -> Vec<u32> {
            bits(self).collect()
        }
    }
}
