//! Requests for training, and their results.

use super::failure::Failure;
use super::path::StatePath;
use super::room::Claim;
use model::LoraConfig;
use serde::{Deserialize, Serialize};
use std::time::Instant;
use train::datums::{AdamParams, Datum, TokenLoss};

/// The adapter that a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdapterSpec {
    /// The rank.
    pub rank: usize,
    /// The seed of the initial values; `None`: derived from the server's seed and the number of the model.
    pub seed: Option<u64>,
    /// Whether the attention matrices have an adapter.
    pub train_attn: bool,
    /// Whether the MLP matrices have an adapter.
    pub train_mlp: bool,
}

/// A request to a model. A client numbers the requests of each model.
#[derive(Clone, Debug)]
pub enum Job {
    /// Creates the model with a new adapter. It is the first request.
    Create(AdapterSpec),
    /// Creates the model from a saved state, or replaces the state of a model. The adapter is that of the state.
    Load {
        /// The path of the state.
        path: String,
        /// Whether the optimizer's moments are loaded, too.
        optimizer: bool,
    },
    /// Computes log-probabilities and, with a loss, adds its gradient.
    Pass {
        /// The sequences.
        datums: Vec<Datum>,
        /// The loss; `None`: no gradient.
        loss: Option<TokenLoss>,
        /// The tokens come from these samplers. With `needs_on_policy`, all of them must have the weights that the
        /// model now has.
        samplers: Vec<String>,
        /// Whether the loss is refused for tokens of other weights.
        needs_on_policy: bool,
    },
    /// Takes an optimizer step.
    Step(AdamParams),
    /// Saves adapter and moments.
    Save {
        /// The name of the state.
        name: String,
        /// Whether a state with this name is replaced.
        overwrite: bool,
        /// After how many seconds the state is deleted, if it is.
        ttl_seconds: Option<u64>,
    },
    /// Saves the adapter for sampling.
    SaveForSampler {
        /// The name of the saved adapter.
        name: String,
        /// After how many seconds the adapter is deleted, if it is.
        ttl_seconds: Option<u64>,
    },
    /// Makes a sampler of the current weights, without files.
    Sampler {
        /// The number of the sampler in the session.
        number: u64,
    },
}

impl Job {
    /// The bytes of its data.
    pub(super) fn bytes(&self) -> usize {
        let datum_bytes = |datum: &Datum| {
            let input_bytes = |(name, values): &(String, Vec<f32>)| {
                size_of::<(String, Vec<f32>)>() + name.len() + size_of::<f32>() * values.len()
            };
            let inputs = datum.inputs.iter().map(input_bytes).sum::<usize>();
            size_of::<Datum>() + size_of::<u32>() * (datum.ids.len() + datum.targets.len()) + inputs
        };
        let own = match self {
            Job::Pass { datums, samplers, .. } => {
                let samplers = samplers.iter().map(|id| size_of::<String>() + id.len());
                datums.iter().map(datum_bytes).chain(samplers).sum()
            }
            Job::Save { name: text, .. } | Job::SaveForSampler { name: text, .. } | Job::Load { path: text, .. } => {
                text.len()
            }
            Job::Create(_) | Job::Step(_) | Job::Sampler { .. } => 0,
        };
        size_of::<Job>() + own
    }
}

/// The result of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Done {
    /// The model exists.
    Created,
    /// The model has the state that was saved under this path.
    Loaded(StatePath),
    /// A pass.
    Passed(Passed),
    /// A step, with the norm of the gradient before clipping.
    Stepped {
        /// The L2 norm.
        grad_norm: f64,
        /// Comparisons of all passes since the step before.
        compared: Compared,
    },
    /// A state or an adapter was saved under this path.
    Saved(StatePath),
    /// The id of a sampler.
    Sampler(String),
}

/// The result of [`Job::Pass`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Passed {
    /// For each datum, the log-probability of each target.
    pub logps: Vec<Vec<f32>>,
    /// The loss; 0 without one.
    pub loss: f64,
    /// Comparison with the log-probabilities that the client sent.
    pub compared: Compared,
}

/// The log-probabilities that a client sent for tokens of a sampler with the model's current weights, compared with
/// those that training computes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Compared {
    /// The number of tokens that were compared.
    pub tokens: u64,
    /// The number of tokens whose log-probability differs in any bit.
    pub mismatches: u64,
    /// The largest difference.
    pub max_difference: f64,
}

impl Compared {
    pub(super) fn add(&mut self, sent: f32, computed: f32) {
        let differs = sent.to_bits() != computed.to_bits();
        let max_difference = if differs { (f64::from(sent) - f64::from(computed)).abs() } else { 0.0 };
        self.merge(Compared { tokens: 1, mismatches: u64::from(differs), max_difference });
    }

    pub(super) fn merge(&mut self, other: Compared) {
        self.tokens += other.tokens;
        self.mismatches += other.mismatches;
        // NaN counts as the largest difference.
        if other.max_difference > self.max_difference || other.max_difference.is_nan() {
            self.max_difference = other.max_difference;
        }
    }
}

/// A function that receives the result of a request.
pub type Reply = Box<dyn FnOnce(Result<Done, Failure>) + Send>;

/// A request that waits. If it is dropped, its reply is a failure.
pub(super) struct Pending {
    pub(super) job: Job,
    pub(super) reply: Replies,
    /// When it was accepted.
    pub(super) since: Instant,
}

impl Pending {
    pub(super) fn new(job: Job, reply: Reply, claim: Claim) -> Pending {
        Pending { job, reply: Replies { reply: Some(reply), _claim: claim }, since: Instant::now() }
    }
}

/// The duty to reply to a request, with the claim to the bytes of its data.
pub(super) struct Replies {
    reply: Option<Reply>,
    _claim: Claim,
}

impl Replies {
    pub(super) fn send(mut self, result: Result<Done, Failure>) {
        if let Some(reply) = self.reply.take() {
            reply(result);
        }
    }
}

impl Drop for Replies {
    fn drop(&mut self) {
        if let Some(reply) = self.reply.take() {
            reply(Err(Failure::request("the model or its session has ended, so the request was dropped")));
        }
    }
}

/// The settings of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelInfo {
    /// The adapter's settings.
    pub lora: LoraConfig,
    /// The client's request for the adapter.
    pub spec: AdapterSpec,
}
