//! Errors of a rollout.

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the rollout engine: a request that cannot be served, or a kernel that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The prompt leaves no room in the context for a sampled token.
    #[error(
        "a prompt of {prompt} tokens leaves no room in a context of {max_model_len}: raise max_model_len or shorten \
         the prompt"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Largest number of tokens of a sequence.
        max_model_len: usize,
    },
    /// The prompt has no tokens.
    #[error("an empty prompt cannot be continued: give at least one token (a BOS, say)")]
    EmptyPrompt,
    /// The KV cache has too few pages for one sequence of the largest length.
    #[error(
        "{blocks} pages of keys and values cannot hold one sequence of {max_model_len} tokens: give at least {needed}"
    )]
    PoolTooSmall {
        /// Pages of the KV cache.
        blocks: usize,
        /// Largest number of tokens of a sequence.
        max_model_len: usize,
        /// Pages that one sequence needs.
        needed: usize,
    },
    /// The KV cache has more tokens than 32-bit indices can number.
    #[error("{blocks} pages of keys and values are too many: give at most {most} (max_num_seqs, kv_cache_blocks)")]
    PoolTooLarge {
        /// Pages of the KV cache.
        blocks: usize,
        /// The largest number of pages.
        most: usize,
    },
    /// A request uses the current weights, and the step was given none.
    #[error("a request names no version of the weights, and the step was given no current ones")]
    NoCurrentWeights,
    /// A request names a version of the base weights that the step was not given.
    #[error("the step was not given version {version} of the weights, which a request names")]
    NoSuchBase {
        /// The missing version of the base weights.
        version: model::Updates,
    },
    /// A request names a version of an adapter that the step was not given.
    #[error("the step was not given version {version} of adapter {id}, which a request names")]
    NoSuchAdapter {
        /// Id of the missing adapter.
        id: u64,
        /// The missing version of the adapter.
        version: model::Updates,
    },
    /// The completions that a request should continue do not fit the request.
    #[error("the completions of request {group} cannot be continued: {what}")]
    CannotContinue {
        /// The group of the request.
        group: model::GroupId,
        /// The reason.
        what: String,
    },
    /// A request that pauses was to be generated to its end in one call.
    #[error("a request with pause_on_stop waits for its caller: submit it and run steps")]
    Pauses,
    /// The generation was stopped by the flag of [`Engine::stop_with`](crate::Engine::stop_with).
    #[error("stopped as asked")]
    Stopped,
    /// A kernel failed.
    #[error(transparent)]
    Kernel(#[from] kernels::Error),
}
