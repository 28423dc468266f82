//! Errors of a rollout.

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the rollout engine: a request that cannot be served, or a kernel that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The prompt fills the context, so that no token could be sampled.
    #[error(
        "a prompt of {prompt} tokens leaves no room in a context of {max_model_len}: raise max_model_len or shorten \
         the prompt"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// The maximum number of tokens of a sequence.
        max_model_len: usize,
    },
    /// The prompt has no tokens.
    #[error("the prompt is empty: it must have at least one token, such as BOS")]
    EmptyPrompt,
    /// The KV cache has too few pages for one sequence of the maximum length.
    #[error(
        "a KV cache of {blocks} pages cannot hold one sequence of {max_model_len} tokens: it must have at least \
         {needed} pages"
    )]
    PoolTooSmall {
        /// Pages of the KV cache.
        blocks: usize,
        /// The maximum number of tokens of a sequence.
        max_model_len: usize,
        /// Pages that one sequence needs.
        needed: usize,
    },
    /// The KV cache has more tokens than 32-bit indices can address.
    #[error(
        "a KV cache of {blocks} pages is too large: it may have at most {most} pages (max_num_seqs, kv_cache_blocks)"
    )]
    PoolTooLarge {
        /// Pages of the KV cache.
        blocks: usize,
        /// The maximum number of pages.
        most: usize,
    },
    /// A request uses the current weights, but the step got none.
    #[error("a request uses the current weights, but the step got no current weights")]
    NoCurrentWeights,
    /// A request names a version of the base weights that the step did not get.
    #[error("a request needs version {version} of the weights, which the step did not get")]
    NoSuchBase {
        /// The missing version of the base weights.
        version: model::Updates,
    },
    /// A request names a version of an adapter that the step did not get.
    #[error("a request needs version {version} of adapter {id}, which the step did not get")]
    NoSuchAdapter {
        /// Id of the missing adapter.
        id: u64,
        /// The missing version of the adapter.
        version: model::Updates,
    },
    /// The completions that a request should continue do not match the request.
    #[error("the completions of request {group} cannot be continued: {what}")]
    CannotContinue {
        /// The group of the request.
        group: model::GroupId,
        /// The reason.
        what: String,
    },
    /// A request that pauses cannot be generated to its end in one call.
    #[error("a request with pause_on_stop cannot be generated in one call: use submit and step")]
    Pauses,
    /// The generation was stopped by the flag of [`Engine::stop_with`](crate::Engine::stop_with).
    #[error("stopped as asked")]
    Stopped,
    /// A kernel failed.
    #[error(transparent)]
    Kernel(#[from] kernels::Error),
}
