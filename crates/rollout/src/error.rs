//! What can go wrong in a rollout.

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A request that cannot be served, or a kernel that refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The prompt leaves no room for a token.
    #[error(
        "a prompt of {prompt} tokens leaves no room in a context of {max_model_len}: raise max_model_len or shorten \
         the prompt"
    )]
    PromptTooLong {
        /// Its tokens.
        prompt: usize,
        /// The context.
        max_model_len: usize,
    },
    /// There is nothing to continue.
    #[error("an empty prompt cannot be continued: give at least one token (a BOS, say)")]
    EmptyPrompt,
    /// The pool cannot hold one sequence.
    #[error(
        "{blocks} pages of keys and values cannot hold one sequence of {max_model_len} tokens: give at least {needed}"
    )]
    PoolTooSmall {
        /// Pages of the pool.
        blocks: usize,
        /// The context.
        max_model_len: usize,
        /// Pages that it needs.
        needed: usize,
    },
    /// The pool has more tokens than are numbered.
    #[error("{blocks} pages of keys and values are too many: give at most {most} (max_num_seqs, kv_cache_blocks)")]
    PoolTooLarge {
        /// Pages of the pool.
        blocks: usize,
        /// As many as can be.
        most: usize,
    },
    /// A request follows the current weights, and the step was given none.
    #[error("a request names no version of the weights, and the step was given no current ones")]
    NoCurrentWeights,
    /// A request names a base that the step was not given.
    #[error("the step was not given version {version} of the weights, which a request names")]
    NoSuchBase {
        /// Its version.
        version: u64,
    },
    /// A request names an adapter that the step was not given.
    #[error("the step was not given version {version} of adapter {id}, which a request names")]
    NoSuchAdapter {
        /// The adapter.
        id: u64,
        /// Its version.
        version: u64,
    },
    /// What completions have so far is none of the request's.
    #[error("the completions of request {id} cannot be continued: {what}")]
    CannotContinue {
        /// The request.
        id: u64,
        /// What is wrong.
        what: String,
    },
    /// The flag of [`Engine::stop_with`](crate::Engine::stop_with) was set.
    #[error("stopped as asked")]
    Stopped,
    /// A kernel refused.
    #[error(transparent)]
    Kernel(#[from] kernels::Error),
}
